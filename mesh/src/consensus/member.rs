//! One member of a group: the handle that the program above has of it.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{Config, SnapshotPolicy, errors::ClientWriteError, impls::ProgressResponder};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    api::{
        Carrier, CommitError, Group, LogStore, Machine, MemberId, Office, Pace, Persisted, Standing, StoreId, Voting,
    },
    driver,
    log::Log,
    machine::Applier,
    network::{Line, Voters},
    policy::Present,
    presence::{self, Said},
    serve::Desk,
    shared::Shared,
    tend,
    types::{Command, Raft, Term, Types, keep},
    wire::{Question, answered},
    writer::Writer,
};
use crate::{
    identity::{NodeId, Roster},
    runtime,
};

/// How long a command may take to be committed. Longer than an election with a lost round; what takes longer may be
/// carried out later (failure rule F12), and doors wait as long for a broker.
const COMMIT_WAIT: Duration = Duration::from_secs(5);

/// Entries between two snapshots. A restart carries at most so many out again, and memory holds at most so many.
const SNAPSHOT_EVERY: u64 = 4096;

/// Entries that stay behind a snapshot, for members that were away for a moment.
const KEPT_BEHIND: u64 = 512;

/// Entries in one message at most; bytes bound it as well.
const MESSAGE_ENTRIES: u64 = 1024;

/// How long the engine may take to end.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// Which member this is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This device.
    pub node: NodeId,
    /// Its store.
    pub store: StoreId,
    /// Whose log the store has.
    pub group: Group,
    /// How patient the members are.
    pub pace: Pace,
    /// Whether this device may vote.
    pub voting: Voting,
    /// Whether it stands for election from the start, or only from [`Consensus::stand`] on. It votes either way.
    pub stands: bool,
}

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log cannot be read: damaged, or of a newer program.
    #[error("the broker's log cannot be read: {0}")]
    Unreadable(String),
    /// The system gave no thread.
    #[error("the broker's log cannot be written: {0}")]
    System(#[from] io::Error),
    /// The engine refused.
    #[error("the broker's log cannot be used: {0}")]
    Engine(String),
}

/// A member of a group. Clones are the same member. It runs until [`Consensus::stop`].
#[derive(Clone)]
pub struct Consensus {
    pub(super) shared: Arc<Shared>,
    line: Line,
    desk: Arc<Desk>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl fmt::Debug for Consensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consensus").field("own", &self.shared.own).finish_non_exhaustive()
    }
}

