//! One native session: its queue, its inputs, its history. One task runs its operations in order (behaviour 3.15).

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    entry::{Body, Event, Source},
    history::{History, HistoryError, Page, Range},
    journal::Outcome,
    operations::{Begun, Operation, Operations, RunHandle, Work},
    oversize,
    riders::{Claimed, Riders},
};
use crate::{
    content::{Block, ImageRef},
    host::{CallContext, Host, HostError, Inspection},
    ids::{CallId, Conversation, EntryId, Millis, SessionId},
    storage::{
        disk,
        node::{Change, Key, NodeStore, StoreError},
    },
};

/// Operations that wait behind others in one session. ChatGPT sends a few at a time; 512 is the original's limit on
/// pending requests, and a full queue is said at once instead of growing.
const QUEUE_MAX: usize = 512;
/// How long an inspection may take (the guide).
const INSPECT_MAX: Duration = Duration::from_secs(3);
/// How long the host may take to end what it runs.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Inputs one response looks at; its text budget fits fewer.
const INPUTS_CLAIM_MAX: usize = 64;
/// Inputs that may wait for a response. A person types; a script that floods gets an error instead of the memory.
const INPUTS_MAX: usize = 4_096;

/// What the store keeps of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its id.
    pub id: SessionId,
    /// The name a person gave it.
    pub name: Option<String>,
    /// The working folder, absolute.
    pub cwd: PathBuf,
    /// When it was opened; orders automatic selection.
    pub created: Millis,
    /// When it ended, once it did.
    pub ended: Option<Millis>,
}

/// What the store keeps of an input that no response has carried yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRow {
    /// Its history entry.
    pub entry: EntryId,
    /// How many responses were about to carry it.
    pub offered: u32,
}

/// An input on its way into a response.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its place.
    pub seq: u64,
    /// Its history entry.
    pub entry: EntryId,
    /// Text and images.
    pub content: Vec<Block>,
    /// An earlier response may have carried it.
    pub redelivered: bool,
}

/// Why a session did not take something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The queue is full.
    #[error("session {0} has {QUEUE_MAX} operations waiting; nothing was done, try again when some have finished")]
    QueueFull(SessionId),
    /// It ended.
    #[error("session {0} ended; nothing was done. Call sessions to see what is there")]
    Ended(SessionId),
    /// It was called off before it came.
    #[error("operation {0} was called off before it came; it was not run and never is")]
    Sealed(CallId),
    /// This attempt was asked about before it came.
    #[error("operation {0} was asked about before it came; this attempt was not run and never is")]
    Asked(CallId),
    /// It ran before.
    #[error("operation {0} ran before; it was not run again")]
    Known(CallId),
    /// Too many inputs wait.
    #[error("{INPUTS_MAX} inputs wait in this session already; ChatGPT has to take some first")]
    InputsFull,
    /// It did not answer in time.
    #[error("session {0} did not answer an inspection within 3 seconds; try again, or look at its device")]
    Silent(SessionId),
    /// Its host could not answer.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Handle to one session.
pub struct Session {
    record: Record,
    home: PathBuf,
    host: Arc<dyn Host>,
    store: NodeStore,
    history: History,
    operations: Arc<Operations>,
    queue: mpsc::Sender<Operation>,
    inputs: Mutex<Riders<u64, InputRow>>,
    executing: AtomicBool,
    ended: CancellationToken,
    /// Whether the task has stopped.
    task: watch::Sender<bool>,
}

