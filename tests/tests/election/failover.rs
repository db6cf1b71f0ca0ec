//! The broker is killed without warning: calls through another device's door go on, each with one answer and one
//! execution (failure rules F1, F3, F6, F10, F13).

use std::time::{Duration, Instant};

use chappie_tests::{
    answer::excerpt,
    election::{Cluster, NAMES, Scene, done},
    random::Random,
    riding::nothing_again,
};
use serde_json::json;

#[tokio::test]
async fn a_bash_on_c_through_the_door_of_a_survives_kill_9_of_the_broker_b() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/survivor").await;
    let call = chat.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    let start = Instant::now();
    let next = scene.lose_broker().await;
    println!("device {next} acts {:?} after the kill", start.elapsed());
    assert!(!call.is_finished(), "the call goes on");
    scene.release("one");
    done(call.answer().await, "one");
    scene.ran_once("one");
    // It is not delivered a second time, and the door works as before.
    let after = chat.call("bash", json!({"command": "echo after-$((1 + 1))"})).await.ok();
    assert!(after.output().contains("after-2"), "{}", after.output());
    nothing_again(&after);
    let lost = scene.broker;
    scene.back(lost).await;
    assert!(chat.call("bash", json!({"command": "echo settled"})).await.ok().output().contains("settled"));
    scene.ran_once("one");
}

/// The work ends while nobody is broker, so that its outcome has nobody to go to at that moment.
#[tokio::test]
async fn a_bash_that_ends_while_nobody_is_broker_gives_one_answer() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/between").await;
    for round in 0..3 {
        let mark = format!("r{round}");
        let call = chat.begin("bash", json!({"command": scene.held(&mark)}));
        scene.begun(&mark).await;
        scene.broker = scene.cluster.broker().await;
        if [scene.door, scene.station].contains(&scene.broker) {
            // This one has to stay, so leadership is not lost in this round.
            scene.release(&mark);
            done(call.answer().await, &mark);
            continue;
        }
        let lost = scene.broker;
        scene.cluster[lost].kill();
        scene.release(&mark);
        done(call.answer().await, &mark);
        scene.ran_once(&mark);
        nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
        scene.back(lost).await;
    }
}

#[tokio::test]
async fn a_door_whose_device_has_no_vote_carries_its_call_over_a_failover() {
    let learner = 3;
    let mut scene =
        Scene::with(4, |at, setup| setup.env("CHAPPIE_VOTER", if at == 3 { "never" } else { "auto" })).await;
    assert_eq!(scene.door, learner);
    let id = scene.cluster[learner].id().to_owned();
    assert_eq!(scene.cluster[scene.broker].peer(&id)["voter"], false);
    let chat = scene.chat("v1/learner").await;
    let call = chat.begin("bash", json!({"command": scene.held("one"), "operationId": "op-1"}));
    scene.begun("one").await;
    scene.lose_broker().await;
    scene.release("one");
    done(call.answer().await, "one");
    let replay = chat.call("bash", json!({"command": scene.held("one"), "operationId": "op-1"})).await;
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    scene.ran_once("one");
}

/// Door and session on one device, and neither of them the broker's.
#[tokio::test]
async fn a_call_at_the_doors_own_session_survives_too() {
    let mut scene = Scene::new().await;
    scene.door = scene.station;
    let chat = scene.chat("v1/own").await;
    let call = chat.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    scene.lose_broker().await;
    scene.release("one");
    done(call.answer().await, "one");
    scene.ran_once("one");
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
}

#[tokio::test]
async fn a_queued_call_runs_once_after_the_one_before_it() {
    let mut scene = Scene::new().await;
    let (first, second) = (scene.chat("v1/first").await, scene.chat("v1/second").await);
    let running = first.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    let queued = second.begin("bash", json!({"command": scene.ledger.append("two")}));
    // What was sent before these has arrived when they are answered.
    for _ in 0..3 {
        second.call("tools", json!({"names": ["ls"]})).await.ok();
    }
    assert_eq!(scene.ledger.count("two"), 0, "it waits");
    scene.lose_broker().await;
    assert_eq!(scene.ledger.count("two"), 0, "it still waits");
    scene.release("one");
    done(running.answer().await, "one");
    queued.answer().await.ok();
    scene.ran_once("one");
    assert_eq!(scene.ledger.count("two"), 1, "{:?}", scene.ledger.counts());
}

