//! The tools behind one [`Surface`]: holds the handles and sends a request to its tool's file.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    arguments, bash, call, chat, compose::refusal, edit, history, init, read, resources, sessions, surface, tools,
    write,
};
use crate::{
    broker::{Broker, ProposeError, SelectError},
    fleet::{Directory, Placed, seat::Assure},
    host::BoxFuture,
    ids::Conversation,
    tools::{Annotations, Answer, Caller, Request, ResourceError, ResourceRead, Surface, ToolSpec, UnknownTool},
};

/// What the server tells every client, in our own words.
const INSTRUCTIONS: &str = include_str!("instructions.md");

/// The tools and what they act on.
pub struct Toolbox {
    pub(super) broker: Broker,
    pub(super) directory: Arc<dyn Directory>,
    pub(super) office: Arc<dyn Assure>,
    pub(super) call_budget: Duration,
    pub(super) cooldown: Duration,
    specs: Vec<ToolSpec>,
}

impl Toolbox {
    /// The tools of the broker's node, for the sessions of `directory`, which `office` allows to give work to. `call_budget`
    /// is how long a call may take before it is answered as running.
    #[must_use]
    pub fn new(
        broker: Broker,
        directory: Arc<dyn Directory>,
        office: Arc<dyn Assure>,
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
        Self { broker, directory, office, call_budget, cooldown, specs }
    }

    /// A client that was started in a folder works in that folder's session until its connection has a default, and
    /// never silently in another project.
    fn prefer(&self, request: &mut Request) {
        let Some(preferred) = request.caller.preferred.take() else { return };
        let Some(conversation @ Conversation::Connection(_)) = &request.caller.conversation else { return };
        // The list is of everything there is, and the argument would filter it.
        let selects = request.tool != "sessions" && !request.arguments.contains_key("sessionId");
        if selects && self.broker.binding(conversation).is_none() {
            request.arguments.insert("sessionId".into(), Value::String(preferred.0));
        }
    }

    async fn dispatch(self: Arc<Self>, mut request: Request) -> Result<Answer, UnknownTool> {
        self.prefer(&mut request);
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

/// What a door is told of a call that met the end of this device's office.
pub(super) const OFFICE_LOST: &str = "the devices of this mesh are just agreeing on their broker";

/// What the door is told of a change that was not recorded; the client never hears that an office moved (failure rule F11).
pub(super) fn told(error: &ProposeError, words: impl FnOnce() -> String) -> String {
    if matches!(error, ProposeError::NotBroker) { OFFICE_LOST.to_owned() } else { words() }
}

/// The answer to a request that the broker did not take, in `words`. When that is because this device is the broker no more,
/// or because nobody knows whether it was recorded, the call is sent again (failure rules F11, F12): its identity decides
/// then.
pub(super) fn not_taken(request: &Request, error: &ProposeError, words: String) -> Answer {
    use ProposeError::{NotBroker, Stopped, Unknown, Unreachable};
    let words = told(error, || words);
    if matches!(error, NotBroker | Unknown(_) | Stopped | Unreachable(_)) {
        request.again(&words);
    }
    refusal(words)
}

/// The answer to a request for which there is no session.
pub(super) fn not_selected(request: &Request, error: &SelectError) -> Answer {
    match error {
        SelectError::Propose(cause) => not_taken(request, cause, error.to_string()),
        _ => refusal(error.to_string()),
    }
}

/// A session as `sessions` and `init` describe it (behaviour 4.2).
pub(super) fn describe(placed: &Placed) -> Value {
    let info = &placed.info;
    let mut row = json!({
        "id": info.id,
        "host": info.host,
        "agentDir": info.agent_dir,
        "device": placed.device,
        "cwd": info.cwd,
        "status": if info.executing { "executing" } else { "idle" },
    });
    if let Some(name) = &info.name {
        row["name"] = json!(name);
    }
    row
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
