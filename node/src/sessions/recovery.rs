//! What a start makes of the journal, and how this node and the broker come to know the same of it.

use super::{
    ReconcileError, Sessions,
    entry::{Body, Event},
    journal::{self, JournalRow, ReceiptRow, Recovered, RowState},
    session::Record,
};
use crate::{
    clock,
    ids::{Conversation, SessionId},
    storage::node::{Change, Key, StoreError},
};

impl Sessions {
    /// Running rows become interrupted, undelivered outcomes late results, unsettled receipts are reported (F2, F8, F9).
    pub(super) async fn recover(&self) -> Result<(), StoreError> {
        let now = clock::now();
        let mut rows: Vec<JournalRow> = Vec::new();
        let (from, to) = Key::journals();
        self.store.scan::<JournalRow>(&from, &to, false, |_, row| {
            rows.push(row);
            true
        })?;
        let delivered = rows.iter().filter(|row| row.delivered && row.offered > 0);
        self.operations
            .forget_later(delivered.filter_map(|row| Some((row.conversation.clone()?, row.call_id.clone()))));
        // In the order in which they were accepted here: ids follow the clocks of doors.
        rows.sort_by_key(|row| row.accepted);
        let mut writes = Vec::new();
        for row in rows {
            self.operations.remember(&row);
            match row.recover(now) {
                Recovered::Kept => self.resettle(row),
                Recovered::Expired => {
                    let mut gone =
                        vec![Change::remove(Key::journal(&row.call_id)), Change::remove(Key::outcome(&row.call_id))];
                    if let Some(claim) = &row.receipt
                        && let Some(ReceiptRow::Ran(call_id, _)) = self.store.read(&Key::receipt(&claim.key.0))?
                        && call_id == row.call_id
                    {
                        gone.push(Change::remove(Key::receipt(&claim.key.0)));
                    }
                    self.store.lazy(gone);
                }
                Recovered::Late => {
                    let mut row = row;
                    if !row.detached {
                        // Its own response may have gone out just before the end.
                        row.offered = row.offered.max(1);
                    }
                    self.operations.insert_late(row.clone(), !row.detached);
                    self.resettle(row);
                }
                Recovered::Interrupted => {
                    let (row, changes) = self.operations.interrupt(row, now);
                    let notice = Body::Notice { event: Event::Interrupted, message: journal::interrupted(&row.label) };
                    match self.find(&row.session) {
                        Some(session) => writes.push(session.history().append(vec![notice], changes).1),
                        None => self.store.lazy(changes),
                    }
                    if matches!(row.conversation, Some(Conversation::Chat(_))) {
                        self.operations.insert_late(row.clone(), false);
                    }
                    self.resettle(row);
                }
            }
        }
        for write in writes {
            write.await?;
        }
        Ok(())
    }

    fn resettle(&self, row: JournalRow) {
        if row.receipt.is_some() && !row.settled && row.state != RowState::Running {
            self.operations.settle_later(row);
        }
    }

    /// Squares this node with the broker: at the start, and each time the broker is met again. What the broker believes
    /// to run here is looked up, and reported or sealed (F3, F9). Idempotent; two at a time take turns.
    ///
    /// # Errors
    /// [`ReconcileError`]: repeat it, at the latest when the broker is met the next time.
    pub async fn reconcile(&self) -> Result<(), ReconcileError> {
        let _turn = self.reconciling.lock().await;
        let (from, to) = Key::sessions();
        // Ended ones too: their operations may have missed the broker.
        let mut known: Vec<SessionId> = Vec::new();
        self.store.scan::<Record>(&from, &to, false, |_, record| {
            known.push(record.id);
            true
        })?;
        self.operations.reconcile(known).await
    }
}
