//! Calls that are longer than their budget, cut, or cancelled (failure rules F4, F5, F7 and the guide's late results),
//! through the ChatGPT double and the plain client, against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use chappie_tests::{
    Client, Node, Revision,
    answer::{Section, excerpt},
    chatgpt::{ChatGpt, Outcome, Switches},
    eventually,
    ledger::Ledger,
    node::Setup,
    process,
    riding::{goes_on, late_texts},
    wait::within,
};
use serde_json::json;

/// Follows history with `wait` until `word` stands in a tool's result.
async fn follow_until(client: &Client, session: &str, word: &str) {
    let mut cursor: Option<String> = None;
    within(Duration::from_secs(120), word, async || {
        let mut arguments = json!({"sessionId": session, "observer": true, "wait": true, "limit": 50});
        if let Some(cursor) = &cursor {
            arguments["after"] = json!(cursor);
        }
        let sections = client.call("history", arguments).await.ok().sections();
        if let Some(id) = sections.last().and_then(|section| section.head["id"].as_str()) {
            cursor = Some(id.to_owned());
        }
        let has = |section: &Section| section.head.to_string().contains("toolResult") && section.text.contains(word);
        sections.iter().any(has).then_some(())
    })
    .await;
}

#[tokio::test]
async fn f5_a_bash_of_90_s_is_answered_within_chatgpts_60_s_and_its_outcome_comes_once() {
    let node = Node::single().await;
    let session = node.session("s");
    let double = ChatGpt::connect(node.url(), "v1/long", Switches::chatgpt()).await.unwrap();
    let view = double.call("bash", json!({"command": "sleep 90; echo DONE-$((80 + 10))"})).await.answered();
    assert!(view.took < Duration::from_secs(60), "took {:?}", view.took);
    let operation = view.answer.clone().ok().header()["operation"].clone();
    assert_eq!(operation["status"], "running", "{}", view.text);
    assert!(operation["id"].is_string() && operation["instructions"].is_string(), "{operation}");

    follow_until(&node.chat("v1/onlooker"), &session, "DONE-90").await;
    let next = double.call("bash", json!({"command": "echo next"})).await.answered().answer.ok();
    let late = late_texts(&next);
    assert_eq!(late.len(), 1, "{}", excerpt(&next.text()));
    assert!(late[0].contains("DONE-90"));
    let after = double.call("bash", json!({"command": "echo after"})).await.answered().answer.ok();
    assert!(late_texts(&after).is_empty(), "once");
    assert!(after.output().contains("after"));
}

#[tokio::test]
async fn a_late_result_goes_to_its_own_conversation_only_and_names_its_session_and_folder() {
    let node = Node::single_with(Setup::new().call_budget(1)).await;
    let (session, mine, other) = (node.session("s"), node.chat("v1/mine"), node.chat("v1/other"));
    let command = "echo BEGIN; sleep 3; echo LATE-$((40 + 2))";
    let running = mine.call("bash", json!({"command": command, "sessionId": session})).await.ok();
    goes_on(&running);
    follow_until(&other, &session, "LATE-42").await;
    let foreign = other.call("bash", json!({"command": "echo x", "sessionId": session})).await.ok();
    assert!(foreign.late_results().is_empty(), "{}", excerpt(&foreign.text()));
    // `sessions` brings late results too (behaviour 3.5).
    let listed = mine.call("sessions", json!({})).await.ok();
    let late = listed.late_results();
    assert_eq!(late.len(), 1, "{}", excerpt(&listed.text()));
    assert_eq!(late[0].0["sessionId"], json!(session));
    assert_eq!(late[0].0["cwd"], json!(node.folder()));
    assert!(late[0].1[0].text.contains("LATE-42"));
}

