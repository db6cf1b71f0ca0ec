//! Operations with an `operationId` (failure rules F3, F6; the guide's receipts): never a second run, whatever the client
//! repeats, against the real program. A ledger outside the product counts the runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use chappie_tests::{
    Answer, Client, Node,
    answer::excerpt,
    chatgpt::{ChatGpt, Switches},
    eventually,
    ledger::Ledger,
    node::Setup,
    riding::goes_on,
};
use serde_json::{Value, json};

fn ledger(node: &Node) -> Ledger {
    Ledger::at(&node.folder().join("ledger"))
}

fn marked(ledger: &Ledger, mark: &str, id: &str) -> Value {
    json!({"command": format!("{}; echo RAN-$((3 * 3))", ledger.append(mark)), "operationId": id})
}

fn assert_receipt(answer: &Answer, id: &str, status: &str) {
    assert!(!answer.is_error, "a replay is no error: {}", excerpt(&answer.text()));
    let replay = answer.header()["replay"].clone();
    assert_eq!((replay["id"].as_str(), replay["status"].as_str()), (Some(id), Some(status)), "{replay}");
    assert!(replay["instructions"].is_string(), "{replay}");
    assert!(answer.results().is_empty() && answer.inputs().is_empty() && answer.late_results().is_empty());
    assert!(!answer.text().contains("RAN-9"), "a replay never repeats content");
}

