//! [`Broker`]: what the rest of the program may use of the broker. It reads the state, waits, and proposes commands; the
//! decisions are in the pure files, the writing in `writer`.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chappie_mesh::{NodeId, runtime::spawn};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot, watch,
    },
    time::{Instant, timeout},
};

use super::{
    apply::{self, known_receipt, receipts_full},
    command::{Command, ImportCounts, Reply, Reservation, Resolve, Settlement},
    council::{self, Control, Front, Opening, Place},
    errors::{OpenError, ProposeError, ResolveError},
    import::{self, ImportError, ImportReport, Imported},
    limits::{CONTROLS_MAX, IMPORT_BATCH, IMPORT_BYTES_MAX, OFFICE_WAIT_MS, QUEUE_MAX, SETTLED_RESOURCES_MAX},
    meshtime::Reading,
    query,
    receipts::{Receipt, ReceiptKey, ReceiptKind},
    shared::{Clocks, Open, Shared},
    volatile::Announced,
    writer::{Answer, Hold, Job, Message, Seat, Writer},
};
use crate::{
    clock,
    ids::{CallId, Conversation, SessionId},
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

/// Handle to the broker; cheap to clone. Its tasks end with the last handle or at [`Broker::close`].
#[derive(Clone)]
pub struct Broker {
    pub(super) node: NodeId,
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::Sender<Message>,
    pub(super) controls: mpsc::Sender<Control>,
    pub(super) front: Arc<Front>,
    pub(super) seat: watch::Receiver<Seat>,
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
    /// Opens `consensus.redb` and starts this device's part in its group: a new store becomes a mesh of one, or an empty
    /// member of [`Place::member_of`]. A device that is the only voter has the office when this returns, unless its disk fails or
    /// it asks others first.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(place: Place, settings: Settings) -> Result<Self, OpenError> {
        let start = Instant::now();
        let clocks = move || Reading {
            wall: clock::now(),
            steady_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        Self::start(place, settings, Box::new(clocks)).await
    }

    pub(super) async fn start(place: Place, settings: Settings, clocks: Clocks) -> Result<Self, OpenError> {
        let node = place.node;
        let (controls, orders) = mpsc::channel(CONTROLS_MAX);
        let Opening { shared, front, seat, stands, council } = council::open(place, orders, clocks).await?;
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        spawn(council.run());
        spawn(Writer::new(Arc::clone(&shared), queue, seat.clone()).run());
        let broker = Self { node, shared, jobs, controls, front, seat, settings };
        if stands {
            broker.settled().await;
        }
        Ok(broker)
    }

    /// Waits until a device that is the only voter has the office.
    async fn settled(&self) {
        let mut seat = self.seat.clone();
        let taken = seat.wait_for(|seat| seat.acting.is_some() || !seat.alone);
        let _ = timeout(Duration::from_millis(OFFICE_WAIT_MS), taken).await;
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
            // What may yet be taken back is for the log to answer.
            let known = known_receipt(&state, now, &reservation).filter(|_| !self.shared.is_open(&reservation.key));
            known.or_else(|| receipts_full(&state, now, &reservation).then_some(apply::full_receipts()))
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
            Reply::Recovering(missing) => return Err(ProposeError::Recovering(missing)),
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
        let stopped = || io::Error::other("the node is stopping");
        self.ask(|done| Control::Archive("import", done)).await.map_err(|_| stopped())?
    }
}

/// A proposed command whose reply is waited for. Dropped before the reply was taken, it takes the command back.
pub(super) struct Pending {
    broker: Broker,
    answer: oneshot::Receiver<Result<Reply, ProposeError>>,
    command: Option<Command>,
    seq: u64,
    /// Held until the reply was taken, or is being taken back.
    open: Option<Arc<Open>>,
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
            self.broker.shared.abandon(&command, self.seq, &reply, self.open.take());
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
        let open = match &command {
            Command::Reserve(reservation) => Some(self.shared.open(&reservation.key)),
            _ => None,
        };
        let job = Job { command, answer: Some(sender), seq, hold, open: open.clone() };
        self.jobs.try_send(Message::Propose(Box::new(job))).map_err(|error| match error {
            TrySendError::Full(_) => ProposeError::Busy,
            TrySendError::Closed(_) => ProposeError::Stopped,
        })?;
        Ok(Pending { broker: self.clone(), answer, command: kept, seq, open })
    }

    /// Asks the council for something, and waits for its answer.
    pub(super) async fn ask<T>(&self, what: impl FnOnce(oneshot::Sender<T>) -> Control) -> Result<T, ProposeError> {
        let (done, answer) = oneshot::channel();
        self.controls.send(what(done)).await.map_err(|_| ProposeError::Stopped)?;
        answer.await.map_err(|_| ProposeError::Stopped)
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

mod life;
mod mesh;
