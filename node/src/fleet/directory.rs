//! [`Fleet`]: the broker's directory over all devices, from what they announced.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use chappie_mesh::{NodeId, Roster};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{Directory, Placed, SessionNode, line::Line, remote::RemoteNode, roll::Roll};
use crate::{
    ids::{Conversation, SessionId},
    sessions::SessionInfo,
};

/// How long automatic selection waits for members to announce after this device took the broker's seat (failure rule
/// F13).
const GATHER_MAX: Duration = Duration::from_secs(1);

/// The broker's directory.
pub struct Fleet {
    roll: Arc<Roll>,
    local: Arc<dyn Directory>,
    line: Line,
    nodes: Mutex<BTreeMap<NodeId, Arc<RemoteNode>>>,
    until: Instant,
    gathered: AtomicBool,
}

impl Fleet {
    /// The sessions of `local`, this device's own, and of all members that `roll` has heard of. Automatic selection waits
    /// from now on for members to announce.
    #[must_use]
    pub fn new(roll: Arc<Roll>, local: Arc<dyn Directory>, line: Line) -> Arc<Self> {
        let (nodes, gathered) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { roll, local, line, nodes, until: Instant::now() + GATHER_MAX, gathered })
    }

    /// Resolves when every member has announced, or the second is over that they get for it (failure rule F13). At once
    /// ever after.
    pub async fn gathered(&self) {
        if self.gathered.load(Ordering::Relaxed) {
            return;
        }
        let mut changes = self.roll.version.subscribe();
        let all = async {
            loop {
                changes.mark_unchanged();
                let here = self.roll.announced().nodes();
                let own = self.roll.own;
                if self.line.roster().members.keys().all(|member| *member == own || here.contains(member)) {
                    return;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        // Late is as good as all: what is not there by then counts as offline.
        let _ = timeout_at(self.until, all).await;
        self.gathered.store(true, Ordering::Relaxed);
    }

    /// Whether that time is over.
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        self.gathered.load(Ordering::Relaxed)
    }

    /// Follows the roster for as long as it changes: what a member that was forgotten had may be another one's.
    pub async fn follow(&self, mut rosters: watch::Receiver<Arc<Roster>>) {
        while rosters.changed().await.is_ok() {
            let roster = Arc::clone(&rosters.borrow_and_update());
            self.roll.retain(|node| roster.members.contains_key(node));
        }
    }

    /// The sessions that `node` announced last, online or not.
    #[must_use]
    pub fn kept(&self, node: &NodeId) -> Vec<SessionId> {
        self.roll.keep.kept(node)
    }

    fn remote(&self, node: NodeId) -> Arc<dyn SessionNode> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if !nodes.contains_key(&node) {
            // Members that were forgotten need no place any more.
            let roster = self.line.roster();
            nodes.retain(|known, _| roster.members.contains_key(known));
        }
        let remote = nodes.entry(node).or_insert_with(|| RemoteNode::new(node, self.line.clone()));
        Arc::clone(remote) as Arc<dyn SessionNode>
    }

    fn place(&self, node: NodeId, info: SessionInfo) -> Placed {
        Placed { info, device: self.line.label(&node), node: self.remote(node) }
    }
}

impl Directory for Fleet {
    fn find(&self, session: &SessionId) -> Option<Placed> {
        let held = self.roll.announced().holder(session).map(|(node, info)| (node, info.clone()));
        match held {
            Some((node, info)) if node != self.roll.own => Some(self.place(node, info)),
            _ => self.local.find(session),
        }
    }

    fn list(&self) -> Vec<Placed> {
        let held: Vec<(NodeId, SessionInfo)> =
            self.roll.announced().list().into_iter().map(|(node, info)| (node, info.clone())).collect();
        let others = held.into_iter().filter(|(node, _)| *node != self.roll.own);
        let mut list: Vec<Placed> = others.map(|(node, info)| self.place(node, info)).collect();
        let elsewhere = |placed: &Placed| list.iter().any(|other| other.info.id == placed.info.id);
        let own: Vec<Placed> = self.local.list().into_iter().filter(|placed| !elsewhere(placed)).collect();
        list.extend(own);
        list.sort_by(|one, two| (one.info.created, &one.info.id).cmp(&(two.info.created, &two.info.id)));
        list
    }

    fn late(&self, conversation: &Conversation) -> Vec<Arc<dyn SessionNode>> {
        let others = self.roll.announced().late(conversation);
        let others = others.into_iter().filter(|node| *node != self.roll.own);
        self.local.late(conversation).into_iter().chain(others.map(|node| self.remote(node))).collect()
    }

    fn nodes(&self) -> Vec<Arc<dyn SessionNode>> {
        let others = self.roll.announced().nodes();
        let others = others.into_iter().filter(|node| *node != self.roll.own);
        self.local.nodes().into_iter().chain(others.map(|node| self.remote(node))).collect()
    }
}
