//! A group in one process for the tests: stores in memory, links that can be cut, a clock that runs when nothing else does.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep},
};

use super::*;
use crate::{
    identity::{Member, MeshId, NodeId, Roster},
    runtime::{self, World},
};

/// A store in memory. Clones are the same store.
#[derive(Clone, Default)]
pub(super) struct Disk(Arc<Mutex<Contents>>);

#[derive(Default)]
struct Contents {
    kept: Persisted,
    failing: bool,
    open: bool,
}

impl Disk {
    pub(super) fn persisted(&self) -> Persisted {
        self.0.lock().unwrap().kept.clone()
    }

    pub(super) fn fail(&self) {
        self.0.lock().unwrap().failing = true;
    }

    pub(super) fn mend(&self) {
        self.0.lock().unwrap().failing = false;
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.lock().unwrap().open
    }

    /// Takes over what another store has.
    pub(super) fn become_like(&self, other: &Self) {
        self.0.lock().unwrap().kept = other.persisted();
    }

    pub(super) fn write(&self, writes: Vec<Write>) {
        let mut contents = self.0.lock().unwrap();
        writes.into_iter().for_each(|write| contents.take(write));
    }

    pub(super) fn open(&self) -> Box<dyn LogStore> {
        let mut contents = self.0.lock().unwrap();
        assert!(!std::mem::replace(&mut contents.open, true), "a store is opened twice");
        Box::new(Opened(self.clone()))
    }
}

impl Contents {
    fn take(&mut self, write: Write) {
        let kept = &mut self.kept;
        match write {
            Write::Vote(vote) => kept.vote = Some(vote),
            Write::Committed(id) => kept.committed = Some(id),
            Write::Append(rows) => {
                for (index, bytes) in rows {
                    kept.log.retain(|(old, _)| *old != index);
                    kept.log.push((index, bytes));
                }
                kept.log.sort_by_key(|(index, _)| *index);
            }
            Write::TruncateFrom(index) => kept.log.retain(|(old, _)| *old < index),
            Write::Purge { through, last } => {
                kept.log.retain(|(old, _)| *old > through);
                kept.purged = Some(last);
            }
            Write::Snapshot { meta, data } => kept.snapshot = Some((meta, data)),
        }
    }
}

struct Opened(Disk);

impl LogStore for Opened {
    fn write(&mut self, writes: Vec<Write>) -> io::Result<()> {
        let mut contents = self.0.0.lock().unwrap();
        if contents.failing {
            return Err(io::Error::other("the disk is full"));
        }
        writes.into_iter().for_each(|write| contents.take(write));
        Ok(())
    }

    fn snapshot(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(self.0.persisted().snapshot)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().open = false;
    }
}

/// A machine that remembers what it was told, and says how much that is.
#[derive(Clone, Default)]
pub(super) struct Tally(pub(super) Arc<Mutex<Vec<Vec<u8>>>>);

