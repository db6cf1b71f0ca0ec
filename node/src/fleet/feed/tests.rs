//! Members announce to the broker, and report to it over the wire.

use std::sync::Mutex;

use tokio::time::{Instant, timeout};

use super::*;
use crate::{
    broker::{ReceiptKey, ReceiptKind, Reserve, Settlement},
    fleet::{
        Directory,
        directory::Fleet,
        office::FleetOffice,
        testing::{Device, NoDoors, Only, Scripted, Wires, info, node, roster, standing},
    },
    sessions::Office,
};

struct Source {
    sessions: Mutex<Vec<SessionInfo>>,
    late: Mutex<Vec<Conversation>>,
    version: watch::Sender<u64>,
}

impl Source {
    fn new(sessions: Vec<SessionInfo>) -> Arc<Self> {
        let (sessions, late) = (Mutex::new(sessions), Mutex::default());
        Arc::new(Self { sessions, late, version: watch::Sender::new(0) })
    }

    fn change(&self, sessions: Vec<SessionInfo>, late: Vec<Conversation>) {
        *self.sessions.lock().unwrap() = sessions;
        *self.late.lock().unwrap() = late;
        self.version.send_modify(|version| *version += 1);
    }
}

impl Announces for Source {
    fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.lock().unwrap().clone()
    }

    fn late(&self) -> Vec<Conversation> {
        self.late.lock().unwrap().clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

struct Heard(watch::Sender<Option<Roster>>);

impl Follow for Heard {
    fn news(&self, from: NodeId, roster: Roster, _: Vec<(NodeId, Vec<SocketAddr>)>) {
        assert_eq!(from, node(1));
        self.0.send_replace(Some(roster));
    }
}

/// Device one is the broker, device two announces.
struct Stand {
    wires: Arc<Wires>,
    fleet: Arc<Fleet>,
    source: Arc<Source>,
    heard: Arc<Heard>,
    rosters: watch::Sender<Arc<Roster>>,
    connected: watch::Sender<Arc<BTreeSet<NodeId>>>,
    one: Device,
    two: Device,
}

impl Stand {
    fn new() -> Self {
        let wires = Wires::new();
        let (rosters, watched) = watch::channel(Arc::new(roster()));
        let [one, two] = [1, 2].map(|byte| Device::new(&wires, node(byte), watched.clone()));
        let scripted = Scripted::new();
        one.serve(&wires, scripted.clone(), Arc::new(NoDoors));
        two.serve(&wires, Scripted::new(), Arc::new(NoDoors));
        one.roll.own(vec![info("own", 5)]);
        let connected = watch::Sender::new(Arc::new(BTreeSet::from([node(2), node(3)])));
        let local = Arc::new(Only(scripted, info("own", 5)));
        let fleet = Fleet::new(one.roll.clone(), local, one.line.clone(), one.seat.clone(), connected.subscribe());
        let (source, heard) = (Source::new(vec![info("two", 1)]), Arc::new(Heard(watch::Sender::new(None))));
        Self { wires, fleet, source, heard, rosters, connected, one, two }
    }

    /// The directory of a broker that has just taken the seat.
    fn later(&self) -> Arc<Fleet> {
        let Device { roll, line, seat, .. } = &self.one;
        let local = Arc::new(Only(Scripted::new(), info("own", 5)));
        Fleet::new(roll.clone(), local, line.clone(), seat.clone(), self.connected.subscribe())
    }

    fn announce(&self) {
        let connected = watch::channel(Arc::new(BTreeSet::from([node(1)]))).1;
        let (seat, line) = (self.two.seat.clone(), self.two.line.clone());
        let (source, heard) = (self.source.clone(), self.heard.clone());
        tokio::spawn(Announcer::new(seat, line, connected, source, heard, [2; 16]).run());
    }

    fn ids(&self) -> Vec<String> {
        self.fleet.list().into_iter().map(|placed| format!("{}@{}", placed.info.id, placed.device)).collect()
    }

    /// Resolves once the directory lists these.
    async fn lists(&self, wanted: &[&str]) {
        let mut version = self.one.roll.version.subscribe();
        let listed = version.wait_for(|_| self.ids() == wanted);
        assert!(timeout(Duration::from_secs(60), listed).await.is_ok(), "{:?} is not {wanted:?}", self.ids());
    }
}

#[test]
fn the_larger_the_fleet_the_more_changes_of_the_roster_go_out_as_one() {
    let rest = |members| roster_rest(members).as_millis();
    assert_eq!((rest(1), rest(3), rest(100), rest(10_000), rest(usize::MAX)), (54, 62, 450, 1000, 1000));
}

#[tokio::test]
async fn members_announce_at_once_and_after_changes_and_go_offline_with_their_stream() {
    let stand = Stand::new();
    assert_eq!(stand.ids(), ["own@own"]);
    stand.announce();
    stand.lists(&["two@two", "own@own"]).await;
    let chat = Conversation::Chat("c".into());
    assert!(stand.fleet.late(&chat).is_empty());
    stand.source.change(vec![info("two", 1), info("more", 9)], vec![chat.clone()]);
    stand.lists(&["two@two", "own@own", "more@two"]).await;
    assert_eq!(stand.fleet.late(&chat).len(), 1);
    assert_eq!(stand.fleet.nodes().len(), 2);
    assert!(stand.fleet.find(&"more".into()).is_some_and(|placed| placed.device == "two"));
    stand.wires.down();
    stand.lists(&["own@own"]).await;
    assert!(stand.fleet.find(&"two".into()).is_none() && stand.fleet.late(&chat).is_empty());
    assert_eq!(stand.fleet.kept(&node(2)), ["more".into(), "two".into()], "kept for `forget`");
    stand.wires.up();
    stand.lists(&["two@two", "own@own", "more@two"]).await;
}

#[tokio::test]
async fn the_roster_goes_to_members_at_once_and_when_it_changes() {
    let stand = Stand::new();
    stand.announce();
    let mut heard = stand.heard.0.subscribe();
    heard.wait_for(|heard| heard.as_ref() == Some(&roster())).await.unwrap();
    let next = Roster { version: 2, ..roster() };
    stand.rosters.send_replace(Arc::new(next.clone()));
    heard.wait_for(|heard| heard.as_ref() == Some(&next)).await.unwrap();
}

#[tokio::test]
async fn a_member_that_was_forgotten_is_offline_at_once() {
    let stand = Stand::new();
    stand.announce();
    stand.lists(&["two@two", "own@own"]).await;
    let mut forgotten = roster();
    forgotten.members.remove(&node(2));
    stand.rosters.send_replace(Arc::new(forgotten));
    stand.lists(&["own@own"]).await;
}

#[tokio::test]
async fn f13_selection_waits_for_members_that_can_announce_and_no_longer_than_a_second() {
    let stand = Stand::new();
    let begun = Instant::now();
    stand.fleet.gathered().await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "device three never announces");
    assert!(stand.fleet.has_gathered());
    stand.connected.send_replace(Arc::new(BTreeSet::from([node(2)])));
    stand.announce();
    stand.lists(&["two@two", "own@own"]).await;
    let begun = Instant::now();
    stand.later().gathered().await;
    assert!(begun.elapsed() < Duration::from_millis(900), "who is not connected is not waited for");
}

