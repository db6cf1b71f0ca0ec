//! The command line that scripts depend on (design 11), against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Output};

use chappie_tests::{Node, World, eventually, node::Setup};
use serde_json::{Value, json};

fn json_of(node: &Node, arguments: &[&str]) -> Value {
    let printed = node.world.run_ok(arguments);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {printed}"))
}

fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(output.stdout.is_empty(), "an error prints nothing to standard output");
    for word in words {
        assert!(error.contains(word), "'{word}' is not in: {error}");
    }
}

#[tokio::test]
async fn the_ready_line_has_the_fields_that_scripts_wait_for() {
    let node = Node::single().await;
    let ready = node.ready();
    assert_eq!(ready["ready"], true);
    assert!(ready["node"].as_str().is_some_and(|id| id.len() > 20), "{ready}");
    assert!(ready["mcp"].as_str().is_some_and(|url| url.starts_with("http://127.0.0.1:") && url.ends_with("/mcp")));
    let sessions = ready["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 1, "{ready}");
    let status = json_of(&node, &["status", "--json"]);
    assert_eq!(status["node"], ready["node"]);
}

#[tokio::test]
async fn status_and_sessions_print_what_is_promised() {
    let node = Node::single_with(Setup::new().argument("--name").argument("laptop")).await;
    let status = json_of(&node, &["status", "--json"]);
    assert_eq!(status["name"], "laptop");
    assert_eq!(status["broker"]["node"], status["node"]);
    assert_eq!(status["broker"]["self"], true);
    assert_eq!(status["quorum"], json!({"voters": 1, "reachable": 1, "ok": true}));
    assert_eq!(status["peers"], json!([]));
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status.as_object().unwrap().contains_key("mesh"));
    let row = json_of(&node, &["sessions", "--json"])["sessions"][0].clone();
    for key in ["id", "name", "host", "agentDir", "device", "cwd", "status", "bindingCount"] {
        assert!(row.get(key).is_some(), "{key} is missing in {row}");
    }
    assert_eq!((&row["host"], &row["device"]), (&json!("native"), &json!("laptop")));
    for arguments in [&["status"][..], &["sessions"], &["doctor"]] {
        assert!(!node.world.run_ok(arguments).trim().is_empty(), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_session_is_opened_and_ended_while_the_node_runs() {
    let node = Node::single().await;
    let other = node.world.folder("U");
    node.world.run_ok(&["session", "new", &other.display().to_string(), "--name", "u"]);
    let id = node.session("u");
    let pwd = node.chat("v1/cli").call("bash", json!({"command": "pwd", "sessionId": id})).await.ok();
    assert!(pwd.output().contains("/U"));
    node.world.run_ok(&["session", "end", "u"]);
    let gone = node.chat("v1/cli").call("bash", json!({"command": "pwd", "sessionId": id})).await.refused();
    assert!(gone.text().contains(&id), "{}", gone.text());
}

#[tokio::test]
async fn say_and_log_take_part_in_a_session() {
    let node = Node::single().await;
    node.say("s", "from a person");
    node.chat("v1/cli").call("bash", json!({"command": "echo from-chatgpt"})).await.ok();
    let log = node.world.run_ok(&["log", "s"]);
    assert!(log.contains("from a person") && log.contains("from-chatgpt"), "{log}");
    let rows = node.world.run_ok(&["log", "s", "--json"]);
    assert!(rows.contains("from a person"), "{rows}");
    assert_fails(&node.world.run(&["say", "no-such-session", "x"]), 1, &["no-such-session"]);
    assert_fails(&node.world.run(&["say", "s", "x", "--image", "/no/such.png"]), 1, &["/no/such.png"]);
}

#[tokio::test]
async fn following_a_log_shows_what_comes() {
    let node = Node::single().await;
    let out = node.world.root().join("followed");
    let file = fs::File::create(&out).unwrap();
    let mut follower = node.world.chappie().args(["log", "s", "-f"]).stdout(file).spawn().unwrap();
    node.say("s", "first to come");
    eventually("the first", async || fs::read_to_string(&out).unwrap().contains("first to come").then_some(())).await;
    node.say("s", "second to come");
    eventually("the second", async || fs::read_to_string(&out).unwrap().contains("second to come").then_some(())).await;
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[tokio::test]
async fn attach_follows_and_types() {
    let node = Node::single().await;
    let out = node.world.root().join("attached");
    let file = fs::File::create(&out).unwrap();
    let mut attached =
        node.world.chappie().args(["attach", "s"]).stdin(std::process::Stdio::piped()).stdout(file).spawn().unwrap();
    let mut keyboard = attached.stdin.take().unwrap();
    std::io::Write::write_all(&mut keyboard, b"typed by hand\n").unwrap();
    let client = node.chat("v1/cli");
    let mut arrived = String::new();
    eventually("the input", async || {
        let answer = client.call("bash", json!({"command": "echo seen-$((1 + 1))"})).await.ok();
        arrived.extend(answer.inputs().into_iter().map(|input| input.text));
        arrived.contains("typed by hand").then_some(())
    })
    .await;
    eventually("the result on the screen", async || {
        fs::read_to_string(&out).unwrap_or_default().contains("seen-2").then_some(())
    })
    .await;
    drop(keyboard);
    eventually("the end of attach", async || attached.try_wait().unwrap()).await;
}

#[tokio::test]
async fn without_a_running_node_facts_are_read_from_disk_and_taking_part_says_what_to_do() {
    let mut node = Node::single().await;
    node.say("s", "kept on disk");
    node.stop().await;
    let id = node.session("s");
    assert!(node.world.run_ok(&["log", &id]).contains("kept on disk"));
    for arguments in [&["attach", &id][..], &["say", &id, "while it is down"]] {
        assert_fails(&node.world.run(arguments), 1, &["chappie up"]);
    }
    node.start_again().await;
    let answer = node.chat("v1/cli").call("bash", json!({"command": "true"})).await.ok();
    let texts: Vec<String> = answer.inputs().into_iter().map(|input| input.text).collect();
    assert_eq!(texts, ["kept on disk"]);
}

#[tokio::test]
async fn looking_without_a_node_says_so_and_makes_no_home() {
    let world = World::new();
    let home = world.root().join("typo");
    let home_flag = home.display().to_string();
    for arguments in [&["status"][..], &["status", "--json"], &["receipts"], &["doctor"]] {
        let output = world.run(&[&["--home", &home_flag], arguments].concat());
        assert!(!home.exists(), "{arguments:?} made a home");
        assert!(output.status.code() == Some(1) || arguments != ["status"], "{arguments:?}: {}", output.status);
    }
}

#[tokio::test]
async fn what_needs_the_mesh_says_that_no_node_runs_and_makes_no_home() {
    let world = World::new();
    let home = world.root().join("typo");
    let home_flag = home.display().to_string();
    for arguments in [&["invite"][..], &["invite", "--json"], &["peers"], &["peers", "--json"], &["forget", "laptop"]] {
        let output = world.run(&[&["--home", &home_flag], arguments].concat());
        assert_fails(&output, 1, &["no node runs", "chappie up"]);
        assert!(!home.exists(), "{arguments:?} made a home");
    }
}

#[tokio::test]
async fn an_invite_code_that_is_none_is_refused_before_anything_happens_and_never_shown() {
    let world = World::new();
    let home = world.root().join("fresh");
    let home_flag = home.display().to_string();
    for code in ["chappie-sesame", "sesame", "chappie-", "chappie-sesame!"] {
        let refused = |output: &Output| {
            assert_fails(output, 2, &["code"]);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!error.contains("sesame"), "{error}");
            assert!(!home.exists());
        };
        refused(&world.run(&["--home", &home_flag, "join", code]));
        refused(&world.run_with(&["--home", &home_flag, "up"], &[("CHAPPIE_JOIN", code)]));
        let piped = format!("echo '{code}' | \"$0\" --home '{home_flag}' join -");
        let program = chappie_tests::world::program(false);
        refused(&world.command("bash").args(["-c", &piped]).arg(program).output().unwrap());
    }
}

#[tokio::test]
async fn an_identity_is_reset_while_no_node_runs_and_a_person_at_a_terminal_is_asked_first() {
    let mut node = Node::single().await;
    let old = node.ready()["node"].as_str().unwrap().to_owned();
    let session = node.session("s");
    assert_fails(&node.world.run(&["reset-identity", "--yes"]), 1, &["a node runs", "stop it first"]);
    node.stop().await;
    let asked = |answer: &str| {
        let program = chappie_tests::world::program(false);
        let script = format!("echo {answer} | script -qec '{} reset-identity --json' /dev/null", program.display());
        let output = node.world.command("bash").args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let declined = asked("n");
    assert!(declined.contains("[y/N]") && declined.contains("nothing was changed"), "{declined}");
    let accepted = asked("y");
    assert!(accepted.contains("[y/N]") && accepted.contains(&old), "{accepted}");
    let reset: Value = serde_json::from_str(&node.world.run_ok(&["reset-identity", "--json"])).unwrap();
    assert!(accepted.contains(reset["old"].as_str().unwrap()), "{accepted} {reset}");
    assert!(reset["key"].as_str().unwrap().ends_with("key.pem.old-2"), "{reset}");
    node.start_again().await;
    assert_eq!(node.ready()["node"], reset["node"]);
    assert_eq!(node.session("s"), session);
}

#[tokio::test]
async fn wrong_addresses_of_the_mesh_are_named() {
    let world = World::new();
    assert_fails(&world.run(&["up", "--listen", "laptop:1"]), 2, &["--listen", "laptop:1"]);
    assert_fails(&world.run(&["up", "--connect", "laptop"]), 2, &["--connect", "laptop", "HOST:PORT"]);
    assert_fails(&world.run_with(&["up"], &[("CHAPPIE_CONNECT", "a:1,b")]), 2, &["CHAPPIE_CONNECT", "\"b\""]);
    world.put(&world.state().join("config.toml"), "listen = '24274'\n");
    let listen = world.run_with(&["up"], &[("CHAPPIE_LISTEN", "")]);
    assert_fails(&listen, 2, &["listen", "config.toml", "24274"]);
}

#[tokio::test]
async fn wrong_usage_exits_with_2() {
    let world = World::new();
    for arguments in [&["no-such-command"][..], &["up", "--no-such-flag"], &["up", "--mcp", "nowhere"], &["session"]] {
        let output = world.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn a_door_on_an_address_that_is_not_loopback_is_refused() {
    let world = World::new();
    let output = world.run(&["up", "--json", "--mcp", "0.0.0.0:0"]);
    assert_fails(&output, 2, &["loopback"]);
}

#[tokio::test]
async fn unknown_settings_are_errors_that_name_them() {
    let world = World::new();
    let output = world.run_with(&["up"], &[("CHAPPIE_COOLDWN", "3")]);
    assert_fails(&output, 2, &["CHAPPIE_COOLDWN"]);
    world.put(&world.state().join("config.toml"), "coooldown = 3\n");
    assert_fails(&world.run(&["up"]), 2, &["coooldown", "config.toml"]);
    world.put(&world.state().join("config.toml"), "cooldown = \n");
    assert_fails(&world.run(&["up"]), 2, &["config.toml"]);
    let missing = world.run(&["up", "--session", "/no/such/folder"]);
    assert!(!missing.status.success());
    world.put(&world.state().join("config.toml"), "cooldown = 3\n");
    let missing = world.run(&["up", "--session", "/no/such/folder"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/folder"));
}

#[tokio::test]
async fn completions_are_printed_for_the_usual_shells() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.run_ok(&["completions", shell]).contains("chappie"), "{shell}");
    }
}
