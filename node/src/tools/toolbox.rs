//! The tools behind one [`Surface`]: holds the handles and sends a request to its tool's file.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    arguments, bash, call, chat, compose::refusal, edit, history, init, read, resources, sessions, surface, tools,
    write,
};
use crate::{
    broker::Broker,
    host::BoxFuture,
    ids::{Conversation, SessionId},
    sessions::{Session, Sessions},
    storage::blobs::Blobs,
    tools::{Annotations, Answer, Caller, Request, ResourceError, ResourceRead, Surface, ToolSpec, UnknownTool},
};

/// What the server tells every client, in our own words.
const INSTRUCTIONS: &str = include_str!("instructions.md");

/// The tools and what they act on.
pub struct Toolbox {
    pub(super) broker: Broker,
    pub(super) sessions: Arc<Sessions>,
    pub(super) blobs: Blobs,
    pub(super) home: PathBuf,
    pub(super) device: String,
    pub(super) call_budget: Duration,
    pub(super) cooldown: Duration,
    specs: Vec<ToolSpec>,
}

impl Toolbox {
    /// The tools of a node. `call_budget` is how long a call may take before it is answered as running.
    #[must_use]
    pub fn new(
        broker: Broker,
        sessions: Arc<Sessions>,
        blobs: Blobs,
        home: PathBuf,
        device: String,
        call_budget: Duration,
        cooldown: Duration,
    ) -> Self {
        let specs = vec![
            init::spec(),
            history::spec(),
            sessions::spec(),
            tools::spec(),
            chat::spec(),
            call::spec(),
            read::spec(),
            bash::spec(),
            edit::spec(),
            write::spec(),
        ];
        Self { broker, sessions, blobs, home, device, call_budget, cooldown, specs }
    }

    /// Where a session's full-output files are.
    pub(super) fn outputs(&self, session: &SessionId) -> PathBuf {
        self.home.join("outputs").join(session.as_str())
    }

    /// A session as `sessions` and `init` describe it (behaviour 4.2).
    pub(super) fn describe(&self, session: &Session) -> Value {
        let record = session.record();
        let mut row = json!({
            "id": record.id,
            "host": session.host().kind(),
            "agentDir": self.home,
            "device": self.device,
            "cwd": record.cwd,
            "status": if session.is_executing() { "executing" } else { "idle" },
        });
        if let Some(name) = &record.name {
            row["name"] = json!(name);
        }
        row
    }

    async fn dispatch(self: Arc<Self>, request: Request) -> Result<Answer, UnknownTool> {
        let Some(spec) = self.specs.iter().find(|spec| spec.name == request.tool) else { return Err(UnknownTool) };
        if let Err(error) = arguments::check(spec.name, &spec.input_schema, &request.arguments) {
            return Ok(refusal(error));
        }
        Ok(match spec.name {
            "init" => init::run(&self, request).await,
            "history" => history::run(&self, request).await,
            "sessions" => sessions::run(&self, request).await,
            "tools" => tools::run(&self, request).await,
            "chat" => chat::run(&self, request).await,
            "call" => call::run(&self, request).await,
            "read" => read::run(&self, request).await,
            "bash" => bash::run(&self, request).await,
            "edit" => edit::run(&self, request).await,
            "write" => write::run(&self, request).await,
            _ => return Err(UnknownTool),
        })
    }
}

impl Surface for Toolbox {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    fn instructions(&self) -> &str {
        INSTRUCTIONS
    }

    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        Box::pin(self.dispatch(request))
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.broker.disconnected(conversation);
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        vec![(
            resources::TEMPLATE.into(),
            "session-resource".into(),
            "An image that a session showed, by the reference that came with it".into(),
        )]
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        Box::pin(async move { resources::read(&self, &uri, &caller).await })
    }
}

/// The output schema of every tool: the whole text once more.
pub(super) fn output_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"text": {"type": "string", "description": "All text of this result"}},
        "required": ["text"],
        "additionalProperties": false
    })
}

/// A flat object schema; `sessionId` is added with the meaning it has on every tool but `init`, `history`, `sessions`.
pub(super) fn input_schema(mut properties: Value, required: &[&str], common: &[&str]) -> Value {
    for name in common {
        properties[*name] = match *name {
            "sessionId" => json!({
                "type": "string", "minLength": 1, "maxLength": 256,
                "description": "Session for this one operation; the conversation's default when left out"
            }),
            _ => json!({
                "type": "string", "minLength": 1, "maxLength": 128,
                "description": "Your own name for this operation. The same name again returns its receipt and never runs it twice; a new request of the user needs a new name"
            }),
        };
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// Only reads what Chappie itself knows.
pub(super) const READS: Annotations =
    Annotations { read_only: true, destructive: false, idempotent: true, open_world: false };
/// May change anything the session's user may change.
pub(super) const ACTS: Annotations =
    Annotations { read_only: false, destructive: true, idempotent: false, open_world: true };

/// A spec with the common output schema and no `_meta`.
pub(super) fn spec(
    name: &'static str,
    title: &'static str,
    description: &str,
    input_schema: Value,
    annotations: Annotations,
) -> surface::ToolSpec {
    ToolSpec {
        name,
        title,
        description: description.to_owned(),
        input_schema,
        output_schema: output_schema(),
        annotations,
        meta: None,
    }
}
