//! Reports outcomes of receipt-bearing operations to the broker, again and again until it confirms (failure rule F9).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Operations, Progress, Standing, late::KEPT_MAX};
use crate::{
    broker::{ProposeError, Settlement},
    clock,
    ids::{CallId, Conversation, SessionId},
    sessions::journal::{Ended, JournalRow, ROW_KEPT_MS, ReceiptClaim, ReceiptRow, RowState, interrupted},
    storage::node::{Change, Key, StoreError},
};

/// First and longest pause between two reports of one outcome.
pub(super) const REPORT_FIRST: Duration = Duration::from_millis(100);
const REPORT_LAST: Duration = Duration::from_secs(10);
/// Delivered ids that one question to the broker names; each is a UUID.
const FORGET_MAX: usize = 256;

/// Why this node is not square with the broker. Repeat it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReconcileError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker was not reached, or did not record what it was told.
    #[error("the broker did not take this node's reports: {0}")]
    Office(#[from] ProposeError),
}

/// How long an operation that ran is held against a second one under its receipt: a little less than a completed receipt
/// stands (24 h), so that a request made after it expired runs.
const REPEAT_KNOWN_MS: u64 = 24 * 3_600_000 - 300_000;

impl Operations {
    /// Reports the outcome of a run once; when that fails the reports go on beside it.
    pub(super) async fn settle_first(self: &Arc<Self>, call_id: &CallId) {
        let row = self.inner().runs.get(call_id).map(|run| run.row.clone());
        let Some(row) = row.filter(|row| row.receipt.is_some()) else { return };
        if self.report(&row).await {
            if let Some(run) = self.inner().runs.get_mut(call_id) {
                run.row.settled = true;
            }
        } else {
            self.settle_later(row);
        }
    }

    /// Reports an outcome until the broker confirms it or the node stops.
    pub(in crate::sessions) fn settle_later(self: &Arc<Self>, row: JournalRow) {
        if !self.inner().reporting.insert(row.call_id.clone()) {
            return;
        }
        let this = Arc::clone(self);
        let work = async move {
            let mut pause = REPORT_FIRST;
            let mut taken = this.report(&row).await;
            while !taken && this.next_try(&mut pause).await {
                taken = this.report(&row).await;
            }
            if taken {
                this.mark_settled(&row).await;
            }
            this.inner().reporting.remove(&row.call_id);
        };
        self.runtime.spawn(self.tasks.track_future(work));
    }

    /// Waits before the next try of a report: longer each time, and not at all when the broker was just met again. False:
    /// the node stops.
    pub(super) async fn next_try(&self, pause: &mut Duration) -> bool {
        tokio::select! {
            () = self.stopping.cancelled() => return false,
            () = tokio::time::sleep(*pause) => *pause = (*pause * 2).min(REPORT_LAST),
            () = self.nudge.notified() => *pause = REPORT_FIRST,
        }
        true
    }

