//! [`Incoming`]: streams that other devices open here. It checks that the peer may, keeps each peer to its quota, and hands
//! the stream to its kind's file.

mod ask;
mod boarders;
mod held;
mod history;
mod quota;
mod run;

use std::{sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Stream, StreamError, StreamKind};
use tokio::time::timeout;

use super::{
    SessionNode,
    feed::Receiver,
    line::Line,
    protocol::ask::{DoorAsk, Reply},
    seat::{Holder, Seat},
};
use crate::{broker::Broker, host::BoxFuture, ids::CallId};
use boarders::Boarders;
use held::Held;
use quota::Quotas;

/// How long a word of a broker waits for this device to hear that it is one, and a question to the broker for this device
/// to take the seat that it was elected to: some heartbeats, and one write.
pub const NEWS_MAX: Duration = Duration::from_secs(1);

/// What serves doors of other devices, at the broker.
pub trait Doorway: Send + Sync + 'static {
    /// Serves one call, to the end of its stream.
    fn call(&self, peer: NodeId, stream: Stream) -> BoxFuture<'static, ()>;
    /// Answers what a door asks beside its calls.
    fn ask(&self, peer: NodeId, ask: DoorAsk) -> BoxFuture<'static, Reply>;
    /// Whether an answer was written that this device composed as the broker, and that still waits for that word. False: none
    /// such waits.
    fn settle(&self, by: &CallId, written: bool) -> bool;
}

/// Serves streams. One for the whole device.
pub struct Incoming {
    node: Arc<dyn SessionNode>,
    broker: Broker,
    doorway: Arc<dyn Doorway>,
    feeds: Receiver,
    seat: Seat,
    line: Line,
    quotas: Quotas,
    held: Held,
    boarders: Boarders,
}

impl Incoming {
    /// Serves `node`'s sessions to the broker, and, while this device is the broker, `broker`, `doorway` and `feeds` to
    /// members.
    #[must_use]
    pub fn new(
        node: Arc<dyn SessionNode>,
        broker: Broker,
        doorway: Arc<dyn Doorway>,
        feeds: Receiver,
        seat: Seat,
        line: Line,
    ) -> Arc<Self> {
        let held = Held::new(line.runtime().clone());
        let (quotas, boarders) = (Quotas::default(), Boarders::default());
        Arc::new(Self { node, broker, doorway, feeds, seat, line, quotas, held, boarders })
    }

    /// Takes a stream that `peer`, a member, opened. Does not block; may be called from any thread.
    pub fn stream(self: &Arc<Self>, peer: NodeId, kind: StreamKind, stream: Stream) {
        let Some(place) = self.quotas.take(peer, kind) else {
            tracing::warn!(
                device = self.line.label(&peer),
                ?kind,
                "more streams of this kind than one device may have"
            );
            return;
        };
        let (incoming, stopping) = (Arc::clone(self), self.line.stopping().clone());
        self.line.runtime().spawn(async move {
            let _place = place;
            stopping.run_until_cancelled(incoming.serve(peer, kind, stream)).await;
        });
    }

    async fn serve(&self, peer: NodeId, kind: StreamKind, stream: Stream) {
        match kind {
            StreamKind::Run => self.run(peer, stream).await,
            StreamKind::History => self.history(peer, stream).await,
            StreamKind::Ask => self.ask(peer, stream).await,
            StreamKind::Feed => match self.no_broker_here().await {
                None => self.feeds.serve(peer, stream).await,
                Some(refusal) => tracing::debug!(device = self.line.label(&peer), refusal, "announces to no broker"),
            },
            // Whoever takes the mesh's streams keeps this kind for itself.
            StreamKind::Desk => {}
            // Refused in its own words, by whoever knows them.
            StreamKind::Door => self.doorway.call(peer, stream).await,
        }
    }

    /// Why `peer` may not act as broker here, when it may not. A broker that was elected just now is heard of within a
    /// moment, from its consensus group: it is waited for.
    async fn not_the_broker(&self, peer: &NodeId) -> Option<String> {
        let mut seat = self.seat.clone();
        let heard = async {
            loop {
                let holder = seat.holder();
                if holder == Holder::There(*peer) {
                    return;
                }
                seat.left(holder).await;
            }
        };
        if timeout(NEWS_MAX, heard).await.is_ok() {
            return None;
        }
        let (own, peer) = (self.own(), self.line.label(peer));
        Some(match self.seat.holder() {
            Holder::Here => format!("device {own} does not take work from {peer}: it is the broker itself"),
            Holder::There(broker) => {
                format!("device {own} does not take work from {peer}: its broker is {}", self.line.label(&broker))
            }
            Holder::Nobody => {
                format!("device {own} does not take work from {peer}: it has not heard that it is broker")
            }
        })
    }

    /// Why this device does not answer as broker, when it does not. One that was just elected takes the seat in a moment.
    async fn no_broker_here(&self) -> Option<String> {
        self.seat.clone().refusal(NEWS_MAX, |node| self.line.label(node)).await
    }

    fn own(&self) -> String {
        self.line.label(&self.seat.own())
    }

    /// One line about a message that is none. The stream ends with it; the connection stays.
    fn complain(&self, peer: &NodeId, kind: StreamKind, error: &StreamError) {
        match error {
            StreamError::Lost(_) | StreamError::Stopped => {}
            StreamError::TooLong { .. } | StreamError::Malformed(_) => {
                tracing::warn!(device = self.line.label(peer), ?kind, %error, "a stream with a bad message was ended");
            }
        }
    }
}
