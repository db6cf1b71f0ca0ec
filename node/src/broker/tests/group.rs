//! Several brokers in one process that share a group, over wires that can be cut: what an election keeps, who is refused,
//! recovery, split, and joining.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use chappie_mesh::{
    Incarnation, InviteId, InviteKey, Roster,
    consensus::{Carrier, Group, Unreached},
    fresh_invite,
    runtime::{World, inhabit},
};
use futures_util::future::BoxFuture;
use tokio::task::AbortHandle;

use super::*;
use crate::broker::prefer::{PREFER_EVERY_MS, PREFER_LOOKS_MIN};

const MINUTE: u64 = 60_000;
const TLS: [u8; 32] = [5; 32];

/// Devices that are up, and pairs that do not hear each other.
#[derive(Default)]
struct Wires {
    up: Mutex<BTreeMap<NodeId, (Broker, Arc<Machine>)>>,
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
}

/// One device's end of them.
struct Wire {
    own: NodeId,
    wires: Arc<Wires>,
}

impl Carrier for Wire {
    fn ask(&self, to: NodeId, question: Vec<u8>, _: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>> {
        let (from, wires) = (self.own, Arc::clone(&self.wires));
        Box::pin(async move {
            let gone = || Unreached("the wire is cut".into());
            let (there, machine) = wires.reach(from, to).ok_or_else(gone)?;
            let answer = inhabit(machine, async move { there.answer_raft(from, question).await }).await;
            wires.reach(from, to).map(|_| answer).ok_or_else(gone)
        })
    }
}

impl Wires {
    fn reach(&self, from: NodeId, to: NodeId) -> Option<(Broker, Arc<Machine>)> {
        let cut = self.cut.lock().unwrap().contains(&(from.min(to), from.max(to)));
        self.up.lock().unwrap().get(&to).filter(|_| !cut).cloned()
    }

    /// Nobody of the one side hears anybody of the other.
    fn cut(&self, one: &[u8], other: &[u8]) {
        let pairs = one.iter().flat_map(|a| other.iter().map(|b| (node(*a).min(node(*b)), node(*a).max(node(*b)))));
        self.cut.lock().unwrap().extend(pairs);
    }

    fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }
}

/// What a device runs in: it ends all at once.
#[derive(Debug)]
struct Machine {
    clock: TestClock,
    drawn: AtomicU64,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl World for Machine {
    fn wall_ms(&self) -> u64 {
        self.clock.reading().wall.0
    }

    fn fill(&self, bytes: &mut [u8]) {
        // Different everywhere: which device and how often is in it.
        let drawn = self.drawn.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bytes.iter_mut().zip((0..8).cycle()).for_each(|(byte, at)| *byte = (drawn >> (8 * at)) as u8);
    }

    fn began(&self, task: AbortHandle) {
        self.tasks.lock().unwrap().push(task);
    }
}

struct Device {
    rig: Rig,
    who: u8,
    run: Incarnation,
    machine: Arc<Machine>,
    wires: Arc<Wires>,
}

impl Device {
    async fn start(
        wires: &Arc<Wires>,
        who: u8,
        run: Incarnation,
        disk: FaultyDisks,
        clock: TestClock,
        member_of: Option<Group>,
    ) -> Self {
        static STARTS: AtomicU64 = AtomicU64::new(1);
        let drawn = AtomicU64::new(STARTS.fetch_add(1, Ordering::SeqCst) << 32);
        let machine = Arc::new(Machine { clock: clock.clone(), drawn, tasks: Mutex::default() });
        let carrier = Arc::new(Wire { own: node(who), wires: Arc::clone(wires) });
        let sounds = true;
        let place =
            Place { name: format!("n{who}"), member_of, carrier, run, sounds, ..place(disk.medium(), node(who)) };
        let rig = inhabit(machine.clone(), Rig::at(place, disk, clock, quick())).await.unwrap();
        rig.broker.tend().await;
        wires.up.lock().unwrap().insert(node(who), (rig.broker.clone(), machine.clone()));
        Self { rig, who, run, machine, wires: Arc::clone(wires) }
    }

    fn broker(&self) -> &Broker {
        &self.rig.broker
    }

