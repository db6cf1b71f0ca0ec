//! This node as the broker sees it: the sessions of this device, without a network between.

mod run;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Board, Cancel, Directory, Dispatch, HistoryAsk, Known, Parcel, Picture, Placed, Run, SessionNode, pages,
    parcel::{MEMBER, Packer, RIDERS},
    riding::Riding,
};
use crate::{
    budget::TextBudget,
    host::{BoxFuture, Inspection},
    ids::{CallId, Conversation, SessionId},
    sessions::{Ended, Held, Operation, Operations, Session, SessionError, Sessions, Standing, Work, entry::Event},
    storage::blobs::Blobs,
};
use run::{LocalRun, Turned, Way};

/// Room for the word on a cancellation, which stands in the answer's header.
const SLACK: TextBudget = TextBudget { bytes: 127, tokens: 47 };
/// How long the word on an answer is waited for: longer than any answer takes to be written, also over a slow line.
const BOARDED_MAX: Duration = Duration::from_secs(300);
/// The most bytes of one image (the guide).
const IMAGE_MAX_BYTES: u64 = 32 << 20;

/// Handle to this node's sessions as a [`SessionNode`], and as the [`Directory`] of a fleet of one.
pub struct LocalNode {
    this: Weak<Self>,
    sessions: Arc<Sessions>,
    blobs: Blobs,
    device: String,
    /// Answers that carry what was claimed for them, and of which nothing was heard yet.
    boarded: Mutex<BTreeSet<CallId>>,
    /// The latest sending of each operation that somebody follows, and how many there were in all.
    sendings: Mutex<Sendings>,
}

/// Sendings of operations, numbered.
#[derive(Default)]
struct Sendings {
    count: u64,
    latest: BTreeMap<CallId, u64>,
}

