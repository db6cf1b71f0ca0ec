//! Calls of a door on another device: the answer, the pin, losses, cancellation, and the word on the answer.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chappie_mesh::{Roster, Stream, StreamKind};
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Doors, Forwarding,
    protocol::{Call, News, Order},
};
use crate::{
    content::{JsonObject, Part},
    fleet::{
        directory::Fleet,
        line::ASK_WAIT,
        protocol::CONTROL_MAX,
        testing::{Device, Only, Scripted, Wires, info, node, roster},
    },
    host::BoxFuture,
    ids::Conversation,
    tools::{
        compose::refusal,
        surface::{
            Annotations, Answer, Assigned, Caller, Request, ResourceError, ResourceRead, Surface, Ticket, ToolSpec,
            UnknownTool,
        },
        toolbox::{ACTS, READS},
    },
};

mod seats;

const BUDGET: Duration = Duration::from_secs(45);

fn spec(name: &'static str, annotations: Annotations) -> ToolSpec {
    let (input_schema, output_schema) = (json!({}), json!({}));
    ToolSpec { name, title: name, description: name.into(), input_schema, output_schema, annotations, meta: None }
}

/// Tools that answer when they are told to, and write down what happens.
struct Bench {
    specs: Vec<ToolSpec>,
    log: Mutex<Vec<String>>,
    version: watch::Sender<u64>,
    /// Where calls go that name no session.
    session: Mutex<&'static str>,
    open: watch::Sender<bool>,
    /// What each sending left of the budget.
    budgets: Mutex<Vec<Duration>>,
}

impl Bench {
    fn new(open: bool) -> Arc<Self> {
        let specs = vec![spec("bash", ACTS), spec("history", READS)];
        let (version, open) = (watch::Sender::new(0), watch::Sender::new(open));
        let (log, budgets) = (Mutex::default(), Mutex::default());
        Arc::new(Self { specs, log, version, session: Mutex::new("s"), open, budgets })
    }

    fn note(&self, line: String) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        self.version.send_modify(|version| *version += 1);
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, line: &str) -> usize {
        self.log().iter().filter(|noted| *noted == line).count()
    }

    async fn saw(&self, line: &str, times: usize) {
        self.version.subscribe().wait_for(|_| self.count(line) >= times).await.unwrap();
    }

    async fn run(self: Arc<Self>, request: Request) -> Answer {
        let sent = request.sent.as_ref().expect("it came from another device");
        self.note(format!("call {} to {:?}", request.tool, request.pin().map(|pin| pin.as_str().to_owned())));
        assert!(request.budget(BUDGET) <= BUDGET && !sent.call_id.as_str().is_empty());
        self.budgets.lock().unwrap().push(sent.budget);
        if request.tool == "bash" {
            let explicit = request.arguments.contains_key("sessionId");
            let session = request.pin().cloned().unwrap_or_else(|| (*self.session.lock().unwrap()).into());
            if !request.assign(Assigned { session, device: "two".into(), explicit }).await {
                return refusal("nothing was done");
            }
            self.note("dispatched".into());
        }
        let mut open = self.open.subscribe();
        let going = tokio::select! {
            biased;
            () = request.cancelled.cancelled() => "cancelled",
            _ = open.wait_for(|open| *open) => "done",
        };
        self.note(going.into());
        let (this, call_id) = (Arc::clone(&self), sent.call_id.clone());
        let ticket = Ticket::knowing(move |written| this.note(format!("ticket {written:?}")));
        let image = Part::Image { mime: "image/png".into(), base64: "AAAA".into() };
        let words = format!("{going} {} {}", request.arguments.len(), call_id.as_str().len());
        let structured = json!({"text": words.clone(), "z": 1, "a": 2}).as_object().unwrap().clone();
        Answer { content: vec![Part::Text(words), image], structured, is_error: false, ticket }
    }
}

impl Surface for Bench {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    fn instructions(&self) -> &str {
        "instructions"
    }

    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        Box::pin(async move { Ok(self.run(request).await) })
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.note(format!("disconnected {}", conversation.key()));
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        Vec::new()
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        let key = caller.conversation.map_or_else(String::new, |conversation| conversation.key());
        Box::pin(std::future::ready(match uri.as_str() {
            "there" => Ok(ResourceRead { mime: key, bytes: vec![1, 2, 3] }),
            "torn" => Err(ResourceError::Unreadable("torn".into())),
            _ => Err(ResourceError::NotFound("no such".into())),
        }))
    }
}

