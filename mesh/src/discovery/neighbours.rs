//! What mDNS says of the devices on this link, told apart by mesh. Pure: the driver (`mdns`) hands it what it hears.
//! None of it is proven, so all of it is bounded.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::{CANDIDATES_MAX, NODES_MAX};
use crate::identity::{MeshId, NodeId};

/// The version of the announcement. One of another version is passed over.
const VERSION: &str = "1";
const KEY_VERSION: &str = "v";
const KEY_MESH: &str = "mesh";
const KEY_NODE: &str = "node";

/// What the TXT record of a device says (RFC 6763 section 6). The port stands in its SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Whose it says it is.
    pub(crate) node: NodeId,
    /// Which mesh, as [`mesh_tag`].
    pub(crate) tag: String,
}

impl Announcement {
    /// The record's keys and values.
    pub(crate) fn txt(&self) -> [(&'static str, String); 3] {
        [(KEY_VERSION, VERSION.to_owned()), (KEY_MESH, self.tag.clone()), (KEY_NODE, self.node.to_string())]
    }

    /// The announcement of a record, asked key by key; `None` for one that is not ours or not of this version.
    pub(crate) fn read<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let tag = value(KEY_MESH).filter(|tag| tag.len() == TAG_DIGITS)?.to_ascii_lowercase();
        let hex = tag.bytes().all(|byte| byte.is_ascii_hexdigit());
        let node = value(KEY_NODE)?.parse().ok()?;
        (value(KEY_VERSION)? == VERSION && hex).then_some(Self { node, tag })
    }
}

const TAG_DIGITS: usize = 8;

/// The first eight hex digits of SHA-256 of the mesh's id: enough to pass over other meshes, too little to know one by.
pub(super) fn mesh_tag(mesh: MeshId) -> String {
    HEXLOWER.encode(&Sha256::digest(mesh.as_bytes())[..TAG_DIGITS / 2])
}

/// What was seen of a device of this mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// It announces itself at these addresses: all that it announces now, at most [`CANDIDATES_MAX`]. A link-local IPv6
    /// address has the scope of the interface on which it was heard.
    Seen {
        /// Who it says it is; the handshake proves it.
        node: NodeId,
        /// Where.
        addresses: Vec<SocketAddr>,
    },
    /// It said goodbye, or its announcement ran out. It may still be there.
    Lost {
        /// Who.
        node: NodeId,
    },
}

impl Sighting {
    /// Whom it is about.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        match self {
            Self::Seen { node, .. } | Self::Lost { node } => *node,
        }
    }
}

/// Who announces what on this link, by the name of the announcement. Other meshes' are kept too, because this device may
/// join theirs.
#[derive(Debug)]
pub(super) struct Neighbours {
    own: NodeId,
    tag: String,
    known: BTreeMap<String, (Announcement, BTreeSet<SocketAddr>)>,
}

impl Neighbours {
    pub(super) fn new(own: NodeId, mesh: MeshId) -> Self {
        Self { own, tag: mesh_tag(mesh), known: BTreeMap::new() }
    }

    /// An announcement was heard or changed. Beyond [`NODES_MAX`] announcements new ones are passed over.
    pub(super) fn resolved(
        &mut self,
        name: &str,
        announcement: Announcement,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Vec<Sighting> {
        if announcement.node == self.own || !self.known.contains_key(name) && self.known.len() >= NODES_MAX {
            return Vec::new();
        }
        // A name that changes hands takes its addresses from the one it was.
        let other = self.known.get(name).map(|(before, _)| before.node).filter(|other| *other != announcement.node);
        let nodes: Vec<NodeId> = other.into_iter().chain([announcement.node]).collect();
        let before: Vec<bool> = nodes.iter().map(|node| self.ours(*node).next().is_some()).collect();
        let addresses = addresses.into_iter().take(CANDIDATES_MAX).collect();
        self.known.insert(name.to_owned(), (announcement, addresses));
        nodes.into_iter().zip(before).filter_map(|(node, before)| self.sighting(node, before)).collect()
    }

    /// An announcement ended.
    pub(super) fn removed(&mut self, name: &str) -> Option<Sighting> {
        let node = self.known.get(name)?.0.node;
        let before = self.ours(node).next().is_some();
        let (ended, _) = self.known.remove(name)?;
        if ended.tag == self.tag { self.sighting(node, before) } else { None }
    }

    /// This device belongs to another mesh now: what is on this link of it.
    pub(super) fn retag(&mut self, mesh: MeshId) -> Vec<Sighting> {
        self.tag = mesh_tag(mesh);
        let nodes: BTreeSet<NodeId> = self
            .known
            .values()
            .filter(|(announcement, _)| announcement.tag == self.tag)
            .map(|(announcement, _)| announcement.node)
            .collect();
        nodes.into_iter().filter_map(|node| self.sighting(node, false)).collect()
    }

    /// What `node` announces in this mesh.
    fn ours(&self, node: NodeId) -> impl Iterator<Item = &BTreeSet<SocketAddr>> {
        let ours = self.known.values().filter(move |(said, _)| said.node == node && said.tag == self.tag);
        ours.map(|(_, addresses)| addresses)
    }

    /// What to say of `node`: all that it announces in this mesh; that it is lost, when that is nothing any more.
    fn sighting(&self, node: NodeId, before: bool) -> Option<Sighting> {
        let mut ours = self.ours(node).peekable();
        if ours.peek().is_none() {
            return before.then_some(Sighting::Lost { node });
        }
        let addresses: BTreeSet<SocketAddr> = ours.flatten().copied().collect();
        Some(Sighting::Seen { node, addresses: addresses.into_iter().take(CANDIDATES_MAX).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 16] = [7; 16];
    const ELSEWHERE: [u8; 16] = [8; 16];

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    fn says(byte: u8, mesh: [u8; 16]) -> Announcement {
        Announcement { node: node(byte), tag: mesh_tag(mesh.into()) }
    }

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7373))
    }