fn config(pace: Pace, stands: bool) -> Result<Config, StartError> {
    let kept = runtime::limit("kept behind", KEPT_BEHIND);
    let config = Config {
        cluster_name: "chappie".into(),
        heartbeat_interval: pace.heartbeat_ms,
        election_timeout_min: pace.patience_min_ms,
        election_timeout_max: pace.patience_max_ms,
        max_payload_entries: MESSAGE_ENTRIES,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(runtime::limit("snapshot every", SNAPSHOT_EVERY)),
        max_in_snapshot_log_to_keep: kept,
        purge_batch_size: kept,
        enable_pre_vote: Some(true),
        enable_elect: stands,
        // A leader that was restarted is elected anew: what it promised before is over.
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    config.validate().map_err(|error| StartError::Engine(error.to_string()))
}

/// Has the only voter elected at once: it need not wait for its patience to end. A failure ends the engine, which says so
/// itself.
async fn elect_alone(shared: &Shared) {
    let own = shared.own;
    let alone = move |state: &openraft::RaftState<Types>| {
        let mut voters = state.membership_state.effective().voter_ids();
        voters.next() == Some(own) && voters.next().is_none()
    };
    if shared.raft.with_raft_state(alone).await.is_ok_and(|alone| alone) {
        let _ = shared.raft.trigger().elect(false).await;
    }
}

impl Consensus {
    /// Reads `persisted` into `machine`, and starts the member. Its only voter is elected at once, if it stands. `store` is closed
    /// when this fails.
    ///
    /// # Errors
    /// When the log is unreadable, or the system gives no thread.
    pub async fn start(
        settings: Settings,
        persisted: Persisted,
        store: Box<dyn LogStore>,
        machine: Box<dyn Machine>,
        carrier: Arc<dyn Carrier>,
    ) -> Result<Self, StartError> {
        let writer = Writer::start(store)?;
        let started = Self::start_on(settings, persisted, writer.clone(), machine, carrier).await;
        if started.is_err() {
            writer.close().await;
        }
        started
    }

    async fn start_on(
        settings: Settings,
        mut persisted: Persisted,
        writer: Writer,
        machine: Box<dyn Machine>,
        carrier: Arc<dyn Carrier>,
    ) -> Result<Self, StartError> {
        let unreadable = |error: &dyn fmt::Display| StartError::Unreadable(error.to_string());
        let own = MemberId::of(&settings.node, &settings.store);
        let snapshot = match persisted.snapshot.take() {
            Some((meta, data)) => Some((keep(&meta).map_err(|error| unreadable(&error))?, data.into())),
            None => None,
        };
        let log = Log::open(&persisted, writer.clone()).map_err(|error| unreadable(&error))?;
        drop(persisted);
        let (applier, opened) = Applier::open(machine, snapshot, writer.clone()).map_err(|error| unreadable(&error))?;
        let voters = Voters::default();
        let Settings { group, store, pace, stands, .. } = settings;
        let line = Line { group, store, pace, carrier, voters: Arc::clone(&voters) };
        let config = Arc::new(config(pace, stands)?);
        let raft = Raft::new(own, config, line.clone(), log.clone(), applier)
            .await
            .map_err(|error| StartError::Engine(error.to_string()))?;
        // Set here alone, so it was not set before.
        let _ = voters.set(raft.metrics());
        // The engine has what it needs of it; later it is read from the store.
        opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let who = (settings.group, own, settings.node, settings.pace);
        let shared = Arc::new(Shared::new(who, raft, log, writer));
        if settings.stands {
            elect_alone(&shared).await;
        }
        let desk = Arc::new(Desk::new(Arc::clone(&shared), settings.voting));
        let driver = runtime::spawn(driver::drive(Arc::clone(&shared)));
        let presence = runtime::spawn(presence::watch(Arc::clone(&shared), line.clone()));
        Ok(Self { shared, line, desk, tasks: Arc::new(Mutex::new(vec![driver, presence])) })
    }

    /// From now on this member stands for election, if it did not from its start.
    pub async fn stand(&self) {
        self.shared.raft.runtime_config().elect(true);
        elect_alone(&self.shared).await;
    }

    /// Asks devices of which group they are; those that answer within `wait`.
    pub async fn sound(&self, nodes: &[NodeId], wait: Duration) -> Vec<(NodeId, Said)> {
        presence::sound(&self.line, nodes, wait).await
    }

    /// How the group stands.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Arc<Standing>> {
        self.shared.standing.subscribe()
    }

    /// Has `commands` carried out in this order and in `office`; their replies in the same order. It waits 5 s at most.
    pub async fn propose(&self, office: Office, commands: Vec<Vec<u8>>) -> Vec<Result<Vec<u8>, CommitError>> {
        if self.shared.yielding(office.term) {
            return commands.iter().map(|_| Err(CommitError::NotActing)).collect();
        }
        let until = Instant::now() + COMMIT_WAIT;
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            let (asker, answer) = ProgressResponder::complete_only();
            let write = self.shared.raft.write(Command(command.into())).responder(asker);
            let sent = timeout_at(until, write.with_leader(Term::new(office.term))).await;
            answers.push(match sent {
                Ok(Ok(())) => Ok(answer),
                Ok(Err(_)) => Err(CommitError::Stopped(self.why_stopped())),
                Err(_) => Err(CommitError::Unknown("the log is too slow".into())),
            });
        }
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            let answer = match answer {
                Ok(answer) => timeout_at(until, answer).await,
                Err(error) => {
                    replies.push(Err(error));
                    continue;
                }
            };
            replies.push(match answer {
                Ok(Ok(Ok(response))) => Ok(response.data.0),
                Ok(Ok(Err(ClientWriteError::ForwardToLeader(_)))) => Err(CommitError::NotActing),
                Ok(Ok(Err(error))) => Err(CommitError::Unknown(error.to_string())),
                Ok(Err(_)) => Err(CommitError::Stopped(self.why_stopped())),
                Err(_) => Err(CommitError::Unknown(format!("no answer in {} s", COMMIT_WAIT.as_secs()))),
            });
        }
        replies
    }

    fn why_stopped(&self) -> String {
        let running = self.shared.metrics().running_state;
        let fatal = || running.map_or_else(|fatal| fatal.to_string(), |()| "it has ended".into());
        self.shared.writer.failed().unwrap_or_else(fatal)
    }

    /// Makes sure that this member may act now (failure rule F11): at once while the lease is fresh, else by asking a
    /// quorum, for as long as an election may take.
    ///
    /// # Errors
    /// [`CommitError::NotActing`] when it does not hold the office; [`CommitError::Unknown`] when no quorum answers.
    pub async fn assure(&self) -> Result<Office, CommitError> {
        let shared = &self.shared;
        if let Some(office) = shared.office() {
            return Ok(office);
        }
        let view = shared.view(&shared.metrics());
        let Some(term) = view.leads else { return Err(CommitError::NotActing) };
        if shared.yielding(term) {
            return Err(CommitError::NotActing);
        }
        match timeout(shared.pace.silence(), shared.read_index()).await {
            // The engine asked the quorum after this began, so the answer holds although the lease is not renewed yet.
            Ok(Ok(confirmed)) if confirmed == term && !shared.yielding(term) => Ok(Office { term }),
            Ok(Ok(_)) => Err(CommitError::NotActing),
            Ok(Err(why)) => Err(if shared.view(&shared.metrics()).leads == Some(term) {
                CommitError::Unknown(why)
            } else {
                CommitError::NotActing
            }),
            Err(_) => Err(CommitError::Unknown(format!("no answer in {} ms", shared.pace.silence().as_millis()))),
        }
    }

    /// Answers what the device `from` asked over the raft connection.
    pub async fn answer(&self, from: NodeId, question: &Question) -> Vec<u8> {
        answered(&self.desk.answer(from, question).await)
    }

    /// Hands the leadership to `to`, or to the voter that has most of the log; milliseconds. `true` when another member
    /// leads. It is `false`, and nothing changes, when no such voter is connected and has nearly all of the log.
    pub async fn hand_over(&self, to: Option<NodeId>) -> bool {
        tend::hand_over(&self.shared, to).await
    }

    /// From now on, whenever this member holds the office, keeps who votes and who follows as the roster and the policy
    /// want it (failure rules F15 and F21).
    pub fn tend(&self, rosters: watch::Receiver<Arc<Roster>>) {
        let own = Present { member: self.shared.own, voting: self.desk.voting() };
        let task = runtime::spawn(tend::tend(Arc::clone(&self.shared), own, self.line.clone(), rosters));
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// What time it is at each voter that answers within a second, this one first; in milliseconds since the Unix epoch
    /// (failure rule F14).
    pub async fn clocks(&self) -> Vec<u64> {
        let there = presence::ask(&self.shared, &self.line).await;
        std::iter::once(runtime::wall_ms()).chain(there.into_iter().map(|(_, here)| here.wall_ms)).collect()
    }

    /// Ends the member. The store is closed when this returns.
    pub async fn stop(&self) {
        // Both ends are bounded: a disk that hangs must not keep the program from ending.
        let _ = timeout(STOP_WAIT, self.shared.raft.shutdown()).await;
        let _ = timeout(STOP_WAIT, self.shared.writer.close()).await;
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let mut tasks = tasks.into_iter();
        // The driver says the last word and ends by itself.
        let driver = tasks.next();
        tasks.for_each(|task| task.abort());
        if let Some(mut driver) = driver
            && timeout(STOP_WAIT, &mut driver).await.is_err()
        {
            driver.abort();
        }
    }
}
