//! What members say to each other over the raft connection, and how it is written. Pure. PROTOCOL.md section 3.11.

use std::fmt;

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};

use super::{
    api::{Group, MemberId, StoreId, Voting},
    types::{Meta, Types, Vote, raw},
};
use crate::{
    identity::NodeId,
    wire::{self, CodecError},
};

/// A question of one member to another.
#[derive(Clone, Serialize, Deserialize)]
pub struct Question {
    /// Whose log it is about.
    pub(super) group: Group,
    /// With which store the asker takes part.
    pub(super) from_store: StoreId,
    /// Which member is meant; `None` when the asker does not know which one the device is.
    pub(super) to: Option<MemberId>,
    pub(super) body: Body,
}

impl Question {
    /// Reads what came over the raft connection.
    ///
    /// # Errors
    /// When it is no question that this program knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        wire::decode(bytes)
    }

    /// Whose log it is about.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// Whether who asks leads its group, or believes so.
    #[must_use]
    pub const fn is_of_leader(&self) -> bool {
        matches!(self.body, Body::Greet | Body::Append(_) | Body::Snapshot(_))
    }

    /// The member that asks, when `from` is the device that proved its key.
    #[must_use]
    pub fn asker(&self, from: &NodeId) -> MemberId {
        MemberId::of(from, &self.from_store)
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("group", &self.group).field("to", &self.to).finish_non_exhaustive()
    }
}

/// Append-only: a variant keeps its number.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Body {
    /// Who are you?
    Greet,
    /// Entries, or a sign of life.
    Append(AppendEntriesRequest<Types>),
    /// A vote is asked for.
    Vote(VoteRequest<Types>),
    /// Would it be given?
    PreVote(VoteRequest<Types>),
    /// A piece of a snapshot.
    Snapshot(Piece),
    /// Another member is to lead.
    Transfer(TransferLeaderRequest<Types>),
    /// Who are you, and of which group? Of a member that does not claim to lead.
    Sound,
}

/// A piece of a snapshot (failure rule F26).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Piece {
    /// The leader's.
    pub(super) vote: Vote,
    pub(super) meta: Meta,
    /// Of the whole.
    pub(super) total: u64,
    /// SHA-256 of the whole.
    pub(super) hash: [u8; 32],
    /// Where `data` begins.
    pub(super) offset: u64,
    #[serde(with = "raw")]
    pub(super) data: Bytes,
}

/// Append-only: a variant keeps its number.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Answer {
    /// To a greeting.
    Here(Here),
    Append(AppendEntriesResponse<Types>),
    Vote(VoteResponse<Types>),
    /// The snapshot is complete so far; the next piece begins there.
    More(u64),
    /// The snapshot is installed.
    Installed(SnapshotResponse<Types>),
    /// Whether the one who is to lead tries to.
    Transfer(bool),
    /// The device is another member than the one that was meant.
    NotMe(MemberId),
    /// The device belongs to another group, and stays there. Whether it acts as broker there.
    Other(Group, bool),
    /// It is not done, and why.
    Refused(String),
}

/// Who a device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Here {
    pub(super) member: MemberId,
    pub(super) voting: Voting,
    /// Its wall clock, in milliseconds since the Unix epoch.
    pub(super) wall_ms: u64,
    /// Index of the last entry that it applied.
    pub(super) applied: u64,
}

/// An answer as bytes. One that cannot be written, which none of ours is, is an empty one: the asker takes it for lost.
pub(super) fn answered(answer: &Answer) -> Vec<u8> {
    wire::encode(answer).unwrap_or_default()
}

