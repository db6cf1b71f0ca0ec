//! What the leader does for its group: asks devices who they are, takes them in, decides who votes, lets members go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use openraft::{ChangeMembers, raft::Precondition};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    api::{MemberId, Office, Standing},
    network::Line,
    policy::{self, Health, LAG_MAX, Present, Step, View},
    shared::{Metrics, Shared, healths},
    types::{Place, Term, Types},
    wire::{Answer, Body},
};
use crate::identity::{NodeId, Roster};

/// How long a device may take to say who it is. A dial is part of it.
const GREET_WAIT: Duration = Duration::from_secs(2);

/// How often a device is asked that did not answer, or is not in the group as it says it is.
const GREET_AGAIN: Duration = Duration::from_secs(1);

/// How often a device is asked that has been away for long. The engine dials its own members all the time; one that is new
/// shows in the roster.
const GREET_AWAY: Duration = Duration::from_secs(8);

/// How often the others are asked: their owners may have changed their mind, with a restart in between.
const GREET_LATER: Duration = Duration::from_secs(10);

/// How often the policy is asked while nothing happens.
const LOOK: Duration = Duration::from_millis(200);

/// How long a change of members may take. It may come true later (failure rule F12); the next look sees it.
const STEP_WAIT: Duration = Duration::from_secs(10);

/// After a change that did not work.
const STEP_AGAIN: Duration = Duration::from_secs(1);

/// A member that answered this recently can lead.
const ANSWERED: Duration = Duration::from_secs(2);

/// What the leader learned of the devices in its office.
struct Book {
    began: Instant,
    devices: BTreeMap<NodeId, Device>,
}

struct Device {
    asked: bool,
    due: Instant,
    /// Greetings in a row that were not answered.
    missed: u32,
    said: Option<Present>,
}

type Greeting = BoxFuture<'static, (NodeId, Option<Present>)>;

impl Book {
    fn new() -> Self {
        Self { began: Instant::now(), devices: BTreeMap::new() }
    }

    /// Asks those of whom it is time to hear.
    fn greet(&mut self, own: NodeId, roster: &Roster, line: &Line, asked: &FuturesUnordered<Greeting>) {
        self.devices.retain(|node, _| roster.members.contains_key(node));
        let now = Instant::now();
        for node in roster.members.keys().filter(|node| **node != own) {
            let fresh = || Device { asked: false, due: now, missed: 0, said: None };
            let device = self.devices.entry(*node).or_insert_with(fresh);
            if device.asked || device.due > now {
                continue;
            }
            device.asked = true;
            let (node, line) = (*node, line.clone());
            asked.push(Box::pin(async move {
                let said = match line.ask(node, None, Body::Greet, GREET_WAIT).await {
                    Ok(Answer::Here(here)) => Some(Present { member: here.member, voting: here.voting }),
                    // Not there, or in another group: its own broker or it itself deals with that.
                    Ok(_) | Err(_) => None,
                };
                (node, said)
            }));
        }
    }

    fn note(&mut self, node: NodeId, said: Option<Present>, members: &BTreeMap<MemberId, NodeId>) {
        let Some(device) = self.devices.get_mut(&node) else { return };
        let settled = said.is_some_and(|said| members.contains_key(&said.member));
        device.asked = false;
        device.missed = if said.is_some() { 0 } else { device.missed.saturating_add(1) };
        let again = GREET_AGAIN * 2_u32.saturating_pow(device.missed.saturating_sub(1));
        device.due = Instant::now() + if settled { GREET_LATER } else { again.min(GREET_AWAY) };
        // A device that does not answer now is still the one it was.
        device.said = said.or(device.said);
    }

    /// A member that stopped answering may have lost its store.
    fn doubt(&mut self, silent: &BTreeSet<NodeId>) {
        let soon = Instant::now() + GREET_AGAIN;
        for (_, device) in self.devices.iter_mut().filter(|(node, _)| silent.contains(node)) {
            device.due = device.due.min(soon);
        }
    }
}

fn places(metrics: &Metrics) -> BTreeMap<MemberId, NodeId> {
    metrics.membership_config.nodes().map(|(id, Place { node })| (*id, *node)).collect()
}

fn view(shared: &Shared, own: Present, roster: &Roster, book: &Book) -> (View, Metrics) {
    let metrics = shared.metrics();
    let in_office = book.began.elapsed();
    let health = healths(&metrics)
        .into_iter()
        .map(|(id, (lag, answered))| (id, Health { lag, silent: answered.unwrap_or(in_office).min(in_office) }));
    let said = book.devices.iter().filter_map(|(node, device)| device.said.map(|said| (*node, said)));
    let view = View {
        own: shared.own,
        roster: roster.members.keys().copied().collect(),
        places: places(&metrics),
        voters: metrics.membership_config.voter_ids().collect(),
        joint: metrics.membership_config.get_joint_config().len() > 1,
        health: health.filter(|(id, _)| *id != shared.own).collect(),
        present: said.chain([(shared.node, own)]).collect(),
    };
    (view, metrics)
}