impl Session {
    /// Takes a session up, with its history and its inputs, and starts its task.
    ///
    /// # Errors
    /// The store's.
    pub(super) fn open(
        record: Record,
        home: &Path,
        host: Arc<dyn Host>,
        store: NodeStore,
        operations: Arc<Operations>,
    ) -> Result<Arc<Self>, StoreError> {
        let history = History::open(record.id.clone(), store.clone())?;
        let mut inputs = Riders::default();
        let (from, to) = Key::inputs(&record.id);
        store.scan::<InputRow>(&from, &to, false, |key, row| {
            if let Some(seq) = key.number() {
                let offered = row.offered;
                inputs.insert(seq, row, offered);
            }
            true
        })?;
        let (queue, work) = mpsc::channel(QUEUE_MAX);
        let session = Arc::new(Self {
            record,
            home: home.to_owned(),
            host,
            store,
            history,
            operations,
            queue,
            inputs: Mutex::new(inputs),
            executing: AtomicBool::new(false),
            ended: CancellationToken::new(),
            task: watch::Sender::new(false),
        });
        chappie_mesh::runtime::spawn(Arc::clone(&session).run(work));
        Ok(session)
    }

    /// What the store keeps of it.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Its host.
    #[must_use]
    pub fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    /// Whether an operation is at the host.
    #[must_use]
    pub fn is_executing(&self) -> bool {
        self.executing.load(Ordering::Relaxed)
    }

