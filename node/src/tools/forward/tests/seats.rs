//! The broker's seat moves while a call is on its way: in each phase, between devices and to and from the door's own. One
//! execution, one answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use chappie_mesh::{
    StreamKind,
    consensus::{Follower, Standing},
};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{super::Forwarding, BUDGET, Doors, Stand as Requests, spec, words};
use crate::{
    broker::ProposeError,
    content::{JsonObject, Part},
    fleet::{
        Parcel, Ran, SessionNode,
        directory::Fleet,
        testing::{Device, Only, Scripted, Wires, dispatch, info, node, roster, standing, text},
    },
    host::BoxFuture,
    ids::Conversation,
    tools::{
        compose::refusal,
        surface::{
            Answer, Assigned, Caller, Request, ResourceError, ResourceRead, Surface, Ticket, ToolSpec, UnknownTool,
        },
        toolbox::{ACTS, READS, not_taken},
    },
};

/// The door's device.
const DOOR: u8 = 3;

/// Where a call is at its broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No session was selected.
    Selecting,
    /// The door knows where it goes; nothing was dispatched.
    Assigned,
    /// The session's node has it.
    Running,
    /// It has ended, and its answer is being composed.
    Composing,
}

const PHASES: [Phase; 4] = [Phase::Selecting, Phase::Assigned, Phase::Running, Phase::Composing];

/// What all devices' tools share.
struct Shared {
    host: Arc<Scripted>,
    log: Mutex<Vec<String>>,
    version: watch::Sender<u64>,
    /// Who stops where.
    held: watch::Sender<Option<(u8, Phase)>>,
    /// How many sendings more find that their device has no office.
    doubts: AtomicU32,
}

impl Shared {
    fn note(&self, line: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        self.version.send_modify(|version| *version += 1);
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many lines begin so.
    fn count(&self, start: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(start)).count()
    }

    async fn saw(&self, start: &str) {
        self.version.subscribe().wait_for(|_| self.count(start) > 0).await.unwrap();
    }
}

/// One device's tools: they run `bash` at the scripted host, in the device's office.
struct Tools {
    device: u8,
    shared: Arc<Shared>,
    standings: watch::Receiver<Arc<Standing>>,
    specs: Vec<ToolSpec>,
}

impl Tools {
    async fn reach(&self, phase: Phase) {
        self.shared.note(format!("{} {phase:?}", self.device));
        let mut held = self.shared.held.subscribe();
        let _ = held.wait_for(|held| *held != Some((self.device, phase))).await;
    }

    async fn run(self: Arc<Self>, request: Request) -> Answer {
        self.reach(Phase::Selecting).await;
        if self.shared.doubts.fetch_update(Relaxed, Relaxed, |doubts| doubts.checked_sub(1)).is_ok() {
            return not_taken(&request, &ProposeError::NotBroker, ProposeError::NotBroker.to_string());
        }
        let session = request.pin().cloned().unwrap_or_else(|| "s".into());
        let assigned = Assigned { session, device: "two".into(), explicit: false };
        if !request.assign(assigned).await {
            return refusal("the door is gone");
        }
        self.reach(Phase::Assigned).await;
        let call_id = request.call_id();
        let mut dispatch = dispatch(call_id.as_str(), "bash");
        // A broker that stood still still believes what it last saw.
        dispatch.tenure.term = self.standings.borrow().office.map_or(0, |office| office.term);
        dispatch.resent = request.pin().is_some();
        let mut run = SessionNode::run(Arc::clone(&self.shared.host), dispatch);
        self.shared.note(format!("{} {:?}", self.device, Phase::Running));
        let ran = tokio::select! {
            biased;
            () = request.cancelled.cancelled() => {
                run.cancel("cancelled".into()).await;
                return refusal("cancelled at the broker");
            }
            ran = tokio::time::timeout(request.budget(BUDGET), run.done()) => ran,
        };
        let Ok(ran) = ran else {
            let (words, structured) = ("running".to_owned(), JsonObject::new());
            return Answer { content: vec![Part::Text(words)], structured, is_error: false, ticket: Ticket::default() };
        };
        let parcel: Parcel = match ran {
            Ran::Finished(parcel) => parcel,
            Ran::Fenced(cause) => {
                request.again(&cause);
                return refusal(cause);
            }
            other => return refusal(format!("{other:?}")),
        };
        self.reach(Phase::Composing).await;
        let ticket = Ticket::knowing(move |written| match written {
            Some(written) => run.settle(written),
            None => drop(run),
        });
        let Some(Part::Text(words)) = parcel.content.into_iter().next() else { panic!("no words") };
        let structured = json!({"text": words.clone()}).as_object().unwrap().clone();
        Answer { content: vec![Part::Text(words)], structured, is_error: false, ticket }
    }
}