#[tokio::test]
async fn history_takes_no_late_result_away() {
    let node = Node::single_with(Setup::new().call_budget(1)).await;
    let (session, client) = (node.session("s"), node.chat("v1/mine"));
    client.call("bash", json!({"command": "sleep 2; echo LATE-$((1 + 1))"})).await.ok();
    follow_until(&client, &session, "LATE-2").await;
    let page = client.call("history", json!({"limit": 50})).await.ok();
    assert!(page.late_results().is_empty(), "history attaches none: {}", excerpt(&page.text()));
    assert_eq!(client.call("bash", json!({"command": "true"})).await.ok().late_results().len(), 1);
}

#[tokio::test]
async fn f4_a_connection_cut_in_2025_11_25_detaches_and_the_outcome_comes_late() {
    let node = Node::single().await;
    let (session, ledger) = (node.session("s"), Ledger::at(&node.folder().join("ledger")));
    let switches = Switches { discover_first: false, cut_at: Some(Duration::from_millis(1500)), ..Switches::chatgpt() };
    let double = ChatGpt::connect(node.url(), "v1/cut", switches).await.unwrap();
    assert_eq!(double.revision(), Revision::Handshake);
    let command = format!("{}; sleep 4; {}; echo CUT-$((6 + 1))", ledger.append("start"), ledger.append("end"));
    let outcome = double.call("bash", json!({"command": command})).await;
    assert!(matches!(outcome, Outcome::Cut { .. }), "{outcome:?}");
    follow_until(&node.chat("v1/onlooker"), &session, "CUT-7").await;
    assert_eq!((ledger.count("start"), ledger.count("end")), (1, 1), "the work went on by itself");
    let patient =
        ChatGpt::connect(node.url(), "v1/cut", Switches { cut_at: None, ..Switches::chatgpt() }).await.unwrap();
    let next = patient.call("bash", json!({"command": "true"})).await.answered().answer.ok();
    assert_eq!(late_texts(&next).len(), 1, "{}", excerpt(&next.text()));
}

#[tokio::test]
async fn f4_a_closed_request_in_2026_07_28_cancels_its_command_within_a_second_or_so() {
    let node = Node::single().await;
    let client = node.chat("v1/closing");
    let call = client.begin("bash", json!({"command": "echo begun; sleep 333"}));
    eventually("the command", async || (!process::running(node.world.mark(), "sleep 333").is_empty()).then_some(()))
        .await;
    call.cut();
    eventually("the command's end", async || process::running(node.world.mark(), "sleep 333").is_empty().then_some(()))
        .await;
    assert!(client.call("bash", json!({"command": "echo next"})).await.ok().output().contains("next"));
}

async fn a_queued_call_is_cancelled(revision: Revision) {
    let node = Node::single().await;
    let ledger = Ledger::at(&node.folder().join("ledger"));
    let client = Client::open(node.url(), revision).await.chat("v1/queue");
    let first = client.begin("bash", json!({"command": format!("{}; sleep 3", ledger.append("first"))}));
    eventually("the first", async || (ledger.count("first") == 1).then_some(())).await;
    let params = json!({"name": "bash", "arguments": {"command": ledger.append("queued")}});
    let body = client.body("tools/call", params);
    // The head of the answer says that the call was taken; the first still runs.
    let queued = client.exchange(&body, &[]).await.unwrap();
    assert_eq!(queued.status, 200);
    let behind = client.begin("bash", json!({"command": ledger.append("behind")}));
    if revision == Revision::Handshake {
        let params = json!({"requestId": body["id"], "reason": "the test gave up"});
        client.notify("notifications/cancelled", params).await.unwrap();
    }
    drop(queued);
    first.answer().await.ok();
    behind.answer().await.ok();
    assert_eq!(ledger.counts().len(), 2, "what was cancelled in the queue never ran: {:?}", ledger.counts());
    let history = client.call("history", json!({"limit": 50})).await.ok();
    assert!(!history.text().contains(">> queued"), "nothing of it ran");
}

#[tokio::test]
async fn f4_a_call_cancelled_in_the_queue_never_runs_2025_11_25() {
    a_queued_call_is_cancelled(Revision::Handshake).await;
}