    /// Fires when the session ends.
    #[must_use]
    pub const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Its history, for waiting readers.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// A page of history.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub async fn page(&self, range: &Range) -> Result<Page, HistoryError> {
        self.history.page(range).await
    }

    /// The environment, within three seconds; does not wait behind operations.
    ///
    /// # Errors
    /// [`SessionError::Silent`], [`SessionError::Host`].
    pub async fn inspect(&self) -> Result<Inspection, SessionError> {
        match tokio::time::timeout(INSPECT_MAX, self.host.inspect()).await {
            Ok(inspection) => Ok(inspection?),
            Err(_) => Err(SessionError::Silent(self.record.id.clone())),
        }
    }

    /// Queues an operation, or attaches to the one of the same identity that is here already.
    ///
    /// # Errors
    /// [`SessionError`]: it was not taken and will not run.
    pub fn submit(&self, operation: Operation) -> Result<RunHandle, SessionError> {
        let ended = || SessionError::Ended(self.record.id.clone());
        if self.ended.is_cancelled() {
            return Err(ended());
        }
        let slot = self.queue.try_reserve().map_err(|error| match error {
            mpsc::error::TrySendError::Full(()) => SessionError::QueueFull(self.record.id.clone()),
            mpsc::error::TrySendError::Closed(()) => ended(),
        })?;
        match self.operations.begin(&operation, &self.record.id, self.record.cwd.clone()) {
            Begun::Fresh(handle) => {
                slot.send(operation);
                Ok(handle)
            }
            Begun::Attached(handle) => Ok(handle),
            Begun::Sealed => Err(SessionError::Sealed(operation.call_id)),
            Begun::Asked => Err(SessionError::Asked(operation.call_id)),
            Begun::Ended => Err(SessionError::Known(operation.call_id)),
        }
    }

    async fn run(self: Arc<Self>, mut work: mpsc::Receiver<Operation>) {
        loop {
            let operation = tokio::select! {
                biased;
                () = self.ended.cancelled() => break,
                next = work.recv() => match next {
                    Some(operation) => operation,
                    None => break,
                },
            };
            self.set_executing(true);
            self.execute(operation).await;
            self.set_executing(false);
        }
        work.close();
        while let Ok(operation) = work.try_recv() {
            let reason = format!("session {} ended before this ran; nothing was done", self.record.id);
            self.operations.refuse(&operation.call_id, reason).await;
        }
        self.task.send_replace(true);
    }

    fn set_executing(&self, executing: bool) {
        self.executing.store(executing, Ordering::Relaxed);
        self.operations.changed();
    }

    async fn execute(&self, operation: Operation) {
        let call_id = operation.call_id.clone();
        let Some(cancel) = self.operations.cancellation(&call_id) else { return };
        if cancel.is_cancelled() {
            self.operations.refuse(&call_id, "cancelled before it ran; nothing was done".into()).await;
            return;
        }
        let reads_only = matches!(&operation.work, Work::Call(calls) if self.host.reads_only(calls));
        let journaled = !reads_only || operation.receipt.is_some();
        if let Some(claim) = &operation.receipt
            && let Ok(Some(before)) = self.operations.ran_before(claim, &call_id)
        {
            self.operations.repeat(&call_id, claim.clone(), before);
            return;
        }
        if let Err(reason) = self.admit(&operation, reads_only) {
            self.operations.refuse(&call_id, reason).await;
            return;
        }
        let source = Source {
            chat_id: operation.conversation.as_ref().map(|conversation| match conversation {
                Conversation::Chat(id) | Conversation::Connection(id) => id.clone(),
            }),
            request_id: operation.request_id.clone(),
            call_id: call_id.clone(),
        };
        let (content, calls) = match &operation.work {
            Work::Chat(text) => (vec![Block::text(text.clone())], Vec::new()),
            Work::Call(calls) => {
                let outputs = self.home.join("outputs").join(self.record.id.as_str());
                (Vec::new(), oversize::kept(calls, outputs).await)
            }
        };
        let asked = Body::Assistant { content, calls, source: source.clone() };
        if let Err(error) = self.operations.start(&call_id, &self.history, asked, journaled).await {
            self.operations.refuse(&call_id, format!("not run: {error}")).await;
            return;
        }
        let results = match operation.work {
            Work::Chat(_) => Vec::new(),
            Work::Call(calls) => {
                let context = CallContext {
                    call_id: call_id.clone(),
                    cancel,
                    budget: operation.budget,
                    reader: operation.conversation.as_ref().map(Conversation::key),
                };
                Arc::clone(&self.host).call(calls, context).await
            }
        };
        let mut bodies: Vec<Body> =
            results.iter().map(|result| Body::ToolResult { result: result.clone(), source: source.clone() }).collect();
        let error = self.operations.cancel_reason(&call_id);
        if let Some(reason) = &error {
            bodies.push(Body::Notice { event: Event::Cancelled, message: format!("cancelled: {reason}") });
        }
        self.operations.finish(&call_id, &self.history, bodies, Outcome { results, error }).await;
    }

    /// Last checks before anything is accepted: a sealed attempt (F3), a full disk (F25).
    fn admit(&self, operation: &Operation, reads_only: bool) -> Result<(), String> {
        if let Some(claim) = &operation.receipt {
            match self.operations.is_sealed(&claim.key.0, claim.attempt) {
                Ok(false) => {}
                Ok(true) => return Err("not run: this attempt was given up before; send the operation again".into()),
                Err(error) => return Err(format!("not run: {error}")),
            }
        }
        if reads_only {
            return Ok(());
        }
        match disk::free_bytes(&self.home) {
            Ok(free) if free < disk::FREE_MIN_BYTES => Err(format!(
                "not run: only {} MiB are free on the disk of {}, and outcomes need room to be recorded ({} MiB). Free some space on that device, then try again",
                free >> 20,
                self.home.display(),
                disk::FREE_MIN_BYTES >> 20
            )),
            _ => Ok(()),
        }
    }

    fn inputs(&self) -> MutexGuard<'_, Riders<u64, InputRow>> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a person typed: on disk before this resolves.
    ///
    /// # Errors
    /// [`SessionError::InputsFull`], [`SessionError::Ended`], [`SessionError::Store`].
    pub async fn say(&self, content: Vec<Block>) -> Result<EntryId, SessionError> {
        if self.ended.is_cancelled() {
            return Err(SessionError::Ended(self.record.id.clone()));
        }
        if self.inputs().len() >= INPUTS_MAX {
            return Err(SessionError::InputsFull);
        }
        let id = self.record.id.clone();
        let (entry, row, seq, written) = {
            let (entries, written) = self.history.append_with(vec![Body::User { content }], |entries| {
                entries
                    .iter()
                    .filter_map(|entry| {
                        let row = InputRow { entry: entry.id.clone(), offered: 0 };
                        Some(Change::set(Key::input(&id, super::entry::place(&entry.id)?), &row))
                    })
                    .collect()
            });
            let entry = entries[0].id.clone();
            let seq = super::entry::place(&entry).unwrap_or(0);
            (entry.clone(), InputRow { entry, offered: 0 }, seq, written)
        };
        written.await?;
        self.inputs().insert(seq, row, 0);
        Ok(entry)
    }

    /// Whether an input waits.
    #[must_use]
    pub fn has_inputs(&self) -> bool {
        self.inputs().any(|_| true)
    }

    /// Claims what waits, oldest first, for the response of `by`.
    ///
    /// # Errors
    /// The store's; nothing stays claimed then.
    pub fn claim_inputs(&self, by: &CallId) -> Result<Vec<Input>, StoreError> {
        let claimed: Vec<Claimed<u64, InputRow>> = self.inputs().claim(by, INPUTS_CLAIM_MAX, |_, _| true);
        let inputs: Result<Vec<Input>, StoreError> = claimed
            .into_iter()
            .map(|claim| {
                let entry: Option<super::entry::Entry> = self.store.read(&Key::history(&self.record.id, claim.key))?;
                let content = match entry.map(|entry| entry.body) {
                    Some(Body::User { content }) => content,
                    _ => Vec::new(),
                };
                Ok(Input { seq: claim.key, entry: claim.item.entry, content, redelivered: claim.offered > 1 })
            })
            .collect();
        if inputs.is_err() {
            self.inputs().release(by);
        }
        inputs
    }

    /// A claimed input found no room in this response.
    pub fn put_back_input(&self, seq: u64) {
        self.inputs().put_back(&seq);
    }

    /// The rows that say that these inputs are about to be offered (F7).
    #[must_use]
    pub fn offering(&self, inputs: &[Input]) -> Vec<Change> {
        inputs
            .iter()
            .map(|input| {
                let row = InputRow { entry: input.entry.clone(), offered: 1 };
                Change::set(Key::input(&self.record.id, input.seq), &row)
            })
            .collect()
    }

    /// The response of `by` was not written.
    pub fn release_inputs(&self, by: &CallId) {
        self.inputs().release(by);
    }

    /// It is not known whether the response of `by` was written: its inputs come again, and say so.
    pub fn lapse_inputs(&self, by: &CallId) {
        self.inputs().lapse(by);
    }

    /// The response of `by` was written: its inputs are consumed.
    pub fn confirm_inputs(&self, by: &CallId) {
        let gone = self.inputs().confirm(by);
        if !gone.is_empty() {
            self.store.lazy(gone.iter().map(|(seq, _)| Change::remove(Key::input(&self.record.id, *seq))).collect());
        }
    }

    /// The image of this hash, when this session showed it.
    ///
    /// # Errors
    /// The store's.
    pub async fn image(&self, sha256: &str) -> Result<Option<ImageRef>, StoreError> {
        // The row of a picture that was shown a moment ago may still wait for its commit.
        self.store.flush().await?;
        self.store.read(&Key::image(&self.record.id, sha256))
    }

    /// Leaves a notice in history.
    pub fn notice(&self, event: Event, message: String) {
        self.history.append_lazily(vec![Body::Notice { event, message }], Vec::new());
    }

    /// Stops the task without ending the session: what runs was cancelled, what waits is refused.
    pub(super) async fn halt(&self) {
        self.ended.cancel();
        self.history.wake();
        let idle = async {
            let mut task = self.task.subscribe();
            let _ = task.wait_for(|stopped| *stopped).await;
        };
        if tokio::time::timeout(CLOSE_MAX, idle).await.is_err() {
            tracing::warn!(session = %self.record.id, "an operation did not stop within 5 seconds");
        }
    }

    /// Ends the session: queued work is refused, running work cancelled, processes that were not told to stay ended.
    pub(super) async fn close(&self) {
        self.halt().await;
        if tokio::time::timeout(CLOSE_MAX, self.host.close()).await.is_err() {
            tracing::warn!(session = %self.record.id, "the host did not end within 5 seconds");
        }
    }
}
