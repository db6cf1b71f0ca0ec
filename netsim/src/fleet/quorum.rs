//! Scenario: consensus alone, on three to five devices. Clients propose commands at whoever holds the office while devices
//! crash, sleep, lose syncs and cannot reach each other. Looked at after each step: one office at a time, one order of
//! commands for all. At the end, after the faults: a command is taken, every acknowledged one is there, all have the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use chappie_mesh::{
    Member as Listed, MeshId, NodeId, Remembered, Roster,
    consensus::{Epoch, Group, Standing},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    counters::{Counters, Tally},
    device::Device,
    member::{Member, Start, Truth},
    options::Options,
};
use crate::world::{
    disk::Wear,
    fault::{Kind, Plan},
    net::{Net, Rule},
    process::Mode,
    seed::{PerMille, Rng, Seed},
    trace::Trace,
};

/// How long faults happen.
const TROUBLED: Duration = Duration::from_secs(30);
/// How long it may take afterwards until a command is taken again and all have it: elections, a restart, a snapshot.
const HEALED_WITHIN: Duration = Duration::from_secs(40);
/// Clients that propose at the same time.
const CLIENTS: u64 = 4;
/// How long a client waits for its command; the engine gives up after 5 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two looks at everything.
const LOOK: Duration = Duration::from_millis(20);

/// The faults of this scenario.
const KINDS: [Kind; 16] = [
    Kind::Crash,
    Kind::Kill,
    Kind::Restart,
    Kind::Pause,
    Kind::Suspend,
    Kind::Partition,
    Kind::OneWay,
    Kind::BadNetwork,
    Kind::LostSync,
    Kind::SlowSync,
    Kind::DiskFull,
    Kind::ClockJump,
    Kind::ClockDrift,
    Kind::Wipe,
    Kind::Join,
    Kind::Move,
];

/// A device and the member on it.
struct Post {
    device: Device,
    member: Option<Member>,
    /// Being started.
    starting: Option<tokio::task::JoinHandle<Result<Member, String>>>,
    /// When it is to be started, or goes on.
    due: Option<Instant>,
    released: Instant,
    restores: u64,
}

struct Bed {
    net: Net,
    trace: Trace,
    rng: Rng,
    group: Group,
    posts: Vec<Post>,
    founder: usize,
    roster: watch::Sender<Arc<Roster>>,
    truth: Truth,
    tally: Tally,
    terms: BTreeMap<u64, NodeId>,
    led: Option<NodeId>,
    voters: BTreeSet<NodeId>,
}

/// Who can be proposed to, for the clients.
type Offices = Arc<Mutex<Vec<Member>>>;

/// What clients were told.
#[derive(Default)]
struct Ledger {
    acknowledged: Mutex<BTreeSet<u64>>,
    asked: AtomicU64,
    stop: AtomicBool,
}

/// Runs it.
pub(super) async fn run(seed: Seed, options: Options) -> Result<Tally, String> {
    let trace = Trace::new(options.keep);
    let outcome = run_in(seed, &options, &trace).await;
    options.took.note(&trace);
    outcome
}

async fn run_in(seed: Seed, options: &Options, trace: &Trace) -> Result<Tally, String> {
    let mut bed = Bed::new(seed, trace)?;
    bed.wear(options);
    let offices = Offices::default();
    let ledger = Arc::new(Ledger::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let rng = seed.fork(&format!("client {client}")).rng();
            tokio::spawn(propose(client, rng, Arc::clone(&offices), Arc::clone(&ledger), trace.clone()))
        })
        .collect();
    bed.begin()?;
    let mut plan = Plan::draw(seed.fork("faults"), &KINDS);
    trace.event("world", format_args!("faults: {:?}", plan.kinds()));
    let end = Instant::now() + TROUBLED;
    let mut next = plan.draw_next();
    let mut at = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        bed.look(&offices).await?;
        if Instant::now() >= at
            && let Some((wait, kind)) = next
        {
            bed.strike(kind);
            at = Instant::now() + wait;
            next = plan.draw_next();
        }
        sleep(LOOK).await;
    }
    bed.calm();
    bed.heal(&offices, &ledger).await?;
    ledger.stop.store(true, Ordering::SeqCst);
    for client in clients {
        let _ = client.await;
    }
    bed.settle(&offices, &ledger).await?;
    bed.tally.add(Counters::Operations, ledger.asked.load(Ordering::SeqCst));
    Ok(bed.tally)
}

