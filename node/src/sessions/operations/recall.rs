//! The same call again: what is known of an operation whose identity was seen before, in memory or in the journal
//! (failure rule F6). It never runs twice.

use std::sync::Arc;

use super::{Operations, RunHandle};
use crate::{
    ids::CallId,
    sessions::journal::{JournalRow, Outcome},
    storage::node::{Change, Key, StoreError},
};

/// What is known of a call at first sight.
#[derive(Debug)]
pub enum Held {
    /// It waits, runs, or is done and held: here is the wait for it.
    Run(RunHandle),
    /// It ended before; [`Operations::take_back`] tells how.
    Kept,
    /// Nothing.
    Unknown,
}

/// The outcome of a call that ended before.
#[derive(Clone, Debug, PartialEq)]
pub enum Recalled {
    /// Nobody had it: it is this call's now, until that is confirmed, released or lapsed.
    Outcome {
        /// The outcome.
        outcome: Outcome,
        /// An earlier response may have carried it.
        redelivered: bool,
    },
    /// Some response carried it, or is about to.
    Gone,
}

impl Operations {
    /// Looks a call up that is about to be handed in.
    ///
    /// # Errors
    /// The store's.
    pub fn recall(self: &Arc<Self>, call_id: &CallId) -> Result<Held, StoreError> {
        let late = {
            let mut inner = self.inner();
            if let Some(handle) = self.attach(&mut inner, call_id) {
                return Ok(Held::Run(handle));
            }
            inner.late.contains(call_id)
        };
        // What comes between is met when it is queued: `begin` looks once more.
        Ok(if late || self.row(call_id)?.is_some() { Held::Kept } else { Held::Unknown })
    }

    /// Takes the outcome of a call that ended before back for its own response: out of the late results, as long as
    /// `call_id` itself claims it. Only while it is `wanted`: a later sending of the call claims by the same id.
    ///
    /// # Errors
    /// The store's; nothing is claimed then.
    pub async fn take_back(&self, call_id: &CallId, wanted: impl Fn() -> bool + Send) -> Result<Recalled, StoreError> {
        self.store.flush().await?;
        let (claimed, elsewhere) = {
            let mut inner = self.inner();
            // Under the lock: what frees the claims of an earlier sending waits for it.
            if !wanted() {
                return Ok(Recalled::Gone);
            }
            let claimed = inner.late.claim(call_id, 1, |key, _| key == call_id).pop();
            if claimed.is_some() {
                Self::carried_by_its_own(&mut inner, call_id);
            }
            (claimed, inner.late.contains(call_id) || inner.leaving.contains(call_id))
        };
        if let Some(claimed) = claimed {
            let late = match self.open_ones(vec![claimed]).await {
                Ok(mut open) => open.pop().map(|claim| self.late_result(claim)).transpose(),
                Err(error) => Err(error),
            };
            if late.is_err() {
                self.release_late(call_id);
            }
            let Some(late) = late? else { return Ok(Recalled::Gone) };
            self.offering(std::slice::from_ref(call_id), Vec::new())
                .await
                .inspect_err(|_| self.release_late(call_id))?;
            let lost = Outcome { results: Vec::new(), error: Some(super::late::PAYLOAD_GONE.into()) };
            return Ok(Recalled::Outcome { outcome: late.outcome.unwrap_or(lost), redelivered: late.redelivered });
        }
        // No late result: it was delivered, another response is just carrying it, or its caller was no conversation.
        let row = if elsewhere { None } else { self.row(call_id)? };
        let Some(row) = row.filter(|row| !row.delivered) else { return Ok(Recalled::Gone) };
        let outcome = self.store.read::<Outcome>(&Key::outcome(call_id))?;
        let redelivered = row.offered > 0 || !row.detached;
        Ok(outcome.map_or(Recalled::Gone, |outcome| Recalled::Outcome { outcome, redelivered }))
    }

    /// The response with an outcome that was taken back was written.
    pub fn confirm_taken_back(&self, call_id: &CallId) {
        if self.inner().late.contains(call_id) {
            // Confirmed with what else the response carried.
            return;
        }
        match self.row(call_id) {
            Ok(Some(row)) if !row.delivered => {
                let row = JournalRow { delivered: true, ..row };
                self.store.lazy(vec![Change::set(Key::journal(call_id), &row), Change::remove(Key::outcome(call_id))]);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, call = %call_id, "a delivery could not be recorded"),
        }
    }
}
