//! What a conversation is owed over a change of the broker: late results, what people type, waits, cancellations,
//! batches and bindings (behaviour 17; failure rules F4, F7 and F9).

use std::time::Duration;

use chappie_tests::{
    Answer, Client,
    answer::excerpt,
    election::{Cluster, NAMES, Scene},
    eventually, process,
    random::Random,
    riding::{goes_on, late_once, late_texts, nothing_again, typed},
    wait::within,
};
use serde_json::json;

#[tokio::test]
async fn f5_a_late_result_over_a_failover_arrives_once() {
    let mut scene = Scene::with(3, |_, setup| setup.call_budget(3)).await;
    let chat = scene.chat("v1/late").await;
    let running = chat.call("bash", json!({"command": scene.held("one")})).await.ok();
    goes_on(&running);
    scene.lose_broker().await;
    scene.release("one");
    scene.ended("one").await;
    late_once(&chat, "DONE-one-42").await;
    // Delivered is delivered: neither the return of the old broker nor another failover brings it again.
    let lost = scene.broker;
    scene.back(lost).await;
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
    let acting = scene.cluster.broker().await;
    if ![scene.door, scene.station].contains(&acting) {
        scene.cluster[acting].kill();
        nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
    }
    scene.ran_once("one");
}

#[tokio::test]
async fn f9_a_late_result_that_came_to_be_while_nobody_was_broker_arrives_once() {
    let mut scene = Scene::with(3, |_, setup| setup.call_budget(3)).await;
    let chat = scene.chat("v1/between").await;
    chat.call("bash", json!({"command": scene.held("one"), "operationId": "op-1"})).await.ok();
    let lost = scene.broker;
    scene.cluster[lost].kill();
    scene.release("one");
    scene.ended("one").await;
    late_once(&chat, "DONE-one-42").await;
    let replay = chat.call("bash", json!({"command": scene.held("one"), "operationId": "op-1"})).await.ok();
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    scene.ran_once("one");
}

#[tokio::test]
async fn f7_what_is_typed_before_and_after_a_failover_rides_along_once_and_in_order() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/typed").await;
    scene.cluster[scene.station].say(&scene.session, "before");
    let lost = scene.broker;
    scene.cluster[lost].kill();
    // No broker yet, and people write all the same.
    scene.cluster[scene.station].say(&scene.session, "between");
    scene.broker_besides(lost).await;
    scene.cluster[scene.station].say(&scene.session, "after");
    let mut arrived = Vec::new();
    eventually("what was typed", async || {
        arrived.extend(typed(&chat.call("bash", json!({"command": "true"})).await.ok()));
        (arrived.len() >= 3).then_some(())
    })
    .await;
    assert_eq!(arrived, ["before", "between", "after"]);
    scene.back(lost).await;
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
}

#[tokio::test]
async fn f7_what_is_typed_during_a_call_comes_with_its_answer_over_a_failover() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/during").await;
    let call = chat.begin("bash", json!({"command": scene.held("one")}));
    scene.begun("one").await;
    scene.cluster[scene.station].say(&scene.session, "in between");
    scene.lose_broker().await;
    scene.release("one");
    let mut arrived = typed(&call.answer().await.ok());
    arrived.extend(typed(&chat.call("bash", json!({"command": "true"})).await.ok()));
    assert_eq!(arrived, ["in between"]);
    scene.ran_once("one");
}

/// The broker dies at any moment of an answer that brings something: it comes once, or again with the word that it is
/// a repetition.
#[tokio::test]
async fn f7_inputs_under_kills_at_any_moment_are_delivered_once_or_marked() {
    let mut cluster = Cluster::of(3).await;
    let mut random = Random::from_environment(0x7f7);
    for round in 0..6 {
        let scene = Scene::of(cluster).await;
        let chat = scene.chat(&format!("v1/any-{round}")).await;
        let text = format!("typed in round {round}");
        scene.cluster[scene.station].say(&scene.session, &text);
        let call = chat.begin("bash", json!({"command": "true"}));
        random.moment(25).await;
        let lost = scene.broker;
        cluster = scene.cluster;
        cluster[lost].kill();
        let mut arrived = typed(&call.answer().await.ok());
        for _ in 0..3 {
            arrived.extend(typed(&chat.call("bash", json!({"command": "true"})).await.ok()));
        }
        assert_eq!(arrived, [text], "round {round}");
        cluster[lost].start_again().await;
        cluster.settled(3).await;
    }
}

