//! The one thread through which the state changes: it drains waiting commands, stamps them, appends them to the log in
//! one durable transaction, applies them, and answers. A store that fails is reopened with back-off and the state is
//! rebuilt from disk (F12, F25). Not a place for decisions: those are in the pure files.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use chappie_mesh::{MeshId, NodeId, Roster};
use tokio::sync::{oneshot, watch};

use super::{
    apply::apply,
    command::{Command, Reply, Stamped},
    errors::ProposeError,
    limits::{BATCH_MAX, REOPEN_MS, SNAPSHOT_EVERY},
    membership::Membership,
    meshtime::{MeshTime, Reading},
    state::{DecodeError, State},
    volatile::Volatile,
};
use crate::{
    ids::{Conversation, Millis},
    storage::consensus::{ConsensusStore, Contents, WriteError},
};

/// Reads both clocks.
pub(super) type Clocks = Box<dyn Fn() -> Reading + Send + Sync>;

/// What handles and the writer share. Lock order: `state`, then `memory`.
pub(super) struct Shared {
    state: RwLock<State>,
    memory: Mutex<Memory>,
    /// Index of the last applied command.
    pub(super) applied: watch::Sender<u64>,
    /// Counts everything that a waiting selection may care for.
    pub(super) changed: watch::Sender<u64>,
    /// The roster of the state; see [`nobody`] before there is one.
    pub(super) roster: watch::Sender<Arc<Roster>>,
    clocks: Clocks,
}

/// What is not in the log.
pub(super) struct Memory {
    pub(super) volatile: Volatile,
    time: MeshTime,
    /// Commands that take others back; kept until they are written.
    undo: Vec<Undo>,
    /// Why nothing can be written now.
    pub(super) trouble: Option<String>,
}

/// A command that takes another one back.
pub(super) struct Undo {
    pub(super) command: Command,
    /// Whose default changes by it; selections of it wait meanwhile.
    pub(super) conversation: Option<Conversation>,
}

