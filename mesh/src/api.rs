//! What the program above gives to the mesh and gets from it. Plain values and one trait; nothing happens here.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    identity::{Identity, Incarnation, NodeId, Roster},
    transport::{Sockets, Stream},
    wire::{JoinReply, JoinRequest, StreamKind},
};

/// What a device brings to its mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Its key.
    pub identity: Arc<Identity>,
    /// What its owner calls it.
    pub name: String,
    /// Its build, for people.
    pub build: String,
    /// Where it listens; `[::]` takes IPv4 too, port 0 is any.
    pub listen: SocketAddr,
    /// Addresses to dial whoever is there, `host:port`.
    pub connect: Vec<String>,
    /// Whether to announce it on the local network and look for others there.
    pub mdns: bool,
    /// Which run of the device this is; written down before this run says a word.
    pub incarnation: Incarnation,
    /// What [`Handler::remember`] was told before.
    pub remembered: Vec<(NodeId, Remembered)>,
    /// Where packets go; `None`: the system's network.
    pub sockets: Option<Arc<dyn Sockets>>,
}

/// What to keep about a peer over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Where it can be dialled, the address that worked last first; at most 16.
    pub addresses: Vec<SocketAddr>,
    /// The latest run of it that was let in (failure rule F15).
    pub incarnation: Option<Incarnation>,
}

/// What the program above does when the mesh has something for it.
pub trait Handler: Send + Sync + 'static {
    /// A member opened a stream. Called on the mesh's own thread: hand it on and return.
    fn stream(&self, peer: NodeId, kind: StreamKind, stream: Stream);
    /// A device shows an invite. `binding` is what its proof is bound to: a value that only the two ends of this
    /// connection have. The answer may take ten seconds.
    fn admit(&self, node: NodeId, request: JoinRequest, binding: [u8; 32]) -> BoxFuture<'static, JoinReply>;
    /// A member's consensus engine asks this device's (failure rule F22): at most 8 MiB, and the answer has at most
    /// 64 KiB. The answer is made on the mesh's own thread and may take half a minute; whoever asked may have given it
    /// up by then, and may ask the same again.
    fn raft(&self, peer: NodeId, question: Vec<u8>) -> BoxFuture<'static, Vec<u8>>;
    /// Keep this about a peer, in place of what was kept before. Called on the mesh's own thread.
    fn remember(&self, peer: NodeId, remembered: Remembered);
    /// A member has a later roster than this device, in which this device is a member, and knows where members are
    /// (failure rule F20). Comes only when the broker's own word does not come: whoever has no use for it does nothing.
    fn news(&self, _from: NodeId, _roster: Roster, _addresses: Vec<(NodeId, Vec<SocketAddr>)>) {}
    /// The broker or a voter closed the connection because this device was forgotten. May come more than once.
    fn forgotten(&self, by: NodeId);
    /// Two devices use one identity. May come again as long as they do.
    fn duplicate(&self, duplicate: Duplicate);
}

/// Two devices that use one identity: a copied disk, or an old state that was put back (failure rule F15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The identity.
    pub node: NodeId,
    /// Whether it is this device's own.
    pub own: bool,
    /// Whether this device is the one that was turned away.
    pub refused: bool,
    /// Where the other one is, when that is known.
    pub other: Option<SocketAddr>,
    /// Who noticed; this device's own id when it did.
    pub told_by: NodeId,
}

/// How a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// There is a connection.
    Connected,
    /// It is being dialled.
    Connecting,
    /// It could not be reached and is dialled again after this.
    Waiting {
        /// Milliseconds.
        retry_in_ms: u64,
    },
    /// Nobody needs a connection to it now.
    Idle,
    /// It is needed, and no address of it is known.
    Unknown,
}

impl PeerState {
    /// The word that `status` prints.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Waiting { .. } => "waiting",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }
}

/// One member of the roster as this device sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeId,
    /// Its name on the roster.
    pub name: String,
    /// How it stands.
    pub state: PeerState,
    /// Where it can be dialled; when connected, the address in use first.
    pub addresses: Vec<SocketAddr>,
    /// The round trip; `None` when not connected.
    pub rtt: Option<Duration>,
    /// What went wrong last, in words; `None` while it is connected.
    pub trouble: Option<String>,
}

/// Why the mesh does not run.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The address is taken, or not this device's.
    #[error("cannot listen on {address} (UDP): {cause}; another program may have it: choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
    /// The system refused a thread, or TLS its settings.
    #[error("cannot start the mesh: {0}")]
    Start(String),
}

/// Why there is no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not a device of this mesh.
    #[error("{0} is no member of this mesh")]
    NotMember(String),
    /// There is no connection, or none came within the time.
    #[error("{label} is not connected{}", trouble.as_ref().map(|it| format!(": {it}")).unwrap_or_default())]
    NotConnected {
        /// The device.
        label: String,
        /// What went wrong last.
        trouble: Option<String>,
    },
    /// The device was asked and gave no answer, or the time was over before it could be.
    #[error("{label} gave no answer: {trouble}")]
    Unanswered {
        /// The device.
        label: String,
        /// What went wrong.
        trouble: String,
    },
    /// The other side has no room for one more stream.
    #[error("{0} has too many open streams; try again later")]
    Busy(String),
    /// This device's mesh is stopping.
    #[error("this device is stopping")]
    Stopped,
}

/// What a device gets when it is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The roster, this device among its members.
    pub roster: Roster,
    /// Where members can be dialled.
    pub addresses: Vec<(NodeId, Vec<SocketAddr>)>,
}

/// Why a device was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Nobody answered.
    #[error("no address of the invite answers: {0}; check that the inviting device runs and is on a network you reach")]
    Unreachable(String),
    /// Another device answers at the invite's address.
    #[error("the device at {0} is not the one that made the invite; make a new invite there")]
    OtherDevice(String),
    /// The invite was refused.
    #[error("the invite was refused: {0}")]
    Refused(String),
    /// The two programs have no protocol in common.
    #[error("cannot join: {0}")]
    Version(String),
    /// Too many devices try to join.
    #[error("the inviting device is busy with other joins; try again in a minute")]
    Busy,
    /// The other side stopped answering in the middle. The invite may be spent: the same code still works for this
    /// device (failure rule F19).
    #[error("the join broke off: {0}; run it again with the same code")]
    BrokenOff(String),
    /// This device cannot dial at all.
    #[error("cannot join: {0}")]
    Start(String),
}
