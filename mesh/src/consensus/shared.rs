//! One running member, as all its parts see it: the engine, and what is made of what it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{
    Instant as _, ReadPolicy, ServerState,
    metrics::RaftMetrics,
    type_config::alias::{InstantOf, SerdeInstantOf},
};
use openraft_rt::WatchReceiver as _;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    api::{Follower, Group, MemberId, Office, Pace, Standing},
    clock,
    log::Log,
    network::learners,
    office::{Awake, Quorum, View},
    types::{Place, Raft, Types},
    writer::Writer,
};
use crate::identity::NodeId;

pub(super) type Metrics = RaftMetrics<Types>;

/// Who was heard as the leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) member: MemberId,
    pub(super) node: NodeId,
    pub(super) at: Instant,
}

/// What changes hands between the driver and those who ask.
#[derive(Debug, Default)]
struct Ledger {
    taken: Option<u64>,
    yields: Option<u64>,
    heard: Option<Heard>,
    awake: Awake,
    present: Option<BTreeSet<NodeId>>,
}

/// One running member, as all its parts see it.
pub(super) struct Shared {
    pub(super) group: Group,
    pub(super) own: MemberId,
    pub(super) node: NodeId,
    pub(super) pace: Pace,
    pub(super) raft: Raft,
    pub(super) log: Log,
    pub(super) writer: Writer,
    pub(super) standing: watch::Sender<Arc<Standing>>,
    ledger: Mutex<Ledger>,
    pub(super) kick: Notify,
    began: Instant,
}

impl Shared {
    pub(super) fn new(
        (group, own, node, pace): (Group, MemberId, NodeId, Pace),
        raft: Raft,
        log: Log,
        writer: Writer,
    ) -> Self {
        let ledger = Ledger { awake: Awake::new(clock::slept()), ..Ledger::default() };
        let shared = Self {
            group,
            own,
            node,
            pace,
            raft,
            log,
            writer,
            standing: watch::Sender::new(Arc::new(Standing::before(group, own))),
            ledger: Mutex::new(ledger),
            kick: Notify::new(),
            began: Instant::now(),
        };
        let metrics = shared.metrics();
        shared.standing.send_replace(Arc::new(shared.picture(&metrics)));
        shared
    }

