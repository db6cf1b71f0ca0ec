//! The mDNS driver: announces this device and hands on whom it hears, over `mdns-sd` and its thread. What an
//! announcement means is decided in `neighbours`, which interfaces it goes over in `interfaces`.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr, SocketAddrV6},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use data_encoding::HEXLOWER;
use mdns_sd::{
    DaemonEvent, IfKind, IfPredicate, Receiver, RecvTimeoutError, ResolvedService, ScopedIp, ServiceDaemon,
    ServiceEvent, ServiceInfo,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::mpsc;

use super::{
    interfaces::{Use, is_link_local, is_unicast, uses},
    local,
    neighbours::{Announcement, Neighbours, Sighting, mesh_tag},
};
use crate::identity::{MeshId, NodeId};

/// The service (RFC 6763).
const SERVICE: &str = "_chappie._udp.local.";
/// How often interfaces are looked at, in seconds: an address change heals well within 30 s.
const INTERFACES_EVERY_S: u32 = 3;
/// How long a list of interfaces is good for: one look asks once for each interface.
const INTERFACES_GOOD_FOR: Duration = Duration::from_millis(500);
/// How often the thread looks up when nothing is heard, for what the daemon reports.
const IDLE: Duration = Duration::from_secs(5);
/// How soon sightings that found no room are handed on again.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a stop waits for the goodbye, and again for the daemon.
const STOP_WAIT: Duration = Duration::from_millis(500);

/// Why there is no discovery.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The daemon could not be started.
    #[error("cannot start mDNS: {0}; devices are still found by --connect and by addresses that are known")]
    Daemon(#[from] mdns_sd::Error),
    /// A thread could not be started, or the system gave no randomness.
    #[error("cannot start mDNS: the system gave no {0}; devices are still found by --connect and known addresses")]
    System(&'static str),
}

/// Announces this device on the link and hands on the sightings of others, until it is stopped or dropped.
pub struct Mdns {
    daemon: ServiceDaemon,
    node: NodeId,
    port: u16,
    /// The full name under which this device is announced now.
    announced: Mutex<String>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mdns {
    /// Asks who is there, and says that `node` of `mesh` is at `port`. Sightings go to `sightings`; while it is full the
    /// latest of each device waits. It is an error only when the system refuses: a device without a network that
    /// carries multicast hears nothing until it has one.
    ///
    /// # Errors
    /// When there is no thread, no randomness, or no descriptor for it.
    pub fn start(
        node: NodeId,
        mesh: MeshId,
        port: u16,
        sightings: mpsc::Sender<Sighting>,
    ) -> Result<Self, DiscoveryError> {
        let daemon = ServiceDaemon::new()?;
        // Whatever fails from here on, dropping this ends the daemon.
        let mut mdns = Self {
            daemon: daemon.clone(),
            node,
            port,
            announced: Mutex::new(String::new()),
            shared: Arc::new(Shared::new(node, mesh, sightings)),
            thread: None,
        };
        daemon.set_ip_check_interval(INTERFACES_EVERY_S)?;
        daemon.disable_interface(IfKind::Predicate(unannounced()))?;
        let reports = daemon.monitor()?;
        let heard = daemon.browse(SERVICE)?;
        mdns.announce(mesh)?;
        let shared = Arc::clone(&mdns.shared);
        let listen = move || listen(&daemon, heard, &reports, &shared);
        let thread = thread::Builder::new().name("mdns-sightings".to_owned()).spawn(listen);
        mdns.thread = Some(thread.map_err(|_| DiscoveryError::System("thread"))?);
        Ok(mdns)
    }

    /// This device belongs to `mesh` now: it is announced as that, and whoever of it was heard is sighted.
    pub fn retag(&self, mesh: MeshId) {
        if let Err(error) = self.announce(mesh) {
            tracing::warn!(%error, "mDNS still announces the mesh that this device left");
        }
        let mut state = self.shared.lock();
        let sightings = state.neighbours.retag(mesh);
        // What waits is of the mesh that was left.
        state.pending.clear();
        state.note(sightings);
        self.shared.hand_on(&mut state);
    }

    /// Says goodbye and ends the threads. Takes up to a second: not for a thread that runs tasks.
    pub fn stop(mut self) {
        self.end(STOP_WAIT);
    }

    /// Announces under a new name, then takes the old one back: a name that changed its contents would be believed only
    /// where the change was heard.
    fn announce(&self, mesh: MeshId) -> Result<(), DiscoveryError> {
        let mut nonce = [0; 4];
        SystemRandom::new().fill(&mut nonce).map_err(|_| DiscoveryError::System("randomness"))?;
        let label = format!("{}-{}", self.node.short().to_ascii_lowercase(), HEXLOWER.encode(&nonce));
        let txt = Announcement { node: self.node, tag: mesh_tag(mesh) }.txt();
        let mut info =
            ServiceInfo::new(SERVICE, &label, &format!("{label}.local."), "", self.port, &txt[..])?.enable_addr_auto();
        // The name is random: asking whether somebody has it would only take a second.
        info.set_requires_probe(false);
        let name = info.get_fullname().to_owned();
        self.daemon.register(info)?;
        let old = std::mem::replace(&mut *locked(&self.announced), name);
        if !old.is_empty() {
            self.daemon.unregister(&old)?;
        }
        Ok(())
    }

    fn end(&mut self, wait: Duration) {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Ok(goodbye) = self.daemon.unregister(&locked(&self.announced)) {
            // Late or not, the daemon is told to end.
            let _ = goodbye.recv_timeout(wait);
        }
        let Ok(ended) = self.daemon.shutdown() else { return };
        // With the daemon gone the thread hears so and ends.
        if !wait.is_zero() && ended.recv_timeout(wait).is_ok() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl Drop for Mdns {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// What the thread and the handle share.
struct Shared {
    stopping: AtomicBool,
    state: Mutex<State>,
    sightings: mpsc::Sender<Sighting>,
}

struct State {
    neighbours: Neighbours,
    /// The latest of each device that found no room yet; as many as there are neighbours at most.
    pending: BTreeMap<NodeId, Sighting>,
}

impl State {
    fn note(&mut self, sightings: impl IntoIterator<Item = Sighting>) {
        self.pending.extend(sightings.into_iter().map(|sighting| (sighting.node(), sighting)));
    }
}

impl Shared {
    fn new(node: NodeId, mesh: MeshId, sightings: mpsc::Sender<Sighting>) -> Self {
        let state = State { neighbours: Neighbours::new(node, mesh), pending: BTreeMap::new() };
        Self { stopping: AtomicBool::new(false), state: Mutex::new(state), sightings }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Hands on what waits, as far as there is room.
    fn hand_on(&self, state: &mut State) {
        while let Some((node, sighting)) = state.pending.pop_first() {
            match self.sightings.try_send(sighting) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(sighting)) => {
                    state.pending.insert(node, sighting);
                    return;
                }
                // Nobody listens any more.
                Err(mpsc::error::TrySendError::Closed(_)) => state.pending.clear(),
            }
        }
    }
}

/// Nothing that is done under these locks can be left half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The interfaces that carry no announcement.
fn unannounced() -> IfPredicate {
    let known: Mutex<Option<(Instant, BTreeMap<String, Use>)>> = Mutex::new(None);
    IfPredicate::new(move |interface| {
        let mut known = locked(&known);
        if known.as_ref().is_none_or(|(at, _)| at.elapsed() > INTERFACES_GOOD_FOR) {
            *known = Some((Instant::now(), uses(&local::interfaces())));
        }
        let found = known.as_ref().and_then(|(_, uses)| uses.get(&interface.name));
        interface.is_loopback() || found != Some(&Use::Announced)
    })
}

/// The thread: takes what the daemon hears until the daemon is gone.
fn listen(daemon: &ServiceDaemon, mut heard: Receiver<ServiceEvent>, reports: &Receiver<DaemonEvent>, shared: &Shared) {
    let mut reported = HashMap::new();
    let mut wait = IDLE;
    loop {
        match heard.recv_timeout(wait) {
            Ok(event) => take(event, &mut shared.lock()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if shared.stopping.load(Ordering::SeqCst) => return,
            // The daemon drops a listener that is a thousand events behind. Asking anew brings all of them again.
            Err(RecvTimeoutError::Disconnected) => match daemon.browse(SERVICE) {
                Ok(anew) => heard = anew,
                Err(error) => {
                    tracing::warn!(%error, "mDNS ended; devices are still found by --connect and known addresses");
                    return;
                }
            },
        }
        let mut state = shared.lock();
        shared.hand_on(&mut state);
        wait = if state.pending.is_empty() { IDLE } else { AGAIN };
        drop(state);
        report(reports, &mut reported);
    }
}

fn take(event: ServiceEvent, state: &mut State) {
    match event {
        ServiceEvent::ServiceResolved(service) => {
            if let Some(announcement) = Announcement::read(|key| service.get_property_val_str(key)) {
                let sightings = state.neighbours.resolved(&service.fullname, announcement, addresses(&service));
                state.note(sightings);
            }
        }
        ServiceEvent::ServiceRemoved(_, name) => {
            let sighting = state.neighbours.removed(&name);
            state.note(sighting);
        }
        _ => {}
    }
}

/// Where a service can be dialled from here, in a fixed order. An address of one link needs the interface on which it was
/// heard; loopback addresses are another device's own.
fn addresses(service: &ResolvedService) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = service
        .addresses
        .iter()
        .filter(|ip| !ip.is_loopback() && is_unicast(ip.to_ip_addr()))
        .filter_map(|ip| match (ip.to_ip_addr(), ip) {
            (IpAddr::V6(v6), ScopedIp::V6(scoped)) if is_link_local(v6) => {
                let scope = Some(scoped.scope_id().index).filter(|scope| *scope != 0)?;
                Some(SocketAddrV6::new(v6, service.port, 0, scope).into())
            }
            (ip, _) => Some(SocketAddr::new(ip, service.port)),
        })
        .collect();
    addresses.sort_unstable();
    addresses
}

/// How many different troubles are told before one is told again.
const REPORTS_MAX: usize = 64;
/// How long one trouble is not told again.
const REPORT_EVERY: Duration = Duration::from_secs(600);

/// Tells what the daemon has trouble with, each trouble once in a while.
fn report(reports: &Receiver<DaemonEvent>, reported: &mut HashMap<String, Instant>) {
    for event in reports.try_iter() {
        let DaemonEvent::Error(error) = event else { continue };
        let text = error.to_string();
        if reported.len() >= REPORTS_MAX {
            reported.clear();
        }
        if reported.get(&text).is_none_or(|at| at.elapsed() > REPORT_EVERY) {
            tracing::warn!(error = text, "mDNS");
            reported.insert(text, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