    /// As kill -9 does.
    fn kill(&self) {
        self.wires.up.lock().unwrap().remove(&node(self.who));
        self.machine.tasks.lock().unwrap().iter().for_each(AbortHandle::abort);
    }

    /// Starts again on what a power cut left of `disk`, or of its own.
    async fn again(&self, disk: Option<FaultyDisks>) -> Self {
        self.kill();
        let disk = disk.unwrap_or_else(|| self.rig.disk.after_power_cut());
        let group = Some(self.broker().group());
        Self::start(&self.wires, self.who, self.run.next([9; 16]), disk, self.rig.clock.clone(), group).await
    }

    fn acts(&self) -> bool {
        self.broker().standing().borrow().office.is_some()
    }

    fn voters(&self) -> usize {
        self.broker().standing().borrow().voters.len()
    }
}

fn invite() -> (InviteId, InviteKey) {
    let (id, secret) = fresh_invite([1; 24]);
    (id, secret.key())
}

async fn admit(broker: &Broker, who: u8) -> Arc<Roster> {
    let (id, key) = invite();
    broker.admit(node(who), &format!("n{who}"), id, TLS, key.prove(&TLS)).await.unwrap()
}

/// So many devices of one mesh, the first as broker, and all in step.
async fn devices(count: u8) -> Vec<Device> {
    let wires = Arc::new(Wires::default());
    let begin = |who: u8, member_of| {
        let (run, disk) = (Incarnation::first([who; 16]), FaultyDisks::default());
        let wires = Arc::clone(&wires);
        async move { Device::start(&wires, who, run, disk, TestClock::new(), member_of).await }
    };
    let first = begin(1, None).await;
    let (id, key) = invite();
    first.broker().invite(id, key, 9, 10 * MINUTE).await.unwrap();
    let group = first.broker().group();
    let mut devices = vec![first];
    for who in 2..=count {
        admit(devices[0].broker(), who).await;
        devices.push(begin(who, Some(group)).await);
    }
    let voters = if count < 3 { 1 } else { 3 };
    let settled = |device: &Device| {
        let standing = device.broker().standing().borrow().clone();
        standing.voters.len() == voters
            && standing.voters.len() + standing.learners.len() == usize::from(count)
            && device.broker().roster().members.len() == usize::from(count)
    };
    settle(&devices, || devices.iter().all(settled)).await;
    still(&devices).await;
    devices
}

/// Waits until one of them acts; its place.
async fn acting<'a>(among: &[&'a Device]) -> &'a Device {
    until(|| among.iter().any(|device| device.acts())).await;
    among.iter().find(|device| device.acts()).unwrap()
}

async fn fresh(broker: &Broker, id: &str) -> Result<Reserved, ProposeError> {
    broker.reserve(reserve(&chat("c"), id, "{}")).await
}

fn key(id: &str) -> ReceiptKey {
    reserve(&chat("c"), id, "{}").key
}

