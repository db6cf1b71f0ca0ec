//! Late results: outcomes that missed their response. Payloads stay in the journal; which ones were delivered is the
//! broker's to know (design section 5).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use chappie_mesh::runtime::{Reached, reached};

use super::{Operations, Progress, Run, settle::REPORT_FIRST};
use crate::{
    ids::{CallId, Conversation, SessionId},
    sessions::{
        journal::{JournalRow, Outcome, RowState},
        riders::Claimed,
    },
    storage::node::{Change, Key, StoreError, Written},
};

/// Late results a node keeps whole (F26). Beyond it the oldest shrink to a stub that points to history.
const WHOLE_MAX: usize = 2_048;
/// Late results a node keeps at all, stubs included; a stub is a few hundred bytes. Beyond it the oldest go.
pub(super) const KEPT_MAX: usize = 8_192;
/// Late results one response looks at; its text budget fits fewer.
const CLAIM_MAX: usize = 8;
/// What is told of a late result whose payload is gone.
pub const PAYLOAD_GONE: &str = "the result itself is no longer kept here; read the session's history";

/// What is in memory of a late result.
#[derive(Clone, Debug)]
pub(in crate::sessions) struct Waiting {
    row: JournalRow,
    /// Which one it is in the order in which they were taken in. Ids follow the clocks of the doors, which may be wrong.
    number: u64,
    /// Whether the response of its own call may have carried it.
    own: bool,
}

/// A late result that a response claimed.
pub(super) type Claim = Claimed<CallId, Waiting>;

/// A late result on its way into a response.
#[derive(Clone, Debug)]
pub struct LateResult {
    /// The operation.
    pub call_id: CallId,
    /// The host's request id.
    pub request_id: Option<String>,
    /// Where it ran.
    pub session: SessionId,
    /// That session's folder then.
    pub cwd: PathBuf,
    /// `None` when only history still has it.
    pub outcome: Option<Outcome>,
    /// An earlier response may have carried it.
    pub redelivered: bool,
}

impl Operations {
    /// Makes a run's outcome a late result of its conversation. A caller without one finds it in history only.
    pub(super) fn keep_late(self: &Arc<Self>, mut run: Run) {
        if run.row.conversation.is_none() {
            return;
        }
        let known = run.journaled && run.row.detached && run.row.offered == 0;
        run.row.detached = true;
        let mut changes = vec![Change::set(Key::journal(&run.row.call_id), &run.row)];
        if !run.journaled
            && let Progress::Finished(outcome) = &*run.progress.borrow()
        {
            // A reading batch gets its row only now that somebody will ask for it.
            changes.push(Change::set(Key::outcome(&run.row.call_id), outcome.as_ref()));
        }
        if !known {
            self.store.lazy(changes);
        }
        self.insert_late(run.row, run.handed_out);
    }

    /// Takes in a row whose outcome is in the journal. `own`: the response of its own call may have carried it.
    pub(in crate::sessions) fn insert_late(&self, row: JournalRow, own: bool) {
        reached(Reached::Ended, &row.call_id.0);
        let mut inner = self.inner();
        if !inner.late.contains(&row.call_id) {
            inner.count += 1;
            let waiting = Waiting { row: row.clone(), number: inner.count, own };
            inner.late.insert(row.call_id.clone(), waiting, row.offered);
            inner.whole.push_back(row.call_id);
        }
        if inner.whole.len() > WHOLE_MAX
            && let Some(oldest) = inner.whole.pop_front()
        {
            self.store.lazy(vec![Change::remove(Key::outcome(&oldest))]);
        }
        let over = inner.late.len().saturating_sub(KEPT_MAX);
        let dropped: Vec<_> = (0..over).filter_map(|_| inner.late.pop_oldest(|waiting| waiting.number)).collect();
        drop(inner);
        self.changed();
        for (call_id, mut waiting) in dropped {
            waiting.row.delivered = true;
            tracing::warn!(call = %call_id, "a late result was given up: too many wait");
            self.store
                .lazy(vec![Change::set(Key::journal(&call_id), &waiting.row), Change::remove(Key::outcome(&call_id))]);
        }
    }

