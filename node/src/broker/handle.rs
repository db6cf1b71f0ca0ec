//! [`Broker`]: what the rest of the program may use of the broker. It reads the state, waits, and proposes commands; the
//! decisions are in the pure files, the writing in `writer`.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use tokio::sync::{oneshot, watch};

use super::{
    apply::{self, known_receipt, receipts_full},
    command::{Command, ImportCounts, Reply, Reservation, Resolve, Settlement},
    errors::{OpenError, ProposeError, ResolveError},
    import::{self, ImportError, ImportReport, Imported},
    limits::{IMPORT_BATCH, IMPORT_BYTES_MAX, QUEUE_MAX, SETTLED_RESOURCES_MAX},
    meshtime::Reading,
    query,
    receipts::{Receipt, ReceiptKey, ReceiptKind},
    state::State,
    volatile::Announced,
    writer::{Answer, Clocks, Hold, Job, Message, Shared, Writer, rebuild},
};
use crate::{
    clock,
    ids::{CallId, Conversation, SessionId},
    storage::consensus::{ConsensusStore, Contents, Older},
};

/// How the broker behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Length of a participation window; zero turns windows off.
    pub cooldown: Duration,
    /// How long a selection waits for a session (behaviour 6.1: 5 s).
    pub offline_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { cooldown: Duration::from_secs(20), offline_wait: Duration::from_secs(5) }
    }
}

/// Handle to the broker; cheap to clone. The writer thread ends with the last handle or at [`Broker::close`].
#[derive(Clone)]
pub struct Broker {
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: SyncSender<Message>,
    pub(super) settings: Settings,
}

/// An operation to reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// [`super::receipt_key`].
    pub key: ReceiptKey,
    /// [`super::signature`].
    pub signature: String,
    /// The caller's own id, 1 to 128 characters.
    pub operation_id: String,
    /// Whose it is.
    pub conversation: Option<Conversation>,
    /// Where it goes.
    pub session: SessionId,
    /// That session's folder.
    pub cwd: PathBuf,
    /// Message or batch.
    pub kind: ReceiptKind,
    /// The call that will carry it.
    pub call_id: CallId,
}

/// What a reservation found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Reserved: dispatch it under this attempt.
    Fresh {
        /// 1, or more after attempts that never ran.
        attempt: u32,
    },
    /// Known: do not dispatch.
    Replay(Receipt),
    /// The same id was used with other arguments: an error.
    Conflict(Receipt),
    /// The table is full: an error.
    Full {
        /// Its size.
        limit: usize,
    },
}

impl Broker {
    /// Opens `<home>/consensus.redb`, rebuilds the state and starts the writer thread. Blocking.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(home: &Path, settings: Settings) -> Result<Self, OpenError> {
        let path = home.join("consensus.redb");
        let (store, contents) = ConsensusStore::open(&path, upgrade)?;
        let start = Instant::now();
        let clocks = move || Reading {
            wall: clock::now(),
            steady_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        Self::start(store, &contents, settings, Box::new(clocks))
    }

    pub(super) fn start(
        store: ConsensusStore,
        contents: &Contents,
        settings: Settings,
        clocks: Clocks,
    ) -> Result<Self, OpenError> {
        let path = store.path().to_owned();
        let rebuilt = rebuild(contents, u64::MAX)
            .map_err(|error| OpenError::Damaged { path: path.clone(), cause: error.to_string() })?;
        let shared = Arc::new(Shared::new(rebuilt.state, clocks));
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let writer = Writer::new(Arc::clone(&shared), store, rebuilt.snapshot);
        std::thread::Builder::new()
            .name("broker".into())
            .spawn(move || writer.run(&queue))
            .map_err(|error| OpenError::Io { path, cause: format!("no writer thread: {error}") })?;
        Ok(Self { shared, jobs, settings })
    }

