//! Who announced which sessions (failure rule F13): the newest word of each node, one holder for each session, selection
//! order. Pure.

use std::collections::{BTreeMap, BTreeSet};

use chappie_mesh::NodeId;

use super::protocol::feed::Announcement;
use crate::{
    ids::{Conversation, SessionId},
    sessions::SessionInfo,
};

/// Which stream an announcement came on: numbers of later streams are greater.
pub type Feed = u64;

/// What all nodes that are online have announced.
#[derive(Debug, Default)]
pub struct Announced {
    nodes: BTreeMap<NodeId, Heard>,
    /// Whose each session is, also while that node is away: a copy of its home folder never takes its place.
    holders: BTreeMap<SessionId, NodeId>,
}

#[derive(Debug)]
struct Heard {
    feed: Feed,
    boot: [u8; 16],
    seq: u64,
    sessions: BTreeMap<SessionId, SessionInfo>,
    late: BTreeSet<Conversation>,
}

/// Two nodes announce one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// Which.
    pub session: SessionId,
    /// Who had it first, and keeps it.
    pub holder: NodeId,
    /// Who announces it too.
    pub other: NodeId,
}

/// What an announcement changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Nothing: a later word of this node is known.
    Stale,
    /// It counts now. Clashes are those that were not there before.
    Taken(Vec<Clash>),
}

impl Announced {
    /// Takes the word of another node, if it is its latest.
    pub fn apply(&mut self, node: NodeId, feed: Feed, announcement: Announcement) -> Applied {
        let Announcement { boot, seq, sessions, late, ext: _ } = announcement;
        if let Some(heard) = self.nodes.get(&node) {
            let repeated = heard.boot == boot && seq <= heard.seq;
            if feed < heard.feed || repeated {
                return Applied::Stale;
            }
        }
        Applied::Taken(
            self.take(node, Heard { feed, boot, seq, sessions: keyed(sessions), late: late.into_iter().collect() }),
        )
    }

    /// Takes this node's own list, which is never stale.
    pub fn own(&mut self, node: NodeId, sessions: Vec<SessionInfo>) -> Vec<Clash> {
        let heard = Heard { feed: 0, boot: [0; 16], seq: 0, sessions: keyed(sessions), late: BTreeSet::new() };
        self.take(node, heard)
    }

    fn take(&mut self, node: NodeId, heard: Heard) -> Vec<Clash> {
        let before = self.nodes.insert(node, heard);
        self.holders.retain(|session, holder| *holder != node || self.nodes[&node].sessions.contains_key(session));
        self.fill();
        let known = |session: &SessionId| before.as_ref().is_some_and(|heard| heard.sessions.contains_key(session));
        let clash = |session: &SessionId| {
            let holder = *self.holders.get(session)?;
            (holder != node && !known(session)).then(|| Clash { session: session.clone(), holder, other: node })
        };
        self.nodes[&node].sessions.keys().filter_map(clash).collect()
    }

    /// Gives each session that nobody holds to a node that announces it.
    fn fill(&mut self) {
        for (node, heard) in &self.nodes {
            for session in heard.sessions.keys() {
                self.holders.entry(session.clone()).or_insert(*node);
            }
        }
    }

    /// A member had these sessions when it was last heard of, in an earlier run of this program.
    pub fn recall(&mut self, node: NodeId, sessions: Vec<SessionId>) {
        for session in sessions {
            self.holders.entry(session).or_insert(node);
        }
    }

    /// The sessions that are `node`'s.
    #[must_use]
    pub fn held(&self, node: &NodeId) -> Vec<SessionId> {
        self.holders.iter().filter(|(_, holder)| *holder == node).map(|(session, _)| session.clone()).collect()
    }

    /// Only these nodes are members any more: what others had may be somebody else's. Whether anything changed.
    pub fn retain(&mut self, is_member: impl Fn(&NodeId) -> bool) -> bool {
        let before = self.holders.len();
        self.holders.retain(|_, holder| is_member(holder));
        self.fill();
        self.holders.len() != before
    }

    /// A node went offline, with all its sessions; they stay its own. With `feed`: only if nothing came on a later one.
    /// Whether anything changed.
    pub fn gone(&mut self, node: &NodeId, feed: Option<Feed>) -> bool {
        let later = |heard: &Heard| feed.is_some_and(|feed| heard.feed > feed);
        if self.nodes.get(node).is_none_or(later) {
            return false;
        }
        self.nodes.remove(node);
        true
    }

    /// Who holds a session, and how it is described.
    #[must_use]
    pub fn holder(&self, session: &SessionId) -> Option<(NodeId, &SessionInfo)> {
        let node = *self.holders.get(session)?;
        Some((node, self.nodes.get(&node)?.sessions.get(session)?))
    }

    /// Every session with its holder, in selection order.
    #[must_use]
    pub fn list(&self) -> Vec<(NodeId, &SessionInfo)> {
        let mut list: Vec<_> = self.holders.keys().filter_map(|session| self.holder(session)).collect();
        list.sort_by(|(_, one), (_, two)| (one.created, &one.id).cmp(&(two.created, &two.id)));
        list
    }

    /// Who has late results of a conversation.
    #[must_use]
    pub fn late(&self, conversation: &Conversation) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, heard)| heard.late.contains(conversation)).map(|(node, _)| *node).collect()
    }

    /// Everybody whose word counts.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.nodes.keys().copied().collect()
    }
}

