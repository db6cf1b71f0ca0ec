//! The broker is stopped in order: it hands leadership over first, and no call notices.

use std::time::Duration;

use chappie_tests::{
    election::{Scene, Traffic, Watch, done},
    riding::nothing_again,
};
use serde_json::json;

/// Ten calls a second.
const PACE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_broker_that_stops_in_order_hands_over_and_every_call_is_answered() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/steady").await;
    let watch = Watch::over(&scene.cluster);
    let traffic = Traffic::start(&chat, &scene.session, &scene.ledger, PACE);
    chappie_tests::eventually("some calls", async || (scene.ledger.counts().len() >= 10).then_some(())).await;
    let lost = scene.broker;
    let before = scene.ledger.counts().len();
    scene.cluster[lost].stop().await;
    let next = scene.broker_besides(lost).await;
    assert_ne!(next, lost);
    chappie_tests::eventually("calls afterwards", async || (scene.ledger.counts().len() >= before + 20).then_some(()))
        .await;
    traffic.all_ran_once(&scene.ledger).await;
    scene.back(lost).await;
    watch.holds().await;
}

#[tokio::test]
async fn leadership_goes_around_by_orderly_stops_under_traffic_and_nothing_is_lost() {
    let mut scene = Scene::with(4, |_, setup| setup).await;
    let (door, station) = (scene.door, scene.station);
    let chat = scene.chat("v1/around").await;
    let traffic = Traffic::start(&chat, &scene.session, &scene.ledger, PACE);
    let mut stopped = 0;
    for _ in 0..4 {
        let acting = scene.cluster.broker().await;
        // A device whose own door or session is used cannot stop without a word; the other two take turns.
        let lost = if [door, station].contains(&acting) { scene.cluster.besides(&[door, station])[0] } else { acting };
        stopped += usize::from(lost == acting);
        scene.cluster[lost].stop().await;
        scene.broker_besides(lost).await;
        scene.back(lost).await;
    }
    assert!(stopped > 0, "no broker was stopped");
    traffic.all_ran_once(&scene.ledger).await;
}

#[tokio::test]
async fn a_bash_that_runs_when_leadership_moves_on_purpose_gives_one_answer() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/moved").await;
    let call = chat.begin("bash", json!({"command": scene.held("one"), "operationId": "op-1"}));
    scene.begun("one").await;
    let lost = scene.broker;
    scene.cluster[lost].stop().await;
    scene.broker_besides(lost).await;
    assert!(!call.is_finished(), "the call goes on");
    scene.release("one");
    done(call.answer().await, "one");
    scene.ran_once("one");
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
    scene.back(lost).await;
}

/// A broker that is stopped while nobody can take over stops all the same, in time.
#[tokio::test]
async fn a_broker_without_followers_stops_in_time() {
    let mut scene = Scene::new().await;
    for at in scene.cluster.besides(&[scene.broker]) {
        scene.cluster[at].kill();
    }
    let lost = scene.broker;
    scene.cluster[lost].stop().await;
}