    /// Writes what was proposed before, then closes the store. Later proposals are answered [`ProposeError::Stopped`].
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.send(Message::Stop(done)).await {
            let _ = closed.await;
        }
    }

    /// Replaces the list of online sessions, and wakes selections that wait for one when it changed.
    pub fn announce(&self, sessions: Vec<Announced>) {
        let changed = self.shared.memory().volatile.announce(sessions);
        // Every waiting selection looks again, so only when there is something to see.
        if changed {
            self.shared.wake();
        }
    }

    /// A connection ended: its default is forgotten.
    pub fn disconnected(&self, conversation: &Conversation) {
        if let Conversation::Connection(id) = conversation {
            self.shared.memory().volatile.forget_connection(id);
            self.shared.wake();
        }
    }

    /// Why nothing can be recorded now, when that is so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.memory().trouble.clone()
    }

    /// The conversation's default session, online or not.
    #[must_use]
    pub fn binding(&self, conversation: &Conversation) -> Option<SessionId> {
        let (state, memory) = (self.shared.state(), self.shared.memory());
        query::default_of(&state, &memory.volatile, conversation, self.shared.now(&memory))
    }

    /// Saved bindings of each session that has any.
    #[must_use]
    pub fn binding_counts(&self) -> BTreeMap<SessionId, usize> {
        let (state, memory) = (self.shared.state(), self.shared.memory());
        query::counts(&state, &memory.volatile, self.shared.now(&memory))
    }

    /// Opens or renews the participation window of a conversation in a session.
    pub fn open_window(&self, conversation: &Conversation, session: &SessionId) {
        let mut memory = self.shared.memory();
        let now = self.shared.now(&memory);
        memory.volatile.open_window(conversation, session, now, self.cooldown_ms());
    }

    /// Reserves an operation before its dispatch; durable when it returns [`Reserved::Fresh`]. Dropping the future
    /// before that takes an unfinished reservation back.
    ///
    /// # Errors
    /// [`ProposeError`]: do not dispatch.
    pub async fn reserve(&self, reserve: Reserve) -> Result<Reserved, ProposeError> {
        let reservation = Reservation {
            key: reserve.key,
            signature: reserve.signature,
            operation_id: reserve.operation_id,
            conversation: reserve.conversation,
            session: reserve.session,
            cwd: reserve.cwd.to_string_lossy().into_owned(),
            kind: reserve.kind,
            call_id: reserve.call_id,
        };
        let known = {
            let state = self.shared.state();
            let now = self.shared.now(&self.shared.memory());
            known_receipt(&state, now, &reservation)
                .or_else(|| receipts_full(&state, now, &reservation).then_some(apply::full_receipts()))
        };
        let reply = match known {
            Some(reply) => reply,
            None => self.propose(Command::Reserve(reservation)).await?,
        };
        Ok(match reply {
            Reply::Fresh { attempt } => Reserved::Fresh { attempt },
            Reply::Replay(receipt) => Reserved::Replay(*receipt),
            Reply::Conflict(receipt) => Reserved::Conflict(*receipt),
            Reply::Full { limit, .. } => Reserved::Full { limit },
            other => unreachable!("`Reserve` is never answered {other:?}"),
        })
    }

    /// Records the outcome of an attempt (F9: repeat until this returns `Ok`). The same again changes nothing, and so
    /// does a report for an earlier attempt or a receipt that is gone; completed is final.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn settle(&self, key: ReceiptKey, attempt: u32, settlement: Settlement) -> Result<(), ProposeError> {
        let mut outcome = settlement;
        let mut left_out = 0;
        if let Settlement::Completed { resources } = &mut outcome {
            left_out = u32::try_from(resources.len().saturating_sub(SETTLED_RESOURCES_MAX)).unwrap_or(u32::MAX);
            resources.truncate(SETTLED_RESOURCES_MAX);
        }
        self.propose(Command::Settle { key, attempt, outcome, left_out }).await.map(|_| ())
    }

    /// One receipt.
    #[must_use]
    pub fn receipt(&self, key: &ReceiptKey) -> Option<Receipt> {
        let state = self.shared.state();
        let now = self.shared.now(&self.shared.memory());
        state.receipts.get(key).filter(|receipt| !receipt.expired(now)).cloned()
    }

    /// All receipts, the newest first.
    #[must_use]
    pub fn receipts(&self) -> Vec<Receipt> {
        let state = self.shared.state();
        let now = self.shared.now(&self.shared.memory());
        query::receipts(&state, now)
    }

    /// Takes a person's word for an uncertain operation.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub async fn resolve(&self, key: ReceiptKey, how: Resolve) -> Result<(), ResolveError> {
        match self.propose(Command::Resolve { key: key.clone(), how }).await? {
            Reply::Unresolvable(None) => Err(ResolveError::Unknown(key)),
            Reply::Unresolvable(Some(status)) => Err(ResolveError::NotUncertain { key, status }),
            _ => Ok(()),
        }
    }

    /// Changes whenever a command was applied; the value is its index.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.applied.subscribe()
    }

    /// Those of `ids` that this conversation has not had yet.
    #[must_use]
    pub fn undelivered(&self, conversation: &Conversation, ids: &[String]) -> Vec<String> {
        query::undelivered(&self.shared.state(), conversation, ids)
    }

    /// Records that late results were written to their conversation.
    ///
    /// # Errors
    /// [`ProposeError`]: they may come again.
    pub async fn delivered(&self, conversation: &Conversation, ids: Vec<String>) -> Result<(), ProposeError> {
        if self.undelivered(conversation, &ids).is_empty() {
            return Ok(());
        }
        match self.propose(Command::Deliver { conversation: conversation.key(), ids }).await? {
            Reply::Full { what, limit } => Err(ProposeError::Full { what, limit }),
            _ => Ok(()),
        }
    }

    /// Their owner has deleted these late results: they cannot come again.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn forget_delivered(&self, ids: Vec<String>) -> Result<(), ProposeError> {
        let ids: Vec<String> = {
            let state = self.shared.state();
            ids.into_iter().filter(|id| state.delivered.contains_key(id)).collect()
        };
        if ids.is_empty() {
            return Ok(());
        }
        self.propose(Command::Forget { ids }).await.map(|_| ())
    }

    /// Records that the bytes of a resource were read by `conversation` (behaviour 7.6), once for each receipt.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn source_read(&self, conversation: &Conversation, uri: &str) -> Result<(), ProposeError> {
        let unread = |receipt: &Receipt| {
            receipt.conversation.as_ref() == Some(conversation)
                && receipt.resources.iter().any(|known| known.uri == uri && known.source_read_at.is_none())
        };
        if !self.shared.state().receipts.values().any(unread) {
            return Ok(());
        }
        let command = Command::SourceRead { conversation: conversation.clone(), uri: uri.to_owned() };
        self.propose(command).await.map(|_| ())
    }

    /// Takes rows of the original's state file over, after a backup of the store. Doing it twice equals doing it once.
    ///
    /// # Errors
    /// [`ProposeError`]; rows before the failure are taken, and the same import again takes the rest.
    pub async fn import(&self, rows: impl Into<Imported>) -> Result<ImportReport, ProposeError> {
        let Imported { bindings, receipts, skipped } = rows.into();
        let backup = self.backup().await.map_err(|error| ProposeError::NotWritten(format!("no backup: {error}")))?;
        let mut report = ImportReport { counts: ImportCounts::default(), skipped, backup };
        for rows in bindings.chunks(IMPORT_BATCH) {
            let bindings = rows.iter().cloned().map(Into::into).collect();
            report.add(self.propose(Command::Import { bindings, receipts: Vec::new() }).await?);
        }
        for rows in receipts.chunks(IMPORT_BATCH) {
            report.add(self.propose(Command::Import { bindings: Vec::new(), receipts: rows.to_vec() }).await?);
        }
        Ok(report)
    }

    /// Copies the store to `consensus.redb.import-N.bak` beside it, N being the first that is free.
    ///
    /// # Errors
    /// What the system said.
    pub async fn backup(&self) -> io::Result<PathBuf> {
        let (done, result) = oneshot::channel();
        let stopped = || io::Error::other("the node is stopping");
        if !self.send(Message::Backup("import", done)).await {
            return Err(stopped());
        }
        result.await.map_err(|_| stopped())?
    }
}