#[tokio::test]
async fn f4_a_call_cancelled_in_the_queue_never_runs_2026_07_28() {
    a_queued_call_is_cancelled(Revision::Stateless).await;
}

#[tokio::test]
async fn f4_a_cancelled_batch_keeps_what_finished_as_a_late_result_and_starts_nothing_more() {
    let node = Node::single().await;
    let ledger = Ledger::at(&node.folder().join("ledger"));
    let client = node.client().await.chat("v1/batch");
    let calls = json!([
        {"name": "bash", "arguments": {"command": format!("{}; echo FIRST-$((3 + 4))", ledger.append("one"))}},
        {"name": "bash", "arguments": {"command": format!("{}; sleep 60", ledger.append("two"))}},
        {"name": "bash", "arguments": {"command": ledger.append("three")}},
    ]);
    let call = client.begin("call", json!({"calls": calls}));
    eventually("the second member", async || (ledger.count("two") == 1).then_some(())).await;
    call.cancel().await;
    let mut late = Vec::new();
    eventually("the late result", async || {
        let answer = client.call("bash", json!({"command": "true"})).await.ok();
        late.extend(late_texts(&answer));
        (!late.is_empty()).then_some(())
    })
    .await;
    assert_eq!(late.len(), 1);
    assert!(late[0].contains("FIRST-7"), "{}", late[0]);
    assert_eq!(ledger.count("three"), 0, "a member that had not started does not start");
    assert!(client.call("bash", json!({"command": "true"})).await.ok().late_results().is_empty());
}

#[tokio::test]
async fn f9_late_results_survive_a_restart_and_come_once() {
    let mut node = Node::single_with(Setup::new().call_budget(1)).await;
    let session = node.session("s");
    node.chat("v1/mine").call("bash", json!({"command": "sleep 2; echo KEPT-$((2 + 3))"})).await.ok();
    follow_until(&node.chat("v1/onlooker"), &session, "KEPT-5").await;
    node.restart().await;
    let client = node.chat("v1/mine");
    let first = client.call("bash", json!({"command": "true"})).await.ok();
    assert_eq!(late_texts(&first).len(), 1, "{}", excerpt(&first.text()));
    assert!(late_texts(&first)[0].contains("KEPT-5"));
    assert!(client.call("bash", json!({"command": "true"})).await.ok().late_results().is_empty());
}

#[tokio::test]
async fn a_late_result_that_arrived_does_not_come_back_with_a_restart() {
    let mut node = Node::single_with(Setup::new().call_budget(1)).await;
    let session = node.session("s");
    node.chat("v1/mine").call("bash", json!({"command": "sleep 2; echo ONCE-$((1 + 1))"})).await.ok();
    follow_until(&node.chat("v1/onlooker"), &session, "ONCE-2").await;
    let first = node.chat("v1/mine").call("bash", json!({"command": "true"})).await.ok();
    assert_eq!(first.late_results().len(), 1, "{}", excerpt(&first.text()));
    node.stop().await;
    node.start_again().await;
    let again = node.chat("v1/mine").call("bash", json!({"command": "true"})).await.ok();
    assert!(again.late_results().is_empty(), "{}", excerpt(&again.text()));
}

#[tokio::test]
async fn work_stays_with_its_session_when_the_conversation_changes_its_default() {
    let world = std::sync::Arc::new(chappie_tests::World::new());
    let (a, b) = (world.folder("a"), world.folder("b"));
    let setup = Setup::new().session(&a, "a").session(&b, "b").call_budget(1).cooldown(0.0);
    let node = Node::start(world, setup).await;
    let (client, first, second) = (node.chat("v1/mover"), node.session("a"), node.session("b"));
    client.call("init", json!({"sessionId": first})).await.ok();
    let running = client.call("bash", json!({"command": "pwd; sleep 3; echo MOVED-$((5 + 6))"})).await.ok();
    goes_on(&running);
    client.call("init", json!({"sessionId": second})).await.ok();
    follow_until(&node.chat("v1/onlooker"), &first, "MOVED-11").await;
    let answer = client.call("bash", json!({"command": "pwd"})).await.ok();
    assert!(answer.output().contains("/b"), "{}", answer.output());
    let late = answer.late_results();
    assert_eq!(late.len(), 1, "{}", excerpt(&answer.text()));
    assert_eq!((&late[0].0["sessionId"], &late[0].0["cwd"]), (&json!(first), &json!(a)));
    assert!(late[0].1[0].text.contains("/a") && late[0].1[0].text.contains("MOVED-11"));
}

