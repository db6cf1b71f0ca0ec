//! The roster: which devices belong to one mesh. Pure; the broker decides on it, everybody else keeps a copy.

use std::{
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
    /// The member that acts as broker.
    pub broker: NodeId,
    /// All members, the broker among them.
    pub members: BTreeMap<NodeId, Member>,
    /// Members that were forgotten, the latest 1,024: they are told so instead of being called unknown.
    pub removed: BTreeSet<NodeId>,
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
        Self { mesh, epoch: 1, version: 1, broker: node, members, removed: BTreeSet::new() }
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

    /// Whether this is a later word than `other` on the same mesh.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        self.mesh == other.mesh && (self.epoch, self.version) > (other.epoch, other.version)
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
}
