//! The table of peers: the links of each, who is connected, and what went wrong last. It takes decisions from
//! `verdict` and carries them out; it dials nobody.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    link::{Link, Word},
    verdict::{self, Keep, Run, Runs},
};
use crate::{
    api::PeerState,
    identity::{Incarnation, Lineage, NodeId, lineage},
    wire::CloseCode,
};

/// Links to one peer at a time: the one in use, one that is given up, and one that is just being compared. A peer that
/// makes more loses the oldest.
const LINKS_MAX: usize = 4;

/// Chains of runs that are remembered of a device. Its home was copied or put back once for each; beyond it one is
/// forgotten, and a run of it is then believed.
const CHAINS_MAX: usize = 8;

/// What is known of one peer besides its addresses.
#[derive(Debug, Default)]
struct Entry {
    /// The first that is not retired is the one in use.
    links: Vec<Arc<Link>>,
    /// The run that was let in last.
    run: Option<Incarnation>,
    /// The latest run of each chain that was let in: an original that was away while a copy of it ran is known again.
    chains: BTreeMap<u64, Incarnation>,
    /// Wakes the peer's task.
    wake: Arc<Notify>,
    /// Callers that wait for a connection.
    demand: usize,
    /// Whether a task tends it.
    tended: bool,
    /// What the task does without a connection.
    state: Option<PeerState>,
    /// When the task dials again.
    retry_at: Option<Instant>,
    trouble: Option<String>,
}

impl Entry {
    /// The latest run that was let in of the chain that `seen` is of.
    fn remembered(&self, seen: &Incarnation) -> Option<&Incarnation> {
        self.chains.get(&seen.chain())
    }

    fn let_in(&mut self, run: Incarnation) {
        self.run = Some(run);
        self.chains.insert(run.chain(), run);
        if self.chains.len() > CHAINS_MAX {
            let other = self.chains.keys().copied().find(|chain| *chain != run.chain());
            other.and_then(|other| self.chains.remove(&other));
        }
    }

    fn current(&self) -> Option<&Arc<Link>> {
        let open = || self.links.iter().filter(|link| link.is_open());
        // A link that is given up is better than none: the other one may be agreed on here a moment later than there.
        open().find(|link| !link.is_retired()).or_else(|| open().next())
    }
}

/// What a run is that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// The one that was let in last.
    Known,
    /// A later one, which is now the one.
    Later,
    /// Another device's: it was not noted.
    Duplicate,
}

/// How a peer stands, for `status`.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) state: PeerState,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) rtt: Option<Duration>,
    pub(crate) trouble: Option<String>,
}

/// All peers.
#[derive(Debug)]
pub(crate) struct Table {
    own: NodeId,
    entries: Mutex<BTreeMap<NodeId, Entry>>,
    connected: watch::Sender<Arc<BTreeSet<NodeId>>>,
    /// Counts links that came and went: one may follow another without anybody being disconnected.
    changes: watch::Sender<u64>,
}

