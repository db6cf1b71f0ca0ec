//! [`FleetOffice`]: the broker as this device's sessions see it, wherever it is.

use std::{future::Future, sync::Arc, time::Duration};

use chappie_mesh::NodeId;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    line::Line,
    protocol::ask::{Ask, OfficeAsk, Reply},
    roll::Roll,
    seat::{Holder, Seat},
};
use crate::{
    broker::{Broker, ProposeError, Reannounced, ReceiptKey, Settlement},
    host::BoxFuture,
    ids::{Conversation, SessionId},
    sessions::{Office, RunningReceipt, SessionInfo},
};

/// How long a word to the broker may take. It writes to its disk first, which may be slow; whoever reports repeats.
const OFFICE_WAIT: Duration = Duration::from_secs(10);
/// How long a word waits for somebody to take the seat, and is said again to one who has not taken it yet: an election on
/// a slow line takes that long, and a caller may be waiting.
const SEAT_WAIT: Duration = Duration::from_secs(3);
/// Between two words to a device that has not taken the seat yet.
const SEAT_PAUSE: Duration = Duration::from_millis(50);

/// Reports to the broker of this device when it has the seat, else over the mesh. When the seat moves the same word goes to
/// the new holder at once: every word may be said twice.
pub struct FleetOffice {
    seat: Seat,
    broker: Broker,
    roll: Arc<Roll>,
    line: Line,
}

/// What a device said to a word.
enum Said<T> {
    Done(T),
    /// It is not the broker, and says so.
    NotBroker(ProposeError),
    Failed(ProposeError),
}

impl<T> Said<T> {
    fn failed(error: ProposeError) -> Self {
        if error == ProposeError::NotBroker { Self::NotBroker(error) } else { Self::Failed(error) }
    }
}

impl FleetOffice {
    /// An office for this device's sessions. `broker` is the device's own, `roll` what the broker here knows of sessions.
    #[must_use]
    pub const fn new(seat: Seat, broker: Broker, roll: Arc<Roll>, line: Line) -> Self {
        Self { seat, broker, roll, line }
    }

    /// Says a word to whoever has the seat: to this device's broker by `here`, to another device's by `ask`, whose answer
    /// `read` understands.
    async fn say<T, F>(
        &self,
        here: impl Fn() -> F,
        ask: OfficeAsk,
        read: impl Fn(Reply) -> Option<T>,
    ) -> Result<T, ProposeError>
    where
        F: Future<Output = Result<T, ProposeError>>,
    {
        let mut seat = self.seat.clone();
        let ask = Ask::Office(ask);
        let until = Instant::now() + OFFICE_WAIT;
        let seated_until = Instant::now() + SEAT_WAIT;
        loop {
            let holder = seat.holder();
            let saying = async {
                match holder {
                    Holder::Here => here().await.map_or_else(Said::failed, Said::Done),
                    Holder::There(node) => self.ask(node, &ask, until, &read).await,
                    Holder::Nobody => Said::NotBroker(ProposeError::Unreachable("the mesh has no broker now".into())),
                }
            };
            let said = tokio::select! {
                biased;
                said = saying => said,
                () = seat.left(holder) => continue,
            };
            let error = match said {
                Said::Done(told) => return Ok(told),
                // The office ended under it.
                Said::Failed(error) if seat.holder() == holder => return Err(error),
                Said::Failed(error) | Said::NotBroker(error) => error,
            };
            if Instant::now() >= seated_until {
                return Err(error);
            }
            let pause = if holder == Holder::Nobody { SEAT_WAIT } else { SEAT_PAUSE };
            tokio::select! {
                biased;
                () = seat.left(holder) => {}
                _ = timeout_at(seated_until, sleep(pause)) => {}
            }
        }
    }

    /// This device.
    pub(super) const fn own(&self) -> NodeId {
        self.seat.own()
    }

    /// Tells the broker what this device knows of operations, after `mesh recover` (failure rule F17).
    pub(super) async fn reannounce(&self, rows: Vec<Reannounced>, last: bool) -> Result<(), ProposeError> {
        let ask = OfficeAsk::Reannounce { rows: rows.clone(), last };
        let here = move || self.broker.reannounce(self.seat.own(), rows.clone(), last);
        self.say(here, ask, done).await
    }

