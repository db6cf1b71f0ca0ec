//! The process tool: start, output, input, stop, list, and what outlives the node.

use std::path::PathBuf;

use super::*;
use crate::host::native::testing::{World, context, object, runs, text, until};

async fn process(world: &World, arguments: Value) -> ToolOutput {
    run(object(arguments), &world.env, &context()).await
}

/// Starts `command`, which must run on; gives its id.
async fn started(world: &World, command: &str, keep: bool) -> String {
    let output = process(world, json!({"action": "start", "command": command, "keep": keep})).await;
    assert!(text(&output).starts_with("started p"), "{}", text(&output));
    output.details.unwrap()["id"].as_str().unwrap().to_owned()
}

/// Asks for the output of `id` until it holds `wanted`.
async fn shows(world: &World, id: &str, wanted: &str) -> ToolOutput {
    for _ in 0..2_000 {
        let output = process(world, json!({"action": "output", "id": id})).await;
        if text(&output).contains(wanted) {
            return output;
        }
        time::sleep(LOOK_AGAIN).await;
    }
    panic!("{wanted:?} was not shown");
}

fn table(world: &World) -> Table {
    Table::new(&world.env.node_home, &world.env.session)
}

#[tokio::test]
async fn a_process_is_started_read_fed_listed_and_stopped() {
    let world = World::new();
    let output = process(
        &world,
        json!({"action": "start", "name": "asker", "command": "echo ready; while read -r l; do echo \"got $l\"; done"}),
    )
    .await;
    let id = output.details.as_ref().unwrap()["id"].as_str().unwrap().to_owned();
    shows(&world, &id, "ready\n").await;
    let output = process(&world, json!({"action": "input", "id": id, "text": "one\ntwo\n"})).await;
    assert!(text(&output).starts_with(&format!("wrote 8 bytes to {id}")), "{}", text(&output));
    let output = shows(&world, &id, "got two\n").await;
    let next = json!({"action": "output", "id": id, "offset": 4});
    assert_eq!(text(&output), format!("ready\ngot one\ngot two\n[{id} running; lines 1-3 of 3; next: process {next}]"));
    let output = process(&world, next).await;
    assert!(text(&output).starts_with(&format!("[{id} running; nothing after line 3 so far;")), "{}", text(&output));
    let output = process(&world, json!({"action": "output", "id": id, "offset": 2, "limit": 1})).await;
    assert!(text(&output).starts_with(&format!("got one\n[{id} running; lines 2-2 of 3;")), "{}", text(&output));

    let output = process(&world, json!({"action": "list"})).await;
    assert!(text(&output).starts_with(&format!("{id} \"asker\": running for ")), "{}", text(&output));
    let output = process(&world, json!({"action": "stop", "id": id})).await;
    assert_eq!(text(&output), format!("{id} ended: exit 143 (128 + 15: killed by TERM)"));
    let output = process(&world, json!({"action": "input", "id": id, "text": "three\n"})).await;
    assert!(output.is_error && text(&output).contains("does not run any more: exit 143"), "{}", text(&output));
    let output = process(&world, json!({"action": "stop", "id": id})).await;
    assert!(!output.is_error && text(&output).contains("had ended already"), "{}", text(&output));
}

#[tokio::test]
async fn a_command_that_ends_at_once_is_told_with_its_output_and_code() {
    let world = World::new();
    let output = process(&world, json!({"action": "start", "command": "echo what; no-such-command; exit 7"})).await;
    let output = match output.details.as_ref().unwrap()["exitCode"].as_i64() {
        Some(_) => output,
        // A slow machine: it had not ended within the first look.
        None => shows(&world, output.details.as_ref().unwrap()["id"].as_str().unwrap(), "exit 7").await,
    };
    assert!(text(&output).starts_with("what\n") && text(&output).contains("not found"), "{}", text(&output));
    assert_eq!(output.details.unwrap()["exitCode"], json!(7));
}

