//! The peer mesh of Chappie as a library. It knows nothing of MCP, sessions or tools.

mod identity;
mod transport;
mod wire;

pub use identity::{Admission, Identity, IdentityError, Member, MeshId, NodeId, NodeIdError, Roster};
pub use transport::{Stream, StreamError, StreamReceiver, StreamSender};
pub use wire::{CloseCode, StreamKind};
