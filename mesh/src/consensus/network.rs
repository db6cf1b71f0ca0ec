//! The engine's questions on their way to other members, and their answers back.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, future::BoxFuture, stream};
use openraft::{
    base::BoxStream,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderError,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
    type_config::alias,
};
use openraft_rt::WatchReceiver as _;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep_until};

use super::{
    api::{Carrier, Group, MemberId, Pace, StoreId, Unreached},
    pace,
    shared::Metrics,
    types::{Place, Snapshot, Types, Vote},
    wire::{Answer, Body, Piece, Question},
};
use crate::{identity::NodeId, wire};

/// One piece of a snapshot, in bytes: on a slow line of 256 kbit/s it still arrives within [`PIECE_WAIT`].
const PIECE: usize = 256 << 10;

/// How long a piece may take; a snapshot as a whole may take as long as it likes (failure rule F26).
const PIECE_WAIT: Duration = Duration::from_secs(10);

/// How long the last piece may take: the whole is read into the machine and written to disk before it is answered.
const INSTALL_WAIT: Duration = Duration::from_secs(25);

/// Answers in a row that do not take a snapshot further, before it is begun anew.
const STALLED_MAX: u32 = 3;

/// Who votes, as the engine sees it: it needs the way to others before it can be asked. Until then everybody counts as a
/// voter.
pub(super) type Voters = Arc<OnceLock<alias::WatchReceiverOf<Types, Metrics>>>;

/// How this member asks others.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) group: Group,
    pub(super) store: StoreId,
    pub(super) pace: Pace,
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) voters: Voters,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Line {
    /// Asks the device `node`, which must be the member `to` when that is known.
    ///
    /// # Errors
    /// When it does not answer in time, or not as this program understands.
    pub(super) async fn ask(
        &self,
        node: NodeId,
        to: Option<MemberId>,
        body: Body,
        within: Duration,
    ) -> Result<Answer, Unreached> {
        let question = Question { group: self.group, from_store: self.store, to, body };
        let bytes = wire::encode(&question).map_err(|error| Unreached(error.to_string()))?;
        // The carrier keeps the time too; this holds whatever it does.
        let answer = tokio::time::timeout(within, self.carrier.ask(node, bytes, within)).await;
        let answer = answer.map_err(|_| Unreached(format!("no answer in {} ms", within.as_millis())))??;
        wire::decode(&answer).map_err(|error| Unreached(format!("its answer is not understood: {error}")))
    }

    /// Whether `member` votes, or did before a change that is not committed yet; and how many do not.
    fn votes(&self, member: MemberId) -> (bool, usize) {
        let Some(metrics) = self.voters.get() else { return (true, 0) };
        let metrics = metrics.borrow_watched();
        let committed = metrics.committed_membership_config.voter_ids();
        let votes = metrics.membership_config.voter_ids().chain(committed).any(|voter| voter == member);
        (votes, learners(&metrics))
    }
}

impl RaftNetworkFactory<Types> for Line {
    type Network = Peer;

    async fn new_client(&mut self, member: MemberId, place: &Place) -> Peer {
        Peer { line: self.clone(), member, node: place.node, of_life: false, sent: None }
    }

    async fn new_heartbeat_client(&mut self, member: MemberId, place: &Place) -> Peer {
        Peer { line: self.clone(), member, node: place.node, of_life: true, sent: None }
    }
}

/// The way to one other member.
#[derive(Debug)]
pub(crate) struct Peer {
    line: Line,
    member: MemberId,
    node: NodeId,
    /// Whether this way is for signs of life alone; entries go on another one.
    of_life: bool,
    /// When something was last sent on it.
    sent: Option<Instant>,
}

fn unreached(error: &Unreached) -> RPCError<Types> {
    RPCError::Unreachable(Unreachable::new(error))
}

/// Members that do not vote.
pub(super) fn learners(metrics: &Metrics) -> usize {
    let members = metrics.membership_config.membership();
    members.nodes().count().saturating_sub(members.voter_ids().count())
}

