//! Cases DEV-01 to DEV-07: text edits through real MCP against the real program, bytes checked from outside. Each case
//! stands with its own bytes and hashes, then a variant of ours of the same kind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use base64::Engine;
use chappie_tests::{
    Answer, Client, Node,
    files::{self, Snapshot},
    node::Setup,
    world::World,
};
use serde_json::{Value, json};

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"path": path, "edits": [{"oldText": old, "newText": new}]})
}

/// A node, a client in a conversation of its own, and the session's folder made ready by `script`.
async fn ready(script: &str) -> (Node, Client) {
    let node = Node::single().await;
    node.world.sh(node.folder(), script);
    let client = node.chat("v1/cases");
    (node, client)
}

/// Runs `step`, which must be refused and change nothing in `folder`.
async fn refused(folder: &Path, step: impl Future<Output = Answer>) -> Answer {
    let before = Snapshot::of(folder);
    let answer = step.await.refused();
    assert_eq!(Snapshot::of(folder), before, "a refusal changes nothing");
    answer
}

#[tokio::test]
async fn dev_01_bom_and_crlf_survive_an_edit_given_with_lf() {
    let (node, client) = ready(r"printf '\xef\xbb\xbfalpha\r\nbeta\r\ngamma\r\n' > c.txt").await;
    client.call("edit", edit("c.txt", "alpha\nbeta\n", "ALPHA\nBETA\n")).await.ok();
    let file = node.folder().join("c.txt");
    assert_eq!(fs::read(&file).unwrap(), b"\xef\xbb\xbfALPHA\r\nBETA\r\ngamma\r\n");
    assert_eq!(files::sha16(&file), "d7932d623eebd388");
}

#[tokio::test]
async fn dev_01_variant_crlf_survives_several_edits_at_both_ends_and_a_missing_last_newline() {
    let (node, client) = ready(r"printf '\xef\xbb\xbfone\r\ntwo\r\nthree\r\nfour' > v.txt; chmod 0640 v.txt").await;
    let edits = json!([
        {"oldText": "three\nfour", "newText": "3\n4\n4b"},
        {"oldText": "one\ntwo", "newText": "1\n2"},
    ]);
    client.call("edit", json!({"path": "v.txt", "edits": edits})).await.ok();
    let file = node.folder().join("v.txt");
    assert_eq!(fs::read(&file).unwrap(), b"\xef\xbb\xbf1\r\n2\r\n3\r\n4\r\n4b");
    assert_eq!(files::mode(&file), 0o640);
}

#[tokio::test]
async fn dev_02_mixed_line_ends_elsewhere_are_untouched() {
    let (node, client) =
        ready(r"printf 'one\ntwo\r\nprog 10%%\rprog 20%%\rdone\nfour\n' > m.txt; cp m.txt before").await;
    client.call("edit", edit("m.txt", "four", "FOUR")).await.ok();
    let compared = node.world.sh(node.folder(), "cmp -l before m.txt || true");
    assert_eq!(compared.lines().count(), 4, "{compared}");
    assert_eq!(files::sha16(&node.folder().join("m.txt")), "595d3a04d94157ce");
}

#[tokio::test]
async fn dev_02_variant_an_edit_inside_the_crlf_part_keeps_both_kinds_of_line_end() {
    let (node, client) = ready(r"printf 'a\nb\r\nc\r\nd\ne\n' > m.txt").await;
    client.call("edit", edit("m.txt", "b\r\nc", "B\r\nC")).await.ok();
    assert_eq!(fs::read(node.folder().join("m.txt")).unwrap(), b"a\nB\r\nC\r\nd\ne\n");
}

#[tokio::test]
async fn dev_03_a_latin_1_file_is_refused_or_keeps_its_other_bytes() {
    let (node, client) = ready(r"printf 'x = 1\n# caf\xe9 r\xe9sum\xe9\n' > l.txt").await;
    let file = node.folder().join("l.txt");
    let read = client.call("read", json!({"path": "l.txt"})).await;
    let before = Snapshot::of(node.folder());
    let answer = client.call("edit", edit("l.txt", "x = 1", "x = 2")).await;
    let bytes = fs::read(&file).unwrap();
    assert!(!bytes.windows(3).any(|window| window == b"\xef\xbf\xbd"), "no replacement character");
    if answer.is_error {
        assert_eq!(files::sha16(&file), "ac4e533960bfa93c");
        assert_eq!(Snapshot::of(node.folder()), before);
        let text = answer.text().to_lowercase();
        assert!(text.contains("utf-8") || text.contains("latin") || text.contains("encoding"), "{text}");
    } else {
        assert_eq!(files::sha16(&file), "408a86aabc7b952a");
    }
    // What `read` says of the encoding and what `edit` does must agree.
    let said = read.text().to_lowercase();
    assert!(read.is_error || said.contains("x = 1"), "{said}");
    assert!(!said.contains('\u{fffd}') || said.contains("utf-8") || said.contains("encoding"), "{said}");
}

