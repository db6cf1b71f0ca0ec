//! Devices with something running on each, and what happens to them: common to all scenarios. What runs is `M`; how it is
//! started is the scenario's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chappie_mesh::{NodeId, consensus::Standing};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{
    counters::{Counters, Tally},
    device::{Device, Inside, Limits},
    options::Options,
};
use crate::world::{
    disk::Wear,
    fault::Kind,
    net::{Net, Rule},
    process::Mode,
    seed::{PerMille, Rng, Seed},
    trace::Trace,
};

/// Between two looks at everything.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// When a start failed, it is tried again after that.
const START_AGAIN: Duration = Duration::from_millis(700);

/// Something that runs on a device.
pub(super) trait Runs: Clone + Send + 'static {
    /// How its group stands.
    fn standing(&self) -> watch::Receiver<Arc<Standing>>;
}

/// A device and what runs on it.
pub(super) struct Post<M> {
    pub(super) device: Device,
    pub(super) runs: Option<M>,
    pub(super) inside: Option<Arc<Inside>>,
    /// Being started.
    starting: Option<JoinHandle<Result<M, String>>>,
    /// When it is to be started, or goes on.
    pub(super) due: Option<Instant>,
    /// Since when it runs without having been held.
    released: Instant,
    /// Lost syncs that were counted.
    lost_syncs: u64,
}

impl<M> Post<M> {
    /// Runs, is not held, and nothing is about to happen to it.
    pub(super) fn is_up(&self) -> bool {
        self.device.is_running() && self.runs.is_some() && self.due.is_none()
    }
}

/// The devices of a world.
pub(super) struct Bed<M> {
    pub(super) net: Net,
    pub(super) trace: Trace,
    pub(super) rng: Rng,
    pub(super) posts: Vec<Post<M>>,
    pub(super) tally: Tally,
    /// Who acted in which term of which epoch.
    terms: BTreeMap<(u64, [u8; 16], u64), NodeId>,
    led: Option<NodeId>,
    voters: BTreeSet<NodeId>,
    lies: bool,
}

impl<M: Runs> Bed<M> {
    pub(super) fn new(seed: Seed, count: u8, options: &Options, trace: &Trace) -> Result<Self, String> {
        let lies = options.lies();
        let net = Net::new(seed.fork("net"), Rule::CALM, trace.clone());
        // Half of the worlds have logs so short that a member which was away for a while needs a snapshot.
        let mut drawn = seed.fork("limits").rng();
        let log = drawn.hits(PerMille(500)).then(|| (drawn.within(40..=200), drawn.within(5..=20)));
        let limits = Limits { log };
        let mut posts = Vec::new();
        for number in 1..=count {
            let device = Device::new(number, seed, &net, trace, options.broken, limits)?;
            device.disk.wear(Wear { lies, ..Wear::default() });
            let (runs, inside, starting, due) = (None, None, None, None);
            posts.push(Post { device, runs, inside, starting, due, released: Instant::now(), lost_syncs: 0 });
        }
        Ok(Self {
            net,
            trace: trace.clone(),
            rng: seed.fork("bed").rng(),
            posts,
            tally: Tally::default(),
            terms: BTreeMap::new(),
            led: None,
            voters: BTreeSet::new(),
            lies,
        })
    }

    /// `task` starts what runs on device `at`.
    pub(super) fn started(&mut self, at: usize, inside: Arc<Inside>, task: JoinHandle<Result<M, String>>) {
        let post = &mut self.posts[at];
        post.inside = Some(inside);
        post.starting = Some(task);
        post.due = None;
    }

    /// Ends what runs on a device; it is due again `after` that.
    pub(super) fn stop(&mut self, at: usize, after: Duration, power: bool) {
        let post = &mut self.posts[at];
        let states = [Counters::CrashQueued, Counters::CrashRunning, Counters::CrashDone];
        let open = post.device.cut_off();
        // One that stopped in its order has given up what ran.
        if post.runs.is_some() {
            states.into_iter().zip(open).for_each(|(state, count)| self.tally.add(state, count));
        }
        if power {
            post.device.crash();
        } else {
            post.device.kill();
        }
        let ended = (post.runs.take(), post.starting.take());
        if let Some(inside) = post.inside.take() {
            inside.bury(ended);
        }
        post.due = Some(Instant::now() + after);
    }