/// The kill comes at any moment of a call's first milliseconds: before it is assigned, before it is dispatched, while
/// it is answered.
#[tokio::test]
async fn a_call_in_its_first_milliseconds_runs_once_and_is_answered() {
    let mut cluster = Cluster::of(3).await;
    let mut random = Random::from_environment(0x0e1ec);
    for round in 0..8 {
        let scene = Scene::of(cluster).await;
        let mark = format!("m{round}");
        let chat = scene.chat(&format!("v1/early-{round}")).await;
        let with_receipt = random.chance(50);
        let mut arguments = json!({"command": scene.ledger.append(&mark)});
        if with_receipt {
            arguments["operationId"] = json!(mark);
        }

        let call = chat.begin("bash", arguments.clone());
        random.moment(12).await;
        let (lost, ledger) = (scene.broker, scene.ledger.clone());
        cluster = scene.cluster;
        cluster[lost].kill();
        let answer = call.answer().await;
        assert!(!answer.is_error, "round {round}: {}", excerpt(&answer.text()));
        assert_eq!(ledger.count(&mark), 1, "round {round}, with a receipt: {with_receipt}");
        if with_receipt {
            let replay = chat.call("bash", arguments).await.ok();
            assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
        }
        cluster[lost].start_again().await;
        cluster.settled(3).await;
        assert_eq!(ledger.count(&mark), 1, "round {round}");
    }
}

#[tokio::test]
async fn two_calls_at_two_devices_at_once_survive() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/far").await;
    let door = &scene.cluster[scene.door];
    let near = door.chat("v1/near");
    let here = door.folder().join("go");
    let command = "echo begun > begun; while [ ! -e go ]; do sleep 0.05; done; echo here >> ran; echo NEAR-$((3 * 3))";
    let one = chat.begin("bash", json!({"command": scene.held("one")}));
    let two = near.begin("bash", json!({"command": command, "sessionId": door.session(NAMES[scene.door])}));
    scene.begun("one").await;
    let begun = door.folder().join("begun");
    chappie_tests::eventually("the command", async || begun.exists().then_some(())).await;
    scene.lose_broker().await;
    scene.release("one");
    scene.cluster[scene.door].world.put(&here, "");
    done(one.answer().await, "one");
    let near_answer = two.answer().await.ok();
    assert!(near_answer.output().contains("NEAR-9"), "{}", near_answer.output());
    scene.ran_once("one");
    assert_eq!(std::fs::read_to_string(here.with_file_name("ran")).unwrap(), "here\n");
}

/// Of five voters two are killed, one after the other, under one call.
#[tokio::test]
async fn a_call_survives_the_loss_of_two_brokers_of_five() {
    let mut scene = Scene::with(5, |_, setup| setup).await;
    let chat = scene.chat("v1/five").await;
    let mut lost = Vec::new();
    // Door and station must not be the second broker: the one that acts after the first kill is looked at and kept when
    // it is one of them.
    let call = chat.begin("bash", json!({"command": scene.held("one"), "operationId": "op-1"}));
    scene.begun("one").await;
    for _ in 0..2 {
        let acting = scene.cluster.broker_among(&scene.cluster.besides(&lost)).await;
        let victim = if [scene.door, scene.station].contains(&acting) {
            scene.cluster.besides(&[lost.clone(), vec![scene.door, scene.station]].concat())[0]
        } else {
            acting
        };
        scene.cluster[victim].kill();
        lost.push(victim);
    }
    scene.cluster.broker_among(&scene.cluster.besides(&lost)).await;
    scene.release("one");
    done(call.answer().await, "one");
    scene.ran_once("one");
}

