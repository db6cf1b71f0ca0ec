//! A network in memory: datagrams are lost, delayed, overtake each other, come twice; a way between two addresses can be
//! cut in one direction or both. Everything is drawn from the seed and happens in tokio's time, whose timers have steps of
//! one millisecond. Addresses are what tells devices apart: a device is all sockets of one IP address.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    seed::{PerMille, Rng, Seed},
    trace::Trace,
};

mod socket;

pub use socket::Socket;

/// What a socket that nobody reads keeps; what comes beyond it is lost, as in a system's receive buffer.
const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Where ports that nobody named begin.
const EPHEMERAL: u16 = 49_152;

/// How datagrams fare on a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// How many are lost.
    pub loss: PerMille,
    /// How many come twice.
    pub twice: PerMille,
    /// How long each is under way at least.
    pub latency: Duration,
    /// Up to how much longer, each for itself: what reorders them.
    pub jitter: Duration,
    /// The longest that passes; a longer one is lost without a word.
    pub longest: usize,
}

impl Rule {
    /// A quiet LAN.
    pub const CALM: Self = Self {
        loss: PerMille(0),
        twice: PerMille(0),
        latency: Duration::from_millis(1),
        jitter: Duration::from_millis(1),
        longest: 1472,
    };
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams sent.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Came twice.
    pub twice: u64,
    /// Lost because the way was cut or a device was off.
    pub cut: u64,
}

/// The network.
#[derive(Clone, Debug)]
pub struct Net(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something nearer may be under way.
    sent: Notify,
    trace: Trace,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    rule: Rule,
    ways: BTreeMap<(IpAddr, IpAddr), Rule>,
    cut: BTreeSet<(IpAddr, IpAddr)>,
    off: BTreeSet<IpAddr>,
    stalled: BTreeMap<IpAddr, Instant>,
    ports: BTreeMap<SocketAddr, Port>,
    wire: BinaryHeap<Reverse<Datagram>>,
    serial: u64,
    counts: Counts,
}

/// A bound address.
#[derive(Debug, Default)]
struct Port {
    /// Which socket it is: one that was unplugged may still be held.
    serial: u64,
    queue: VecDeque<(SocketAddr, Vec<u8>)>,
    bytes: usize,
    reader: Option<Waker>,
}

#[derive(Debug)]
struct Datagram {
    at: Instant,
    serial: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl Datagram {
    const fn order(&self) -> (Instant, u64) {
        (self.at, self.serial)
    }
}

impl PartialEq for Datagram {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Datagram {}

impl PartialOrd for Datagram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Datagram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl Net {
    /// A network on which all ways follow `rule`. It lives as a task of the current runtime.
    #[must_use]
    pub fn new(seed: Seed, rule: Rule, trace: Trace) -> Self {
        let state = State {
            rng: seed.rng(),
            rule,
            ways: BTreeMap::new(),
            cut: BTreeSet::new(),
            off: BTreeSet::new(),
            stalled: BTreeMap::new(),
            ports: BTreeMap::new(),
            wire: BinaryHeap::new(),
            serial: 0,
            counts: Counts::default(),
        };
        let net = Self(Arc::new(Shared { state: Mutex::new(state), sent: Notify::new(), trace }));
        tokio::spawn(carry(Arc::clone(&net.0)));
        net
    }

    /// A socket at `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn bind(&self, address: SocketAddr) -> io::Result<Arc<Socket>> {
        let mut state = self.lock();
        let mut address = address;
        if address.port() == 0 {
            let free = (EPHEMERAL..u16::MAX).find(|port| {
                address.set_port(*port);
                !state.ports.contains_key(&address)
            });
            address.set_port(free.ok_or(io::ErrorKind::AddrNotAvailable)?);
        }
        if state.ports.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.serial += 1;
        let serial = state.serial;
        state.ports.insert(address, Port { serial, ..Port::default() });
        Ok(Arc::new(Socket::new(self.clone(), address, serial)))
    }

    /// Closes all sockets of a device, as its crash does: who still holds one sends and receives nothing.
    pub fn unplug(&self, device: IpAddr) {
        self.lock().ports.retain(|address, _| address.ip() != device);
    }

    /// Whether a device is cut off from everything, its sockets kept: a suspended one.
    pub fn switch(&self, device: IpAddr, off: bool) {
        let mut state = self.lock();
        if off {
            state.off.insert(device)
        } else {
            state.off.remove(&device)
        };
    }

    /// What a device sends until then leaves it only then.
    pub fn stall(&self, device: IpAddr, until: Instant) {
        self.lock().stalled.insert(device, until);
    }

