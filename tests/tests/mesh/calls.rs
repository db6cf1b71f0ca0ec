//! Door, broker and session on three different devices: everything works as on one.

use std::time::{Duration, Instant};

use chappie_tests::{
    Answer, Client, Node,
    answer::excerpt,
    eventually,
    ledger::Ledger,
    mesh::{Trio, listed, listed_names, lists, session_at},
    process,
    riding::{goes_on, late_once, late_texts, nothing_again},
    wait::within,
};
use serde_json::{Value, json};

fn ledger(trio: &Trio) -> Ledger {
    Ledger::at(&trio.station.folder().join("ledger"))
}

fn ids(page: &Answer) -> Vec<String> {
    page.sections().iter().filter_map(|section| section.head["id"].as_str()).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_tool_works_on_a_session_of_another_device() {
    let trio = Trio::new().await;
    trio.station.world.put(&trio.station.world.state().join("AGENTS.md"), "Rules of the station.\n");
    let folder = trio.station.folder();
    let chat = trio.door.chat("v1/all");

    let init = chat.call("init", json!({"sessionId": trio.session})).await.ok().header();
    let agents = trio.station.world.state().join("AGENTS.md");
    assert_eq!(init["globalAgents"]["path"], json!(agents), "{init}");
    assert_eq!(init["session"]["cwd"], json!(folder), "{init}");
    let rows = listed(&chat).await;
    let row = rows.iter().find(|row| row["id"] == json!(trio.session)).unwrap();
    assert_eq!((&row["device"], &row["cwd"], &row["bindingCount"]), (&json!("station"), &json!(folder), &json!(1)));
    assert_eq!(row["agentDir"], json!(trio.station.world.state()), "{row}");
    let rules = chat.call("read", json!({"path": agents})).await.ok();
    assert!(rules.output().contains("Rules of the station."), "{}", rules.output());

    let tools = chat.call("tools", json!({"names": ["ls", "process"]})).await.ok();
    assert!(tools.text().contains("ls") && tools.text().contains("process"), "{}", excerpt(&tools.text()));
    chat.call("write", json!({"path": "notes.txt", "content": "alpha\nbeta\n"})).await.ok();
    chat.call("edit", json!({"path": "notes.txt", "edits": [{"oldText": "beta", "newText": "gamma"}]})).await.ok();
    assert_eq!(std::fs::read_to_string(folder.join("notes.txt")).unwrap(), "alpha\ngamma\n");
    assert!(chat.call("read", json!({"path": "notes.txt"})).await.ok().output().contains("gamma"));
    let bash = chat.call("bash", json!({"command": "pwd; cat notes.txt"})).await.ok().output();
    assert!(bash.contains(&folder.display().to_string()) && bash.contains("gamma"), "{bash}");
    let calls = json!([{"name": "ls", "arguments": {}}, {"name": "grep", "arguments": {"pattern": "gam"}}]);
    let batch = chat.call("call", json!({"calls": calls})).await.ok();
    assert!(batch.results()[0].text.contains("notes.txt") && batch.results()[1].text.contains("gamma"));
    chat.call("chat", json!({"text": "All of it works."})).await.ok();
    let history = chat.call("history", json!({"limit": 50})).await.ok().text();
    assert!(history.contains("All of it works.") && history.contains("gamma"), "{}", excerpt(&history));
    assert!(trio.station.world.run_ok(&["log", &trio.session]).contains("All of it works."), "people there see it");
}

#[tokio::test]
async fn images_of_another_device_come_with_their_reference() {
    let trio = Trio::new().await;
    let picture = trio.station.world.root().join("p.png");
    image::RgbImage::from_pixel(31, 17, image::Rgb([200, 30, 40])).save(&picture).unwrap();
    trio.station.world.put(&trio.station.folder().join("p.png"), std::fs::read(&picture).unwrap());
    let chat = trio.chat("v1/picture").await;
    let answer = chat.call("read", json!({"path": "p.png"})).await.ok();
    let result = answer.results().remove(0);
    assert_eq!((result.images.len(), result.references.len()), (1, 1), "{}", excerpt(&answer.text()));
    let shown = image::load_from_memory(&result.images[0].bytes).unwrap();
    assert_eq!((shown.width(), shown.height()), (31, 17));
    let again = chat.call("history", json!({"limit": 5})).await.ok();
    assert_eq!(again.images().len(), 1, "history shows it too");
}

#[tokio::test]
async fn a_long_answer_of_another_device_is_cut_where_it_fits_and_says_how_to_read_on() {
    let trio = Trio::new().await;
    let chat = trio.chat("v1/long").await;
    let long = chat.call("bash", json!({"command": "seq 100000 140000"})).await.ok();
    let tokens = chappie_tests::tokens::count(&long.text());
    assert!(tokens <= 10_000, "{tokens} tokens would be cut by ChatGPT");
    assert!(long.output().contains("140000"), "the tail is there: {}", excerpt(&long.output()));
}

#[tokio::test]
async fn history_with_wait_is_woken_by_another_device_and_leaves_its_session_free() {
    let trio = Trio::new().await;
    let chat = trio.chat("v1/waiting").await;
    chat.call("bash", json!({"command": "echo first"})).await.ok();
    let last = ids(&chat.call("history", json!({"limit": 1})).await.ok());
    let waiting = chat.begin("history", json!({"after": last[0], "wait": true, "observer": true}));
    let start = Instant::now();
    trio.station.say(&trio.session, "typed far away");
    let page = waiting.answer().await.ok();
    assert!(page.text().contains("typed far away"), "{}", excerpt(&page.text()));
    assert!(start.elapsed() < Duration::from_secs(20), "woken, not timed out: {:?}", start.elapsed());
    let last = ids(&page).pop().unwrap();
    let waiting = chat.begin("history", json!({"after": last, "wait": true, "observer": true}));
    assert!(chat.call("bash", json!({"command": "echo free"})).await.ok().output().contains("free"));
    assert!(!ids(&waiting.answer().await.ok()).is_empty());
}

#[tokio::test]
async fn f4_cancelling_reaches_the_process_on_another_device() {
    let trio = Trio::new().await;
    for (number, client) in [trio.door.client().await, trio.door.stateless()].into_iter().enumerate() {
        let chat = client.chat("v1/cancel");
        let command = format!("sleep 33{number}");
        let call = chat.begin("bash", json!({"command": command, "sessionId": trio.session}));
        let there = || !process::running(trio.station.world.mark(), &command).is_empty();
        eventually("the command", async || there().then_some(())).await;
        let start = Instant::now();
        call.cancel().await;
        within(Duration::from_secs(5), "the command's end", async || (!there()).then_some(())).await;
        println!("{:?}: cancelled in {:?}", client.revision(), start.elapsed());
        assert!(chat.call("bash", json!({"command": "echo next"})).await.ok().output().contains("next"));
    }
}

#[tokio::test]
async fn f5_a_late_result_of_another_device_arrives_once() {
    let trio = Trio::with(|setup| setup.call_budget(1)).await;
    let (chat, ledger) = (trio.chat("v1/late").await, ledger(&trio));
    let command = format!("{}; sleep 3; echo LATE-$((40 + 2)); {}", ledger.append("begun"), ledger.append("done"));
    let running = chat.call("bash", json!({"command": command})).await.ok();
    goes_on(&running);
    eventually("its end", async || (ledger.count("done") == 1).then_some(())).await;
    let other = trio.door.chat("v1/other");
    let foreign = other.call("bash", json!({"command": "true", "sessionId": trio.session})).await.ok();
    assert!(foreign.late_results().is_empty(), "another conversation's");
    late_once(&chat, "LATE-42").await;
    assert_eq!(ledger.count("begun"), 1);
}

#[tokio::test]
async fn a_late_result_comes_through_whatever_tool_and_door_the_conversation_uses_next() {
    let trio = Trio::with(|setup| setup.call_budget(1)).await;
    let (chat, ledger) = (trio.chat("v1/late").await, ledger(&trio));
    let command = format!("sleep 2; echo LATE-$((1 + 1)); {}", ledger.append("done"));
    chat.call("bash", json!({"command": command})).await.ok();
    eventually("its end", async || (ledger.count("done") == 1).then_some(())).await;
    // Its session's device is neither this door's nor the one that `sessions` asks.
    let elsewhere = trio.broker.chat("v1/late");
    let mut late = Vec::new();
    eventually("the late result", async || {
        late.extend(late_texts(&elsewhere.call("sessions", json!({})).await.ok()));
        (!late.is_empty()).then_some(())
    })
    .await;
    assert!(late.len() == 1 && late[0].contains("LATE-2"), "{late:?}");
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
}

#[tokio::test]
async fn what_people_type_at_another_device_rides_along_once_and_in_order() {
    let trio = Trio::new().await;
    let chat = trio.chat("v1/typed").await;
    for number in 0..3 {
        trio.station.say(&trio.session, &format!("input {number}"));
    }
    let first = chat.call("bash", json!({"command": "true"})).await.ok();
    let texts: Vec<String> = first.inputs().into_iter().map(|input| input.text).collect();
    assert_eq!(texts, ["input 0", "input 1", "input 2"]);
    assert!(chat.call("bash", json!({"command": "true"})).await.ok().inputs().is_empty(), "once");
    let command = "touch begun; while [ ! -e go ]; do sleep 0.05; done";
    let call = chat.begin("bash", json!({"command": command}));
    let begun = trio.station.folder().join("begun");
    eventually("the command", async || begun.exists().then_some(())).await;
    trio.station.say(&trio.session, "in between");
    trio.station.world.put(&trio.station.folder().join("go"), "");
    let texts: Vec<String> = call.answer().await.ok().inputs().into_iter().map(|input| input.text).collect();
    assert_eq!(texts, ["in between"]);
}

#[tokio::test]
async fn a_conversation_keeps_its_session_through_every_door() {
    let trio = Trio::new().await;
    trio.chat("v1/moving").await;
    let folder = trio.station.folder().display().to_string();
    for door in [&trio.door, &trio.broker, &trio.station] {
        let answer = door.chat("v1/moving").call("bash", json!({"command": "pwd"})).await.ok();
        assert!(answer.output().contains(&folder), "{}", answer.output());
    }
}

#[tokio::test]
async fn new_conversations_get_sessions_of_their_own_whatever_door_they_come_through() {
    let trio = Trio::new().await;
    let doors: [&Node; 2] = [&trio.door, &trio.station];
    let calls: Vec<_> = doors
        .iter()
        .enumerate()
        .map(|(number, door)| door.chat(&format!("v1/new-{number}")).begin("bash", json!({"command": "pwd"})))
        .collect();
    let mut seen = Vec::new();
    for call in calls {
        let output = call.answer().await.ok().output();
        seen.push(if output.contains("/station") { "station" } else { "broker" });
    }
    seen.sort_unstable();
    assert_eq!(seen, ["broker", "station"]);
    let third = trio.door.chat("v1/third").call("bash", json!({"command": "pwd"})).await.refused();
    assert!(third.text().contains("sessions"), "{}", third.text());
}

#[tokio::test]
async fn a_receipt_replays_through_another_door_and_runs_nothing() {
    let trio = Trio::new().await;
    let ledger = ledger(&trio);
    let arguments = json!({"command": ledger.append("ran"), "operationId": "op-1"});
    trio.chat("v1/op").await.call("bash", arguments.clone()).await.ok();
    for door in [&trio.door, &trio.broker, &trio.station] {
        let replay = door.chat("v1/op").call("bash", arguments.clone()).await;
        assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    }
    assert_eq!(ledger.count("ran"), 1);
}

#[tokio::test]
async fn f6_duplicates_through_two_doors_at_the_same_moment_run_once() {
    let trio = Trio::new().await;
    let ledger = ledger(&trio);
    trio.chat("v1/twice").await;
    for round in 0..5 {
        let mark = format!("m{round}");
        let arguments = json!({"command": ledger.append(&mark), "operationId": mark});
        let calls: Vec<_> =
            [&trio.door, &trio.broker].map(|door| door.chat("v1/twice").begin("bash", arguments.clone())).into();
        for call in calls {
            call.answer().await.ok();
        }
        assert_eq!(ledger.count(&mark), 1, "{mark}");
    }
}

#[tokio::test]
async fn f13_a_session_is_listed_at_every_door_within_a_second_of_its_start_and_gone_after_its_end() {
    let trio = Trio::new().await;
    let folder = trio.station.world.folder("later");
    let patience = Duration::from_secs(3);
    for _ in 0..3 {
        let opened = trio.station.world.run_ok(&["session", "new", &folder.display().to_string(), "--name", "later"]);
        let start = Instant::now();
        for door in [&trio.broker, &trio.door] {
            within(patience, "the new session", async || has(door, "later").await.then_some(())).await;
        }
        println!("listed everywhere after {:?}: {}", start.elapsed(), opened.trim());
        let id = session_at(&trio.door, "later").await;
        trio.station.world.run_ok(&["session", "end", &id]);
        for door in [&trio.broker, &trio.door] {
            within(patience, "its end", async || (!has(door, "later").await).then_some(())).await;
        }
    }
}

async fn has(door: &Node, name: &str) -> bool {
    listed_names(door).await.iter().any(|listed| listed == name)
}

#[tokio::test]
async fn whether_a_session_works_is_seen_from_every_door() {
    let trio = Trio::new().await;
    let chat = trio.chat("v1/busy").await;
    let call = chat.begin("bash", json!({"command": "while [ ! -e go ]; do sleep 0.05; done"}));
    for door in [&trio.door, &trio.broker] {
        status_is(&door.stateless(), &trio.session, "executing").await;
    }
    trio.station.world.put(&trio.station.folder().join("go"), "");
    call.answer().await.ok();
    status_is(&trio.door.stateless(), &trio.session, "idle").await;
}

async fn status_is(door: &Client, session: &str, wanted: &str) {
    within(Duration::from_secs(10), wanted, async || {
        let rows: Vec<Value> = listed(door).await;
        let row = rows.into_iter().find(|row| row["id"] == session)?;
        (row["status"] == wanted || (wanted == "idle" && row["status"] == "ready")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_session_whose_device_left_is_waited_for_at_most_five_seconds_and_named() {
    let mut trio = Trio::new().await;
    let chat = trio.chat("v1/gone").await;
    trio.station.stop().await;
    lists(&trio.door, &["broker"]).await;
    for (tool, arguments) in [
        ("bash", json!({"command": "true"})),
        ("init", json!({"sessionId": trio.session})),
        ("history", json!({})),
        ("read", json!({"path": "x", "sessionId": trio.session})),
    ] {
        let start = Instant::now();
        let refused = chat.call(tool, arguments).await.refused();
        assert!(refused.text().contains(&trio.session), "{tool} names it: {}", refused.text());
        assert!(start.elapsed() < Duration::from_secs(8), "{tool} took {:?}", start.elapsed());
    }
    // It comes back while a call waits for it: the call goes on.
    let call = chat.begin("bash", json!({"command": "echo back"}));
    trio.station.start_again().await;
    let waited = call.answer().await;
    let answer = if waited.is_error { chat.call("bash", json!({"command": "echo back"})).await.ok() } else { waited };
    assert!(answer.output().contains("back"));
}

#[tokio::test]
async fn the_status_of_every_device_names_broker_peers_and_sessions() {
    let trio = Trio::new().await;
    let mut meshes = Vec::new();
    for node in [&trio.broker, &trio.door, &trio.station] {
        meshes.push(check_status(node, &trio).await);
    }
    assert!(meshes[0].is_string() && meshes.iter().all(|mesh| *mesh == meshes[0]), "{meshes:?}");
    let broker = trio.door.peer(trio.broker.id());
    assert_eq!((&broker["state"], &broker["name"]), (&json!("connected"), &json!("broker")), "{broker}");
    assert!(broker["rtt_ms"].is_number() && broker["addresses"].to_string().contains(trio.broker.quic()), "{broker}");
    let printed = trio.door.world.run_ok(&["peers"]);
    assert!(printed.contains("broker") && printed.contains("station"), "{printed}");
}

/// Looks at a node's status, once it has heard of the broker, and gives the mesh's id.
async fn check_status(node: &Node, trio: &Trio) -> Value {
    eventually("a broker", async || (!node.status()["broker"].is_null()).then_some(())).await;
    let status = node.status();
    assert_eq!(status["node"], json!(node.id()), "{status}");
    assert_eq!(status["broker"]["node"], json!(trio.broker.id()), "{status}");
    assert_eq!(status["broker"]["self"], json!(node.id() == trio.broker.id()), "{status}");
    assert_eq!(status["quorum"]["ok"], json!(true), "{status}");
    assert_eq!(status["peers"].as_array().map(Vec::len), Some(2), "{status}");
    let sessions = status["sessions"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<&str> = sessions.iter().filter_map(|row| row["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["broker", "station"], "{status}");
    status["mesh"].clone()
}
