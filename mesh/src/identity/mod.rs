//! Who a device is: an Ed25519 key in a file, and the [`NodeId`] that follows from it. Whom to trust is not decided
//! here; the roster comes with the mesh.

mod key;
mod node_id;

pub use key::{Identity, IdentityError};
pub use node_id::{NodeId, NodeIdError};
