//! Which session a conversation works on, and who takes part how (behaviour 6 and 10), against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, sync::Arc};

use chappie_tests::{Answer, Node, World, answer::excerpt, eventually, node::Setup};
use serde_json::{Value, json};

/// A node with sessions of these names, each in a folder of its name.
async fn node_with(names: &[&str], setup: Setup) -> Node {
    let world = Arc::new(World::new());
    let setup = names.iter().fold(setup, |setup, name| setup.session(&world.folder(name), name));
    Node::start(world, setup).await
}

fn pwd_of(answer: &Answer) -> String {
    let output = answer.clone().ok().output();
    output.lines().find_map(|line| line.rsplit('/').next()).unwrap_or_default().trim().to_owned()
}

fn mode(answer: &Answer) -> String {
    answer.header()["initialization"]["mode"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn new_conversations_at_the_same_moment_get_sessions_of_their_own() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let node = node_with(&names, Setup::new()).await;
    let calls: Vec<_> = (0..names.len())
        .map(|number| node.chat(&format!("v1/new-{number}")).begin("bash", json!({"command": "pwd"})))
        .collect();
    let mut seen = BTreeSet::new();
    for call in calls {
        seen.insert(pwd_of(&call.answer().await));
    }
    assert_eq!(seen, names.iter().map(|name| (*name).to_owned()).collect());
}

#[tokio::test]
async fn parallel_calls_of_one_new_conversation_end_on_one_session() {
    let node = node_with(&["a", "b", "c"], Setup::new()).await;
    let chat = node.chat("v1/one");
    let calls: Vec<_> = (0..6).map(|_| chat.begin("bash", json!({"command": "pwd"}))).collect();
    let mut seen = BTreeSet::new();
    for call in calls {
        seen.insert(pwd_of(&call.answer().await));
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[tokio::test]
async fn without_a_free_session_the_error_leads_to_sessions() {
    let node = node_with(&["a"], Setup::new()).await;
    node.chat("v1/first").call("init", json!({})).await.ok();
    let second = node.chat("v1/second").call("bash", json!({"command": "pwd"})).await.refused();
    assert!(second.text().contains("sessions"), "{}", second.text());
    // Explicit selection may share a session.
    let shared = node.chat("v1/second").call("init", json!({"sessionId": node.session("a")})).await.ok();
    assert_eq!(shared.header()["selection"], "explicit");
}

#[tokio::test]
async fn an_explicit_session_is_for_one_operation_once_there_is_a_default() {
    let node = node_with(&["a", "b"], Setup::new()).await;
    let chat = node.chat("v1/one");
    let init = chat.call("init", json!({})).await.ok();
    assert_eq!(init.header()["selection"], "automatic");
    let home = pwd_of(&chat.call("bash", json!({"command": "pwd"})).await);
    let other = if home == "a" { "b" } else { "a" };
    let there = chat.call("bash", json!({"command": "pwd", "sessionId": node.session(other)})).await;
    assert_eq!(pwd_of(&there), other);
    assert_eq!(pwd_of(&chat.call("bash", json!({"command": "pwd"})).await), home);
    assert_eq!(chat.call("init", json!({})).await.ok().header()["selection"], "existing");
}

#[tokio::test]
async fn the_first_explicit_session_becomes_the_default() {
    let node = node_with(&["a", "b"], Setup::new()).await;
    let chat = node.chat("v1/one");
    chat.call("bash", json!({"command": "true", "sessionId": node.session("b")})).await.ok();
    assert_eq!(pwd_of(&chat.call("bash", json!({"command": "pwd"})).await), "b");
    let listed = chat.call("sessions", json!({})).await.ok().header();
    assert_eq!(listed["binding"], json!(node.session("b")));
    let counts: Vec<&Value> = listed["sessions"].as_array().unwrap().iter().map(|row| &row["bindingCount"]).collect();
    assert_eq!(counts, [&json!(0), &json!(1)]);
}

#[tokio::test]
async fn an_unknown_session_is_an_error_that_names_it_and_leaves_the_default() {
    let node = node_with(&["a", "b"], Setup::new()).await;
    let chat = node.chat("v1/one");
    let home = pwd_of(&chat.call("bash", json!({"command": "pwd"})).await);
    let start = std::time::Instant::now();
    let refused = chat.call("init", json!({"sessionId": "no-such-session"})).await.refused();
    assert!(refused.text().contains("no-such-session"), "{}", refused.text());
    assert!(start.elapsed().as_secs() < 30, "the wait for an offline session is bounded");
    assert_eq!(pwd_of(&chat.call("bash", json!({"command": "pwd"})).await), home);
}

#[tokio::test]
async fn a_session_listed_has_every_field_of_the_guide() {
    let node = node_with(&["a"], Setup::new().argument("--name").argument("laptop")).await;
    let listed = node.chat("v1/one").call("sessions", json!({})).await.ok().header();
    assert!(listed["binding"].is_null());
    let row = &listed["sessions"][0];
    assert_eq!(row["id"], json!(node.session("a")));
    assert_eq!(row["name"], "a");
    assert_eq!(row["host"], "native");
    assert_eq!(row["cwd"], json!(node.folder()));
    assert_eq!(row["agentDir"], json!(node.world.state()));
    assert_eq!(row["status"], "idle");
    assert_eq!(row["bindingCount"], 0);
    assert!(row["device"].as_str().is_some_and(|device| !device.is_empty()));
    // Without a conversation it works too, with no binding.
    let nobody = node.stateless().call("sessions", json!({})).await.ok().header();
    assert!(nobody["binding"].is_null());
}

#[tokio::test]
async fn a_session_that_works_is_listed_as_executing() {
    let node = node_with(&["a"], Setup::new()).await;
    let chat = node.chat("v1/one");
    let call = chat.begin("bash", json!({"command": "touch begun; while [ ! -e go ]; do sleep 0.05; done"}));
    let begun = node.folder().join("begun");
    eventually("the command", async || begun.exists().then_some(())).await;
    let listed = chat.call("sessions", json!({})).await.ok().header();
    assert_eq!(listed["sessions"][0]["status"], "executing");
    node.world.put(&node.folder().join("go"), "");
    call.answer().await.ok();
}

#[tokio::test]
async fn init_describes_the_environment() {
    let node = node_with(&["a"], Setup::new()).await;
    let bare = node.chat("v1/one").call("init", json!({})).await.ok().header();
    assert!(bare.get("globalAgents").is_none(), "no instructions file, no field");
    let agents = node.world.state().join("AGENTS.md");
    node.world.put(&agents, "be kind\n");
    let init = node.chat("v1/one").call("init", json!({})).await.ok().header();
    assert_eq!(init["globalAgents"]["path"], json!(agents));
    assert_eq!(init["initialization"]["sessionId"], json!(node.session("a")));
    assert!(init["initialization"]["instructions"].as_str().is_some_and(|text| !text.is_empty()));
    let names: Vec<&str> = init["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    for name in ["read", "bash", "edit", "write", "grep", "find", "ls", "process"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for tool in init["tools"].as_array().unwrap() {
        let description = tool["description"].as_str().unwrap();
        assert!(!description.is_empty() && !description.contains('\n'), "first line only: {description}");
    }
    assert!(init["skills"].is_array());
}

#[tokio::test]
async fn tools_gives_whole_definitions_and_says_which_names_are_unknown() {
    let node = node_with(&["a"], Setup::new()).await;
    let chat = node.chat("v1/one");
    let all = chat.call("tools", json!({})).await.ok().header();
    for tool in all["tools"].as_array().unwrap() {
        assert_eq!(tool["parameters"]["type"], "object", "{tool}");
        assert_eq!(tool["parameters"]["additionalProperties"], false, "{tool}");
    }
    let some = chat.call("tools", json!({"names": ["grep", "no_such_tool"]})).await.ok().header();
    let names: Vec<&Value> = some["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["grep"]);
    assert_eq!(some["unknown"], json!(["no_such_tool"]));
}

#[tokio::test]
async fn a_second_init_within_the_window_observes() {
    let node = node_with(&["a", "b"], Setup::new()).await;
    let chat = node.chat("v1/one");
    assert_eq!(mode(&chat.call("init", json!({})).await.ok()), "executor");
    node.say(&node.session("a"), "NOTE");
    let second = chat.call("init", json!({})).await.ok();
    assert_eq!(mode(&second), "observer");
    assert!(second.inputs().is_empty(), "an observer gets no inputs: {}", excerpt(&second.text()));
    assert!(second.header()["tools"].is_array(), "but the catalogue");
    // Advisory only: the tools of an observer work, and the input comes with them.
    let bash = chat.call("bash", json!({"command": "echo works"})).await.ok();
    assert!(bash.output().contains("works"));
    assert_eq!(bash.inputs().len(), 1);
    // Another conversation, another window.
    assert_eq!(mode(&node.chat("v1/two").call("init", json!({})).await.ok()), "executor");
}

#[tokio::test]
async fn the_window_closes_after_the_cooldown_and_a_cooldown_of_zero_opens_none() {
    let node = node_with(&["a"], Setup::new().cooldown(1.0)).await;
    let chat = node.chat("v1/one");
    assert_eq!(mode(&chat.call("init", json!({})).await.ok()), "executor");
    eventually("the window's end", async || {
        (mode(&chat.call("init", json!({})).await.ok()) == "executor").then_some(())
    })
    .await;
    let open = node_with(&["a"], Setup::new().cooldown(0.0)).await;
    for _ in 0..3 {
        assert_eq!(mode(&open.chat("v1/one").call("init", json!({})).await.ok()), "executor");
    }
}

#[tokio::test]
async fn a_first_implicit_selection_opens_the_window() {
    let node = node_with(&["a"], Setup::new()).await;
    let chat = node.chat("v1/one");
    let first = chat.call("bash", json!({"command": "true"})).await.ok();
    assert_eq!(mode(&first), "executor");
    assert_eq!(mode(&chat.call("bash", json!({"command": "true"})).await.ok()), "", "said once");
    assert_eq!(mode(&chat.call("init", json!({})).await.ok()), "observer");
}

#[tokio::test]
async fn a_stateless_caller_without_a_conversation_names_its_session_and_binds_nothing() {
    let node = node_with(&["a"], Setup::new()).await;
    let nobody = node.stateless();
    let refused = nobody.call("bash", json!({"command": "pwd"})).await.refused();
    assert!(refused.text().contains("sessionId"), "{}", refused.text());
    let named = nobody.call("bash", json!({"command": "pwd", "sessionId": node.session("a")})).await;
    assert_eq!(pwd_of(&named), "a");
    let listed = nobody.call("sessions", json!({})).await.ok().header();
    assert_eq!(listed["sessions"][0]["bindingCount"], 0);
}