/// A proposed command whose reply is waited for. Dropped before the reply was taken, it takes the command back.
pub(super) struct Pending {
    broker: Broker,
    answer: oneshot::Receiver<Result<Reply, ProposeError>>,
    command: Option<Command>,
    seq: u64,
}

impl Pending {
    pub(super) async fn wait(mut self) -> Result<Reply, ProposeError> {
        let answer = (&mut self.answer).await;
        self.command = None;
        answer.unwrap_or(Err(ProposeError::Stopped))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(command) = self.command.take() else { return };
        self.answer.close();
        // A reply that was sent but not taken; one not yet sent comes back to the writer.
        if let Ok(Ok(reply)) = self.answer.try_recv() {
            self.broker.shared.abandon(&command, self.seq, &reply);
            let _ = self.broker.jobs.try_send(Message::Wake);
        }
    }
}

impl Broker {
    pub(super) fn cooldown_ms(&self) -> u64 {
        u64::try_from(self.settings.cooldown.as_millis()).unwrap_or(u64::MAX)
    }

    /// The one path of every change: check, queue, and wait for the reply.
    pub(super) async fn propose(&self, command: Command) -> Result<Reply, ProposeError> {
        self.submit(command, 0, None)?.wait().await
    }

    pub(super) fn submit(&self, command: Command, seq: u64, hold: Option<Hold>) -> Result<Pending, ProposeError> {
        command.check()?;
        let (sender, answer): (Answer, _) = oneshot::channel();
        let kept = command.revocable().then(|| command.clone());
        self.jobs.try_send(Message::Propose(Box::new(Job { command, answer: Some(sender), seq, hold }))).map_err(
            |error| match error {
                TrySendError::Full(_) => ProposeError::Busy,
                TrySendError::Disconnected(_) => ProposeError::Stopped,
            },
        )?;
        Ok(Pending { broker: self.clone(), answer, command: kept, seq })
    }

