//! [`Roll`]: takes what devices announce, and tells the broker which sessions are online.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use chappie_mesh::NodeId;
use tokio::sync::watch;

use super::{
    announced::{Announced, Applied, Clash, Feed},
    protocol::feed::Announcement,
};
use crate::{
    broker::{self, Broker},
    ids::SessionId,
    sessions::SessionInfo,
};

/// Where the last announcement of each member is kept, so that a member can be forgotten that is offline.
pub trait Keep: Send + Sync + 'static {
    /// These are the sessions of `node` now. Called when they changed; does not block.
    fn keep(&self, node: NodeId, sessions: Vec<SessionId>);
    /// The sessions that were kept for `node`.
    fn kept(&self, node: &NodeId) -> Vec<SessionId>;
}

/// Who announced what. Made before the sessions are opened, because they announce here.
pub struct Roll {
    pub(super) own: NodeId,
    broker: Broker,
    pub(super) keep: Arc<dyn Keep>,
    announced: Mutex<Announced>,
    feeds: AtomicU64,
    pub(super) version: watch::Sender<u64>,
}

impl Roll {
    /// An empty roll of the device `own`; `broker` is told which sessions are online.
    #[must_use]
    pub fn new(own: NodeId, broker: Broker, keep: Arc<dyn Keep>) -> Arc<Self> {
        let (announced, version) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Self { own, broker, keep, announced, feeds: AtomicU64::new(1), version })
    }

    pub(super) fn announced(&self) -> MutexGuard<'_, Announced> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a stream that begins now.
    pub(super) fn feed(&self) -> Feed {
        self.feeds.fetch_add(1, Ordering::Relaxed)
    }

    /// This device's sessions changed.
    pub fn own(&self, sessions: Vec<SessionInfo>) {
        let mut announced = self.announced();
        let clashes = announced.own(self.own, sessions);
        self.changed(&announced);
        drop(announced);
        self.warn(&clashes);
    }

    /// A member announced.
    pub(super) fn apply(&self, node: NodeId, feed: Feed, announcement: Announcement) {
        let mut announced = self.announced();
        let Applied::Taken(clashes) = announced.apply(node, feed, announcement) else { return };
        self.changed(&announced);
        let sessions = announced.held(&node);
        drop(announced);
        self.warn(&clashes);
        self.keep.keep(node, sessions);
    }

    /// Takes up whose the sessions of these members are, as it was kept.
    pub fn recall<'a>(&self, members: impl Iterator<Item = &'a NodeId>) {
        let mut announced = self.announced();
        for member in members.filter(|member| **member != self.own) {
            announced.recall(*member, self.keep.kept(member));
        }
    }

    /// The sessions that `node` announced last, online or not.
    pub(super) fn kept(&self, node: &NodeId) -> Vec<SessionId> {
        // What was announced a moment ago may not be on disk yet.
        let mut sessions = self.announced().held(node);
        let kept = self.keep.kept(node);
        sessions.extend(kept.into_iter().filter(|kept| !sessions.contains(kept)).collect::<Vec<_>>());
        sessions
    }

    /// Only these are members any more.
    pub(super) fn retain(&self, is_member: impl Fn(&NodeId) -> bool) {
        let mut announced = self.announced();
        if announced.retain(is_member) {
            self.changed(&announced);
        }
    }

    /// A member's stream ended: its sessions are offline at once, unless it has a later stream.
    pub(super) fn gone(&self, node: &NodeId, feed: Feed) {
        let mut announced = self.announced();
        if announced.gone(node, Some(feed)) {
            self.changed(&announced);
        }
    }

    /// Tells the broker. Under the lock, so that it hears the lists in their order.
    fn changed(&self, announced: &Announced) {
        let online = announced.list().into_iter().map(|(_, info)| broker::Announced {
            session: info.id.clone(),
            created: info.created,
            cwd: info.cwd.clone().into(),
        });
        self.broker.announce(online.collect());
        self.version.send_modify(|version| *version += 1);
    }

    fn warn(&self, clashes: &[Clash]) {
        for Clash { session, holder, other } in clashes {
            tracing::warn!(
                %session, %holder, %other,
                "two devices announce one session, as after copying CHAPPIE_HOME; the first one keeps it"
            );
        }
    }

    /// Who holds a session.
    #[must_use]
    pub fn holder(&self, session: &SessionId) -> Option<NodeId> {
        self.announced().holder(session).map(|(node, _)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::{self, Settings},
        fleet::testing::{info, node},
    };

    /// A disk on which the last announcement is not yet.
    struct Lagging(Vec<SessionId>);

    impl Keep for Lagging {
        fn keep(&self, _: NodeId, _: Vec<SessionId>) {}

        fn kept(&self, _: &NodeId) -> Vec<SessionId> {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn what_was_announced_a_moment_ago_is_kept_beside_what_is_on_disk_and_each_once() {
        let home = tempfile::tempdir().unwrap();
        let broker = broker::testing::alone(home.path(), node(1), Settings::default()).await.unwrap();
        let disk = ["old".into(), "both".into()].into();
        let roll = Roll::new(node(1), broker, Arc::new(Lagging(disk)));
        let sessions = vec![info("both", 1), info("new", 2)];
        let announcement = Announcement { boot: [1; 16], seq: 1, sessions, late: vec![], ext: Default::default() };
        let feed = roll.feed();
        roll.apply(node(2), feed, announcement);
        let ids = |ids: [&str; 3]| ids.map(SessionId::from).to_vec();
        assert_eq!(roll.kept(&node(2)), ids(["both", "new", "old"]));
        roll.gone(&node(2), feed);
        assert_eq!(roll.kept(&node(2)).len(), 3, "offline too");
    }
}
