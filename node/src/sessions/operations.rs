//! Every operation of this node from acceptance to delivery: the one owner of runs, of the journal's rows, and of the
//! results that missed their response. Effects only; what a row becomes is decided in `journal`.

mod handle;
mod late;
mod recall;
mod settle;
mod tombstones;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use chappie_mesh::runtime::{Reached, Spawner, reached};
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    entry::Body,
    history::History,
    journal::{JournalRow, Outcome, REQUEST_KEPT_MS, ReceiptClaim, ReceiptRow, RowState},
    office::Office,
    riders::Riders,
};
use crate::{
    budget::TextBudget,
    clock::{self, Moment},
    content::ToolCall,
    ids::{CallId, Conversation, SessionId},
    storage::node::{Change, Key, NodeStore, StoreError},
};

pub use handle::RunHandle;
pub use late::{LateResult, PAYLOAD_GONE};
pub use recall::{Held, Recalled};
pub use settle::ReconcileError;
pub use tombstones::Standing;

/// What a door asks a session to do.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its identity.
    pub call_id: CallId,
    /// Who asks.
    pub conversation: Option<Conversation>,
    /// The host's request id, for labels.
    pub request_id: Option<String>,
    /// Identity by host request, see [`super::request_identity`].
    pub request_key: Option<String>,
    /// The receipt, when there is one.
    pub receipt: Option<ReceiptClaim>,
    /// The work.
    pub work: Work,
    /// Text the results may hold. On its way to a node (`fleet::Dispatch`): what the answer has left for that node's whole
    /// part.
    pub budget: TextBudget,
}

/// The work of an operation.
#[derive(Clone, Debug)]
pub enum Work {
    /// One native batch.
    Call(Vec<ToolCall>),
    /// An assistant message.
    Chat(String),
}

impl Work {
    /// What people call it.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Chat(_) => "chat".into(),
            Self::Call(calls) => {
                let names: Vec<&str> = calls.iter().take(4).map(|call| call.name.as_str()).collect();
                let more = if calls.len() > names.len() { ", …" } else { "" };
                format!("{}{more}", names.join(", "))
            }
        }
    }
}

/// How far a run is.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Behind others of its session.
    Queued,
    /// At the host.
    Running,
    /// It ran; its outcome is in the journal, unless it only read.
    Finished(Arc<Outcome>),
    /// It never ran and never will under this identity; nothing was changed.
    NeverRan(String),
}

/// A run in memory.
struct Run {
    row: JournalRow,
    progress: watch::Sender<Progress>,
    cancel: CancellationToken,
    /// Why it was cancelled, once it was.
    reason: Option<String>,
    /// Nobody waits for it any more: its outcome becomes a late result.
    detached: bool,
    /// Whether the journal has its row.
    journaled: bool,
    /// Whether its outcome was handed out for a response of its own.
    handed_out: bool,
    /// Counts its handles: only the latest speaks for the caller, an earlier one is of a connection that was lost.
    holder: u64,
}

/// What became of an operation that was handed in.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is new: queue it.
    Fresh(RunHandle),
    /// It is here already, waiting, running or done (failure rule F6).
    Attached(RunHandle),
    /// It was called off before it came, and never runs (failure rules F3, F4).
    Sealed,
    /// This attempt was asked about before it came, and never runs; the next one may (failure rule F3).
    Asked,
    /// It ran and ended while this sending of it was being looked at.
    Ended,
}