impl Shared {
    pub(super) fn new(state: State, clocks: Clocks) -> Self {
        let time = MeshTime::resume((state.applied > 0).then_some(state.at), clocks());
        let memory = Memory { volatile: Volatile::default(), time, undo: Vec::new(), trouble: None };
        Self {
            applied: watch::Sender::new(state.applied),
            changed: watch::Sender::new(0),
            roster: watch::Sender::new(Arc::new(state.membership.as_ref().map_or_else(nobody, Membership::roster))),
            state: RwLock::new(state),
            memory: Mutex::new(memory),
            clocks,
        }
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mesh time for a look-up.
    pub(super) fn now(&self, memory: &Memory) -> Millis {
        memory.time.peek((self.clocks)())
    }

    /// Wakes waiting selections.
    pub(super) fn wake(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Puts a command on the list of those that take others back. The writer works it off with its next batch.
    pub(super) fn push_undo(&self, undo: Undo) {
        let mut memory = self.memory();
        if let Some(conversation) = &undo.conversation {
            memory.volatile.start_undo(conversation.clone());
        }
        memory.undo.push(undo);
    }

    /// Takes back what nobody waits for any more: its proposer went away before it learnt the reply. A bind that another
    /// request has used since (its use is later than `seq`) stays.
    pub(super) fn abandon(&self, command: &Command, seq: u64, reply: &Reply) {
        let Some(undo) = command.undo(reply) else { return };
        let conversation = match command {
            Command::Bind { chat, .. } => Some(Conversation::Chat(chat.clone())),
            _ => None,
        };
        let used = conversation.as_ref().is_some_and(|whose| self.memory().volatile.last_use(whose) > seq);
        if !used {
            self.push_undo(Undo { command: undo, conversation });
        }
    }
}

/// The roster before a mesh was founded: it admits nobody, and every other one is a later word.
fn nobody() -> Roster {
    let (mesh, broker) = (MeshId::from([0; 16]), NodeId::from([0; 32]));
    let (members, removed, voters) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    Roster { mesh, epoch: 0, version: 0, broker, members, removed, voters, epoch_id: [0; 16] }
}

/// A session reserved for a selection in progress; dropping it lets the next waiter have it.
pub(super) struct Hold {
    pub(super) shared: Arc<Shared>,
    pub(super) conversation: Conversation,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.memory().volatile.release(&self.conversation);
        self.shared.wake();
    }
}

/// Where a reply goes.
pub(super) type Answer = oneshot::Sender<Result<Reply, ProposeError>>;

/// A proposed command.
pub(super) struct Job {
    pub(super) command: Command,
    /// `None`: nobody waits for it.
    pub(super) answer: Option<Answer>,
    /// The conversation's last use when this was proposed.
    pub(super) seq: u64,
    /// Kept until the command is settled.
    pub(super) hold: Option<Hold>,
}

impl Job {
    fn abandoned(&self) -> bool {
        self.command.revocable() && self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// Work for the thread.
pub(super) enum Message {
    Propose(Box<Job>),
    /// Look at the undo list.
    Wake,
    /// Copies the store; the word says what for, and stands in the copy's name.
    Backup(&'static str, oneshot::Sender<io::Result<PathBuf>>),
    /// Copies the store and commits a command with nothing in between; without a copy there is no command.
    BackedUp(&'static str, oneshot::Sender<PathBuf>, Box<Job>),
    Stop(oneshot::Sender<()>),
}

/// A store that failed.
struct Down {
    retry: Instant,
}

/// The thread's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    store: ConsensusStore,
    /// Index up to which the snapshot on disk goes.
    snapshot: u64,
    down: Option<Down>,
    /// The next pause before reopening; zero while all is well.
    pause: Duration,
}

impl Writer {
    pub(super) const fn new(shared: Arc<Shared>, store: ConsensusStore, snapshot: u64) -> Self {
        Self { shared, store, snapshot, down: None, pause: Duration::ZERO }
    }

    /// Works until it is stopped or every handle is gone.
    pub(super) fn run(mut self, queue: &Receiver<Message>) {
        loop {
            let first = match &self.down {
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(down) => queue.recv_timeout(down.retry.saturating_duration_since(Instant::now())),
            };
            let (batch, control) = match first {
                Ok(message) => drain(message, queue),
                Err(RecvTimeoutError::Timeout) => (Vec::new(), None),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.reopen_when_due();
            self.work(batch);
            match control {
                Some(Message::Backup(what_for, done)) => {
                    let _ = done.send(self.backup(what_for));
                }
                Some(Message::BackedUp(what_for, done, job)) => self.backed_up(what_for, done, *job),
                Some(Message::Stop(done)) => {
                    drop(self);
                    let _ = done.send(());
                    return;
                }
                Some(Message::Propose(_) | Message::Wake) | None => {}
            }
        }
    }

    /// Commits a batch and whatever must be taken back, then a snapshot when one is due.
    fn work(&mut self, batch: Vec<Job>) {
        let mut jobs: Vec<Job> = batch.into_iter().filter(|job| !job.abandoned()).collect();
        loop {
            let undo = std::mem::take(&mut self.shared.memory().undo);
            if jobs.is_empty() && undo.is_empty() {
                break;
            }
            if self.down.is_some() {
                self.refuse(jobs, undo);
                return;
            }
            self.commit(std::mem::take(&mut jobs), undo);
        }
        if self.down.is_none() {
            self.snapshot_when_due();
        }
    }

    fn refuse(&self, jobs: Vec<Job>, undo: Vec<Undo>) {
        let cause = {
            let mut memory = self.shared.memory();
            memory.undo.splice(0..0, undo);
            memory.trouble.clone().unwrap_or_default()
        };
        for job in jobs {
            answer(&self.shared, job, Err(ProposeError::NotWritten(cause.clone())));
        }
    }

    fn commit(&mut self, jobs: Vec<Job>, undo: Vec<Undo>) {
        let (entries, time) = self.stamp(&jobs, &undo);
        let rows: Vec<(u64, Vec<u8>)> = entries.iter().map(|entry| (entry.index, entry.encode())).collect();
        match self.store.append(&rows) {
            Ok(()) => self.apply(&entries, time, jobs, undo),
            Err(error) => {
                self.fail(&error.to_string());
                self.shared.memory().undo.splice(0..0, undo);
                let error = match error {
                    WriteError::NotWritten(cause) => ProposeError::NotWritten(cause),
                    WriteError::Unknown(cause) => ProposeError::Unknown(cause),
                };
                for job in jobs {
                    answer(&self.shared, job, Err(error.clone()));
                }
                self.reopen_when_due();
            }
        }
    }

    /// Gives each command its place and the time; a jump of the clock goes before them. The new mesh time counts only
    /// once the entries are on disk, or a jump could be lost with them.
    fn stamp(&self, jobs: &[Job], undo: &[Undo]) -> (Vec<Stamped>, MeshTime) {
        let mut time = self.shared.memory().time;
        let stamp = time.stamp((self.shared.clocks)());
        let jump = stamp.jumped.map(|gap_ms| Command::Jump { gap_ms });
        let undo = undo.iter().map(|undo| &undo.command);
        let commands = jump.iter().chain(undo).chain(jobs.iter().map(|job| &job.command)).cloned();
        let first = self.shared.state().applied + 1;
        let entries = (first..).zip(commands).map(|(index, command)| Stamped { at: stamp.at, index, command });
        (entries.collect(), time)
    }

    fn apply(&mut self, entries: &[Stamped], time: MeshTime, jobs: Vec<Job>, undo: Vec<Undo>) {
        self.pause = Duration::ZERO;
        let replies: Vec<Reply> = {
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            entries.iter().map(|entry| apply(&mut state, entry)).collect()
        };
        {
            let mut memory = self.shared.memory();
            memory.time = time;
            for conversation in undo.iter().filter_map(|undo| undo.conversation.as_ref()) {
                memory.volatile.end_undo(conversation);
            }
        }
        self.publish();
        // Jobs are the last entries; a jump and what was taken back have nobody waiting.
        let others = replies.len() - jobs.len();
        for (job, reply) in jobs.into_iter().zip(replies.into_iter().skip(others)) {
            answer(&self.shared, job, Ok(reply));
        }
    }

    fn publish(&self) {
        let (applied, roster) = {
            let state = self.shared.state();
            let changed = state.membership.as_ref().filter(|known| !known.is(&self.shared.roster.borrow()));
            (state.applied, changed.map(Membership::roster))
        };
        if let Some(roster) = roster {
            self.shared.roster.send_replace(Arc::new(roster));
        }
        self.shared.applied.send_replace(applied);
        self.shared.wake();
    }

    fn snapshot_when_due(&mut self) {
        let (applied, bytes) = {
            let state = self.shared.state();
            if state.applied - self.snapshot < SNAPSHOT_EVERY {
                return;
            }
            (state.applied, state.encode())
        };
        match self.store.snapshot(applied, &bytes) {
            Ok(()) => self.snapshot = applied,
            Err(error) => self.fail(&format!("no snapshot: {error}")),
        }
    }

    fn fail(&mut self, cause: &str) {
        tracing::warn!(cause, "the broker's store failed; it is reopened");
        self.shared.memory().trouble = Some(cause.to_owned());
        self.down = Some(Down { retry: Instant::now() + self.pause });
        let (first, longest) = (Duration::from_millis(REOPEN_MS.0), Duration::from_millis(REOPEN_MS.1));
        self.pause = (self.pause * 2).clamp(first, longest);
    }

    fn reopen_when_due(&mut self) {
        if self.down.as_ref().is_none_or(|down| Instant::now() < down.retry) {
            return;
        }
        let rebuilt = match self.store.reopen() {
            Ok(contents) => rebuild(&contents, self.shared.state().applied).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match rebuilt {
            Ok(rebuilt) => self.take_over(rebuilt),
            Err(cause) => self.fail(&cause),
        }
    }

    /// Takes the state on disk for the truth. Entries that were reported as unknown and turn out to be there are taken
    /// back where that is possible: their proposers did not act on them.
    fn take_over(&mut self, rebuilt: Rebuilt) {
        self.down = None;
        self.snapshot = rebuilt.snapshot;
        {
            let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
            if rebuilt.state.applied != state.applied {
                let resumed = MeshTime::resume(Some(rebuilt.state.at), (self.shared.clocks)());
                *state = rebuilt.state;
                self.shared.memory().time = resumed;
            }
        }
        self.shared.memory().trouble = None;
        for (command, reply) in rebuilt.unknown {
            self.shared.abandon(&command, u64::MAX, &reply);
        }
        self.publish();
    }

    fn backed_up(&mut self, what_for: &str, done: oneshot::Sender<PathBuf>, job: Job) {
        match self.backup(what_for) {
            Ok(path) => {
                let _ = done.send(path);
                self.work(vec![job]);
            }
            Err(error) => answer(&self.shared, job, Err(ProposeError::NotWritten(format!("no backup: {error}")))),
        }
    }

    /// Copies the store to the first free `consensus.redb.WHAT_FOR-N.bak`.
    fn backup(&self, what_for: &str) -> io::Result<PathBuf> {
        let free = (1_u32..).map(|n| {
            let mut name = self.store.path().as_os_str().to_owned();
            name.push(format!(".{what_for}-{n}.bak"));
            PathBuf::from(name)
        });
        let target = free.into_iter().find(|path| !path.exists()).ok_or_else(|| io::Error::other("no free name"))?;
        self.store.copy_to(&target)?;
        Ok(target)
    }
}

/// Takes what waits, up to the size of a batch. A message of another kind ends the batch and is handled after it.
fn drain(first: Message, queue: &Receiver<Message>) -> (Vec<Job>, Option<Message>) {
    let mut batch = Vec::new();
    let mut next = Ok(first);
    loop {
        match next {
            Ok(Message::Propose(job)) => batch.push(*job),
            Ok(other) => return (batch, Some(other)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return (batch, None),
        }
        if batch.len() >= BATCH_MAX {
            return (batch, None);
        }
        next = queue.try_recv();
    }
}

/// Ends the reservation and sends the reply; what nobody receives any more is taken back. A bind is in the state by now, so
/// that no waiter takes its session for free in between.
fn answer(shared: &Shared, job: Job, result: Result<Reply, ProposeError>) {
    let Job { command, answer, seq, hold } = job;
    drop(hold);
    if let Some(Err(Ok(reply))) = answer.map(|answer| answer.send(result)) {
        shared.abandon(&command, seq, &reply);
    }
}

/// The state that a store holds.
pub(super) struct Rebuilt {
    pub(super) state: State,
    pub(super) snapshot: u64,
    /// Commands after the given index, with what they did.
    unknown: Vec<(Command, Reply)>,
}

/// Replays what a store holds; `known` is the index up to which the replies were given.
pub(super) fn rebuild(contents: &Contents, known: u64) -> Result<Rebuilt, DecodeError> {
    let mut state = match &contents.snapshot {
        Some((_, bytes)) => State::decode(bytes)?,
        None => State::default(),
    };
    let snapshot = contents.snapshot.as_ref().map_or(0, |(index, _)| *index);
    let mut unknown = Vec::new();
    for (_, bytes) in &contents.tail {
        let entry = Stamped::decode(bytes)?;
        let reply = apply(&mut state, &entry);
        if entry.index > known {
            unknown.push((entry.command, reply));
        }
    }
    Ok(Rebuilt { state, snapshot, unknown })
}
