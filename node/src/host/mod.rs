//! Session hosts: whatever runs a session's tools. The queue, the journal, waits and limits are ours and common
//! (`sessions`); a host only does what is its own (design section 8).
//!
//! A host never sees MCP, storage or other sessions, and never retries: it runs what it is given, once.

pub mod native;

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    budget::TextBudget,
    content::{ToolCall, ToolResult},
    ids::CallId,
};

/// A boxed future, so that hosts of different kinds stand behind one trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The kinds of host a session can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostKind {
    /// The node's own session: no agent installed.
    Native,
}

/// A tool as `tools` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolDefinition {
    /// The name `call` takes.
    pub name: String,
    /// First line: what it does; further lines: how to use it.
    pub description: String,
    /// JSON Schema of the arguments: a flat object.
    pub parameters: Value,
}

/// A skill the session offers (none in a native session unless its folder holds some).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    /// Its name.
    pub name: String,
    /// One line on when to use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where its text is, on the session's device.
    pub source: PathBuf,
}

/// The environment of a session, asked for by `init` and `tools`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// The active tools, in a fixed order.
    pub tools: Vec<ToolDefinition>,
    /// The skills.
    pub skills: Vec<Skill>,
    /// The global instructions file, only when it exists on the session's device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_agents: Option<PathBuf>,
}

/// What a host needs to know of the call it runs.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// The operation's identity; names spool files and process groups.
    pub call_id: CallId,
    /// Cancelled when the caller gave up: stop within a second, keep what finished.
    pub cancel: CancellationToken,
    /// Key of the conversation that asks ([`crate::ids::Conversation::key`]); none for a caller that named neither.
    pub reader: Option<String>,
    /// Text the whole batch may give back.
    pub budget: TextBudget,
}

/// Runs a session's tools.
pub trait Host: Send + Sync + 'static {
    /// Which kind this is.
    fn kind(&self) -> HostKind;

    /// Names the environment. Bounded by the caller at three seconds.
    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, HostError>>;

    /// Runs a batch once: array order, adjacent read-only members may run in parallel, one member's error does not stop
    /// the rest, results in call order. After `context.cancel` fires, members that did not start are reported as errors
    /// that say so.
    fn call(self: Arc<Self>, calls: Vec<ToolCall>, context: CallContext) -> BoxFuture<'static, Vec<ToolResult>>;

    /// Ends what the session still runs (processes). Bounded at five seconds.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Whether every tool named only reads, so that the batch needs no journal (failure rule F2).
    fn reads_only(&self, calls: &[ToolCall]) -> bool;
}

/// Why a host could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The session's folder is gone or unreadable.
    #[error(
        "the session's working folder {path} is not usable: {cause}; create it again or end the session with `chappie session end`"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
}
