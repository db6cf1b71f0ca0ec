//! The seam between `mcp` (wire) and `tools` (work): what a request is once it is decoded, what an answer is before it is
//! encoded, and the [`Ticket`] that says whether the answer was written.

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{content::JsonObject, host::BoxFuture, ids::Conversation};

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
pub struct Ticket(Option<Box<dyn FnOnce(bool) + Send>>);

impl Ticket {
    /// A ticket that runs `settle(true)` once written, `settle(false)` once dropped unwritten. `settle` must not block.
    pub fn new(settle: impl FnOnce(bool) + Send + 'static) -> Self {
        Self(Some(Box::new(settle)))
    }

    /// The answer is out.
    pub fn written(mut self) {
        if let Some(settle) = self.0.take() {
            settle(true);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(settle) = self.0.take() {
            settle(false);
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
