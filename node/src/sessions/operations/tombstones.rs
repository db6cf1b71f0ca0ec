//! Operations that are called off or asked about: what is known goes its way, and what is not known gets a tombstone, so
//! that a dispatch that comes late never runs (failure rules F3, F4).

use super::{Inner, Operation, Operations, Progress};
use crate::{
    clock::{self, Moment},
    ids::{CallId, Conversation, Millis},
    sessions::journal::{JournalRow, REQUEST_KEPT_MS, ROW_KEPT_MS, ReceiptClaim, ReceiptRow, RowState},
    storage::node::{Change, Key, StoreError},
};

/// How long a tombstone holds. A dispatch is sent within a caller's budget of minutes, so what comes after an hour is no
/// late one; a host's request id is remembered for as long.
const TOMBSTONE_KEPT_MS: u64 = REQUEST_KEPT_MS;
/// Tombstones kept at all, about 100 bytes each. Only a broker makes them, one for each call that it lost sight of;
/// beyond it the oldest go, whose dispatches are the least likely to be still on their way. Not those of the oldest calls:
/// their ids follow the clocks of their doors.
const TOMBSTONES_MAX: usize = 8_192;

/// How far an operation is, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Behind others of its session.
    Queued,
    /// At the host.
    Running,
    /// It ran; its outcome was not delivered yet.
    Finished,
    /// Its outcome was written to its caller.
    Delivered,
    /// The node stopped while it ran; that is its outcome, and was not delivered yet.
    Interrupted,
    /// It did not run and never will under this identity.
    NeverRun,
    /// It is not known here and never runs from now on, but it may have run: the journal was replaced by an older one since
    /// it was made.
    Lost,
}

/// How long after an older journal was put back nothing that it does not know is said to have never run: as long as a call
/// or a receipt of the time before may be asked about.
const THIN_MS: u64 = 25 * 3_600_000;

/// Whether a call that the journal does not know may have run all the same: the journal is an older one that was put back
/// at `since` (F3: "unknown" from another journal stays uncertain). The clock of whoever made the call may differ.
fn may_have_run(call_id: &CallId, since: Option<Millis>, now: Millis) -> bool {
    let Some(since) = since else { return false };
    now.since(since) < THIN_MS || call_id.made().is_none_or(|made| made < since)
}

impl Inner {
    /// Whether `call_id` was called off.
    pub(super) fn is_buried(&self, call_id: &CallId, now: Moment) -> bool {
        self.tombstones.get(call_id).is_some_and(|at| at.age_ms(&now) < TOMBSTONE_KEPT_MS)
    }

    /// Whether this attempt of `operation` was asked about before it came. The next one may run.
    pub(super) fn is_asked(&self, operation: &Operation) -> bool {
        let asked = self.asked.get(&operation.call_id);
        asked.is_some_and(|asked| operation.receipt.as_ref().is_none_or(|claim| claim.attempt <= *asked))
    }

    /// Puts up a tombstone, and takes down those that are over.
    fn bury(&mut self, call_id: &CallId, now: Moment) -> Vec<Change> {
        let mut changes = vec![Change::set(Key::tombstone(call_id), &now.wall)];
        self.tombstones.insert(call_id.clone(), now);
        self.tombstones.retain(|call_id, at| {
            let holds = at.age_ms(&now) < TOMBSTONE_KEPT_MS;
            if !holds {
                changes.push(Change::remove(Key::tombstone(call_id)));
            }
            holds
        });
        while self.tombstones.len() > TOMBSTONES_MAX
            && let Some((oldest, _)) = self.tombstones.iter().max_by_key(|(_, at)| at.age_ms(&now))
        {
            let oldest = oldest.clone();
            self.tombstones.remove(&oldest);
            changes.push(Change::remove(Key::tombstone(&oldest)));
        }
        changes
    }

    /// Asks for the end of a run. Returns whether it was only queued.
    fn cancel(&mut self, call_id: &CallId, reason: &str) -> Option<bool> {
        let run = self.runs.get_mut(call_id)?;
        run.reason.get_or_insert_with(|| reason.to_owned());
        run.cancel.cancel();
        Some(matches!(*run.progress.borrow(), Progress::Queued))
    }
}