impl Table {
    pub(crate) fn new(own: NodeId, runs: impl IntoIterator<Item = (NodeId, Option<Incarnation>)>) -> Self {
        let entry = |(node, run): (NodeId, Option<Incarnation>)| {
            let mut entry = Entry::default();
            if let Some(run) = run {
                entry.let_in(run);
            }
            (node, entry)
        };
        let entries = Mutex::new(runs.into_iter().map(entry).collect());
        Self { own, entries, connected: watch::Sender::new(Arc::default()), changes: watch::Sender::new(0) }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<NodeId, Entry>> {
        // Every change is one assignment: what a panic left behind is whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is connected.
    pub(crate) fn connected(&self) -> watch::Receiver<Arc<BTreeSet<NodeId>>> {
        self.connected.subscribe()
    }

    /// Changes with every link that comes or goes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The link in use.
    pub(crate) fn current(&self, peer: NodeId) -> Option<Arc<Link>> {
        self.entries().get(&peer)?.current().cloned()
    }

    /// The link in use, if streams may be opened on it.
    pub(crate) fn usable(&self, peer: NodeId) -> Option<Arc<Link>> {
        self.current(peer).filter(|link| !link.is_retired())
    }

    /// All links of all peers.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.entries().values().flat_map(|entry| entry.links.iter().cloned()).collect()
    }

    /// Judges the run that `peer` says it is.
    pub(super) fn judge(&self, peer: NodeId, own: Option<&Incarnation>, seen: &Incarnation) -> Run {
        let entries = self.entries();
        let entry = entries.get(&peer);
        let open = entry.and_then(Entry::current).map(|link| link.run);
        let remembered = entry.and_then(|entry| entry.remembered(seen));
        verdict::judge(Runs { own, remembered, open: open.as_ref() }, seen)
    }

    /// The run of `peer` that was let in last.
    pub(super) fn run(&self, peer: NodeId) -> Option<Incarnation> {
        self.entries().get(&peer)?.run
    }

    /// Notes the run that `peer` said it is on a connection which is no link.
    pub(super) fn note(&self, peer: NodeId, run: Incarnation) -> Noted {
        let mut entries = self.entries();
        let entry = entries.entry(peer).or_default();
        match lineage(entry.remembered(&run), &run) {
            Lineage::SameRun if entry.run == Some(run) => Noted::Known,
            Lineage::SameRun | Lineage::Restarted => {
                entry.let_in(run);
                Noted::Later
            }
            Lineage::Duplicate => Noted::Duplicate,
        }
    }

    /// Takes a link that both sides said hello on; `false` when another run was let in in the meantime.
    pub(super) fn add(&self, link: &Arc<Link>) -> bool {
        let mut entries = self.entries();
        let entry = entries.entry(link.peer()).or_default();
        let known = Runs { own: None, remembered: entry.remembered(&link.run), open: None };
        if verdict::judge(known, &link.run) == Run::Duplicate {
            return false;
        }
        entry.let_in(link.run);
        (entry.state, entry.retry_at, entry.trouble) = (None, None, None);
        for old in entry.links.iter().filter(|old| !old.is_alive()) {
            old.set_ended();
        }
        if let Some(old) = entry.current().cloned() {
            let keep = verdict::keep(verdict::is_lower(self.own, link.peer()), &old.standing(), &link.standing());
            tracing::debug!(peer = %link.label, ?keep, "two connections to one device");
            let replaced = || format!("{} connected anew", link.label);
            match keep {
                Keep::Both => entry.links.push(Arc::clone(link)),
                Keep::Old => {
                    link.retire(CloseCode::Redundant);
                    entry.links.push(Arc::clone(link));
                }
                Keep::New => {
                    old.retire(CloseCode::Redundant);
                    entry.links.insert(0, Arc::clone(link));
                }
                Keep::NewOnly => {
                    for old in entry.links.drain(..) {
                        old.close(CloseCode::Redundant, replaced(), "this device connected anew");
                    }
                    entry.links.push(Arc::clone(link));
                }
            }
        } else {
            entry.links.push(Arc::clone(link));
        }
        while entry.links.len() > LINKS_MAX {
            let oldest = entry.links.remove(0);
            oldest.close(CloseCode::Redundant, format!("{} connected too often", link.label), "too many connections");
        }
        for link in &entry.links {
            link.changed.notify_one();
        }
        entry.wake.notify_one();
        self.publish(&entries);
        true
    }

    /// Takes a link out that has ended; `true` when it was the one in use.
    pub(super) fn remove(&self, link: &Arc<Link>, trouble: &str) -> bool {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&link.peer()) else { return false };
        let before = entry.links.len();
        entry.links.retain(|other| !Arc::ptr_eq(other, link));
        let lost = entry.links.len() < before && entry.current().is_none();
        if lost {
            entry.trouble = Some(trouble.to_owned());
        }
        entry.wake.notify_one();
        self.publish(&entries);
        lost
    }

