//! What outlives a call, a door, a node and a restart: processes, full output, sessions, bindings, imported state, and the
//! store's own safety. Against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, sync::Arc};

use chappie_tests::{
    Answer, Client, Node, Revision, World, answer::excerpt, eventually, node::Setup, process, stdio::Stdio,
};
use serde_json::{Value, json};

async fn process_tool(client: &Client, arguments: Value) -> Answer {
    client.call("call", json!({"calls": [{"name": "process", "arguments": arguments}]})).await.ok()
}

/// The id of a started process: the word that `list` and `output` take.
fn process_id(answer: &Answer) -> String {
    let text = answer.output();
    let details = answer.results()[0].head["details"]["id"].as_str().map(str::to_owned);
    let word = || {
        text.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'))
            .find(|word| word.len() >= 2 && word.chars().any(|c| c.is_ascii_digit()))
            .map(str::to_owned)
    };
    details.or_else(word).unwrap_or_else(|| panic!("no process id in {text}"))
}

fn runs(node: &Node, part: &str) -> usize {
    process::running(node.world.mark(), part).len()
}

#[tokio::test]
async fn f8_a_process_outlives_its_call_its_door_and_the_nodes_death_and_is_listed() {
    let mut node = Node::single().await;
    let session = node.session("s");
    let mut door = Stdio::start(&node.world, Revision::Stateless).await.chat("v1/proc");
    let command = "for i in 1 2 3; do echo tick-$i; done; while :; do sleep 1.234; done";
    let calls = json!([{"name": "process", "arguments": {"action": "start", "command": command, "name": "ticker"}}]);
    let started = door.call("call", json!({"calls": calls, "sessionId": session})).await.ok();
    let id = process_id(&started);
    door.child.kill().await.unwrap();
    assert_ne!(runs(&node, "tick-$i"), 0, "lives on after its call and its door");

    for _ in 0..2 {
        let listed = process_tool(&node.chat("v1/proc"), json!({"action": "list"})).await;
        assert!(listed.output().contains(&id) && listed.output().contains("ticker"), "{}", listed.output());
        let output = process_tool(&node.chat("v1/proc"), json!({"action": "output", "id": id})).await;
        assert!(output.output().contains("tick-3"), "{}", output.output());
        node.restart().await;
        assert_ne!(runs(&node, "tick-$i"), 0, "lives on after the node's death");
    }
    process_tool(&node.chat("v1/proc"), json!({"action": "stop", "id": id})).await;
    eventually("the process's end", async || (runs(&node, "tick-$i") == 0).then_some(())).await;
}

#[tokio::test]
async fn a_process_reads_what_it_is_given_and_ends_with_its_session() {
    let node = Node::single().await;
    let client = node.chat("v1/proc");
    let command = "while read -r line; do echo \"got:$line\"; done";
    let id = process_id(&process_tool(&client, json!({"action": "start", "command": command})).await);
    process_tool(&client, json!({"action": "input", "id": id, "text": "hello\n"})).await;
    eventually("the echo", async || {
        let output = process_tool(&client, json!({"action": "output", "id": id})).await;
        output.output().contains("got:hello").then_some(())
    })
    .await;
    assert_ne!(runs(&node, "got:$line"), 0);
    node.world.run_ok(&["session", "end", &node.session("s")]);
    eventually("the process's end", async || (runs(&node, "got:$line") == 0).then_some(())).await;
}

#[tokio::test]
async fn f8_what_a_killed_nodes_call_left_running_is_ended_before_the_session_works_again() {
    let mut node = Node::single().await;
    let client = node.chat("v1/left");
    let call = client.begin("bash", json!({"command": "sleep 555"}));
    eventually("the command", async || (runs(&node, "sleep 555") > 0).then_some(())).await;
    node.kill();
    drop(call);
    assert!(runs(&node, "sleep 555") > 0, "a kill of the node alone leaves it");
    node.start_again().await;
    let next = node.chat("v1/left").call("bash", json!({"command": "echo next"})).await.ok();
    assert!(next.output().contains("next"));
    assert_eq!(runs(&node, "sleep 555"), 0);
}