    /// Copies the store, then commits `command` with nothing in between.
    async fn propose_backed_up(
        &self,
        what_for: &'static str,
        command: Command,
    ) -> Result<(PathBuf, Reply), ProposeError> {
        command.check()?;
        let (sender, answer): (Answer, _) = oneshot::channel();
        let (done, backup) = oneshot::channel();
        let job = Job { command, answer: Some(sender), seq: 0, hold: None };
        if !self.send(Message::BackedUp(what_for, done, Box::new(job))).await {
            return Err(ProposeError::Stopped);
        }
        let reply = answer.await.unwrap_or(Err(ProposeError::Stopped))?;
        backup.await.map(|path| (path, reply)).map_err(|_| ProposeError::Stopped)
    }

    /// Queues a message that is no command, waiting for a place. `false`: the writer has ended.
    async fn send(&self, message: Message) -> bool {
        let mut message = message;
        let mut applied = self.shared.applied.subscribe();
        loop {
            message = match self.jobs.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(back)) => back,
            };
            // A full queue empties with the next batch, or stands still until the store is back.
            let _ = tokio::time::timeout(Duration::from_millis(100), applied.changed()).await;
        }
    }
}

/// Reads the original's state file for [`Broker::import`]. Blocking.
///
/// # Errors
/// [`ImportError`].
pub fn read_state_file(path: &Path) -> Result<Imported, ImportError> {
    let fail = |cause: String| ImportError::Read { path: path.to_owned(), cause };
    let found = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?;
    // Checked before opening: a pipe or a device would block or never end.
    if !found.is_file() {
        return Err(fail("it is not a regular file".into()));
    }
    if found.len() > IMPORT_BYTES_MAX as u64 {
        return Err(ImportError::TooBig { found: found.len() });
    }
    let file = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(IMPORT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
    import::parse(&bytes)
}

/// What a store of an older format becomes.
pub(super) fn upgrade(older: Older) -> Vec<u8> {
    match older {
        Older::Format1 { bindings } => State::from_plain_bindings(bindings, clock::now()).encode(),
    }
}

mod mesh;