#[derive(Default)]
struct Inner {
    runs: HashMap<CallId, Run>,
    late: Riders<CallId, late::Waiting>,
    /// How many late results were ever taken in.
    count: u64,
    /// Late results whose payload is still in the journal, in the order in which they were taken in.
    whole: VecDeque<CallId>,
    /// Which operation a host's request made, and when.
    requests: HashMap<String, (CallId, Moment)>,
    /// Operations that never run though no row speaks of them, and since when.
    tombstones: BTreeMap<CallId, Moment>,
    /// Up to which attempt operations with receipts were asked about before they came, until that is on disk: as many as one
    /// answer of the broker names.
    asked: BTreeMap<CallId, u32>,
    /// Whose receipts are being reported just now, so that one outcome has one reporter.
    reporting: HashSet<CallId>,
    /// Delivered late results whose payload is about to go.
    leaving: HashSet<CallId>,
    /// Delivered late results whose payload is gone: the broker need not remember them any longer.
    unforgotten: Vec<(Conversation, CallId)>,
}

/// Handle to the node's operations.
pub struct Operations {
    store: NodeStore,
    office: Arc<dyn Office>,
    inner: Mutex<Inner>,
    tasks: TaskTracker,
    /// Tickets settle wherever a connection is dropped, which need not be inside the runtime.
    runtime: Spawner,
    stopping: CancellationToken,
    /// Counts what the broker is told of this node: sessions, what they do, whose late results wait.
    changes: watch::Sender<u64>,
    /// Wakes reports that wait for their next try.
    nudge: Notify,
}

impl Operations {
    /// An owner without runs; [`super::Sessions::open`] recovers what the journal holds. Inside a tokio runtime.
    #[must_use]
    pub fn new(store: NodeStore, office: Arc<dyn Office>, stopping: CancellationToken) -> Arc<Self> {
        let (tasks, runtime) = (TaskTracker::new(), Spawner::current());
        let (changes, nudge) = (watch::Sender::new(0), Notify::new());
        Arc::new(Self { store, office, inner: Mutex::default(), tasks, runtime, stopping, changes, nudge })
    }

    /// Counts up whenever the list of sessions, what they do, or the conversations with late results change.
    #[must_use]
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something that the broker is told of changed.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an operation in, once. Nothing is on disk yet: until the host starts it is only queued (F2).
    #[must_use]
    pub(super) fn begin(self: &Arc<Self>, operation: &Operation, session: &SessionId, cwd: PathBuf) -> Begun {
        let mut inner = self.inner();
        if inner.is_buried(&operation.call_id, Moment::now()) {
            return Begun::Sealed;
        }
        if inner.is_asked(operation) {
            return Begun::Asked;
        }
        if inner.late.contains(&operation.call_id) || inner.leaving.contains(&operation.call_id) {
            return Begun::Ended;
        }
        match self.attach(&mut inner, &operation.call_id) {
            Some(handle) => Begun::Attached(handle),
            None => Begun::Fresh(self.take_in(&mut inner, operation, session, cwd)),
        }
    }

    /// Takes over what an earlier handle held: it is this one now that speaks for the caller.
    fn attach(self: &Arc<Self>, inner: &mut Inner, call_id: &CallId) -> Option<RunHandle> {
        let run = inner.runs.get_mut(call_id)?;
        run.holder += 1;
        run.detached = false;
        Some(RunHandle::new(Arc::clone(self), call_id.clone(), run.holder, run.progress.subscribe()))
    }

    /// An operation that no session took: it never runs, which its receipt is told before the handle is.
    #[must_use]
    pub fn decline(self: &Arc<Self>, operation: &Operation, session: &SessionId, reason: String) -> RunHandle {
        let handle = self.take_in(&mut self.inner(), operation, session, PathBuf::new());
        let (this, call_id) = (Arc::clone(self), operation.call_id.clone());
        let work = async move { this.refuse(&call_id, reason).await };
        self.runtime.spawn(self.tasks.track_future(work));
        handle
    }