/// Does one step, if it can be done now. The engine refuses it when the office or the members have changed since `seen`.
async fn take(shared: &Shared, office: Office, seen: &Metrics, step: Step) -> bool {
    let change = match step {
        Step::Finish => ChangeMembers::AddVoterIds(BTreeSet::new()),
        Step::Learn(new) => ChangeMembers::AddNodes(new.into_iter().map(|(id, node)| (id, Place { node })).collect()),
        Step::Voters(voters) => ChangeMembers::ReplaceAllVoters(voters),
        Step::Remove(old) => ChangeMembers::RemoveNodes(old),
        Step::HandOver(heir) => {
            let heir = places(seen).get(&heir).copied();
            return hand_over(shared, heir).await;
        }
    };
    let only_if: [Precondition<Types>; 2] = [
        Precondition::CommittedLeaderId { committed_leader_id: Term::new(office.term) },
        Precondition::LastMembershipLogId { last_membership_log_id: *seen.membership_config.log_id() },
    ];
    let changed = timeout(STEP_WAIT, shared.raft.change_membership_if(change, true, only_if)).await;
    changed.is_ok_and(|changed| changed.is_ok())
}

/// Runs for as long as the member does. It works only while the member holds the office.
pub(super) async fn tend(shared: Arc<Shared>, own: Present, line: Line, mut rosters: watch::Receiver<Arc<Roster>>) {
    let mut standings = shared.standing.subscribe();
    loop {
        let Ok(standing) = standings.wait_for(|standing| standing.office.is_some()).await.map(|now| Arc::clone(&now))
        else {
            return;
        };
        let Some(office) = standing.office else { continue };
        in_office(&shared, office, own, &line, &mut rosters, &mut standings).await;
    }
}

async fn in_office(
    shared: &Shared,
    office: Office,
    own: Present,
    line: &Line,
    rosters: &mut watch::Receiver<Arc<Roster>>,
    standings: &mut watch::Receiver<Arc<Standing>>,
) {
    let mut book = Book::new();
    let mut asked: FuturesUnordered<Greeting> = FuturesUnordered::new();
    let mut look = Instant::now();
    let mut knows_rosters = true;
    while standings.borrow().term == office.term && standings.borrow().trouble.is_none() {
        let roster = Arc::clone(&rosters.borrow_and_update());
        book.greet(shared.node, &roster, line, &asked);
        if look <= Instant::now() {
            let (view, seen) = view(shared, own, &roster, &book);
            book.doubt(&silent(&view));
            let step = shared.office().is_some().then(|| policy::next(&view)).flatten();
            look = Instant::now()
                + match step {
                    Some(step) => match take(shared, office, &seen, step).await {
                        true => Duration::ZERO,
                        false => STEP_AGAIN,
                    },
                    // A device alone is told by its roster when that ends, and sleeps.
                    None if view.roster.len() == 1 && view.places.len() == 1 => GREET_LATER,
                    None => LOOK,
                };
        }
        tokio::select! {
            biased;
            changed = rosters.changed(), if knows_rosters => knows_rosters = changed.is_ok(),
            Some((node, said)) = asked.next(), if !asked.is_empty() => {
                book.note(node, said, &places(&shared.metrics()));
                look = look.min(Instant::now());
            }
            _ended = standings.wait_for(|now| now.term != office.term || now.trouble.is_some()) => return,
            () = sleep_until(look) => {}
        }
    }
}

/// Devices whose member answers no more.
fn silent(view: &View) -> BTreeSet<NodeId> {
    let members = view.health.iter().filter(|(_, health)| health.silent >= ANSWERED);
    members.filter_map(|(id, _)| view.places.get(id).copied()).collect()
}

/// Hands the leadership to the voter on `to`, or to the one that has most of the log.
pub(super) async fn hand_over(shared: &Shared, to: Option<NodeId>) -> bool {
    let metrics = shared.metrics();
    let Some(term) = shared.view(&metrics).leads else { return false };
    let places = places(&metrics);
    let voters: BTreeSet<MemberId> = metrics.membership_config.voter_ids().collect();
    let able = |(id, (lag, answered)): (MemberId, (u64, Option<Duration>))| {
        let place = places.get(&id)?;
        let there = answered.is_some_and(|ago| ago <= ANSWERED) && lag <= LAG_MAX;
        let meant = to.is_none_or(|to| to == *place);
        (id != shared.own && voters.contains(&id) && there && meant).then_some((lag, answered, id))
    };
    let Some((_, _, heir)) = healths(&metrics).into_iter().filter_map(able).min() else { return false };
    shared.yields(term);
    if shared.raft.trigger().transfer_leader(heir).await.is_err() {
        return false;
    }
    let mut standings = shared.standing.subscribe();
    let others = |now: &Arc<Standing>| now.trouble.is_some() || now.leader.is_some_and(|node| node != shared.node);
    // Should the heir be gone after all, an election follows, which this covers.
    let led = timeout(shared.pace.silence() * 2, standings.wait_for(others)).await;
    led.is_ok_and(|now| now.is_ok_and(|now| now.trouble.is_none()))
}