#[tokio::test]
async fn the_finished_members_of_a_cancelled_batch_arrive_after_a_restart_once() {
    let mut node = Node::single().await;
    let (session, ledger) = (node.session("s"), Ledger::at(&node.folder().join("ledger")));
    let client = node.client().await.chat("v1/batch");
    let calls = json!([
        {"name": "bash", "arguments": {"command": "echo FINISHED-$((8 + 9))"}},
        {"name": "bash", "arguments": {"command": format!("{}; sleep 70", ledger.append("two"))}},
    ]);
    let call = client.begin("call", json!({"calls": calls}));
    eventually("the second member", async || (ledger.count("two") == 1).then_some(())).await;
    call.cancel().await;
    follow_until(&node.chat("v1/onlooker"), &session, "FINISHED-17").await;
    node.stop().await;
    node.start_again().await;
    let answer = node.chat("v1/batch").call("bash", json!({"command": "true"})).await.ok();
    let late = late_texts(&answer);
    assert_eq!(late.len(), 1, "{}", excerpt(&answer.text()));
    assert!(late[0].contains("FINISHED-17"));
    let next = node.chat("v1/batch").call("bash", json!({"command": "true"})).await.ok();
    assert!(next.late_results().is_empty());
}

#[tokio::test]
async fn history_and_late_results_hold_references_and_never_links() {
    let node = Node::single_with(Setup::new().call_budget(1)).await;
    let session = node.session("s");
    let pixel = node.folder().join("p.png");
    image::RgbImage::from_pixel(9, 9, image::Rgb([4, 5, 6])).save(node.world.root().join("p.png")).unwrap();
    node.world.put(&pixel, std::fs::read(node.world.root().join("p.png")).unwrap());
    let client = node.chat("v1/refs");
    let calls = json!([
        {"name": "read", "arguments": {"path": "p.png"}},
        {"name": "bash", "arguments": {"command": "sleep 2; echo REFS-$((2 + 2))"}},
    ]);
    client.call("call", json!({"calls": calls})).await.ok();
    follow_until(&node.chat("v1/onlooker"), &session, "REFS-4").await;
    let answer = client.call("bash", json!({"command": "true"})).await.ok();
    let (_, results) = answer.late_results().remove(0);
    assert_eq!((results[0].images.len(), results[0].references.len()), (1, 1), "{}", excerpt(&answer.text()));
    let history = client.call("history", json!({"limit": 50})).await.ok();
    assert_eq!(history.images().len(), 1);
    for shown in [answer, history] {
        assert!(!shown.raw.to_string().contains("resource_link"));
    }
}

#[tokio::test]
async fn an_answer_starts_within_seconds_although_its_command_runs_on() {
    let node = Node::single().await;
    let client = node.chat("v1/first-byte");
    let body = client.body("tools/call", json!({"name": "bash", "arguments": {"command": "sleep 90"}}));
    let start = std::time::Instant::now();
    let exchange = client.exchange(&body, &[]).await.unwrap();
    assert_eq!(exchange.status, 200);
    assert!(exchange.header("content-type").starts_with("text/event-stream"), "{}", exchange.header("content-type"));
    // ChatGPT gives up about 12 s without a byte: the head comes at once, not with the result.
    assert!(start.elapsed() < Duration::from_secs(12), "the head took {:?}", start.elapsed());
}
