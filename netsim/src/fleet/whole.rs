//! Scenario: whole nodes. A mesh of three to five devices is joined by invites; chats send work through all doors while
//! devices crash, sleep and lose each other. Looked at after each step: one broker acts in an epoch, nothing runs twice,
//! nothing runs that was denied. At the end, after the faults: each door reaches each session, every outcome is told, all
//! members have the same.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use chappie::{config::JoinCode, control::InviteRow};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{
    bed::{Bed, LOOK, Post},
    changes::Kept,
    clients::{Chat, Door, Got, Office, Street},
    counters::{Counters, Tally},
    host,
    ledger::Ledger,
    node::{Node, Start},
    options::Options,
};
use crate::world::{
    fault::{Kind, Plan},
    seed::{PerMille, Seed},
    trace::Trace,
};

/// How long faults happen.
const TROUBLED: Duration = Duration::from_secs(30);
/// How many operations clients send at least, and how many faults happen; for them it goes on for longer, up to [`ENOUGH`].
const OPERATIONS_MIN: u64 = 200;
const FAULTS_MIN: u64 = 10;
/// How long it goes on at most.
const ENOUGH: Duration = Duration::from_secs(120);
/// How long it may take until all are one mesh at the start.
const FOUNDED_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take afterwards until every door reaches every session, and every outcome is told.
const HEALED_WITHIN: Duration = Duration::from_secs(90);
/// Chats at the same time.
const CHATS: u64 = 24;

/// The faults of this scenario.
const KINDS: [Kind; 19] = [
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
    Kind::Move,
    Kind::Restore,
    Kind::Clone,
    Kind::Join,
    Kind::Forget,
    Kind::Recover,
];

pub(super) struct Village {
    pub(super) bed: Bed<Node>,
    pub(super) office: Office,
    pub(super) seed: Seed,
    /// A real folder; nothing is put there but empty folders.
    pub(super) home: PathBuf,
    pub(super) sessions: Vec<Option<String>>,
    pub(super) joined: Vec<bool>,
    pub(super) forgotten: Vec<bool>,
    pub(super) kept: Kept,
}

/// Runs it.
pub(super) async fn run(seed: Seed, number: u64, options: Options) -> Result<Tally, String> {
    let trace = Trace::new(options.keep);
    let home = home(number)?;
    let outcome = run_in(seed, home.clone(), &options, &trace).await;
    options.took.note(&trace);
    // Left over: the system's own cleaning takes it.
    let _left = std::fs::remove_dir_all(home);
    outcome
}

/// A folder of this run; its path has the same length in every run, because it travels in messages.
fn home(number: u64) -> Result<PathBuf, String> {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let run = RUN.fetch_add(1, Ordering::SeqCst);
    let name = format!("netsim-{:08}-{number:012}-{run:08}", std::process::id());
    let home = PathBuf::from("/tmp").join(name);
    std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
    Ok(home)
}

async fn run_in(seed: Seed, home: PathBuf, options: &Options, trace: &Trace) -> Result<Tally, String> {
    let mut village = Village::new(seed, home, options, trace)?;
    village.found().await?;
    let chats: Vec<_> = (1..=CHATS).map(|number| tokio::spawn(village.chat(seed, number).run())).collect();
    let mut plan = Plan::draw(seed.fork("faults"), &KINDS);
    trace.event("world", format_args!("faults: {:?}", plan.kinds()));
    let begin = Instant::now();
    let mut next = plan.draw_next();
    let mut at = Instant::now() + Duration::from_secs(1);
    while village.goes_on(begin) {
        village.look().await?;
        if Instant::now() >= at
            && let Some((wait, kind)) = next
        {
            village.strike(kind).await?;
            at = Instant::now() + wait;
            next = plan.draw_next();
        }
        sleep(LOOK).await;
    }
    village.end_copy();
    let joined = village.joined.clone();
    village.bed.calm(|at, _| joined[at]);
    village.office.stop.store(true, Ordering::SeqCst);
    let quiet = async {
        for chat in chats {
            let _ended = chat.await;
        }
    };
    village.looking(quiet).await?;
    village.reach(seed).await?;
    village.hear(seed).await?;
    village.settle().await?;
    village.bed.tally.add(Counters::Operations, village.office.sent.load(Ordering::SeqCst));
    Ok(village.bed.tally)
}

impl Village {
    fn new(seed: Seed, home: PathBuf, options: &Options, trace: &Trace) -> Result<Self, String> {
        let count = u8::try_from(seed.fork("count").rng().within(3..=5)).unwrap_or(3);
        let bed = Bed::new(seed, count, options, trace)?;
        let office = Office {
            street: Street::default(),
            ledger: Ledger::default(),
            trace: trace.clone(),
            stop: Arc::new(AtomicBool::new(false)),
            sent: Arc::default(),
            broken: options.broken,
        };
        let count = usize::from(count);
        let (joined, forgotten) = (vec![false; count], vec![false; count]);
        Ok(Self { bed, office, seed, home, sessions: vec![None; count], joined, forgotten, kept: Kept::default() })
    }

