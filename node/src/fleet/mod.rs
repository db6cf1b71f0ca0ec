//! What the broker asks of the nodes where sessions live, the same whether a node is this one or another device: run,
//! page, inspect, cancel. It knows sessions and the mesh, and nothing of MCP.

pub mod announced;
mod cut;
pub mod directory;
pub mod feed;
pub mod line;
pub mod local;
pub mod membership;
pub mod office;
mod pages;
pub mod parcel;
pub mod protocol;
pub mod quorum;
pub mod reannounce;
pub mod remote;
mod riding;
pub mod roll;
pub mod seat;
pub mod serve;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use crate::{
    budget::TextBudget,
    content::Part,
    host::{BoxFuture, Inspection},
    ids::{CallId, Conversation, SessionId},
    sessions::{Ended, Operation, SessionInfo, entry::Event, history::Range},
};

pub use crate::sessions::Tenure;
pub use local::LocalNode;

/// A session and where it is.
#[derive(Clone)]
pub struct Placed {
    /// The session.
    pub info: SessionInfo,
    /// What people call its device.
    pub device: String,
    /// Its node.
    pub node: Arc<dyn SessionNode>,
}

/// All sessions that are online, as the broker knows them.
pub trait Directory: Send + Sync + 'static {
    /// The session of this id.
    fn find(&self, session: &SessionId) -> Option<Placed>;
    /// Every session, in selection order: creation stamp, then id (failure rule F13).
    fn list(&self) -> Vec<Placed>;
    /// The nodes that hold a late result of this conversation.
    fn late(&self, conversation: &Conversation) -> Vec<Arc<dyn SessionNode>>;
    /// Every node that is online, this one first.
    fn nodes(&self) -> Vec<Arc<dyn SessionNode>>;
}

/// An operation on its way to its session.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// Where to.
    pub session: SessionId,
    /// The work. Its `budget` is what the whole answer has left for this node's part: results, inputs and late results.
    pub operation: Operation,
    /// How long the caller waits for the outcome; a duplicate request waits with its twin for as long.
    pub wait: Duration,
    /// In which office.
    pub tenure: Tenure,
    /// Whether an earlier sending may have handed it over already: then a node that cannot be reached may have run it.
    pub resent: bool,
}

/// What a node says of an operation that somebody lost sight of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It did not run and never will under this identity: it was not known here, and is sealed now (failure rule F3).
    Never(String),
    /// It waits, runs or has ended: dispatching it again attaches to it.
    Held,
}

/// One node's part of an answer, within the room it was given. What it carries stays claimed until the node is told
/// whether the answer was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parcel {
    /// Blocks in order.
    pub content: Vec<Part>,
    /// Whether a member of the batch failed.
    pub failed: bool,
    /// Why the operation as a whole did not run to its end.
    pub error: Option<String>,
}

/// How a dispatched operation came out.
#[derive(Clone, Debug, PartialEq)]
pub enum Ran {
    /// It ran; its outcome is in the journal, unless it only read.
    Finished(Parcel),
    /// It did not run and never will under this identity; nothing was changed.
    NeverRan(String),
    /// The office in which it was ordered is over, or this device has not heard of it: it was not looked at, and whoever is
    /// the broker now may order it (failure rule F11).
    Fenced(String),
    /// The same host request came before; this is how far that one is. Nothing was run.
    Duplicate {
        /// The operation that runs or ran.
        twin: CallId,
        /// Whether it still runs.
        running: bool,
    },
    /// Its outcome was given to an earlier response already; only history has it.
    Gone,
    /// The node went away: it is not known whether it ran. What it comes to is a late result of the conversation.
    Unknown(String),
}

