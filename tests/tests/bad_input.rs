//! Bad input: a clear tool error that names what was wrong, nothing changed, no hang, and the next call works. Against the
//! real program, as an ordinary user.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, sync::Arc};

use base64::Engine;
use chappie_tests::{
    Client, Node, World,
    answer::excerpt,
    files::{self, Snapshot},
    node::Setup,
};
use serde_json::{Value, json};

/// Runs `tool`, which must be refused with every one of `words` in its text and leave the folder as it was; then a next
/// call, which must work.
async fn refused(node: &Node, client: &Client, tool: &str, arguments: Value, words: &[&str]) {
    let before = Snapshot::of(node.folder());
    let answer = client.call(tool, arguments.clone()).await;
    let what = format!("{tool} {}", excerpt(&arguments.to_string()));
    assert!(answer.is_error, "{what}: expected an error, got {}", excerpt(&answer.text()));
    let text = answer.text();
    assert!(text.chars().count() < 4_000, "{what}: an error of {} characters", text.chars().count());
    for word in words {
        assert!(text.to_lowercase().contains(&word.to_lowercase()), "{what}: '{word}' is not in: {}", excerpt(&text));
    }
    assert_eq!(answer.structured["text"], json!(text), "{what}: structuredContent satisfies its schema in errors too");
    assert_eq!(Snapshot::of(node.folder()), before, "{what}: nothing changes");
    let next = client.call("bash", json!({"command": "echo next"})).await.ok();
    assert!(next.output().contains("next"));
}

async fn ready(script: &str) -> (Node, Client) {
    let node = Node::single().await;
    node.world.sh(node.folder(), script);
    let client = node.chat("v1/bad");
    (node, client)
}

#[tokio::test]
async fn unknown_keys_are_refused_by_name() {
    let (node, client) = ready("echo x > f").await;
    for (tool, arguments) in [
        ("init", json!({"sesionId": "a"})),
        ("history", json!({"sesionId": 5})),
        ("sessions", json!({"sesionId": true})),
        ("tools", json!({"sesionId": null})),
        ("chat", json!({"text": "a", "sesionId": "a"})),
        ("call", json!({"calls": [{"name": "ls", "arguments": {}}], "sesionId": "a"})),
        ("read", json!({"path": "f", "sesionId": "a"})),
        ("bash", json!({"command": "touch made", "sesionId": "a"})),
        ("edit", json!({"path": "f", "edits": [{"oldText": "x", "newText": "y"}], "sesionId": "a"})),
        ("write", json!({"path": "made", "content": "a", "sesionId": "a"})),
    ] {
        refused(&node, &client, tool, arguments, &["sesionId"]).await;
    }
    let member = json!({"calls": [{"name": "write", "arguments": {"path": "made", "content": "x", "mode": 5}}]});
    refused(&node, &client, "call", member, &["mode"]).await;
    let nested = json!({"path": "f", "edits": [{"oldText": "x", "newText": "y", "all": true}]});
    refused(&node, &client, "edit", nested, &["all"]).await;
}

#[tokio::test]
async fn wrong_types_and_missing_fields_are_refused_by_name() {
    let (node, client) = ready("echo x > f").await;
    for (tool, arguments, word) in [
        ("read", json!({}), "path"),
        ("read", json!({"path": 7}), "path"),
        ("read", json!({"path": ["f"]}), "path"),
        ("read", json!({"path": "f", "offset": "3"}), "offset"),
        ("read", json!({"path": "f", "offset": 0}), "offset"),
        ("read", json!({"path": "f", "offset": -1}), "offset"),
        ("read", json!({"path": "f", "limit": 1.5}), "limit"),
        ("read", json!({"path": "f", "limit": 1e300}), "limit"),
        ("bash", json!({}), "command"),
        ("bash", json!({"command": null}), "command"),
        ("bash", json!({"command": "touch made", "timeout": "1"}), "timeout"),
        ("bash", json!({"command": "touch made", "timeout": 0}), "timeout"),
        ("bash", json!({"command": "touch made", "timeout": -5}), "timeout"),
        ("bash", json!({"command": "touch made", "timeout": 1e18}), "timeout"),
        ("write", json!({"path": "made"}), "content"),
        ("write", json!({"path": "made", "content": {"a": 1}}), "content"),
        ("edit", json!({"path": "f"}), "edits"),
        ("edit", json!({"path": "f", "edits": []}), "edits"),
        ("edit", json!({"path": "f", "edits": "x"}), "edits"),
        ("edit", json!({"path": "f", "edits": [{"oldText": "x"}]}), "newText"),
        ("edit", json!({"path": "f", "edits": [{"oldText": "", "newText": "y"}]}), "oldText"),
        ("edit", json!({"patch": "*** Begin"}), "patch"),
        ("chat", json!({}), "text"),
        ("chat", json!({"text": ""}), "text"),
        ("chat", json!({"text": "a", "replyTo": ""}), "replyTo"),
        ("chat", json!({"text": "a", "replyTo": "no-such-request"}), "request"),
        ("tools", json!({"names": []}), "names"),
        ("tools", json!({"names": "ls"}), "names"),
        ("init", json!({"sessionId": ""}), "sessionId"),
        ("init", json!({"sessionId": 7}), "sessionId"),
    ] {
        refused(&node, &client, tool, arguments, &[word]).await;
    }
}