/// Waits for a condition; says how all stand when it never comes.
async fn settle(all: &[Device], condition: impl Fn() -> bool) {
    let started = tokio::time::Instant::now();
    while !condition() {
        if started.elapsed() > Duration::from_secs(60) {
            let standings: Vec<_> = all.iter().map(|device| device.broker().standing().borrow().clone()).collect();
            panic!("the condition never came: {standings:#?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until nothing more is to be replicated: the last change of voters is done with, too.
async fn still(all: &[Device]) {
    let applied = || -> BTreeSet<u64> { all.iter().map(|one| one.broker().standing().borrow().applied).collect() };
    let (mut before, mut quiet) = (applied(), 0);
    while quiet < 50 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = applied();
        quiet = if now == before && now.len() == 1 { quiet + 1 } else { 0 };
        before = now;
    }
}

fn same_state(one: &Device, other: &Device) -> bool {
    one.rig.state() == other.rig.state()
}

#[tokio::test]
async fn f10_another_device_takes_over_with_every_binding_and_receipt() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    one.broker().announce(online(&["s1", "s2"]));
    assert_eq!(one.rig.session_of(operate_on(&chat("c"), "s2")).await, "s2");
    assert_eq!(fresh(one.broker(), "runs").await, Ok(Reserved::Fresh { attempt: 1 }));
    fresh(one.broker(), "done").await.unwrap();
    one.broker().settle(key("done"), 1, Settlement::Completed { resources: vec![] }).await.unwrap();
    one.broker().delivered(&chat("c"), vec!["late".into()]).await.unwrap();
    one.kill();

    let next = acting(&[two, three]).await.broker();
    assert_eq!(next.binding(&chat("c")), Some(session("s2")));
    let status = |id: &str| next.receipt(&key(id)).map(|receipt| receipt.status);
    assert_eq!([status("runs"), status("done")], [Some(ReceiptStatus::Running), Some(ReceiptStatus::Completed)]);
    assert!(next.undelivered(&chat("c"), &["late".into()]).is_empty());
    assert!(matches!(fresh(next, "runs").await, Ok(Reserved::Replay(_))), "it never runs twice");
    assert_eq!(fresh(next, "new").await, Ok(Reserved::Fresh { attempt: 1 }));
    assert!(next.assure().await.is_ok());

    let back = one.again(None).await;
    settle(&all, || same_state(&back, two) && same_state(&back, three) && back.voters() == 3).await;
    assert!(!back.acts() && back.broker().receipt(&key("new")).is_some());
}

#[tokio::test]
async fn f11_a_cut_off_broker_stops_acting_and_what_it_is_told_changes_nothing() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    let before = one.broker().assure().await.unwrap();
    one.wires.cut(&[1], &[2, 3]);
    let next = acting(&[two, three]).await.broker();
    settle(&all, || !one.acts()).await;
    assert!(one.broker().assure().await.is_err());
    let refused = one.broker().settle(key("k"), 1, Settlement::NeverRun).await.unwrap_err();
    assert_eq!(refused, ProposeError::NotBroker);
    assert!(refused.to_string().contains("another device is the broker now"), "{refused}");
    let after = next.assure().await.unwrap();
    assert!(after.0 == before.0 && after.1 > before.1, "{after:?} after {before:?}");
    one.wires.heal();
    let leader = next.standing().borrow().leader;
    settle(&all, || one.broker().standing().borrow().leader == leader).await;
    assert_eq!(one.broker().roster().broker, leader.unwrap());
}

#[tokio::test]
async fn f12_a_reservation_of_unknown_fate_runs_once_at_the_next_broker() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    one.wires.cut(&[1], &[2, 3]);
    // It is in its own log, and in nobody else's.
    let told = fresh(one.broker(), "op").await.unwrap_err();
    assert!(matches!(told, ProposeError::Unknown(_) | ProposeError::NotBroker), "{told}");
    let next = acting(&[two, three]).await.broker();
    assert_eq!(fresh(next, "op").await, Ok(Reserved::Fresh { attempt: 1 }));
    one.wires.heal();
    settle(&all, || same_state(one, two) && same_state(one, three)).await;
    let receipt = one.broker().receipt(&key("op")).unwrap();
    assert_eq!((receipt.status, receipt.attempt), (ReceiptStatus::Running, 1), "the cut-off broker takes nothing back");
}

#[tokio::test]
async fn an_orderly_end_hands_the_office_over_first() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    let mut standings = two.broker().standing();
    one.broker().close().await;
    standings.wait_for(|now| now.leader.is_some_and(|leader| leader != node(1))).await.unwrap();
    acting(&[two, three]).await;
    assert_eq!(fresh(one.broker(), "op").await, Err(ProposeError::Stopped));
}