impl Machine for Tally {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        let mut all = self.0.lock().unwrap();
        all.push(command.to_vec());
        all.len().to_string().into_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        postcard::to_allocvec(&*self.0.lock().unwrap()).unwrap()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), String> {
        *self.0.lock().unwrap() = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The links between devices.
#[derive(Default)]
pub(super) struct Net {
    members: Mutex<BTreeMap<NodeId, Consensus>>,
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Bytes that were carried.
    pub(super) carried: AtomicU64,
    /// What was asked of each device.
    asked: Mutex<BTreeMap<NodeId, u64>>,
}

impl Net {
    fn is_cut(&self, one: NodeId, other: NodeId) -> bool {
        self.cut.lock().unwrap().contains(&(one.min(other), one.max(other)))
    }

    /// Nothing gets through between two devices.
    pub(super) fn cut(&self, one: u8, other: u8) {
        let (one, other) = (node(one), node(other));
        self.cut.lock().unwrap().insert((one.min(other), one.max(other)));
    }

    /// How many questions a device was asked so far.
    pub(super) fn asked(&self, n: u8) -> u64 {
        self.asked.lock().unwrap().get(&node(n)).copied().unwrap_or_default()
    }

    pub(super) fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    /// Nothing gets through to or from a device.
    pub(super) fn isolate(&self, n: u8) {
        (1..=9).filter(|other| *other != n).for_each(|other| self.cut(n, other));
    }
}

struct Link {
    from: NodeId,
    net: Arc<Net>,
}

impl Carrier for Link {
    fn ask(&self, to: NodeId, question: Vec<u8>, within: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>> {
        let (from, net) = (self.from, Arc::clone(&self.net));
        Box::pin(async move {
            // A millisecond there and one back.
            pass(Duration::from_millis(1)).await;
            net.carried.fetch_add(question.len() as u64, Ordering::Relaxed);
            *net.asked.lock().unwrap().entry(to).or_default() += 1;
            let member = net.members.lock().unwrap().get(&to).cloned();
            let Some(member) = member else { return Err(Unreached("nobody is there".into())) };
            if net.is_cut(from, to) {
                pass(within).await;
                return Err(Unreached("the link is cut".into()));
            }
            let question = Question::decode(&question).unwrap();
            let answer = member.answer(from, &question).await;
            pass(Duration::from_millis(1)).await;
            if net.is_cut(from, to) { Err(Unreached("the link is cut".into())) } else { Ok(answer) }
        })
    }
}

/// Lets time pass. It is virtual, but in the one test with the real clock.
pub(super) async fn pass(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(until - Instant::now()).await;
    }
}

pub(super) fn node(n: u8) -> NodeId {
    NodeId::from([n; 32])
}

pub(super) fn group() -> Group {
    Group { mesh: MeshId::from([7; 16]), epoch: Epoch { count: 1, id: [8; 16] } }
}

/// A roster of these devices.
pub(super) fn roster(devices: &[u8]) -> Arc<Roster> {
    let mut roster = Roster::alone(group().mesh, node(devices[0]), "first".into());
    roster.members = devices.iter().map(|n| (node(*n), Member { name: n.to_string() })).collect();
    Arc::new(roster)
}

/// A device with its store.
pub(super) struct Device {
    pub(super) n: u8,
    pub(super) store: StoreId,
    pub(super) disk: Disk,
    pub(super) voting: Voting,
    pub(super) tally: Tally,
    pub(super) consensus: Option<Consensus>,
    rosters: watch::Receiver<Arc<Roster>>,
}

impl Device {
    pub(super) fn member(&self) -> MemberId {
        MemberId::of(&node(self.n), &self.store)
    }

    pub(super) fn on(&self) -> &Consensus {
        self.consensus.as_ref().expect("the device is on")
    }

    pub(super) fn standing(&self) -> Arc<Standing> {
        Arc::clone(&self.on().standing().borrow())
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            node: node(self.n),
            store: self.store,
            group: group(),
            pace: Pace::LAN,
            voting: self.voting,
            stands: true,
        }
    }

    pub(super) async fn start(&mut self, net: &Arc<Net>) {
        self.tally = Tally::default();
        let link = Arc::new(Link { from: node(self.n), net: Arc::clone(net) });
        let machine = Box::new(self.tally.clone());
        let started = Consensus::start(self.settings(), self.disk.persisted(), self.disk.open(), machine, link).await;
        let consensus = started.unwrap();
        consensus.tend(self.rosters.clone());
        net.members.lock().unwrap().insert(node(self.n), consensus.clone());
        self.consensus = Some(consensus);
    }

    /// Ends without a word.
    pub(super) async fn kill(&mut self, net: &Net) {
        net.members.lock().unwrap().remove(&node(self.n));
        if let Some(consensus) = self.consensus.take() {
            consensus.stop().await;
        }
    }

    /// The store is lost.
    pub(super) fn wipe(&mut self) {
        self.store[1] += 1;
        self.disk = Disk::default();
    }

    /// Waits until the group stands so, as this device sees it.
    pub(super) async fn until(&self, what: &str, is: impl Fn(&Standing) -> bool) -> Arc<Standing> {
        let mut standings = self.on().standing();
        let found = tokio::time::timeout(Duration::from_secs(60), standings.wait_for(|now| is(now))).await;
        match found {
            Ok(now) => Arc::clone(&now.unwrap()),
            Err(_) => panic!("device {}: {what}: {:?}", self.n, self.standing()),
        }
    }

    /// Waits until it holds the office.
    pub(super) async fn office(&self) -> Office {
        self.until("has the office", |now| now.office.is_some()).await.office.unwrap()
    }

    pub(super) async fn propose(&self, office: Office, command: &str) -> Result<Vec<u8>, CommitError> {
        self.on().propose(office, vec![command.into()]).await.remove(0)
    }

    pub(super) fn told(&self) -> Vec<String> {
        let told = self.tally.0.lock().unwrap();
        told.iter().map(|command| String::from_utf8(command.clone()).unwrap()).collect()
    }

    /// Waits until it has carried out `count` commands.
    pub(super) async fn until_told(&self, count: usize) {
        self.until("carries out", |_| self.tally.0.lock().unwrap().len() >= count).await;
    }
}

