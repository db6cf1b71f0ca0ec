//! What the program above gives to the consensus engine and gets from it. Plain values and traits; nothing happens here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    time::Duration,
};

use data_encoding::HEXLOWER;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::identity::{MeshId, NodeId};

/// A count of new beginnings after `mesh recover`, and a random part that tells two of the same count apart (failure rule
/// F16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// 1 for a new mesh; each recovery adds one.
    pub count: u64,
    /// Drawn with it.
    pub id: [u8; 16],
}

/// Who shares one log: a mesh in one epoch. Frames of another group are refused (failure rule F16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    /// The mesh.
    pub mesh: MeshId,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A store's own random number, drawn when it is made: a store that is made anew is another member (failure rule F15).
pub type StoreId = [u8; 16];

/// A node with one of its stores, as the engine counts votes. A node whose store was lost comes back under another one, and
/// so never votes against what it promised before (failure rule F15).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(pub u64);

impl MemberId {
    /// The member that `node` is with its store `store`.
    #[must_use]
    pub fn of(node: &NodeId, store: &StoreId) -> Self {
        let hash = Sha256::new().chain_update(b"chappie member").chain_update(node.as_bytes()).chain_update(store);
        let [a, b, c, d, e, f, g, h, ..] = <[u8; 32]>::from(hash.finalize());
        Self(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0.to_be_bytes()))
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberId({self})")
    }
}

/// Whether a device may vote: its owner's word (`voter` in its configuration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Voting {
    /// As the policy finds best.
    #[default]
    Auto,
    /// It votes whenever there is a place.
    Always,
    /// It never votes, and so is never the broker.
    Never,
}

/// How patient members are. All members of a group have the same pace, and the broker's lease is the shortest patience
/// (failure rules F11 and F22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Between two signs of life of the leader, in milliseconds.
    pub heartbeat_ms: u64,
    /// After that long without one, at the earliest, a member asks to be elected; in milliseconds. The lease of the leader.
    pub patience_min_ms: u64,
    /// And at the latest.
    pub patience_max_ms: u64,
}

/// The engine's state on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persisted {
    /// The latest vote.
    pub vote: Option<Vec<u8>>,
    /// What is known to be committed; may lag.
    pub committed: Option<Vec<u8>>,
    /// The last entry that was dropped.
    pub purged: Option<Vec<u8>>,
    /// The snapshot: what it is of, and its bytes.
    pub snapshot: Option<(Vec<u8>, Vec<u8>)>,
    /// The entries after `purged`, by index, without a gap.
    pub log: Vec<(u64, Vec<u8>)>,
}

/// One change of the engine's state on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Replaces the vote.
    Vote(Vec<u8>),
    /// Replaces what is known to be committed.
    Committed(Vec<u8>),
    /// Adds entries, replacing those of the same index.
    Append(Vec<(u64, Vec<u8>)>),
    /// Drops the entry of this index and all later ones.
    TruncateFrom(u64),
    /// Drops entries up to and including this index; `last` is the last of them.
    Purge {
        /// Through which index.
        through: u64,
        /// Its id.
        last: Vec<u8>,
    },
    /// Replaces the snapshot.
    Snapshot {
        /// What it is of.
        meta: Vec<u8>,
        /// Its bytes.
        data: Vec<u8>,
    },
}

/// Where the engine's state is kept. Blocking; called from one thread. What it means is the engine's business.
pub trait LogStore: Send + 'static {
    /// All changes in one transaction, in this order: on disk when it returns, or none of them. After an error it is not
    /// known which (failure rule F12): the store takes nothing more, and the engine stops.
    ///
    /// # Errors
    /// What the system or the database said.
    fn write(&mut self, writes: Vec<Write>) -> io::Result<()>;
    /// The snapshot, as it was written.
    ///
    /// # Errors
    /// What the system or the database said.
    fn snapshot(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>>;
}

/// What is replicated. Deterministic: the same commands in the same order give the same state and the same replies on every
/// member.
pub trait Machine: Send + 'static {
    /// Carries a command out, and says what it did.
    fn apply(&mut self, command: &[u8]) -> Vec<u8>;
    /// The state as bytes; the same state gives the same bytes.
    fn snapshot(&self) -> Vec<u8>;
    /// Replaces the state by that of [`Machine::snapshot`].
    ///
    /// # Errors
    /// In words, when the bytes are no state that this program knows; the state is as it was.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), String>;
}

/// A member was not reached, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(pub String);

/// Carries the engine's questions to other nodes: over a connection of its own, so that nothing else delays them (failure
/// rule F22).
pub trait Carrier: Send + Sync + 'static {
    /// Asks `node`, and waits for its answer up to `within`.
    fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>>;
}

/// The right to act as the broker: held after an entry of its own term was applied and a quorum confirmed it (failure rule
/// F10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Office {
    /// The term.
    pub term: u64,
}

/// How a group stands, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The group.
    pub group: Group,
    /// This member.
    pub own: MemberId,
    /// The latest term seen.
    pub term: u64,
    /// Who leads, as far as this member has heard; itself too, also before it holds the office.
    pub leader: Option<NodeId>,
    /// This member's office, while a quorum answers in time (failure rule F11). `None`: it must not act.
    pub office: Option<Office>,
    /// Who votes.
    pub voters: BTreeSet<NodeId>,
    /// Who follows without a vote.
    pub learners: BTreeSet<NodeId>,
    /// At the leader: how many entries each other member lacks, and how long ago it answered last, in milliseconds; `None`:
    /// never in this office.
    pub followers: BTreeMap<NodeId, Follower>,
    /// While nobody leads, as far as this member has heard: the other voters whose member answered lately. `None`: somebody
    /// leads, or they were not asked yet.
    pub answering: Option<BTreeSet<NodeId>>,
    /// Index of the last entry that was applied here.
    pub applied: u64,
    /// Why this member takes part no more, in words: its store failed.
    pub trouble: Option<String>,
}

impl Standing {
    /// How a group stands before its member has said anything.
    #[must_use]
    pub const fn before(group: Group, own: MemberId) -> Self {
        Self {
            group,
            own,
            term: 0,
            leader: None,
            office: None,
            voters: BTreeSet::new(),
            learners: BTreeSet::new(),
            followers: BTreeMap::new(),
            answering: None,
            applied: 0,
            trouble: None,
        }
    }
}

/// How another member keeps up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Entries that it lacks.
    pub lag: u64,
    /// When it answered last, in milliseconds before now.
    pub answered_ms: Option<u64>,
}

/// Why a command was not carried out, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// This member does not hold the office that the command was given in. Nothing was written.
    #[error("this device is not the broker any more")]
    NotActing,
    /// It may be carried out later: its own identity decides when it is repeated (failure rule F12).
    #[error("no quorum has confirmed it: {0}")]
    Unknown(String),
    /// The engine has stopped. It may or may not have been written.
    #[error("the broker's log has stopped: {0}")]
    Stopped(String),
}