    async fn report(&self, row: &JournalRow) -> bool {
        let Some(claim) = &row.receipt else { return true };
        let settlement = match row.state {
            RowState::Running => return true,
            RowState::Finished(_) => Settlement::Completed { resources: Vec::new() },
            RowState::Interrupted(_) => Settlement::Uncertain { reason: interrupted(&row.label) },
        };
        match self.office.settle(claim.key.clone(), claim.attempt, settlement).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, call = %row.call_id, "the broker did not take an outcome yet");
                false
            }
        }
    }

    /// Best effort: a row that does not say so is reported once more after a restart, which changes nothing.
    async fn mark_settled(&self, row: &JournalRow) {
        let key = Key::journal(&row.call_id);
        if self.store.flush().await.is_ok()
            && let Ok(Some(current)) = self.store.read::<JournalRow>(&key)
        {
            self.store.lazy(vec![Change::set(key, &JournalRow { settled: true, ..current })]);
        }
    }

    /// An operation that will never run frees its receipt, so that a retry may run.
    pub(super) async fn never_run(self: &Arc<Self>, call_id: &CallId) {
        let claim = self.inner().runs.get(call_id).and_then(|run| run.row.receipt.clone());
        let Some(claim) = claim else { return };
        if let Err(error) = self.seal(&claim.key.0, claim.attempt).await {
            tracing::warn!(%error, call = %call_id, "an operation that did not run could not be sealed");
            return;
        }
        if let Err(error) = self.office.settle(claim.key, claim.attempt, Settlement::NeverRun).await {
            tracing::warn!(%error, call = %call_id, "the broker did not hear that an operation never ran");
        }
    }

    /// An attempt came that was asked about before (F3). Makes sure that it never runs, and says so to the broker, which may
    /// order the same operation under the next attempt then. False: it is here after all.
    ///
    /// # Errors
    /// [`ReconcileError`]: nothing may be said of it.
    pub async fn give_up(self: &Arc<Self>, call_id: &CallId, claim: &ReceiptClaim) -> Result<bool, ReconcileError> {
        let Some(settlement) = unknown(self.ask(call_id, Some(claim)).await?) else { return Ok(false) };
        self.office.settle(claim.key.clone(), claim.attempt, settlement).await?;
        Ok(true)
    }

    /// Writes durably that this attempt never runs, before anybody is told so (F3).
    async fn seal(&self, key: &str, attempt: u32) -> Result<(), StoreError> {
        self.store.durable(vec![Change::set(Key::receipt(key), &ReceiptRow::Sealed(attempt, clock::now()))]).await
    }

    /// How the operation under a receipt ended, as far as this node's journal knows.
    ///
    /// # Errors
    /// The store's.
    pub async fn ended(&self, key: &str) -> Result<Option<Ended>, StoreError> {
        self.store.flush().await?;
        let Some(ReceiptRow::Ran(call_id, _)) = self.store.read(&Key::receipt(key))? else { return Ok(None) };
        Ok(self.store.read::<JournalRow>(&Key::journal(&call_id))?.and_then(|row| row.ended))
    }

    /// Whether this attempt under a receipt was sealed: then it must not run.
    ///
    /// # Errors
    /// The store's.
    pub fn is_sealed(&self, key: &str, attempt: u32) -> Result<bool, StoreError> {
        let row: Option<ReceiptRow> = self.store.read(&Key::receipt(key))?;
        let now = clock::now();
        // A seal outlives its receipt by an hour: after that the same key starts again at attempt 1.
        let holds = |sealed: u32, at| sealed >= attempt && now.since(at) < ROW_KEPT_MS;
        Ok(matches!(row, Some(ReceiptRow::Sealed(sealed, at)) if holds(sealed, at)))
    }

    /// The operation that ran under this receipt with another identity, while a receipt of it may still stand: a broker that
    /// lost sight of it reserves it anew, and it must not run twice (F2: the journal is keyed by receipt, too).
    ///
    /// # Errors
    /// The store's.
    pub(in crate::sessions) fn ran_before(
        &self,
        claim: &ReceiptClaim,
        call_id: &CallId,
    ) -> Result<Option<JournalRow>, StoreError> {
        let row: Option<ReceiptRow> = self.store.read(&Key::receipt(&claim.key.0))?;
        let Some(ReceiptRow::Ran(other, attempt)) = row else { return Ok(None) };
        if other == *call_id || attempt < claim.attempt {
            return Ok(None);
        }
        let row: Option<JournalRow> = self.store.read(&Key::journal(&other))?;
        let now = clock::now();
        Ok(row.filter(|row| match row.state {
            RowState::Running => true,
            RowState::Finished(at) | RowState::Interrupted(at) => now.since(at) < REPEAT_KNOWN_MS,
        }))
    }

    /// Ends an operation whose receipt another one ran under: what that one came to is reported in its place.
    pub(in crate::sessions) fn repeat(self: &Arc<Self>, call_id: &CallId, claim: ReceiptClaim, before: JournalRow) {
        let reason = format!(
            "not run: this operation ran before as {}, and is not run twice; look into history, or use a new operationId \
             for a new request",
            before.call_id
        );
        self.settle_later(JournalRow { receipt: Some(claim), settled: false, ..before });
        self.complete(call_id, Progress::NeverRan(reason));
    }

    /// Delivered ids that the broker need not remember any longer are told to it at the next [`Operations::reconcile`].
    /// Beyond the most late results a node keeps, ids stay with the broker until this node starts again.
    pub(in crate::sessions) fn forget_later(&self, ids: impl Iterator<Item = (Conversation, CallId)>) {
        let mut inner = self.inner();
        let room = KEPT_MAX.saturating_sub(inner.unforgotten.len());
        inner.unforgotten.extend(ids.take(room));
    }

    /// What was delivered and dropped here need not be remembered by the broker any longer.
    async fn forget_delivered(&self) -> Result<(), ProposeError> {
        let mut ids: BTreeMap<Conversation, Vec<String>> = BTreeMap::new();
        let unforgotten = std::mem::take(&mut self.inner().unforgotten);
        for (conversation, call_id) in &unforgotten {
            ids.entry(conversation.clone()).or_default().push(call_id.0.clone());
        }
        let forget = async {
            for (conversation, ids) in ids {
                for ids in ids.chunks(FORGET_MAX) {
                    let open = self.office.undelivered(conversation.clone(), ids.to_vec()).await?;
                    let known: Vec<String> = ids.iter().filter(|id| !open.contains(id)).cloned().collect();
                    if !known.is_empty() {
                        self.office.forget_delivered(known).await?;
                    }
                }
            }
            Ok(())
        };
        let forgot = forget.await;
        if forgot.is_err() {
            self.forget_later(unforgotten.into_iter());
        }
        forgot
    }

    /// Squares this node with the broker: what it must forget, then every receipt that it believes to run on one of
    /// `sessions`. A known operation is reported again, an unknown one never ran, which is sealed and said (F3, F9).
    /// Repeat it after an error, and whenever the broker is met again.
    pub(in crate::sessions) async fn reconcile(
        self: &Arc<Self>,
        sessions: Vec<SessionId>,
    ) -> Result<(), ReconcileError> {
        self.nudge.notify_waiters();
        self.forget_delivered().await?;
        for receipt in self.office.running(sessions).await? {
            let claim = ReceiptClaim { key: receipt.key, attempt: receipt.attempt };
            let standing = self.ask(&receipt.call_id, Some(&claim)).await?;
            if let Some(settlement) = unknown(standing) {
                self.office.settle(claim.key, claim.attempt, settlement).await?;
            } else if !matches!(standing, Standing::Queued | Standing::Running)
                && let Some(row) = self.row(&receipt.call_id)?
            {
                self.settle_later(row);
            }
        }
        Ok(())
    }
}

/// What is said of a receipt whose operation the journal does not know; `None` when it does.
fn unknown(standing: Standing) -> Option<Settlement> {
    match standing {
        Standing::NeverRun => Some(Settlement::NeverRun),
        Standing::Lost => {
            let reason = "the journal of its device was replaced by an older copy since, so it may have run".to_owned();
            Some(Settlement::Uncertain { reason })
        }
        Standing::Queued | Standing::Running | Standing::Finished | Standing::Delivered | Standing::Interrupted => None,
    }
}