impl Operations {
    /// Takes the tombstones up again after a start.
    ///
    /// # Errors
    /// The store's.
    pub(in crate::sessions) fn exhume(&self) -> Result<(), StoreError> {
        let now = clock::now();
        let (from, to) = Key::tombstones();
        let mut over = Vec::new();
        let mut inner = self.inner();
        self.store.scan::<Millis>(&from, &to, false, |key, at| {
            match key.call_id() {
                Some(call_id) if now.since(at) < TOMBSTONE_KEPT_MS => {
                    inner.tombstones.insert(call_id, Moment::written(at));
                }
                _ => over.push(Change::remove(key.clone())),
            }
            true
        })?;
        drop(inner);
        if !over.is_empty() {
            self.store.lazy(over);
        }
        Ok(())
    }

    /// Asks for the end of an operation. Queued: it never runs. Running: its host stops within a second, and what finished
    /// is its outcome; a late result when nobody waits for it. Idempotent; the first reason stays. One that is not known
    /// here changes nothing.
    pub fn cancel(&self, call_id: &CallId, reason: &str) {
        self.inner().cancel(call_id, reason);
    }

    /// The same by one who knows the id: only an operation of its own conversation that has not ended. One that is not
    /// known here never runs from now on: the order may have overtaken its dispatch (F4). In force, durably, once this
    /// returns. Returns whether there was one.
    pub async fn cancel_of(&self, call_id: &CallId, conversation: Option<&Conversation>, reason: &str) -> bool {
        let open = self.inner().runs.get(call_id).map(|run| {
            run.row.conversation.as_ref() == conversation
                && matches!(*run.progress.borrow(), Progress::Queued | Progress::Running)
        });
        let revoked = match open {
            Some(false) => Ok(()),
            Some(true) | None => self.revoke(call_id, reason).await,
        };
        if let Err(error) = revoked {
            tracing::warn!(%error, call = %call_id, "an operation is called off until the node stops only");
        }
        open == Some(true)
    }

    /// The order of whoever dispatched an operation to end it, whatever its conversation. A queued one never runs, and
    /// neither does one that is not known here yet. In force, durably, once this returns. Idempotent.
    ///
    /// # Errors
    /// The store's; the order holds until the node stops.
    pub async fn revoke(&self, call_id: &CallId, reason: &str) -> Result<(), StoreError> {
        let changes = {
            let mut inner = self.inner();
            match inner.cancel(call_id, reason) {
                Some(true) => inner.bury(call_id, Moment::now()),
                Some(false) => return Ok(()),
                None if inner.late.contains(call_id) || inner.is_buried(call_id, Moment::now()) => return Ok(()),
                None if self.row(call_id)?.is_some() => return Ok(()),
                None => inner.bury(call_id, Moment::now()),
            }
        };
        self.store.durable(changes).await
    }

    /// Whether a call that the journal does not know may have run all the same (F3).
    ///
    /// # Errors
    /// The store's.
    pub fn may_have_run(&self, call_id: &CallId) -> Result<bool, StoreError> {
        Ok(may_have_run(call_id, self.store.read(&Key::journal_since())?, clock::now()))
    }

    /// How far an operation is. One that is not known here is sealed, durably before this says that it never ran (F3), or
    /// that it is lost: of one with a receipt this attempt, since a retry comes under the next one; of another one all that
    /// comes by its id.
    ///
    /// # Errors
    /// The store's; the operation is then sealed until the node stops, and nothing may be said of it.
    pub async fn ask(&self, call_id: &CallId, receipt: Option<&ReceiptClaim>) -> Result<Standing, StoreError> {
        // What was delivered a moment ago may still wait for its commit.
        self.store.flush().await?;
        let (known, changes) = {
            let mut inner = self.inner();
            let known = match inner.standing(call_id) {
                None => false,
                // That holds in memory only.
                Some(Standing::NeverRun) => true,
                Some(standing) => return Ok(standing),
            };
            if let Some(row) = self.row(call_id)? {
                return Ok(match row.state {
                    _ if row.delivered || inner.leaving.contains(call_id) => Standing::Delivered,
                    RowState::Interrupted(_) => Standing::Interrupted,
                    RowState::Running => Standing::Running,
                    RowState::Finished(_) => Standing::Finished,
                });
            }
            let changes = match receipt {
                None => inner.bury(call_id, Moment::now()),
                Some(claim) => {
                    // Holds what comes before the seal is on disk.
                    let asked = inner.asked.entry(call_id.clone()).or_default();
                    *asked = claim.attempt.max(*asked);
                    let seal = self.seal_of(claim)?;
                    vec![Change::set(Key::receipt(&claim.key.0), &seal)]
                }
            };
            (known, changes)
        };
        self.store.durable(changes).await?;
        if let Some(claim) = receipt {
            let mut inner = self.inner();
            if inner.asked.get(call_id) == Some(&claim.attempt) {
                inner.asked.remove(call_id);
            }
        }
        Ok(if !known && self.may_have_run(call_id)? { Standing::Lost } else { Standing::NeverRun })
    }