    /// Whether there is to be more trouble.
    fn goes_on(&self, begin: Instant) -> bool {
        let sent = self.office.sent.load(Ordering::SeqCst);
        let few = sent < OPERATIONS_MIN || self.bed.tally.faults() < FAULTS_MIN;
        begin.elapsed() < TROUBLED || few && begin.elapsed() < ENOUGH
    }

    fn chat(&self, seed: Seed, number: u64) -> Chat {
        Chat { number, rng: seed.fork(&format!("chat {number}")).rng(), office: self.office.clone() }
    }

    pub(super) fn start(&mut self, at: usize) -> Result<(), String> {
        let device = &mut self.bed.posts[at].device;
        let home = self.home.join(&device.name);
        std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        let inside = device.begin();
        let start = Start::of(device, home, &self.office.ledger);
        let task = inside.spawn(Node::start(start));
        self.bed.started(at, inside, task);
        Ok(())
    }

    /// One look at everything.
    pub(super) async fn look(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.office.ledger.wrong() {
            return Err(wrong);
        }
        for at in self.bed.tend().await {
            self.start(at)?;
        }
        self.bed.offices()?;
        self.keep_changes();
        for (at, post) in self.bed.posts.iter().enumerate() {
            // A journal on a disk that fails may lose what ended there, and says that it is uncertain (F25).
            let worn = post.device.disk.worn();
            if worn.lost_syncs.0 > 0 || worn.room.is_some() || !post.device.is_running() {
                self.office.ledger.shake(at);
            }
        }
        let mut doors = Vec::new();
        for (at, post) in self.bed.posts.iter().enumerate() {
            if let (Some(node), Some(inside)) = (&post.runs, &post.inside) {
                self.sessions[at] = Some(node.session.clone());
                if post.device.is_running() && self.joined[at] {
                    let (name, node, inside) = (post.device.name.clone(), node.clone(), Arc::clone(inside));
                    doors.push(Door { name, node, inside });
                }
            }
        }
        self.office.street.show(doors, self.sessions.clone());
        Ok(())
    }

    /// Looks until `what` is done.
    pub(super) async fn looking<T>(&mut self, what: impl Future<Output = T>) -> Result<T, String> {
        let mut what = std::pin::pin!(what);
        loop {
            if let Ok(done) = timeout(LOOK, what.as_mut()).await {
                return Ok(done);
            }
            self.look().await?;
        }
    }