/// Devices 1 to n; the first has a seeded store.
pub(super) struct Mesh {
    pub(super) net: Arc<Net>,
    pub(super) rosters: watch::Sender<Arc<Roster>>,
    pub(super) devices: Vec<Device>,
}

impl Mesh {
    pub(super) fn new(count: u8) -> Self {
        let all: Vec<u8> = (1..=count).collect();
        let rosters = watch::Sender::new(roster(&all));
        let device = |n| Device {
            n,
            store: [n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            disk: Disk::default(),
            voting: Voting::Auto,
            tally: Tally::default(),
            consensus: None,
            rosters: rosters.subscribe(),
        };
        let devices: Vec<Device> = all.iter().map(|n| device(*n)).collect();
        let state = Tally::default().snapshot();
        devices[0].disk.write(seed(devices[0].member(), node(1), state));
        Self { net: Arc::new(Net::default()), rosters, devices }
    }

    /// All of them on, as many voters as the policy wants.
    pub(super) async fn settled(count: u8) -> Self {
        let mut mesh = Self::new(count);
        for device in &mut mesh.devices {
            device.start(&mesh.net).await;
        }
        let voters = match count {
            1 | 2 => 1,
            3 | 4 => 3,
            _ => 5,
        };
        mesh.settles(voters, usize::from(count) - voters).await;
        mesh
    }

    /// Waits until so many vote and so many follow, and everybody that is on knows it for good.
    pub(super) async fn settles(&self, voters: usize, learners: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        let settled = |device: &Device| {
            let metrics = device.on().shared.metrics();
            let now = device.standing();
            let done = metrics.membership_config == metrics.committed_membership_config
                && metrics.membership_config.get_joint_config().len() == 1;
            done && (now.voters.len(), now.learners.len()) == (voters, learners)
        };
        while !self.devices.iter().filter(|device| device.consensus.is_some()).all(settled) {
            assert!(Instant::now() < until, "{voters} and {learners} are not reached: {:?}", self.standings());
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn standings(&self) -> Vec<Arc<Standing>> {
        self.devices.iter().filter(|device| device.consensus.is_some()).map(Device::standing).collect()
    }

    pub(super) fn device(&self, n: u8) -> &Device {
        &self.devices[usize::from(n) - 1]
    }

    pub(super) fn carrier(&self, n: u8) -> Arc<dyn Carrier> {
        Arc::new(Link { from: node(n), net: Arc::clone(&self.net) })
    }

    pub(super) async fn start(&mut self, n: u8) {
        let net = Arc::clone(&self.net);
        self.devices[usize::from(n) - 1].start(&net).await;
    }

    pub(super) async fn kill(&mut self, n: u8) {
        let net = Arc::clone(&self.net);
        self.devices[usize::from(n) - 1].kill(&net).await;
    }

    /// The device that holds the office.
    pub(super) fn acting(&self) -> Option<u8> {
        let mut acting = self.devices.iter().filter(|device| device.consensus.is_some());
        let found = acting.find(|device| device.standing().office.is_some()).map(|device| device.n);
        // On threads the standings are not of one moment.
        let only = !runtime::is_simulated() || acting.all(|device| device.standing().office.is_none());
        assert!(only, "two hold the office");
        found
    }

    /// Waits until a device, other than `but`, holds the office.
    pub(super) async fn elected(&self, but: u8) -> u8 {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(n) = self.acting().filter(|n| *n != but) {
                return n;
            }
            assert!(Instant::now() < until, "nobody is elected: {:?}", self.standings());
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn stop(self) {
        for device in self.devices {
            if let Some(consensus) = device.consensus {
                consensus.stop().await;
                assert!(!device.disk.is_open());
            }
        }
    }
}

#[derive(Debug)]
struct Lab(AtomicU64);

impl World for Lab {
    fn wall_ms(&self) -> u64 {
        1_700_000_000_000
    }

    fn fill(&self, bytes: &mut [u8]) {
        for byte in bytes {
            let next = self.0.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0.store(next, Ordering::Relaxed);
            *byte = (next >> 56) as u8;
        }
    }

    fn began(&self, _: AbortHandle) {}
}

/// Runs a test in a world in which time passes only when nothing is to be done: as fast as it can, and the same each time.
pub(super) fn lab<F: Future>(seed: u64, test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(runtime::inhabit(Arc::new(Lab(AtomicU64::new(seed))), test))
}