/// One dispatched operation, held by the broker. Dropping it says that nobody waits any more: the work goes on and its
/// outcome becomes a late result (failure rule F4: a lost connection detaches, it never cancels).
pub trait Run: Send {
    /// Waits for the outcome. Cancel-safe; after it resolved it resolves again with the same.
    fn done(&mut self) -> BoxFuture<'_, Ran>;
    /// Whether the host has it, as far as is known here.
    fn is_running(&self) -> bool;
    /// Whether its node has taken it, as far as is known here: only then may a later outcome be promised.
    fn is_taken(&self) -> bool;
    /// Asks for its end, and resolves when the node has taken the order or 3 s have passed (it is then repeated in the
    /// background, F4).
    fn cancel(&mut self, reason: String) -> BoxFuture<'_, ()>;
    /// Whether the answer with the outcome and what rode along was written. Call it once after `done`.
    fn settle(self: Box<Self>, written: bool);
}

/// What may ride with an answer that is no operation's outcome.
#[derive(Clone, Debug)]
pub struct Board {
    /// The answer's own identity: what it claims is claimed under this.
    pub by: CallId,
    /// Late results of this conversation.
    pub conversation: Option<Conversation>,
    /// Inputs of this session.
    pub session: Option<SessionId>,
    /// Room in the answer.
    pub room: TextBudget,
}

/// A page of history, wanted.
#[derive(Clone, Debug)]
pub struct HistoryAsk {
    /// Of which session.
    pub session: SessionId,
    /// Which part.
    pub range: Range,
    /// How long an empty page is held; zero does not wait.
    pub wait: Duration,
    /// Whom a notice in the session names; `None` leaves none.
    pub reader: Option<String>,
}

/// Whose operation shall end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Which.
    pub call_id: CallId,
    /// Only when it is this conversation's.
    pub conversation: Option<Conversation>,
    /// Why.
    pub reason: String,
}

/// The bytes of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its type.
    pub mime: String,
    /// At most 32 MiB.
    pub bytes: Vec<u8>,
}

/// A node where sessions live. Errors are sentences for the model: what was found and what to do next; a node that
/// cannot be reached is named.
pub trait SessionNode: Send + Sync + 'static {
    /// The environment of a session, within 3 s.
    fn inspect(&self, session: SessionId) -> BoxFuture<'_, Result<Inspection, String>>;
    /// Hands an operation over. The same `call_id` again attaches to what is known of it and never runs it twice (F6).
    fn run(self: Arc<Self>, dispatch: Dispatch) -> Box<dyn Run>;
    /// Asks about an operation that was handed over and lost from sight. One that is not known here is sealed, durably,
    /// before the answer says so (failure rule F3). An error: the node could not be asked.
    fn known(&self, call_id: CallId) -> BoxFuture<'_, Result<Known, String>>;
    /// Claims what may ride, and composes it. Nothing waits: an empty parcel.
    fn board(&self, board: Board) -> BoxFuture<'_, Parcel>;
    /// Whether the answer that claimed under `by` was written. Idempotent; does not block.
    fn settle(&self, by: CallId, written: bool);
    /// It is not known whether the answer that claimed under `by` was written: what it carried comes again and says so
    /// (failure rule F7). Does not block.
    fn lapse(&self, by: CallId);
    /// A page, composed with its header within a whole answer.
    fn history(&self, ask: HistoryAsk) -> BoxFuture<'_, Result<Parcel, String>>;
    /// Leaves a notice in a session, best effort; does not block.
    fn notice(&self, session: SessionId, event: Event, message: String);
    /// Asks for the end of an operation; whether one of that conversation was still open here.
    fn cancel(&self, cancel: Cancel) -> BoxFuture<'_, bool>;
    /// The broker's order to end an operation that it dispatched here, also when the order overtook its dispatch: in force,
    /// durably, once this resolves (failure rule F4). An error: repeat it.
    fn revoke(&self, call_id: CallId, reason: String) -> BoxFuture<'_, Result<(), String>>;
    /// How the operation under this receipt key ended, as far as the journal knows.
    fn ended(&self, receipt: String) -> BoxFuture<'_, Option<Ended>>;
    /// An image that the session showed. `Ok(None)`: it showed none of this hash.
    fn image(&self, session: SessionId, sha256: String) -> BoxFuture<'_, Result<Option<Picture>, String>>;
}