#[tokio::test]
async fn a_call_is_one_of_calls_and_base64_and_both_are_checked() {
    let (node, client) = ready("true").await;
    let encode = |text: &[u8]| base64::engine::general_purpose::STANDARD.encode(text);
    let touch = json!([{"name": "bash", "arguments": {"command": "touch made"}}]);
    let good = encode(touch.to_string().as_bytes());
    let many: Vec<Value> = (0..129).map(|_| touch[0].clone()).collect();
    let transfer = json!([{"name": "transfer", "arguments": {"files": [{"download_url": "http://127.0.0.1:9/a"}]}}]);
    for (arguments, word) in [
        (json!({}), "calls"),
        (json!({"calls": touch, "base64": good}), "base64"),
        (json!({"calls": []}), "calls"),
        (json!({"calls": many}), "128"),
        (json!({"calls": [7]}), "calls"),
        (json!({"calls": [{"name": "bash"}]}), "arguments"),
        (json!({"calls": [{"arguments": {}}]}), "name"),
        (json!({"base64": ""}), "base64"),
        (json!({"base64": "@@@@"}), "base64"),
        (json!({"base64": good.trim_end_matches('=').get(..good.len() - 2)}), "base64"),
        (json!({"base64": format!("{good}\n")}), "base64"),
        (json!({"base64": encode(b"\xff\xfe")}), "base64"),
        (json!({"base64": encode(b"not json")}), "base64"),
        (json!({"base64": encode(b"{}")}), "base64"),
        (json!({"calls": transfer}), "transfer"),
    ] {
        refused(&node, &client, "call", arguments, &[word]).await;
    }
    let answer = client.call("call", json!({"calls": [{"name": "no_such_tool", "arguments": {}}]})).await.refused();
    assert!(answer.text().contains("no_such_tool"), "{}", answer.text());
}

#[tokio::test]
async fn one_failed_member_marks_the_batch_and_the_others_keep_their_results() {
    let (_node, client) = ready("echo here > f").await;
    let calls = json!([
        {"name": "read", "arguments": {"path": "f"}},
        {"name": "read", "arguments": {"path": "missing"}},
        {"name": "bash", "arguments": {"command": "echo still"}},
    ]);
    let answer = client.call("call", json!({"calls": calls})).await.refused();
    let results = answer.results();
    let errors: Vec<&Value> = results.iter().map(|result| &result.head["isError"]).collect();
    assert_eq!(errors, [&json!(false), &json!(true), &json!(false)]);
    assert!(results[0].text.contains("here") && results[2].text.contains("still"));
}

#[tokio::test]
async fn paths_that_are_not_plain_files_are_refused_with_their_kind() {
    let (node, client) = ready("mkdir d; mkfifo p; ln -s nowhere dangling; : > f").await;
    for (tool, arguments, words) in [
        ("read", json!({"path": "missing.txt"}), ["missing.txt", "does not exist"]),
        ("read", json!({"path": "d"}), ["d", "folder"]),
        ("read", json!({"path": "f/below"}), ["f/below", "not a"]),
        ("read", json!({"path": "dangling"}), ["dangling", "does not exist"]),
        ("read", json!({"path": "/dev/zero"}), ["/dev/zero", "device"]),
        ("read", json!({"path": "/dev/tty"}), ["/dev/tty", "device"]),
        ("edit", json!({"path": "d", "edits": [{"oldText": "a", "newText": "b"}]}), ["d", "folder"]),
        ("edit", json!({"path": "p", "edits": [{"oldText": "a", "newText": "b"}]}), ["p", "pipe"]),
        (
            "edit",
            json!({"path": "missing", "edits": [{"oldText": "a", "newText": "b"}]}),
            ["missing", "does not exist"],
        ),
        ("edit", json!({"path": "/dev/null", "edits": [{"oldText": "a", "newText": "b"}]}), ["/dev/null", "device"]),
        ("write", json!({"path": "d", "content": "x"}), ["d", "folder"]),
        ("write", json!({"path": "p", "content": "x"}), ["p", "pipe"]),
        ("write", json!({"path": "/dev/full", "content": "x"}), ["/dev/full", "device"]),
        ("write", json!({"path": "f/below", "content": "x"}), ["f/below", "not a"]),
        ("write", json!({"path": "/proc/chappie", "content": "x"}), ["/proc/chappie", ""]),
    ] {
        refused(&node, &client, tool, arguments, &words).await;
    }
}