fn ids(page: &Answer) -> Vec<String> {
    page.sections().iter().filter_map(|section| section.head["id"].as_str()).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_history_wait_goes_on_over_a_failover() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/waiting").await;
    chat.call("bash", json!({"command": "echo first"})).await.ok();
    let last = ids(&chat.call("history", json!({"limit": 1})).await.ok());
    let waiting = chat.begin("history", json!({"after": last[0], "wait": true, "observer": true}));
    for _ in 0..3 {
        chat.call("tools", json!({"names": ["ls"]})).await.ok();
    }
    scene.lose_broker().await;
    assert!(!waiting.is_finished(), "nothing was written, and a change of the broker is nobody's news");
    scene.cluster[scene.station].say(&scene.session, "typed after the failover");
    let page = waiting.answer().await.ok();
    assert!(page.text().contains("typed after the failover"), "{}", excerpt(&page.text()));
}

#[tokio::test]
async fn f4_a_cancellation_over_a_failover_reaches_the_process() {
    let mut cluster = Cluster::of(3).await;
    for handshake in [true, false] {
        let scene = Scene::of(cluster).await;
        let door = &scene.cluster[scene.door];
        let client = if handshake { door.client().await } else { door.stateless() };
        let chat = client.chat(&format!("v1/cancel-{handshake}"));
        let command = format!("{}; sleep 33{}", scene.ledger.append("begun"), u8::from(handshake));
        let call = chat.begin("bash", json!({"command": command, "sessionId": scene.session}));
        let mark = scene.cluster[scene.station].world.mark().to_owned();
        let there = || !process::running(&mark, &format!("sleep 33{}", u8::from(handshake))).is_empty();
        eventually("the command", async || there().then_some(())).await;
        let lost = scene.broker;
        let station = scene.station;
        cluster = scene.cluster;
        cluster[lost].kill();
        // At once: the new broker is not there yet.
        call.cancel().await;
        within(Duration::from_secs(20), "the command's end", async || (!there()).then_some(())).await;
        let arguments = json!({"command": "echo next", "sessionId": scene.session});
        let next = cluster[station].chat("v1/next").call("bash", arguments).await.ok();
        assert!(next.output().contains("next"));
        cluster[lost].start_again().await;
        cluster.settled(3).await;
    }
}

#[tokio::test]
async fn the_finished_members_of_a_cancelled_batch_arrive_after_a_failover_once() {
    let mut scene = Scene::new().await;
    let chat = scene.cluster[scene.door].client().await.chat("v1/batch");
    chat.call("init", json!({"sessionId": scene.session})).await.ok();
    let calls = json!([
        {"name": "bash", "arguments": {"command": "echo FINISHED-$((8 + 9))"}},
        {"name": "bash", "arguments": {"command": format!("{}; sleep 71", scene.ledger.append("two"))}},
        {"name": "bash", "arguments": {"command": scene.ledger.append("three")}},
    ]);
    let call = chat.begin("call", json!({"calls": calls}));
    eventually("the second member", async || (scene.ledger.count("two") == 1).then_some(())).await;
    call.cancel().await;
    let mark = scene.cluster[scene.station].world.mark().to_owned();
    let gone = async || process::running(&mark, "sleep 71").is_empty().then_some(());
    within(Duration::from_secs(10), "the second member's end", gone).await;
    scene.lose_broker().await;
    late_once(&scene.cluster[scene.door].chat("v1/batch"), "FINISHED-17").await;
    assert_eq!(scene.ledger.count("three"), 0, "what had not started does not start");
    assert_eq!(scene.ledger.count("two"), 1);
}

