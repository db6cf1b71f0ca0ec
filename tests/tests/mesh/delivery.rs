//! What a session's device owes to a conversation at another one - inputs, late results, outcomes of operations - arrives
//! once, whichever device was away in between (failure rules F7, F9; behaviour 17).

use std::time::{Duration, Instant};

use chappie_tests::{
    Revision,
    answer::excerpt,
    eventually,
    ledger::Ledger,
    mesh::{Trio, list_each_other, session_at},
    riding::{late_once, nothing_again, typed},
    stdio::Stdio,
    wait::within,
};
use serde_json::json;

fn ledger(trio: &Trio) -> Ledger {
    Ledger::at(&trio.station.folder().join("ledger"))
}

/// Restarts the broker where it was.
async fn restart_broker(trio: &mut Trio) {
    let address = trio.broker.quic().to_owned();
    trio.broker.change(|setup| setup.argument("--listen").argument(&address));
    trio.broker.kill();
    trio.broker.start_again().await;
    list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
}

#[tokio::test]
async fn f7_an_answer_that_was_not_written_consumes_nothing_of_another_device() {
    let trio = Trio::new().await;
    let chat = trio.door.client().await.chat("v1/unwritten");
    chat.call("init", json!({"sessionId": trio.session})).await.ok();
    let call =
        chat.begin("bash", json!({"command": "touch begun; while [ ! -e go ]; do sleep 0.05; done; touch done"}));
    let (begun, done) = (trio.station.folder().join("begun"), trio.station.folder().join("done"));
    eventually("the command", async || begun.exists().then_some(())).await;
    trio.station.say(&trio.session, "must not be lost");
    call.cut();
    trio.station.world.put(&trio.station.folder().join("go"), "");
    eventually("the command's end", async || done.exists().then_some(())).await;
    let mut arrived = Vec::new();
    eventually("the input", async || {
        arrived.extend(typed(&chat.call("bash", json!({"command": "true"})).await.ok()));
        (!arrived.is_empty()).then_some(())
    })
    .await;
    assert_eq!(arrived, ["must not be lost"]);
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
}

#[tokio::test]
async fn f7_two_answers_through_two_doors_never_bring_the_same_input() {
    let trio = Trio::new().await;
    trio.chat("v1/both").await;
    for round in 0..5 {
        trio.station.say(&trio.session, &format!("round {round}"));
        let doors = [&trio.door, &trio.broker, &trio.station];
        let calls = doors.map(|door| door.chat("v1/both").begin("tools", json!({"names": ["ls"]})));
        let mut arrived = Vec::new();
        for call in calls {
            arrived.extend(typed(&call.answer().await.ok()));
        }
        assert_eq!(arrived, [format!("round {round}")]);
    }
}

#[tokio::test]
async fn f9_an_outcome_that_the_broker_missed_is_reported_when_it_is_back() {
    let mut trio = Trio::with_one_voter().await;
    let (chat, ledger) = (trio.chat("v1/missed").await, ledger(&trio));
    let wait = "while [ ! -e go ]; do sleep 0.05; done";
    let command = format!("{}; {wait}; {}", ledger.append("begin"), ledger.append("end"));
    let arguments = json!({"command": command, "operationId": "op-1"});
    let call = chat.begin("bash", arguments.clone());
    eventually("the command", async || (ledger.count("begin") == 1).then_some(())).await;
    let address = trio.broker.quic().to_owned();
    trio.broker.kill();
    call.answer().await;
    trio.station.world.put(&trio.station.folder().join("go"), "");
    eventually("its end", async || (ledger.count("end") == 1).then_some(())).await;
    trio.broker.change(|setup| setup.argument("--listen").argument(&address));
    trio.broker.start_again().await;
    list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
    within(Duration::from_secs(20), "a completed receipt", async || {
        let replay = chat.call("bash", arguments.clone()).await;
        (!replay.is_error && replay.header()["replay"]["status"] == "completed").then_some(())
    })
    .await;
    assert_eq!((ledger.count("begin"), ledger.count("end")), (1, 1));
}

#[tokio::test]
async fn receipts_and_bindings_survive_a_restart_of_the_broker() {
    let mut trio = Trio::with_one_voter().await;
    let (chat, ledger) = (trio.chat("v1/kept").await, ledger(&trio));
    let arguments = json!({"command": ledger.append("ran"), "operationId": "op-1"});
    chat.call("bash", arguments.clone()).await.ok();
    restart_broker(&mut trio).await;
    let replay = chat.call("bash", arguments).await;
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    assert_eq!(ledger.count("ran"), 1);
    assert_eq!(chat.call("init", json!({})).await.ok().header()["selection"], "existing");
}

