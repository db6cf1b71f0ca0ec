//! After `mesh recover` every device tells the new broker which operations it knows, until the broker has it (failure rule
//! F17). That it is awaited is in the replicated state, which every device has.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::office::FleetOffice;
use crate::{
    broker::{Broker, ProposeError},
    clock,
    ids::{CallId, Millis},
    sessions::Sessions,
    storage::node::StoreError,
};

/// What is told goes back so far: a completed receipt is kept for as long.
const KNOWN_MS: u64 = 24 * 3_600_000;
/// Operations in one message: at most 5 KiB each, so that all stay below [`super::protocol::CONTROL_MAX`].
const PAGE: usize = 128;
/// Before it is tried again: the first time, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

/// Why not all was told.
#[derive(Debug, thiserror::Error)]
enum Untold {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Office(#[from] ProposeError),
}

/// Tells what `sessions` know, whenever `broker`, this device's copy of the state, says that this device is awaited; until
/// `stopping`.
pub async fn run(broker: Broker, office: Arc<FleetOffice>, sessions: Arc<Sessions>, stopping: CancellationToken) {
    stopping.run_until_cancelled(follow(&broker, &office, &sessions)).await;
}

async fn follow(broker: &Broker, office: &FleetOffice, sessions: &Sessions) {
    let mut changes = broker.subscribe();
    let [mut pause, longest] = PAUSES;
    loop {
        changes.mark_unchanged();
        if broker.recovering().contains(&office.own()) {
            match tell(office, sessions).await {
                Ok(()) => tracing::info!("the new broker knows now which operations this device had"),
                Err(error) => {
                    tracing::warn!(%error, "the new broker has not heard yet which operations this device had");
                    sleep(pause).await;
                    pause = (pause * 2).min(longest);
                    continue;
                }
            }
        }
        pause = PAUSES[0];
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn tell(office: &FleetOffice, sessions: &Sessions) -> Result<(), Untold> {
    let since = Millis(clock::now().0.saturating_sub(KNOWN_MS));
    let mut after: Option<CallId> = None;
    loop {
        let page = sessions.outcomes_since(since, after.as_ref(), PAGE).await?;
        office.reannounce(page.rows, page.next.is_none()).await?;
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use chappie_mesh::NodeId;
    use tokio::sync::watch;

    use super::*;
    use crate::{
        broker::{ReceiptKey, ReceiptStatus},
        fleet::{
            roll::Roll,
            seat::Seat,
            testing::{Kept, Wires, roster},
        },
        sessions::{
            Operation, ReceiptClaim,
            testing::{until, work, world},
        },
    };

    #[tokio::test]
    async fn f17_after_a_recovery_the_broker_is_told_what_the_journal_knows() {
        let (world, session) = world().await;
        let own = NodeId::from([1; 32]);
        for id in ["a", "b"] {
            let receipt = Some(ReceiptClaim { key: ReceiptKey(format!("{id:0>64}")), attempt: 1 });
            session.submit(Operation { receipt, ..work("note", id) }).unwrap().done().await;
        }
        let rosters = watch::channel(Arc::new(roster())).1;
        let wires = Wires::new();
        let roll = Roll::new(own, world.broker.clone(), Arc::new(Kept::default()));
        let line = wires.line(own, rosters.clone());
        let office = Arc::new(FleetOffice::new(Seat::fixed(own, rosters), world.broker.clone(), roll, line));
        let stopping = CancellationToken::new();
        let telling = run(world.broker.clone(), office, Arc::clone(&world.sessions), stopping.clone());
        let telling = tokio::spawn(telling);
        world.broker.recover().await.unwrap();
        until("nobody is awaited", || world.broker.recovering().is_empty()).await;
        for id in ["a", "b"] {
            let receipt = world.broker.receipt(&ReceiptKey(format!("{id:0>64}"))).unwrap();
            assert_eq!((receipt.status, receipt.call_id), (ReceiptStatus::Completed, id.into()));
        }
        stopping.cancel();
        telling.await.unwrap();
    }
}
