//! [`Mesh`]: the handle of a running mesh. The mesh runs on a thread of its own, because QUIC is quickest on one, and in a
//! simulation with everything else; a stream is opened and used on the caller's.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    api::{Handler, MeshConfig, MeshError, OpenError, PeerStatus},
    discovery::Source,
    identity::{Admission, NodeId, Roster},
    peers::{Core, Standing, ask, follow_roster, keep_fresh, sight},
    router, runtime,
    transport::{Ended, SetupError, Stream},
    wire::{CloseCode, StreamKind},
};

/// How long an orderly stop waits until the others know.
const STOPPED_WITHIN: Duration = Duration::from_secs(2);
/// How long a stream waits for room on a connection, at least.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// A running mesh. Clones are the same one; with the last clone it stops.
#[derive(Clone)]
pub struct Mesh {
    core: Arc<Core>,
    stopped: CancellationToken,
    _stops_when_dropped: Arc<DropGuard>,
    #[cfg(test)]
    killed: CancellationToken,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh").field("node", &self.core.node).finish_non_exhaustive()
    }
}

impl Mesh {
    /// Binds the address and starts to answer, to look for the others and to dial them. The roster says who they are,
    /// and is followed.
    ///
    /// # Errors
    /// When the address cannot be had, or the system refuses a thread.
    pub async fn start(
        config: MeshConfig,
        roster: watch::Receiver<Arc<Roster>>,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, MeshError> {
        let (ready, started) = oneshot::channel();
        let (stopped, killed) = (CancellationToken::new(), CancellationToken::new());
        let thread = Thread { config, roster, handler, stopped: stopped.clone(), killed: killed.clone() };
        if runtime::is_simulated() {
            runtime::spawn(thread.run_here(ready));
        } else {
            std::thread::Builder::new()
                .name("mesh".to_owned())
                .spawn(move || thread.run(ready))
                .map_err(|error| MeshError::Start(error.to_string()))?;
        }
        let core = started.await.map_err(|_| MeshError::Start("its thread ended".to_owned()))??;
        let guard = Arc::new(core.stopping.clone().drop_guard());
        Ok(Self {
            core,
            stopped,
            _stops_when_dropped: guard,
            #[cfg(test)]
            killed,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.core.endpoint.address()
    }

    /// Where this device can be dialled, as far as it knows; for invites.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.core.own_addresses()
    }

    /// All members of the roster but this device.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let roster = self.core.roster();
        let others = roster.members.iter().filter(|(node, _)| **node != self.core.node);
        others
            .map(|(node, member)| {
                let Standing { state, address, rtt, trouble } = self.core.table.standing(*node);
                let mut addresses = self.core.candidates(node);
                if let Some(address) = address {
                    addresses.retain(|other| *other != address);
                    addresses.insert(0, address);
                }
                PeerStatus { node: *node, name: member.name.clone(), state, addresses, rtt, trouble }
            })
            .collect()
    }

    /// Who is connected.
    #[must_use]
    pub fn connected(&self) -> watch::Receiver<Arc<BTreeSet<NodeId>>> {
        self.core.table.connected()
    }

    /// Opens a stream. Without a connection it is dialled and waited for, up to `wait`; zero takes only what is
    /// connected. The other device learns of the stream with the first message.
    ///
    /// # Errors
    /// When there is no connection within the time, or no room for a stream.
    pub async fn open(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> Result<Stream, OpenError> {
        let until = Instant::now() + wait;
        if let Some(stream) = self.open_now(peer, kind, wait).await? {
            return Ok(stream);
        }
        if self.core.admission(&peer) != Admission::Member || peer == self.core.node {
            return Err(OpenError::NotMember(self.core.label(&peer)));
        }
        let mut changes = self.core.table.changes();
        let _demand = self.core.table.demand(peer);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(stream) = self.open_now(peer, kind, left).await? {
                return Ok(stream);
            }
            let waited = tokio::time::timeout(left, changes.changed());
            tokio::select! {
                biased;
                changed = waited => if !matches!(changed, Ok(Ok(()))) { return Err(self.not_connected(peer)) },
                () = self.core.stopping.cancelled() => return Err(OpenError::Stopped),
            }
        }
    }

    /// A stream of a connection that is there. A warm connection is used without a word to the mesh's thread.
    async fn open_now(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> Result<Option<Stream>, OpenError> {
        // A link may be given up, or end, between the look and the opening: then there is mostly another.
        for _ in 0..3 {
            let Some(link) = self.core.table.usable(peer) else { return Ok(None) };
            match tokio::time::timeout(wait.max(ROOM_WITHIN), link.open(kind)).await {
                Ok(Ok(Some(stream))) => return Ok(Some(stream)),
                Ok(Ok(None)) => {}
                Ok(Err(Ended::Here)) if self.core.stopping.is_cancelled() => return Err(OpenError::Stopped),
                Ok(Err(_)) => return Ok(None),
                Err(_) => return Err(OpenError::Busy(self.core.label(&peer))),
            }
        }
        Ok(None)
    }

    /// Asks a member's consensus engine, over a connection of its own that nothing else delays (failure rule F22). It is
    /// dialled when there is none, all within `within`. A question may arrive twice when the connection breaks in the
    /// middle.
    ///
    /// # Errors
    /// When the device is no member, is not reached, or gives no answer in time. It may have acted on the question.
    pub async fn ask_raft(&self, peer: NodeId, question: Vec<u8>, within: Duration) -> Result<Vec<u8>, OpenError> {
        ask(&self.core, peer, question, within).await
    }

    fn not_connected(&self, peer: NodeId) -> OpenError {
        if self.core.stopping.is_cancelled() {
            return OpenError::Stopped;
        }
        OpenError::NotConnected { label: self.core.label(&peer), trouble: self.core.table.trouble(peer) }
    }

    /// Notes where members can be dialled, as another member said.
    pub fn learn(&self, addresses: Vec<(NodeId, Vec<SocketAddr>)>) {
        for (node, addresses) in addresses {
            self.core.learned(node, Source::Roster, &addresses);
        }
    }

    /// Where members can be dialled, this device among them, to tell `to`: a member on this machine can use its loopback
    /// addresses, nobody else can.
    #[must_use]
    pub fn known_addresses(&self, to: Option<NodeId>) -> Vec<(NodeId, Vec<SocketAddr>)> {
        self.core.known_addresses(to)
    }

    /// Stops in order: the others are told. Takes at most two seconds.
    pub async fn stop(&self) {
        self.core.stopping.cancel();
        // Late or not, nothing more can be done here.
        let _ = tokio::time::timeout(STOPPED_WITHIN, self.stopped.cancelled()).await;
    }

    /// Ends at once, as a killed process does: nobody is told.
    #[cfg(test)]
    pub(crate) async fn kill(&self) {
        self.killed.cancel();
        self.stopped.cancelled().await;
    }

    /// What the tests look into.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

/// What the mesh's thread starts with.
struct Thread {
    config: MeshConfig,
    roster: watch::Receiver<Arc<Roster>>,
    handler: Arc<dyn Handler>,
    stopped: CancellationToken,
    killed: CancellationToken,
}

impl Thread {
    fn run(self, ready: oneshot::Sender<Result<Arc<Core>, MeshError>>) {
        let stopped = self.stopped.clone();
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(self.serve(ready)),
            // The caller may be gone; then nobody wants to know.
            Err(error) => drop(ready.send(Err(MeshError::Start(error.to_string())))),
        }
        // After the runtime, and every task with it, is gone.
        stopped.cancel();
    }

    /// The same on the runtime of a simulation, where no thread may be.
    async fn run_here(self, ready: oneshot::Sender<Result<Arc<Core>, MeshError>>) {
        let stopped = self.stopped.clone();
        self.serve(ready).await;
        stopped.cancel();
    }

    async fn serve(self, ready: oneshot::Sender<Result<Arc<Core>, MeshError>>) {
        let core = match Core::new(&self.config, self.roster, self.handler) {
            Ok(core) => Arc::new(core),
            Err(SetupError::Bind { address, cause }) => {
                return drop(ready.send(Err(MeshError::Listen { address, cause })));
            }
            Err(error) => return drop(ready.send(Err(MeshError::Start(error.to_string())))),
        };
        runtime::spawn(router::answer(Arc::clone(&core)));
        runtime::spawn(follow_roster(Arc::clone(&core)));
        runtime::spawn(keep_fresh(Arc::clone(&core)));
        let sights = self.config.mdns.then(|| runtime::spawn(sight(Arc::clone(&core))));
        if ready.send(Ok(Arc::clone(&core))).is_err() {
            return;
        }
        tokio::select! {
            biased;
            () = core.stopping.cancelled() => {}
            // Only tests do this.
            () = self.killed.cancelled() => return,
        }
        for link in core.table.links() {
            link.close(CloseCode::Stopping, "this device is stopping".to_owned(), "the device is stopping");
        }
        core.endpoint.close(CloseCode::Stopping, "the device is stopping");
        let told = async {
            core.endpoint.drained().await;
            if let Some(sights) = sights {
                // An error is a panic, which its thread has printed.
                drop(sights.await);
            }
        };
        // Late or not, the program ends.
        let _ = tokio::time::timeout(STOPPED_WITHIN, told).await;
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod raft;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
