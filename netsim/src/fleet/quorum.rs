//! Scenario: consensus alone, on three to five devices. Clients propose commands at whoever holds the office while devices
//! crash, sleep, lose syncs and cannot reach each other. Looked at after each step: one office at a time, one order of
//! commands for all. At the end, after the faults: a command is taken, every acknowledged one is there, all have the same.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use chappie_mesh::{
    Incarnation, Member as Listed, MeshId, Remembered, Roster,
    consensus::{Epoch, Group},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    bed::{Bed, LOOK, Post, Runs},
    counters::{Counters, Tally},
    member::{Member, Start, Truth},
    options::Options,
};
use crate::world::{
    fault::{Kind, Plan},
    seed::{Rng, Seed},
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

struct Table {
    bed: Bed<Member>,
    group: Group,
    founder: usize,
    roster: watch::Sender<Arc<Roster>>,
    truth: Truth,
    seed: Seed,
    /// Each device's last start. A real node has it in its other database, which is not replaced with this one.
    runs: Vec<Option<Incarnation>>,
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
    let mut table = Table::new(seed, options, trace)?;
    let offices = Offices::default();
    let ledger = Arc::new(Ledger::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let rng = seed.fork(&format!("client {client}")).rng();
            tokio::spawn(propose(client, rng, Arc::clone(&offices), Arc::clone(&ledger), trace.clone()))
        })
        .collect();
    for at in 0..table.bed.posts.len() {
        if table.listed(at) {
            table.start(at);
        }
    }
    let mut plan = Plan::draw(seed.fork("faults"), &KINDS);
    trace.event("world", format_args!("faults: {:?}", plan.kinds()));
    let end = Instant::now() + TROUBLED;
    let mut next = plan.draw_next();
    let mut at = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        table.look(&offices).await?;
        if Instant::now() >= at
            && let Some((wait, kind)) = next
        {
            table.strike(kind);
            at = Instant::now() + wait;
            next = plan.draw_next();
        }
        sleep(LOOK).await;
    }
    let listed: Vec<bool> = (0..table.bed.posts.len()).map(|at| table.listed(at)).collect();
    table.bed.calm(|at, _| listed[at]);
    table.heal(&offices, &ledger).await?;
    ledger.stop.store(true, Ordering::SeqCst);
    for client in clients {
        let _ = client.await;
    }
    table.settle(&offices, &ledger).await?;
    table.bed.tally.add(Counters::Operations, ledger.asked.load(Ordering::SeqCst));
    Ok(table.bed.tally)
}

impl Table {
    fn new(seed: Seed, options: &Options, trace: &Trace) -> Result<Self, String> {
        let count = u8::try_from(seed.fork("count").rng().within(3..=5)).unwrap_or(3);
        let bed = Bed::new(seed, count, options, trace)?;
        let mesh = MeshId::from([7; 16]);
        let group = Group { mesh, epoch: Epoch { count: 1, id: [1; 16] } };
        // The last device of four or five joins later.
        let first = bed.posts.iter().take(if count > 3 { usize::from(count) - 1 } else { 3 });
        let members = first.map(|post| (post.device.node(), Listed { name: post.device.name.clone() })).collect();
        let broker = bed.posts.first().map(|post| post.device.node()).ok_or("no devices")?;
        let (removed, voters) = (BTreeSet::new(), BTreeSet::new());
        let roster = Roster { mesh, epoch: 1, version: 1, broker, members, removed, voters, epoch_id: [1; 16] };
        let roster = watch::Sender::new(Arc::new(roster));
        Ok(Self { bed, group, founder: 0, roster, truth: Truth::default(), seed, runs: vec![None; usize::from(count)] })
    }

    fn listed(&self, at: usize) -> bool {
        self.roster.borrow().members.contains_key(&self.bed.posts[at].device.node())
    }

    fn start(&mut self, at: usize) {
        let others = self.bed.posts.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others
            .map(|(_, post)| {
                let remembered = Remembered { addresses: vec![post.device.listens()], incarnation: None };
                (post.device.node(), remembered)
            })
            .collect();
        let founds = at == self.founder;
        if founds {
            // Once: a founder whose disk is replaced is not to found a second group.
            self.founder = usize::MAX;
        }
        let device = &mut self.bed.posts[at].device;
        let inside = device.begin();
        let mut nonce = [0; 16];
        self.seed.fork(&format!("run {} {}", device.name, device.starts())).rng().fill(&mut nonce);
        let run = self.runs[at].map_or_else(|| Incarnation::first(nonce), |run| run.next(nonce));
        self.runs[at] = Some(run);
        let start = Start::of(device, others, self.group, founds, self.roster.subscribe(), self.truth.clone(), run);
        let task = inside.spawn(Member::start(start));
        self.bed.started(at, inside, task);
    }

