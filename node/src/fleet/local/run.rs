//! One dispatched operation on this node, from the wait for its outcome to the word on what became of the answer.

use std::sync::Arc;

use serde_json::json;
use tokio::time::Instant;

use super::LocalNode;
use crate::{
    budget::TextBudget,
    fleet::{
        Parcel, Ran, Run,
        parcel::Packer,
        riding::{Riding, pack_late},
    },
    host::BoxFuture,
    ids::{CallId, Conversation, SessionId},
    sessions::{Outcome, Progress, Recalled, ReceiptClaim, RunHandle, Session},
};

/// What became of a dispatch.
pub(super) enum Way {
    /// It is queued, runs, or is done and held.
    Handle(RunHandle),
    /// The same call ended before.
    Kept,
    /// The same host request is another operation's.
    Twin {
        /// That one.
        twin: CallId,
        /// How long it is waited for.
        until: Instant,
    },
    /// It was not taken.
    Never(String),
    /// Its office is over; it is no run at all.
    Fenced(String),
    /// This attempt was asked about before it came: it never runs, and the next one may.
    Sealed(ReceiptClaim),
    /// It came before, and may have run: the journal does not know it, and is an older one that was put back.
    Lost(Option<ReceiptClaim>),
    /// It is settled.
    Over,
}

/// The broker's end of it.
pub(super) struct LocalRun {
    node: Arc<LocalNode>,
    call_id: CallId,
    conversation: Option<Conversation>,
    id: SessionId,
    session: Option<Arc<Session>>,
    room: TextBudget,
    way: Way,
    told: Option<Ran>,
    /// Whether riders may be claimed for it.
    boarding: bool,
    /// Which sending of the call it is.
    number: u64,
}

/// An order of an office that is over.
pub(super) struct Turned(pub(super) String);

impl Run for Turned {
    fn done(&mut self) -> BoxFuture<'_, Ran> {
        Box::pin(std::future::ready(Ran::Fenced(self.0.clone())))
    }

    fn is_running(&self) -> bool {
        false
    }

    fn is_taken(&self) -> bool {
        true
    }

    fn cancel(&mut self, _: String) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn settle(self: Box<Self>, _: bool) {}
}

impl LocalRun {
    pub(super) fn new(
        node: Arc<LocalNode>,
        call_id: CallId,
        conversation: Option<Conversation>,
        id: SessionId,
        room: TextBudget,
        way: Way,
        number: u64,
    ) -> Self {
        let session = node.sessions.find(&id);
        Self { node, call_id, conversation, id, session, room, way, told: None, boarding: false, number }
    }

    async fn outcome(&mut self) -> Ran {
        if self.boarding {
            // An earlier wait was dropped while it packed.
            self.release();
        }
        match &mut self.way {
            Way::Handle(handle) => match handle.done().await {
                Progress::Finished(outcome) => Ran::Finished(self.pack(&outcome).await),
                Progress::NeverRan(reason) => Ran::NeverRan(reason),
                Progress::Queued | Progress::Running => Ran::Unknown("the node is stopping".into()),
            },
            Way::Kept => self.kept().await,
            Way::Twin { twin, until } => {
                let (twin, until) = (twin.clone(), *until);
                self.twin(twin, until).await
            }
            Way::Never(reason) => Ran::NeverRan(reason.clone()),
            Way::Fenced(reason) => Ran::Fenced(reason.clone()),
            Way::Sealed(claim) => {
                let claim = claim.clone();
                self.sealed(&claim).await
            }
            Way::Lost(claim) => {
                let claim = claim.clone();
                self.lost(claim.as_ref()).await
            }
            Way::Over => Ran::Gone,
        }
    }

    /// Whoever is the broker now orders the operation again, under its next attempt once the broker has heard of this one.
    async fn sealed(&self, claim: &ReceiptClaim) -> Ran {
        let operations = self.node.operations();
        Ran::Fenced(match operations.give_up(&self.call_id, claim).await {
            Ok(true) => "this attempt of it was asked about before it came, and was not run".to_owned(),
            Ok(false) => "another sending of it is here already".to_owned(),
            Err(error) => format!("this attempt of it was asked about before it came: {error}"),
        })
    }

    async fn lost(&self, claim: Option<&ReceiptClaim>) -> Ran {
        if let Some(claim) = claim
            && let Err(error) = self.node.operations().give_up(&self.call_id, claim).await
        {
            // It is said again when this node is squared with the broker.
            tracing::warn!(%error, call = %self.call_id, "the broker did not hear that an operation is uncertain");
        }
        Ran::Unknown(self.node.lost())
    }

    async fn kept(&mut self) -> Ran {
        self.boarding = true;
        let is_latest = || self.is_latest();
        match self.node.operations().take_back(&self.call_id, is_latest).await {
            Ok(Recalled::Outcome { outcome, redelivered }) => {
                Ran::Finished(self.pack_again(outcome, redelivered).await)
            }
            Ok(Recalled::Gone) => Ran::Gone,
            Err(error) => Ran::Unknown(format!("it ran, but its outcome could not be read: {error}")),
        }
    }

