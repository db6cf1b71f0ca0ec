//! A broker that is paused as by a closed lid and goes on later, believing that it acts (failure rule F11): it
//! follows, and what it sends counts for nothing.

use std::time::{Duration, Instant};

use chappie_tests::{
    Client,
    client::InFlight,
    election::{Cluster, Scene, Watch, done},
    eventually,
    riding::nothing_again,
};
use serde_json::json;

/// Pauses the broker under a call for at least `time`; gives the scene with the broker going on again.
async fn paused_for(time: Duration, devices: usize) {
    let scene = Scene::with(devices, |_, setup| setup).await;
    let chat = scene.chat("v1/lid").await;
    let watch = Watch::over(&scene.cluster);
    let call = chat.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    let (lost, pause) = (scene.broker, Instant::now());
    scene.cluster[lost].pause();
    let next = scene.broker_besides(lost).await;
    println!("device {next} acts {:?} after the pause began", pause.elapsed());
    scene.release("one");
    done(call.answer().await, "one");
    // Asked at the paused device's own door: the system takes the connection, and the node reads it when it goes on.
    let arguments = json!({"command": scene.ledger.append("both"), "operationId": "op-both"});
    let sleeper = scene.cluster[lost].chat("v1/lid");
    let asleep: InFlight = sleeper.begin("bash", arguments.clone());
    chat.call("bash", arguments.clone()).await.ok();
    assert_eq!(scene.ledger.count("both"), 1);
    let mut number = 0;
    while pause.elapsed() < time {
        let mark = format!("meanwhile-{number}");
        chat.call("bash", json!({"command": scene.ledger.append(&mark)})).await.ok();
        assert_eq!(scene.ledger.count(&mark), 1);
        number += 1;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    scene.cluster[lost].resume();
    let late = asleep.answer().await.ok();
    assert_eq!(late.header()["replay"]["status"], "completed", "{}", late.text());
    scene.cluster.settled(chappie_tests::election::voters_of(devices)).await;
    assert_ne!(scene.cluster.broker().await, lost, "a device back from a pause does not disturb a healthy broker");
    goes_on(&sleeper, &scene).await;
    goes_on(&chat, &scene).await;
    scene.ran_once("one");
    assert_eq!(scene.ledger.count("both"), 1, "what the paused broker took up ran no second time");
    watch.holds().await;
}

async fn goes_on(chat: &Client, scene: &Scene) {
    let answer = chat.call("bash", json!({"command": "pwd"})).await.ok();
    assert!(answer.output().contains(&scene.cluster[scene.station].folder().display().to_string()));
    nothing_again(&answer);
}

#[tokio::test]
async fn f11_a_paused_broker_is_replaced_and_follows_when_it_goes_on() {
    paused_for(Duration::from_secs(5), 3).await;
}

#[tokio::test]
async fn f11_a_broker_paused_for_a_minute_follows_when_it_goes_on() {
    paused_for(Duration::from_secs(60), 5).await;
}

/// Short pauses around the length of an election: whoever acts, nothing runs twice and no two act in one term.
#[tokio::test]
async fn f11_pauses_about_as_long_as_an_election_end_with_one_broker_and_one_execution() {
    let scene = Scene::new().await;
    let chat = scene.chat("v1/short").await;
    let watch = Watch::over(&scene.cluster);
    for round in 0..8_u64 {
        let mark = format!("m{round}");
        let acting = scene.cluster.broker().await;
        let arguments = json!({"command": scene.ledger.append(&mark), "operationId": mark});
        let pause = Instant::now();
        scene.cluster[acting].pause();
        // The door or the session may be the broker's by now: then the call waits for it to go on.
        let call = chat.begin("bash", arguments);
        eventually("a pause", async || (pause.elapsed() > Duration::from_millis(100 * (round + 1))).then_some(()))
            .await;
        scene.cluster[acting].resume();
        call.answer().await.ok();
        assert_eq!(scene.ledger.count(&mark), 1, "{mark}");
    }
    scene.cluster.settled(3).await;
    watch.holds().await;
}

/// A follower that comes back from a pause asks nobody to elect it (pre-vote): the term stays.
#[tokio::test]
async fn a_follower_back_from_a_pause_does_not_disturb_the_broker() {
    let cluster = Cluster::of(3).await;
    let broker = cluster.broker().await;
    let term = cluster.term(broker).await;
    let follower = cluster.besides(&[broker])[0];
    let watch = Watch::over(&cluster);
    for _ in 0..3 {
        let pause = Instant::now();
        cluster[follower].pause();
        eventually("a pause", async || (pause.elapsed() > Duration::from_secs(4)).then_some(())).await;
        cluster[follower].resume();
        cluster.settled(3).await;
    }
    assert_eq!(cluster.broker().await, broker);
    assert_eq!(cluster.term(broker).await, term);
    watch.holds().await;
}
