//! [`FleetOffice`]: the broker as this device's sessions see it, wherever it is.

use std::{sync::Arc, time::Duration};

use chappie_mesh::NodeId;

use super::{
    line::Line,
    protocol::ask::{Ask, OfficeAsk, Reply},
    roll::Roll,
    seat::{Holder, Seat},
};
use crate::{
    broker::{Broker, ProposeError, ReceiptKey, Settlement},
    host::BoxFuture,
    ids::{Conversation, SessionId},
    sessions::{Office, RunningReceipt, SessionInfo},
};

/// How long a word to the broker may take. It writes to its disk first, which may be slow; whoever reports repeats.
const OFFICE_WAIT: Duration = Duration::from_secs(10);

/// Reports to the broker of this device when it has the seat, else over the mesh.
pub struct FleetOffice {
    seat: Seat,
    broker: Broker,
    roll: Arc<Roll>,
    line: Line,
}

impl FleetOffice {
    /// An office for this device's sessions. `broker` is the device's own, `roll` what the broker here knows of sessions.
    #[must_use]
    pub const fn new(seat: Seat, broker: Broker, roll: Arc<Roll>, line: Line) -> Self {
        Self { seat, broker, roll, line }
    }

    /// Asks the broker of another device.
    async fn ask(&self, holder: NodeId, ask: OfficeAsk) -> Result<Reply, ProposeError> {
        match self.line.ask(holder, &Ask::Office(ask), OFFICE_WAIT).await {
            Ok(Reply::Unrecorded(error)) => Err(error.into()),
            Ok(Reply::Unsupported(cause) | Reply::Refused(cause) | Reply::Failed(cause)) => {
                Err(ProposeError::Unreachable(cause))
            }
            Ok(reply) => Ok(reply),
            Err(cause) => Err(ProposeError::Unreachable(cause)),
        }
    }

    fn odd(&self, holder: &NodeId) -> ProposeError {
        ProposeError::Unreachable(format!("device {} gave an answer to another question", self.line.label(holder)))
    }

    async fn tell(&self, holder: NodeId, ask: OfficeAsk) -> Result<(), ProposeError> {
        match self.ask(holder, ask).await? {
            Reply::Done => Ok(()),
            _ => Err(self.odd(&holder)),
        }
    }
}

impl Office for FleetOffice {
    fn settle(&self, key: ReceiptKey, attempt: u32, settlement: Settlement) -> BoxFuture<'_, Result<(), ProposeError>> {
        match self.seat.holder() {
            Holder::Here => Office::settle(&self.broker, key, attempt, settlement),
            Holder::There(node) => Box::pin(self.tell(node, OfficeAsk::Settle { key, attempt, settlement })),
        }
    }

    fn undelivered(
        &self,
        conversation: Conversation,
        ids: Vec<String>,
    ) -> BoxFuture<'_, Result<Vec<String>, ProposeError>> {
        match self.seat.holder() {
            Holder::Here => Office::undelivered(&self.broker, conversation, ids),
            Holder::There(node) => Box::pin(async move {
                match self.ask(node, OfficeAsk::Undelivered { conversation, ids }).await? {
                    Reply::Ids(ids) => Ok(ids),
                    _ => Err(self.odd(&node)),
                }
            }),
        }
    }

    fn delivered(&self, conversation: Conversation, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        match self.seat.holder() {
            Holder::Here => Office::delivered(&self.broker, conversation, ids),
            Holder::There(node) => Box::pin(self.tell(node, OfficeAsk::Delivered { conversation, ids })),
        }
    }

    fn forget_delivered(&self, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        match self.seat.holder() {
            Holder::Here => Office::forget_delivered(&self.broker, ids),
            Holder::There(node) => Box::pin(self.tell(node, OfficeAsk::ForgetDelivered(ids))),
        }
    }

    fn running(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<Vec<RunningReceipt>, ProposeError>> {
        match self.seat.holder() {
            Holder::Here => Office::running(&self.broker, sessions),
            Holder::There(node) => Box::pin(async move {
                match self.ask(node, OfficeAsk::Running(sessions)).await? {
                    Reply::Running(running) => Ok(running),
                    _ => Err(self.odd(&node)),
                }
            }),
        }
    }

    fn announce(&self, sessions: Vec<SessionInfo>) {
        self.roll.own(sessions);
    }
}

/// Answers a member's word, at the broker.
pub(super) async fn answer(broker: &Broker, ask: OfficeAsk) -> Reply {
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
        OfficeAsk::Running(sessions) => match Office::running(broker, sessions).await {
            Ok(running) => Reply::Running(running),
            Err(error) => Reply::Unrecorded(error.into()),
        },
    }
}
