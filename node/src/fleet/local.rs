//! This node as the broker sees it: the sessions of this device, without a network between.

mod run;

use std::sync::{Arc, Weak};

use super::{
    Board, Cancel, Directory, Dispatch, HistoryAsk, Known, Parcel, Picture, Placed, Run, SessionNode, pages,
    parcel::{MEMBER, Packer, RIDERS},
    riding::Riding,
};
use crate::{
    budget::TextBudget,
    host::{BoxFuture, Inspection},
    ids::{CallId, Conversation, SessionId},
    sessions::{Ended, Operations, Session, Sessions, Standing, Work, entry::Event},
    storage::blobs::Blobs,
};
use run::{LocalRun, Way};

/// Room for the word on a cancellation, which stands in the answer's header.
const SLACK: TextBudget = TextBudget { bytes: 127, tokens: 47 };
/// The most bytes of one image (the guide).
const IMAGE_MAX_BYTES: u64 = 32 << 20;

/// Handle to this node's sessions as a [`SessionNode`], and as the [`Directory`] of a fleet of one.
pub struct LocalNode {
    this: Weak<Self>,
    sessions: Arc<Sessions>,
    blobs: Blobs,
    device: String,
}

impl LocalNode {
    /// `device` is what people call this device.
    #[must_use]
    pub fn new(sessions: Arc<Sessions>, blobs: Blobs, device: String) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { this: this.clone(), sessions, blobs, device })
    }

    /// The sessions behind it.
    #[must_use]
    pub const fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// The broker's order to end an operation that it dispatched here, also when the order overtook its dispatch: in
    /// force, durably, once this returns (failure rule F4).
    ///
    /// # Errors
    /// A sentence: the order holds only until the node stops; repeat it.
    pub async fn revoke(&self, call_id: &CallId, reason: &str) -> Result<(), String> {
        self.operations().revoke(call_id, reason).await.map_err(|error| error.to_string())
    }

    /// It is not known whether the answer that claimed under `by` was written: what it carried comes again, and says
    /// `redelivered: true` (failure rule F7). For what [`SessionNode::board`] claimed; a [`Run`] says so by being dropped.
    pub fn lapse(&self, by: &CallId) {
        for session in self.sessions.list() {
            session.lapse_inputs(by);
        }
        self.operations().lapse_late(by);
    }

    pub(super) fn operations(&self) -> &Arc<Operations> {
        self.sessions.operations()
    }

    pub(super) const fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Where a session's full-output files are.
    pub(super) fn outputs(&self, session: &SessionId) -> std::path::PathBuf {
        self.sessions.outputs(session)
    }

    fn open(&self, session: &SessionId) -> Result<Arc<Session>, String> {
        self.sessions.find(session).ok_or_else(|| format!("session {session} ended just now"))
    }

    fn placed(&self, session: &Session) -> Option<Placed> {
        let node: Arc<dyn SessionNode> = self.this.upgrade()?;
        Some(Placed { info: self.sessions.info(session), device: self.device.clone(), node })
    }

    /// What becomes of a dispatch.
    fn take(&self, dispatch: &Dispatch) -> Way {
        let Dispatch { session: id, operation, wait, tenure, .. } = dispatch;
        if let Err(fenced) = self.sessions.obey(*tenure) {
            return Way::Never(fenced.to_string());
        }
        match self.operations().recall(&operation.call_id) {
            Ok(crate::sessions::Held::Run(handle)) => return Way::Handle(handle),
            Ok(crate::sessions::Held::Kept) => return Way::Kept,
            Ok(crate::sessions::Held::Unknown) => {}
            Err(error) => return Way::Never(format!("not run: {error}")),
        }
        let twin = operation.request_key.as_ref().and_then(|key| self.operations().by_request(key));
        if let Some(twin) = twin.filter(|twin| *twin != operation.call_id) {
            return Way::Twin { twin, until: tokio::time::Instant::now() + *wait };
        }
        let taken = match self.sessions.find(id) {
            None => Err(format!("session {id} ended just now; nothing was done")),
            Some(session) => {
                let riding = Riding {
                    node: self,
                    by: &operation.call_id,
                    conversation: operation.conversation.as_ref(),
                    session: Some(&session),
                };
                let mut operation = operation.clone();
                operation.budget = work_room(operation.budget, &operation.work, riding.waits());
                session.submit(operation).map_err(|error| error.to_string())
            }
        };
        match taken {
            Ok(handle) => Way::Handle(handle),
            Err(reason) if operation.receipt.is_some() => Way::Handle(self.operations().decline(operation, id, reason)),
            Err(reason) => Way::Never(reason),
        }
    }
}