    fn seen(byte: u8, addresses: &[SocketAddr]) -> Sighting {
        Sighting::Seen { node: node(byte), addresses: addresses.to_vec() }
    }

    fn neighbours() -> Neighbours {
        Neighbours::new(node(1), HERE.into())
    }

    #[test]
    fn the_record_is_this() {
        let announcement = says(2, HERE);
        let txt = announcement.txt();
        // Computed with Python: hashlib.sha256(bytes([7] * 16)).hexdigest()[:8]
        assert_eq!(txt, [("v", "1".into()), ("mesh", "d761d406".into()), ("node", node(2).to_string())]);
        let value = |key: &str| txt.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str());
        assert_eq!(Announcement::read(value), Some(announcement));
    }

    #[test]
    fn a_record_that_is_not_ours_is_none() {
        let id = node(2).to_string();
        let good = [("v", "1"), ("mesh", "0123abcd"), ("node", id.as_str())];
        let read = |record: &[(&str, &'static str)]| {
            let record: Vec<(String, &str)> = record.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
            Announcement::read(|key| record.iter().find(|(known, _)| known == key).map(|(_, value)| *value))
        };
        let value = |key: &str| good.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        assert!(Announcement::read(value).is_some());
        for (changed, to) in [("v", "2"), ("mesh", "0123abc"), ("mesh", "0123abcx"), ("mesh", "ü23abcd"), ("node", "A")]
        {
            let value = |key: &str| if key == changed { Some(to) } else { value(key) };
            assert_eq!(Announcement::read(value), None, "{changed}={to}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("v", "1"), ("mesh", "0123abcd")]), None);
    }

    #[test]
    fn own_announcements_and_those_of_other_meshes_are_passed_over() {
        let mut neighbours = neighbours();
        assert_eq!(neighbours.resolved("a", says(1, HERE), [at(1)]), []);
        assert_eq!(neighbours.resolved("b", says(2, ELSEWHERE), [at(2)]), []);
        assert_eq!(neighbours.removed("b"), None);
        assert_eq!(neighbours.resolved("c", says(3, HERE), [at(3)]), [seen(3, &[at(3)])]);
    }

    #[test]
    fn a_device_is_lost_with_its_last_announcement() {
        let mut neighbours = neighbours();
        assert_eq!(neighbours.resolved("old", says(2, HERE), [at(1), at(2)]), [seen(2, &[at(1), at(2)])]);
        assert_eq!(neighbours.resolved("new", says(2, HERE), [at(3)]), [seen(2, &[at(1), at(2), at(3)])]);
        assert_eq!(neighbours.removed("old"), Some(seen(2, &[at(3)])));
        assert_eq!(neighbours.removed("new"), Some(Sighting::Lost { node: node(2) }));
        assert_eq!(neighbours.removed("new"), None);
        assert_eq!(neighbours.resolved("new", says(2, HERE), [at(4)]), [seen(2, &[at(4)])]);
        assert_eq!(neighbours.resolved("new", says(2, HERE), [at(5)]), [seen(2, &[at(5)])], "its addresses changed");
    }

    #[test]
    fn a_device_that_joins_another_mesh_sees_the_members_that_were_there() {
        let mut neighbours = neighbours();
        assert_eq!(neighbours.resolved("a", says(2, ELSEWHERE), [at(2)]), []);
        neighbours.resolved("b", says(3, HERE), [at(3)]);
        assert_eq!(neighbours.retag(ELSEWHERE.into()), [seen(2, &[at(2)])]);
        assert_eq!(neighbours.removed("b"), None);
        assert_eq!(neighbours.removed("a"), Some(Sighting::Lost { node: node(2) }));
    }

    #[test]
    fn a_device_that_joins_another_mesh_is_lost_to_this_one() {
        let mut neighbours = neighbours();
        neighbours.resolved("old", says(2, HERE), [at(2)]);
        assert_eq!(neighbours.resolved("new", says(2, ELSEWHERE), [at(2)]), [seen(2, &[at(2)])]);
        assert_eq!(neighbours.removed("old"), Some(Sighting::Lost { node: node(2) }));
        assert_eq!(neighbours.removed("new"), None);
        neighbours.resolved("same", says(3, HERE), [at(3)]);
        assert_eq!(neighbours.resolved("same", says(3, ELSEWHERE), [at(3)]), [Sighting::Lost { node: node(3) }]);
    }

    #[test]
    fn a_name_that_changes_hands_takes_its_addresses_away() {
        let mut neighbours = neighbours();
        neighbours.resolved("a", says(2, HERE), [at(2)]);
        let told = neighbours.resolved("a", says(3, HERE), [at(3)]);
        assert_eq!(told, [Sighting::Lost { node: node(2) }, seen(3, &[at(3)])]);
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut neighbours = neighbours();
        for n in 0..2 * NODES_MAX {
            neighbours.resolved(&n.to_string(), says(2, HERE), (0..100).map(at));
        }
        assert_eq!(neighbours.known.len(), NODES_MAX);
        let told = neighbours.resolved("0", says(2, HERE), [at(1)]);
        assert!(matches!(&told[..], [Sighting::Seen { addresses, .. }] if addresses.len() <= CANDIDATES_MAX));
    }
}