#[tokio::test]
async fn a_replay_is_a_receipt_and_runs_nothing() {
    let node = Node::single().await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    let first = client.call("bash", marked(&ledger, "a", "op-1")).await.ok();
    assert!(first.output().contains("RAN-9"));
    let again = client.call("bash", marked(&ledger, "a", "op-1")).await;
    assert_receipt(&again, "op-1", "completed");
    assert_eq!(again.header()["replay"]["delivery"]["hostReceipt"], "unconfirmed");
    assert_eq!(again.header()["cwd"], json!(node.folder()));
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn a_replay_survives_a_restart() {
    let mut node = Node::single().await;
    let ledger = ledger(&node);
    node.chat("v1/op").call("bash", marked(&ledger, "a", "op-1")).await.ok();
    node.restart().await;
    assert_receipt(&node.chat("v1/op").call("bash", marked(&ledger, "a", "op-1")).await, "op-1", "completed");
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn an_id_with_other_arguments_is_an_error_and_runs_nothing() {
    let node = Node::single().await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    client.call("bash", marked(&ledger, "a", "op-1")).await.ok();
    let other = client.call("bash", marked(&ledger, "b", "op-1")).await.refused();
    assert!(other.text().contains("op-1") || other.text().contains("operationId"), "{}", other.text());
    let tool = client.call("write", json!({"path": "f", "content": "x", "operationId": "op-1"})).await.refused();
    assert!(!node.folder().join("f").exists(), "{}", tool.text());
    assert_eq!(ledger.counts().len(), 1);
}

#[tokio::test]
async fn the_same_arguments_in_another_order_are_the_same_operation() {
    let node = Node::single().await;
    let client = node.chat("v1/op");
    client.call("write", json!({"path": "f", "content": "x", "operationId": "op-1"})).await.ok();
    let again = client.call("write", json!({"operationId": "op-1", "content": "x", "path": "f"})).await;
    assert_receipt(&again, "op-1", "completed");
}

#[tokio::test]
async fn an_id_belongs_to_its_conversation() {
    let node = Node::single().await;
    let (session, ledger) = (node.session("s"), ledger(&node));
    for chat in ["v1/one", "v1/two"] {
        let mut arguments = marked(&ledger, "a", "op-1");
        arguments["sessionId"] = json!(session);
        assert!(node.chat(chat).call("bash", arguments).await.ok().output().contains("RAN-9"));
    }
    assert_eq!(ledger.count("a"), 2, "another conversation, another operation");
}

#[tokio::test]
async fn f6_duplicates_sent_at_the_same_moment_run_once() {
    let node = Node::single().await;
    let ledger = ledger(&node);
    let switches = Switches { duplicates: true, ..Switches::chatgpt() };
    let double = ChatGpt::connect(node.url(), "v1/twice", switches).await.unwrap();
    for round in 0..10 {
        let mark = format!("m{round}");
        let arguments = marked(&ledger, &mark, &mark);
        let answers: Vec<Answer> = double
            .deliveries("bash", arguments)
            .await
            .into_iter()
            .map(|outcome| outcome.answered().answer.ok())
            .collect();
        assert_eq!(ledger.count(&mark), 1);
        let receipts = answers.iter().filter(|answer| answer.header().get("replay").is_some()).count();
        let results = answers.iter().filter(|answer| answer.output().contains("RAN-9")).count();
        assert_eq!((receipts, results), (1, 1), "one gets the result, the other the receipt");
    }
}

#[tokio::test]
async fn f6_a_replay_of_running_work_waits_for_it_and_gets_the_receipt_only() {
    let node = Node::single().await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    let arguments =
        json!({"command": format!("{}; sleep 2; echo RAN-$((3 * 3))", ledger.append("a")), "operationId": "op-1"});
    let first = client.begin("bash", arguments.clone());
    eventually("the start", async || (ledger.count("a") == 1).then_some(())).await;
    let again = client.call("bash", arguments).await;
    assert_receipt(&again, "op-1", "completed");
    assert!(first.answer().await.ok().output().contains("RAN-9"));
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn f6_a_replay_of_work_beyond_the_budget_says_that_it_runs() {
    let node = Node::single_with(Setup::new().call_budget(1)).await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    let arguments =
        json!({"command": format!("{}; sleep 12; echo RAN-$((3 * 3))", ledger.append("a")), "operationId": "op-1"});
    let first = client.call("bash", arguments.clone()).await.ok();
    goes_on(&first);
    assert_receipt(&client.call("bash", arguments.clone()).await, "op-1", "running");
    // The first outcome reached nobody, so it comes as a late result, once; the receipt is then complete.
    let mut late = 0;
    eventually("the late result", async || {
        let answer = client.call("sessions", json!({})).await.ok();
        late += answer.late_results().len();
        (late > 0).then_some(())
    })
    .await;
    assert_eq!(late, 1);
    assert_receipt(&client.call("bash", arguments).await, "op-1", "completed");
    assert_eq!(ledger.count("a"), 1);
}

/// Kills the node while `op-1` runs and starts it again.
async fn interrupted(node: &mut Node, client: &Client, ledger: &Ledger) -> Value {
    let arguments = json!({"command": format!("{}; sleep 30", ledger.append("a")), "operationId": "op-1"});
    let call = client.begin("bash", arguments.clone());
    eventually("the start", async || (ledger.count("a") == 1).then_some(())).await;
    node.restart().await;
    assert!(call.try_answer().await.is_err(), "the node died under it");
    arguments
}

#[tokio::test]
async fn f2_work_that_the_node_died_under_is_uncertain_and_never_repeated() {
    let mut node = Node::single().await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    let arguments = interrupted(&mut node, &client, &ledger).await;
    for _ in 0..2 {
        assert_receipt(&node.chat("v1/op").call("bash", arguments.clone()).await, "op-1", "uncertain");
    }
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn a_person_lists_and_settles_an_uncertain_receipt() {
    let mut node = Node::single().await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    let arguments = interrupted(&mut node, &client, &ledger).await;
    // The session settles what it was interrupted in soon after the start.
    let id = eventually("the uncertain receipt", async || {
        let listed: Value = serde_json::from_str(&node.world.run_ok(&["receipts", "list", "--json"])).unwrap();
        let rows = listed["receipts"].as_array().unwrap_or_else(|| panic!("{listed}")).clone();
        let row = rows.into_iter().find(|row| row["operationId"] == "op-1").unwrap_or_else(|| panic!("{listed}"));
        (row["status"] == "uncertain").then(|| row["id"].as_str().unwrap().to_owned())
    })
    .await;
    node.world.run_ok(&["receipts", "resolve", &id, "completed"]);
    assert_receipt(&node.chat("v1/op").call("bash", arguments).await, "op-1", "completed");
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn read_takes_no_operation_id_and_a_bad_one_is_refused() {
    let node = Node::single().await;
    let client = node.chat("v1/op");
    node.world.put(&node.folder().join("f"), "x");
    let read = client.call("read", json!({"path": "f", "operationId": "op-1"})).await.refused();
    assert!(read.text().contains("operationId"), "{}", read.text());
    for bad in [json!(""), json!("x".repeat(129)), json!(7)] {
        let answer = client.call("write", json!({"path": "g", "content": "x", "operationId": bad})).await.refused();
        assert!(answer.text().contains("operationId"), "{}", answer.text());
    }
    assert!(!Path::new(&node.folder().join("g")).exists());
    client.call("write", json!({"path": "g", "content": "x", "operationId": "x".repeat(128)})).await.ok();
}

#[tokio::test]
async fn a_chat_and_a_call_have_receipts_too() {
    let node = Node::single().await;
    let (client, ledger) = (node.chat("v1/op"), ledger(&node));
    let chat = json!({"text": "half way", "operationId": "op-chat"});
    client.call("chat", chat.clone()).await.ok();
    assert_receipt(&client.call("chat", chat).await, "op-chat", "completed");
    let calls = json!([{"name": "bash", "arguments": {"command": ledger.append("a")}}]);
    let call = json!({"calls": calls, "operationId": "op-call"});
    client.call("call", call.clone()).await.ok();
    assert_receipt(&client.call("call", call).await, "op-call", "completed");
    assert_eq!(ledger.count("a"), 1);
    let history = client.call("history", json!({"limit": 50})).await.ok();
    assert_eq!(history.text().matches("half way").count(), 1, "said once");
}

#[tokio::test]
async fn f6_a_receipt_of_a_call_the_client_lost_brings_the_outcome_late_once() {
    let node = Node::single().await;
    let (client, ledger) = (node.client().await.chat("v1/op"), ledger(&node));
    let arguments =
        json!({"command": format!("{}; sleep 1; echo RAN-$((3 * 3))", ledger.append("a")), "operationId": "op-1"});
    let call = client.begin("bash", arguments.clone());
    eventually("the start", async || (ledger.count("a") == 1).then_some(())).await;
    call.cut();
    assert_receipt(&client.call("bash", arguments).await, "op-1", "completed");
    let next = client.call("bash", json!({"command": "true"})).await.ok();
    let late = next.late_results();
    assert_eq!(late.len(), 1, "{}", excerpt(&next.text()));
    assert!(late[0].1[0].text.contains("RAN-9"));
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn a_replay_says_how_the_operation_ended() {
    let node = Node::single().await;
    let client = node.client().await.chat("v1/op");
    let mut ends = Vec::new();
    for (id, command) in [("op-good", "true"), ("op-bad", "exit 9"), ("op-cut", "touch begun; sleep 99")] {
        let arguments = json!({"command": command, "operationId": id});
        let call = client.begin("bash", arguments.clone());
        if id == "op-cut" {
            let begun = node.folder().join("begun");
            eventually("the command", async || begun.exists().then_some(())).await;
            call.cancel().await;
        } else {
            let _ = call.answer().await;
        }
        let replay = client.call("bash", arguments).await;
        assert_receipt(&replay, id, "completed");
        ends.push(replay.header()["replay"]["ended"].clone());
    }
    assert_eq!(ends, ["succeeded", "failed", "cancelled"]);
}