#[tokio::test]
async fn dev_03_variant_an_edit_whose_old_text_is_not_ascii_never_writes_replacement_characters() {
    let (node, client) = ready(r"printf 'caf\xe9 one\ncaf\xc3\xa9 two\n' > l.txt").await;
    let before = fs::read(node.folder().join("l.txt")).unwrap();
    let answer = client.call("edit", edit("l.txt", "café two", "tea two")).await;
    let after = fs::read(node.folder().join("l.txt")).unwrap();
    if answer.is_error {
        assert_eq!(after, before);
    } else {
        assert_eq!(after, b"caf\xe9 one\ntea two\n");
    }
}

#[tokio::test]
async fn dev_04_an_old_text_that_overlaps_itself_is_in_two_places() {
    let (node, client) = ready(r"printf 'foo\nfoo\nfoo\n' > o.txt").await;
    let answer = refused(node.folder(), client.call("edit", edit("o.txt", "foo\nfoo\n", "bar\n"))).await;
    let text = answer.text();
    assert!(text.contains('2') || text.to_lowercase().contains("two"), "says two places: {text}");
    assert_eq!(files::sha16(&node.folder().join("o.txt")), "2c7289545968d565");
}

#[tokio::test]
async fn dev_04_variant_one_ambiguous_member_refuses_all_members() {
    let (node, client) = ready(r"printf 'head\naXa\naXaXa\ntail\n' > o.txt").await;
    let edits = json!([{"oldText": "head", "newText": "HEAD"}, {"oldText": "aXa", "newText": "b"}]);
    let answer = refused(node.folder(), client.call("edit", json!({"path": "o.txt", "edits": edits}))).await;
    assert!(answer.text().contains("o.txt"), "{}", answer.text());
    assert!(answer.text().contains('3'), "three places: {}", answer.text());
}

const PATTERN: &str = r#""$& $1 $$ \1 ${x} $`""#;