impl Bed {
    fn new(seed: Seed, trace: &Trace) -> Result<Self, String> {
        let net = Net::new(seed.fork("net"), Rule::CALM, trace.clone());
        let mut rng = seed.fork("bed").rng();
        let count = u8::try_from(rng.within(3..=5)).unwrap_or(3);
        let mut posts = Vec::new();
        for number in 1..=count {
            let device = Device::new(number, seed, &net, trace)?;
            let (member, starting, due) = (None, None, None);
            posts.push(Post { device, member, starting, due, released: Instant::now(), restores: 0 });
        }
        let mesh = MeshId::from([7; 16]);
        let group = Group { mesh, epoch: Epoch { count: 1, id: [1; 16] } };
        // The last device of four or five joins later.
        let first = posts.iter().take(if count > 3 { usize::from(count) - 1 } else { 3 });
        let members = first.map(|post| (post.device.node(), Listed { name: post.device.name.clone() })).collect();
        let broker = posts.first().map(|post| post.device.node()).ok_or("no devices")?;
        let (removed, voters) = (BTreeSet::new(), BTreeSet::new());
        let roster = Roster { mesh, epoch: 1, version: 1, broker, members, removed, voters, epoch_id: [1; 16] };
        Ok(Self {
            net,
            trace: trace.clone(),
            rng,
            group,
            posts,
            founder: 0,
            roster: watch::Sender::new(Arc::new(roster)),
            truth: Truth::default(),
            tally: Tally::default(),
            terms: BTreeMap::new(),
            led: None,
            voters: BTreeSet::new(),
        })
    }