    fn take_in(
        self: &Arc<Self>,
        inner: &mut Inner,
        operation: &Operation,
        session: &SessionId,
        cwd: PathBuf,
    ) -> RunHandle {
        let row = JournalRow {
            call_id: operation.call_id.clone(),
            session: session.clone(),
            cwd,
            conversation: operation.conversation.clone(),
            request_id: operation.request_id.clone(),
            request_key: operation.request_key.clone(),
            receipt: operation.receipt.clone(),
            label: operation.work.label(),
            accepted: clock::now(),
            state: RowState::Running,
            ended: None,
            settled: operation.receipt.is_none(),
            delivered: false,
            detached: false,
            offered: 0,
        };
        let progress = watch::Sender::new(Progress::Queued);
        let cancel = CancellationToken::new();
        let handle = RunHandle::new(Arc::clone(self), operation.call_id.clone(), 0, progress.subscribe());
        let (detached, journaled, handed_out) = (false, false, false);
        let run = Run { row, progress, cancel, reason: None, detached, journaled, handed_out, holder: 0 };
        if let Some(key) = &operation.request_key {
            let now = Moment::now();
            inner.requests.retain(|_, (_, at)| at.age_ms(&now) < REQUEST_KEPT_MS);
            inner.requests.insert(key.clone(), (operation.call_id.clone(), now));
        }
        inner.runs.insert(operation.call_id.clone(), run);
        reached(Reached::Queued, &operation.call_id.0);
        handle
    }

    /// The operation that the same host request made within the last hour.
    #[must_use]
    pub fn by_request(&self, key: &str) -> Option<CallId> {
        let now = Moment::now();
        let inner = self.inner();
        let (call_id, at) = inner.requests.get(key)?;
        (at.age_ms(&now) < REQUEST_KEPT_MS).then(|| call_id.clone())
    }

    /// How far an operation is, while it is in memory.
    #[must_use]
    pub fn progress(&self, call_id: &CallId) -> Option<watch::Receiver<Progress>> {
        self.inner().runs.get(call_id).map(|run| run.progress.subscribe())
    }

    /// Cancels everything of one session.
    pub(super) fn cancel_session(&self, session: &SessionId, reason: &str) {
        for run in self.inner().runs.values_mut().filter(|run| run.row.session == *session) {
            run.reason.get_or_insert_with(|| reason.to_owned());
            run.cancel.cancel();
        }
    }

    /// Takes back what a journal row says about its host request, after a restart.
    pub(super) fn remember(&self, row: &JournalRow) {
        if let Some(key) = &row.request_key {
            self.inner().requests.insert(key.clone(), (row.call_id.clone(), Moment::written(row.accepted)));
        }
    }

    /// The cancellation token of a run.
    pub(super) fn cancellation(&self, call_id: &CallId) -> Option<CancellationToken> {
        self.inner().runs.get(call_id).map(|run| run.cancel.clone())
    }

    pub(super) fn cancel_reason(&self, call_id: &CallId) -> Option<String> {
        self.inner().runs.get(call_id).and_then(|run| run.reason.clone())
    }

