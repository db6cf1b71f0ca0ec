//! Reports outcomes of receipt-bearing operations to the broker, again and again until it confirms (failure rule F9).

use std::{sync::Arc, time::Duration};

use super::Operations;
use crate::{
    broker::{ReceiptStatus, Settlement},
    clock,
    ids::{CallId, SessionId},
    sessions::journal::{Ended, JournalRow, ROW_KEPT_MS, ReceiptRow, RowState, interrupted},
    storage::node::{Change, Key, StoreError},
};

/// First and longest pause between two reports of one outcome.
const REPORT_FIRST: Duration = Duration::from_millis(100);
const REPORT_LAST: Duration = Duration::from_secs(10);

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
        let this = Arc::clone(self);
        let work = async move {
            let mut pause = REPORT_FIRST;
            while !this.report(&row).await {
                tokio::select! {
                    () = this.stopping.cancelled() => return,
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(REPORT_LAST),
                }
            }
            this.mark_settled(&row).await;
        };
        self.tasks.spawn_on(work, &self.runtime);
    }

    async fn report(&self, row: &JournalRow) -> bool {
        let Some(claim) = &row.receipt else { return true };
        let settlement = match row.state {
            RowState::Running => return true,
            RowState::Finished(_) => Settlement::Completed { resources: Vec::new() },
            RowState::Interrupted(_) => Settlement::Uncertain { reason: interrupted(&row.label) },
        };
        match self.broker.settle(claim.key.clone(), claim.attempt, settlement).await {
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
        if let Err(error) = self.broker.settle(claim.key, claim.attempt, Settlement::NeverRun).await {
            tracing::warn!(%error, call = %call_id, "the broker did not hear that an operation never ran");
        }
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

    /// After a start: what was delivered and dropped before the crash need not be remembered by the broker any longer.
    pub(in crate::sessions) async fn forget_delivered(&self, rows: &[JournalRow]) {
        let known = |row: &&JournalRow| {
            let Some(conversation) = &row.conversation else { return false };
            row.delivered
                && row.offered > 0
                && self.broker.undelivered(conversation, std::slice::from_ref(&row.call_id.0)).is_empty()
        };
        let ids: Vec<String> = rows.iter().filter(known).map(|row| row.call_id.0.clone()).collect();
        if !ids.is_empty()
            && let Err(error) = self.broker.forget_delivered(ids).await
        {
            tracing::warn!(%error, "the broker keeps ids of delivered results until the next start");
        }
    }

    /// After a start: every receipt that the broker believes to run on one of `sessions` is looked up in the journal.
    /// Known ones were reported while rows were recovered; an unknown one never ran, which is sealed and said (F3).
    pub(in crate::sessions) async fn reconcile(self: &Arc<Self>, sessions: &[SessionId]) -> Result<(), StoreError> {
        for receipt in self.broker.receipts() {
            if receipt.status != ReceiptStatus::Running || !sessions.contains(&receipt.session) {
                continue;
            }
            let row: Option<ReceiptRow> = self.store.read(&Key::receipt(&receipt.key.0))?;
            // By operation, not by attempt: a receipt that expired starts again at attempt 1 under the same key.
            if matches!(row, Some(ReceiptRow::Ran(call_id, _)) if call_id == receipt.call_id) {
                continue;
            }
            self.seal(&receipt.key.0, receipt.attempt).await?;
            if let Err(error) = self.broker.settle(receipt.key.clone(), receipt.attempt, Settlement::NeverRun).await {
                tracing::warn!(%error, receipt = %receipt.key.0, "the broker did not hear that an operation never ran");
            }
        }
        Ok(())
    }
}