    /// All devices become one mesh: the first invites, the others join.
    async fn found(&mut self) -> Result<(), String> {
        self.start(0)?;
        self.joined[0] = true;
        // The last of four or five joins later.
        let first = if self.bed.posts.len() > 3 { self.bed.posts.len() - 1 } else { 3 };
        for at in 1..first {
            self.start(at)?;
        }
        let begin = Instant::now();
        while self.joined[..first].iter().any(|joined| !joined) {
            self.look().await?;
            for at in 1..first {
                if !self.joined[at] {
                    self.join(at).await?;
                }
            }
            if begin.elapsed() > FOUNDED_WITHIN {
                return Err(format!("no mesh in {} s: {}", FOUNDED_WITHIN.as_secs(), self.bed.picture()));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    pub(super) async fn join(&mut self, at: usize) -> Result<(), String> {
        let (Some(host), Some(inside)) = (self.bed.posts[0].runs.clone(), self.bed.posts[0].inside.clone()) else {
            return Ok(());
        };
        let (Some(guest), Some(there)) = (self.bed.posts[at].runs.clone(), self.bed.posts[at].inside.clone()) else {
            return Ok(());
        };
        let invite = inside.spawn(async move { host.commands.invite(8, 600_000).await });
        let invite: InviteRow = match self.looking(invite).await? {
            Ok(Ok(row)) => row,
            Ok(Err(error)) => {
                self.bed.trace.event("world", format_args!("no invite: {error}"));
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        let code: JoinCode = invite.code.parse().map_err(|_| "an invite that cannot be read".to_owned())?;
        let joining = there.spawn(async move { guest.commands.join(code).await });
        match self.looking(joining).await? {
            Ok(Ok(row)) => {
                self.bed
                    .trace
                    .event("world", format_args!("{} joined, {} members", self.bed.posts[at].device.name, row.members));
                self.joined[at] = true;
            }
            Ok(Err(error)) => self.bed.trace.event("world", format_args!("not joined: {error}")),
            Err(_) => {}
        }
        Ok(())
    }

    async fn strike(&mut self, kind: Kind) -> Result<(), String> {
        self.bed.trace.event("world", format_args!("fault: {kind}"));
        // More than half are away seldom: a mesh that never works shows nothing of how it works.
        let posts = self.bed.posts.iter().zip(&self.joined);
        let away = posts.filter(|(post, joined)| **joined && !post.is_up()).count();
        let members = self.joined.iter().filter(|joined| **joined).count();
        if away > members.saturating_sub(1) / 2 && !self.bed.rng.hits(PerMille(100)) {
            return Ok(());
        }
        let Some(at) = self.bed.some(Post::is_up) else { return Ok(()) };
        if self.has_copy() {
            // A copy that takes its original's place, and gives it back, is an open question: docs/TESTING.md.
            return Ok(());
        }
        if matches!(kind, Kind::Crash | Kind::Kill | Kind::Restart) {
            self.office.ledger.shake(at);
        }
        match kind {
            Kind::Restart => self.restart(at),
            Kind::Move => {
                self.bed.tally.fault(kind);
                self.restart(at);
            }
            Kind::Restore | Kind::Clone | Kind::Join | Kind::Forget | Kind::Recover => self.change(kind).await?,
            kind => self.bed.strike(kind, at),
        }
        Ok(())
    }

    /// An orderly stop, and a start after it.
    fn restart(&mut self, at: usize) {
        self.bed.tally.fault(Kind::Restart);
        let post = &mut self.bed.posts[at];
        post.device.tell(format_args!("stops"));
        let Some((node, inside)) = post.runs.take().zip(post.inside.clone()) else { return };
        let process = post.device.process.clone();
        inside.spawn(async move {
            node.stop().await;
            // Its end; what looks after devices starts it again.
            if let Some(process) = process {
                process.kill();
            }
        });
    }

    /// Every door reaches every session.
    async fn reach(&mut self, seed: Seed) -> Result<(), String> {
        let begin = Instant::now();
        let mut chat = self.chat(seed, CHATS + 1);
        let all = self.bed.posts.len();
        let members: Vec<usize> = (0..all).filter(|at| self.joined[*at]).collect();
        let pairs = members.iter().flat_map(|door| members.iter().map(move |at| (*door, *at)));
        let mut open: Vec<(usize, usize)> = pairs.collect();
        while let Some((door, at)) = open.pop() {
            self.look().await?;
            let doors = self.office.street.doors();
            let name = self.bed.posts[door].device.name.clone();
            let found = doors.into_iter().find(|door| door.name == name).zip(self.sessions[at].clone());
            let reached = match found {
                None => false,
                Some((door, session)) => {
                    let piece = self.office.ledger.send(at, chat.number);
                    let work = json!({"name": host::WORK, "arguments": {"piece": piece, "ms": 0}});
                    let asked = chat.ask_and_read(&door, "call", json!({"sessionId": session, "calls": [work]}));
                    matches!(self.looking(asked).await?, Got::Answer { is_error: false, .. })
                }
            };
            if !reached {
                if begin.elapsed() > HEALED_WITHIN {
                    let to = &self.bed.posts[at].device.name;
                    return Err(format!(
                        "the door of {name} does not reach the session of {to}: {}",
                        self.bed.picture()
                    ));
                }
                open.push((door, at));
                sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }

    /// Every outcome is told: chats ask until they have all of theirs, operations are asked for by their ids.
    async fn hear(&mut self, seed: Seed) -> Result<(), String> {
        let begin = Instant::now();
        let mut chats: Vec<Chat> = (1..=CHATS).map(|number| self.chat(seed.fork("later"), number)).collect();
        loop {
            let missing: Vec<(u64, u64)> = {
                let book = self.office.ledger.lock();
                let open = book.pieces.iter().filter(|(_, piece)| {
                    piece.done.is_some() && !piece.known && !piece.unread && !piece.shaken && piece.chat <= CHATS
                });
                open.map(|(number, piece)| (*number, piece.chat)).collect()
            };
            if missing.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > HEALED_WITHIN {
                let book = self.office.ledger.lock();
                let first = missing.first().and_then(|(number, _)| book.pieces.get(number));
                return Err(format!("outcomes that nobody was told: {missing:?}, the first: {first:?}"));
            }
            for chat in chats.iter_mut().filter(|chat| missing.iter().any(|(_, of)| *of == chat.number)) {
                self.look().await?;
                let at = missing.iter().find(|(_, of)| *of == chat.number).map_or(0, |(number, _)| *number);
                let device = self.office.ledger.lock().pieces.get(&at).map_or(0, |piece| piece.device);
                let doors = self.office.street.doors();
                let (Some(door), Some(session)) = (doors.first().cloned(), self.sessions[device].clone()) else {
                    continue;
                };
                let look = json!({"name": host::LOOK, "arguments": {}});
                let asked = chat.ask_and_read(&door, "call", json!({"sessionId": session, "calls": [look]}));
                self.looking(asked).await?;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// All members have applied the same.
    async fn settle(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            self.look().await?;
            let posts = self.bed.posts.iter().zip(&self.joined).filter(|(_, joined)| **joined);
            let applied: Vec<_> = posts
                .map(|(post, _)| {
                    let standing =
                        post.runs.as_ref().map(|node| Arc::clone(&super::bed::Runs::standing(node).borrow()));
                    standing.map(|now| (now.group, now.applied))
                })
                .collect();
            if applied.iter().all(|each| each.is_some() && *each == applied[0]) {
                return Ok(());
            }
            if begin.elapsed() > HEALED_WITHIN {
                return Err(format!("members differ: {}", self.bed.picture()));
            }
            sleep(LOOK).await;
        }
    }
}
