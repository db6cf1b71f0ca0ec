//! Who a device is and whom it trusts: an Ed25519 key in a file, the [`NodeId`] that follows from it, the [`Roster`], and
//! the invites that let a device onto it. Nothing here opens a connection.

mod code;
mod incarnation;
mod invite;
mod key;
mod node_id;
mod roster;

pub use code::{CODE_ADDRESSES_MAX, CODE_CHARACTERS_MAX, InviteCode, InviteCodeError};
pub use incarnation::{Incarnation, Lineage, lineage};
pub use invite::{InviteId, InviteKey, InviteSecret, fresh_invite};
pub use key::{Identity, IdentityError};
pub use node_id::{NodeId, NodeIdError};
pub use roster::{Admission, EarlierRoster, Member, MeshId, Roster};
