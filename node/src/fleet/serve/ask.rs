//! One question of another device.

use std::{sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Stream, StreamError, StreamKind};
use tokio::time::timeout;

use super::{
    super::{
        Cancel, Known, office,
        protocol::{
            Blob, CONTROL_MAX,
            ask::{Ask, Reply, SessionAsk},
        },
    },
    Incoming,
    run::FIRST_MAX,
};
use crate::ids::CallId;

/// How long the asker may take to say that it has what rides along.
const THANKS_MAX: Duration = Duration::from_secs(10);

impl Incoming {
    pub(super) async fn ask(&self, peer: NodeId, mut stream: Stream) {
        let ask = match timeout(FIRST_MAX, stream.recv.message::<Ask>(CONTROL_MAX)).await {
            Ok(Ok(Some(ask))) => ask,
            Ok(Err(error)) => {
                self.complain(&peer, StreamKind::Ask, &error);
                if matches!(error, StreamError::Malformed(_) | StreamError::TooLong { .. }) {
                    let word = format!("device {} does not know this question: {error}", self.own());
                    drop(stream.send.message(&Reply::Unsupported(word)).await);
                }
                return;
            }
            Ok(Ok(None)) | Err(_) => return,
        };
        let claimed = match &ask {
            Ask::Session(SessionAsk::Board(boarding)) => Some(boarding.by().clone()),
            _ => None,
        };
        if let Some(by) = &claimed {
            self.boarders.note(by, peer);
        }
        let reply = self.answer(&peer, ask).await;
        let sent = stream.send.message(&reply).await.is_ok();
        if let Some(by) = claimed {
            self.thanked(&peer, sent, by, stream).await;
        }
    }

    async fn answer(&self, peer: &NodeId, ask: Ask) -> Reply {
        match ask {
            // What was written was written, whoever says it: an earlier broker may have composed the answer (failure rule F7).
            Ask::Session(ask @ SessionAsk::Settle { written: true, .. }) => self.session(ask).await,
            Ask::Session(ask) => match self.not_the_broker(peer).await {
                Some(refusal) => self.word_of_a_former_broker(peer, &ask).unwrap_or(Reply::Refused(refusal)),
                None => self.session(ask).await,
            },
            Ask::Office(ask) => match self.no_broker_here().await {
                Some(refusal) => Reply::Refused(refusal),
                None => office::answer(&self.broker, peer, ask).await,
            },
            Ask::Door(ask) => match self.no_broker_here().await {
                Some(refusal) => Reply::Refused(refusal),
                None => self.doorway.ask(*peer, ask).await,
            },
        }
    }

    /// What a broker claimed for an answer that it composed is free again when it says so, also after it lost the seat: nobody
    /// else knows of it.
    fn word_of_a_former_broker(&self, peer: &NodeId, ask: &SessionAsk) -> Option<Reply> {
        match ask {
            SessionAsk::Settle { by, written: false } if self.boarders.is_of(by, peer) => {
                self.node.settle(by.clone(), false);
            }
            SessionAsk::Lapse(by) if self.boarders.is_of(by, peer) => self.node.lapse(by.clone()),
            _ => return None,
        }
        Some(Reply::Done)
    }

    async fn session(&self, ask: SessionAsk) -> Reply {
        match ask {
            SessionAsk::Inspect(session) => match self.node.inspect(session).await {
                Ok(inspection) => {
                    Blob::json(&inspection).map_or_else(|error| Reply::Failed(error.to_string()), Reply::Inspected)
                }
                Err(reason) => Reply::Failed(reason),
            },
            SessionAsk::Known(call_id) => match self.node.known(call_id).await {
                Ok(Known::Never(reason)) => Reply::Never(reason),
                Ok(Known::Held) => Reply::Held,
                Err(reason) => Reply::Failed(reason),
            },
            SessionAsk::Board(boarding) => Reply::Parcel(self.node.board(boarding.into()).await.into()),
            SessionAsk::Settle { by, written } => {
                match self.held.take(&by) {
                    Some(run) => run.settle(written),
                    // Its stream may hang, to a broker that is gone.
                    None if self.held.tell(&by, written) => {}
                    // This device may have been the broker that composed it.
                    None if self.doorway.settle(&by, written) => {}
                    None => self.node.settle(by, written),
                }
                Reply::Done
            }
            SessionAsk::Lapse(by) => {
                self.node.lapse(by);
                Reply::Done
            }
            SessionAsk::Revoke { call_id, reason } => match self.node.revoke(call_id, reason).await {
                Ok(()) => Reply::Done,
                Err(reason) => Reply::Failed(reason),
            },
            SessionAsk::Notice { session, event, message } => {
                self.node.notice(session, event, message);
                Reply::Done
            }
            SessionAsk::Cancel { call_id, conversation, reason } => {
                Reply::Flag(self.node.cancel(Cancel { call_id, conversation, reason }).await)
            }
            SessionAsk::Ended(receipt) => Reply::Ended(self.node.ended(receipt).await),
            SessionAsk::Image { session, sha256 } => match self.node.image(session, sha256).await {
                Ok(picture) => Reply::Image(picture.map(Into::into)),
                Err(reason) => Reply::Failed(reason),
            },
        }
    }

    /// What was claimed for an answer is free again, unless the asker has it.
    async fn thanked(&self, peer: &NodeId, sent: bool, by: CallId, mut stream: Stream) {
        if !sent {
            return self.node.settle(by, false);
        }
        match timeout(THANKS_MAX, stream.recv.message::<bool>(CONTROL_MAX)).await {
            Ok(Ok(Some(true))) => self.expect_word(*peer, by),
            // It did not wait for the parcel.
            Ok(Ok(Some(false) | None)) => self.node.settle(by, false),
            // It may have it, and its word may come yet.
            Ok(Err(_)) | Err(_) => self.node.lapse(by),
        }
    }

    /// The asker says in time what became of the answer, unless it is no broker any more and gone.
    fn expect_word(&self, peer: NodeId, by: CallId) {
        let (boarders, seat, node) = (self.boarders.clone(), self.seat.clone(), Arc::clone(&self.node));
        let stopping = self.line.stopping().clone();
        self.line.runtime().spawn(async move {
            let waiting = boarders.left_without_a_word(seat, &by, peer);
            if stopping.run_until_cancelled(waiting).await == Some(true) {
                node.lapse(by);
            }
        });
    }
}