/// The answer of a device that belongs to the group `own` to a question of another group. `acting`: it is the broker of
/// its group, and a quorum confirms it.
#[must_use]
pub fn other_group(own: Group, acting: bool) -> Vec<u8> {
    answered(&Answer::Other(own, acting))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use openraft::EntryPayload;

    use super::*;
    use crate::{
        consensus::{
            api::Epoch,
            types::{Command, Entry, LogId, Members, Place, StoredMembership, Term},
        },
        identity::MeshId,
    };

    const OWN: MemberId = MemberId(5);

    fn id(term: u64, index: u64) -> LogId {
        LogId::new(Term::new(term), index)
    }

    fn group() -> Group {
        Group { mesh: MeshId::from([1; 16]), epoch: Epoch { count: 1, id: [2; 16] } }
    }

    fn question(body: Body) -> Question {
        Question { group: group(), from_store: [3; 16], to: Some(OWN), body }
    }

    /// What comes before the body: mesh, epoch, store, member.
    fn head() -> Vec<u8> {
        [vec![1; 16], vec![1], vec![2; 16], vec![3; 16], vec![1, 5]].concat()
    }

    fn body_bytes(body: Body) -> Vec<u8> {
        let bytes = wire::encode(&question(body)).unwrap();
        let back = Question::decode(&bytes).unwrap();
        assert_eq!(wire::encode(&back).unwrap(), bytes);
        bytes.strip_prefix(head().as_slice()).unwrap().to_vec()
    }

    #[test]
    fn questions_have_these_bytes() {
        let vote = Vote::new_committed(7, OWN);
        assert_eq!(body_bytes(Body::Greet), [0]);
        let entry = Entry { log_id: id(7, 9), payload: EntryPayload::Normal(Command("ab".into())) };
        let append =
            AppendEntriesRequest { vote, prev_log_id: Some(id(6, 8)), entries: vec![entry], leader_commit: None };
        assert_eq!(body_bytes(Body::Append(append)), [1, 7, 1, 5, 1, 1, 6, 8, 1, 7, 9, 1, 2, b'a', b'b', 0]);
        let ask = VoteRequest::new(Vote::new(8, OWN), Some(id(7, 9)));
        assert_eq!(body_bytes(Body::Vote(ask.clone())), [2, 8, 1, 5, 0, 1, 7, 9, 0]);
        assert_eq!(body_bytes(Body::PreVote(ask)), [3, 8, 1, 5, 0, 1, 7, 9, 0]);
        let transfer = TransferLeaderRequest::new(vote, MemberId(6), Some(id(7, 9)));
        assert_eq!(body_bytes(Body::Transfer(transfer)), [5, 7, 1, 5, 1, 6, 1, 7, 9]);
        assert_eq!(body_bytes(Body::Sound), [6]);
    }

    #[test]
    fn a_piece_of_a_snapshot_has_these_bytes() {
        let node = NodeId::from([4; 32]);
        let members = Members::new(vec![BTreeSet::from([OWN])], BTreeMap::from([(OWN, Place { node })])).unwrap();
        let meta =
            Meta { last_log_id: Some(id(7, 9)), last_membership: StoredMembership::new(Some(id(1, 2)), members) };
        let vote = Vote::new_committed(7, OWN);
        let piece = Piece { vote, meta, total: 3, hash: [9; 32], offset: 1, data: "xy".into() };
        let bytes = body_bytes(Body::Snapshot(piece));
        // The vote; the snapshot's id, its membership's id, one set of one voter, one place, an empty name.
        let start = [4, 7, 1, 5, 1, 1, 7, 9, 1, 1, 2, 1, 1, 5, 1, 5];
        let end = [vec![0, 3], vec![9; 32], vec![1, 2, b'x', b'y']].concat();
        let place = wire::encode(&Place { node }).unwrap();
        assert_eq!(bytes, [start.to_vec(), place, end].concat());
    }

    #[test]
    fn answers_have_these_bytes() {
        let here = Here { member: OWN, voting: Voting::Never, wall_ms: 300, applied: 2 };
        let vote = Vote::new(8, OWN);
        for (answer, bytes) in [
            (Answer::Here(here), vec![0, 5, 2, 172, 2, 2]),
            (Answer::Append(AppendEntriesResponse::Success), vec![1, 0]),
            (Answer::Append(AppendEntriesResponse::Conflict), vec![1, 2]),
            (Answer::Vote(VoteResponse::new(vote, None, true)), vec![2, 8, 1, 5, 0, 1, 0]),
            (Answer::More(5), vec![3, 5]),
            (Answer::Installed(SnapshotResponse::new(vote)), vec![4, 8, 1, 5, 0]),
            (Answer::Transfer(true), vec![5, 1]),
            (Answer::NotMe(OWN), vec![6, 5]),
            (Answer::Refused("no".into()), vec![8, 2, b'n', b'o']),
        ] {
            assert_eq!(answered(&answer), bytes);
            assert_eq!(answered(&wire::decode(&bytes).unwrap()), bytes);
        }
        assert_eq!(other_group(group(), true), [vec![7], vec![1; 16], vec![1], vec![2; 16], vec![1]].concat());
    }

    #[test]
    fn what_is_no_question_is_an_error() {
        assert!(Question::decode(&[]).is_err());
        assert!(Question::decode(&[7; 20]).is_err());
        let unknown = [head(), vec![99]].concat();
        assert!(Question::decode(&unknown).is_err());
        let longer = [head(), vec![0, 0]].concat();
        assert!(matches!(Question::decode(&longer), Err(CodecError::TrailingBytes(1))));
    }
}