    /// Forgets a peer; gives its links, to be closed.
    pub(super) fn forget(&self, peer: NodeId) -> Vec<Arc<Link>> {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&peer) else { return Vec::new() };
        let links = std::mem::take(&mut entry.links);
        entry.wake.notify_one();
        // Its run is kept: the same identity may be let in again, and must not be an older run then. Its task takes the
        // rest along.
        self.publish(&entries);
        links
    }

    fn publish(&self, entries: &BTreeMap<NodeId, Entry>) {
        let now: BTreeSet<NodeId> =
            entries.iter().filter(|(_, entry)| entry.current().is_some()).map(|(node, _)| *node).collect();
        self.connected.send_if_modified(|before| {
            let changed = **before != now;
            if changed {
                *before = Arc::new(now);
            }
            changed
        });
        self.changes.send_modify(|count| *count += 1);
    }

    /// Tells the device that is connected that another one uses its identity.
    pub(super) fn warn(&self, peer: NodeId, other: Option<SocketAddr>) {
        if let Some(link) = self.current(peer) {
            link.say(Word::Duplicate(other));
        }
    }

    /// What wakes a peer's task.
    pub(super) fn wake(&self, peer: NodeId) -> Arc<Notify> {
        Arc::clone(&self.entries().entry(peer).or_default().wake)
    }

    /// Wakes a peer's task, if it has one.
    pub(super) fn poke(&self, peer: NodeId) {
        if let Some(entry) = self.entries().get(&peer) {
            entry.wake.notify_one();
        }
    }

    /// Wakes the tasks of all peers.
    pub(super) fn poke_all(&self) {
        for entry in self.entries().values() {
            entry.wake.notify_one();
        }
    }

    /// Whether the caller is the one to start a task for `peer`.
    pub(super) fn take_care(&self, peer: NodeId) -> bool {
        !std::mem::replace(&mut self.entries().entry(peer).or_default().tended, true)
    }

    /// The peer's task ends.
    pub(super) fn leave(&self, peer: NodeId) {
        if let Some(entry) = self.entries().get_mut(&peer) {
            (entry.tended, entry.state, entry.retry_at) = (false, None, None);
        }
    }

    /// Whether somebody waits for a connection.
    pub(super) fn is_demanded(&self, peer: NodeId) -> bool {
        self.entries().get(&peer).is_some_and(|entry| entry.demand > 0)
    }

    /// Says that somebody waits for a connection, until the answer is dropped.
    pub(crate) fn demand(self: &Arc<Self>, peer: NodeId) -> Demand {
        let mut entries = self.entries();
        let entry = entries.entry(peer).or_default();
        entry.demand += 1;
        entry.wake.notify_one();
        drop(entries);
        Demand { table: Arc::clone(self), peer }
    }

    /// What a peer's task does without a connection.
    pub(super) fn set_state(&self, peer: NodeId, state: PeerState, trouble: Option<String>) {
        let mut entries = self.entries();
        let entry = entries.entry(peer).or_default();
        entry.retry_at = match state {
            PeerState::Waiting { retry_in_ms } => Some(Instant::now() + Duration::from_millis(retry_in_ms)),
            _ => None,
        };
        entry.state = Some(state);
        if trouble.is_some() {
            entry.trouble = trouble;
        }
    }

    /// What went wrong last with a peer that is not connected.
    pub(crate) fn trouble(&self, peer: NodeId) -> Option<String> {
        self.entries().get(&peer)?.trouble.clone()
    }

    /// How a peer stands.
    pub(crate) fn standing(&self, peer: NodeId) -> Standing {
        let entries = self.entries();
        let entry = entries.get(&peer);
        if let Some(link) = entry.and_then(Entry::current) {
            let (address, rtt) = (Some(link.connection.address()), Some(link.connection.rtt()));
            return Standing { state: PeerState::Connected, address, rtt, trouble: None };
        }
        let state = entry.and_then(|entry| Some((entry.state?, entry.retry_at)));
        let state = match state {
            Some((PeerState::Waiting { .. }, Some(at))) => {
                let left = at.saturating_duration_since(Instant::now()).as_millis();
                PeerState::Waiting { retry_in_ms: u64::try_from(left).unwrap_or(u64::MAX) }
            }
            Some((state, _)) => state,
            None => PeerState::Idle,
        };
        let trouble = entry.and_then(|entry| entry.trouble.clone());
        Standing { state, address: None, rtt: None, trouble }
    }
}

/// Somebody waits for a connection to a peer.
#[derive(Debug)]
pub(crate) struct Demand {
    table: Arc<Table>,
    peer: NodeId,
}

impl Drop for Demand {
    fn drop(&mut self) {
        if let Some(entry) = self.table.entries().get_mut(&self.peer) {
            entry.demand -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f15_an_original_is_known_again_after_a_copy_of_it_was_let_in_and_an_older_state_of_it_is_not() {
        let (own, peer) = (NodeId::from([1; 32]), NodeId::from([2; 32]));
        let older = Incarnation::first([1; 16]);
        let original = older.next([2; 16]);
        let copy = original.anew([3; 16]);
        let table = Table::new(own, [(peer, Some(original))]);
        assert_eq!(table.note(peer, copy), Noted::Later);
        assert_eq!(table.run(peer), Some(copy));
        assert_eq!(table.note(peer, original), Noted::Later, "the copy is gone, and the original back");
        assert_eq!((table.note(peer, original), table.run(peer)), (Noted::Known, Some(original)));
        assert_eq!(table.note(peer, original.next([4; 16])), Noted::Later);
        assert_eq!(table.note(peer, original), Noted::Duplicate);
        assert_eq!(table.note(peer, older.anew([5; 16])), Noted::Later, "the older state was put back again");
        for n in 10..20 {
            let last = table.run(peer).unwrap();
            assert_eq!(table.note(peer, last.anew([n; 16])), Noted::Later);
        }
        assert_eq!(table.entries().get(&peer).unwrap().chains.len(), CHAINS_MAX);
    }
}