fn keyed(sessions: Vec<SessionInfo>) -> BTreeMap<SessionId, SessionInfo> {
    sessions.into_iter().map(|info| (info.id.clone(), info)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host::HostKind, ids::Millis};

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    fn info(id: &str, created: u64) -> SessionInfo {
        SessionInfo {
            id: id.into(),
            name: None,
            host: HostKind::Native,
            agent_dir: "/home".into(),
            cwd: "/tmp".into(),
            created: Millis(created),
            executing: false,
        }
    }

    fn word(boot: u8, seq: u64, sessions: &[(&str, u64)]) -> Announcement {
        let sessions = sessions.iter().map(|(id, created)| info(id, *created)).collect();
        Announcement { boot: [boot; 16], seq, sessions, late: vec![], ext: vec![] }
    }

    fn ids(announced: &Announced) -> Vec<(NodeId, &str)> {
        announced.list().into_iter().map(|(node, info)| (node, info.id.as_str())).collect()
    }

    #[test]
    fn f13_an_older_word_is_ignored_and_a_later_run_is_not() {
        let mut announced = Announced::default();
        let taken = Applied::Taken(vec![]);
        assert_eq!(announced.apply(node(1), 1, word(1, 2, &[("a", 1)])), taken);
        assert_eq!(announced.apply(node(1), 1, word(1, 1, &[])), Applied::Stale);
        assert_eq!(announced.apply(node(1), 1, word(1, 2, &[])), Applied::Stale);
        assert_eq!(announced.apply(node(1), 2, word(2, 1, &[("b", 1)])), taken);
        assert_eq!(announced.apply(node(1), 1, word(1, 9, &[("a", 1)])), Applied::Stale, "of an earlier stream");
        assert_eq!(ids(&announced), [(node(1), "b")]);
    }

    #[test]
    fn f13_the_list_is_in_selection_order_whoever_announced_first() {
        let mut announced = Announced::default();
        announced.own(node(9), vec![info("own", 5)]);
        announced.apply(node(2), 1, word(1, 1, &[("z", 1), ("y", 7)]));
        announced.apply(node(1), 2, word(1, 1, &[("x", 7), ("w", 2)]));
        assert_eq!(ids(&announced).into_iter().map(|(_, id)| id).collect::<Vec<_>>(), ["z", "w", "own", "x", "y"]);
    }

    #[test]
    fn a_session_of_two_nodes_stays_with_the_first_and_is_named_once() {
        let mut announced = Announced::default();
        announced.apply(node(2), 1, word(1, 1, &[("a", 1)]));
        let clash = Clash { session: "a".into(), holder: node(2), other: node(1) };
        assert_eq!(announced.apply(node(1), 2, word(1, 1, &[("a", 1)])), Applied::Taken(vec![clash]));
        assert_eq!(announced.apply(node(1), 2, word(1, 2, &[("a", 1)])), Applied::Taken(vec![]));
        assert_eq!(ids(&announced), [(node(2), "a")]);
        assert!(announced.gone(&node(2), None));
        assert_eq!(ids(&announced), [], "a copy does not take the place of the first, which is only away");
        announced.apply(node(2), 3, word(2, 1, &[("a", 1)]));
        assert_eq!(ids(&announced), [(node(2), "a")]);
        assert!(announced.gone(&node(2), None));
        announced.retain(|member| *member != node(2));
        assert_eq!(ids(&announced), [(node(1), "a")], "the other one has it once the first was forgotten");
    }

    #[test]
    fn whose_a_session_is_outlives_the_broker() {
        let mut announced = Announced::default();
        announced.recall(node(2), vec!["a".into()]);
        announced.apply(node(1), 1, word(1, 1, &[("a", 1), ("b", 1)]));
        assert_eq!(ids(&announced), [(node(1), "b")]);
        assert_eq!((announced.held(&node(1)), announced.held(&node(2))), (vec!["b".into()], vec!["a".into()]));
        announced.apply(node(2), 2, word(1, 1, &[]));
        announced.apply(node(1), 1, word(1, 2, &[("a", 1)]));
        assert_eq!(ids(&announced), [(node(1), "a")], "it ended there");
    }

    #[test]
    fn a_stream_that_was_replaced_takes_nothing_offline() {
        let mut announced = Announced::default();
        announced.apply(node(1), 1, word(1, 1, &[("a", 1)]));
        announced.apply(node(1), 2, word(1, 2, &[("a", 1)]));
        assert!(!announced.gone(&node(1), Some(1)));
        assert!(announced.gone(&node(1), Some(2)));
        assert!(!announced.gone(&node(1), Some(2)));
        assert_eq!(ids(&announced), []);
    }

    #[test]
    fn who_has_late_results_is_known_until_it_goes() {
        let chat = Conversation::Chat("v1/c".into());
        let mut announced = Announced::default();
        announced.apply(node(1), 1, Announcement { late: vec![chat.clone()], ..word(1, 1, &[]) });
        assert_eq!(announced.late(&chat), [node(1)]);
        assert_eq!(announced.late(&Conversation::Connection("v1/c".into())), []);
        announced.apply(node(1), 1, word(1, 2, &[]));
        assert_eq!(announced.late(&chat), []);
    }
}
