//! Cases DEV-23 to DEV-25: conversations, session ids and people's inputs over MCP, against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use chappie_tests::{
    Answer, Client, Node, Revision, client::CallError, eventually, node::Setup, process, world::World,
};
use serde_json::{Value, json};

async fn two_sessions() -> (Node, String, String) {
    let world = Arc::new(World::new());
    let (x, y) = (world.folder("X"), world.folder("Y"));
    let node = Node::start(world, Setup::new().session(&x, "x").session(&y, "y").cooldown(0.0)).await;
    let ids = (node.session("x"), node.session("y"));
    (node, ids.0, ids.1)
}

async fn pwd(client: &Client) -> Answer {
    client.call("bash", json!({"command": "pwd"})).await
}

fn assert_in(answer: &Answer, folder: &str) {
    let text = answer.output();
    assert!(!answer.is_error && text.lines().any(|line| line.ends_with(folder)), "not in {folder}: {text}");
}

async fn dev_23(revision: Revision) {
    let (mut node, x, _) = two_sessions().await;
    let open = async |node: &Node| Client::open(node.url(), revision).await;
    open(&node).await.chat("s1").call("init", json!({"sessionId": x})).await.ok();
    assert_in(&pwd(&open(&node).await.chat("s1")).await, "/X");
    assert_in(&pwd(&open(&node).await.chat("s2")).await, "/Y");
    node.restart().await;
    assert_in(&pwd(&open(&node).await.chat("s1")).await, "/X");
    // Without a conversation: an answer, whatever it is, and never a crash.
    let nobody = pwd(&open(&node).await).await;
    assert!(nobody.is_error, "both sessions are bound: nothing is free for a nameless caller: {}", nobody.text());
    assert!(nobody.text().contains("sessionId") || nobody.text().contains("session"), "{}", nobody.text());
    assert_in(&pwd(&open(&node).await.chat("s2")).await, "/Y");
    assert!(node.is_running());
}

#[tokio::test]
async fn dev_23_a_conversation_keeps_its_session_over_connections_and_a_restart_2025_11_25() {
    dev_23(Revision::Handshake).await;
}

#[tokio::test]
async fn dev_23_a_conversation_keeps_its_session_over_connections_and_a_restart_2026_07_28() {
    dev_23(Revision::Stateless).await;
}

#[tokio::test]
async fn dev_23_variant_init_moves_the_default_and_the_move_survives_a_restart() {
    let (mut node, x, y) = two_sessions().await;
    node.chat("s1").call("init", json!({"sessionId": x})).await.ok();
    node.chat("s1").call("bash", json!({"command": "pwd", "sessionId": y})).await.ok();
    assert_in(&pwd(&node.chat("s1")).await, "/X");
    node.chat("s1").call("init", json!({"sessionId": y})).await.ok();
    node.restart().await;
    assert_in(&pwd(&node.chat("s1")).await, "/Y");
}

#[tokio::test]
async fn dev_24_an_old_session_id_is_answered_as_the_protocol_says() {
    let (mut node, _, _) = two_sessions().await;
    let before = node.client().await;
    let issued = before.session().map(str::to_owned);
    node.restart().await;
    let old = issued.as_deref().unwrap_or("0190-never-issued");
    let never = Client::handshake(node.url()).await;
    let with_old = never.with_session(Some(old));
    let listed = with_old.request("tools/list", json!({})).await;
    match issued {
        Some(_) => {
            let Err(CallError::Refused { status: 404, .. }) = listed else { panic!("expected 404, got {listed:?}") };
            let mut again = with_old.clone();
            again.initialize().await.expect("initialize is accepted with an old id");
            assert_ne!(again.session(), Some(old), "a new id");
            again.request("tools/list", json!({})).await.expect("the new id works");
            let without = never.with_session(None).request("tools/list", json!({})).await;
            let Err(CallError::Refused { status, code, .. }) = without else { panic!("expected 4xx: {without:?}") };
            assert!((400..500).contains(&status) && code != 0, "HTTP {status}, code {code}");
        }
        None => {
            listed.expect("a stateless server takes no notice of the id");
            with_old.clone().initialize().await.expect("nor does initialize");
            never.with_session(None).request("tools/list", json!({})).await.expect("and needs none");
        }
    }
}