impl Surface for Tools {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    fn instructions(&self) -> &str {
        ""
    }

    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        Box::pin(async move { Ok(self.run(request).await) })
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.shared.note(format!("{} disconnected {}", self.device, conversation.key()));
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        Vec::new()
    }

    fn read_resource(self: Arc<Self>, _: String, _: Caller) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        let mime = format!("of {}", self.device);
        Box::pin(std::future::ready(Ok(ResourceRead { mime, bytes: Vec::new() })))
    }
}

/// Three devices that vote; device three has the door.
struct Stand {
    wires: Arc<Wires>,
    shared: Arc<Shared>,
    standings: BTreeMap<u8, watch::Sender<Arc<Standing>>>,
    door: Arc<Forwarding>,
    term: Mutex<u64>,
    devices: Vec<Device>,
}

impl Stand {
    /// The broker is device `holder`.
    fn new(holder: u8) -> Self {
        let (wires, host) = (Wires::new(), Scripted::new());
        let (version, held) = (watch::Sender::new(0), watch::Sender::new(None));
        let shared =
            Arc::new(Shared { host: host.clone(), log: Mutex::default(), version, held, doubts: AtomicU32::new(0) });
        let rosters = watch::channel(Arc::new(roster())).1;
        let connected = watch::channel(Arc::new(BTreeSet::from([1, 2, 3].map(node)))).1;
        let (mut standings, mut devices, mut doors) = (BTreeMap::new(), Vec::new(), Vec::new());
        for number in 1..=3 {
            let (seen, stood) = watch::channel(Arc::new(standing(number, None, None)));
            let device = Device::seated(&wires, node(number), rosters.clone(), stood.clone());
            let specs = vec![spec("bash", ACTS), spec("history", READS)];
            let tools = Arc::new(Tools { device: number, shared: shared.clone(), standings: stood, specs });
            let (broker, line, seat) = (device.broker.clone(), device.line.clone(), device.seat.clone());
            let local = Arc::new(Only(host.clone(), info("s", 1)));
            let nobody = watch::channel(Arc::default()).1;
            let connected = if number == DOOR { connected.clone() } else { nobody };
            let fleet = Fleet::new(device.roll.clone(), local, line.clone(), seat.clone(), connected);
            device.roll.own(vec![info("s", 1)]);
            // Nobody announces here: nobody is waited for.
            let fleet_of_none = Fleet::new(
                device.roll.clone(),
                Arc::new(Only(host.clone(), info("s", 1))),
                line.clone(),
                seat.clone(),
                watch::channel(Arc::default()).1,
            );
            let serving = Doors::new(tools.clone(), fleet_of_none, broker.clone(), seat.clone(), line.clone());
            device.serve(&wires, host.clone(), Arc::new(serving));
            doors.push(Forwarding::new(seat, tools, fleet, broker, line, BUDGET));
            standings.insert(number, seen);
            devices.push(device);
        }
        let door = doors.pop().unwrap();
        let stand = Self { wires, shared, standings, door, term: Mutex::new(0), devices };
        stand.seat(Some(holder), &[1, 2, 3]);
        stand
    }

