//! The roster: which devices belong to one mesh. Pure; the broker decides on it, everybody else keeps a copy.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Serialize};

use super::NodeId;

/// Which mesh: 128 random bits, drawn when a device is new and when it was forgotten. It is no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MeshId([u8; 16]);

impl MeshId {
    /// The bits themselves.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl From<[u8; 16]> for MeshId {
    fn from(bits: [u8; 16]) -> Self {
        Self(bits)
    }
}

impl fmt::Display for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE32_NOPAD.encode(&self.0))
    }
}

impl fmt::Debug for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeshId({self})")
    }
}

/// One device of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What its owner calls it; two members may share a name.
    pub name: String,
}

/// The devices of one mesh. Every device always has a roster: alone it is a mesh of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Which mesh.
    pub mesh: MeshId,
    /// Counts the meshes that came of this one by `mesh recover` (failure rule F16); 1 at first.
    pub epoch: u64,
    /// Grows with every change inside an epoch.
    pub version: u64,
    /// The member that acts as broker, as far as its writer knows: a hint, because another one can be elected meanwhile.
    pub broker: NodeId,
    /// All members, the broker among them.
    pub members: BTreeMap<NodeId, Member>,
    /// Members that were forgotten, the latest 1,024: they are told so instead of being called unknown.
    pub removed: BTreeSet<NodeId>,
    /// The members that elect the broker, and of which one is.
    pub voters: BTreeSet<NodeId>,
    /// Tells two epochs of one count apart; all zero where it is not known, as in a roster of an earlier program.
    pub epoch_id: [u8; 16],
}

/// A roster as programs kept and sent it before brokers were elected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierRoster {
    mesh: MeshId,
    epoch: u64,
    version: u64,
    broker: NodeId,
    members: BTreeMap<NodeId, Member>,
    removed: BTreeSet<NodeId>,
}

impl From<EarlierRoster> for Roster {
    fn from(earlier: EarlierRoster) -> Self {
        let EarlierRoster { mesh, epoch, version, broker, members, removed } = earlier;
        let voters = BTreeSet::from([broker]);
        Self { mesh, epoch, version, broker, members, removed, voters, epoch_id: [0; 16] }
    }
}

/// What the roster says of a device that proved its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It belongs here.
    Member,
    /// It did, and was forgotten.
    Removed,
    /// Nobody here knows it.
    Unknown,
}

impl Roster {
    /// A mesh of one.
    #[must_use]
    pub fn alone(mesh: MeshId, node: NodeId, name: String) -> Self {
        let members = BTreeMap::from([(node, Member { name })]);
        let (removed, voters) = (BTreeSet::new(), BTreeSet::from([node]));
        Self { mesh, epoch: 1, version: 1, broker: node, members, removed, voters, epoch_id: [0; 16] }
    }

    /// Whether `node` may come in.
    #[must_use]
    pub fn admission(&self, node: &NodeId) -> Admission {
        if self.members.contains_key(node) {
            Admission::Member
        } else if self.removed.contains(node) {
            Admission::Removed
        } else {
            Admission::Unknown
        }
    }

    /// Whether this is a later word than `other` on the same mesh. Of two epochs of one count neither is: both sides acted
    /// (failure rule F16).
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        if self.mesh != other.mesh {
            return false;
        }
        match self.epoch.cmp(&other.epoch) {
            Ordering::Greater => true,
            Ordering::Equal => self.is_of_epoch(other) && self.version > other.version,
            Ordering::Less => false,
        }
    }

    /// Whether both are of one epoch, as far as can be told.
    fn is_of_epoch(&self, other: &Self) -> bool {
        let known = |roster: &Self| roster.epoch_id != [0; 16];
        self.epoch == other.epoch && (self.epoch_id == other.epoch_id || !known(self) || !known(other))
    }

    /// Whether `node` has a say in who is broker, or is the broker itself as far as the writer knew.
    #[must_use]
    pub fn is_central(&self, node: &NodeId) -> bool {
        *node == self.broker || self.voters.contains(node)
    }

    /// What people call a device: its name, with the short id when two members share it; the short id alone for a
    /// stranger.
    #[must_use]
    pub fn label(&self, node: &NodeId) -> String {
        let Some(member) = self.members.get(node) else { return node.short() };
        if self.members.values().filter(|other| other.name == member.name).count() > 1 {
            format!("{} ({})", member.name, node.short())
        } else {
            member.name.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    #[test]
    fn a_shared_name_is_told_apart_by_the_short_id() {
        let mut roster = Roster::alone([7; 16].into(), node(1), "box".into());
        assert_eq!(roster.label(&node(1)), "box");
        roster.members.insert(node(2), Member { name: "box".into() });
        assert_eq!(roster.label(&node(1)), format!("box ({})", node(1).short()));
        assert_ne!(roster.label(&node(1)), roster.label(&node(2)));
    }

    #[test]
    fn who_was_forgotten_is_told_from_who_was_never_there() {
        let mut roster = Roster::alone([7; 16].into(), node(1), "box".into());
        roster.removed.insert(node(2));
        assert_eq!(roster.admission(&node(1)), Admission::Member);
        assert_eq!(roster.admission(&node(2)), Admission::Removed);
        assert_eq!(roster.admission(&node(3)), Admission::Unknown);
    }

    #[test]
    fn a_roster_of_another_mesh_never_supersedes() {
        let old = Roster::alone([7; 16].into(), node(1), "box".into());
        let newer = Roster { version: 2, ..old.clone() };
        let next_epoch = Roster { epoch: 2, version: 1, ..old.clone() };
        let foreign = Roster { mesh: [8; 16].into(), version: 9, ..old.clone() };
        assert!(newer.supersedes(&old) && next_epoch.supersedes(&newer));
        assert!(!old.supersedes(&old) && !old.supersedes(&newer) && !foreign.supersedes(&old));
    }

    #[test]
    fn of_two_epochs_with_one_count_neither_supersedes() {
        let old = Roster::alone([7; 16].into(), node(1), "box".into());
        let one = Roster { epoch_id: [1; 16], version: 2, ..old.clone() };
        let other = Roster { epoch_id: [2; 16], version: 3, ..old.clone() };
        assert!(!one.supersedes(&other) && !other.supersedes(&one));
        assert!(one.supersedes(&old), "an earlier program said nothing of it");
        assert!(Roster { epoch: 2, version: 1, ..one }.supersedes(&other));
    }

    #[test]
    fn a_roster_of_an_earlier_program_is_read() {
        let alone = Roster::alone([7; 16].into(), node(1), "box".into());
        let mut bytes = vec![7; 16];
        bytes.extend([1, 1]);
        bytes.extend([1; 32]);
        bytes.push(1);
        bytes.extend([1; 32]);
        bytes.extend(b"\x03box\x00");
        let earlier: EarlierRoster = crate::wire::decode(&bytes).unwrap();
        assert_eq!(Roster::from(earlier), alone);
        bytes.push(1);
        bytes.extend([1; 32]);
        bytes.extend([0; 16]);
        assert_eq!(crate::wire::decode(&bytes), Ok(alone));
    }
}