#[test]
fn a_process_outlives_the_runtime_that_started_it_and_is_found_read_and_fed_by_the_next() {
    let world = World::new();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = runtime();
    let id = first.block_on(started(&world, "echo up; read -r line; echo \"after $line\"; exit 6", false));
    first.block_on(shows(&world, &id, "up\n"));
    // What is left of the node then: folders, and a process that nobody waits for.
    drop(first);

    runtime().block_on(async {
        table(&world).adopt();
        let entry = table(&world).find(&id).unwrap();
        assert_eq!((entry.state(), table(&world).running()), (State::Running, 1));
        let output = process(&world, json!({"action": "list"})).await;
        assert!(text(&output).starts_with(&format!("{id}: running for ")), "{}", text(&output));
        assert!(text(&shows(&world, &id, "up\n").await).contains("lines 1-1 of 1; next: "));
        process(&world, json!({"action": "input", "id": id, "text": "restart\n"})).await;
        let output = shows(&world, &id, "exit 6").await;
        assert_eq!(text(&output), format!("up\nafter restart\n[{id} exit 6; lines 1-2 of 2]"));
    });
}

#[tokio::test]
async fn stopping_reaches_children_that_ignore_term_or_left_the_session() {
    let world = World::new();
    let seconds = format!("8{}", std::process::id());
    let id = started(&world, &format!("setsid sleep {seconds} & sleep {seconds}; :"), false).await;
    until("both run", || (table(&world).find(&id)?.signal(Signal::CONT) >= 4).then_some(())).await;
    let output = process(&world, json!({"action": "stop", "id": id})).await;
    assert!(!output.is_error && text(&output).contains(" ended: "), "{}", text(&output));
    assert!(!runs(&seconds));

    let entry = table(&world).find(&started(&world, &format!("trap '' TERM; sleep {seconds} & wait"), false).await);
    let entry = entry.unwrap();
    until("all run", || (entry.signal(Signal::CONT) >= 3).then_some(())).await;
    let ended = entry.clone();
    tokio::task::spawn_blocking(move || ended.end(Duration::from_millis(100))).await.unwrap();
    until("it is written down", || (entry.state() == State::Killed(9)).then_some(())).await;
    assert!(!runs(&seconds));
}

#[tokio::test]
async fn a_cancelled_stop_answers_at_once_and_is_carried_out() {
    let world = World::new();
    let id = started(&world, "trap '' TERM; echo up; while :; do sleep 0.05; done", false).await;
    shows(&world, &id, "up\n").await;
    let cancelled = context();
    cancelled.cancel.cancel();
    let output = run(object(json!({"action": "stop", "id": id})), &world.env, &cancelled).await;
    assert!(output.is_error && text(&output).contains("cancelled; "), "{}", text(&output));
    let entry = table(&world).find(&id).unwrap();
    until("it is ended all the same", || (entry.state() == State::Killed(9)).then_some(())).await;
}

#[tokio::test]
async fn a_signal_by_name_is_only_sent() {
    let world = World::new();
    let id = started(&world, "trap 'echo reloaded' HUP; echo up; while :; do sleep 0.05; done", false).await;
    shows(&world, &id, "up\n").await;
    let output = process(&world, json!({"action": "stop", "id": id, "signal": "HUP"})).await;
    assert!(text(&output).contains("it still runs"), "{}", text(&output));
    shows(&world, &id, "reloaded\n").await;
    let output = process(&world, json!({"action": "stop", "id": id, "signal": "SIGKILL"})).await;
    assert_eq!(text(&output), format!("{id} ended: killed by signal 9 (KILL)"));
}

#[tokio::test]
async fn the_end_of_the_session_ends_all_but_what_is_to_be_kept() {
    let world = World::new();
    let seconds = format!("7{}", std::process::id());
    let ends = started(&world, &format!("sleep {seconds}1"), false).await;
    let stays = started(&world, &format!("sleep {seconds}2"), true).await;
    let table = table(&world);
    let closing = table.clone();
    tokio::task::spawn_blocking(move || closing.close()).await.unwrap();
    assert_ne!(table.find(&ends).unwrap().state(), State::Running);
    assert!(!runs(&format!("{seconds}1")) && runs(&format!("{seconds}2")));
    // Another session of the node sees what was kept, and nothing else.
    let other = Table::new(&world.env.node_home, &clock::session_id());
    assert_eq!(other.list().iter().map(|e| e.meta.id.clone()).collect::<Vec<_>>(), std::slice::from_ref(&stays));
    assert!(other.find(&ends).is_none());
    let kept = other.find(&stays).unwrap();
    tokio::task::spawn_blocking(move || kept.end(STOP_GRACE)).await.unwrap();
    assert!(!runs(&seconds));
}

