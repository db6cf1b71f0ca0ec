//! What this node's journal says of operations with receipts, for a broker that may have lost what an earlier one knew
//! (failure rule F17).

use super::{
    Sessions,
    journal::{JournalRow, RowState, interrupted},
};
use crate::{
    broker::{Reannounced, ReceiptKind, Settlement},
    clock,
    ids::{CallId, Millis},
    storage::node::{Key, StoreError},
};

/// A part of what there is to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutcomePage {
    /// The operations.
    pub rows: Vec<Reannounced>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<CallId>,
}

impl Sessions {
    /// How operations with receipts came out that ended at `since` or later, and those that have not ended; at most `limit`
    /// of the journal after the call `after`, in the journal's order. What is only queued stands on the first page.
    ///
    /// # Errors
    /// The store's.
    pub async fn outcomes_since(
        &self,
        since: Millis,
        after: Option<&CallId>,
        limit: usize,
    ) -> Result<OutcomePage, StoreError> {
        self.store.flush().await?;
        let now = clock::now();
        let mut page = OutcomePage::default();
        if after.is_none() {
            page.rows = self.operations().queued_receipts().iter().filter_map(|row| told(row, now)).collect();
        }
        let (first, to) = Key::journals();
        let from = after.map_or(first, Key::journal);
        let mut room = limit;
        self.store.scan::<JournalRow>(&from, &to, false, |_, row| {
            if after == Some(&row.call_id) {
                return true;
            }
            let recent = match row.state {
                RowState::Running => true,
                RowState::Finished(at) | RowState::Interrupted(at) => at >= since,
            };
            let Some(outcome) = told(&row, now).filter(|_| recent) else { return true };
            if room == 0 {
                page.next = page.rows.last().map(|row| row.call_id.clone());
                return false;
            }
            room -= 1;
            page.rows.push(outcome);
            true
        })?;
        Ok(page)
    }
}

/// What a row says of its receipt, when it has one.
fn told(row: &JournalRow, now: Millis) -> Option<Reannounced> {
    let claim = row.receipt.as_ref()?;
    // Only ages compare: this node's clock is its own (failure rule F14).
    let (outcome, at) = match row.state {
        RowState::Running => (None, row.accepted),
        RowState::Finished(at) => (Some(Settlement::Completed { resources: Vec::new() }), at),
        RowState::Interrupted(at) => (Some(Settlement::Uncertain { reason: interrupted(&row.label) }), at),
    };
    Some(Reannounced {
        key: claim.key.clone(),
        attempt: claim.attempt,
        conversation: row.conversation.clone(),
        session: row.session.clone(),
        cwd: row.cwd.to_string_lossy().into_owned(),
        kind: if row.label == "chat" { ReceiptKind::Chat } else { ReceiptKind::Call },
        call_id: row.call_id.clone(),
        outcome,
        age_ms: now.since(at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::ReceiptKey,
        sessions::{
            Operation, Session,
            journal::ReceiptClaim,
            testing::{crash, until, work, world},
        },
    };

    fn receipted(name: &str, id: &str) -> Operation {
        let receipt = Some(ReceiptClaim { key: ReceiptKey(format!("key-{id}")), attempt: 1 });
        Operation { receipt, ..work(name, id) }
    }

    async fn run(session: &Session, name: &str, id: &str) {
        session.submit(receipted(name, id)).unwrap().done().await;
    }

    #[tokio::test]
    async fn f17_keys_and_outcomes_come_in_pages_and_what_waits_or_was_cut_off_is_among_them() {
        let (world, session) = world().await;
        for id in ["a", "b", "c"] {
            run(&session, "note", id).await;
        }
        session.submit(work("note", "plain")).unwrap().done().await;
        let hanging = session.submit(receipted("hang", "d")).unwrap();
        let queued = session.submit(receipted("note", "e")).unwrap();
        until("it runs", || world.script.running.load(std::sync::atomic::Ordering::SeqCst) == 5).await;
        let start = Millis(0);
        let first = world.sessions.outcomes_since(start, None, 3).await.unwrap();
        let ids = |page: &OutcomePage| page.rows.iter().map(|row| row.call_id.0.clone()).collect::<Vec<_>>();
        assert_eq!(
            (ids(&first), first.next.clone()),
            (["e", "a", "b", "c"].map(String::from).into(), Some("c".into()))
        );
        let ended = Some(Settlement::Completed { resources: vec![] });
        assert_eq!((first.rows[0].outcome.clone(), first.rows[1].outcome.clone()), (None, ended));
        assert_eq!(first.rows[1].key, ReceiptKey("key-a".into()));
        let rest = world.sessions.outcomes_since(start, first.next.as_ref(), 3).await.unwrap();
        assert_eq!((ids(&rest), rest.next.clone()), (vec!["d".to_owned()], None));
        assert_eq!(rest.rows[0].outcome, None);
        let later = world.sessions.outcomes_since(Millis(u64::MAX), None, 9).await.unwrap();
        assert_eq!(ids(&later), ["e", "d"], "what has not ended is always told");
        drop((hanging, queued));
        let world = crash(world).await;
        let page = world.sessions.outcomes_since(start, None, 9).await.unwrap();
        assert_eq!(ids(&page), ["a", "b", "c", "d"]);
        assert!(matches!(page.rows[3].outcome, Some(Settlement::Uncertain { .. })));
    }
}