    /// Asks the broker of another device.
    async fn ask<T>(&self, holder: NodeId, ask: &Ask, until: Instant, read: impl Fn(Reply) -> Option<T>) -> Said<T> {
        let wait = until.saturating_duration_since(Instant::now());
        match self.line.ask(holder, ask, wait).await {
            Ok(Reply::Unrecorded(error)) => Said::failed(error.into()),
            Ok(Reply::Refused(cause)) => Said::NotBroker(ProposeError::Unreachable(cause)),
            Ok(Reply::Unsupported(cause) | Reply::Failed(cause)) | Err(cause) => {
                Said::Failed(ProposeError::Unreachable(cause))
            }
            Ok(reply) => read(reply).map_or_else(
                || {
                    let label = self.line.label(&holder);
                    let cause = format!("device {label} gave an answer to another question");
                    Said::Failed(ProposeError::Unreachable(cause))
                },
                Said::Done,
            ),
        }
    }
}

/// What an answer says that has nothing to say.
fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

impl Office for FleetOffice {
    fn settle(&self, key: ReceiptKey, attempt: u32, settlement: Settlement) -> BoxFuture<'_, Result<(), ProposeError>> {
        let ask = OfficeAsk::Settle { key: key.clone(), attempt, settlement: settlement.clone() };
        let here = move || Office::settle(&self.broker, key.clone(), attempt, settlement.clone());
        Box::pin(self.say(here, ask, done))
    }

    fn undelivered(
        &self,
        conversation: Conversation,
        ids: Vec<String>,
    ) -> BoxFuture<'_, Result<Vec<String>, ProposeError>> {
        let ask = OfficeAsk::Undelivered { conversation: conversation.clone(), ids: ids.clone() };
        let here = move || Office::undelivered(&self.broker, conversation.clone(), ids.clone());
        let read = |reply| match reply {
            Reply::Ids(ids) => Some(ids),
            _ => None,
        };
        Box::pin(self.say(here, ask, read))
    }

    fn delivered(&self, conversation: Conversation, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        let ask = OfficeAsk::Delivered { conversation: conversation.clone(), ids: ids.clone() };
        let here = move || Office::delivered(&self.broker, conversation.clone(), ids.clone());
        Box::pin(self.say(here, ask, done))
    }

    fn forget_delivered(&self, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        let ask = OfficeAsk::ForgetDelivered(ids.clone());
        let here = move || Office::forget_delivered(&self.broker, ids.clone());
        Box::pin(self.say(here, ask, done))
    }

    fn running(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<Vec<RunningReceipt>, ProposeError>> {
        let ask = OfficeAsk::Running(sessions.clone());
        let here = move || Office::running(&self.broker, sessions.clone());
        let read = |reply| match reply {
            Reply::Running(running) => Some(running),
            _ => None,
        };
        Box::pin(self.say(here, ask, read))
    }

    fn announce(&self, sessions: Vec<SessionInfo>) {
        self.roll.own(sessions);
    }
}

/// Answers a member's word, at the broker.
pub(super) async fn answer(broker: &Broker, peer: &NodeId, ask: OfficeAsk) -> Reply {
    let done = |result: Result<(), ProposeError>| match result {
        Ok(()) => Reply::Done,
        Err(error) => Reply::Unrecorded(error.into()),
    };
    match ask {
        OfficeAsk::Settle { key, attempt, settlement } => done(Office::settle(broker, key, attempt, settlement).await),
        OfficeAsk::Undelivered { conversation, ids } => match Office::undelivered(broker, conversation, ids).await {
            Ok(ids) => Reply::Ids(ids),
            Err(error) => Reply::Unrecorded(error.into()),
        },
        OfficeAsk::Delivered { conversation, ids } => done(Office::delivered(broker, conversation, ids).await),
        OfficeAsk::ForgetDelivered(ids) => done(Office::forget_delivered(broker, ids).await),
        OfficeAsk::Reannounce { rows, last } => done(broker.reannounce(*peer, rows, last).await),
        OfficeAsk::Running(sessions) => match Office::running(broker, sessions).await {
            Ok(running) => Reply::Running(running),
            Err(error) => Reply::Unrecorded(error.into()),
        },
    }
}
