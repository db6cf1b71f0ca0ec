//! Who a device is: cloned, renamed, forgotten, with a wrong clock, dialled from both sides (DEV-20 and its variants;
//! failure rules F15, F20, F21).

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{
    Node, World,
    answer::excerpt,
    eventually,
    mesh::{Trio, alone, free_port, list_each_other, listed, lists, named, session_at},
    node::Setup,
    process,
    wait::within,
};
use serde_json::{Value, json};

/// Copies a state folder as `cp -a` does.
fn clone_state(from: &World, to: &World) {
    std::fs::remove_dir(to.state()).unwrap();
    let done = Command::new("cp").arg("-a").args([from.state(), to.state()]).status().unwrap();
    assert!(done.success());
}

/// What a node's own command line says is wrong with it.
fn trouble(node: &Node) -> String {
    node.status()["trouble"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn dev_20_a_cloned_state_folder_is_named_at_both_owners_and_mended_by_a_reset() {
    let c = alone("c").await;
    let mut a = alone("a").await;
    a.join(&c.invite()).await;
    list_each_other(&[&a, &c]).await;
    a.stop().await;
    let twin = Arc::new(World::new());
    clone_state(&a.world, &twin);
    let quic = c.quic().to_owned();
    a.change(|setup| setup.argument("--connect").argument(&quic));
    a.start_again().await;
    lists(&c, &["a", "c"]).await;
    let setup = named(&a.world, "a", true).argument("--connect").argument(&quic);
    let mut second = Node::start(Arc::clone(&twin), setup).await;
    assert_eq!(second.id(), a.id(), "one identity");

    let (first_word, second_word) = within(Duration::from_secs(20), "an error at both owners", async || {
        let said = (trouble(&a), trouble(&second));
        (said.0.contains("identity") && said.1.contains("identity")).then_some(said)
    })
    .await;
    assert!(second_word.contains(a.quic()) || first_word.contains(second.quic()), "{first_word} / {second_word}");
    assert!(second_word.contains("reset-identity"), "{second_word}");
    eventually("a line in the logs", async || {
        (second.log().contains("identity") && c.log().contains("identity")).then_some(())
    })
    .await;
    stays_steady(&c, Duration::from_secs(30)).await;

    second.stop().await;
    twin.run_ok(&["reset-identity", "--yes"]);
    second.change(|_| named(&a.world, "a2", false).session(&twin.folder("a2"), "a2"));
    second.start_again().await;
    assert_ne!(second.id(), a.id());
    second.join(&c.invite()).await;
    lists_among(&c, "a2").await;
    assert_ne!(c.peer(second.id()), Value::Null);
    assert_ne!(c.peer(a.id()), Value::Null);
    stays_steady(&c, Duration::from_secs(3)).await;
}

#[tokio::test]
async fn f15_a_restored_backup_is_named_at_both_owners_and_comes_back_by_itself() {
    let (a, mut b) = (alone("a").await, alone("b").await);
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    b.stop().await;
    let backup = World::new();
    clone_state(&b.world, &backup);
    b.start_again().await;
    list_each_other(&[&a, &b]).await;
    b.stop().await;
    std::fs::remove_dir_all(b.world.state()).unwrap();
    assert!(Command::new("cp").arg("-a").args([backup.state(), b.world.state()]).status().unwrap().success());
    let id = b.id().to_owned();
    b.start_again().await;
    list_each_other(&[&a, &b]).await;
    assert_eq!((b.id(), trouble(&b)), (id.as_str(), String::new()));
    assert!(b.log().contains("put back from a backup"), "{}", excerpt(&b.log()));
    eventually("a line in the other's log", async || a.log().contains("another member from now on").then_some(()))
        .await;
    // The original was only away: it is another one, and is let in when the copy has gone.
    b.stop().await;
    let copy = World::new();
    clone_state(&b.world, &copy);
    let setup = named(&b.world, "b", true).argument("--connect").argument(a.quic());
    let mut second = Node::start(Arc::new(copy), setup).await;
    lists(&a, &["a", "b"]).await;
    second.stop().await;
    b.start_again().await;
    list_each_other(&[&a, &b]).await;
    assert_eq!(trouble(&b), "");
}

/// Looks at `sessions` each second: each session once, its device changing at most once.
async fn stays_steady(door: &Node, time: Duration) {
    let (start, mut devices) = (Instant::now(), Vec::<(String, String)>::new());
    while start.elapsed() < time {
        let rows = listed(&door.stateless()).await;
        let mut ids: Vec<String> = rows.iter().map(|row| row["id"].to_string()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), rows.len(), "a session twice: {rows:?}");
        for row in &rows {
            let seen = (row["id"].to_string(), row["device"].to_string());
            if devices.iter().rev().find(|(id, _)| *id == seen.0) != Some(&seen) {
                devices.push(seen);
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for (id, _) in &devices {
        let changes: Vec<_> = devices.iter().filter(|(other, _)| other == id).collect();
        assert!(changes.len() <= 2, "its device changes back and forth: {changes:?}");
    }
}

async fn lists_among(door: &Node, name: &str) {
    session_at(door, name).await;
}

#[tokio::test]
async fn dev_20_two_devices_that_dial_each_other_at_once_keep_one_connection_and_work() {
    let (mut a, mut b) = (alone("a").await, alone("b").await);
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    let ports = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    a.change(|setup| setup.argument("--listen").argument(&ports[0]).argument("--connect").argument(&ports[1]));
    b.change(|setup| setup.argument("--listen").argument(&ports[1]).argument("--connect").argument(&ports[0]));
    for _ in 0..5 {
        a.kill();
        b.kill();
        tokio::join!(a.start_again(), b.start_again());
        list_each_other(&[&a, &b]).await;
        tokio::join!(a.connected_with(b.id()), b.connected_with(a.id()));
        for (door, there) in [(&a, &b), (&b, &a)] {
            let (name, folder) = (&there.own_sessions()[0], there.folder().display().to_string());
            let arguments = json!({"command": "pwd", "sessionId": session_at(door, name).await});
            let answer = door.chat("v1/both").call("bash", arguments).await.ok();
            assert!(answer.output().contains(&folder), "{}", answer.output());
        }
    }
}

#[tokio::test]
async fn f20_a_device_forgotten_while_it_was_away_is_turned_away_and_stands_alone() {
    let mut trio = Trio::new().await;
    let (id, mesh) = (trio.station.id().to_owned(), trio.station.status()["mesh"].clone());
    trio.station.stop().await;
    lists(&trio.door, &["broker"]).await;
    let forgotten = trio.broker.world.run_ok(&["forget", "station"]);
    assert!(forgotten.contains("station"), "{forgotten}");
    for node in [&trio.broker, &trio.door] {
        within(Duration::from_secs(10), "its end in the roster", async || node.peer(&id).is_null().then_some(())).await;
    }
    trio.station.start_again().await;
    within(Duration::from_secs(20), "a mesh of one", async || {
        let status = trio.station.status();
        (status["mesh"] != mesh && status["peers"] == json!([]) && status["broker"]["self"] == true).then_some(())
    })
    .await;
    lists(&trio.station, &["station"]).await;
    lists(&trio.door, &["broker"]).await;
    let log = trio.station.log();
    assert!(log.contains("forgot"), "it says why: {}", excerpt(&log));
    // It works by itself, and comes back with a new invite and the identity that it had.
    let own = trio.station.chat("v1/alone").call("bash", json!({"command": "echo alone"})).await.ok();
    assert!(own.output().contains("alone"));
    trio.station.join(&trio.broker.invite()).await;
    list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
    assert_eq!(trio.station.id(), id);
}

#[tokio::test]
async fn f21_forgetting_a_connected_device_cuts_it_off_at_once_and_its_running_work_is_uncertain() {
    let trio = Trio::new().await;
    let chat = trio.chat("v1/cut").await;
    let call = chat.begin("bash", json!({"command": "sleep 345", "operationId": "op-1"}));
    let there = || !process::running(trio.station.world.mark(), "sleep 345").is_empty();
    eventually("the command", async || there().then_some(())).await;
    // Any member may say it; a prefix of the id names a device too.
    let start = Instant::now();
    trio.door.world.run_ok(&["forget", &trio.station.id()[..7]]);
    let answer = call.answer().await;
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert!(answer.is_error, "{}", excerpt(&answer.text()));
    lists(&trio.door, &["broker"]).await;
    lists(&trio.station, &["station"]).await;
    let receipts: Value = serde_json::from_str(&trio.broker.world.run_ok(&["receipts", "--json"])).unwrap();
    assert!(receipts.to_string().contains("uncertain"), "{receipts}");
    // The binding went with the device: the conversation selects anew.
    let next = chat.call("bash", json!({"command": "pwd"})).await.ok();
    assert!(next.output().contains("/broker"), "{}", next.output());
}

#[tokio::test]
async fn forgetting_is_refused_for_the_only_broker_for_strangers_and_for_an_ambiguous_name() {
    let trio = Trio::with_one_voter().await;
    let refused = |word: &str| {
        let output = trio.door.world.run(&["forget", word]);
        assert!(!output.status.success(), "{word}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    refused("broker");
    assert!(refused("nobody").contains("station"), "it lists what there is");
    list_each_other(&[&trio.broker, &trio.door, &trio.station]).await;
}

#[tokio::test]
async fn a_renamed_device_keeps_its_identity_and_sessions() {
    let (a, mut b) = (alone("a").await, alone("b").await);
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    let (id, session) = (b.id().to_owned(), b.session("b"));
    b.stop().await;
    let folder = b.folder().to_owned();
    b.change(|_| Setup::new().argument("--name").argument("brand-new").session(&folder, "b"));
    b.start_again().await;
    within(Duration::from_secs(20), "the new name", async || {
        let rows = listed(&a.stateless()).await;
        let row = rows.into_iter().find(|row| row["id"] == session)?;
        (row["device"] == "brand-new" && a.peer(&id)["name"] == "brand-new").then_some(())
    })
    .await;
    assert_eq!(b.id(), id);
}

#[tokio::test]
async fn two_devices_of_the_same_name_are_told_apart_by_their_id() {
    let (a, b) = (alone("a").await, alone("twin").await);
    let world = Arc::new(World::new());
    let setup = named(&world, "twin", false).session(&world.folder("other"), "other");
    let c = Node::start(Arc::clone(&world), setup).await;
    let code = a.invite_with(&["--uses", "2"]);
    b.join(&code).await;
    c.join(&code).await;
    list_each_other(&[&a, &b, &c]).await;
    assert_eq!((&a.peer(b.id())["name"], &a.peer(c.id())["name"]), (&json!("twin"), &json!("twin")));
    let ambiguous = a.world.run(&["forget", "twin"]);
    let said = String::from_utf8_lossy(&ambiguous.stderr).into_owned();
    assert!(!ambiguous.status.success() && said.contains(&b.id()[..7]) && said.contains(&c.id()[..7]), "{said}");
    for (name, node) in [("twin", &b), ("other", &c)] {
        let arguments = json!({"command": "pwd", "sessionId": session_at(&a, name).await});
        let answer = a.chat("v1/twins").call("bash", arguments).await.ok();
        assert!(answer.output().contains(&node.folder().display().to_string()), "{}", answer.output());
    }
    a.world.run_ok(&["forget", c.id()]);
    lists(&a, &["a", "twin"]).await;
}

#[tokio::test]
async fn a_clock_that_is_a_year_off_neither_splits_the_mesh_nor_ends_what_it_keeps() {
    let a = alone("a").await;
    a.chat("v1/clock").call("init", json!({})).await.ok();
    let mut wrong = Vec::new();
    for (name, offset) in [("ahead", "+365d"), ("behind", "-365d")] {
        let world = Arc::new(World::new());
        let setup = named(&world, name, true).clock(offset);
        let node = Node::start(Arc::clone(&world), setup).await;
        let year = node.chat("v1/year").call("bash", json!({"command": "date +%s"})).await.ok().output();
        let shown: i64 = year.trim().parse().unwrap_or_default();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed();
        assert!((shown - now).abs() > 300 * 86_400, "the clock is wrong: {year}");
        node.join(&a.invite()).await;
        wrong.push(node);
    }
    let all: Vec<&Node> = std::iter::once(&a).chain(&wrong).collect();
    list_each_other(&all).await;
    for node in &wrong {
        let arguments = json!({"command": "pwd", "sessionId": node.session(&node.own_sessions()[0])});
        let answer = a.chat("v1/there").call("bash", arguments).await.ok();
        assert!(answer.output().contains(&node.folder().display().to_string()), "{}", answer.output());
    }
    // F14: no wrong clock ends a binding.
    let through = wrong[0].chat("v1/clock").call("bash", json!({"command": "pwd"})).await.ok();
    assert!(through.output().contains(&a.folder().display().to_string()), "{}", through.output());
}

#[tokio::test]
async fn a_reset_identity_needs_a_stopped_node_and_keeps_the_old_key() {
    let mut a = alone("a").await;
    let id = a.id().to_owned();
    let running = a.world.run(&["reset-identity", "--yes"]);
    assert!(!running.status.success(), "{}", String::from_utf8_lossy(&running.stdout));
    assert!(String::from_utf8_lossy(&running.stderr).contains("stop"), "it says what to do");
    a.stop().await;
    a.world.run_ok(&["reset-identity", "--yes"]);
    assert!(kept(&a.world.state()), "the old key is kept");
    a.start_again().await;
    assert_ne!(a.id(), id);
    lists(&a, &["a"]).await;
}

fn kept(state: &Path) -> bool {
    let mut entries = std::fs::read_dir(state).unwrap().filter_map(Result::ok);
    entries.any(|entry| entry.file_name().to_string_lossy().starts_with("key.pem.old"))
}
