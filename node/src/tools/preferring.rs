//! The tools for a client that was started in a folder: until its connection has a default session, what it asks goes to
//! the session of that folder, and never silently to another project.

use std::sync::Arc;

use serde_json::Value;

use super::{
    surface::{Answer, Caller, Request, ResourceError, ResourceRead, Surface, ToolSpec, UnknownTool},
    toolbox::Toolbox,
};
use crate::{
    host::BoxFuture,
    ids::{Conversation, SessionId},
};

/// A [`Toolbox`] with a folder of its own.
pub struct Preferring {
    toolbox: Arc<Toolbox>,
    session: SessionId,
}

impl Preferring {
    /// Sends what names no session to `session`, for callers without a chat and as long as they have no default.
    #[must_use]
    pub const fn new(toolbox: Arc<Toolbox>, session: SessionId) -> Self {
        Self { toolbox, session }
    }

    fn aim(&self, request: &mut Request) {
        let Some(conversation @ Conversation::Connection(_)) = &request.caller.conversation else { return };
        // The list is of everything there is, and the argument would filter it.
        let selects = request.tool != "sessions" && !request.arguments.contains_key("sessionId");
        if selects && self.toolbox.broker.binding(conversation).is_none() {
            request.arguments.insert("sessionId".into(), Value::String(self.session.0.clone()));
        }
    }
}

impl Surface for Preferring {
    fn specs(&self) -> &[ToolSpec] {
        self.toolbox.specs()
    }

    fn instructions(&self) -> &str {
        self.toolbox.instructions()
    }

    fn call(self: Arc<Self>, mut request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        self.aim(&mut request);
        Arc::clone(&self.toolbox).call(request)
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.toolbox.disconnected(conversation);
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        self.toolbox.resource_templates()
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        Arc::clone(&self.toolbox).read_resource(uri, caller)
    }
}