/// Device one is the broker; device three has the door.
struct Stand {
    wires: Arc<Wires>,
    bench: Arc<Bench>,
    door: Arc<Forwarding>,
    node: Arc<Scripted>,
    rosters: watch::Sender<Arc<Roster>>,
    _devices: [Device; 2],
}

impl Stand {
    fn new(open: bool) -> Self {
        let (wires, bench, scripted) = (Wires::new(), Bench::new(open), Scripted::new());
        let (rosters, watched) = watch::channel(Arc::new(roster()));
        let [one, three] = [1, 3].map(|byte| Device::new(&wires, node(byte), watched.clone()));
        let fleet = |device: &Device| {
            let local = Only(scripted.clone(), info("s", 1));
            let connected = watch::channel(Arc::default()).1;
            Fleet::new(device.roll.clone(), Arc::new(local), device.line.clone(), device.seat.clone(), connected)
        };
        let (broker, line) = (one.broker.clone(), one.line.clone());
        let doors = Doors::new(bench.clone(), fleet(&one), broker, one.seat.clone(), line);
        one.serve(&wires, scripted.clone(), Arc::new(doors));
        let (broker, line) = (three.broker.clone(), three.line.clone());
        let door = Forwarding::new(three.seat.clone(), Bench::new(true), fleet(&three), broker, line, BUDGET);
        Self { wires, bench, door, node: scripted, rosters, _devices: [one, three] }
    }

    fn request(tool: &str, chat: &str, arguments: JsonObject) -> Request {
        let conversation = Some(Conversation::Chat(chat.into()));
        let caller = Caller { conversation, ..Caller::default() };
        Request { tool: tool.into(), arguments, caller, cancelled: CancellationToken::new(), sent: None }
    }

    fn begin(&self, request: Request) -> JoinHandle<Answer> {
        let door = Arc::clone(&self.door);
        tokio::spawn(async move { door.call(request).await.unwrap() })
    }

    async fn call(&self, tool: &str, chat: &str) -> Answer {
        self.begin(Self::request(tool, chat, JsonObject::new())).await.unwrap()
    }
}