#[tokio::test]
async fn a_late_result_after_a_switch_and_a_failover_keeps_its_session_and_folder() {
    let mut scene = Scene::with(3, |_, setup| setup.call_budget(3).cooldown(0.0)).await;
    let chat = scene.chat("v1/mover").await;
    let command = format!("pwd; {}", scene.held("one"));
    chat.call("bash", json!({"command": command})).await.ok();
    scene.begun("one").await;
    let other = scene.cluster[scene.door].session(NAMES[scene.door]);
    chat.call("init", json!({"sessionId": other})).await.ok();
    scene.lose_broker().await;
    scene.release("one");
    scene.ended("one").await;
    let mut late = Vec::new();
    let here = scene.cluster[scene.door].folder().display().to_string();
    eventually("the late result", async || {
        let answer = chat.call("bash", json!({"command": "pwd"})).await.ok();
        assert!(answer.output().contains(&here), "the switch holds: {}", answer.output());
        late.extend(answer.late_results());
        (!late.is_empty()).then_some(())
    })
    .await;
    assert_eq!(late.len(), 1);
    let there = scene.cluster[scene.station].folder();
    assert_eq!((&late[0].0["sessionId"], &late[0].0["cwd"]), (&json!(scene.session), &json!(there)));
    assert!(late[0].1[0].text.contains("DONE-one-42"), "{}", excerpt(&late[0].1[0].text));
    nothing_again(&chat.call("bash", json!({"command": "true"})).await.ok());
}

#[tokio::test]
async fn an_explicit_session_does_not_move_the_default_over_a_failover() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/explicit").await;
    let other = scene.cluster[scene.door].session(NAMES[scene.door]);
    let there = scene.cluster[scene.door].folder().display().to_string();
    let own = scene.cluster[scene.station].folder().display().to_string();
    chat.call("bash", json!({"command": "pwd", "sessionId": other})).await.ok();
    scene.lose_broker().await;
    let explicit = chat.call("bash", json!({"command": "pwd", "sessionId": other})).await.ok();
    assert!(explicit.output().contains(&there), "{}", explicit.output());
    let default = chat.call("bash", json!({"command": "pwd"})).await.ok();
    assert!(default.output().contains(&own), "{}", default.output());
}

/// Selection races of behaviour 6.1, at the moment at which the directory is gathered anew (F13).
#[tokio::test]
async fn f13_new_conversations_right_after_a_failover_get_sessions_of_their_own() {
    let mut scene = Scene::new().await;
    let lost = scene.broker;
    scene.cluster[lost].kill();
    let doors = [scene.door, scene.station];
    let calls: Vec<_> = doors
        .iter()
        .map(|door| scene.cluster[*door].chat(&format!("v1/new-{door}")).begin("bash", json!({"command": "pwd"})))
        .collect();
    let mut folders = Vec::new();
    for call in calls {
        folders.push(call.answer().await.ok().output());
    }
    assert_ne!(folders[0], folders[1], "one session for two");
    for (door, folder) in doors.iter().zip(&folders) {
        let chat = scene.cluster[scene.door].chat(&format!("v1/new-{door}"));
        assert_eq!(&chat.call("bash", json!({"command": "pwd"})).await.ok().output(), folder, "the binding is kept");
    }
}

/// A receipt belongs to its conversation, with whichever broker.
#[tokio::test]
async fn a_receipt_of_one_conversation_is_no_receipt_of_another_after_a_failover() {
    let mut scene = Scene::new().await;
    let (one, other) = (scene.chat("v1/one").await, scene.chat("v1/other").await);
    let arguments = json!({"command": scene.ledger.append("ran"), "operationId": "op-1"});
    one.call("bash", arguments.clone()).await.ok();
    scene.lose_broker().await;
    let first: Answer = other.call("bash", arguments.clone()).await.ok();
    assert!(first.header()["replay"].is_null(), "{}", excerpt(&first.text()));
    assert_eq!(scene.ledger.count("ran"), 2, "two conversations, two operations");
    for chat in [&one, &other] {
        replays(chat, &arguments).await;
    }
    // With other arguments the id is refused, as before.
    let refused = one.call("bash", json!({"command": "echo other", "operationId": "op-1"})).await.refused();
    assert!(late_texts(&refused).is_empty());
    assert_eq!(scene.ledger.count("ran"), 2);
}

async fn replays(chat: &Client, arguments: &serde_json::Value) {
    let replay = chat.call("bash", arguments.clone()).await.ok();
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
}