/// Text the work may give back: what the headers of its members leave of the room, and less when something wants to ride.
fn work_room(room: TextBudget, work: &Work, riders: bool) -> TextBudget {
    let members = match work {
        Work::Call(calls) => calls.len(),
        Work::Chat(_) => 0,
    };
    let less = |from: TextBudget, by: TextBudget, times: usize| TextBudget {
        bytes: from.bytes.saturating_sub(by.bytes * times),
        tokens: from.tokens.saturating_sub(by.tokens * times),
    };
    let base = less(less(room, MEMBER, members), SLACK, 1);
    if riders { less(base, RIDERS, 1) } else { base }
}

impl SessionNode for LocalNode {
    fn inspect(&self, session: SessionId) -> BoxFuture<'_, Result<Inspection, String>> {
        Box::pin(async move { self.open(&session)?.inspect().await.map_err(|error| error.to_string()) })
    }

    fn run(self: Arc<Self>, dispatch: Dispatch) -> Box<dyn Run> {
        let way = self.take(&dispatch);
        Box::new(LocalRun::new(self, dispatch, way))
    }

    fn known(&self, call_id: CallId) -> BoxFuture<'_, Result<Known, String>> {
        Box::pin(async move {
            match self.operations().ask(&call_id, None).await {
                Ok(Standing::NeverRun) => Ok(Known::Never(format!("{} never got it; it was not run", self.device))),
                Ok(_) => Ok(Known::Held),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn board(&self, board: Board) -> BoxFuture<'_, Parcel> {
        Box::pin(async move {
            let session = board.session.as_ref().and_then(|session| self.sessions.find(session));
            let mut packer = Packer::new(&self.blobs, board.room);
            let (by, conversation) = (&board.by, board.conversation.as_ref());
            Riding { node: self, by, conversation, session: session.as_deref() }.board(&mut packer).await;
            packer.finish(false, None)
        })
    }

    fn settle(&self, by: CallId, written: bool) {
        for session in self.sessions.list() {
            if written { session.confirm_inputs(&by) } else { session.release_inputs(&by) }
        }
        if written { self.operations().confirm_late(&by) } else { self.operations().release_late(&by) }
    }

    fn history(&self, ask: HistoryAsk) -> BoxFuture<'_, Result<Parcel, String>> {
        Box::pin(async move { pages::read(self, self.open(&ask.session)?.as_ref(), &ask).await })
    }

    fn notice(&self, session: SessionId, event: Event, message: String) {
        if let Some(session) = self.sessions.find(&session) {
            session.notice(event, message);
        }
    }

    fn cancel(&self, cancel: Cancel) -> BoxFuture<'_, bool> {
        let Cancel { call_id, conversation, reason } = cancel;
        let open = self.operations().cancel_of(&call_id, conversation.as_ref(), &reason);
        Box::pin(std::future::ready(open))
    }

    fn ended(&self, receipt: String) -> BoxFuture<'_, Option<Ended>> {
        Box::pin(async move { self.operations().ended(&receipt).await.unwrap_or_default() })
    }

    fn image(&self, session: SessionId, sha256: String) -> BoxFuture<'_, Result<Option<Picture>, String>> {
        Box::pin(async move {
            let image = self.open(&session)?.image(&sha256).await.map_err(|error| error.to_string())?;
            let Some(image) = image else { return Ok(None) };
            if image.size > IMAGE_MAX_BYTES {
                return Err(format!("the image has {} bytes; at most 32 MiB are read", image.size));
            }
            let bytes = self
                .blobs
                .bytes(&image)
                .map_err(|error| format!("the image could not be read from the node's store: {error}"))?;
            Ok(Some(Picture { mime: image.mime, bytes }))
        })
    }
}

impl Directory for LocalNode {
    fn find(&self, session: &SessionId) -> Option<Placed> {
        self.placed(self.sessions.find(session)?.as_ref())
    }

    fn list(&self) -> Vec<Placed> {
        self.sessions.list().iter().filter_map(|session| self.placed(session)).collect()
    }

    fn late(&self, conversation: &Conversation) -> Vec<Arc<dyn SessionNode>> {
        if self.operations().has_late(conversation) { self.nodes() } else { Vec::new() }
    }

    fn nodes(&self) -> Vec<Arc<dyn SessionNode>> {
        self.this.upgrade().map(|node| node as Arc<dyn SessionNode>).into_iter().collect()
    }
}
