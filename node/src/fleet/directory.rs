//! [`Fleet`]: the broker's directory over all devices, from what they announced.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chappie_mesh::{NodeId, Roster};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Directory, Placed, SessionNode, Tenure,
    feed::Connected,
    line::Line,
    quorum,
    remote::RemoteNode,
    roll::Roll,
    seat::{Holder, Seat},
};
use crate::{
    ids::{Conversation, SessionId},
    sessions::SessionInfo,
};

/// How long automatic selection waits for members to announce after this device took the broker's seat (failure rule
/// F13).
const GATHER_MAX: Duration = Duration::from_secs(1);
/// A former broker that has not answered the new one for so long is taken for dead, though its connection may stand:
/// many heartbeats.
const SILENT_MS: u64 = 500;

/// The broker's directory.
pub struct Fleet {
    roll: Arc<Roll>,
    local: Arc<dyn Directory>,
    line: Line,
    seat: Seat,
    connected: Connected,
    nodes: Mutex<BTreeMap<NodeId, Arc<RemoteNode>>>,
    gathering: Mutex<Gathering>,
}

/// How far the members' announcements are awaited in this office.
#[derive(Default)]
struct Gathering {
    /// In which office, and until when.
    office: Option<(Tenure, Instant)>,
    done: bool,
    /// Who had the seat last before this device.
    former: Option<NodeId>,
}

impl Fleet {
    /// The sessions of `local`, this device's own, and of all members that `roll` has heard of. Automatic selection waits
    /// at the beginning of each office for the members that are connected to announce.
    #[must_use]
    pub fn new(roll: Arc<Roll>, local: Arc<dyn Directory>, line: Line, seat: Seat, connected: Connected) -> Arc<Self> {
        Arc::new(Self { roll, local, line, seat, connected, nodes: Mutex::default(), gathering: Mutex::default() })
    }

    fn gathering(&self) -> MutexGuard<'_, Gathering> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The office in which members are still awaited, and until when.
    fn awaited(&self) -> Option<(Tenure, Instant)> {
        let tenure = self.seat.tenure()?;
        let mut gathering = self.gathering();
        let office = match gathering.office {
            Some(office) if office.0 == tenure => office,
            _ => {
                gathering.done = false;
                *gathering.office.insert((tenure, Instant::now() + GATHER_MAX))
            }
        };
        (!gathering.done).then_some(office)
    }

    /// Resolves when every member that is connected has announced, or the second is over that they get for it at the
    /// beginning of each office (failure rule F13). A former broker that is silent is not waited for.
    pub async fn gathered(&self) {
        let Some((tenure, until)) = self.awaited() else { return };
        let (mut seat, mut connected) = (self.seat.clone(), self.connected.clone());
        let mut changes = self.roll.version.subscribe();
        loop {
            changes.mark_unchanged();
            let open = self.silent_ones(&connected.borrow_and_update());
            if open.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                () = seat.over(tenure) => return,
                Ok(()) = changes.changed() => {}
                Ok(()) = connected.changed() => {}
                // What is not there by then counts as offline.
                () = sleep_until(until) => break,
            }
        }
        let mut gathering = self.gathering();
        gathering.done |= gathering.office.is_some_and(|(office, _)| office == tenure);
    }

    /// The connected members that have not announced and may do so any moment.
    fn silent_ones(&self, connected: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let heard = self.roll.announced().nodes();
        let (roster, standing) = (self.line.roster(), self.seat.standing());
        let former = self.gathering().former;
        let dead = |node: &NodeId| {
            let answered = |standing: &chappie_mesh::consensus::Standing| {
                standing.followers.get(node).and_then(|follower| follower.answered_ms).is_some_and(|ms| ms <= SILENT_MS)
            };
            former == Some(*node) && standing.as_deref().is_some_and(|standing| !answered(standing))
        };
        let members = roster.members.keys().filter(|member| **member != self.roll.own);
        members
            .filter(|member| connected.contains(member) && !heard.contains(member) && !dead(member))
            .copied()
            .collect()
    }

    /// Whether that time is over.
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        self.awaited().is_none()
    }

    /// Follows the seat, and the roster for as long as it changes: what a member that was forgotten had may be another
    /// one's.
    pub async fn follow(&self, mut rosters: watch::Receiver<Arc<Roster>>) {
        let mut seat = self.seat.clone();
        loop {
            let holder = seat.holder();
            match holder {
                Holder::There(node) => self.gathering().former = Some(node),
                // The second begins with the office.
                Holder::Here => drop(self.awaited()),
                Holder::Nobody => {}
            }
            tokio::select! {
                changed = rosters.changed() => match changed {
                    Ok(()) => {
                        let roster = Arc::clone(&rosters.borrow_and_update());
                        self.roll.retain(|node| roster.members.contains_key(node));
                    }
                    Err(_) => return,
                },
                () = seat.left(holder) => {}
            }
        }
    }

    /// The way to other devices.
    #[must_use]
    pub const fn line(&self) -> &Line {
        &self.line
    }

    /// Whether so many voters are away that there can be no broker, as far as this device can tell.
    #[must_use]
    pub fn lacks_quorum(&self) -> bool {
        self.seat.standing().is_some_and(|standing| {
            let missing = quorum::missing(&standing, &self.roll.own, &self.connected.borrow());
            (standing.voters.len() - missing.len()) * 2 <= standing.voters.len()
        })
    }

    /// Why there is no broker to ask, and what to do.
    #[must_use]
    pub fn no_broker(&self) -> String {
        let roster = self.line.roster();
        match self.seat.standing() {
            Some(standing) => quorum::nobody(&standing, &self.roll.own, &roster, &self.connected.borrow()),
            None => format!("the broker is {} and cannot be asked", roster.label(&roster.broker)),
        }
    }

    /// The sessions that `node` announced last, online or not.
    #[must_use]
    pub fn kept(&self, node: &NodeId) -> Vec<SessionId> {
        self.roll.kept(node)
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