/// The first path below the node's outputs in a text.
fn full_output(text: &str) -> String {
    let at = text.find("/outputs/").unwrap_or_else(|| panic!("no full-output path in {}", excerpt(text)));
    let start = text[..at].rfind(|c: char| c.is_whitespace() || "\"'`([<".contains(c)).map_or(0, |index| index + 1);
    let rest = &text[start..];
    let end = rest.find(|c: char| c.is_whitespace() || "\"'`)]>,;\\".contains(c)).unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').to_owned()
}

#[tokio::test]
async fn a_path_of_full_output_taken_from_history_after_a_restart_still_reads() {
    let mut node = Node::single().await;
    node.chat("v1/out").call("bash", json!({"command": "seq 1 60000"})).await.ok();
    node.restart().await;
    let client = node.chat("v1/out");
    let history = client.call("history", json!({"limit": 10})).await.ok();
    let path = full_output(&history.text());
    let read = client.call("read", json!({"path": path, "offset": 31_234, "limit": 1})).await.ok();
    assert!(read.output().lines().any(|line| line.trim().ends_with("31234")), "{}", excerpt(&read.output()));
}

#[tokio::test]
async fn sessions_keep_their_ids_and_conversations_their_sessions_over_a_restart() {
    let world = Arc::new(World::new());
    let (a, b) = (world.folder("a"), world.folder("b"));
    let mut node = Node::start(world, Setup::new().session(&a, "a").session(&b, "b")).await;
    let ids = [node.session("a"), node.session("b")];
    node.chat("v1/x").call("init", json!({"sessionId": ids[1]})).await.ok();
    node.stop().await;
    node.start_again().await;
    assert_eq!([node.session("a"), node.session("b")], ids);
    let init = node.chat("v1/x").call("init", json!({})).await.ok().header();
    assert_eq!((init["selection"].as_str(), init["session"]["id"].as_str()), (Some("existing"), Some(&*ids[1])));
}

#[tokio::test]
async fn a_second_node_on_the_same_home_is_refused_and_the_first_goes_on() {
    let node = Node::single().await;
    let refused = Node::try_start(Arc::clone(&node.world), Setup::new()).await;
    let log = refused.expect_err("the second does not become ready");
    assert!(log.contains("runs already"), "says why: {log}");
    let ended = node.world.run(&["up", "--mcp", "127.0.0.1:0"]).status;
    assert_eq!(ended.code(), Some(1), "{ended}");
    assert!(node.chat("v1/x").call("bash", json!({"command": "echo on"})).await.ok().output().contains("on"));
}

/// The original's state file in its newer, timestamped form and in its older string form (behaviour 6.2).
fn state_file(session: &str, timestamped: bool, used_ms: u64) -> String {
    let binding = if timestamped { json!({"sessionId": session, "lastUsedAt": used_ms}) } else { json!(session) };
    json!({"bindings": {"v1/imported": binding}, "deliveries": [], "questions": [], "operations": [], "deliveredIds": []})
        .to_string()
}

fn now_ms() -> u64 {
    let text = String::from_utf8(std::process::Command::new("date").arg("+%s%3N").output().unwrap().stdout).unwrap();
    text.trim().parse().unwrap()
}