    fn wear(&self, options: &Options) {
        for post in &self.posts {
            post.device.disk.wear(Wear { lies: options.lies(), ..Wear::default() });
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        for at in 0..self.posts.len() {
            if self.listed(at) {
                self.start(at);
            }
        }
        Ok(())
    }

    fn listed(&self, at: usize) -> bool {
        self.roster.borrow().members.contains_key(&self.posts[at].device.node())
    }

    fn start(&mut self, at: usize) {
        let others = self.posts.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others
            .map(|(_, post)| {
                let remembered = Remembered { addresses: vec![post.device.listens()], incarnation: None };
                (post.device.node(), remembered)
            })
            .collect();
        let founds = at == self.founder;
        let post = &mut self.posts[at];
        let inside = post.device.begin();
        let start = Start::of(&post.device, others, self.group, founds, self.roster.subscribe(), self.truth.clone());
        post.starting = Some(inside.spawn(Member::start(start)));
        post.due = None;
        if founds {
            // Once: a founder whose disk is replaced is not to found a second group.
            self.founder = usize::MAX;
        }
    }

    /// Ends what runs on a device; it is started again `after` that.
    fn stop(&mut self, at: usize, after: Duration, power: bool) {
        let post = &mut self.posts[at];
        if power {
            post.device.crash();
        } else {
            post.device.kill();
        }
        post.member = None;
        post.starting = None;
        post.due = Some(Instant::now() + after);
    }

    /// One look at everything: what is wrong, who is due, who can be asked.
    async fn look(&mut self, offices: &Offices) -> Result<(), String> {
        if let Some(wrong) = self.truth.wrong() {
            return Err(wrong);
        }
        self.tend().await;
        let mut acting = Vec::new();
        let mut open = Vec::new();
        for post in &mut self.posts {
            let Some(member) = &post.member else { continue };
            let standing = Arc::clone(&member.standing().borrow());
            let restores = member.restores();
            if restores > post.restores && standing.applied > 0 {
                self.tally.add(Counters::Snapshots, restores - post.restores);
            }
            post.restores = restores;
            let awake = post.device.is_running() && post.released.elapsed() > LOOK;
            if let Some(office) = standing.office.filter(|_| awake) {
                acting.push((office.term, post.device.node(), post.device.name.clone()));
                open.push(member.clone());
            }
            note(&mut self.tally, &mut self.led, &mut self.voters, &standing);
        }
        *offices.lock().unwrap_or_else(PoisonError::into_inner) = open;
        if acting.len() > 1 {
            return Err(format!("two act at one time: {acting:?}"));
        }
        for (term, node, name) in acting {
            let first = *self.terms.entry(term).or_insert(node);
            if first != node {
                return Err(format!("{name} acts in term {term}, in which another acted"));
            }
        }
        Ok(())
    }

    /// Starts who is due, takes in who has started, and gives up who failed.
    async fn tend(&mut self) {
        for at in 0..self.posts.len() {
            if let Some(task) = self.posts[at].starting.as_mut().filter(|task| task.is_finished()) {
                let started = task.await;
                self.posts[at].starting = None;
                match started {
                    Ok(Ok(member)) => {
                        self.posts[at].restores = member.restores();
                        self.posts[at].member = Some(member);
                    }
                    Ok(Err(error)) => {
                        self.posts[at].device.tell(format_args!("did not start: {error}"));
                        self.stop(at, Duration::from_millis(700), false);
                    }
                    // Its device lost its power meanwhile.
                    Err(_) => {}
                }
            }
            let trouble = self.posts[at].member.as_ref().and_then(|member| member.standing().borrow().trouble.clone());
            if let Some(trouble) = trouble.filter(|_| self.posts[at].device.is_running()) {
                // The council of a real node opens the store anew; here its process begins again.
                self.posts[at].device.tell(format_args!("stopped: {trouble}"));
                self.tally.add(Counters::Reopened, 1);
                self.stop(at, Duration::from_millis(300), false);
            }
            // The power went in the middle of a write.
            if self.posts[at].device.process.as_ref().is_some_and(|process| process.mode() == Mode::Dead) {
                let after = self.rng.time(100..=5_000);
                self.stop(at, after, true);
            }
            self.owed(at);
            if self.posts[at].due.is_some_and(|due| due <= Instant::now()) {
                self.posts[at].due = None;
                if self.posts[at].device.process.is_none() {
                    self.start(at);
                } else {
                    self.posts[at].device.release();
                    self.posts[at].released = Instant::now();
                }
            }
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

    fn some(&mut self, fits: impl Fn(&Post) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.posts.len()).filter(|at| fits(&self.posts[*at])).collect();
        self.rng.pick(&fitting).copied()
    }

    fn strike(&mut self, kind: Kind) {
        self.trace.event("world", format_args!("fault: {kind}"));
        let up = |post: &Post| post.device.is_running() && post.member.is_some() && post.due.is_none();
        let Some(at) = self.some(up) else { return };
        let after = self.rng.time(100..=5_000);
        self.tally.fault(kind);
        match kind {
            Kind::Crash if self.rng.hits(PerMille(500)) => self.stop(at, after, true),
            Kind::Crash => {
                // In the middle of what it writes next.
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
            Kind::Kill | Kind::Restart => self.stop(at, after, false),
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
            Kind::Wipe => self.wipe(),
            Kind::Join => self.join(),
            Kind::Move => {
                if let Some(member) = &self.posts[at].member {
                    let consensus = member.consensus.clone();
                    tokio::spawn(async move { consensus.hand_over(None).await });
                }
            }
            Kind::Restore | Kind::Clone | Kind::Forget | Kind::Recover => {}
        }
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
        let usual = disk.worn();
        let size = disk.size();
        disk.wear(match kind {
            Kind::LostSync => Wear { lost_syncs: PerMille(200), ..usual },
            Kind::SlowSync => Wear { slow_syncs: PerMille(100), slow_ms: 400, ..usual },
            _ => Wear { room: Some(size), ..usual },
        });
        let after = self.rng.time(500..=4_000);
        tokio::spawn(async move {
            sleep(after).await;
            disk.wear(Wear { lies: usual.lies, ..Wear::default() });
        });
    }

    /// Replaces a disk, when all others have everything: it is the one loss that a group of three can stand.
    fn wipe(&mut self) {
        let Some(leader) = self.posts.iter().find_map(|post| {
            let standing = Arc::clone(&post.member.as_ref()?.standing().borrow());
            (standing.office.is_some() && post.device.is_running()).then_some(standing)
        }) else {
            return;
        };
        let count = self.roster.borrow().members.len();
        let whole = leader.voters.len() >= 3
            && leader.voters.len() + leader.learners.len() == count
            && leader.followers.values().all(|follower| follower.lag == 0)
            && (0..self.posts.len()).filter(|at| self.listed(*at)).all(|at| {
                let post = &self.posts[at];
                post.device.is_running()
                    && post.member.as_ref().is_some_and(|member| member.standing().borrow().applied >= leader.applied)
            });
        if !whole {
            return;
        }
        let Some(at) = self.some(|post| post.member.is_some()) else { return };
        self.stop(at, Duration::from_millis(500), true);
        self.posts[at].device.disk.wipe();
        self.posts[at].device.tell(format_args!("has an empty disk"));
        self.tally.add(Counters::Wiped, 1);
    }

    fn join(&mut self) {
        let Some(at) = (0..self.posts.len()).find(|at| !self.listed(*at)) else { return };
        let (node, name) = (self.posts[at].device.node(), self.posts[at].device.name.clone());
        self.roster.send_modify(|roster| {
            let mut new = Roster::clone(roster);
            new.members.insert(node, Listed { name });
            new.version += 1;
            *roster = Arc::new(new);
        });
        self.start(at);
    }

    /// No more faults; everybody runs.
    fn calm(&mut self) {
        self.trace.event("world", format_args!("calm"));
        self.net.calm(Rule::CALM);
        for at in 0..self.posts.len() {
            let post = &mut self.posts[at];
            let usual = Wear { lies: post.device.disk.worn().lies, ..Wear::default() };
            post.device.disk.wear(usual);
            post.device.disk.defuse();
            if self.listed(at) {
                self.posts[at].due.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Waits until a command is taken again.
    async fn heal(&mut self, offices: &Offices, ledger: &Ledger) -> Result<(), String> {
        let (begin, before) = (Instant::now(), ledger.acknowledged.lock().map_or(0, |known| known.len()));
        while begin.elapsed() < HEALED_WITHIN {
            self.look(offices).await?;
            let now = ledger.acknowledged.lock().map_or(0, |known| known.len());
            if begin.elapsed() > Duration::from_secs(2) && now > before + 10 {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        Err(format!("no command was taken in {} s after the last fault: {}", HEALED_WITHIN.as_secs(), self.picture()))
    }

    /// Waits until all have the same, and looks for what was acknowledged.
    async fn settle(&mut self, offices: &Offices, ledger: &Ledger) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            self.look(offices).await?;
            let states: Vec<Option<Vec<u64>>> = (0..self.posts.len())
                .filter(|at| self.listed(*at))
                .map(|at| self.posts[at].member.as_ref().map(Member::commands))
                .collect();
            let whole = states.iter().all(|state| state.as_ref().is_some_and(|state| state.len() == self.truth.len()));
            if whole {
                break;
            }
            if begin.elapsed() > HEALED_WITHIN {
                return Err(format!("not all have everything: {}", self.picture()));
            }
            sleep(LOOK).await;
        }
        let acknowledged = ledger.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        match acknowledged.iter().find(|command| !self.truth.has(**command)) {
            Some(lost) => Err(format!("{lost:x} was acknowledged and is gone")),
            None => Ok(()),
        }
    }

    fn picture(&self) -> String {
        let each = self.posts.iter().map(|post| {
            let standing = post.member.as_ref().map(|member| Arc::clone(&member.standing().borrow()));
            let mode = post.device.process.as_ref().map(|process| process.mode());
            format!("\n  {} {mode:?} {standing:?}", post.device.name)
        });
        each.collect()
    }
}

fn note(tally: &mut Tally, led: &mut Option<NodeId>, voters: &mut BTreeSet<NodeId>, standing: &Standing) {
    if standing.office.is_none() {
        return;
    }
    if *led != standing.leader {
        tally.add(Counters::LeaderChanges, u64::from(led.is_some()));
        *led = standing.leader;
    }
    if *voters != standing.voters {
        tally.add(Counters::MembershipChanges, u64::from(!voters.is_empty()));
        voters.clone_from(&standing.voters);
    }
}

/// One client: one command after the other, each with a number of its own.
async fn propose(client: u64, mut rng: Rng, offices: Offices, ledger: Arc<Ledger>, trace: Trace) {
    let mut count = 0;
    while !ledger.stop.load(Ordering::SeqCst) {
        sleep(rng.time(20..=120)).await;
        let open = offices.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(member) = rng.pick(&open) else { continue };
        let Some(office) = member.standing().borrow().office else { continue };
        count += 1;
        let command = (client << 32) | count;
        ledger.asked.fetch_add(1, Ordering::SeqCst);
        let proposed = timeout(PATIENCE, member.consensus.propose(office, vec![command.to_le_bytes().to_vec()])).await;
        let taken = proposed.is_ok_and(|replies| replies.iter().all(Result::is_ok));
        if taken {
            ledger.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(command);
        }
        trace.event("client", format_args!("{command:x} {}", if taken { "taken" } else { "unknown" }));
    }
}