    /// One look at everything: what is wrong, who is due, who can be asked.
    async fn look(&mut self, offices: &Offices) -> Result<(), String> {
        if let Some(wrong) = self.truth.wrong() {
            return Err(wrong);
        }
        for at in self.bed.tend().await {
            self.start(at);
        }
        for at in 0..self.bed.posts.len() {
            let Some(member) = self.bed.posts[at].runs.clone() else { continue };
            let standing = Arc::clone(&member.standing().borrow());
            if let Some(trouble) = standing.trouble.clone().filter(|_| self.bed.posts[at].device.is_running()) {
                // The council of a real node opens the store anew; here its process begins again.
                self.bed.posts[at].device.tell(format_args!("stopped: {trouble}"));
                self.bed.tally.add(Counters::Reopened, 1);
                self.bed.stop(at, Duration::from_millis(300), false);
                continue;
            }
        }
        let acting = self.bed.offices()?;
        let open = acting.iter().filter_map(|(at, _)| self.bed.posts[*at].runs.clone()).collect();
        *offices.lock().unwrap_or_else(PoisonError::into_inner) = open;
        Ok(())
    }

    fn strike(&mut self, kind: Kind) {
        self.bed.trace.event("world", format_args!("fault: {kind}"));
        let Some(at) = self.bed.some(Post::is_up) else { return };
        match kind {
            Kind::Restart => {
                self.bed.tally.fault(kind);
                let after = self.bed.rng.time(100..=2_000);
                self.bed.stop(at, after, false);
            }
            Kind::Wipe => self.wipe(),
            Kind::Join => self.join(),
            Kind::Move => {
                self.bed.tally.fault(kind);
                if let (Some(member), Some(inside)) = (&self.bed.posts[at].runs, &self.bed.posts[at].inside) {
                    let consensus = member.consensus.clone();
                    inside.spawn(async move { consensus.hand_over(None).await });
                }
            }
            kind => self.bed.strike(kind, at),
        }
    }

    /// Replaces a disk, when all others have everything: it is the one loss that a group of three can stand.
    fn wipe(&mut self) {
        let Some(leader) = self.bed.posts.iter().find_map(|post| {
            let standing = Arc::clone(&post.runs.as_ref()?.standing().borrow());
            (standing.office.is_some() && post.device.is_running()).then_some(standing)
        }) else {
            return;
        };
        let count = self.roster.borrow().members.len();
        let whole = leader.voters.len() >= 3
            && leader.voters.len() + leader.learners.len() == count
            && leader.followers.values().all(|follower| follower.lag == 0)
            && (0..self.bed.posts.len()).filter(|at| self.listed(*at)).all(|at| {
                let post = &self.bed.posts[at];
                post.device.is_running()
                    && post.runs.as_ref().is_some_and(|member| member.standing().borrow().applied >= leader.applied)
            });
        if !whole {
            return;
        }
        let Some(at) = self.bed.some(|post| post.runs.is_some()) else { return };
        self.bed.stop(at, Duration::from_millis(500), true);
        self.bed.posts[at].device.disk.wipe();
        self.bed.posts[at].device.tell(format_args!("has an empty disk"));
        self.bed.tally.fault(Kind::Wipe);
        self.bed.tally.add(Counters::Wiped, 1);
    }

    fn join(&mut self) {
        let Some(at) = (0..self.bed.posts.len()).find(|at| !self.listed(*at)) else { return };
        let (node, name) = (self.bed.posts[at].device.node(), self.bed.posts[at].device.name.clone());
        self.roster.send_modify(|roster| {
            let mut new = Roster::clone(roster);
            new.members.insert(node, Listed { name });
            new.version += 1;
            *roster = Arc::new(new);
        });
        // A real node tells the others where the new one is.
        let place = vec![(node, vec![self.bed.posts[at].device.listens()])];
        for post in &self.bed.posts {
            if let (Some(member), Some(inside)) = (&post.runs, &post.inside) {
                let (mesh, place) = (member.mesh.clone(), place.clone());
                inside.spawn(async move { mesh.learn(place) });
            }
        }
        self.bed.tally.fault(Kind::Join);
        self.start(at);
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
        Err(format!(
            "no command was taken in {} s after the last fault: {}",
            HEALED_WITHIN.as_secs(),
            self.bed.picture()
        ))
    }

    /// Waits until all have the same, and looks for what was acknowledged.
    async fn settle(&mut self, offices: &Offices, ledger: &Ledger) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            self.look(offices).await?;
            let states: Vec<Option<Vec<u64>>> = (0..self.bed.posts.len())
                .filter(|at| self.listed(*at))
                .map(|at| self.bed.posts[at].runs.as_ref().map(Member::commands))
                .collect();
            let whole = states.iter().all(|state| state.as_ref().is_some_and(|state| state.len() == self.truth.len()));
            if whole {
                break;
            }
            if begin.elapsed() > HEALED_WITHIN {
                return Err(format!("not all have everything: {}", self.bed.picture()));
            }
            sleep(LOOK).await;
        }
        let acknowledged = ledger.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        match acknowledged.iter().find(|command| !self.truth.has(**command)) {
            Some(lost) => Err(format!("{lost:x} was acknowledged and is gone")),
            None => Ok(()),
        }
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
