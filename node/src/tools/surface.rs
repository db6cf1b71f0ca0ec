//! The seam between `mcp` (wire) and `tools` (work): what a request is once it is decoded, what an answer is before it is
//! encoded, and the [`Ticket`] that says whether the answer was written.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    content::JsonObject,
    host::BoxFuture,
    ids::{CallId, Conversation, SessionId},
};

pub use crate::content::Part as Content;

/// One tool as `tools/list` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// Wire name.
    pub name: &'static str,
    /// Short human title.
    pub title: &'static str,
    /// What it does and how to use it, for the model.
    pub description: String,
    /// A flat object schema without `$ref` or top-level `oneOf`; unknown keys are refused.
    pub input_schema: Value,
    /// The schema that `structuredContent` of every answer satisfies.
    pub output_schema: Value,
    /// Truthful hints.
    pub annotations: Annotations,
    /// `_meta` of the tool.
    pub meta: Option<JsonObject>,
}

/// MCP's four hints, all stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotations {
    /// Changes nothing.
    pub read_only: bool,
    /// May destroy or overwrite.
    pub destructive: bool,
    /// Doing it twice equals doing it once.
    pub idempotent: bool,
    /// Reaches beyond a closed set of things.
    pub open_world: bool,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The chat, else the connection; `None` for a stateless caller that named neither.
    pub conversation: Option<Conversation>,
    /// The host's own request id (`_meta["otunnel/requestId"]` or the `x-request-id` header), for labels only.
    pub request_id: Option<String>,
    /// The session of the folder that a connection without a chat was started in: its target for as long as it has no
    /// default of its own.
    pub preferred: Option<SessionId>,
}

/// One decoded `tools/call`.
#[derive(Debug)]
pub struct Request {
    /// Tool name.
    pub tool: String,
    /// Arguments as they came.
    pub arguments: JsonObject,
    /// Who asks.
    pub caller: Caller,
    /// Fires only for the client's own cancellation: `notifications/cancelled`, or the closed request in the 2026-07-28
    /// revision. A connection lost in 2025-11-25 detaches and never fires it (failure rule F4).
    pub cancelled: CancellationToken,
    /// How a door on another device sent it; `None` for this device's own door.
    pub sent: Option<Sent>,
}

impl Request {
    /// The call's identity: the sending door's, else a fresh one.
    #[must_use]
    pub fn call_id(&self) -> CallId {
        self.sent.as_ref().map_or_else(clock::call_id, |sent| sent.call_id.clone())
    }

    /// The pin of an earlier sending, which goes before everything that could be selected (failure rule F1).
    #[must_use]
    pub fn pin(&self) -> Option<&SessionId> {
        self.sent.as_ref().and_then(|sent| sent.pin.as_ref())
    }

    /// How long the caller waits: what is left of its budget (failure rule F5), never more than `most`.
    #[must_use]
    pub fn budget(&self, most: Duration) -> Duration {
        self.sent.as_ref().map_or(most, |sent| sent.budget.min(most))
    }

    /// Tells the sending door where the call goes, before it goes there. False: the door is gone and did not agree, so
    /// nothing may be dispatched. At once for this device's own door.
    pub async fn assign(&self, assigned: Assigned) -> bool {
        match &self.sent {
            Some(sent) => sent.assign.assigned(assigned).await,
            None => true,
        }
    }
}

impl Request {
    /// This device cannot say what becomes of the call, because its office as broker is over, or was in doubt: whoever sent
    /// the call sends it again to whoever is the broker then, and what is answered here goes nowhere (failure rule F11). A
    /// call that nobody sent is answered.
    pub fn again(&self, cause: &str) {
        if let Some(sent) = &self.sent {
            sent.assign.again(cause);
        }
    }
}

/// How a door sent a call.
#[derive(Clone)]
pub struct Sent {
    /// The door made it, and keeps it through every sending of this call.
    pub call_id: CallId,
    /// Where an earlier sending of this call went: it goes nowhere else, and nothing is selected (failure rule F1).
    pub pin: Option<SessionId>,
    /// What is left of the caller's budget.
    pub budget: Duration,
    /// The way back to the door.
    pub assign: Arc<dyn Assign>,
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sent").field("call_id", &self.call_id).field("pin", &self.pin).finish_non_exhaustive()
    }
}

/// Where a call goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The session.
    pub session: SessionId,
    /// What people call its device.
    pub device: String,
    /// Whether the request named it: then it is its own pin.
    pub explicit: bool,
}

/// Tells a door where its call goes (failure rule F1).
pub trait Assign: Send + Sync {
    /// Resolves once the door knows, at once when it proposed the same or the request named it. False: the door is gone.
    fn assigned(&self, assigned: Assigned) -> BoxFuture<'_, bool>;
    /// The call is to be sent again, and why; its answer is not used.
    fn again(&self, cause: &str);
}

/// What goes back.
#[derive(Debug)]
pub struct Answer {
    /// Blocks in order.
    pub content: Vec<Content>,
    /// `structuredContent`; satisfies the tool's output schema also when `is_error` is set.
    pub structured: JsonObject,
    /// Whether the tool failed.
    pub is_error: bool,
    /// Told whether the answer was written.
    pub ticket: Ticket,
}

/// Riding items and outcomes are consumed only after the answer was written. The door calls [`Ticket::written`] when the
/// last byte was handed to the operating system; a ticket dropped any other way counts as not written.
#[derive(Default)]
pub struct Ticket(Option<Box<dyn FnOnce(Option<bool>) + Send>>);

impl Ticket {
    /// A ticket that runs `settle(true)` once written, `settle(false)` once dropped unwritten. `settle` must not block.
    pub fn new(settle: impl FnOnce(bool) + Send + 'static) -> Self {
        Self::knowing(move |written| settle(written.unwrap_or(false)))
    }

    /// The same for a `settle` that is told `None` by [`Ticket::lapse`].
    pub fn knowing(settle: impl FnOnce(Option<bool>) + Send + 'static) -> Self {
        Self(Some(Box::new(settle)))
    }

    /// Nobody knows whether the answer is out: its door, on another device, is gone. What it carried comes again and says
    /// so.
    pub fn lapse(mut self) {
        if let Some(settle) = self.0.take() {
            settle(None);
        }
    }

    /// The answer is out.
    pub fn written(mut self) {
        if let Some(settle) = self.0.take() {
            settle(Some(true));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(settle) = self.0.take() {
            settle(Some(false));
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ticket").field(&self.0.is_some()).finish()
    }
}

/// No tool of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTool;

/// The bytes behind a `chappie://` reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRead {
    /// The registered type.
    pub mime: String,
    /// At most 32 MiB.
    pub bytes: Vec<u8>,
}

/// Why a reference gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// Not one of ours, foreign, expired or gone: MCP's resource-not-found.
    #[error("{0}")]
    NotFound(String),
    /// It is there but could not be read.
    #[error("{0}")]
    Unreadable(String),
}

/// All that a door offers a client.
pub trait Surface: Send + Sync + 'static {
    /// The fixed tool list, in a fixed order.
    fn specs(&self) -> &[ToolSpec];
    /// The server instructions.
    fn instructions(&self) -> &str;
    /// Runs one call. Tool failures are answers with `is_error`. Dropping the future neither cancels nor loses the work.
    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>>;
    /// A connection ended: nothing is kept for a caller that named no chat.
    fn disconnected(&self, conversation: &Conversation);
    /// URI templates of `resources/templates/list`: (template, name, description).
    fn resource_templates(&self) -> Vec<(String, String, String)>;
    /// Reads one resource.
    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>>;
}
