//! The one request handler behind every transport: rmcp's `ServerHandler` over [`Surface`]. It decides nothing about tools.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CustomRequest, CustomResult, ErrorCode,
        Implementation, InitializeRequestParams, InitializeResult, ListResourceTemplatesResult, ListResourcesResult,
        ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
        ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::Value;
use tokio::task::JoinError;

use super::{encode, exchange::Exchange, route::STATELESS_REVISION};
use crate::tools::{Answer, Request, Surface, UnknownTool};

/// How long a 2026-07-28 client may keep the tool list, in milliseconds: five minutes. The list changes only with the
/// version of the program, and a client that still asks with an old list gets a clear error.
const TOOLS_TTL_MS: u64 = 300_000;

/// Characters of an unknown tool's name that an error repeats.
const NAME_SHOWN_MAX: usize = 100;

/// What rmcp calls. Cheap to clone: rmcp asks for one per request.
#[derive(Clone)]
pub(super) struct Handler(Arc<Shared>);

struct Shared {
    surface: Arc<dyn Surface>,
    tools: Vec<Tool>,
    config: ServerConfig,
}

impl Handler {
    pub(super) fn new(surface: Arc<dyn Surface>) -> Self {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let config = ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("chappie", env!("CARGO_PKG_VERSION")))
            .with_instructions(surface.instructions());
        let tools = surface.specs().iter().map(encode::tool).collect();
        Self(Arc::new(Shared { surface, tools, config }))
    }

    /// Runs one call on a task of its own: neither a dropped connection nor a panic in a tool may take the other down.
    async fn run(
        &self,
        params: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let exchange = Exchange::of(&context.extensions);
        exchange.decoded();
        let request = Request {
            tool: params.name.clone().into_owned(),
            arguments: params.arguments.unwrap_or_default(),
            caller: exchange.caller(&context.meta),
            cancelled: exchange.cancelled.clone(),
            sent: None,
        };
        let (surface, held) = (self.0.surface.clone(), exchange.clone());
        let task = chappie_mesh::runtime::spawn(async move {
            let outcome = surface.call(request).await;
            drop(held);
            outcome
        });
        let outcome = tokio::select! {
            outcome = task => outcome,
            () = exchange.unanswerable.cancelled() => {
                let message = "the connection is closing before the call ended; the call goes on: look at `history` before \
                               repeating it";
                return Err(ErrorData::internal_error(message, None));
            }
        };
        self.settle(&params.name, outcome, &exchange)
    }

    fn settle(
        &self,
        tool: &str,
        outcome: Result<Result<Answer, UnknownTool>, JoinError>,
        exchange: &Exchange,
    ) -> Result<CallToolResult, ErrorData> {
        match outcome {
            Ok(Ok(Answer { content, structured, is_error, ticket })) => {
                exchange.leave_ticket(ticket);
                Ok(encode::answer(content, structured, is_error))
            }
            Ok(Err(UnknownTool)) => Err(self.unknown_tool(tool)),
            Err(error) => {
                tracing::error!(tool, %error, "a tool call ended abnormally");
                Ok(encode::tool_error(format!(
                    "`{tool}` failed inside Chappie (this is a fault of Chappie, not of the arguments). It may have had \
                     effects: check them with `history` before trying again."
                )))
            }
        }
    }

    fn unknown_tool(&self, tool: &str) -> ErrorData {
        let names: Vec<_> = self.0.tools.iter().map(|tool| tool.name.as_ref()).collect();
        // A name of any length may come; the answer has a budget.
        let tool: String = tool.chars().take(NAME_SHOWN_MAX).collect();
        ErrorData::invalid_params(format!("unknown tool `{tool}`: expected one of {}", names.join(", ")), None)
    }

    /// A `tools/call` that rmcp could not decode. Arguments that are no object are the model's mistake, so it reads of it.
    fn undecodable_call(&self, params: Option<&Value>, modern: bool) -> Result<CustomResult, ErrorData> {
        let name = params.and_then(|params| params.get("name")).and_then(Value::as_str);
        let Some(name) = name else {
            return Err(ErrorData::invalid_params(
                "`tools/call` needs params {name: string, arguments?: object}",
                None,
            ));
        };
        if self.get_tool(name).is_none() {
            return Err(self.unknown_tool(name));
        }
        let arguments = params.and_then(|params| params.get("arguments")).unwrap_or(&Value::Null);
        if arguments.is_object() || arguments.is_null() {
            return Err(ErrorData::invalid_params(
                "`tools/call` has params of the wrong type beside `arguments`",
                None,
            ));
        }
        let found = kind(arguments);
        let mut result = encode::tool_error(format!("`{name}` needs its arguments as a JSON object, got {found}."));
        if !modern {
            result.result_type = None;
        }
        let value = serde_json::to_value(result).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(CustomResult::new(value))
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        self.0.config.clone()
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let result = self.negotiate_initialize(&request)?;
        context.peer.set_peer_info(request);
        Exchange::of(&context.extensions).shook_hands.store(true, Ordering::Release);
        Ok(result)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let list = ListToolsResult::with_all_items(self.0.tools.clone());
        Ok(if is_modern(&context) {
            list.with_ttl_ms(TOOLS_TTL_MS).with_cache_scope(CacheScope::Private)
        } else {
            list
        })
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.run(params, &context).await.map(CallToolResponse::from)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(Vec::new()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = self.0.surface.resource_templates().into_iter().map(encode::template).collect();
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let exchange = Exchange::of(&context.extensions);
        let caller = exchange.caller(&context.meta);
        let (surface, uri) = (self.0.surface.clone(), params.uri.clone());
        let read = chappie_mesh::runtime::spawn(async move { surface.read_resource(uri, caller).await });
        let outcome = read.await.map_err(|error| {
            tracing::error!(%error, "a resource read ended abnormally");
            ErrorData::internal_error("the read failed inside Chappie; try again", None)
        })?;
        let read = outcome.map_err(|error| encode::resource_error(&params.uri, &error))?;
        Ok(encode::resource(params.uri, &read).into())
    }

    /// Reached by methods that MCP does not know and by those whose parameters rmcp could not decode.
    fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<CustomResult, ErrorData>> + Send + '_ {
        let CustomRequest { method, params, .. } = request;
        std::future::ready(match method.as_str() {
            "tools/call" => self.undecodable_call(params.as_ref(), is_modern(&context)),
            "initialize" => {
                Err(ErrorData::invalid_params("`initialize` needs protocolVersion, capabilities and clientInfo", None))
            }
            "resources/read" => Err(ErrorData::invalid_params("`resources/read` needs params {uri: string}", None)),
            "tools/list" | "resources/list" | "resources/templates/list" | "ping" | "server/discover" => {
                Err(ErrorData::invalid_params(format!("`{method}` has parameters of the wrong type"), None))
            }
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("unknown method `{method}`"), None)),
        })
    }
}

fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version.as_str() >= STATELESS_REVISION)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
