//! The stdio door, `chappie mcp` (design 10): with a running node behind it and without, in both revisions, and how it
//! ends. Against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{io::Write as _, process::Stdio as Pipe, sync::Arc};

use chappie_tests::{Node, Revision, World, eventually, node::Setup, process, stdio::Stdio};
use serde_json::json;

const REVISIONS: [Revision; 2] = [Revision::Handshake, Revision::Stateless];

#[tokio::test]
async fn a_door_to_a_running_node_works_on_its_sessions_in_both_revisions() {
    let node = Node::single().await;
    let session = node.session("s");
    for revision in REVISIONS {
        let mut door = Stdio::start(&node.world, revision).await.chat("v1/pipes");
        let answer = door.call("bash", json!({"command": "pwd", "sessionId": session})).await.ok();
        assert!(answer.output().contains("/T"), "{}", answer.output());
        assert!(door.stray_lines().is_empty(), "only JSON-RPC on standard output: {:?}", door.stray_lines());
    }
    let over_http = node.chat("v1/pipes").call("sessions", json!({})).await.ok().header();
    assert_eq!(over_http["binding"], json!(session), "one node, one state");
}

#[tokio::test]
async fn a_door_without_a_node_runs_one_in_its_own_process() {
    for revision in REVISIONS {
        let world = World::new();
        let folder = world.folder("T");
        world.put(&folder.join("f"), "content\n");
        let mut door = Stdio::start(&world, revision).await.chat("v1/alone");
        let listed = door.request("tools/list", json!({})).await;
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 10);
        let sessions = door.call("sessions", json!({})).await.ok().header();
        assert!(sessions["sessions"].is_array(), "{sessions}");
    }
}

#[tokio::test]
async fn a_door_ends_at_the_end_of_its_input_and_leaves_the_node_alone() {
    let mut node = Node::single().await;
    let mut door = Stdio::start(&node.world, Revision::Handshake).await;
    door.close_input();
    let child = &mut door.child;
    let status = eventually("the door's end", async || child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
    assert!(node.is_running());
    let alone = World::new();
    let mut door = Stdio::start(&alone, Revision::Handshake).await;
    door.close_input();
    let child = &mut door.child;
    let status = eventually("the end of a door that is a node", async || child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
    assert!(process::marked(alone.mark()).is_empty());
}

#[tokio::test]
async fn a_door_ends_when_nobody_reads_its_output() {
    let node = Node::single().await;
    let mut child = node
        .world
        .chappie()
        .arg("mcp")
        .stdin(Pipe::piped())
        .stdout(Pipe::piped())
        .stderr(Pipe::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut input = child.stdin.take().unwrap();
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    }});
    let _ = input.write_all(format!("{request}\n").as_bytes());
    eventually("the door's end", async || child.try_wait().unwrap()).await;
    drop(input);
}

#[tokio::test]
async fn broken_lines_are_errors_and_the_next_line_works() {
    let node = Node::single().await;
    let mut door = Stdio::start(&node.world, Revision::Handshake).await.chat("v1/pipes");
    for line in ["", "{", "7", "[]", "{\"jsonrpc\":\"2.0\"}", "\u{1}"] {
        door.write_line(line).await;
    }
    let arguments = json!({"command": "echo fine", "sessionId": node.session("s")});
    assert!(door.call("bash", arguments).await.ok().output().contains("fine"));
    assert!(door.stray_lines().is_empty());
}

#[tokio::test]
async fn calls_over_one_pipe_run_beside_each_other_and_can_be_cancelled() {
    let node = Node::single().await;
    let session = node.session("s");
    let mut door = Stdio::start(&node.world, Revision::Handshake).await.chat("v1/pipes");
    let arguments = json!({"command": "sleep 444", "sessionId": session});
    let (id, response) = door.begin("tools/call", json!({"name": "bash", "arguments": arguments})).await;
    eventually("the command", async || (!process::running(node.world.mark(), "sleep 444").is_empty()).then_some(()))
        .await;
    // A waiting call does not block the others: `sessions` is answered meanwhile.
    door.call("sessions", json!({})).await.ok();
    let params = json!({"requestId": id, "reason": "gave up"});
    door.write(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await;
    eventually("its end", async || process::running(node.world.mark(), "sleep 444").is_empty().then_some(())).await;
    drop(response);
    let next = door.call("bash", json!({"command": "echo next", "sessionId": session})).await.ok();
    assert!(next.output().contains("next"));
}

#[tokio::test]
async fn a_pipe_works_in_the_folder_it_was_started_in_with_and_without_a_node() {
    let world = Arc::new(World::new());
    let (a, b) = (world.folder("a"), world.folder("b"));
    let node = Node::start(world, Setup::new().session(&a, "a")).await;
    let pwd = async |door: &mut Stdio| door.call("bash", json!({"command": "pwd"})).await.ok().output();
    let mut doors = Vec::new();
    for folder in [&a, &b] {
        let mut door = Stdio::start_in(folder, &node.world, Revision::Handshake).await;
        for _ in 0..2 {
            // Without a conversation of the client's, the pipe is one itself, and keeps its session.
            assert_eq!(pwd(&mut door).await.trim(), folder.display().to_string());
        }
        doors.push(door);
    }
    let alone = World::new();
    let folder = alone.folder("c");
    let mut door = Stdio::start_in(&folder, &alone, Revision::Handshake).await;
    assert_eq!(pwd(&mut door).await.trim(), folder.display().to_string());
}