    fn ledger<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        with(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn metrics(&self) -> Metrics {
        self.raft.metrics().borrow_watched().clone()
    }

    /// Notes a sign of life of a leader.
    pub(super) fn heard(&self, member: MemberId, node: NodeId) {
        let heard = Heard { member, node, at: Instant::now() };
        let before = self.ledger(|ledger| ledger.heard.replace(heard));
        let silence = self.silence(&self.raft.metrics().borrow_watched());
        if before.is_none_or(|before| before.member != member || before.at.elapsed() > silence) {
            self.kick.notify_one();
        }
    }

    /// Notes which other voters answered while nobody leads.
    pub(super) fn present(&self, voters: BTreeSet<NodeId>) {
        self.ledger(|ledger| ledger.present = Some(voters));
        self.kick.notify_one();
    }

    /// Somebody leads: who answered before counts no more.
    pub(super) fn led(&self) {
        self.ledger(|ledger| ledger.present = None);
    }

    /// From now on this member does not act in `term`, because it hands the office over.
    pub(super) fn yields(&self, term: u64) {
        self.ledger(|ledger| ledger.yields = Some(term));
        self.kick.notify_one();
    }

    /// Whether the office of `term` is being handed over.
    pub(super) fn yielding(&self, term: u64) -> bool {
        self.ledger(|ledger| ledger.yields == Some(term))
    }

    /// What is known of this member's leadership now.
    pub(super) fn view(&self, metrics: &Metrics) -> View {
        let leads =
            (metrics.state == ServerState::Leader && metrics.running_state.is_ok()).then_some(metrics.current_term);
        let mut voters = metrics.membership_config.voter_ids();
        let alone = voters.next() == Some(self.own) && voters.next().is_none();
        let now = self.began.elapsed();
        let sent = metrics.last_quorum_acked.map(|acked| now.saturating_sub(age(acked)));
        self.ledger(|ledger| {
            let quorum = match sent {
                _ if alone => Quorum::Alone,
                Some(sent) => ledger.awake.judge(clock::slept(), now, sent),
                None => Quorum::Silent,
            };
            View { leads, taken: ledger.taken, yields: ledger.yields, quorum }
        })
    }

    /// The office, when it is held now.
    pub(super) fn office(&self) -> Option<Office> {
        self.view(&self.metrics()).office(self.pace.lease())
    }

    /// Asks a quorum whether this member leads, and waits until all that was committed by then is applied here. The
    /// answer is the term of its office (failure rule F10).
    ///
    /// # Errors
    /// In words.
    pub(super) async fn read_index(&self) -> Result<u64, String> {
        let read = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|error| error.to_string())?;
        let term = read.read_log_id().committed_leader_id().term;
        match read.try_await_ready(&self.raft, Some(self.pace.silence())).await {
            Ok(Ok(_)) => Ok(term),
            Ok(Err(_)) => Err("what is committed is not carried out yet".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// From now on it may act in `term`.
    pub(super) fn taken(&self, term: u64) {
        self.ledger(|ledger| ledger.taken = Some(term));
    }

    /// After that long without a sign of life nobody leads, as far as this member can say.
    pub(super) fn silence(&self, metrics: &Metrics) -> Duration {
        match metrics.membership_config.voter_ids().any(|voter| voter == self.own) {
            true => self.pace.silence(),
            false => self.pace.learner_silence(learners(metrics)),
        }
    }

    /// When a leader was heard last.
    pub(super) fn heard_at(&self) -> Option<Instant> {
        self.ledger(|ledger| ledger.heard).map(|heard| heard.at)
    }

    /// Who leads, as far as this member has heard.
    fn leader(&self, metrics: &Metrics, leads: bool) -> Option<NodeId> {
        if leads {
            return Some(self.node);
        }
        let leader = metrics.current_leader?;
        let heard = self.ledger(|ledger| ledger.heard)?;
        (heard.member == leader && heard.at.elapsed() <= self.silence(metrics)).then_some(heard.node)
    }

    /// How the group stands now.
    pub(super) fn picture(&self, metrics: &Metrics) -> Standing {
        let view = self.view(metrics);
        let members = &metrics.membership_config;
        let places: BTreeMap<MemberId, NodeId> = members.nodes().map(|(id, Place { node })| (*id, *node)).collect();
        let voters: BTreeSet<MemberId> = members.voter_ids().collect();
        let nodes = |voting: bool| -> BTreeSet<NodeId> {
            places.iter().filter(|(id, _)| voters.contains(id) == voting).map(|(_, node)| *node).collect()
        };
        let (voting, mut learning) = (nodes(true), nodes(false));
        learning.retain(|node| !voting.contains(node));
        let mut followers = BTreeMap::new();
        for (id, health) in healths(metrics) {
            let Some(node) = places.get(&id) else { continue };
            let (lag, answered) = health;
            let answered_ms = answered.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX));
            if id != self.own && (voters.contains(&id) || !voting.contains(node)) {
                followers.insert(*node, Follower { lag, answered_ms });
            }
        }
        let leader = self.leader(metrics, view.leads.is_some());
        Standing {
            group: self.group,
            own: self.own,
            term: metrics.current_term,
            leader,
            office: view.office(self.pace.lease()),
            voters: voting,
            learners: learning,
            followers,
            answering: self.ledger(|ledger| ledger.present.clone()).filter(|_| leader.is_none()),
            applied: metrics.last_applied.map_or(0, |id| id.index),
            trouble: None,
        }
    }
}

/// How long ago an instant of the engine was.
fn age(instant: SerdeInstantOf<Types>) -> Duration {
    let instant: InstantOf<Types> = *instant;
    instant.elapsed()
}

/// At the leader: what each member lacks, and how long ago it answered what was sent to it then.
pub(super) fn healths(metrics: &Metrics) -> BTreeMap<MemberId, (u64, Option<Duration>)> {
    let last = metrics.last_log_index.map_or(0, |index| index + 1);
    let lag = |id: &MemberId| {
        let matched = metrics.replication.as_ref().and_then(|all| all.get(id).cloned().flatten());
        last.saturating_sub(matched.map_or(0, |id| id.index + 1))
    };
    let Some(answers) = &metrics.heartbeat else { return BTreeMap::new() };
    answers.iter().map(|(id, at)| (*id, (lag(id), at.map(age)))).collect()
}
