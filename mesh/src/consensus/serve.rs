//! Answers what other members ask over the raft connection.

use std::{sync::Arc, time::Duration};

use openraft_rt::WatchReceiver as _;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Mutex, time::timeout};

use super::{
    api::{MemberId, Voting},
    shared::Shared,
    types::{Meta, Snapshot, Vote},
    wire::{Answer, Body, Here, Piece, Question},
};
use crate::{identity::NodeId, runtime};

/// What a snapshot may weigh, in bytes: twice the replicated state (failure rule F26).
const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;

/// How long the engine may take over an answer. Askers wait no longer, and what hangs here would pile up.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// How long a snapshot may take to be read into the machine and written to disk.
const INSTALL_WAIT: Duration = Duration::from_secs(25);

/// A snapshot on its way here. It is kept when the sender goes away, and goes on where it stood.
struct Coming {
    hash: [u8; 32],
    total: u64,
    data: Vec<u8>,
}

/// Where questions are answered.
pub(super) struct Desk {
    shared: Arc<Shared>,
    voting: Voting,
    /// One snapshot at a time.
    coming: Mutex<Option<Coming>>,
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, voting: Voting) -> Self {
        Self { shared, voting, coming: Mutex::new(None) }
    }

    pub(super) const fn voting(&self) -> Voting {
        self.voting
    }

    pub(super) async fn answer(&self, from: NodeId, question: &Question) -> Answer {
        let shared = &self.shared;
        if question.group != shared.group {
            return Answer::Other(shared.group, shared.office().is_some());
        }
        if matches!(question.body, Body::Greet | Body::Sound) {
            return match question.to {
                Some(to) if to != shared.own => Answer::NotMe(shared.own),
                _ => Answer::Here(self.here()),
            };
        }
        if question.to != Some(shared.own) {
            return Answer::NotMe(shared.own);
        }
        // A store that was made anew or copied asks as another member, and may not use the old one's name.
        let asker = question.asker(&from);
        if speaker(&question.body) != Some(asker) {
            return Answer::Refused(format!("member {asker} speaks for another one"));
        }
        let within = if matches!(question.body, Body::Snapshot(_)) { INSTALL_WAIT } else { ANSWER_WAIT };
        match timeout(within, self.hand_in(from, asker, question.body.clone())).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => Answer::Refused(why),
            Err(_) => Answer::Refused("it takes too long here".into()),
        }
    }

    fn here(&self) -> Here {
        let applied = self.shared.raft.metrics().borrow_watched().last_applied.map_or(0, |id| id.index);
        Here { member: self.shared.own, voting: self.voting, wall_ms: runtime::wall_ms(), applied }
    }

    /// Gives what was asked to the engine.
    ///
    /// # Errors
    /// In words, when the engine has ended.
    async fn hand_in(&self, from: NodeId, asker: MemberId, body: Body) -> Result<Answer, String> {
        let shared = &self.shared;
        let ended = |error: &dyn std::fmt::Display| format!("its log has stopped: {error}");
        Ok(match body {
            Body::Greet | Body::Sound => Answer::Here(self.here()),
            Body::Append(request) => {
                let answer = shared.raft.append_entries(request).await.map_err(|error| ended(&error))?;
                if !matches!(answer, openraft::raft::AppendEntriesResponse::HigherVote(_)) {
                    shared.heard(asker, from);
                }
                Answer::Append(answer)
            }
            Body::Vote(request) => Answer::Vote(shared.raft.vote(request).await.map_err(|error| ended(&error))?),
            Body::PreVote(request) => Answer::Vote(shared.raft.pre_vote(request).await.map_err(|error| ended(&error))?),
            Body::Transfer(request) => {
                let answer = shared.raft.handle_transfer_leader(request).await.map_err(|error| ended(&error))?;
                Answer::Transfer(answer.is_ok())
            }
            Body::Snapshot(piece) => self.piece(piece).await?,
        })
    }

    async fn piece(&self, piece: Piece) -> Result<Answer, String> {
        let Piece { vote, meta, total, hash, offset, data } = piece;
        if total > SNAPSHOT_BYTES_MAX {
            return Err(format!("a snapshot of {total} bytes, and at most {SNAPSHOT_BYTES_MAX} are taken"));
        }
        let mut coming = self.coming.lock().await;
        let known = coming.take().filter(|coming| coming.hash == hash && coming.total == total);
        let mut now = known.unwrap_or_else(|| Coming { hash, total, data: Vec::new() });
        let have = now.data.len() as u64;
        if offset == have && have + data.len() as u64 <= total {
            now.data.extend_from_slice(&data);
        }
        let have = now.data.len() as u64;
        if have < total {
            *coming = Some(now);
            return Ok(Answer::More(have));
        }
        if <[u8; 32]>::from(Sha256::digest(&now.data)) != hash {
            // It begins anew.
            return Ok(Answer::More(0));
        }
        self.install(vote, meta, now.data).await
    }

    async fn install(&self, vote: Vote, meta: Meta, data: Vec<u8>) -> Result<Answer, String> {
        let snapshot = Snapshot { meta, snapshot: data.into() };
        let installed = self.shared.raft.install_full_snapshot(vote, snapshot).await;
        installed.map(Answer::Installed).map_err(|error| format!("its log has stopped: {error}"))
    }
}

/// In whose name something is said.
fn speaker(body: &Body) -> Option<MemberId> {
    let vote = match body {
        Body::Greet | Body::Sound => return None,
        Body::Append(request) => &request.vote,
        Body::Vote(request) | Body::PreVote(request) => &request.vote,
        Body::Snapshot(piece) => &piece.vote,
        Body::Transfer(request) => request.from_leader(),
    };
    Some(vote.leader_id.voted_for)
}
