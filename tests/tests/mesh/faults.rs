//! A device that dies, hangs or comes back in the middle of work: the caller gets the true outcome or a clear error in the
//! stated time, and nothing runs twice. A ledger outside the product counts what ran. Where the broker is the one that dies
//! or hangs, the others have no vote here: what happens when they have one is told in `tests/election`.

use std::time::{Duration, Instant};

use chappie_tests::{
    Answer, Client, Node,
    answer::excerpt,
    client::CallError,
    eventually,
    ledger::Ledger,
    mesh::{Trio, list_each_other, lists},
    process,
    riding::{late_once, nothing_again},
    wait::within,
};
use serde_json::json;

/// What the mesh promises for a device that does not answer: 5 s (failure rule F23).
const STATED: Duration = Duration::from_secs(5);
/// What a test machine with more work than processors may add.
const SLACK: Duration = Duration::from_secs(3);

fn ledger(trio: &Trio) -> Ledger {
    Ledger::at(&trio.station.folder().join("ledger"))
}

/// A shell command that notes its begin and end, and ends when the file `go` is there.
fn held(ledger: &Ledger) -> String {
    format!(
        "{}; while [ ! -e go ]; do sleep 0.05; done; {}; echo DONE-$((6 * 7))",
        ledger.append("begin"),
        ledger.append("end")
    )
}

fn release(trio: &Trio) {
    trio.station.world.put(&trio.station.folder().join("go"), "");
}

async fn begun(ledger: &Ledger) {
    eventually("the command", async || (ledger.count("begin") == 1).then_some(())).await;
}

/// An answer in time that is no success and names what is missing: the device, or its session.
fn clear_error(answer: &Answer, start: Instant, what: &str) {
    let took = start.elapsed();
    println!("answered after {took:?}: {}", excerpt(&answer.text()));
    assert!(took < STATED + SLACK, "{took:?}");
    assert!(answer.is_error, "{}", excerpt(&answer.text()));
    assert!(answer.text().contains(what), "it names {what}: {}", excerpt(&answer.text()));
}

#[tokio::test]
async fn a_call_to_a_session_node_that_is_killed_ends_with_a_reason_and_is_never_repeated() {
    let mut trio = Trio::new().await;
    let (chat, ledger) = (trio.chat("v1/killed").await, ledger(&trio));
    let call = chat.begin("bash", json!({"command": held(&ledger), "operationId": "op-1"}));
    begun(&ledger).await;
    let start = Instant::now();
    trio.station.kill();
    clear_error(&call.answer().await, start, "station");
    trio.station.start_again().await;
    list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
    release(&trio);
    // F3, F9: the journal knows that it was interrupted; the receipt says so and nothing runs again.
    let arguments = json!({"command": held(&ledger), "operationId": "op-1"});
    within(Duration::from_secs(20), "an uncertain receipt", async || {
        let replay = chat.call("bash", arguments.clone()).await;
        let status = if replay.is_error { json!(null) } else { replay.header()["replay"]["status"].clone() };
        (status == "uncertain").then_some(())
    })
    .await;
    assert_eq!(ledger.count("begin"), 1, "{:?}", ledger.counts());
    assert!(chat.call("bash", json!({"command": "echo works"})).await.ok().output().contains("works"));
}

