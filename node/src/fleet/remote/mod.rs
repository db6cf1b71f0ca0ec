//! [`RemoteNode`]: a session node on another device. Each method is one stream; what a caller cannot wait for is repeated
//! in the background until it arrives.

mod run;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use chappie_mesh::{NodeId, StreamKind};
use tokio::time::{Instant, timeout_at};

use super::{
    Board, Cancel, Dispatch, HistoryAsk, Known, Parcel, Picture, Run, SessionNode,
    line::{ASK_WAIT, Line},
    protocol::{
        ANSWER_MAX,
        ask::{Ask, Reply, SessionAsk},
        history,
    },
};
use crate::{
    host::{BoxFuture, Inspection},
    ids::{CallId, SessionId},
    sessions::{Ended, entry::Event},
};

/// How long a page may take beyond the wait that was asked for.
const PAGE_WAIT: Duration = Duration::from_secs(10);
/// How long an image of at most 32 MiB may take: 1 MiB/s, which a call's budget of 45 s leaves time for.
const IMAGE_WAIT: Duration = Duration::from_secs(35);

/// The sessions of another device.
pub struct RemoteNode {
    node: NodeId,
    line: Line,
}

impl RemoteNode {
    /// The sessions of `node`, reached over `line`.
    #[must_use]
    pub fn new(node: NodeId, line: Line) -> Arc<Self> {
        Arc::new(Self { node, line })
    }

    fn device(&self) -> String {
        self.line.label(&self.node)
    }

    async fn ask(&self, ask: SessionAsk, wait: Duration) -> Result<Reply, String> {
        match self.line.ask(self.node, &Ask::Session(ask), wait).await? {
            Reply::Unsupported(cause) | Reply::Refused(cause) | Reply::Failed(cause) => Err(cause),
            reply => Ok(reply),
        }
    }

    fn odd(&self) -> String {
        format!("device {} gave an answer to another question; are both on the same version?", self.device())
    }

    async fn page(&self, ask: HistoryAsk) -> Result<Parcel, String> {
        let until = Instant::now() + ask.wait + PAGE_WAIT;
        let asking = async {
            let mut stream = self.line.open(self.node, StreamKind::History, ASK_WAIT).await?;
            let trouble = |error| self.line.trouble(&self.node, &error);
            stream.send.message(&history::Order::Page(ask.into())).await.map_err(trouble)?;
            match stream.recv.message::<history::News>(ANSWER_MAX).await.map_err(trouble)? {
                Some(history::News::Page(parcel)) => Ok(parcel.into()),
                Some(history::News::Failed(reason)) => Err(reason),
                None => Err(format!("device {} ended the stream without a page", self.device())),
            }
        };
        let late = |_| Err(format!("device {} gave no page in time; ask again", self.device()));
        timeout_at(until, asking).await.unwrap_or_else(late)
    }

    async fn load(&self, board: Board) -> Parcel {
        let by = board.by.clone();
        let ask = Ask::Session(SessionAsk::Board(board.into()));
        match self.line.converse(self.node, &ask, ASK_WAIT).await {
            Ok((Reply::Parcel(parcel), mut stream)) => {
                // The node keeps what it claimed only for an asker that has it.
                if stream.send.message(&true).await.is_ok() {
                    return parcel.into();
                }
            }
            Ok((reply, _)) => tracing::warn!(device = self.device(), ?reply, "what waits there does not ride along"),
            Err(cause) => tracing::info!(cause, "what waits there does not ride along"),
        }
        self.settle(&by, false);
        Parcel::default()
    }

    /// Says whether the answer of `by` was written, until the node has heard it. Does not block.
    fn settle(&self, by: &CallId, written: bool) {
        let settle = Ask::Session(SessionAsk::Settle { by: by.clone(), written });
        self.line.insist(self.node, settle, "whether an answer was written");
    }

    /// Says that an operation shall end, until the node has heard it. Does not block.
    fn insist_on_end(&self, ask: SessionAsk) {
        self.line.insist(self.node, Ask::Session(ask), "that an operation shall end");
    }
}

impl SessionNode for RemoteNode {
    fn inspect(&self, session: SessionId) -> BoxFuture<'_, Result<Inspection, String>> {
        Box::pin(async move {
            match self.ask(SessionAsk::Inspect(session), ASK_WAIT).await? {
                Reply::Inspected(json) => json.parse().map_err(|error| format!("device {}: {error}", self.device())),
                _ => Err(self.odd()),
            }
        })
    }

    fn run(self: Arc<Self>, dispatch: Dispatch) -> Box<dyn Run> {
        Box::new(run::RemoteRun::begin(self, &dispatch))
    }

    fn known(&self, call_id: CallId) -> BoxFuture<'_, Result<Known, String>> {
        Box::pin(async move {
            match self.ask(SessionAsk::Known(call_id), ASK_WAIT).await? {
                Reply::Never(reason) => Ok(Known::Never(reason)),
                Reply::Held => Ok(Known::Held),
                _ => Err(self.odd()),
            }
        })
    }

    fn board(&self, board: Board) -> BoxFuture<'_, Parcel> {
        Box::pin(self.load(board))
    }

    fn settle(&self, by: CallId, written: bool) {
        Self::settle(self, &by, written);
    }

    fn lapse(&self, by: CallId) {
        self.line.insist(
            self.node,
            Ask::Session(SessionAsk::Lapse(by)),
            "that nobody knows whether an answer was written",
        );
    }

    fn revoke(&self, call_id: CallId, reason: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            match self.ask(SessionAsk::Revoke { call_id, reason }, ASK_WAIT).await? {
                Reply::Done => Ok(()),
                _ => Err(self.odd()),
            }
        })
    }

    fn history(&self, ask: HistoryAsk) -> BoxFuture<'_, Result<Parcel, String>> {
        Box::pin(self.page(ask))
    }

    fn notice(&self, session: SessionId, event: Event, message: String) {
        let notice = SessionAsk::Notice { session, event, message };
        let (line, node) = (self.line.clone(), self.node);
        self.line.runtime().spawn(async move {
            if let Err(cause) = line.ask(node, &Ask::Session(notice), ASK_WAIT).await {
                tracing::debug!(cause, "a notice was lost");
            }
        });
    }

    fn cancel(&self, cancel: Cancel) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let Cancel { call_id, conversation, reason } = cancel;
            let ask = SessionAsk::Cancel { call_id, conversation, reason };
            match self.ask(ask.clone(), ASK_WAIT).await {
                Ok(Reply::Flag(open)) => open,
                Ok(_) => false,
                Err(cause) => {
                    tracing::info!(cause, "an order to end an operation is repeated until it arrives");
                    self.insist_on_end(ask);
                    false
                }
            }
        })
    }

    fn ended(&self, receipt: String) -> BoxFuture<'_, Option<Ended>> {
        Box::pin(async move {
            match self.ask(SessionAsk::Ended(receipt), ASK_WAIT).await {
                Ok(Reply::Ended(ended)) => ended,
                _ => None,
            }
        })
    }

    fn image(&self, session: SessionId, sha256: String) -> BoxFuture<'_, Result<Option<Picture>, String>> {
        Box::pin(async move {
            match self.ask(SessionAsk::Image { session, sha256 }, IMAGE_WAIT).await? {
                Reply::Image(picture) => Ok(picture.map(Into::into)),
                _ => Err(self.odd()),
            }
        })
    }
}
