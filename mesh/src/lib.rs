//! The peer mesh of Chappie as a library. It knows nothing of MCP, sessions or tools.

mod api;
pub mod consensus;
mod discovery;
mod identity;
mod mesh;
mod peers;
mod router;
pub mod runtime;
mod transport;
mod wire;

pub use api::{
    Duplicate, Handler, JoinError, MeshConfig, MeshError, OpenError, PeerState, PeerStatus, Remembered, Welcome,
};
pub use discovery::{
    AddressBook, CANDIDATES_MAX, DiscoveryError, HostPort, HostPortError, Mdns, NODES_MAX, Sighting, Source,
    local_addresses,
};
pub use identity::{
    Admission, CODE_ADDRESSES_MAX, CODE_CHARACTERS_MAX, EarlierRoster, Identity, IdentityError, Incarnation,
    InviteCode, InviteCodeError, InviteId, InviteKey, InviteSecret, Lineage, Member, MeshId, NodeId, NodeIdError,
    Roster, fresh_invite, lineage,
};
pub use mesh::Mesh;
pub use router::{join, join_over};
pub use transport::{Sockets, Stream, StreamError, StreamReceiver, StreamSender};
pub use wire::{
    ADDRESSES_MAX, BUILD_BYTES_MAX, CloseCode, CodecError, EXT_BYTES_MAX, EXT_ENTRIES_MAX, Ext, FrameDecoder,
    FrameError, HELLO_BYTES_MAX, Hello, JOIN_REPLY_BYTES_MAX, JOIN_REQUEST_BYTES_MAX, JoinReply, JoinRequest, Met,
    NAME_BYTES_MAX, PROTOCOL, PROTOCOL_MIN, REASON_BYTES_MAX, StreamKind, check_name, decode, encode, encode_frame,
    frame_header, meet,
};