async fn imports(timestamped: bool) {
    let world = Arc::new(World::new());
    let (a, b) = (world.folder("a"), world.folder("b"));
    let mut node = Node::start(world, Setup::new().session(&a, "a").session(&b, "b")).await;
    let b = node.session("b");
    let file = node.world.root().join("chappie.state.json");
    node.world.put(&file, state_file(&b, timestamped, now_ms()));
    let path = file.display().to_string();
    let first: Value = serde_json::from_str(&node.world.run_ok(&["import-state", &path, "--json"])).unwrap();
    assert_eq!(first["imported"], 1, "{first}");
    let backup = first["backup"].as_str().expect("backed up first").to_owned();
    assert!(fs::metadata(&backup).is_ok_and(|facts| facts.len() > 0), "{backup}");
    let second: Value = serde_json::from_str(&node.world.run_ok(&["import-state", &path, "--json"])).unwrap();
    assert_eq!((&second["imported"], &second["unchanged"]), (&json!(0), &json!(1)), "idempotent: {second}");
    let init = node.chat("v1/imported").call("init", json!({})).await.ok().header();
    assert_eq!((init["selection"].as_str(), init["session"]["id"].as_str()), (Some("existing"), Some(b.as_str())));
    node.restart().await;
    let init = node.chat("v1/imported").call("init", json!({})).await.ok().header();
    assert_eq!(init["session"]["id"], json!(b));
}

#[tokio::test]
async fn the_originals_state_file_with_string_bindings_imports() {
    imports(false).await;
}

#[tokio::test]
async fn the_originals_state_file_with_timestamped_bindings_imports() {
    imports(true).await;
}

#[tokio::test]
async fn an_old_binding_is_left_out_and_a_broken_file_changes_nothing() {
    let node = Node::single().await;
    let file = node.world.root().join("old.json");
    node.world.put(&file, state_file(&node.session("s"), true, now_ms() - 31 * 24 * 3600 * 1000));
    let path = file.display().to_string();
    let report: Value = serde_json::from_str(&node.world.run_ok(&["import-state", &path, "--json"])).unwrap();
    assert_eq!((&report["imported"], &report["expired"]), (&json!(0), &json!(1)), "{report}");
    for (name, content) in
        [("torn.json", "{\"bindings\": {\"v1/imp"), ("list.json", "[]"), ("odd.json", "{\"bindings\": 7}")]
    {
        let broken = node.world.root().join(name);
        node.world.put(&broken, content);
        let output = node.world.run(&["import-state", &broken.display().to_string()]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(name), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let listed = node.chat("v1/imported").call("sessions", json!({})).await.ok().header();
    assert!(listed["binding"].is_null());
}

#[tokio::test]
async fn an_orderly_stop_ends_what_runs_and_writes_its_outcome() {
    let mut node = Node::single().await;
    let client = node.chat("v1/stop");
    let call = client.begin("bash", json!({"command": "sleep 777", "operationId": "op-1"}));
    eventually("the command", async || (runs(&node, "sleep 777") > 0).then_some(())).await;
    node.stop().await;
    assert_eq!(runs(&node, "sleep 777"), 0);
    assert!(!node.world.state().join("chappie.sock").exists(), "the socket is gone");
    let _ = call.try_answer().await;
    node.start_again().await;
    let again = node.chat("v1/stop").call("bash", json!({"command": "sleep 777", "operationId": "op-1"})).await;
    assert!(again.header()["replay"]["status"].is_string(), "not run again: {}", excerpt(&again.text()));
}

#[tokio::test]
async fn a_home_in_which_one_store_is_lost_is_refused_with_advice() {
    let mut node = Node::single().await;
    node.chat("v1/x").call("bash", json!({"command": "true", "operationId": "op-1"})).await.ok();
    node.stop().await;
    let lost = node.world.state().join("consensus.redb");
    for damage in ["lost", "emptied", "overwritten"] {
        let kept = fs::read(&lost).unwrap();
        match damage {
            "lost" => fs::remove_file(&lost).unwrap(),
            "emptied" => node.world.put(&lost, ""),
            _ => node.world.put(&lost, vec![7; 20_000]),
        }
        let log = Node::try_start(Arc::clone(&node.world), Setup::new()).await.expect_err(damage);
        assert!(log.contains("consensus.redb"), "{damage}: {log}");
        node.world.put(&lost, &kept);
    }
    node.start_again().await;
    let again = node.chat("v1/x").call("bash", json!({"command": "true", "operationId": "op-1"})).await;
    assert_eq!(again.header()["replay"]["status"], "completed");
}
