//! What people type at a session (behaviour 3.1, 5.6; failure rule F7): it rides along with results, once, in order, and
//! is consumed only by an answer that was written. Against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base64::Engine;
use chappie_tests::{
    Answer, Client, Node, Revision, World, answer::excerpt, client::CallError, eventually, files, node::Setup,
};
use serde_json::{Value, json};

fn texts(answer: &Answer) -> Vec<String> {
    answer.inputs().into_iter().map(|input| input.text).collect()
}

async fn bash(client: &Client) -> Answer {
    client.call("bash", json!({"command": "true"})).await.ok()
}

#[tokio::test]
async fn inputs_ride_along_with_the_next_result_once_and_in_order() {
    let node = Node::single().await;
    let (client, session) = (node.chat("v1/in"), node.session("s"));
    for number in 0..5 {
        node.say(&session, &format!("input {number}"));
    }
    let first = bash(&client).await;
    assert_eq!(texts(&first), ["input 0", "input 1", "input 2", "input 3", "input 4"]);
    for input in first.inputs() {
        assert_eq!(input.head["sessionId"], json!(session));
        assert!(input.head["piInput"].is_string());
    }
    assert!(texts(&bash(&client).await).is_empty(), "once");
    let structured = first.structured["text"].as_str().unwrap_or_default().to_owned();
    assert!(structured.contains("input 4"), "structuredContent repeats the text");
}

#[tokio::test]
async fn an_input_typed_during_a_call_rides_along_with_that_call() {
    let node = Node::single().await;
    let (client, session) = (node.chat("v1/in"), node.session("s"));
    let call = client.begin("bash", json!({"command": "touch begun; while [ ! -e go ]; do sleep 0.05; done"}));
    let begun = node.folder().join("begun");
    eventually("the command", async || begun.exists().then_some(())).await;
    node.say(&session, "in between");
    node.world.put(&node.folder().join("go"), "");
    assert_eq!(texts(&call.answer().await.ok()), ["in between"]);
}

#[tokio::test]
async fn init_and_tools_bring_inputs_and_history_and_sessions_do_not() {
    let node = Node::single_with(Setup::new().cooldown(0.0)).await;
    let (client, session) = (node.chat("v1/in"), node.session("s"));
    client.call("init", json!({})).await.ok();
    node.say(&session, "one");
    assert!(texts(&client.call("history", json!({})).await.ok()).is_empty());
    assert!(texts(&client.call("sessions", json!({})).await.ok()).is_empty());
    assert_eq!(texts(&client.call("tools", json!({"names": ["ls"]})).await.ok()), ["one"]);
    node.say(&session, "two");
    assert_eq!(texts(&client.call("init", json!({})).await.ok()), ["two"]);
    node.say(&session, "three");
    assert_eq!(texts(&client.call("chat", json!({"text": "done"})).await.ok()), ["three"]);
}

#[tokio::test]
async fn an_error_before_the_work_consumes_no_input() {
    let node = Node::single().await;
    let (client, session) = (node.chat("v1/in"), node.session("s"));
    bash(&client).await;
    node.say(&session, "waiting");
    let refused = client.call("bash", json!({"command": "true", "unknown": 1})).await.refused();
    assert!(texts(&refused).is_empty(), "{}", excerpt(&refused.text()));
    assert_eq!(texts(&bash(&client).await), ["waiting"]);
}

#[tokio::test]
async fn f7_an_answer_that_was_not_written_consumes_nothing() {
    let node = Node::single().await;
    let session = node.session("s");
    let client = Client::open(node.url(), Revision::Handshake).await.chat("v1/in");
    let command = "touch begun; while [ ! -e go ]; do sleep 0.05; done; touch done";
    let call = client.begin("bash", json!({"command": command}));
    let (begun, done) = (node.folder().join("begun"), node.folder().join("done"));
    eventually("the command", async || begun.exists().then_some(())).await;
    node.say(&session, "must not be lost");
    call.cut();
    node.world.put(&node.folder().join("go"), "");
    eventually("the command's end", async || done.exists().then_some(())).await;
    let mut arrived = Vec::new();
    eventually("the input", async || {
        let answer = bash(&client).await;
        arrived.extend(texts(&answer));
        (!arrived.is_empty()).then_some(())
    })
    .await;
    assert_eq!(arrived, ["must not be lost"]);
    assert!(texts(&bash(&client).await).is_empty());
}

#[tokio::test]
async fn inputs_survive_a_restart_and_arrive_once() {
    let mut node = Node::single().await;
    let session = node.session("s");
    node.say(&session, "before the restart");
    node.restart().await;
    let client = node.chat("v1/in");
    assert_eq!(texts(&bash(&client).await), ["before the restart"]);
    node.stop().await;
    node.start_again().await;
    assert!(texts(&bash(&node.chat("v1/in")).await).is_empty());
}

#[tokio::test]
async fn f7_an_input_that_comes_again_after_a_kill_says_so() {
    let mut node = Node::single().await;
    let session = node.session("s");
    for round in 0..5 {
        let text = format!("round {round}");
        node.say(&session, &text);
        assert_eq!(texts(&bash(&node.chat("v1/in")).await), [text]);
        // The kill may come before the node wrote down that the answer went out.
        node.restart().await;
        for input in bash(&node.chat("v1/in")).await.inputs() {
            assert_eq!(input.head["redelivered"], true, "{}", input.head);
        }
    }
}

