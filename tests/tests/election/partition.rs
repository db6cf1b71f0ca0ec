//! Cut networks: machines are namespaces, cables veth pairs on a bridge (`tests/src/net`). The side with most of the
//! voters goes on, the other says what is missing, and after healing there is one broker (design section 7).

use std::time::{Duration, Instant};

use chappie_tests::{
    answer::excerpt,
    election::{Cluster, NAMES, Scene, Watch, done, told, voters_of},
    net::{Device, Lan},
    riding::nothing_again,
    wait::within,
};
use serde_json::json;

async fn scene(lan: &Lan, devices: usize) -> (Scene, Vec<Device>) {
    let (cluster, machines) = Cluster::on(lan, devices).await;
    (Scene::of(cluster).await, machines)
}

#[tokio::test]
async fn a_broker_cut_off_alone_says_who_is_missing_while_the_others_go_on_and_follows_when_it_is_back() {
    let lan = Lan::new();
    let (scene, machines) = scene(&lan, 3).await;
    let chat = scene.chat("v1/cut").await;
    let watch = Watch::over(&scene.cluster);
    let call = chat.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    let (lost, cut) = (scene.broker, Instant::now());
    machines[lost].unplug();
    // At once, while it may still think that it acts.
    let alone = scene.cluster[lost].chat("v1/alone");
    let own = scene.cluster[lost].session(NAMES[lost]);
    let start = Instant::now();
    let minority = alone.begin("bash", json!({"command": "echo ran >> minority", "sessionId": own}));
    let others = [NAMES[scene.door], NAMES[scene.station]];
    told(&minority.answer().await, start, &others);
    let next = scene.broker_besides(lost).await;
    println!("device {next} acts {:?} after the cut", cut.elapsed());
    scene.release("one");
    done(call.answer().await, "one");
    scene.cluster.leaderless(lost).await;
    for tool in ["bash", "init", "sessions"] {
        let arguments = if tool == "bash" { json!({"command": "true", "sessionId": own}) } else { json!({}) };
        let start = Instant::now();
        told(&alone.call(tool, arguments).await, start, &others);
    }
    chat.call("bash", json!({"command": scene.ledger.append("majority")})).await.ok();
    machines[lost].plug();
    let healed = Instant::now();
    scene.cluster.settled(voters_of(3)).await;
    println!("one mesh again {:?} after the cable was back", healed.elapsed());
    scene.cluster.list_each_other(&scene.cluster.all()).await;
    let back = alone.call("bash", json!({"command": "cat minority; echo back", "sessionId": own})).await;
    assert!(!back.text().contains("ran") && back.text().contains("back"), "{}", excerpt(&back.text()));
    scene.ran_once("one");
    assert_eq!(scene.ledger.count("majority"), 1);
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
    watch.holds().await;
}

/// The same operation is tried through the door of each half of 2+1, with the same session on either side.
#[tokio::test]
async fn of_the_halves_of_a_2_1_partition_only_one_acts() {
    let lan = Lan::new();
    let (scene, machines) = scene(&lan, 3).await;
    let watch = Watch::over(&scene.cluster);
    scene.chat("v1/halves").await;
    for (round, cut) in [scene.broker, scene.station, scene.door].into_iter().enumerate() {
        machines[cut].unplug();
        let majority = scene.cluster.besides(&[cut]);
        let acting = scene.cluster.broker_among(&majority).await;
        let mark = format!("half-{round}");
        let arguments = json!({"command": scene.ledger.append(&mark), "operationId": mark});
        let start = Instant::now();
        let alone = scene.cluster[cut].chat("v1/halves").begin("bash", arguments.clone());
        let together = scene.cluster[acting].chat("v1/halves").begin("bash", arguments.clone());
        let (alone, together) = (alone.answer().await, together.answer().await);
        assert!(alone.is_error, "the lone side acts: {}", excerpt(&alone.text()));
        println!("the lone side answered after {:?}", start.elapsed());
        // The session is on one of the sides: when it is the lone one, nobody may run it.
        let expected = usize::from(cut != scene.station);
        assert_eq!(together.is_error, expected == 0, "{}", excerpt(&together.text()));
        assert_eq!(scene.ledger.count(&mark), expected, "round {round}");
        machines[cut].plug();
        scene.cluster.settled(voters_of(3)).await;
        scene.cluster.list_each_other(&scene.cluster.all()).await;
        // Whatever was said: now it has run, and exactly once.
        within(Duration::from_secs(30), "the operation", async || {
            (!scene.cluster[cut].chat("v1/halves").call("bash", arguments.clone()).await.is_error).then_some(())
        })
        .await;
        assert_eq!(scene.ledger.count(&mark), 1, "round {round}");
    }
    watch.holds().await;
}

