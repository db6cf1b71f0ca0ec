//! The node's control door: JSON lines over `<CHAPPIE_HOME>/chappie.sock`, for the command line and nobody else.
//! It decodes, calls [`Commands`] and encodes; it decides nothing. Whoever can open the socket is the node's owner: the
//! file mode is the only guard, and it suffices because the socket never leaves the machine.

pub mod client;
pub mod frame;
pub mod membership;
pub mod protocol;
pub mod server;
pub mod socket;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use tokio::net::UnixStream;

use crate::{config::JoinCode, host::BoxFuture};

pub use protocol::{
    BrokerRow, CommandError, Finding, FollowRow, ForgetRow, ImportRow, InviteRow, JoinRow, LOG_LIMIT_MAX, LogEntry,
    LogPage, LogQuery, PeerRow, QuorumRow, ReceiptReport, ReceiptRow, RecoverRow, Resolution, SessionNew, SessionRow,
    SessionStatus, StatusReport,
};
pub use server::Server;
pub use socket::SocketError;

/// What a command gives, later.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, CommandError>>;

/// All that a person can ask of a running node. The control server and the in-process command line call it alike.
///
/// Sessions are named by id, by a unique prefix of the id, or by name; an ambiguous or unknown word is a
/// [`CommandError`] that lists what there is. Dropping a future gives up waiting; it never undoes what was accepted.
pub trait Commands: Send + Sync + 'static {
    /// The node at a glance.
    fn status(&self) -> Reply<'_, StatusReport>;

    /// The connected sessions, in the broker's order.
    fn sessions(&self) -> Reply<'_, Vec<SessionRow>>;

    /// Opens a session in a folder; the same folder and name again gives the session that is there.
    fn session_new(&self, request: SessionNew) -> Reply<'_, SessionRow>;

    /// Ends a session and what it still runs.
    fn session_end(&self, session: String) -> Reply<'_, ()>;

    /// Puts a person's input into a session (`None`: the only one there is) and gives the history entry's id. Images
    /// are absolute paths, read by the node.
    fn say(&self, session: Option<String>, text: String, images: Vec<PathBuf>) -> Reply<'_, String>;

    /// Reads a session's history; with `wait` an empty page is held up to 30 s for a first new entry.
    fn log(&self, query: LogQuery) -> Reply<'_, LogPage>;

    /// The operation receipts, oldest first.
    fn receipts(&self) -> Reply<'_, Vec<ReceiptRow>>;

    /// One receipt, by id or a unique prefix of it.
    fn receipt(&self, id: String) -> Reply<'_, ReceiptReport>;

    /// Settles an uncertain receipt by a person's word; a receipt in any other state is refused.
    fn resolve(&self, id: String, how: Resolution) -> Reply<'_, ()>;

    /// Reads the original's state file, backs up first, and adds what is new. Doing it twice adds nothing.
    fn import_state(&self, path: PathBuf) -> Reply<'_, ImportRow>;

    /// What the running node knows of its own health; the command line adds what can be seen from outside.
    fn doctor(&self) -> Reply<'_, Vec<Finding>>;

    /// Makes an invite that `uses` devices may use within `ttl_ms`; limits: [`membership::terms`].
    fn invite(&self, uses: u32, ttl_ms: u64) -> Reply<'_, InviteRow>;

    /// Joins the mesh of the code; [`membership::joining`] says whether this device may. An error that is `temporary`
    /// spent nothing, and the same code may be shown again.
    fn join(&self, code: JoinCode) -> Reply<'_, JoinRow>;

    /// The other devices of the mesh.
    fn peers(&self) -> Reply<'_, Vec<PeerRow>>;

    /// Takes a device out of the mesh, named as [`membership::named`] says.
    fn forget(&self, device: String) -> Reply<'_, ForgetRow>;

    /// Begins the mesh anew on this device, with all that it has (failure rule F16): for when more than half of the voters
    /// are lost for good. With `accept_loss`, operations that only missing devices know may run again (F17).
    fn recover(&self, accept_loss: bool) -> Reply<'_, RecoverRow>;

    /// After a split: gives this device's own side of the broker's records up, and follows that of a device, named as
    /// [`membership::named`] says (F16).
    fn follow(&self, device: String) -> Reply<'_, FollowRow>;

    /// Serves MCP over `stream` as over a standard input and output, until either side ends. A client that names no chat
    /// works in `session` (an id) until it selects another: the folder its program was started in.
    fn serve_mcp(self: Arc<Self>, stream: UnixStream, session: Option<String>) -> BoxFuture<'static, ()>;
}