    async fn twin(&self, twin: CallId, until: Instant) -> Ran {
        let Some(mut progress) = self.node.operations().progress(&twin) else {
            return Ran::Duplicate { twin, running: false };
        };
        let ended = |progress: &Progress| matches!(progress, Progress::Finished(_) | Progress::NeverRan(_));
        match tokio::time::timeout_at(until, progress.wait_for(ended)).await.map(|ended| ended.map(|at| at.clone())) {
            Ok(Ok(Progress::NeverRan(reason))) => Ran::NeverRan(reason),
            Ok(_) => Ran::Duplicate { twin, running: false },
            Err(_) => Ran::Duplicate { twin, running: true },
        }
    }

    async fn pack(&mut self, outcome: &Outcome) -> Parcel {
        let node = Arc::clone(&self.node);
        let mut packer = self.packer(&node, outcome);
        for result in &outcome.results {
            packer.result(&self.id, result);
        }
        self.board(packer, outcome).await
    }

    /// An outcome of the journal: it was cut to the room of another answer.
    async fn pack_again(&mut self, mut outcome: Outcome, redelivered: bool) -> Parcel {
        let node = Arc::clone(&self.node);
        let mut packer = self.packer(&node, &outcome);
        if redelivered {
            packer.json(&json!({ "redelivered": true }));
        }
        let name = format!("late-{}", self.call_id);
        pack_late(&node, &mut packer, &self.id, &mut outcome.results, &name);
        self.board(packer, &outcome).await
    }

    fn packer<'a>(&self, node: &'a LocalNode, outcome: &Outcome) -> Packer<'a> {
        let mut packer = Packer::new(node.blobs(), self.room);
        if let Some(error) = &outcome.error {
            // It stands in the answer's header.
            packer.reserve(&json!({ "error": error }).to_string());
        }
        packer
    }

    async fn board(&mut self, mut packer: Packer<'_>, outcome: &Outcome) -> Parcel {
        // What rides goes with the latest sending: this answer may be one that nobody waits for.
        if self.is_latest() {
            self.boarding = true;
            let (by, conversation) = (&self.call_id, self.conversation.as_ref());
            Riding { node: &self.node, by, conversation, session: self.session.as_deref() }.board(&mut packer).await;
        }
        packer.finish(outcome.results.iter().any(|result| result.is_error), outcome.error.clone())
    }

    fn is_latest(&self) -> bool {
        self.node.is_latest(&self.call_id, self.number)
    }

    /// What rode along was not written.
    fn release(&mut self) {
        self.boarding = false;
        if !self.is_latest() {
            return;
        }
        if let Some(session) = &self.session {
            session.release_inputs(&self.call_id);
        }
        self.node.operations().release_late(&self.call_id);
    }
}

impl Run for LocalRun {
    fn done(&mut self) -> BoxFuture<'_, Ran> {
        Box::pin(async move {
            if let Some(told) = &self.told {
                return told.clone();
            }
            let ran = self.outcome().await;
            self.told = Some(ran.clone());
            ran
        })
    }

    fn is_taken(&self) -> bool {
        true
    }

    fn is_running(&self) -> bool {
        match &self.way {
            Way::Handle(handle) => !matches!(handle.progress(), Progress::Queued),
            Way::Twin { .. } => true,
            Way::Kept | Way::Never(_) | Way::Fenced(_) | Way::Sealed(_) | Way::Lost(_) | Way::Over => false,
        }
    }

    fn cancel(&mut self, reason: String) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Way::Handle(handle) = &self.way
                && let Err(error) = self.node.operations().revoke(handle.call_id(), &reason).await
            {
                tracing::warn!(%error, call = %self.call_id, "a cancelled call is called off until the node stops");
            }
        })
    }

    fn settle(mut self: Box<Self>, written: bool) {
        let way = std::mem::replace(&mut self.way, Way::Over);
        if !written {
            drop(way);
            self.release();
            return;
        }
        if !self.is_latest() {
            // Its door has another answer to speak of.
            return;
        }
        match way {
            Way::Handle(handle) => handle.delivered(),
            Way::Kept => self.node.operations().confirm_taken_back(&self.call_id),
            Way::Twin { .. } | Way::Never(_) | Way::Fenced(_) | Way::Sealed(_) | Way::Lost(_) | Way::Over => {}
        }
        if let Some(session) = &self.session {
            session.confirm_inputs(&self.call_id);
        }
        self.node.operations().confirm_late(&self.call_id);
    }
}

impl Drop for LocalRun {
    /// Nobody waits any more. Had the outcome been handed out, the answer may have been written: what it carried comes
    /// again, and says so (failure rule F7).
    fn drop(&mut self) {
        let handed_out = matches!(self.told, Some(Ran::Finished(_)));
        match std::mem::replace(&mut self.way, Way::Over) {
            Way::Over => return self.node.forget_sending(&self.call_id, self.number),
            Way::Handle(handle) if handed_out => handle.lapse(),
            Way::Handle(_)
            | Way::Kept
            | Way::Twin { .. }
            | Way::Never(_)
            | Way::Fenced(_)
            | Way::Sealed(_)
            | Way::Lost(_) => {}
        }
        if handed_out && self.is_latest() {
            if let Some(session) = &self.session {
                session.lapse_inputs(&self.call_id);
            }
            self.node.operations().lapse_late(&self.call_id);
        } else if self.boarding {
            self.release();
        }
        self.node.forget_sending(&self.call_id, self.number);
    }
}