fn words(answer: &Answer) -> &str {
    match &answer.content[..] {
        [Part::Text(words), ..] => words,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_comes_back_whole_and_its_word_goes_back() {
    let stand = Stand::new(true);
    for written in [true, false] {
        let arguments = json!({"b": 1, "a": {"ü": [null, 2.5]}}).as_object().unwrap().clone();
        let answer = stand.begin(Stand::request("bash", "c", arguments)).await.unwrap();
        assert_eq!(words(&answer), "done 2 36");
        assert_eq!(serde_json::to_string(&answer.structured).unwrap(), r#"{"text":"done 2 36","z":1,"a":2}"#);
        assert!(!answer.is_error && matches!(&answer.content[1], Part::Image { base64, .. } if base64 == "AAAA"));
        if written {
            answer.ticket.written()
        } else {
            drop(answer.ticket)
        }
        stand.bench.saw(&format!("ticket {:?}", Some(written)), 1).await;
    }
    assert_eq!(stand.bench.log().iter().filter(|line| line.starts_with("ticket")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_nobody_knows_is_not_sent() {
    let stand = Stand::new(true);
    let request = Stand::request("nonsense", "c", JsonObject::new());
    assert!(Arc::clone(&stand.door).call(request).await.is_err());
    assert_eq!(stand.wires.opened(StreamKind::Door), 0);
}

#[tokio::test(start_paused = true)]
async fn f1_a_first_and_a_moved_target_are_agreed_on_before_the_dispatch() {
    let stand = Stand::new(false);
    stand.bench.open.send_replace(true);
    for (session, calls) in [("s", 2), ("t", 2)] {
        *stand.bench.session.lock().unwrap() = session;
        for _ in 0..calls {
            stand.call("bash", "c").await.ticket.written();
        }
    }
    assert_eq!(stand.bench.count("dispatched"), 4);
    assert_eq!(stand.bench.count("call bash to None"), 4, "no call was sent twice");
}

/// Sends a call to the broker by hand, and gives its stream and whether the broker waits for a word on where it goes.
async fn by_hand(stand: &Stand, call_id: &str, proposal: Option<&str>) -> (Stream, bool) {
    let caller = Caller { conversation: Some(Conversation::Chat("c".into())), ..Caller::default() };
    let call = Call::new(call_id.into(), "bash", &JsonObject::new(), &caller, BUDGET).unwrap();
    let call = Call { proposal: proposal.map(Into::into), ..call };
    let mut stream = stand.door.line.open(node(1), StreamKind::Door, ASK_WAIT).await.unwrap();
    stream.send.message(&Order::Call(Box::new(call))).await.unwrap();
    match stream.recv.message::<News>(CONTROL_MAX).await {
        Ok(Some(News::Assigned { session, wait, .. })) if session.as_str() == "s" => (stream, wait),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn f1_nothing_is_dispatched_before_the_door_knows_where_it_goes() {
    let stand = Stand::new(true);
    // No proposal, and one with which the broker does not agree.
    for (dispatched, proposal) in [None, Some("elsewhere")].into_iter().enumerate() {
        let (mut stream, waits) = by_hand(&stand, &format!("c{dispatched}"), proposal).await;
        assert!(waits);
        let quiet = timeout(Duration::from_secs(30), stream.recv.message::<News>(CONTROL_MAX)).await;
        assert!(quiet.is_err(), "{quiet:?}");
        assert_eq!(stand.bench.count("dispatched"), dispatched, "{:?}", stand.bench.log());
        stream.send.message(&Order::Ack).await.unwrap();
        stand.bench.saw("dispatched", dispatched + 1).await;
    }
    // A door that goes away without a word: it is never dispatched.
    let (stream, _) = by_hand(&stand, "gone", None).await;
    drop(stream);
    let never = timeout(Duration::from_secs(30), stand.bench.saw("dispatched", 3)).await;
    assert!(never.is_err(), "{:?}", stand.bench.log());
}

#[tokio::test(start_paused = true)]
async fn f1_a_proposal_that_the_broker_agrees_with_is_dispatched_at_once() {
    let stand = Stand::new(true);
    let (_stream, waits) = by_hand(&stand, "1", Some("s")).await;
    assert!(!waits);
    stand.bench.saw("dispatched", 1).await;
}

#[tokio::test(start_paused = true)]
async fn f5_a_call_that_is_sent_again_has_what_is_left_of_its_budget() {
    let stand = Stand::new(false);
    let calling = stand.begin(Stand::request("bash", "c", JsonObject::new()));
    stand.bench.saw("dispatched", 1).await;
    tokio::time::advance(Duration::from_secs(30)).await;
    stand.wires.cut();
    stand.bench.saw("dispatched", 2).await;
    let budgets = stand.bench.budgets.lock().unwrap().clone();
    let [first, again] = budgets[..] else { panic!("{budgets:?}") };
    assert!(first > BUDGET - Duration::from_secs(1) && again <= BUDGET - Duration::from_secs(30), "{budgets:?}");
    assert!(again > Duration::from_secs(10), "{budgets:?}");
    stand.bench.open.send_replace(true);
    assert!(!calling.await.unwrap().is_error);
}

#[tokio::test(start_paused = true)]
async fn f6_a_lost_call_is_sent_again_with_its_pin_and_answered_once() {
    let stand = Stand::new(false);
    let calling = stand.begin(Stand::request("bash", "c", JsonObject::new()));
    stand.bench.saw("dispatched", 1).await;
    *stand.bench.session.lock().unwrap() = "elsewhere";
    stand.wires.cut();
    stand.bench.saw("dispatched", 2).await;
    assert_eq!(stand.bench.count("call bash to Some(\"s\")"), 1, "{:?}", stand.bench.log());
    stand.bench.open.send_replace(true);
    let answer = calling.await.unwrap();
    assert_eq!(words(&answer), "done 0 36");
    answer.ticket.written();
    stand.bench.saw("ticket Some(true)", 1).await;
    assert_eq!(stand.bench.count("done"), 1, "the first sending was dropped");
}

#[tokio::test(start_paused = true)]
async fn f1_a_call_that_names_its_session_is_pinned_to_it_when_it_is_sent_again() {
    let stand = Stand::new(false);
    let arguments = json!({"sessionId": "x"}).as_object().unwrap().clone();
    let calling = stand.begin(Stand::request("bash", "c", arguments));
    for sendings in 1..=4 {
        stand.bench.saw("dispatched", sendings).await;
        stand.wires.cut();
    }
    stand.bench.saw("dispatched", 5).await;
    stand.bench.open.send_replace(true);
    assert!(!calling.await.unwrap().is_error);
    assert_eq!(stand.bench.count("call bash to Some(\"x\")"), 4, "{:?}", stand.bench.log());
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_stays_away_ends_the_call_with_what_is_known() {
    for (tool, word) in [("bash", "session s on device two"), ("history", "only reads")] {
        let stand = Stand::new(false);
        let calling = stand.begin(Stand::request(tool, "c", JsonObject::new()));
        stand.bench.saw(if tool == "bash" { "dispatched" } else { "call history to None" }, 1).await;
        let begun = Instant::now();
        stand.wires.down();
        let answer = calling.await.unwrap();
        assert!(answer.is_error && words(&answer).contains(word), "{}", words(&answer));
        assert!(begun.elapsed() <= Duration::from_secs(1), "four seconds of silence went before");
    }
    let stand = Stand::new(true);
    stand.wires.down();
    let begun = Instant::now();
    let answer = stand.call("bash", "c").await;
    assert!(answer.is_error && words(&answer).contains("Nothing was done"), "{}", words(&answer));
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn f4_the_clients_cancellation_goes_to_the_broker_and_a_loss_does_not() {
    let stand = Stand::new(false);
    let request = Stand::request("bash", "c", JsonObject::new());
    let cancelled = request.cancelled.clone();
    let calling = stand.begin(request);
    stand.bench.saw("dispatched", 1).await;
    cancelled.cancel();
    let answer = calling.await.unwrap();
    assert_eq!(words(&answer), "cancelled 0 36");
    answer.ticket.written();
    stand.bench.saw("ticket Some(true)", 1).await;

    let request = Stand::request("bash", "c", JsonObject::new());
    let cancelled = request.cancelled.clone();
    let calling = stand.begin(request);
    stand.bench.saw("dispatched", 2).await;
    stand.wires.down();
    tokio::task::yield_now().await;
    cancelled.cancel();
    assert!(words(&calling.await.unwrap()).contains("cancelled"));
    assert_eq!(stand.bench.count("cancelled"), 1, "the lost call was dropped, not cancelled");
    stand.wires.up();
    let id = |line: &String| line.starts_with("cancel ") && line.contains("ChatGPT");
    while !stand.node.log().iter().any(id) {
        tokio::time::advance(Duration::from_millis(500)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn f7_the_word_on_an_answer_arrives_though_its_stream_was_lost() {
    let stand = Stand::new(true);
    let answer = stand.call("bash", "c").await;
    stand.wires.cut();
    answer.ticket.written();
    stand.bench.saw("ticket Some(true)", 1).await;
    assert_eq!(stand.bench.log().iter().filter(|line| line.starts_with("ticket")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn f7_an_answer_whose_door_is_gone_lapses() {
    let stand = Stand::new(true);
    let answer = stand.call("bash", "c").await;
    stand.wires.down();
    stand.bench.saw("ticket None", 1).await;
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn resources_and_ended_connections_go_to_the_broker() {
    let stand = Stand::new(true);
    let caller = Caller { conversation: Some(Conversation::Chat("c".into())), ..Caller::default() };
    let read = |uri: &str| Arc::clone(&stand.door).read_resource(uri.into(), caller.clone());
    assert_eq!(read("there").await, Ok(ResourceRead { mime: "chat:c".into(), bytes: vec![1, 2, 3] }));
    assert_eq!(read("torn").await, Err(ResourceError::Unreadable("torn".into())));
    assert_eq!(read("gone").await, Err(ResourceError::NotFound("no such".into())));
    stand.door.disconnected(&Conversation::Connection("x".into()));
    stand.bench.saw("disconnected conn:x", 1).await;
    assert_eq!((stand.door.instructions(), stand.door.specs().len()), ("instructions", 2));
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_not_the_broker_refuses_calls_in_words() {
    let stand = Stand::new(true);
    // Device one learns of its successor before the door does.
    let behind = Stand::new(true);
    behind.rosters.send_replace(Arc::new(Roster { broker: node(2), ..roster() }));
    let incoming = behind.wires.device(node(1));
    stand.wires.attach(node(1), incoming);
    let begun = Instant::now();
    let answer = stand.call("bash", "c").await;
    assert!(answer.is_error && words(&answer).contains("is not the broker; it is two"), "{}", words(&answer));
    assert!(words(&answer).contains("Nothing was done; send"), "{}", words(&answer));
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(behind.bench.log().is_empty());
}