    /// A seal never goes back to an earlier attempt.
    fn seal_of(&self, claim: &ReceiptClaim) -> Result<ReceiptRow, StoreError> {
        let now = clock::now();
        let attempt = match self.store.read(&Key::receipt(&claim.key.0))? {
            Some(ReceiptRow::Sealed(later, at)) if now.since(at) < ROW_KEPT_MS => later.max(claim.attempt),
            _ => claim.attempt,
        };
        Ok(ReceiptRow::Sealed(attempt, now))
    }

    /// The row of an operation that the journal has.
    pub(in crate::sessions) fn row(&self, call_id: &CallId) -> Result<Option<JournalRow>, StoreError> {
        self.store.read(&Key::journal(call_id))
    }
}

impl Inner {
    fn standing(&self, call_id: &CallId) -> Option<Standing> {
        let run = self.runs.get(call_id)?;
        Some(match *run.progress.borrow() {
            Progress::Queued => Standing::Queued,
            Progress::Running => Standing::Running,
            Progress::Finished(_) => Standing::Finished,
            Progress::NeverRan(_) => Standing::NeverRun,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f3_what_an_older_journal_does_not_know_may_have_run() {
        let made = |at: u64| CallId(format!("{:08x}-{:04x}-7000-8000-000000000000", at >> 16, at & 0xffff));
        let (hour, since) = (3_600_000, 1_790_000_000_000);
        assert_eq!(made(since).made(), Some(Millis(since)));
        for (made_at, since, now, expected, what) in [
            (since, None, since, false, "the journal is whole"),
            (since - 1, Some(since), since + 48 * hour, true, "made before it was put back"),
            (since + hour, Some(since), since + 2 * hour, true, "clocks differ: for a day nothing is said"),
            (since + 30 * hour, Some(since), since + 30 * hour, false, "made long after it was put back"),
            (since, Some(since + hour), since, true, "the clock was set back"),
        ] {
            assert_eq!(may_have_run(&made(made_at), since.map(Millis), Millis(now)), expected, "{what}");
        }
        assert!(may_have_run(&CallId::from("no time"), Some(Millis(since)), Millis(since + 48 * hour)));
    }

    #[tokio::test(start_paused = true)]
    async fn f4_a_tombstone_holds_for_an_hour_and_the_oldest_make_room() {
        let mut inner = Inner::default();
        let pass = |ms| tokio::time::advance(std::time::Duration::from_millis(ms));
        let (early, late) = (CallId::from("1"), CallId::from("0"));
        let begun = Moment::now();
        assert_eq!(inner.bury(&early, begun), [Change::set(Key::tombstone(&early), &begun.wall)]);
        pass(TOMBSTONE_KEPT_MS - 1).await;
        assert!(inner.is_buried(&early, Moment::now()) && !inner.is_buried(&late, Moment::now()));
        pass(1).await;
        assert!(!inner.is_buried(&early, Moment::now()));
        let changes = inner.bury(&late, Moment::now());
        assert!(changes.contains(&Change::remove(Key::tombstone(&early))), "{changes:?}");
        pass(1).await;
        for n in 0..TOMBSTONES_MAX {
            inner.bury(&CallId(format!("2-{n:05}")), Moment::now());
        }
        assert!(inner.tombstones.len() == TOMBSTONES_MAX && !inner.is_buried(&late, Moment::now()));
        pass(1).await;
        // Made at a door whose clock is behind: the lowest id of all, and the latest tombstone.
        let behind = CallId::from("00");
        inner.bury(&behind, Moment::now());
        assert!(inner.tombstones.len() == TOMBSTONES_MAX && inner.is_buried(&behind, Moment::now()));
        assert_eq!(Key::tombstone(&late).call_id(), Some(late));
    }

    #[tokio::test(start_paused = true)]
    async fn f4_a_clock_that_somebody_sets_takes_no_tombstone_away() {
        let mut inner = Inner::default();
        let call = CallId::from("c");
        inner.bury(&call, Moment::now());
        let jumped = Moment::now().with_wall(Millis(clock::now().0 + 2 * TOMBSTONE_KEPT_MS));
        assert!(inner.is_buried(&call, jumped));
        inner.bury(&CallId::from("d"), jumped);
        assert!(inner.is_buried(&call, jumped), "it is not taken down either");
        inner.tombstones.insert(call.clone(), Moment::written(Millis(0)));
        assert!(!inner.is_buried(&call, Moment::now()), "of an earlier process only the wall clock speaks");
    }
}