    /// Takes in who has started, gives up who failed, lets go on who was held. Gives the devices that are to be started.
    pub(super) async fn tend(&mut self) -> Vec<usize> {
        self.count();
        let mut starts = Vec::new();
        for at in 0..self.posts.len() {
            if let Some(task) = self.posts[at].starting.as_mut().filter(|task| task.is_finished()) {
                let started = task.await;
                self.posts[at].starting = None;
                match started {
                    Ok(Ok(runs)) => self.posts[at].runs = Some(runs),
                    Ok(Err(error)) => {
                        self.posts[at].device.tell(format_args!("did not start: {error}"));
                        self.stop(at, START_AGAIN, false);
                    }
                    // Its device lost its power meanwhile.
                    Err(_) => {}
                }
            }
            // The power went in the middle of a write.
            if self.posts[at].device.process.as_ref().is_some_and(|process| process.mode() == Mode::Dead) {
                let after = self.rng.time(100..=5_000);
                self.stop(at, after, true);
            }
            self.owed(at);
            let post = &mut self.posts[at];
            if post.due.is_some_and(|due| due <= Instant::now()) {
                post.due = None;
                if post.device.process.is_none() {
                    starts.push(at);
                } else {
                    post.device.release();
                    post.released = Instant::now();
                }
            }
        }
        starts
    }

    /// What devices reached since the last look.
    fn count(&mut self) {
        for post in &mut self.posts {
            let [first, behind] = post.device.snapshots();
            self.tally.add(Counters::FirstSnapshots, first);
            self.tally.add(Counters::Snapshots, behind);
            let lost = post.device.disk.counts().lost_syncs;
            self.tally.add(Counters::LostSyncs, lost - std::mem::replace(&mut post.lost_syncs, lost));
        }
    }

    /// A slow sync holds the process.
    fn owed(&mut self, at: usize) {
        let post = &mut self.posts[at];
        let owed = post.device.disk.owed();
        if !owed.is_zero() && post.device.is_running() && post.due.is_none() {
            post.device.hold(false);
            post.due = Some(Instant::now() + owed);
        }
    }

    /// Safety at this moment: one acts in an epoch, and one ever acted in a term. Gives who acts.
    pub(super) fn offices(&mut self) -> Result<Vec<(usize, Arc<Standing>)>, String> {
        if let Some(wrong) = self.posts.iter().find_map(|post| post.device.obeyed().wrong()) {
            return Err(wrong);
        }
        let mut acting: Vec<(usize, Arc<Standing>)> = Vec::new();
        for (at, post) in self.posts.iter().enumerate() {
            let Some(runs) = &post.runs else { continue };
            let standing = Arc::clone(&runs.standing().borrow());
            let awake = post.device.is_running() && post.released.elapsed() > LOOK;
            if standing.office.is_some() && awake {
                acting.push((at, standing));
            }
        }
        for (n, (at, standing)) in acting.iter().enumerate() {
            let Some(office) = standing.office else { continue };
            let name = &self.posts[*at].device.name;
            if let Some((other, _)) = acting[..n].iter().find(|(_, other)| other.group == standing.group) {
                let terms: Vec<_> = acting.iter().map(|(_, standing)| standing.office).collect();
                return Err(format!("{name} and {} act at one time: {terms:?}", self.posts[*other].device.name));
            }
            let node = self.posts[*at].device.node();
            let epoch = standing.group.epoch;
            let first = *self.terms.entry((epoch.count, epoch.id, office.term)).or_insert(node);
            if first != node {
                return Err(format!("{name} acts in term {}, in which another acted", office.term));
            }
        }
        for (_, standing) in acting.iter().filter(|(_, standing)| standing.voters.len() > 1) {
            if self.led != standing.leader {
                self.tally.add(Counters::LeaderChanges, u64::from(self.led.is_some()));
                self.led = standing.leader;
            }
            if self.voters != standing.voters {
                self.tally.add(Counters::MembershipChanges, u64::from(!self.voters.is_empty()));
                self.voters.clone_from(&standing.voters);
            }
        }
        Ok(acting)
    }