/// Time is virtual: a broker looks at the doors for minutes before it moves.
#[tokio::test(start_paused = true)]
async fn the_office_moves_to_the_device_whose_door_is_used_and_stays_there() {
    let all = devices(3).await;
    assert!(all[0].acts());
    let began = tokio::time::Instant::now();
    let looks = |count: u32| Duration::from_millis(PREFER_EVERY_MS) * count;
    let (mut moved, mut stayed) = (None, 0);
    while stayed < 10 {
        assert!(began.elapsed() < looks(PREFER_LOOKS_MIN + 2), "it moves: {moved:?}");
        if let Some(acting) = all.iter().find(|device| device.acts()) {
            acting.broker().door_used(node(3));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        if all[2].acts() {
            moved.get_or_insert_with(|| began.elapsed());
            stayed += 1;
        }
        assert!(moved.is_none() || all[2].acts(), "it stays");
    }
    assert!(moved > Some(looks(PREFER_LOOKS_MIN - 2)), "not at once: {moved:?}");
}

#[tokio::test]
async fn f14_a_new_broker_with_a_wrong_clock_follows_the_others() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    fresh(one.broker(), "op").await.unwrap();
    one.broker().settle(key("op"), 1, Settlement::Completed { resources: vec![] }).await.unwrap();
    two.rig.clock.jump(400 * DAY);
    settle(&all, || same_state(one, two) && same_state(one, three)).await;
    assert!(one.broker().hand_over(Some(node(2))).await);
    settle(&all, || two.acts()).await;
    // Its clock alone would prune the receipt within a day of a jump.
    for n in 0..3 {
        two.broker().delivered(&chat("c"), vec![format!("late-{n}")]).await.unwrap();
        assert_eq!(two.broker().shared.state().at, Millis(START));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(two.broker().receipt(&key("op")).is_some());
}

#[tokio::test]
async fn f15_a_store_that_was_put_back_returns_under_another_number_and_catches_up() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    let old = two.rig.disk.after_power_cut();
    let two = two.again(None).await;
    fresh(one.broker(), "op").await.unwrap();
    let number = two.broker().standing().borrow().own;
    let back = two.again(Some(old)).await;
    assert_ne!(back.broker().standing().borrow().own, number);
    settle(&all, || same_state(one, &back) && same_state(one, three)).await;
    settle(&all, || [one, &back, three].iter().all(|device| device.voters() == 3)).await;
    assert!(!back.rig.disk.bytes("consensus.redb.restored-1.bak").is_empty());
}

/// Of three devices that do not hear each other, the one at `place` recovers, and then the others come back.
async fn recovers_alone(place: usize) {
    let all = devices(3).await;
    fresh(all[0].broker(), "runs").await.unwrap();
    settle(&all, || all.iter().all(|device| same_state(&all[0], device))).await;
    all[0].wires.cut(&[1], &[2, 3]);
    all[0].wires.cut(&[2], &[3]);
    settle(&all, || all.iter().all(|device| !device.acts())).await;
    let one = &all[place];
    let before = one.broker().group();
    one.broker().recover().await.unwrap();
    settle(&all, || one.acts()).await;
    let after = one.broker().group();
    assert_eq!((after.mesh, after.epoch.count), (before.mesh, before.epoch.count + 1));
    assert_ne!(after.epoch.id, before.epoch.id);
    let roster = one.broker().roster();
    assert_eq!((roster.members.len(), roster.epoch, roster.epoch_id), (3, after.epoch.count, after.epoch.id));
    assert_eq!(roster.voters, [node(one.who)].into());
    assert!(!one.rig.disk.bytes("consensus.redb.before-recover-1.bak").is_empty());

    assert!(matches!(fresh(one.broker(), "runs").await, Ok(Reserved::Replay(_))), "what is known is answered");
    let told = fresh(one.broker(), "new").await.unwrap_err();
    for word in ["first", "n2", "n3", "chappie mesh recover --accept-loss"] {
        assert!(told.to_string().replace("n1", "first").contains(word), "'{word}' is not in: {told}");
    }
    for who in [1, 2] {
        one.broker().reannounce(node(who), vec![], true).await.unwrap();
    }
    assert_eq!(fresh(one.broker(), "new").await, Err(ProposeError::Recovering(vec!["n3".into()])));
    one.broker().accept_loss().await.unwrap();
    assert_eq!(fresh(one.broker(), "new").await, Ok(Reserved::Fresh { attempt: 1 }));

    // The others come back one by one: together they could elect a broker of the old epoch.
    let others: Vec<u8> = all.iter().map(|device| device.who).filter(|who| *who != one.who).collect();
    one.wires.heal();
    one.wires.cut(&others[..1], &others[1..]);
    settle(&all, || all.iter().all(|device| device.broker().group() == after && same_state(one, device))).await;
    let followed = all.iter().filter(|device| device.who != one.who);
    for device in followed {
        assert!(!device.rig.disk.bytes("consensus.redb.before-follow-1.bak").is_empty());
    }
    settle(&all, || all.iter().all(|device| device.broker().split().is_none())).await;
}