    /// `holder` takes the seat in a new term, as `who` see it.
    fn seat(&self, holder: Option<u8>, who: &[u8]) {
        let mut term = self.term.lock().unwrap();
        *term += 1;
        for number in who {
            let office = (holder == Some(*number)).then_some(*term);
            self.standings[number].send_replace(Arc::new(standing(*number, holder, office)));
        }
    }

    fn hold(&self, holder: u8, phase: Phase) {
        self.shared.held.send_replace(Some((holder, phase)));
    }

    /// A call and what cancels it.
    fn begin(&self) -> (JoinHandle<Answer>, CancellationToken) {
        let request = Requests::request("bash", "c", JsonObject::new());
        let (door, cancelled) = (Arc::clone(&self.door), request.cancelled.clone());
        (tokio::spawn(async move { door.call(request).await.unwrap() }), cancelled)
    }

    /// The operation that the host has, once it has one.
    async fn executed(&self) -> String {
        self.shared.saw_any_run().await;
        let log = self.shared.host.log();
        let ran: Vec<&str> = log.iter().filter_map(|line| line.strip_prefix("executed ")).collect();
        assert_eq!(ran.len(), 1, "{log:?}");
        ran[0].to_owned()
    }

    /// The end of every story: one execution, one answer with its outcome, one word on it.
    async fn ends_well(&self, calling: JoinHandle<Answer>) {
        let call_id = self.executed().await;
        self.shared.host.end(&call_id, Ran::Finished(text("the outcome")));
        let answer = calling.await.unwrap();
        assert_eq!(words(&answer), "the outcome", "{:?}", self.shared.log());
        assert!(!answer.is_error);
        answer.ticket.written();
        self.shared.host.saw(&format!("run {call_id} settled true")).await;
        self.executed().await;
    }
}

impl Shared {
    async fn saw_any_run(&self) {
        let mut version = self.version.subscribe();
        let ran = |_: &u64| self.host.log().iter().any(|line| line.starts_with("executed "));
        version.wait_for(ran).await.unwrap();
    }
}