#[tokio::test]
async fn empty_huge_and_odd_strings_are_refused_or_done_never_hung() {
    let (node, client) = ready("true").await;
    let long = "n".repeat(300);
    let huge = "p/".repeat(20_000);
    for (tool, arguments, word) in [
        ("read", json!({"path": ""}), "path"),
        ("read", json!({"path": "a\u{0}b"}), "nul"),
        ("write", json!({"path": "", "content": "x"}), "path"),
        ("write", json!({"path": "a\u{0}b", "content": "x"}), "nul"),
        ("write", json!({"path": long, "content": "x"}), "longer than"),
        ("write", json!({"path": huge, "content": "x"}), "long"),
        ("bash", json!({"command": ""}), "command"),
        ("bash", json!({"command": "   "}), "command"),
        ("bash", json!({"command": "echo a\u{0}b"}), "nul"),
        ("edit", json!({"path": "", "edits": [{"oldText": "a", "newText": "b"}]}), "path"),
    ] {
        refused(&node, &client, tool, arguments, &[word]).await;
    }
    // A command longer than one argument of execve may be still runs, or says why not.
    let padded = format!("echo start; : {}; echo end", "x".repeat(300_000));
    let answer = client.call("bash", json!({"command": padded})).await;
    assert!(answer.text().contains("end") || answer.is_error, "{}", excerpt(&answer.text()));
    let big = "0123456789abcdef".repeat(1 << 18);
    client.call("write", json!({"path": "big", "content": big})).await.ok();
    assert_eq!(fs::metadata(node.folder().join("big")).unwrap().len(), 4 << 20);
}

#[tokio::test]
async fn names_outside_utf_8_are_listed_and_named_without_a_panic() {
    let (node, client) = ready("true").await;
    let odd = node.folder().join(OsStr::from_bytes(b"odd-\xff-name"));
    node.world.put(&odd, "inside");
    for (name, arguments) in [
        ("ls", json!({"path": "."})),
        ("find", json!({"pattern": "odd*", "path": "."})),
        ("grep", json!({"pattern": "inside", "path": "."})),
    ] {
        let answer = client.call("call", json!({"calls": [{"name": name, "arguments": arguments}]})).await;
        assert!(answer.text().contains("odd-"), "{name}: {}", excerpt(&answer.text()));
    }
    let bash = client.call("bash", json!({"command": "cat odd-*; printf '\\377\\n'"})).await.ok();
    assert!(bash.output().contains("inside"), "{}", bash.output());
    refused(&node, &client, "read", json!({"path": "odd-\u{fffd}-name"}), &["odd-", "does not exist"]).await;
}

#[tokio::test]
async fn what_the_user_may_not_read_or_write_is_refused_and_kept() {
    let (node, client) = ready(
        "echo secret > locked; chmod 000 locked; echo a > ro; chmod 444 ro; mkdir rod; echo b > rod/f; chmod 555 rod",
    )
    .await;
    for (tool, arguments, words) in [
        ("read", json!({"path": "locked"}), ["locked", "permission"]),
        ("edit", json!({"path": "locked", "edits": [{"oldText": "s", "newText": "t"}]}), ["locked", "read-only"]),
        ("write", json!({"path": "ro", "content": "x"}), ["ro", ""]),
        ("edit", json!({"path": "ro", "edits": [{"oldText": "a", "newText": "b"}]}), ["ro", ""]),
        ("write", json!({"path": "rod/new", "content": "x"}), ["rod", "permission"]),
        ("write", json!({"path": "rod/sub/new", "content": "x"}), ["rod", "permission"]),
    ] {
        refused(&node, &client, tool, arguments, &words).await;
    }
    node.world.sh(node.folder(), "chmod 755 rod");
}