/// What an answer says that is not the one that was asked for.
fn other(answer: &Answer) -> RPCError<Types> {
    unreached(&Unreached(match answer {
        Answer::NotMe(member) => format!("the device is member {member} now"),
        Answer::Other(group, _) => format!("the device belongs to epoch {} of {}", group.epoch.count, group.mesh),
        Answer::Refused(why) => why.clone(),
        _ => "the device answered another question".into(),
    }))
}

impl Peer {
    /// Whether what the engine is about to send goes out. A sign of life that does not is answered by nobody, and so counts for
    /// nothing: neither is the member taken for alive, nor does a lease rest on it. What is committed does not travel with
    /// signs of life alone: the engine tells it on its other way.
    fn is_due(&self) -> bool {
        let (votes, learners) = self.line.votes(self.member);
        let ago = self.sent.map(|sent| sent.elapsed());
        !self.of_life || pace::is_sign_due(votes, ago, self.line.pace.learner_heartbeat(learners))
    }

    /// Entries for one of many learners wait for those that follow them soon, so that they go out together.
    async fn gather(&self) {
        let (votes, learners) = self.line.votes(self.member);
        if let Some(sent) = self.sent.filter(|_| !self.of_life && !votes) {
            sleep_until(sent + pace::learner_rest(learners)).await;
        }
    }

    async fn ask(&self, body: Body, within: Duration) -> Result<Answer, RPCError<Types>> {
        self.line.ask(self.node, Some(self.member), body, within).await.map_err(|error| unreached(&error))
    }

    async fn send(&self, vote: Vote, snapshot: Snapshot) -> Result<SnapshotResponse<Types>, RPCError<Types>> {
        let data = snapshot.snapshot;
        let hash = Sha256::digest(&data).into();
        let (mut offset, mut stalled) = (0, 0);
        loop {
            let end = data.len().min(offset + PIECE);
            let piece = Piece {
                vote,
                meta: snapshot.meta.clone(),
                total: data.len() as u64,
                hash,
                offset: offset as u64,
                data: data.slice(offset..end),
            };
            let within = if end == data.len() { INSTALL_WAIT } else { PIECE_WAIT };
            match self.ask(Body::Snapshot(piece), within).await? {
                Answer::Installed(answer) => return Ok(answer),
                Answer::More(next) => {
                    let next = usize::try_from(next).unwrap_or(usize::MAX).min(data.len());
                    stalled = if next > offset { 0 } else { stalled + 1 };
                    if stalled > STALLED_MAX {
                        return Err(unreached(&Unreached("the snapshot does not get any further".into())));
                    }
                    offset = next;
                }
                answer => return Err(other(&answer)),
            }
        }
    }
}

type Answers<'s> = BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>;

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        self.gather().await;
        self.sent = Some(Instant::now());
        // A sign of life that is late is worth nothing. Entries may take their time: the signs of life go beside them.
        let within = if request.entries.is_empty() { option.hard_ttl() } else { PIECE_WAIT };
        match self.ask(Body::Append(request), within).await? {
            Answer::Append(answer) => Ok(answer),
            answer => Err(other(&answer)),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Answers<'s>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
    {
        if self.is_due() {
            return stream_append_sequential(self, input, option);
        }
        Box::pin(async { Ok(Box::pin(stream::empty()) as Answers<'s>) })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(Body::Vote(request), option.hard_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            answer => Err(other(&answer)),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.ask(Body::PreVote(request), option.hard_ttl()).await? {
            Answer::Vote(answer) => Ok(answer),
            answer => Err(other(&answer)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let mut cancel = pin!(cancel);
        tokio::select! {
            biased;
            closed = &mut cancel => Err(StreamingError::Closed(closed)),
            sent = self.send(vote, snapshot) => sent.map_err(StreamingError::from),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let expected = *request.from_leader();
        match self.ask(Body::Transfer(request), option.hard_ttl()).await? {
            Answer::Transfer(true) => Ok(Ok(())),
            Answer::Transfer(false) => Ok(Err(TransferLeaderError::VoteChanged { expected, actual: expected })),
            answer => Err(other(&answer)),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        // A member that is back is to be found again by the next sign of life.
        let (votes, learners) = self.line.votes(self.member);
        let pace = self.line.pace;
        let pause = if votes { pace.heartbeat() } else { pace.learner_heartbeat(learners) };
        Some(Backoff::new(std::iter::repeat(pause)))
    }
}