/// The seat moves from one device to another while the call is in `phase`. A former broker elsewhere stands still, so that
/// nobody is told anything but by the seat.
async fn moves(from: u8, to: u8, phase: Phase) {
    let stand = Stand::new(from);
    if phase != Phase::Running {
        stand.hold(from, phase);
    }
    let (calling, _) = stand.begin();
    if phase == Phase::Composing {
        let call_id = stand.executed().await;
        stand.shared.host.end(&call_id, Ran::Finished(text("the outcome")));
    }
    stand.shared.saw(&format!("{from} {phase:?}")).await;
    // The door has heard what it was told.
    tokio::task::yield_now().await;
    if from == DOOR {
        stand.seat(Some(to), &[1, 2, 3]);
    } else {
        stand.wires.hang(node(from));
        let others: Vec<u8> = [1, 2, 3].into_iter().filter(|number| *number != from).collect();
        stand.seat(Some(to), &others);
    }
    stand.shared.saw(&format!("{to} Selecting")).await;
    stand.ends_well(calling).await;
    if from != DOOR {
        // It goes on, in an office that is over, and then learns of it.
        stand.shared.held.send_replace(None);
        stand.wires.wake(node(from));
        tokio::task::yield_now().await;
        stand.seat(Some(to), &[from]);
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    stand.executed().await;
}

#[tokio::test(start_paused = true)]
async fn each_call_counts_at_the_broker_for_the_door_that_it_entered_at() {
    for holder in [1, DOOR] {
        let stand = Stand::new(holder);
        let (calling, _) = stand.begin();
        stand.ends_well(calling).await;
        let counted = stand.devices[usize::from(holder) - 1].broker.doors();
        assert_eq!(counted, [(node(DOOR), 1)].into(), "the broker is device {holder}");
    }
}

#[tokio::test(start_paused = true)]
async fn f6_the_seat_moves_between_other_devices_in_each_phase() {
    for phase in PHASES {
        moves(1, 2, phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f6_the_seat_moves_from_the_doors_device_in_each_phase() {
    for phase in PHASES {
        moves(DOOR, 1, phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f6_the_seat_moves_to_the_doors_device_in_each_phase() {
    for phase in PHASES {
        moves(2, DOOR, phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f1_a_call_whose_seat_moves_keeps_its_pin() {
    let stand = Stand::new(1);
    stand.hold(1, Phase::Assigned);
    let (calling, _) = stand.begin();
    stand.shared.saw("1 Assigned").await;
    for to in [2, DOOR, 2] {
        stand.hold(to, Phase::Assigned);
        stand.seat(Some(to), &[1, 2, 3]);
        stand.shared.saw(&format!("{to} Assigned")).await;
    }
    stand.shared.held.send_replace(None);
    stand.ends_well(calling).await;
    let runs = stand.shared.host.log().iter().filter(|line| line.contains("begun, resent true")).count();
    assert_eq!(runs, 1, "it was pinned, and dispatched once: {:?}", stand.shared.host.log());
}

#[tokio::test(start_paused = true)]
async fn f7_the_word_on_an_answer_goes_to_the_new_holder() {
    for to in [2, DOOR] {
        let stand = Stand::new(1);
        let (calling, _) = stand.begin();
        let call_id = stand.executed().await;
        stand.shared.host.end(&call_id, Ran::Finished(text("the outcome")));
        let answer = calling.await.unwrap();
        stand.wires.hang(node(1));
        answer.ticket.written();
        stand.seat(Some(to), &[2, 3]);
        stand.shared.host.saw(&format!("board {call_id} settled true")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f4_a_cancellation_reaches_the_new_holder() {
    for to in [2, DOOR] {
        let stand = Stand::new(1);
        let (calling, cancelled) = stand.begin();
        let call_id = stand.executed().await;
        stand.wires.hang(node(1));
        cancelled.cancel();
        let answer = calling.await.unwrap();
        assert!(words(&answer).contains("cancelled"), "{}", words(&answer));
        stand.seat(None, &[2, 3]);
        stand.seat(Some(to), &[2, 3]);
        stand.shared.host.saw(&format!("cancel {call_id} by asking: ChatGPT cancelled the request")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f11_a_fenced_order_is_sent_again_and_the_client_does_not_see_it() {
    let stand = Stand::new(1);
    // The session's node obeys device two already; one and the door have not heard of it.
    let mut earlier = dispatch("earlier", "bash");
    earlier.tenure.term = 9;
    drop(SessionNode::run(stand.shared.host.clone(), earlier));
    let log_before = stand.shared.host.log().len();
    let (calling, _) = stand.begin();
    while stand.shared.count("1 Running") < 2 {
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    assert!(!calling.is_finished());
    *stand.term.lock().unwrap() = 9;
    stand.seat(Some(2), &[1, 2, 3]);
    stand.shared.saw("2 Running").await;
    let log = stand.shared.host.log();
    let call_id = log[log_before..].iter().find_map(|line| line.strip_prefix("executed ")).unwrap().to_owned();
    stand.shared.host.end(&call_id, Ran::Finished(text("the outcome")));
    assert_eq!(words(&calling.await.unwrap()), "the outcome");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_was_chosen_and_has_no_office_yet_is_waited_for() {
    let stand = Stand::new(1);
    stand.seat(None, &[1, 2, 3]);
    // The door has heard of device two before that has its office.
    stand.standings[&2].send_replace(Arc::new(standing(2, Some(2), None)));
    stand.standings[&DOOR].send_replace(Arc::new(standing(DOOR, Some(2), None)));
    let (calling, _) = stand.begin();
    while stand.wires.opened(StreamKind::Door) == 0 {
        tokio::task::yield_now().await;
    }
    stand.seat(Some(2), &[1, 2, 3]);
    stand.shared.saw("2 Running").await;
    stand.ends_well(calling).await;
    assert_eq!(stand.wires.opened(StreamKind::Door), 1, "it was not turned away");
}

#[tokio::test(start_paused = true)]
async fn without_a_broker_the_client_hears_within_five_seconds_who_is_missing() {
    // At first, and while a call runs.
    for running in [false, true] {
        let stand = Stand::new(if running { 1 } else { DOOR });
        if !running {
            stand.seat(None, &[1, 2, 3]);
        }
        let (calling, _) = stand.begin();
        if running {
            stand.executed().await;
            tokio::time::advance(Duration::from_secs(20)).await;
            stand.wires.hang(node(1));
        }
        let begun = Instant::now();
        tokio::time::advance(Duration::from_millis(900)).await;
        let mut alone = standing(DOOR, Some(DOOR), None);
        for number in [1, 2] {
            alone.followers.insert(node(number), Follower { lag: 0, answered_ms: Some(60_000) });
        }
        stand.standings[&DOOR].send_replace(Arc::new(alone));
        let answer = calling.await.unwrap();
        let told = words(&answer);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert!(answer.is_error && told.contains("one, two") && told.contains("mesh recover"), "{told}");
        assert_eq!(told.contains("Nothing was done"), !running, "{told}");
        assert_eq!(told.contains("session s on device two"), running, "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_broker_that_comes_in_time() {
    let stand = Stand::new(DOOR);
    stand.seat(None, &[1, 2, 3]);
    let (calling, _) = stand.begin();
    tokio::time::advance(Duration::from_millis(1_500)).await;
    stand.seat(Some(1), &[1, 2, 3]);
    stand.ends_well(calling).await;
}

#[tokio::test(start_paused = true)]
async fn resources_and_ended_connections_follow_the_seat() {
    let stand = Stand::new(1);
    let read = || Arc::clone(&stand.door).read_resource("u".into(), Caller::default());
    assert_eq!(read().await.unwrap().mime, "of 1");
    stand.wires.hang(node(1));
    let reading = tokio::spawn(read());
    tokio::task::yield_now().await;
    stand.seat(Some(2), &[2, 3]);
    assert_eq!(reading.await.unwrap().unwrap().mime, "of 2");
    stand.seat(None, &[2, 3]);
    stand.door.disconnected(&Conversation::Connection("x".into()));
    tokio::time::advance(Duration::from_secs(3)).await;
    stand.seat(Some(DOOR), &[2, 3]);
    stand.shared.saw("3 disconnected conn:x").await;
    let gone = tokio::time::timeout(Duration::from_secs(1), pending::<()>()).await;
    assert!(gone.is_err() && stand.shared.count("2 disconnected") == 0);
}

#[tokio::test(start_paused = true)]
async fn f11_a_call_that_waited_long_and_then_met_a_lost_office_is_sent_again() {
    for holder in [DOOR, 1] {
        let stand = Stand::new(holder);
        stand.hold(holder, Phase::Selecting);
        let (calling, _) = stand.begin();
        stand.shared.saw(&format!("{holder} Selecting")).await;
        tokio::time::advance(Duration::from_secs(10)).await;
        stand.shared.doubts.store(3, Relaxed);
        stand.shared.held.send_replace(None);
        stand.ends_well(calling).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f11_the_client_never_hears_that_an_office_moved() {
    for holder in [DOOR, 1] {
        let stand = Stand::new(holder);
        stand.shared.doubts.store(u32::MAX, Relaxed);
        let begun = Instant::now();
        let (calling, _) = stand.begin();
        let answer = calling.await.unwrap();
        let told = words(&answer);
        assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
        assert!(
            answer.is_error && told.contains("Nothing was started") && !told.contains("is the broker now"),
            "{told}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn f5_at_the_budget_while_the_seat_moves_the_answer_is_running() {
    for to in [2, DOOR] {
        let stand = Stand::new(1);
        let (calling, _) = stand.begin();
        stand.executed().await;
        tokio::time::advance(BUDGET - Duration::from_millis(500)).await;
        stand.wires.hang(node(1));
        stand.seat(None, &[2, 3]);
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert!(!calling.is_finished());
        stand.seat(Some(to), &[2, 3]);
        let answer = calling.await.unwrap();
        assert!(!answer.is_error && words(&answer) == "running", "{}", words(&answer));
        stand.executed().await;
    }
}