#[tokio::test]
async fn input_that_is_not_read_is_counted_and_does_not_hang() {
    let world = World::new();
    let id = started(&world, "sleep 300", false).await;
    let gives_up = context();
    gives_up.cancel.cancel();
    let arguments = object(json!({"action": "input", "id": id, "text": "x".repeat(200_000)}));
    let output = run(arguments, &world.env, &gives_up).await;
    assert!(output.is_error && text(&output).contains("of 200000 bytes: cancelled"), "{}", text(&output));
    process(&world, json!({"action": "stop", "id": id})).await;
}

#[tokio::test]
async fn a_limit_of_running_processes_holds_and_says_what_to_do() {
    let world = World::new();
    for _ in 0..RUNNING_MAX {
        let start = Start {
            shell: &PathBuf::from("/bin/sh"),
            command: "exec sleep 300",
            name: None,
            cwd: &world.env.cwd,
            keep: false,
        };
        table(&world).start(&start).unwrap();
    }
    let output = process(&world, json!({"action": "start", "command": ": >ran; sleep 300"})).await;
    assert!(output.is_error && text(&output).contains("64 processes"), "{}", text(&output));
    assert!(!world.env.cwd.join("ran").exists());
    let output = process(&world, json!({"action": "list"})).await;
    assert!(crate::budget::TextBudget::WHOLE.fits(text(&output)));
    let closing = table(&world);
    tokio::task::spawn_blocking(move || closing.close()).await.unwrap();
    assert_eq!(table(&world).running(), 0);
}

#[tokio::test]
async fn bad_arguments_are_refused_and_start_nothing() {
    let world = World::new();
    for (arguments, wanted) in [
        (json!({}), "`action`: is required"),
        (
            json!({"action": "run", "command": ": >ran"}),
            "action must be start, output, input, stop or list, got \"run\"",
        ),
        (json!({"action": "start"}), "action start needs `command`"),
        (json!({"action": "start", "command": " "}), "command is empty"),
        (json!({"action": "start", "command": ": >ran", "id": "p1"}), "action start does not take `id`"),
        (json!({"action": "start", "command": ": >ran", "name": "a\nb"}), "name must be one line"),
        (json!({"action": "start", "command": ": >ran", "timeout": 5}), "unknown argument `timeout`"),
        (json!({"action": "output"}), "action output needs `id`"),
        (json!({"action": "output", "id": "p1", "offset": 0}), "`offset`: expected a whole number of at least 1"),
        (json!({"action": "output", "id": "../../x"}), "no process \"../../x\" in this session"),
        (json!({"action": "input", "id": "p1"}), "action input needs `text`"),
        (json!({"action": "stop", "id": "p1", "signal": "NOPE"}), "signal \"NOPE\" is not known"),
        (json!({"action": "stop", "id": "p1"}), "no process \"p1\" in this session; action list"),
    ] {
        let output = process(&world, arguments.clone()).await;
        assert!(output.is_error && text(&output).contains(wanted), "{arguments}: {}", text(&output));
    }
    assert_eq!(std::fs::read_dir(&world.env.cwd).unwrap().count(), 0);
    assert_eq!(text(&process(&world, json!({"action": "list"})).await), "no processes");
    std::fs::remove_dir(&world.env.cwd).unwrap();
    let output = process(&world, json!({"action": "start", "command": "true"})).await;
    assert!(output.is_error && text(&output).contains("working folder"), "{}", text(&output));
}

#[test]
fn listing_and_reading_only_look() {
    for (action, looks) in [("list", true), ("output", true), ("start", false), ("input", false), ("stop", false)] {
        assert_eq!(reads_only(&object(json!({"action": action}))), looks, "{action}");
    }
    assert!(!reads_only(&object(json!({}))));
}