    /// Writes `accepted+running` with the entry that asks for it, durably unless the batch only reads, and reports that
    /// the host may start.
    ///
    /// # Errors
    /// The store's; nothing may run then.
    pub(super) async fn start(
        &self,
        call_id: &CallId,
        history: &History,
        body: Body,
        journaled: bool,
    ) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        {
            let mut inner = self.inner();
            let Some(run) = inner.runs.get_mut(call_id) else { return Err(StoreError::Stopped) };
            run.journaled = journaled;
            run.progress.send_replace(Progress::Running);
            if journaled {
                changes.push(Change::set(Key::journal(call_id), &run.row));
                if let Some(claim) = &run.row.receipt {
                    let ran = ReceiptRow::Ran(call_id.clone(), claim.attempt);
                    changes.push(Change::set(Key::receipt(&claim.key.0), &ran));
                }
            }
        }
        if journaled {
            history.append(vec![body], changes).1.await?;
            reached(Reached::Running, &call_id.0);
        } else {
            history.append_lazily(vec![body], changes);
            reached(Reached::Over, &call_id.0);
        }
        Ok(())
    }

    /// Writes the outcome with its history entries, durably unless the batch only read; then settles the receipt and
    /// tells whoever waits. An outcome that the disk refuses is still told, with a word on that.
    pub(super) async fn finish(
        self: &Arc<Self>,
        call_id: &CallId,
        history: &History,
        bodies: Vec<Body>,
        mut outcome: Outcome,
    ) {
        let (changes, journaled) = {
            let mut inner = self.inner();
            let Some(run) = inner.runs.get_mut(call_id) else { return };
            run.row.state = RowState::Finished(clock::now());
            run.row.detached = run.detached;
            run.row.ended = Some(outcome.ended());
            let rows = vec![Change::set(Key::journal(call_id), &run.row), Change::set(Key::outcome(call_id), &outcome)];
            (if run.journaled { rows } else { Vec::new() }, run.journaled)
        };
        if journaled {
            if let Err(error) = history.append(bodies, changes).1.await {
                tracing::error!(%error, call = %call_id, "an outcome is not on disk");
                outcome.error.get_or_insert_with(|| format!("it ran, but its outcome could not be recorded: {error}"));
            } else {
                reached(Reached::Ended, &call_id.0);
            }
        } else {
            history.append_lazily(bodies, changes);
        }
        self.settle_first(call_id).await;
        self.complete(call_id, Progress::Finished(Arc::new(outcome)));
    }

    /// Ends an operation that never ran.
    pub(super) async fn refuse(self: &Arc<Self>, call_id: &CallId, reason: String) {
        self.never_run(call_id).await;
        self.complete(call_id, Progress::NeverRan(reason));
    }

    fn complete(self: &Arc<Self>, call_id: &CallId, progress: Progress) {
        let finished = matches!(progress, Progress::Finished(_));
        if !finished {
            reached(Reached::Over, &call_id.0);
        }
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(call_id) else { return };
        run.progress.send_replace(progress);
        if run.detached {
            let run = inner.runs.remove(call_id);
            drop(inner);
            if let (Some(run), true) = (run, finished) {
                self.keep_late(run);
            }
        }
    }

    /// Nobody waits for the response of `call_id` any more: its outcome becomes a late result, now or when it is there.
    /// `handed_out`: its own response may carry it. `offered`: nobody knows whether that was written. A handle that was taken
    /// over says nothing.
    fn detach(self: &Arc<Self>, call_id: &CallId, holder: u64, handed_out: bool, offered: bool) {
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(call_id).filter(|run| run.holder == holder) else { return };
        run.handed_out |= handed_out;
        run.row.offered += u32::from(offered);
        run.detached = true;
        let progress = run.progress.borrow().clone();
        if matches!(progress, Progress::Finished(_) | Progress::NeverRan(_)) {
            let run = inner.runs.remove(call_id);
            drop(inner);
            if let (Some(run), Progress::Finished(_)) = (run, progress) {
                self.keep_late(run);
            }
        }
    }

    /// The response with the outcome of `call_id` was written.
    fn delivered(&self, call_id: &CallId) {
        let Some(mut run) = self.inner().runs.remove(call_id) else { return };
        reached(Reached::Over, &call_id.0);
        if run.journaled {
            run.row.delivered = true;
            // Lazy: a crash before it is on disk delivers the outcome again, marked `redelivered` (F7).
            self.store.lazy(vec![Change::set(Key::journal(call_id), &run.row), Change::remove(Key::outcome(call_id))]);
        }
    }

    /// Operations with receipts that no host has: the journal has no word of them yet.
    pub(super) fn queued_receipts(&self) -> Vec<JournalRow> {
        let inner = self.inner();
        let queued = inner.runs.values().filter(|run| matches!(*run.progress.borrow(), Progress::Queued));
        let mut rows: Vec<_> = queued.filter(|run| run.row.receipt.is_some()).map(|run| run.row.clone()).collect();
        rows.sort_by(|one, two| one.call_id.cmp(&two.call_id));
        rows
    }

    /// Waits for deliveries and settlements under way.
    pub async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