#[tokio::test]
async fn the_finished_members_of_a_cancelled_batch_arrive_after_a_restart_of_the_broker_once() {
    let mut trio = Trio::with_one_voter().await;
    let (chat, ledger) = (trio.door.client().await.chat("v1/batch"), ledger(&trio));
    chat.call("init", json!({"sessionId": trio.session})).await.ok();
    let calls = json!([
        {"name": "bash", "arguments": {"command": "echo FINISHED-$((8 + 9))"}},
        {"name": "bash", "arguments": {"command": format!("{}; sleep 70", ledger.append("two"))}},
        {"name": "bash", "arguments": {"command": ledger.append("three")}},
    ]);
    let call = chat.begin("call", json!({"calls": calls}));
    eventually("the second member", async || (ledger.count("two") == 1).then_some(())).await;
    call.cancel().await;
    let busy = |line: &str| line.contains("executing");
    within(Duration::from_secs(10), "an idle session", async || {
        (!busy(&trio.station.world.run_ok(&["sessions", "--json"]))).then_some(())
    })
    .await;
    restart_broker(&mut trio).await;
    late_once(&trio.door.chat("v1/batch"), "FINISHED-17").await;
    assert_eq!(ledger.count("three"), 0, "what had not started does not start");
}

#[tokio::test]
async fn a_late_result_after_a_switch_to_another_device_keeps_its_session_and_folder() {
    let trio = Trio::with(|setup| setup.call_budget(1).cooldown(0.0)).await;
    let (chat, ledger) = (trio.chat("v1/mover").await, ledger(&trio));
    let command = format!("pwd; sleep 3; echo MOVED-$((5 + 6)); {}", ledger.append("done"));
    chat.call("bash", json!({"command": command})).await.ok();
    let other = session_at(&trio.door, "broker").await;
    chat.call("init", json!({"sessionId": other})).await.ok();
    eventually("its end", async || (ledger.count("done") == 1).then_some(())).await;
    let mut late = Vec::new();
    eventually("the late result", async || {
        let answer = chat.call("bash", json!({"command": "pwd"})).await.ok();
        assert!(answer.output().contains("/broker"), "{}", answer.output());
        late.extend(answer.late_results());
        (!late.is_empty()).then_some(())
    })
    .await;
    assert_eq!(late.len(), 1);
    assert_eq!((&late[0].0["sessionId"], &late[0].0["cwd"]), (&json!(trio.session), &json!(trio.station.folder())));
    assert!(late[0].1[0].text.contains("/station") && late[0].1[0].text.contains("MOVED-11"));
}

#[tokio::test]
async fn a_program_that_starts_chappie_mcp_on_any_device_reaches_every_session() {
    let trio = Trio::new().await;
    let mut door = Stdio::start(&trio.door.world, Revision::Handshake).await.chat("v1/pipes");
    let answer = door.call("bash", json!({"command": "pwd", "sessionId": trio.session})).await.ok();
    assert!(answer.output().contains(&trio.station.folder().display().to_string()), "{}", answer.output());
    trio.station.say(&trio.session, "to the pipes");
    assert_eq!(typed(&door.call("bash", json!({"command": "true"})).await.ok()), ["to the pipes"]);
    assert!(door.stray_lines().is_empty());
}

#[tokio::test]
async fn f22_500_history_waits_from_another_device_leave_calls_quick() {
    let trio = Trio::new().await;
    let chat = trio.chat("v1/crowd").await;
    chat.call("bash", json!({"command": "echo first"})).await.ok();
    let page = chat.call("history", json!({"limit": 1})).await.ok();
    let last = page.sections()[0].head["id"].clone();
    let waits: Vec<_> = (0..500)
        .map(|number| {
            let waiter = trio.door.chat(&format!("v1/crowd-{number}"));
            let arguments = json!({"sessionId": trio.session, "after": last, "wait": true, "observer": true});
            waiter.begin("history", arguments)
        })
        .collect();
    for _ in 0..5 {
        let start = Instant::now();
        chat.call("tools", json!({"names": ["ls"]})).await.ok();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    trio.station.say(&trio.session, "wake up, all of you");
    for wait in waits {
        let page = wait.answer().await.ok();
        assert!(page.text().contains("wake up"), "{}", excerpt(&page.text()));
    }
}
