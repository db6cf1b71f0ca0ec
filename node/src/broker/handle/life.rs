//! The broker's part in its group: how it stands, what its members ask, and the changes of a device's group (failure rules
//! F10 to F18, F21).

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use chappie_mesh::{
    MeshId, NodeId,
    consensus::{CommitError, Consensus, Group, Question, Standing, other_group},
};
use futures_util::future::BoxFuture;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::{
    super::{
        command::{Command, Reply},
        council::{Change, Control, Split},
        errors::ProposeError,
        follow::{Meeting, meet},
        limits::{FOLLOW_WAIT_MS, IMPORT_BATCH, LEAVE_WAIT_MS, MOVE_WAIT_MS, SILENT_MS},
        reannounce::Reannounced,
        shared::Leaving,
        writer::Message,
    },
    Broker,
};

impl Broker {
    /// How this device's group stands, over changes of the group.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Arc<Standing>> {
        self.shared.standing.subscribe()
    }

    /// The group of this device.
    #[must_use]
    pub fn group(&self) -> Group {
        self.shared.standing.borrow().group
    }

    /// Another epoch of this mesh that was heard of lately, in which somebody may act as the broker too (F16).
    #[must_use]
    pub fn split(&self) -> Option<Split> {
        let standing = self.shared.standing.borrow();
        let own = standing.group;
        // It may have come over meanwhile: then it is a member here, of what was an older epoch, or answers this broker.
        let ours = |split: &Split| {
            let member = standing.voters.contains(&split.node) || standing.learners.contains(&split.node);
            let answered = standing.followers.get(&split.node).and_then(|follower| follower.answered_ms);
            let answers = answered.is_some_and(|ms| ms <= SILENT_MS);
            member && (split.group.epoch.count < own.epoch.count || answers)
        };
        self.front.split().filter(|split| split.group != own && !ours(split))
    }

    /// The answer to what another device's consensus engine asks this one's. Empty when this one is not up.
    #[must_use]
    pub fn answer_raft(&self, from: NodeId, question: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        let broker = self.clone();
        Box::pin(async move {
            let question = match Question::decode(&question) {
                Ok(question) => question,
                Err(error) => {
                    tracing::debug!(%from, %error, "a question to the broker's engine is not known");
                    return Vec::new();
                }
            };
            if let Some(consensus) = broker.member_of(question.group()) {
                return consensus.answer(from, &question).await;
            }
            broker.meet(from, &question).await
        })
    }

    /// The member that runs, if it is of `group`.
    fn member_of(&self, group: Group) -> Option<Consensus> {
        self.front.current().filter(|(own, _)| *own == group).map(|(_, consensus)| consensus)
    }

    /// The answer to a device of another group.
    async fn meet(&self, from: NodeId, question: &Question) -> Vec<u8> {
        let theirs = question.group();
        let standing = Arc::clone(&self.shared.standing.borrow());
        if standing.group == theirs {
            // Its member is just starting.
            return Vec::new();
        }
        match meet(standing.group, self.front.acts(), theirs, question.is_of_leader()) {
            Meeting::Stay => {}
            Meeting::Split => self.front.heard_of(Some(Split { node: from, group: theirs })),
            Meeting::Follow => {
                let followed = self.ask(|done| Control::Follow(theirs, done));
                if let Ok(Ok(())) = timeout(Duration::from_millis(FOLLOW_WAIT_MS), followed).await
                    && let Some(consensus) = self.member_of(theirs)
                {
                    return consensus.answer(from, question).await;
                }
            }
        }
        other_group(standing.group, self.front.acts())
    }

    /// Makes sure that this device holds the office at this moment (F11), and gives the count of the epoch and the term: the
    /// tenure that its commands carry.
    ///
    /// # Errors
    /// [`ProposeError::NotBroker`], or that no quorum has confirmed it.
    pub async fn assure(&self) -> Result<(u64, u64), ProposeError> {
        let Some((group, consensus)) = self.front.current() else { return Err(ProposeError::NotBroker) };
        match consensus.assure().await {
            Ok(office) => Ok((group.epoch.count, office.term)),
            Err(CommitError::NotActing | CommitError::Stopped(_)) => Err(ProposeError::NotBroker),
            Err(CommitError::Unknown(cause)) => Err(ProposeError::Unknown(cause)),
        }
    }

    /// Looks after the members from here on, whenever this device is the broker: takes them in, lets them vote, and lets those
    /// go that left.
    pub async fn tend(&self) {
        let _ = self.controls.send(Control::Tend).await;
    }

    /// Makes another voter the broker: `to`, or the one that is best in step. `true` when another one is.
    pub async fn hand_over(&self, to: Option<NodeId>) -> bool {
        match self.front.current() {
            Some((_, consensus)) => consensus.hand_over(to).await,
            None => false,
        }
    }

    /// Makes another device the broker, also one that has to become a voter first; for a device that is to be forgotten.
    pub(super) async fn move_away(&self) -> bool {
        if self.hand_over(None).await {
            return true;
        }
        let _leaving = self.shared.leave(self.node);
        let mut standings = self.standing();
        let moved = standings.wait_for(|now| now.leader.is_some_and(|leader| leader != self.node));
        timeout(Duration::from_millis(MOVE_WAIT_MS), moved).await.is_ok_and(|moved| moved.is_ok())
    }

    /// Has others take the vote of `node`, which is about to be forgotten: it may be needed for that, and is cut off as soon
    /// as it is forgotten. Until the value is dropped it gets none again. Where nobody can take it, that is so after a while.
    pub(super) async fn take_vote(&self, node: NodeId) -> Leaving {
        let leaving = self.shared.leave(node);
        let mut standings = self.standing();
        let taken = standings.wait_for(|now| now.office.is_none() || !now.voters.contains(&node));
        let _ = timeout(Duration::from_millis(MOVE_WAIT_MS), taken).await;
        leaving
    }

    /// A call entered at the door of `device`; the broker moves to where most of them do.
    pub fn door_used(&self, device: NodeId) {
        self.shared.memory().volatile.doors.used(device);
    }

    /// The calls that count now.
    #[cfg(test)]
    pub(crate) fn doors(&self) -> std::collections::BTreeMap<NodeId, u64> {
        self.shared.memory().volatile.doors.counts().clone()
    }

    /// The node's own store has this start on disk, too ([`super::super::Place::run`]).
    ///
    /// # Errors
    /// What the system said.
    pub async fn settle_run(&self) -> Result<(), ProposeError> {
        let settled = self.ask(Control::Settle).await?;
        settled.map_err(|error| ProposeError::NotWritten(error.to_string()))
    }

    /// Lets another device become the broker where one can, writes what was proposed before, and closes the store. Later
    /// proposals are answered [`ProposeError::Stopped`].
    pub async fn close(&self) {
        let moves = { self.seat.borrow().acting.is_some() && !self.seat.borrow().alone };
        if moves {
            let _ = timeout(Duration::from_millis(LEAVE_WAIT_MS), self.hand_over(None)).await;
        }
        let (done, stopped) = oneshot::channel();
        if self.jobs.send(Message::Stop(done)).await.is_ok() {
            let _ = stopped.await;
        }
        let _ = self.ask(Control::Close).await;
    }

    async fn change(&self, change: Change) -> Result<PathBuf, ProposeError> {
        self.ask(|done| Control::Change(change, done)).await?
    }

    /// Empties the store and founds a new mesh of one, after a copy of the store to `consensus.redb.before-join-N.bak`. The
    /// same mesh again changes nothing but makes a copy.
    ///
    /// # Errors
    /// [`ProposeError`]; without a copy nothing was changed.
    pub async fn start_over(&self, mesh: MeshId, name: &str) -> Result<PathBuf, ProposeError> {
        self.change(Change::Alone { mesh, name: name.to_owned(), archive: "before-join" }).await
    }

    /// The same for a device that was forgotten (F21): the copy is `consensus.redb.forgotten-N.bak`.
    ///
    /// # Errors
    /// [`ProposeError`]; without a copy nothing was changed.
    pub async fn alone(&self, mesh: MeshId, name: &str) -> Result<PathBuf, ProposeError> {
        self.change(Change::Alone { mesh, name: name.to_owned(), archive: "forgotten" }).await
    }

    /// Becomes a member of `group` that has heard nothing yet, after a copy of the store to `consensus.redb.before-join-N.bak`
    /// (F18). The same group again changes nothing but makes a copy.
    ///
    /// # Errors
    /// [`ProposeError`]; without a copy nothing was changed.
    pub async fn leave_for(&self, group: Group) -> Result<PathBuf, ProposeError> {
        self.change(Change::Leave { group, archive: "before-join" }).await
    }

    /// The same for another epoch of this mesh, on a person's word: the copy is `consensus.redb.before-follow-N.bak` (F16).
    ///
    /// # Errors
    /// [`ProposeError`]; without a copy nothing was changed.
    pub async fn follow(&self, group: Group) -> Result<PathBuf, ProposeError> {
        self.change(Change::Leave { group, archive: "before-follow" }).await
    }

    /// Begins a new epoch of this mesh alone, with all this device has, also what no quorum has confirmed (F16); after a copy of
    /// the store to `consensus.redb.before-recover-N.bak`. Its members stay members. Until they have re-announced, no new
    /// operation is accepted (F17).
    ///
    /// # Errors
    /// [`ProposeError`]; without a copy nothing was changed.
    pub async fn recover(&self) -> Result<PathBuf, ProposeError> {
        self.change(Change::Recover).await
    }

    /// Members that have not re-announced since [`Broker::recover`] (F17); every member knows.
    #[must_use]
    pub fn recovering(&self) -> BTreeSet<NodeId> {
        self.shared.state().recovering.clone()
    }

    /// What `node` knows of operations of the last 24 h (F17). It has re-announced when these were the `last` rows of it. The
    /// same again changes nothing.
    ///
    /// # Errors
    /// [`ProposeError`]; rows before the failure are taken.
    pub async fn reannounce(&self, node: NodeId, rows: Vec<Reannounced>, last: bool) -> Result<(), ProposeError> {
        let mut pieces = rows.chunks(IMPORT_BATCH).map(<[Reannounced]>::to_vec).collect::<Vec<_>>();
        if pieces.is_empty() {
            pieces.push(Vec::new());
        }
        let ends = pieces.len() - 1;
        for (at, rows) in pieces.into_iter().enumerate() {
            let command = Command::Reannounce { node, rows, last: last && at == ends };
            if let Reply::Full { what, limit } = self.propose(command).await? {
                return Err(ProposeError::Full { what, limit });
            }
        }
        Ok(())
    }

    /// Gives up what members that have not re-announced know (F17).
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn accept_loss(&self) -> Result<(), ProposeError> {
        self.propose(Command::AcceptLoss).await.map(|_| ())
    }
}