impl LocalNode {
    /// `device` is what people call this device.
    #[must_use]
    pub fn new(sessions: Arc<Sessions>, blobs: Blobs, device: String) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            sessions,
            blobs,
            device,
            boarded: Mutex::default(),
            sendings: Mutex::default(),
        })
    }

    /// The sessions behind it.
    #[must_use]
    pub const fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// It is not known whether the answer that claimed under `by` was written: what it carried comes again, and says
    /// `redelivered: true` (failure rule F7). For what [`SessionNode::board`] claimed, which comes to it by itself after
    /// five minutes without a word; a [`Run`] says so by being dropped.
    pub fn lapse(&self, by: &CallId) {
        if !self.boarded().remove(by) {
            return;
        }
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

    fn boarded(&self) -> MutexGuard<'_, BTreeSet<CallId>> {
        self.boarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sendings(&self) -> MutexGuard<'_, Sendings> {
        self.sendings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a sending of `call_id`, the latest from now on. What an earlier one claimed for its answer is free again: had
    /// that been written, its door would not have sent the call again.
    fn supersede(&self, call_id: &CallId, session: &SessionId) -> u64 {
        let (number, earlier) = {
            let mut sendings = self.sendings();
            sendings.count += 1;
            let number = sendings.count;
            (number, sendings.latest.insert(call_id.clone(), number))
        };
        if earlier.is_some() {
            if let Some(session) = self.sessions.find(session) {
                session.release_inputs(call_id);
            }
            self.operations().release_late(call_id);
        }
        number
    }

    /// Whether no later sending of `call_id` came than this one: only that speaks for its answer.
    fn is_latest(&self, call_id: &CallId, number: u64) -> bool {
        self.sendings().latest.get(call_id) == Some(&number)
    }

    /// This sending is over.
    fn forget_sending(&self, call_id: &CallId, number: u64) {
        let mut sendings = self.sendings();
        if sendings.latest.get(call_id) == Some(&number) {
            sendings.latest.remove(call_id);
        }
    }

    /// What `by` claims just now is the answer's for as long as an answer may take.
    fn expect_word(&self, by: &CallId) {
        self.boarded().insert(by.clone());
        let (this, by) = (self.this.clone(), by.clone());
        chappie_mesh::runtime::spawn(async move {
            tokio::time::sleep(BOARDED_MAX).await;
            if let Some(node) = this.upgrade() {
                node.lapse(&by);
            }
        });
    }

    fn open(&self, session: &SessionId) -> Result<Arc<Session>, String> {
        self.sessions.find(session).ok_or_else(|| format!("session {session} ended just now"))
    }

    fn placed(&self, session: &Session) -> Option<Placed> {
        let node: Arc<dyn SessionNode> = self.this.upgrade()?;
        Some(Placed { info: self.sessions.info(session), device: self.device.clone(), node })
    }

    /// What is said of a call that may have run, though the journal does not know it.
    fn lost(&self) -> String {
        format!(
            "{} was put back to an older state since this was sent; it is not known whether it ran. Check its effects \
             (history, files, processes) before you repeat it",
            self.device
        )
    }

    /// What becomes of a dispatch.
    fn take(&self, dispatch: Dispatch) -> Way {
        let Dispatch { session, operation, wait, tenure, resent } = dispatch;
        if let Err(fenced) = self.sessions.obey(tenure) {
            return Way::Fenced(fenced.to_string());
        }
        match self.operations().recall(&operation.call_id) {
            Ok(Held::Run(handle)) => return Way::Handle(handle),
            Ok(Held::Kept) => return Way::Kept,
            // An earlier sending of it may have run, and an older journal was put back since (F3).
            Ok(Held::Unknown) if resent && self.operations().may_have_run(&operation.call_id).unwrap_or(true) => {
                return Way::Lost(operation.receipt);
            }
            Ok(Held::Unknown) => {}
            Err(error) => return Way::Never(format!("not run: {error}")),
        }
        let twin = operation.request_key.as_ref().and_then(|key| self.operations().by_request(key));
        if let Some(twin) = twin.filter(|twin| *twin != operation.call_id) {
            return Way::Twin { twin, until: Instant::now() + wait };
        }
        // What was asked about before it came comes again under the next attempt (failure rule F3).
        if let Some(claim) = &operation.receipt
            && self.operations().is_sealed(&claim.key.0, claim.attempt).unwrap_or(false)
        {
            return Way::Sealed(claim.clone());
        }
        self.queue(&session, operation)
    }

    fn queue(&self, id: &SessionId, mut operation: Operation) -> Way {
        // What a refusal needs; the work itself moves on.
        let refused = operation.receipt.is_some().then(|| without_work(&operation));
        let taken = match self.sessions.find(id) {
            None => Err(None),
            Some(session) => {
                let riding = Riding {
                    node: self,
                    by: &operation.call_id,
                    conversation: operation.conversation.as_ref(),
                    session: Some(&session),
                };
                operation.budget = work_room(operation.budget, &operation.work, riding.waits());
                session.submit(operation).map_err(Some)
            }
        };
        let reason = match taken {
            Ok(handle) => return Way::Handle(handle),
            Err(Some(SessionError::Known(_))) => return Way::Kept,
            Err(Some(error @ SessionError::Asked(_))) => {
                let claim = refused.and_then(|operation| operation.receipt);
                return claim.map_or_else(|| Way::Never(error.to_string()), Way::Sealed);
            }
            Err(Some(error)) => error.to_string(),
            Err(None) => format!("session {id} ended just now; nothing was done"),
        };
        match refused {
            Some(operation) => Way::Handle(self.operations().decline(&operation, id, reason)),
            None => Way::Never(reason),
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

/// Whose an operation is, without the bytes of its work.
fn without_work(operation: &Operation) -> Operation {
    Operation {
        call_id: operation.call_id.clone(),
        conversation: operation.conversation.clone(),
        request_id: operation.request_id.clone(),
        request_key: operation.request_key.clone(),
        receipt: operation.receipt.clone(),
        work: Work::Chat(String::new()),
        budget: operation.budget,
    }
}

impl SessionNode for LocalNode {
    fn inspect(&self, session: SessionId) -> BoxFuture<'_, Result<Inspection, String>> {
        Box::pin(async move { self.open(&session)?.inspect().await.map_err(|error| error.to_string()) })
    }

    fn run(self: Arc<Self>, dispatch: Dispatch) -> Box<dyn Run> {
        let (session, operation) = (dispatch.session.clone(), &dispatch.operation);
        let (call_id, conversation) = (operation.call_id.clone(), operation.conversation.clone());
        let room = operation.budget;
        let way = self.take(dispatch);
        if let Way::Fenced(reason) = way {
            // An office that is over takes nothing from a later one.
            return Box::new(Turned(reason));
        }
        let number = self.supersede(&call_id, &session);
        Box::new(LocalRun::new(self, call_id, conversation, session, room, way, number))
    }

    fn known(&self, call_id: CallId) -> BoxFuture<'_, Result<Known, String>> {
        Box::pin(async move {
            match self.operations().ask(&call_id, None).await {
                Ok(Standing::NeverRun) => Ok(Known::Never(format!("{} never got it; it was not run", self.device))),
                Ok(Standing::Lost) => Err(self.lost()),
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
            let riding = Riding { node: self, by, conversation, session: session.as_deref() };
            if riding.waits() {
                self.expect_word(by);
                riding.board(&mut packer).await;
            }
            packer.finish(false, None)
        })
    }

    fn settle(&self, by: CallId, written: bool) {
        if !self.boarded().remove(&by) {
            // The word on a run that was given up: its outcome waits as a late result, unless another answer has it.
            if written {
                self.operations().confirm_own(&by);
            }
            return;
        }
        for session in self.sessions.list() {
            if written { session.confirm_inputs(&by) } else { session.release_inputs(&by) }
        }
        if written { self.operations().confirm_late(&by) } else { self.operations().release_late(&by) }
    }

    fn lapse(&self, by: CallId) {
        Self::lapse(self, &by);
    }

    fn revoke(&self, call_id: CallId, reason: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move { self.operations().revoke(&call_id, &reason).await.map_err(|error| error.to_string()) })
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
        Box::pin(async move { self.operations().cancel_of(&call_id, conversation.as_ref(), &reason).await })
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

#[cfg(test)]
mod tests;