#[tokio::test]
async fn f16_f17_a_broker_that_lost_its_quorum_recovers_with_all_it_has_and_the_others_follow() {
    recovers_alone(0).await;
}

#[tokio::test]
async fn f16_f17_a_device_that_followed_recovers_and_the_old_broker_follows_it() {
    recovers_alone(1).await;
}

/// All but the one that recovered start together, and would be enough to go on in the old epoch.
async fn follows_after_a_start(count: u8, recovers: usize) {
    let all = devices(count).await;
    let one = &all[recovers];
    let rest: Vec<&Device> = all.iter().filter(|device| device.who != one.who).collect();
    rest.iter().for_each(|device| device.kill());
    settle(&all[recovers..=recovers], || !one.acts()).await;
    one.broker().recover().await.unwrap();
    settle(&all[recovers..=recovers], || one.acts()).await;
    let group = one.broker().group();
    let back = futures_util::future::join_all(rest.iter().map(|device| device.again(None))).await;
    let follows = |device: &Device| {
        assert!(!device.acts() && one.broker().split().is_none(), "the old epoch is over");
        device.broker().group() == group && same_state(one, device)
    };
    settle(&back, || back.iter().all(follows)).await;
    assert!(one.acts());
}

#[tokio::test]
async fn f16_two_old_voters_that_start_together_follow_the_one_that_recovered() {
    follows_after_a_start(3, 2).await;
}

#[tokio::test]
async fn f16_an_old_only_voter_that_starts_follows_the_one_that_recovered() {
    follows_after_a_start(2, 1).await;
}

/// With nobody to ask, it acts as before, a moment later.
#[tokio::test]
async fn an_only_voter_whose_other_device_is_off_acts_soon_after_its_start() {
    let all = devices(2).await;
    all.iter().for_each(Device::kill);
    let began = tokio::time::Instant::now();
    let back = all[0].again(None).await;
    settle(std::slice::from_ref(&back), || back.acts()).await;
    assert!(began.elapsed() >= Duration::from_millis(1_000), "it asks first: {:?}", began.elapsed());
}

#[tokio::test]
async fn f16_what_no_quorum_confirmed_is_in_the_new_epoch_too() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    one.wires.cut(&[1], &[2, 3]);
    one.wires.cut(&[2], &[3]);
    let told = one.broker().delivered(&chat("c"), vec!["late".into()]).await.unwrap_err();
    assert!(matches!(told, ProposeError::Unknown(_)), "{told}");
    assert_eq!(one.broker().undelivered(&chat("c"), &["late".into()]).len(), 1);
    one.broker().recover().await.unwrap();
    assert!(one.broker().undelivered(&chat("c"), &["late".into()]).is_empty());
    assert!(!two.acts() && !three.acts());
}

#[tokio::test]
async fn f16_of_two_epochs_that_act_neither_follows_until_a_person_says_so() {
    let all = devices(3).await;
    let [one, two, three] = &all[..] else { unreachable!() };
    one.wires.cut(&[1], &[2, 3]);
    acting(&[two, three]).await;
    settle(&all, || !one.acts()).await;
    one.broker().recover().await.unwrap();
    settle(&all, || one.acts()).await;
    let (theirs, ours) = (two.broker().group(), one.broker().group());
    one.wires.heal();
    // Each broker greets the members it knows.
    settle(&all, || {
        one.broker().split().is_some() && [two, three].iter().any(|device| device.broker().split().is_some())
    })
    .await;
    assert_eq!(one.broker().split().unwrap().group, theirs);
    let named = [two, three].into_iter().find_map(|device| device.broker().split()).unwrap();
    assert_eq!((named.node, named.group), (node(1), ours));
    assert_eq!((one.broker().group(), two.broker().group(), three.broker().group()), (ours, theirs, theirs));
    // One of two voters that are left cannot act alone, so the other one follows by itself.
    two.broker().follow(ours).await.unwrap();
    settle(&all, || [two, three].iter().all(|device| device.broker().group() == ours && same_state(one, device))).await;
}