    /// Cuts one direction; what is under way is lost too.
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        self.lock().cut.insert((from, to));
    }

    /// Mends one direction.
    pub fn mend(&self, from: IpAddr, to: IpAddr) {
        self.lock().cut.remove(&(from, to));
    }

    /// Mends all ways, and lets all follow `rule`.
    pub fn calm(&self, rule: Rule) {
        let mut state = self.lock();
        state.cut.clear();
        state.ways.clear();
        state.off.clear();
        state.rule = rule;
    }

    /// Mends all ways and takes back their own rules; what all follow stays.
    pub fn mend_all(&self) {
        let mut state = self.lock();
        state.cut.clear();
        state.ways.clear();
    }

    /// How all ways behave that have no rule of their own.
    pub fn rule(&self, rule: Rule) {
        self.lock().rule = rule;
    }

    /// How one direction behaves from now on.
    pub fn way(&self, from: IpAddr, to: IpAddr, rule: Rule) {
        self.lock().ways.insert((from, to), rule);
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// One datagram leaves the socket `serial` at `from`.
    fn send(&self, serial: u64, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let mut state = self.lock();
        if state.ports.get(&from).is_none_or(|port| port.serial != serial) {
            return;
        }
        let copies = state.copies(from, to, bytes.len());
        for _ in 0..copies {
            state.post(from, to, bytes.to_vec());
        }
        drop(state);
        self.0.trace.packet(from, to, bytes.len(), ["lost", "sent", "twice"][copies]);
        self.0.sent.notify_one();
    }
}

impl State {
    fn is_cut(&self, from: IpAddr, to: IpAddr) -> bool {
        self.off.contains(&from) || self.off.contains(&to) || self.cut.contains(&(from, to))
    }

    fn way_rule(&self, from: SocketAddr, to: SocketAddr) -> Rule {
        self.ways.get(&(from.ip(), to.ip())).copied().unwrap_or(self.rule)
    }

    /// How often a datagram arrives: 0 to 2 times.
    fn copies(&mut self, from: SocketAddr, to: SocketAddr, length: usize) -> usize {
        let rule = self.way_rule(from, to);
        self.counts.sent += 1;
        if self.is_cut(from.ip(), to.ip()) {
            self.counts.cut += 1;
            return 0;
        }
        if length > rule.longest || self.rng.hits(rule.loss) {
            self.counts.lost += 1;
            return 0;
        }
        if self.rng.hits(rule.twice) {
            self.counts.twice += 1;
            return 2;
        }
        1
    }

    fn post(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let rule = self.way_rule(from, to);
        let jitter_us = u64::try_from(rule.jitter.as_micros()).unwrap_or(u64::MAX);
        let jitter = Duration::from_micros(self.rng.within(0..=jitter_us));
        let now = Instant::now();
        let leaves = self.stalled.get(&from.ip()).map_or(now, |until| now.max(*until));
        self.serial += 1;
        let at = leaves + rule.latency + jitter;
        self.wire.push(Reverse(Datagram { at, serial: self.serial, from, to, bytes }));
    }

    /// Takes what is due off the wire; gives who is to be woken, and when the next is due.
    fn deliver(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let mut wakers = Vec::new();
        while let Some(Reverse(next)) = self.wire.peek() {
            if next.at > now {
                return (wakers, Some(next.at));
            }
            let Some(Reverse(datagram)) = self.wire.pop() else {
                break;
            };
            if self.is_cut(datagram.from.ip(), datagram.to.ip()) {
                self.counts.cut += 1;
                continue;
            }
            let Some(port) = self.ports.get_mut(&datagram.to) else {
                continue;
            };
            if port.bytes + datagram.bytes.len() > QUEUE_BYTES_MAX {
                self.counts.lost += 1;
                continue;
            }
            port.bytes += datagram.bytes.len();
            port.queue.push_back((datagram.from, datagram.bytes));
            wakers.extend(port.reader.take());
        }
        (wakers, None)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries what is under way to where it goes, in the order of its time.
async fn carry(shared: Arc<Shared>) {
    loop {
        let (wakers, next) = shared.lock().deliver(Instant::now());
        wakers.into_iter().for_each(Waker::wake);
        match next {
            None => shared.sent.notified().await,
            Some(at) => tokio::select! {
                biased;
                () = shared.sent.notified() => {}
                () = tokio::time::sleep_until(at) => {}
            },
        }
    }
}

#[cfg(test)]
mod tests;
