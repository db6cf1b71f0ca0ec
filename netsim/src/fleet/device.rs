//! One simulated device: its address, key, disk and clock, which stay, and the process on it, which comes and goes. The
//! world's parts as our own seams want them.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use chappie::storage::medium::Disks;
use chappie_mesh::{
    Identity, NodeId, Sockets,
    runtime::{self, Reached, World},
};
use quinn::AsyncUdpSocket;
use redb::StorageBackend;
use tokio::task::AbortHandle;

use super::options::Broken;
use crate::world::{
    clock::Wall,
    disk::Disk,
    net::Net,
    process::{Mode, Process},
    seed::Seed,
    trace::Trace,
};

/// Where every device listens.
const PORT: u16 = 24274;

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) address: IpAddr,
    pub(super) identity: Arc<Identity>,
    pub(super) disk: Disk,
    pub(super) wall: Arc<Wall>,
    pub(super) process: Option<Arc<Process>>,
    seed: Seed,
    starts: u64,
    net: Net,
    trace: Trace,
    broken: Option<Broken>,
    obeyed: Obeyed,
    noted: Noted,
    limits: Limits,
}

/// Limits of the log that a seed sets lower than they are, so that they are reached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Entries between two snapshots, and how many stay behind one; `None`: as many as ever.
    pub(super) log: Option<(u64, u64)>,
}

/// How far the operations of a device are, by its own journal, and which snapshots it installed.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    open: BTreeMap<String, Reached>,
    snapshots: [u64; 2],
}

impl Noted {
    fn note(&self, what: Reached, of: &str) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Reached::Snapshot { behind } => notes.snapshots[usize::from(behind)] += 1,
            Reached::Over => drop(notes.open.remove(of)),
            Reached::Queued | Reached::Running | Reached::Ended => drop(notes.open.insert(of.to_owned(), what)),
        }
    }

    /// Its process ended: how many operations waited, ran, and had ended without anybody being told.
    fn end(&self) -> [u64; 3] {
        let open = std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).open);
        let count = |wanted: Reached| open.values().filter(|reached| **reached == wanted).count() as u64;
        [Reached::Queued, Reached::Running, Reached::Ended].map(count)
    }

    /// Snapshots that were installed since this was asked last: first ones, and those of a member that fell behind.
    fn snapshots(&self) -> [u64; 2] {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).snapshots)
    }
}

/// The highest epoch and term that a device obeyed, over its starts; and when it obeyed a lower one, which.
#[derive(Clone, Debug, Default)]
pub(super) struct Obeyed(Arc<Mutex<([u64; 2], Option<String>)>>);

impl Obeyed {
    /// What was wrong.
    pub(super) fn wrong(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// The device belongs to another mesh now, or begins with an empty disk.
    pub(super) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = [0, 0];
    }

    fn note(&self, name: &str, now: [u64; 2]) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now < held.0 {
            let wrong = format!("{name} obeys epoch and term {now:?} after {:?}", held.0);
            held.1.get_or_insert(wrong);
        }
        held.0 = held.0.max(now);
    }
}

impl Device {
    /// Number `number` of a world, switched off and empty, with a clock that is up to three seconds wrong.
    pub(super) fn new(
        number: u8,
        seed: Seed,
        net: &Net,
        trace: &Trace,
        broken: Option<Broken>,
        limits: Limits,
    ) -> Result<Self, String> {
        let name = format!("n{number}");
        let seed = seed.fork(&name);
        let identity = Identity::from_seed(seed.fork("key").bytes()).map_err(|error| error.to_string())?;
        let skew = i64::try_from(seed.fork("skew").rng().below(6_000)).unwrap_or(0) - 3_000;
        Ok(Self {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)),
            identity: Arc::new(identity),
            disk: Disk::new(&name, seed.fork("disk"), trace.clone()),
            wall: Arc::new(Wall::new(skew)),
            process: None,
            seed,
            starts: 0,
            net: net.clone(),
            trace: trace.clone(),
            broken,
            obeyed: Obeyed::default(),
            noted: Noted::default(),
            limits,
            name,
        })
    }

    /// A second device with the first one's identity and all that is on its disk, at an address of its own.
    pub(super) fn copy_of(&self, number: u8, seed: Seed) -> Result<Self, String> {
        let mut copy = Self::new(number, seed, &self.net, &self.trace, self.broken, self.limits)?;
        copy.identity = Arc::clone(&self.identity);
        copy.disk.put_back(&self.disk.image());
        Ok(copy)
    }

    pub(super) fn node(&self) -> NodeId {
        self.identity.node_id()
    }

    /// What ended with its process, by its journal: see [`Noted::end`].
    pub(super) fn cut_off(&self) -> [u64; 3] {
        self.noted.end()
    }

    /// See [`Noted::snapshots`].
    pub(super) fn snapshots(&self) -> [u64; 2] {
        self.noted.snapshots()
    }

    pub(super) const fn obeyed(&self) -> &Obeyed {
        &self.obeyed
    }

    /// How often something was started on it.
    pub(super) const fn starts(&self) -> u64 {
        self.starts
    }

    pub(super) fn listens(&self) -> SocketAddr {
        SocketAddr::new(self.address, PORT)
    }

    /// Begins a process on it. What runs there before is to be ended first.
    pub(super) fn begin(&mut self) -> Arc<Inside> {
        self.starts += 1;
        let process =
            Process::new(&self.name, self.seed.fork(&format!("start {}", self.starts)), Arc::clone(&self.wall));
        self.process = Some(Arc::clone(&process));
        self.tell(format_args!("starts, the {}. time", self.starts));
        let (obeyed, noted) = (self.obeyed.clone(), self.noted.clone());
        Arc::new(Inside { process, broken: self.broken, obeyed, noted, limits: self.limits })
    }

    pub(super) fn medium(&self) -> Arc<dyn Disks> {
        Arc::new(Drive(self.disk.clone()))
    }

    pub(super) fn sockets(&self) -> Arc<dyn Sockets> {
        Arc::new(Plug { net: self.net.clone(), address: self.address })
    }

    /// Whether a process runs on it, and is not held.
    pub(super) fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.mode() == Mode::Running)
    }

    /// The power goes: processes, sockets and what was not synced.
    pub(super) fn crash(&mut self) {
        self.end();
        self.disk.crash();
    }

    /// Its process is killed; the system keeps what it wrote.
    pub(super) fn kill(&mut self) {
        self.end();
        self.disk.left();
        self.tell(format_args!("killed"));
    }

    fn end(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
        self.net.switch(self.address, false);
        self.net.unplug(self.address);
    }

    /// Its process stands still; `asleep`: the device as well, so that nothing reaches it.
    pub(super) fn hold(&self, asleep: bool) {
        if let Some(process) = &self.process {
            process.hold();
            self.net.switch(self.address, asleep);
            self.tell(format_args!("{}", if asleep { "sleeps" } else { "stands still" }));
        }
    }

    pub(super) fn release(&self) {
        if let Some(process) = &self.process {
            self.net.switch(self.address, false);
            process.release();
            self.tell(format_args!("goes on"));
        }
    }

    pub(super) fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.trace.event(&self.name, what);
    }
}