    pub(super) fn some(&mut self, fits: impl Fn(&Post<M>) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.posts.len()).filter(|at| fits(&self.posts[*at])).collect();
        self.rng.pick(&fitting).copied()
    }

    /// Does a fault that needs to know nothing of what runs, to a device that is up.
    pub(super) fn strike(&mut self, kind: Kind, at: usize) {
        let after = self.rng.time(100..=5_000);
        self.tally.fault(kind);
        match kind {
            Kind::Crash if self.rng.hits(PerMille(500)) => self.stop(at, after, true),
            Kind::Crash => self.crash_in_a_write(at),
            Kind::Kill => self.stop(at, after, false),
            Kind::Pause | Kind::Suspend => {
                self.posts[at].device.hold(kind == Kind::Suspend);
                self.posts[at].due = Some(Instant::now() + after);
            }
            Kind::Partition | Kind::OneWay => self.part(at, kind == Kind::OneWay),
            Kind::BadNetwork => self.bad_network(),
            Kind::LostSync | Kind::SlowSync | Kind::DiskFull => self.wear_out(at, kind),
            Kind::ClockJump => {
                let by = i64::try_from(self.rng.below(7_200_000)).unwrap_or(0) - 3_600_000;
                self.posts[at].device.wall.jump(by);
            }
            Kind::ClockDrift => {
                let ppm = i32::try_from(self.rng.below(2_000)).unwrap_or(0) - 1_000;
                self.posts[at].device.wall.drift(ppm);
            }
            _ => {}
        }
    }

    /// In the middle of what it writes next.
    fn crash_in_a_write(&mut self, at: usize) {
        let steps = self.rng.within(0..=12);
        let post = &mut self.posts[at];
        let (process, net, address) = (post.device.process.clone(), self.net.clone(), post.device.address);
        post.device.disk.crash_after(steps, move || {
            if let Some(process) = &process {
                process.kill();
            }
            net.unplug(address);
        });
    }

    fn part(&mut self, at: usize, one_way: bool) {
        let own = self.posts[at].device.address;
        let others: Vec<_> = self.posts.iter().map(|post| post.device.address).filter(|ip| *ip != own).collect();
        let all = self.rng.hits(PerMille(500));
        let chosen: Vec<_> = if all { others } else { self.rng.pick(&others).copied().into_iter().collect() };
        let outward = self.rng.hits(PerMille(500));
        for other in chosen {
            if outward || !one_way {
                self.net.cut(own, other);
            }
            if !outward || !one_way {
                self.net.cut(other, own);
            }
        }
        let after = self.rng.time(500..=6_000);
        let (net, trace) = (self.net.clone(), self.trace.clone());
        tokio::spawn(async move {
            sleep(after).await;
            trace.event("world", format_args!("mended"));
            net.mend_all();
        });
    }

    fn bad_network(&mut self) {
        let rng = &mut self.rng;
        let rule = Rule {
            loss: PerMille(u16::try_from(rng.below(200)).unwrap_or(0)),
            twice: PerMille(u16::try_from(rng.below(100)).unwrap_or(0)),
            latency: rng.time(1..=30),
            jitter: rng.time(0..=40),
            ..Rule::CALM
        };
        self.net.rule(rule);
        let (net, after) = (self.net.clone(), rng.time(1_000..=8_000));
        tokio::spawn(async move {
            sleep(after).await;
            net.rule(Rule::CALM);
        });
    }

    fn wear_out(&mut self, at: usize, kind: Kind) {
        let disk = self.posts[at].device.disk.clone();
        let usual = Wear { lies: self.lies, ..Wear::default() };
        disk.wear(match kind {
            Kind::LostSync => Wear { lost_syncs: PerMille(200), ..usual },
            Kind::SlowSync => Wear { slow_syncs: PerMille(100), slow_ms: 400, ..usual },
            _ => Wear { room: Some(disk.size()), ..usual },
        });
        let after = self.rng.time(500..=4_000);
        tokio::spawn(async move {
            sleep(after).await;
            disk.wear(usual);
        });
    }

    /// No more faults. Who is off or held is due now, when `wanted`.
    pub(super) fn calm(&mut self, wanted: impl Fn(usize, &Post<M>) -> bool) {
        self.trace.event("world", format_args!("calm"));
        self.net.calm(Rule::CALM);
        for (at, post) in self.posts.iter_mut().enumerate() {
            post.device.disk.wear(Wear { lies: self.lies, ..Wear::default() });
            post.device.disk.defuse();
            if wanted(at, post) {
                post.due.get_or_insert_with(Instant::now);
            }
        }
    }

    /// How all stand, for a failure's text.
    pub(super) fn picture(&self) -> String {
        let each = self.posts.iter().map(|post| {
            let mode = post.device.process.as_ref().map(|process| process.mode());
            let standing = post.runs.as_ref().map(|runs| Arc::clone(&runs.standing().borrow()));
            let standing = standing.map(|now| {
                let Standing { term, leader, office, voters, learners, applied, trouble, .. } = &*now;
                format!(
                    "epoch {} term {term} leader {leader:?} {office:?} voters {voters:?} learners {learners:?} applied {applied} {trouble:?}",
                    now.group.epoch.count
                )
            });
            let (name, node) = (&post.device.name, post.device.node());
            format!("\n  {name} {node:?} {mode:?} {}", standing.unwrap_or_else(|| "runs nothing".into()))
        });
        each.collect()
    }
}