#[tokio::test]
async fn a_deleted_working_folder_is_named_and_comes_back_when_made_again() {
    let (node, client) = ready("true").await;
    client.call("bash", json!({"command": "pwd"})).await.ok();
    fs::remove_dir_all(node.folder()).unwrap();
    for (tool, arguments) in [
        ("bash", json!({"command": "pwd"})),
        ("read", json!({"path": "f"})),
        ("edit", json!({"path": "f", "edits": [{"oldText": "a", "newText": "b"}]})),
    ] {
        let answer = client.call(tool, arguments).await.refused();
        assert!(answer.text().contains("/T"), "{tool} names the folder: {}", answer.text());
    }
    assert!(!node.folder().exists(), "nobody makes it behind the user's back");
    node.world.folder("T");
    assert!(client.call("bash", json!({"command": "echo back"})).await.ok().output().contains("back"));
}

/// A folder on a disk of one mebibyte, in a mount namespace of the node's own.
async fn on_a_tiny_disk(size: &str) -> (Node, Client, std::path::PathBuf) {
    let world = Arc::new(World::privileged());
    let folder = world.folder("T");
    let mount = format!("mount -t tmpfs -o size={size} tmpfs '{}'", folder.display());
    let setup = Setup::new().session(&folder, "s").in_mount_namespace(&mount);
    let node = Node::start(world, setup).await;
    let client = node.chat("v1/full");
    client.call("bash", json!({"command": "echo keep > old"})).await.ok();
    // The test sees the node's namespace through /proc.
    let inside = std::path::PathBuf::from(format!("/proc/{}/root{}", node.pid(), folder.display()));
    (node, client, inside)
}

#[tokio::test]
async fn a_full_disk_is_named_and_leaves_old_content_and_no_remains() {
    let (_node, client, inside) = on_a_tiny_disk("1m").await;
    let before = Snapshot::of(&inside);
    let big = "x".repeat(3 << 20);
    for (tool, arguments) in [
        ("write", json!({"path": "new", "content": big})),
        ("write", json!({"path": "old", "content": big})),
        ("edit", json!({"path": "old", "edits": [{"oldText": "keep", "newText": big}]})),
    ] {
        let text = client.call(tool, arguments).await.refused().text();
        assert!(text.to_lowercase().contains("no space left"), "{tool}: {}", excerpt(&text));
        assert!(text.contains("old") || text.contains("new"), "{tool} names the file: {}", excerpt(&text));
        assert_eq!(Snapshot::of(&inside), before, "{tool}: nothing changes, nothing is left");
    }
    client.call("write", json!({"path": "old", "content": "fits"})).await.ok();
    assert_eq!(files::text(&inside.join("old")), "fits");
}

#[tokio::test]
async fn a_full_disk_under_a_command_is_the_commands_error() {
    let (_node, client, _) = on_a_tiny_disk("1m").await;
    let answer = client.call("bash", json!({"command": "head -c 3000000 /dev/zero > fill"})).await.refused();
    assert!(answer.text().contains("No space left"), "{}", answer.text());
    let next = client.call("bash", json!({"command": "rm fill; cat old"})).await.ok();
    assert!(next.output().contains("keep"));
}

/// Failure rule F25: with less than 64 MiB free under its own folder, a node refuses new mutating work before it begins.
#[tokio::test]
async fn f25_a_full_disk_under_the_nodes_own_folder_refuses_work_before_it_begins_and_recovers() {
    let world = Arc::new(World::privileged());
    let folder = world.folder("T");
    let state = world.state();
    let mount = format!("mount -t tmpfs -o size=96m,mode=700 tmpfs '{}'", state.display());
    let node = Node::start(world, Setup::new().session(&folder, "s").in_mount_namespace(&mount)).await;
    // The command line cannot see into the namespace, so the session's id comes over MCP.
    let client = node.chat("v1/full");
    client.call("bash", json!({"command": "echo keep > old"})).await.ok();
    let fill = format!("/proc/{}/root{}/fill", node.pid(), state.display());
    fs::write(&fill, vec![0_u8; 60 << 20]).unwrap();
    for (tool, arguments) in [
        ("bash", json!({"command": "touch made"})),
        ("write", json!({"path": "made", "content": "x"})),
        ("edit", json!({"path": "old", "edits": [{"oldText": "keep", "newText": "lost"}]})),
    ] {
        let text = client.call(tool, arguments).await.refused().text();
        assert!(text.contains("free") || text.contains("full") || text.contains("space"), "{tool}: {}", excerpt(&text));
    }
    assert!(!folder.join("made").exists());
    assert_eq!(files::text(&folder.join("old")), "keep\n");
    assert!(client.call("read", json!({"path": "old"})).await.ok().output().contains("keep"), "reading goes on");
    fs::remove_file(&fill).unwrap();
    chappie_tests::eventually("work again", async || {
        (!client.call("bash", json!({"command": "touch made"})).await.is_error).then_some(())
    })
    .await;
}