#[tokio::test]
async fn a_receipt_of_before_the_kill_replays_and_one_that_ran_during_it_has_one_answer() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/receipts").await;
    let before = json!({"command": scene.ledger.append("before"), "operationId": "op-1"});
    let during = json!({"command": scene.held("during"), "operationId": "op-2"});
    chat.call("bash", before.clone()).await.ok();
    let call = chat.begin("bash", during.clone());
    scene.begun("during").await;
    scene.lose_broker().await;
    let replay = chat.call("bash", before.clone()).await.ok();
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    // F6: the same operation under another call waits with the running one and gets the receipt only.
    let again = chat.begin("bash", during.clone());
    scene.release("during");
    done(call.answer().await, "during");
    let again = again.answer().await.ok();
    assert_eq!(again.header()["replay"]["status"], "completed", "{}", excerpt(&again.text()));
    assert!(!again.text().contains("DONE-during"), "a replay has no content: {}", excerpt(&again.text()));
    scene.ran_once("during");
    let lost = scene.broker;
    scene.back(lost).await;
    for arguments in [before, during] {
        for door in 0..3 {
            let replay = scene.cluster[door].chat("v1/receipts").call("bash", arguments.clone()).await.ok();
            assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
        }
    }
    assert_eq!(scene.ledger.count("before"), 1);
    scene.ran_once("during");
}

#[tokio::test]
async fn bindings_survive_and_new_conversations_are_bound_by_the_new_broker() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/bound").await;
    scene.lose_broker().await;
    let init = chat.call("init", json!({})).await.ok().header();
    assert_eq!(init["selection"], "existing", "{init}");
    assert_eq!(init["session"]["id"], json!(scene.session), "{init}");
    // Two sessions are left and one of them is taken: a new conversation gets the other, at whichever door it comes.
    let other = scene.cluster[scene.door].chat("v1/new").call("bash", json!({"command": "pwd"})).await.ok();
    assert!(other.output().contains(&format!("/{}", NAMES[scene.door])), "{}", other.output());
    let same = scene.cluster[scene.station].chat("v1/new").call("bash", json!({"command": "pwd"})).await.ok();
    assert_eq!(other.output(), same.output(), "the binding holds at every door");
    let lost = scene.broker;
    scene.back(lost).await;
    let there = scene.cluster[lost].chat("v1/new").call("bash", json!({"command": "pwd"})).await.ok();
    assert_eq!(other.output(), there.output(), "also at the device that came back");
}

/// Kills the broker again and again while calls with receipts go on at any moment: nothing runs twice, nothing is
/// lost.
#[tokio::test]
async fn brokers_killed_at_any_moment_lose_and_repeat_nothing() {
    let mut cluster = Cluster::of(3).await;
    let mut random = Random::from_environment(0x57033);
    let mut everything = Vec::new();
    for round in 0..6 {
        let scene = Scene::of(cluster).await;
        let chats = [scene.chat(&format!("v1/a{round}")).await, scene.chat(&format!("v1/b{round}")).await];
        let mut calls = Vec::new();
        for number in 0..6 {
            let mark = format!("r{round}-{number}");
            let arguments = json!({"command": scene.ledger.append(&mark), "operationId": mark});
            calls.push((mark, chats[number % 2].begin("bash", arguments)));
            random.moment(20).await;
        }
        let (lost, ledger) = (scene.broker, scene.ledger.clone());
        cluster = scene.cluster;
        cluster[lost].kill();
        for (mark, call) in calls {
            let answer = call.answer().await;
            assert!(!answer.is_error, "{mark}: {}", excerpt(&answer.text()));
            assert_eq!(ledger.count(&mark), 1, "{mark}");
            everything.push((ledger.clone(), mark));
        }
        random.moment(300).await;
        cluster[lost].start_again().await;
        cluster.settled(3).await;
    }
    for (ledger, mark) in everything {
        assert_eq!(ledger.count(&mark), 1, "{mark}");
    }
}

/// A person does not notice: the next call after a kill is answered in a few seconds even by a debug build on a busy
/// machine. What a release build takes is measured by `benches/mesh`.
#[tokio::test]
async fn the_next_call_after_a_kill_is_answered_without_an_error() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/next").await;
    chat.call("bash", json!({"command": "true"})).await.ok();
    let lost = scene.broker;
    scene.cluster[lost].kill();
    let start = Instant::now();
    chat.call("bash", json!({"command": scene.ledger.append("next")})).await.ok();
    println!("answered {:?} after the kill", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(scene.ledger.count("next"), 1);
    for (tool, arguments) in [("sessions", json!({})), ("read", json!({"path": "ledger"})), ("history", json!({}))] {
        chat.call(tool, arguments).await.ok();
    }
}