    /// Whether a late result waits for this conversation.
    #[must_use]
    pub fn has_late(&self, conversation: &Conversation) -> bool {
        self.inner().late.any(|waiting| waiting.row.conversation.as_ref() == Some(conversation))
    }

    /// The conversations for which late results wait.
    pub(in crate::sessions) fn late_conversations(&self) -> BTreeSet<Conversation> {
        self.inner().late.free().filter_map(|waiting| waiting.row.conversation.clone()).collect()
    }

    /// Claims what waits for `conversation`, oldest first, for the response of `by`. Nothing when the broker cannot be
    /// asked what of it was delivered already: it waits for a later response.
    ///
    /// # Errors
    /// The store's; nothing stays claimed then.
    pub async fn claim_late(&self, by: &CallId, conversation: &Conversation) -> Result<Vec<LateResult>, StoreError> {
        if !self.has_late(conversation) {
            return Ok(Vec::new());
        }
        let claimed = self
            .inner()
            .late
            .claim(by, CLAIM_MAX, |_, waiting| waiting.row.conversation.as_ref() == Some(conversation));
        let results = match self.open_ones(claimed).await {
            Ok(open) => match self.store.flush().await {
                Ok(()) => open.into_iter().map(|claim| self.late_result(claim)).collect(),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if results.is_err() {
            self.release_late(by);
        }
        self.changed();
        results
    }

    /// Those of the claimed results of one conversation that it did not have yet; the others are dropped.
    pub(super) async fn open_ones(&self, mut claimed: Vec<Claim>) -> Result<Vec<Claim>, StoreError> {
        let Some(conversation) = claimed.first().and_then(|claim| claim.item.row.conversation.clone()) else {
            return Ok(claimed);
        };
        let ids: Vec<String> = claimed.iter().map(|claim| claim.key.0.clone()).collect();
        let open = match self.office.undelivered(conversation.clone(), ids).await {
            Ok(open) => open,
            Err(error) => {
                tracing::debug!(%error, "late results wait: the broker cannot be asked which were delivered");
                let mut inner = self.inner();
                claimed.iter().for_each(|claim| inner.late.put_back(&claim.key));
                return Ok(Vec::new());
            }
        };
        let done: Vec<CallId> =
            claimed.iter().filter(|claim| !open.contains(&claim.key.0)).map(|claim| claim.key.clone()).collect();
        claimed.retain(|claim| open.contains(&claim.key.0));
        let gone = {
            let mut inner = self.inner();
            done.iter().filter_map(|call_id| inner.late.remove(call_id)).collect::<Vec<_>>()
        };
        if !gone.is_empty() {
            let ids = gone.iter().map(|waiting| waiting.row.call_id.clone());
            self.forget_later(ids.map(|call_id| (conversation.clone(), call_id)));
            self.drop_payloads(gone).await?;
        }
        Ok(claimed)
    }

    /// The response of its own call is about to carry it.
    pub(super) fn carried_by_its_own(inner: &mut super::Inner, call_id: &CallId) {
        inner.late.update(call_id, |waiting| waiting.own = true);
    }

    /// A claimed result with its payload, as far as that is still kept. It reads what is committed.
    pub(super) fn late_result(&self, claim: Claim) -> Result<LateResult, StoreError> {
        let outcome = self.store.read::<Outcome>(&Key::outcome(&claim.key))?;
        let row = claim.item.row;
        Ok(LateResult {
            call_id: claim.key,
            request_id: row.request_id,
            session: row.session,
            cwd: row.cwd,
            outcome,
            redelivered: claim.offered > 1,
        })
    }

    /// A claimed result found no room in this response.
    pub fn put_back_late(&self, call_id: &CallId) {
        self.inner().late.put_back(call_id);
    }

    /// Writes down that `ids` are about to be offered, so that a crash between write and acknowledgement shows (F7).
    ///
    /// # Errors
    /// The store's.
    pub async fn offering(&self, ids: &[CallId], mut changes: Vec<Change>) -> Result<(), StoreError> {
        for call_id in ids {
            let row: Option<JournalRow> = self.store.read(&Key::journal(call_id))?;
            if let Some(mut row) = row {
                row.offered += 1;
                changes.push(Change::set(Key::journal(call_id), &row));
            }
        }
        if changes.is_empty() { Ok(()) } else { self.store.durable(changes).await }
    }

    /// The response of `by` was not written: what it claimed waits again.
    pub fn release_late(&self, by: &CallId) {
        if !self.inner().late.release(by).is_empty() {
            self.changed();
        }
    }

    /// It is not known whether the response of `by` was written: what it claimed waits again, and says so (F7).
    pub fn lapse_late(&self, by: &CallId) {
        self.inner().late.lapse(by);
        self.changed();
    }

    /// The response of `by` was written: the broker learns it, then the payloads go.
    pub fn confirm_late(self: &Arc<Self>, by: &CallId) {
        let mut rows: BTreeMap<Conversation, Vec<Waiting>> = BTreeMap::new();
        {
            let mut inner = self.inner();
            for (call_id, waiting) in inner.late.confirm(by) {
                inner.whole.retain(|whole| *whole != call_id);
                inner.leaving.insert(call_id);
                if let Some(conversation) = waiting.row.conversation.clone() {
                    rows.entry(conversation).or_default().push(waiting);
                }
            }
        }
        for (conversation, rows) in rows {
            let this = Arc::clone(self);
            self.runtime.spawn(self.tasks.track_future(async move { this.tell_delivered(conversation, rows).await }));
        }
    }

    /// The response of `call_id` itself was written, though it was given up before that was known: its outcome waits no
    /// longer as a late result, unless another response carries it. One that the response cannot have carried waits on: it
    /// said then that the work goes on.
    pub fn confirm_own(self: &Arc<Self>, call_id: &CallId) {
        let mine = self.inner().late.claim(call_id, 1, |key, waiting| key == call_id && waiting.own);
        if !mine.is_empty() {
            self.confirm_late(call_id);
            self.changed();
        }
    }

    /// Tells the broker until it knows, or until the node stops: the journal then still has them as offered, and a restart
    /// delivers them again, marked.
    async fn tell_delivered(&self, conversation: Conversation, rows: Vec<Waiting>) {
        let ids: Vec<String> = rows.iter().map(|waiting| waiting.row.call_id.0.clone()).collect();
        let mut pause = REPORT_FIRST;
        while let Err(error) = self.office.delivered(conversation.clone(), ids.clone()).await {
            tracing::warn!(%error, "delivered late results could not be recorded yet");
            if !self.next_try(&mut pause).await {
                return;
            }
        }
        if let Err(error) = self.drop_payloads(rows).await {
            tracing::warn!(%error, "delivered late results stay in the journal until a restart");
            return;
        }
        self.inner().leaving.retain(|call_id| !ids.contains(&call_id.0));
        if let Err(error) = self.office.forget_delivered(ids.clone()).await {
            tracing::debug!(%error, "delivered ids stay with the broker for now");
            self.forget_later(ids.into_iter().map(|id| (conversation.clone(), CallId(id))));
        }
    }

    fn drop_payloads(&self, gone: Vec<Waiting>) -> Written {
        let changes = gone
            .into_iter()
            .flat_map(|mut waiting| {
                waiting.row.delivered = true;
                // So that a restart knows it from an outcome that its own response carried.
                waiting.row.offered = waiting.row.offered.max(1);
                let call_id = waiting.row.call_id.clone();
                reached(Reached::Over, &call_id.0);
                [Change::set(Key::journal(&call_id), &waiting.row), Change::remove(Key::outcome(&call_id))]
            })
            .collect();
        self.store.durable(changes)
    }

    /// A row that a restart found running: interrupted, and late when somebody can still hear of it.
    pub(in crate::sessions) fn interrupt(
        &self,
        mut row: JournalRow,
        at: crate::ids::Millis,
    ) -> (JournalRow, Vec<Change>) {
        row.state = RowState::Interrupted(at);
        let outcome = Outcome { results: Vec::new(), error: Some(crate::sessions::journal::interrupted(&row.label)) };
        let changes =
            vec![Change::set(Key::journal(&row.call_id), &row), Change::set(Key::outcome(&row.call_id), &outcome)];
        (row, changes)
    }
}