/// A broker that hears the others and is not heard by them: it must give up, and they must be able to go on.
#[tokio::test]
async fn a_broker_that_is_heard_by_nobody_gives_up_and_another_acts() {
    let lan = Lan::new();
    let (scene, machines) = scene(&lan, 3).await;
    let chat = scene.chat("v1/mute").await;
    let watch = Watch::over(&scene.cluster);
    let lost = scene.broker;
    let call = chat.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    machines[lost].mute();
    scene.broker_besides(lost).await;
    scene.cluster.leaderless(lost).await;
    scene.release("one");
    done(call.answer().await, "one");
    let own = scene.cluster[lost].session(NAMES[lost]);
    let start = Instant::now();
    let arguments = json!({"command": "true", "sessionId": own});
    told(&scene.cluster[lost].chat("v1/muted").call("bash", arguments).await, start, &[]);
    machines[lost].unmute();
    scene.cluster.settled(voters_of(3)).await;
    chat.call("bash", json!({"command": scene.ledger.append("after")})).await.ok();
    assert_eq!(scene.ledger.count("after"), 1);
    scene.ran_once("one");
    watch.holds().await;
}

/// A follower that is heard by nobody asks to be elected and is not listened to; back, it disturbs nobody (pre-vote).
#[tokio::test]
async fn a_follower_that_is_heard_by_nobody_does_not_disturb_the_broker() {
    let lan = Lan::new();
    let (scene, machines) = scene(&lan, 3).await;
    let chat = scene.chat("v1/steady").await;
    let term = scene.cluster.term(scene.broker).await;
    let watch = Watch::over(&scene.cluster);
    let mute = Instant::now();
    machines[scene.door].mute();
    let own = scene.cluster[scene.broker].chat("v1/steady");
    let mut number = 0;
    while mute.elapsed() < Duration::from_secs(8) {
        let mark = format!("m{number}");
        own.call("bash", json!({"command": scene.ledger.append(&mark)})).await.ok();
        assert_eq!(scene.ledger.count(&mark), 1);
        number += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    machines[scene.door].unmute();
    scene.cluster.settled(voters_of(3)).await;
    assert_eq!(scene.cluster.broker().await, scene.broker);
    assert_eq!(scene.cluster.term(scene.broker).await, term, "no election");
    chat.call("bash", json!({"command": "true"})).await.ok();
    watch.holds().await;
}

/// Cables are pulled one after the other, sometimes two, while operations are tried at every door: none runs twice.
#[tokio::test]
async fn cables_pulled_in_turn_under_traffic_never_make_two_brokers() {
    let lan = Lan::new();
    let (scene, machines) = scene(&lan, 3).await;
    scene.chat("v1/cables").await;
    let watch = Watch::over(&scene.cluster);
    let mut random = chappie_tests::random::Random::from_environment(0xcab1e);
    let mut marks = Vec::new();
    for round in 0..6 {
        let cut: Vec<usize> = (0..3).filter(|_| random.chance(45)).collect();
        cut.iter().for_each(|at| machines[*at].unplug());
        let mark = format!("m{round}");
        let arguments = json!({"command": scene.ledger.append(&mark), "operationId": mark});
        let calls = [0, 1, 2].map(|door| scene.cluster[door].chat("v1/cables").begin("bash", arguments.clone()));
        random.moment(1500).await;
        cut.iter().for_each(|at| machines[*at].plug());
        for call in calls {
            call.answer().await;
        }
        marks.push((mark, arguments));
    }
    scene.cluster.settled(voters_of(3)).await;
    scene.cluster.list_each_other(&scene.cluster.all()).await;
    for (mark, arguments) in marks {
        assert!(scene.ledger.count(&mark) <= 1, "{mark}: {:?}", scene.ledger.counts());
        within(Duration::from_secs(30), "the operation", async || {
            let answer = scene.cluster[0].chat("v1/cables").call("bash", arguments.clone()).await;
            let status = if answer.is_error { json!(null) } else { answer.header()["replay"]["status"].clone() };
            (!answer.is_error && status != "running").then_some(())
        })
        .await;
        assert!(scene.ledger.count(&mark) <= 1, "{mark}: {:?}", scene.ledger.counts());
    }
    watch.holds().await;
}