#[tokio::test]
async fn f7_two_answers_at_the_same_moment_never_bring_the_same_input() {
    let node = Node::single().await;
    let (client, session) = (node.chat("v1/in"), node.session("s"));
    bash(&client).await;
    for round in 0..10 {
        node.say(&session, &format!("round {round}"));
        let calls: Vec<_> = (0..4).map(|_| client.begin("tools", json!({"names": ["ls"]}))).collect();
        let mut arrived = Vec::new();
        for call in calls {
            arrived.extend(texts(&call.answer().await.ok()));
        }
        assert_eq!(arrived, [format!("round {round}")]);
    }
}

/// A PNG of one colour.
fn png(side: u32) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(side, side, image::Rgb([1, 2, 200]))
        .write_to(&mut bytes, image::ImageFormat::Png)
        .unwrap();
    bytes.into_inner()
}

fn blob(result: &Value) -> Vec<u8> {
    let data = result["contents"][0]["blob"].as_str().unwrap_or_else(|| panic!("no blob in {result}"));
    base64::engine::general_purpose::STANDARD.decode(data).unwrap()
}

#[tokio::test]
async fn an_image_is_shown_with_a_reference_that_reads_back_its_bytes() {
    let node = Node::single().await;
    node.world.put(&node.folder().join("p.png"), png(48));
    let client = node.chat("v1/in");
    let read = client.call("read", json!({"path": "p.png"})).await.ok();
    let result = &read.results()[0];
    assert_eq!((result.images.len(), result.references.len()), (1, 1), "{}", excerpt(&read.text()));
    let reference = &result.references[0];
    let session = node.session("s");
    assert!(reference.starts_with(&format!("chappie://session/{session}/image/")), "{reference}");
    for uri in [reference.clone(), format!("{reference}?chatId=v1%2Fin"), format!("{reference}#part")] {
        let resource = client.request("resources/read", json!({"uri": uri})).await.unwrap();
        assert_eq!(resource["contents"][0]["uri"], json!(uri), "the requested URI comes back");
        assert_eq!(resource["contents"][0]["mimeType"], json!(result.images[0].mime));
        assert_eq!(blob(&resource), result.images[0].bytes);
    }
    assert_eq!(image::load_from_memory(&result.images[0].bytes).unwrap().to_rgb8().dimensions(), (48, 48));
    assert!(reference.contains(&files::sha16_of(&result.images[0].bytes)), "named by the hash of the shown bytes");
}

#[tokio::test]
async fn an_image_reference_still_reads_after_a_restart() {
    let mut node = Node::single().await;
    node.world.put(&node.folder().join("p.png"), png(40));
    let read = node.chat("v1/in").call("read", json!({"path": "p.png"})).await.ok();
    node.stop().await;
    node.start_again().await;
    let client = node.chat("v1/in");
    let history = client.call("history", json!({"limit": 50})).await.ok();
    let shown =
        history.sections().into_iter().find(|section| !section.images.is_empty()).expect("history has the image");
    assert_eq!(shown.references, read.results()[0].references);
    let resource = client.request("resources/read", json!({"uri": shown.references[0]})).await.unwrap();
    assert_eq!(blob(&resource), read.results()[0].images[0].bytes);
    assert!(!history.raw.to_string().contains("resource_link"), "history never links");
}

#[tokio::test]
async fn foreign_and_unknown_references_are_not_found() {
    let world = std::sync::Arc::new(World::new());
    let (a, b) = (world.folder("a"), world.folder("b"));
    world.put(&a.join("p.png"), png(16));
    let node = Node::start(world, Setup::new().session(&a, "a").session(&b, "b")).await;
    let client = node.chat("v1/in");
    let arguments = json!({"path": "p.png", "sessionId": node.session("a")});
    let read = client.call("read", arguments).await.ok();
    let reference = read.results()[0].references[0].clone();
    let foreign = reference.replace(&node.session("a"), &node.session("b"));
    let unknown = reference.replace("/image/", "/image/0");
    for uri in [foreign, unknown, "chappie://session/x/image/y/z.png".into(), "file:///etc/passwd".into()] {
        let refused = client.request("resources/read", json!({"uri": uri})).await;
        let Err(CallError::Refused { code, .. }) = refused else { panic!("{uri}: {refused:?}") };
        assert_eq!(code, -32602, "{uri}: resource not found of 2026-07-28");
    }
    let templates = client.request("resources/templates/list", json!({})).await.unwrap();
    let template = templates["resourceTemplates"][0]["uriTemplate"].as_str().unwrap_or_default().to_owned();
    assert_eq!(template, "chappie://session/{sessionId}/{kind}/{id}/{name}{?chatId}");
}

#[tokio::test]
async fn reading_a_reference_for_a_conversation_opens_its_window() {
    let node = Node::single().await;
    node.world.put(&node.folder().join("p.png"), png(16));
    let session = node.session("s");
    let read = node.chat("v1/a").call("read", json!({"path": "p.png", "sessionId": session})).await.ok();
    let uri = format!("{}?chatId=v1%2Ffresh", read.results()[0].references[0]);
    node.stateless().request("resources/read", json!({"uri": uri})).await.unwrap();
    let init = node.chat("v1/fresh").call("init", json!({"sessionId": session})).await.ok();
    assert_eq!(init.header()["initialization"]["mode"], "observer");
}