#[tokio::test]
async fn f18_a_device_that_joins_archives_its_own_store_and_gets_the_meshs_state() {
    let all = devices(1).await;
    let one = &all[0];
    fresh(one.broker(), "op").await.unwrap();
    let (run, disk) = (Incarnation::first([2; 16]), FaultyDisks::default());
    let two = Device::start(&one.wires, 2, run, disk, TestClock::new(), None).await;
    two.broker().announce(online(&["s1"]));
    two.rig.session_of(operate(&chat("mine"))).await;
    admit(one.broker(), 2).await;
    one.broker().merge(node(2), two.broker().export()).await.unwrap();
    let group = one.broker().group();
    two.broker().leave_for(group).await.unwrap();
    assert!(!two.rig.disk.bytes("consensus.redb.before-join-1.bak").is_empty());
    settle(&all, || same_state(one, &two)).await;
    assert_eq!((two.broker().group(), two.broker().binding(&chat("mine"))), (group, Some(session("s1"))));
    assert!(two.broker().receipt(&key("op")).is_some());
    assert_eq!((two.voters(), two.acts()), (1, false), "of two devices one votes");
    assert_eq!(fresh(two.broker(), "other").await, Err(ProposeError::NotBroker));
    let copy = two.broker().leave_for(group).await.unwrap();
    assert!(copy.ends_with("consensus.redb.before-join-2.bak") && same_state(one, &two), "again: only a copy");
}

/// Forgets the broker of so many devices at the broker itself, and then at the one that took over.
async fn forget_the_broker(count: u8) {
    let all = devices(count).await;
    let (one, others) = all.split_first().unwrap();
    fresh(one.broker(), "op").await.unwrap();
    let told = one.broker().forget(node(1), vec![session("s1")]).await.unwrap_err();
    assert_eq!(told, ForgetError::Propose(ProposeError::NotBroker));
    let next = acting(&others.iter().collect::<Vec<_>>()).await;
    next.broker().forget(node(1), vec![session("s1")]).await.unwrap();
    assert!(!next.broker().roster().members.contains_key(&node(1)));
    assert_eq!(next.broker().receipt(&key("op")).unwrap().status, ReceiptStatus::Uncertain);
    settle(&all, || !next.broker().standing().borrow().voters.contains(&node(1))).await;
    one.broker().alone([9; 16].into(), "n1").await.unwrap();
    settle(&all, || one.acts()).await;
    assert_eq!((one.broker().roster().members.len(), one.broker().receipts().len()), (1, 0));
    assert!(next.acts() && fresh(next.broker(), "more").await.is_ok());
}

#[tokio::test]
async fn f21_the_broker_of_three_devices_can_be_forgotten() {
    forget_the_broker(3).await;
}

/// With a third one away its own vote is needed for that, and as soon as it is forgotten it is cut off.
#[tokio::test]
async fn f21_a_voter_gives_its_vote_away_before_it_is_forgotten() {
    let all = devices(3).await;
    let [one, _, three] = &all[..] else { unreachable!() };
    settle(&all, || one.voters() == 3).await;
    three.kill();
    let mut rosters = one.broker().rosters();
    let forgetting = one.broker().forget(node(2), vec![]);
    let cut_off = rosters.wait_for(|roster| !roster.members.contains_key(&node(2)));
    let voters = async {
        drop(cut_off.await.unwrap());
        one.broker().standing().borrow().voters.clone()
    };
    let (forgot, voters) = tokio::join!(forgetting, voters);
    forgot.unwrap();
    assert!(!voters.contains(&node(2)), "{voters:?}");
    assert!(one.acts() && fresh(one.broker(), "more").await.is_ok());
}

#[tokio::test]
async fn f21_the_only_voter_of_two_devices_can_be_forgotten_while_it_is_there() {
    forget_the_broker(2).await;
}

#[tokio::test]
async fn f21_the_only_voter_that_is_not_reached_cannot_be_forgotten_and_recovery_is_named() {
    let all = devices(2).await;
    let [one, two] = &all[..] else { unreachable!() };
    one.kill();
    settle(&all, || two.broker().standing().borrow().leader.is_none()).await;
    let told = two.broker().forget(node(1), vec![]).await.unwrap_err();
    assert!(told.to_string().contains("n1") && told.to_string().contains("chappie mesh recover"), "{told}");
    two.broker().recover().await.unwrap();
    settle(&all, || two.acts()).await;
    two.broker().forget(node(1), vec![]).await.unwrap();
    assert_eq!(two.broker().recovering(), [node(2)].into());
}
