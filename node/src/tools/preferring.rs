//! The tools for a client that was started in a folder: says of each request which session that folder has. Whether that
//! counts is the broker's to decide, who knows the connection's default.

use std::sync::Arc;

use super::surface::{Answer, Caller, Request, ResourceError, ResourceRead, Surface, ToolSpec, UnknownTool};
use crate::{
    host::BoxFuture,
    ids::{Conversation, SessionId},
};

/// Tools with a folder of their own.
pub struct Preferring {
    surface: Arc<dyn Surface>,
    session: SessionId,
}

impl Preferring {
    /// Sends what names no session to `session`, for callers without a chat and as long as they have no default.
    #[must_use]
    pub const fn new(surface: Arc<dyn Surface>, session: SessionId) -> Self {
        Self { surface, session }
    }
}

impl Surface for Preferring {
    fn specs(&self) -> &[ToolSpec] {
        self.surface.specs()
    }

    fn instructions(&self) -> &str {
        self.surface.instructions()
    }

    fn call(self: Arc<Self>, mut request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        request.caller.preferred = Some(self.session.clone());
        Arc::clone(&self.surface).call(request)
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.surface.disconnected(conversation);
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        self.surface.resource_templates()
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        Arc::clone(&self.surface).read_resource(uri, caller)
    }
}
