//! The consensus engine's own connections (ALPN `chappie-raft/1`, failure rule F22): who asks dials, one connection for
//! each direction, and each question has a stream of its own. What is asked is the engine's business.

mod answer;
mod ask;
mod dial;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

pub(crate) use self::{answer::take_asker, ask::ask};
use crate::{
    identity::{Incarnation, NodeId},
    transport::Connection,
    wire::CloseCode,
};

/// A connection on which nothing came for this long while something was asked is dialled anew beside it: an election
/// does not wait until QUIC gives it up.
const SILENT_MIN: Duration = Duration::from_millis(250);
/// And on slow ways for as many round trips.
const SILENT_ROUND_TRIPS: u32 = 4;

/// The connections to and from all members.
#[derive(Debug, Default)]
pub(crate) struct Raft(Mutex<BTreeMap<NodeId, Arc<Peer>>>);

impl Raft {
    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Peer>>> {
        // Every change is one call: what a panic left behind is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, node: NodeId) -> Arc<Peer> {
        Arc::clone(self.peers().entry(node).or_default())
    }

    /// Something became known of `node`: a dial in vain begins anew.
    pub(super) fn poke(&self, node: &NodeId) {
        if let Some(peer) = self.peers().get(node) {
            peer.wake.notify_one();
        }
    }

    /// A connection that `node` dialled has ended.
    fn left(&self, node: &NodeId, connection: &Connection) {
        let Some(peer) = self.peers().get(node).cloned() else { return };
        let mut state = peer.state();
        if state.taken.as_ref().is_some_and(|taken| taken.is(connection)) {
            state.taken = None;
        }
    }

    /// Closes what there is to and from a device that is no member any more.
    pub(super) fn forget(&self, node: &NodeId, code: CloseCode, told: &str) {
        let Some(peer) = self.peers().remove(node) else { return };
        let taken = peer.state().taken.take();
        let dialled = peer.ready.send_replace(None).map(|dialled| dialled.connection.clone());
        for connection in taken.into_iter().chain(dialled) {
            connection.close(code, told);
        }
        peer.wake.notify_one();
    }
}

/// What there is to and from one member.
#[derive(Debug, Default)]
struct Peer {
    /// The connection that this device dialled and asks on.
    ready: watch::Sender<Option<Arc<Dialled>>>,
    state: Mutex<State>,
    /// Has a dial look at the addresses again.
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a task dials.
    dialling: bool,
    /// Questions that wait for their answer, or for a connection.
    waiting: usize,
    /// When it was last asked something.
    asked: Option<Instant>,
    /// What went wrong last.
    trouble: Option<String>,
    /// The connection that the other side dialled and asks on.
    taken: Option<Connection>,
}

impl Peer {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is of no more use.
    fn lost(&self, lost: &Arc<Dialled>, trouble: String) {
        let was_ready = self.ready.send_if_modified(|ready| {
            let same = ready.as_ref().is_some_and(|ready| Arc::ptr_eq(ready, lost));
            if same {
                *ready = None;
            }
            same
        });
        if was_ready {
            self.state().trouble = Some(trouble);
        }
    }
}

/// A connection to a member that both sides said hello on.
#[derive(Debug)]
struct Dialled {
    connection: Connection,
    /// The other side's run.
    run: Incarnation,
    quiet: Mutex<Quiet>,
}

/// How long nothing came.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    /// Packets that had come.
    heard: u64,
    /// No more have come since this question; `None`: the last one was answered.
    since: Option<Instant>,
}

impl Dialled {
    fn new(connection: Connection, run: Incarnation) -> Self {
        Self { connection, run, quiet: Mutex::new(Quiet { heard: 0, since: None }) }
    }

    fn quiet(&self) -> MutexGuard<'_, Quiet> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is about to be asked. Gives whether nothing came for so long that another connection should be sought.
    fn is_silent(&self) -> bool {
        let heard = self.connection.packets_received();
        let limit = SILENT_MIN.max(self.connection.rtt() * SILENT_ROUND_TRIPS);
        let mut quiet = self.quiet();
        match quiet.since {
            Some(since) if quiet.heard == heard => since.elapsed() >= limit,
            _ => {
                *quiet = Quiet { heard, since: Some(Instant::now()) };
                false
            }
        }
    }

    /// A question was answered.
    fn answered(&self) {
        self.quiet().since = None;
    }
}