#[tokio::test]
async fn dev_24_variant_a_conversation_goes_on_while_its_connections_come_and_go() {
    let (node, x, _) = two_sessions().await;
    for round in 0..3 {
        let client = node.client().await.chat("s1");
        client.call("init", json!({"sessionId": x})).await.ok();
        client.call("bash", json!({"command": format!("echo {round} >> rounds")})).await.ok();
        // The stateless revision ignores session ids altogether.
        let stray = node.chat("s1").with_session(Some("stray"));
        assert_in(&pwd(&stray).await, "/X");
    }
    assert_eq!(node.world.sh(&node.world.root().join("X"), "cat rounds"), "0\n1\n2\n");
}

async fn entries_with(client: &Client, session: &str, words: &[&str]) -> Vec<usize> {
    let page = client.call("history", json!({"sessionId": session, "limit": 200})).await.ok();
    let users: Vec<_> = page
        .sections()
        .into_iter()
        .filter(|section| section.head["role"] == "user" || section.head["message"]["role"] == "user")
        .collect();
    words.iter().map(|word| users.iter().filter(|entry| entry.text.contains(word)).count()).collect()
}

async fn dev_25(revision: Revision) {
    let node = Node::single().await;
    let session = node.session("s");
    let client = Client::open(node.url(), revision).await.chat("s1");
    let sleep = client.begin("bash", json!({"command": "sleep 20"}));
    eventually("the sleep", async || (!process::running(node.world.mark(), "sleep 20").is_empty()).then_some(())).await;
    node.say(&session, "NOTE-A");
    node.say(&session, "NOTE-B");
    sleep.cancel().await;
    eventually("the sleep's end", async || process::running(node.world.mark(), "sleep 20").is_empty().then_some(()))
        .await;
    let mut arrived: Vec<String> = Vec::new();
    for word in ["one", "two"] {
        let answer = client.call("bash", json!({"command": format!("echo {word}")})).await.ok();
        assert!(answer.output().contains(word));
        arrived.extend(answer.inputs().into_iter().map(|input| input.text));
    }
    assert_eq!(arrived, ["NOTE-A", "NOTE-B"]);
    assert_eq!(entries_with(&client, &session, &["NOTE-A", "NOTE-B"]).await, [1, 1]);
}

#[tokio::test]
async fn dev_25_inputs_arrive_once_and_in_order_after_a_cancelled_call_2025_11_25() {
    dev_25(Revision::Handshake).await;
}

#[tokio::test]
async fn dev_25_inputs_arrive_once_and_in_order_after_a_cancelled_call_2026_07_28() {
    dev_25(Revision::Stateless).await;
}

#[tokio::test]
async fn dev_25_variant_images_typed_at_the_session_arrive_once_in_order_with_their_bytes() {
    let node = Node::single().await;
    let session = node.session("s");
    let client = node.chat("s1");
    client.call("bash", json!({"command": "true"})).await.ok();
    let mut sizes = Vec::new();
    for (index, side) in [(0, 16), (1, 24)] {
        let path = node.world.root().join(format!("shot-{index}.png"));
        image::RgbImage::from_pixel(side, side, image::Rgb([9, 99, 200])).save(&path).unwrap();
        node.world.run_ok(&["say", &session, &format!("LOOK-{index}"), "--image", &path.display().to_string()]);
        sizes.push((side, side));
    }
    let first = client.call("bash", json!({"command": "echo one"})).await.ok();
    let second = client.call("bash", json!({"command": "echo two"})).await.ok();
    let inputs: Vec<_> = first.inputs().into_iter().chain(second.inputs()).collect();
    let texts: Vec<&str> = inputs.iter().map(|input| input.text.as_str()).collect();
    assert_eq!(texts, ["LOOK-0", "LOOK-1"]);
    let shown: Vec<_> = inputs
        .iter()
        .flat_map(|input| &input.images)
        .map(|image| image::load_from_memory(&image.bytes).unwrap().to_rgb8().dimensions())
        .collect();
    assert_eq!(shown, sizes);
    let references: Vec<Value> = inputs.iter().flat_map(|input| &input.references).map(|uri| json!(uri)).collect();
    assert_eq!(references.len(), 2, "each image has a reference");
    let third = client.call("bash", json!({"command": "echo three"})).await.ok();
    assert!(third.inputs().is_empty(), "each arrives once");
}