#[tokio::test]
async fn f23_a_paused_session_node_is_reported_in_time_and_its_outcome_arrives_once_when_it_is_back() {
    let trio = Trio::new().await;
    let (chat, ledger) = (trio.chat("v1/paused").await, ledger(&trio));
    let call = chat.begin("bash", json!({"command": held(&ledger)}));
    begun(&ledger).await;
    let (start, paused) = (Instant::now(), Instant::now());
    trio.station.pause();
    clear_error(&call.answer().await, start, "station");
    // A new call meanwhile fails in time, too.
    let start = Instant::now();
    let second = chat.call("bash", json!({"command": ledger.append("second")})).await;
    clear_error(&second, start, &trio.session);
    while paused.elapsed() < Duration::from_secs(20) {
        assert!(chat.call("sessions", json!({})).await.ok().late_results().is_empty());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    trio.station.resume();
    lists(&trio.door, &["broker", "station"]).await;
    release(&trio);
    late_once(&chat, "DONE-42").await;
    assert_eq!((ledger.count("begin"), ledger.count("end")), (1, 1), "{:?}", ledger.counts());
    assert!(ledger.count("second") <= 1, "{:?}", ledger.counts());
}

#[tokio::test]
async fn f23_a_paused_broker_is_reported_in_time_and_the_outcome_arrives_once_when_it_is_back() {
    let trio = Trio::with_one_voter().await;
    let (chat, ledger) = (trio.chat("v1/paused").await, ledger(&trio));
    let call = chat.begin("bash", json!({"command": held(&ledger)}));
    begun(&ledger).await;
    let (start, paused) = (Instant::now(), Instant::now());
    trio.broker.pause();
    clear_error(&call.answer().await, start, "broker");
    release(&trio);
    while paused.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    trio.broker.resume();
    trio.door.connected_with(trio.broker.id()).await;
    lists(&trio.door, &["broker", "station"]).await;
    late_once(&chat, "DONE-42").await;
    assert_eq!((ledger.count("begin"), ledger.count("end")), (1, 1), "{:?}", ledger.counts());
}

#[tokio::test]
async fn a_paused_door_answers_when_it_is_back_or_the_outcome_comes_late_and_once() {
    let trio = Trio::new().await;
    let (chat, ledger) = (trio.chat("v1/paused").await, ledger(&trio));
    let call = chat.begin("bash", json!({"command": held(&ledger)}));
    begun(&ledger).await;
    let paused = Instant::now();
    trio.door.pause();
    release(&trio);
    eventually("the end", async || (ledger.count("end") == 1).then_some(())).await;
    while paused.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    trio.door.resume();
    let answer = call.answer().await;
    trio.door.connected_with(trio.broker.id()).await;
    if answer.text().contains("DONE-42") {
        nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
    } else {
        late_once(&chat, "DONE-42").await;
    }
    assert_eq!((ledger.count("begin"), ledger.count("end")), (1, 1), "{:?}", ledger.counts());
}

#[tokio::test]
async fn the_outcome_of_a_call_whose_door_was_killed_comes_through_another_door_once() {
    let mut trio = Trio::new().await;
    let (chat, ledger) = (trio.chat("v1/doorless").await, ledger(&trio));
    let call = chat.begin("bash", json!({"command": held(&ledger)}));
    begun(&ledger).await;
    trio.door.kill();
    assert!(matches!(call.try_answer().await, Err(CallError::Wire(_))), "the client sees its connection end");
    release(&trio);
    eventually("the end", async || (ledger.count("end") == 1).then_some(())).await;
    late_once(&trio.broker.chat("v1/doorless"), "DONE-42").await;
    assert_eq!((ledger.count("begin"), ledger.count("end")), (1, 1), "{:?}", ledger.counts());
}

#[tokio::test]
async fn a_killed_broker_ends_calls_in_time_and_after_its_restart_bindings_and_outcomes_are_there() {
    let mut trio = Trio::with_one_voter().await;
    let (chat, ledger) = (trio.chat("v1/brokerless").await, ledger(&trio));
    let address = trio.broker.quic().to_owned();
    let call = chat.begin("bash", json!({"command": held(&ledger)}));
    begun(&ledger).await;
    let start = Instant::now();
    trio.broker.kill();
    let answer = call.answer().await;
    clear_error(&answer, start, "broker");
    // Without the broker a door says who is missing.
    let start = Instant::now();
    clear_error(&chat.call("bash", json!({"command": "true"})).await, start, "broker");
    release(&trio);
    trio.broker.change(|setup| setup.argument("--listen").argument(&address));
    trio.broker.start_again().await;
    list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
    late_once(&chat, "DONE-42").await;
    assert_eq!((ledger.count("begin"), ledger.count("end")), (1, 1), "{:?}", ledger.counts());
    let pwd = chat.call("bash", json!({"command": "pwd"})).await.ok();
    assert!(pwd.output().contains("/station"), "the binding is kept: {}", pwd.output());
}

#[tokio::test]
async fn a_session_node_that_stops_in_order_keeps_its_outcomes_and_comes_back_by_itself() {
    let mut trio = Trio::with(|setup| setup.call_budget(1)).await;
    let (chat, ledger) = (trio.chat("v1/ordered").await, ledger(&trio));
    release(&trio);
    let command = format!("sleep 2; {}", held(&ledger));
    chat.call("bash", json!({"command": command})).await.ok();
    eventually("the end", async || (ledger.count("end") == 1).then_some(())).await;
    trio.station.stop().await;
    lists(&trio.door, &["broker"]).await;
    let start = Instant::now();
    trio.station.start_again().await;
    lists(&trio.door, &["broker", "station"]).await;
    println!("listed again {:?} after the start began", start.elapsed());
    late_once(&chat, "DONE-42").await;
    assert_eq!(ledger.count("begin"), 1);
    assert!(trio.broker.log().to_lowercase().contains("stopp"), "the log says why it left: {}", trio.broker.log());
}

#[tokio::test]
async fn f4_a_cancellation_reaches_a_session_node_that_was_paused_meanwhile() {
    let trio = Trio::new().await;
    let (chat, ledger) = (trio.door.client().await.chat("v1/cancel"), ledger(&trio));
    let command = format!("{}; sleep 347", ledger.append("begin"));
    let call = chat.begin("bash", json!({"command": command, "sessionId": trio.session}));
    begun(&ledger).await;
    trio.station.pause();
    call.cancel().await;
    let paused = Instant::now();
    while paused.elapsed() < Duration::from_secs(8) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    trio.station.resume();
    let gone = async || process::running(trio.station.world.mark(), "sleep 347").is_empty().then_some(());
    within(Duration::from_secs(40), "the command's end", gone).await;
    assert_eq!(ledger.count("begin"), 1);
}

/// Kills the session node again and again while calls with receipts go on: no operation runs twice, and every receipt
/// tells what happened.
#[tokio::test]
async fn a_session_node_killed_at_any_moment_runs_nothing_twice() {
    let mut trio = Trio::new().await;
    let (chat, ledger) = (trio.chat("v1/storm").await, ledger(&trio));
    let mut random = chappie_tests::random::Random::from_environment(0x3e5);
    for round in 0..12 {
        let mark = format!("m{round}");
        let arguments = json!({"command": ledger.append(&mark), "operationId": mark});
        let call = chat.begin("bash", arguments.clone());
        random.moment(60).await;
        trio.station.kill();
        let first = call.answer().await;
        trio.station.start_again().await;
        list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
        let settled = settled(&chat, &arguments).await;
        let ran = ledger.count(&mark);
        assert!(ran <= 1, "{mark} ran {ran} times");
        if !first.is_error || settled == "completed" {
            assert_eq!(ran, 1, "{mark}: said to be done ({settled}), and never ran: {}", excerpt(&first.text()));
        }
    }
}

/// What the same operation says once more: the status of its receipt, or `completed` when it had never run and ran now.
async fn settled(chat: &Client, arguments: &serde_json::Value) -> String {
    within(Duration::from_secs(30), "an answer about an operation", async || {
        let answer = chat.call("bash", arguments.clone()).await;
        if answer.is_error {
            return None;
        }
        let replay = answer.header()["replay"]["status"].as_str().map(str::to_owned);
        replay.or_else(|| Some("completed".to_owned())).filter(|status| status != "running")
    })
    .await
}

/// The whole mesh is killed at once and started again: it is one mesh again, with its bindings.
#[tokio::test]
async fn a_mesh_that_lost_power_is_one_mesh_again() {
    let mut trio = Trio::new().await;
    trio.chat("v1/power").await;
    let address = trio.broker.quic().to_owned();
    trio.broker.change(|setup| setup.argument("--listen").argument(&address));
    for node in [&mut trio.station, &mut trio.door, &mut trio.broker] {
        node.kill();
    }
    // The broker last: the others find it when it is there.
    tokio::join!(trio.station.start_again(), trio.door.start_again());
    trio.broker.start_again().await;
    let nodes: [&Node; 3] = [&trio.broker, &trio.door, &trio.station];
    list_each_other(&nodes).await;
    let pwd = trio.door.chat("v1/power").call("bash", json!({"command": "pwd"})).await.ok();
    assert!(pwd.output().contains("/station"), "{}", pwd.output());
}
