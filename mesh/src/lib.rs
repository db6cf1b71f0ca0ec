//! The peer mesh of Chappie as a library. It knows nothing of MCP, sessions or tools.
//!
//! Today it holds only who a device is; wire, discovery, transport, peers and consensus come with the mesh and the
//! elected broker (design sections 3 and 6).

mod identity;

pub use identity::{Identity, IdentityError, NodeId, NodeIdError};
