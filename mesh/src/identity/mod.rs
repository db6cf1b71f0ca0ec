//! Who a device is and whom it trusts: an Ed25519 key in a file, the [`NodeId`] that follows from it, and the
//! [`Roster`]. Nothing here opens a connection.

mod key;
mod node_id;
mod roster;

pub use key::{Identity, IdentityError};
pub use node_id::{NodeId, NodeIdError};
pub use roster::{Admission, Member, MeshId, Roster};