fn office(stand: &Stand) -> FleetOffice {
    let Device { seat, broker, roll, line, .. } = &stand.two;
    FleetOffice::new(seat.clone(), broker.clone(), roll.clone(), line.clone())
}

#[tokio::test]
async fn f9_reports_of_a_member_reach_the_broker_and_errors_say_repeat() {
    let stand = Stand::new();
    let (office, broker) = (office(&stand), &stand.one.broker);
    let (key, chat) = (ReceiptKey("k".into()), Conversation::Chat("c".into()));
    let reserve = Reserve {
        key: key.clone(),
        signature: "s".into(),
        operation_id: "o".into(),
        conversation: Some(chat.clone()),
        session: "two".into(),
        cwd: "/tmp".into(),
        kind: ReceiptKind::Call,
        call_id: "c".into(),
    };
    broker.reserve(reserve).await.unwrap();
    let running = office.running(vec!["two".into()]).await.unwrap();
    assert_eq!(running.iter().map(|receipt| receipt.key.clone()).collect::<Vec<_>>(), std::slice::from_ref(&key));
    let settlement = Settlement::Completed { resources: vec![] };
    office.settle(key.clone(), 1, settlement.clone()).await.unwrap();
    assert_eq!(office.running(vec!["two".into()]).await, Ok(vec![]));
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    office.delivered(chat.clone(), ids(&["1"])).await.unwrap();
    assert_eq!(office.undelivered(chat.clone(), ids(&["1", "2"])).await, Ok(ids(&["2"])));
    office.forget_delivered(ids(&["1"])).await.unwrap();
    assert_eq!(office.undelivered(chat, ids(&["1"])).await, Ok(ids(&["1"])));
    // The seat moved to a device that has not heard of it.
    stand.wires.attach(node(3), stand.wires.device(node(1)));
    stand.rosters.send_replace(Arc::new(Roster { broker: node(3), ..roster() }));
    let error = office.settle(key, 1, settlement).await.unwrap_err();
    assert!(error.to_string().contains("repeat"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn f13_each_office_gathers_anew_and_does_not_wait_for_a_former_broker_that_is_silent() {
    let (wires, rosters) = (Wires::new(), watch::channel(Arc::new(roster())).1);
    let (standings, stood) = watch::channel(Arc::new(standing(1, Some(2), None)));
    let one = Device::seated(&wires, node(1), rosters.clone(), stood);
    let connected = watch::channel(Arc::new(BTreeSet::from([node(2), node(3)]))).1;
    let local = Arc::new(Only(Scripted::new(), info("own", 5)));
    let fleet = Fleet::new(one.roll.clone(), local, one.line.clone(), one.seat.clone(), connected);
    let following = fleet.clone();
    tokio::spawn(async move { following.follow(rosters).await });
    tokio::task::yield_now().await;
    let announce = |number: u8, seq| {
        let sessions = vec![info("of", u64::from(number))];
        let announcement = Announcement { boot: [number; 16], seq, sessions, late: vec![], ext: Extensions::new() };
        one.roll.apply(node(number), one.roll.feed(), announcement);
    };
    // Two has died: its connection stands, and it answers nothing.
    standings.send_replace(Arc::new(standing(1, Some(1), Some(4))));
    assert!(!fleet.has_gathered());
    let begun = Instant::now();
    let waiting = tokio::spawn({
        let fleet = fleet.clone();
        async move { fleet.gathered().await }
    });
    tokio::time::advance(Duration::from_millis(300)).await;
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "three may announce any moment");
    announce(3, 1);
    waiting.await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(400) && fleet.has_gathered(), "{:?}", begun.elapsed());
    // Another office, in which three has not announced.
    one.roll.gone(&node(3), u64::MAX - 1);
    standings.send_replace(Arc::new(standing(1, Some(1), Some(6))));
    let begun = Instant::now();
    fleet.gathered().await;
    assert_eq!(begun.elapsed().as_secs(), 1, "no longer than a second");
    assert!(fleet.has_gathered());
}

#[tokio::test(start_paused = true)]
async fn f13_a_member_announces_to_each_new_holder_at_once() {
    let (wires, rosters) = (Wires::new(), watch::channel(Arc::new(roster())).1);
    let (standings, stood) = watch::channel(Arc::new(standing(2, Some(1), None)));
    let two = Device::seated(&wires, node(2), rosters.clone(), stood);
    let brokers = [1, 3].map(|number| {
        let stood = watch::channel(Arc::new(standing(number, Some(number), Some(5)))).1;
        let device = Device::seated(&wires, node(number), rosters.clone(), stood);
        device.serve(&wires, Scripted::new(), Arc::new(NoDoors));
        device
    });
    let connected = watch::channel(Arc::new(BTreeSet::from([node(1), node(3)]))).1;
    let follow = Arc::new(Deaf);
    let source = Source::new(vec![info("two", 1)]);
    tokio::spawn(Announcer::new(two.seat.clone(), two.line.clone(), connected, source, follow, [2; 16]).run());
    let heard = |broker: &Device| broker.roll.holder(&"two".into()) == Some(node(2));
    let [one, three] = &brokers;
    one.roll.version.subscribe().wait_for(|_| heard(one)).await.unwrap();
    wires.hang(node(1));
    standings.send_replace(Arc::new(standing(2, Some(3), None)));
    let begun = Instant::now();
    three.roll.version.subscribe().wait_for(|_| heard(three)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
}

/// Follows nobody.
struct Deaf;

impl Follow for Deaf {
    fn news(&self, _: NodeId, _: Roster, _: Vec<(NodeId, Vec<SocketAddr>)>) {}
}

#[tokio::test]
async fn f9_a_report_goes_to_the_new_holder_when_the_seat_moves_under_it() {
    let (wires, rosters) = (Wires::new(), watch::channel(Arc::new(roster())).1);
    let (standings, stood) = watch::channel(Arc::new(standing(2, Some(1), None)));
    let two = Device::seated(&wires, node(2), rosters.clone(), stood);
    let (chosen, chosen_stood) = watch::channel(Arc::new(standing(3, Some(3), None)));
    let three = Device::seated(&wires, node(3), rosters, chosen_stood);
    three.serve(&wires, Scripted::new(), Arc::new(NoDoors));
    wires.hang(node(1));
    let Device { seat, broker, roll, line, .. } = &two;
    let office = FleetOffice::new(seat.clone(), broker.clone(), roll.clone(), line.clone());
    let chat = Conversation::Chat("c".into());
    let saying = tokio::spawn({
        let chat = chat.clone();
        async move { office.delivered(chat, vec!["1".into()]).await }
    });
    tokio::task::yield_now().await;
    standings.send_replace(Arc::new(standing(2, None, None)));
    tokio::task::yield_now().await;
    standings.send_replace(Arc::new(standing(2, Some(3), None)));
    tokio::task::yield_now().await;
    assert!(!saying.is_finished(), "three was chosen, and has no office yet");
    chosen.send_replace(Arc::new(standing(3, Some(3), Some(8))));
    timeout(Duration::from_secs(60), saying).await.unwrap().unwrap().unwrap();
    assert_eq!(three.broker.undelivered(&chat, &["1".to_owned()]), Vec::<String>::new());
}
