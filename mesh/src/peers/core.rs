//! What every task of the mesh shares: who we are, whom we trust, the endpoint, the table and the address book.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{raft::Raft, table::Table};
use crate::{
    api::{Handler, MeshConfig, Remembered},
    discovery::{AddressBook, HostPort, Source, local_addresses},
    identity::{Admission, Incarnation, NodeId, Roster},
    runtime::{self, Spawner},
    transport::{Endpoint, SetupError},
    wire::{ADDRESSES_MAX, Hello, PROTOCOL, PROTOCOL_MIN},
};

/// Shared by all tasks of the mesh.
pub(crate) struct Core {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) build: String,
    pub(crate) run: Incarnation,
    pub(crate) endpoint: Endpoint,
    pub(crate) table: Arc<Table>,
    /// The connections of the consensus engine.
    pub(super) raft: Raft,
    /// Whoever could be broker is out of reach: any member may know more.
    lost: AtomicBool,
    /// This device or another one was called no member: one of the two has an old roster.
    pub(crate) doubt: Notify,
    /// Starts tasks on the mesh's own runtime, where QUIC's belong.
    pub(super) spawner: Spawner,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) stopping: CancellationToken,
    roster: watch::Receiver<Arc<Roster>>,
    book: Mutex<AddressBook>,
    /// The address book's clock begins here.
    started: Instant,
}

impl Core {
    /// Binds the endpoint; on the mesh's thread.
    pub(crate) fn new(
        config: &MeshConfig,
        roster: watch::Receiver<Arc<Roster>>,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, SetupError> {
        let node = config.identity.node_id();
        let endpoint = Endpoint::bind(&config.identity, config.listen, true, config.sockets.as_deref())?;
        let place = |text: &String| {
            let place = text.parse::<HostPort>();
            place.inspect_err(|error| tracing::warn!(%error, "an address to connect to is passed over")).ok()
        };
        let mut book = AddressBook::new(config.connect.iter().filter_map(place).collect());
        for (peer, remembered) in &config.remembered {
            book.learned(*peer, Source::Remembered, &remembered.addresses);
        }
        let runs = config.remembered.iter().map(|(peer, remembered)| (*peer, remembered.incarnation));
        Ok(Self {
            node,
            name: config.name.clone(),
            build: config.build.clone(),
            run: config.incarnation,
            endpoint,
            table: Arc::new(Table::new(node, runs)),
            raft: Raft::default(),
            lost: AtomicBool::new(false),
            doubt: Notify::new(),
            spawner: Spawner::current(),
            handler,
            stopping: CancellationToken::new(),
            roster,
            book: Mutex::new(book),
            started: Instant::now(),
        })
    }

    /// The roster as it is now.
    pub(crate) fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.borrow())
    }

    /// The roster, to be waited for.
    pub(crate) fn rosters(&self) -> watch::Receiver<Arc<Roster>> {
        self.roster.clone()
    }

    /// What the roster says of `peer`.
    pub(crate) fn admission(&self, peer: &NodeId) -> Admission {
        self.roster.borrow().admission(peer)
    }

    /// What people call `peer`.
    pub(crate) fn label(&self, peer: &NodeId) -> String {
        self.roster.borrow().label(peer)
    }

    /// Whether a connection to `peer` is always kept: between every member and whoever is broker or can become it, so
    /// that a change of the broker finds it there. To everybody when none of these is reached.
    pub(super) fn is_kept(&self, peer: &NodeId) -> bool {
        let roster = self.roster.borrow();
        let central = || roster.is_central(peer) || roster.is_central(&self.node);
        roster.members.contains_key(peer) && (self.lost.load(SeqCst) || central())
    }

    /// Says whether whoever could be broker is out of reach; gives whether that is new.
    pub(super) fn set_lost(&self, lost: bool) -> bool {
        self.lost.swap(lost, SeqCst) != lost
    }

    /// The address book.
    pub(crate) fn book(&self) -> MutexGuard<'_, AddressBook> {
        // Every change is whole before anything can panic.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address book's clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Notes addresses, and dials at once when one is new.
    pub(crate) fn learned(&self, peer: NodeId, source: Source, addresses: &[SocketAddr]) {
        if peer != self.node && self.book().learned(peer, source, addresses) {
            self.table.poke(peer);
            self.raft.poke(&peer);
        }
    }

    /// Where `peer` can be dialled from this socket, best guess first.
    pub(crate) fn candidates(&self, peer: &NodeId) -> Vec<SocketAddr> {
        let mut candidates = self.book().candidates(peer, self.now());
        candidates.retain(|address| self.endpoint.reaches(*address));
        candidates
    }

    /// The same without this device's own addresses: those of containers and the like are the same on many devices, and
    /// there it would meet itself.
    pub(super) fn elsewhere(&self, peer: &NodeId) -> Vec<SocketAddr> {
        let (mut candidates, own) = (self.candidates(peer), self.own_addresses());
        candidates.retain(|address| !own.contains(address));
        candidates
    }

    /// Where this device can be dialled.
    pub(crate) fn own_addresses(&self) -> Vec<SocketAddr> {
        let bound = self.endpoint.address();
        if !bound.ip().is_unspecified() {
            return vec![bound];
        }
        let mut addresses = local_addresses(bound.port());
        addresses.retain(|address| self.endpoint.reaches(*address));
        addresses.truncate(ADDRESSES_MAX);
        addresses
    }

    /// Where members can be dialled, this device among them, for `to`.
    pub(crate) fn known_addresses(&self, to: Option<NodeId>) -> Vec<(NodeId, Vec<SocketAddr>)> {
        self.addresses_for(to.and_then(|to| self.table.standing(to).address))
    }

    /// The same, for whoever is at `address`, which may be no member yet.
    pub(crate) fn addresses_for(&self, address: Option<SocketAddr>) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let beside = address.is_some_and(|address| address.ip().is_loopback());
        let mut known = self.book().worth_telling(self.now(), beside);
        known.push((self.node, self.own_addresses()));
        known
    }

    /// What this device says first.
    pub(super) fn hello(&self) -> Hello {
        let roster = self.roster();
        Hello {
            protocol: PROTOCOL,
            protocol_min: PROTOCOL_MIN,
            features: 0,
            build: self.build.clone(),
            name: self.name.clone(),
            mesh: roster.mesh,
            epoch: roster.epoch,
            roster_version: roster.version,
            incarnation: self.run,
            addresses: self.own_addresses(),
            ext: Vec::new(),
        }
    }

    /// Has the program above keep what is known of `peer`.
    pub(super) fn remember(&self, peer: NodeId, run: Incarnation) {
        let addresses = self.book().worth_remembering(&peer, self.now());
        self.handler.remember(peer, Remembered { addresses, incarnation: Some(run) });
    }
}

/// From 0 to 1. Without randomness the middle: it only spreads devices that dial at the same time.
pub(super) fn chance() -> f64 {
    runtime::random().map_or(0.5, |bytes| f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX))
}