async fn assert_dev_05(node: &Node, step: impl Future<Output = Answer>) {
    node.world.sh(node.folder(), r#"printf 'log("done");\n' > d.js"#);
    step.await.ok();
    let file = node.folder().join("d.js");
    assert_eq!(files::text(&file), format!("log({PATTERN});\n"));
    assert_eq!(files::sha16(&file), "d9de7629874fc44b");
}

#[tokio::test]
async fn dev_05_replacement_patterns_are_plain_text_by_edit_by_call_and_by_base64() {
    let (node, client) = ready("true").await;
    let arguments = edit("d.js", "\"done\"", PATTERN);
    assert_dev_05(&node, client.call("edit", arguments.clone())).await;
    let calls = json!([{"name": "edit", "arguments": arguments}]);
    assert_dev_05(&node, client.call("call", json!({"calls": calls}))).await;
    let encoded = base64::engine::general_purpose::STANDARD.encode(calls.to_string());
    assert_dev_05(&node, client.call("call", json!({"base64": encoded}))).await;
}

#[tokio::test]
async fn dev_05_variant_regex_characters_in_the_old_text_are_plain_text() {
    let (node, client) = ready(r"printf 'a.*b\nacccb\n' > r.txt").await;
    client.call("edit", edit("r.txt", "a.*b", "$0 \\0 \\n")).await.ok();
    assert_eq!(files::text(&node.folder().join("r.txt")), "$0 \\0 \\n\nacccb\n");
}

#[tokio::test]
async fn dev_06_links_stay_links_and_their_target_keeps_its_mode() {
    let script = "printf 'echo old\\n' > real.sh; chmod 0755 real.sh; ln -s real.sh l1; ln -s l1 l2; ln -s loop loop";
    let (node, client) = ready(script).await;
    let real = node.folder().join("real.sh");
    client.call("edit", edit("l2", "old", "new")).await.ok();
    assert_eq!(files::text(&real), "echo new\n");
    client.call("write", json!({"path": "l1", "content": "echo newer\n"})).await.ok();
    assert_eq!(files::text(&real), "echo newer\n");
    assert_eq!(files::mode(&real), 0o755);
    for (link, target) in [("l1", "real.sh"), ("l2", "l1"), ("loop", "loop")] {
        assert_eq!(fs::read_link(node.folder().join(link)).unwrap(), Path::new(target));
    }
    let answer = refused(node.folder(), client.call("write", json!({"path": "loop", "content": "x"}))).await;
    assert!(answer.text().contains("loop"), "{}", answer.text());
}

#[tokio::test]
async fn dev_06_variant_a_link_into_another_folder_and_a_dangling_link() {
    let script =
        "mkdir far; printf 'one\\n' > far/t.txt; chmod 0600 far/t.txt; ln -s far/t.txt near; ln -s nowhere/x gone";
    let (node, client) = ready(script).await;
    client.call("edit", edit("near", "one", "two")).await.ok();
    assert_eq!(files::text(&node.folder().join("far/t.txt")), "two\n");
    assert_eq!(files::mode(&node.folder().join("far/t.txt")), 0o600);
    assert!(fs::symlink_metadata(node.folder().join("near")).unwrap().is_symlink());
    refused(node.folder(), client.call("edit", edit("gone", "a", "b"))).await;
}

#[tokio::test]
async fn dev_07a_two_edits_of_one_file_in_one_batch_both_land() {
    let (node, client) = ready("seq 1 100 > n.txt").await;
    let calls = json!([
        {"name": "edit", "arguments": edit("n.txt", "50", "FIFTY")},
        {"name": "edit", "arguments": edit("n.txt", "75", "SEVENTYFIVE")},
    ]);
    let answer = client.call("call", json!({"calls": calls})).await.ok();
    assert_eq!(answer.results().len(), 2);
    let text = files::text(&node.folder().join("n.txt"));
    assert!(text.contains("FIFTY") && text.contains("SEVENTYFIVE"), "{text}");
    assert_eq!(text.lines().count(), 100);
}

/// Sends 20 edits of `p.txt` at the same time, taking turns between `clients`; gives how many succeeded.
async fn twenty_edits(clients: &[Client], path: &str) -> usize {
    let calls: Vec<_> = (201..=220)
        .map(|number: usize| {
            let client = &clients[number % clients.len()];
            client.begin("edit", edit(path, &number.to_string(), &format!("line-{number}")))
        })
        .collect();
    let mut succeeded = 0;
    for call in calls {
        if !call.answer().await.is_error {
            succeeded += 1;
        }
    }
    succeeded
}

fn changed_lines(path: &Path) -> usize {
    let text = files::text(path);
    assert_eq!(text.lines().count(), 20, "{text}");
    text.lines().filter(|line| line.starts_with("line-2")).count()
}

#[tokio::test]
async fn dev_07b_twenty_edits_at_once_all_land_ten_times() {
    let (node, client) = ready("true").await;
    let file = node.folder().join("p.txt");
    for _ in 0..10 {
        node.world.sh(node.folder(), "seq 201 220 > p.txt");
        assert_eq!(twenty_edits(std::slice::from_ref(&client), "p.txt").await, 20);
        assert_eq!(changed_lines(&file), 20);
    }
}

#[tokio::test]
async fn dev_07b_twenty_edits_at_once_from_two_sessions_lose_none() {
    let world = std::sync::Arc::new(World::new());
    let (a, b) = (world.folder("T"), world.folder("U"));
    let node = Node::start(world, Setup::new().session(&a, "a").session(&b, "b")).await;
    node.world.sh(&a, "seq 201 220 > p.txt");
    let clients = [node.chat("v1/one"), node.chat("v1/two")];
    for client in &clients {
        client.call("bash", json!({"command": "pwd"})).await.ok();
    }
    let path = a.join("p.txt").display().to_string();
    let succeeded = twenty_edits(&clients, &path).await;
    assert_eq!(changed_lines(&a.join("p.txt")), succeeded, "every success is in the file");
}

#[tokio::test]
async fn dev_07_variant_edits_and_writes_of_one_file_through_a_link_take_turns() {
    let (node, client) = ready("printf 'v0\\n' > w.txt; ln -s w.txt alias").await;
    let mut calls = Vec::new();
    for round in 0..10 {
        let path = if round % 2 == 0 { "w.txt" } else { "alias" };
        calls.push(client.begin("write", json!({"path": path, "content": format!("v{round}\n").repeat(2_000)})));
    }
    for call in calls {
        call.answer().await.ok();
        let text = files::text(&node.folder().join("w.txt"));
        let first = text.lines().next().unwrap_or_default().to_owned();
        assert!(text.lines().all(|line| line == first), "a file is always of one write only");
    }
}