/// What a node's code sees as its outside.
#[derive(Debug)]
pub(super) struct Inside {
    process: Arc<Process>,
    broken: Option<Broken>,
    obeyed: Obeyed,
    noted: Noted,
    limits: Limits,
}

impl Inside {
    /// Runs `future` as a task of the process; ends with it.
    pub(super) fn spawn<F>(self: &Arc<Self>, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = tokio::spawn(runtime::inhabit(Arc::clone(self) as Arc<dyn World>, future));
        self.process.began(task.abort_handle());
        task
    }
}

impl Inside {
    /// Drops what a process had, inside it: what a destructor does is the process's doing, and a dead one does nothing.
    pub(super) fn bury<T: Send + 'static>(self: &Arc<Self>, had: T) {
        drop(runtime::inhabit(Arc::clone(self) as Arc<dyn World>, async move {
            drop(had);
        }));
    }
}

impl World for Inside {
    fn wall_ms(&self) -> u64 {
        self.process.wall().now_ms()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.process.fill(bytes);
    }

    fn began(&self, task: AbortHandle) {
        self.process.began(task);
    }

    fn held(&self, waker: &std::task::Waker) -> bool {
        self.process.held(waker)
    }

    fn is_broken(&self, what: &str) -> bool {
        self.broken.is_some_and(|broken| broken.to_string() == what)
    }

    fn obeys(&self, epoch: u64, term: u64) {
        self.obeyed.note(self.process.name(), [epoch, term]);
    }

    fn reached(&self, what: Reached, of: &str) {
        if self.process.mode() != Mode::Dead {
            self.noted.note(what, of);
        }
    }

    fn limit(&self, what: &str, usual: u64) -> u64 {
        match (what, self.limits.log) {
            ("snapshot every", Some((every, _))) => every,
            ("kept behind", Some((_, kept))) => kept,
            _ => usual,
        }
    }
}

#[derive(Debug)]
struct Plug {
    net: Net,
    address: IpAddr,
}

impl Sockets for Plug {
    fn bind(&self, listen: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = self.net.bind(SocketAddr::new(self.address, listen.port()))?;
        Ok(socket)
    }
}

#[derive(Debug)]
struct Drive(Disk);

impl Disks for Drive {
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(self.0.open(name)?))
    }

    fn archive(&self, from: &str, to: &str) -> io::Result<()> {
        if self.0.has(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.0.copy(from, to)
    }

    fn mark(&self, name: &str) -> Option<[u8; 16]> {
        self.0.mark(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_meets_is_what_the_journal_said_last() {
        let noted = Noted::default();
        for (call, reached) in [
            ("waits", &[Reached::Queued][..]),
            ("runs", &[Reached::Queued, Reached::Running]),
            ("ended", &[Reached::Queued, Reached::Running, Reached::Ended]),
            ("told", &[Reached::Queued, Reached::Running, Reached::Ended, Reached::Over]),
            ("only read", &[Reached::Queued, Reached::Over]),
        ] {
            reached.iter().for_each(|reached| noted.note(*reached, call));
        }
        noted.note(Reached::Snapshot { behind: true }, "");
        assert_eq!(noted.end(), [1, 1, 1]);
        assert_eq!(noted.end(), [0, 0, 0], "the next process begins with what its own journal says");
        assert_eq!((noted.snapshots(), noted.snapshots()), ([0, 1], [0, 0]));
    }
}
