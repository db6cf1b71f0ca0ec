//! F7 over sockets: an answer counts as delivered when its bytes are with the operating system, and at no other time.

use serde_json::json;

use super::{
    Event, Stand,
    wire::{call, in_chat, modern},
};

fn settled(tag: &str, written: bool) -> Event {
    Event::Settled(tag.to_owned(), written)
}

#[tokio::test]
async fn f7_an_answer_in_one_piece_is_written() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    for n in 0..20 {
        let tag = format!("t{n}");
        let response = client.post(&call(n, "echo", json!({ "tag": tag }))).await;
        assert!(!response.is_stream());
        assert_eq!(stand.events.next().await, settled(&tag, true));
    }
}

#[tokio::test]
async fn f7_an_answer_on_a_stream_is_written_in_every_era() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let mut stateless = stand.client().await;
    let held = call(1, "hold", json!({"tag": "a"}));
    for round in 0..3 {
        let (client, message) = match round {
            0 => (&mut client, held.clone()),
            1 => (&mut stateless, in_chat(held.clone(), "v1/abc")),
            _ => {
                stateless.modern("tools/call", Some("hold"));
                (&mut stateless, modern(held.clone()))
            }
        };
        client.send(&message).await;
        assert_eq!(stand.events.next().await, Event::Started("a".to_owned()));
        let (status, headers) = client.head().await;
        assert_eq!((status, headers["content-type"].as_str()), (200, "text/event-stream"));
        assert!(client.chunk().await.is_some());
        assert!(stand.events.is_quiet());
        stand.script.release("a");
        assert_eq!(stand.events.next().await, Event::Released("a".to_owned()));
        let event = String::from_utf8(client.chunk().await.unwrap()).unwrap();
        assert!(event.starts_with("event: message\ndata: {"), "{event}");
        assert!(event.ends_with("}\n\n"), "{event}");
        assert_eq!(client.chunk().await, None);
        assert_eq!(stand.events.next().await, settled("a", true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_client_that_closes_after_reading_got_its_answer() {
    let mut stand = Stand::open().await;
    let first = stand.initialized().await;
    for n in 0..50 {
        let mut client = first.again().await;
        client.post(&call(n, "echo", json!({}))).await;
        drop(client);
        assert_eq!(stand.events.next().await, settled("call", true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_client_that_is_gone_before_the_answer_did_not_get_it() {
    let mut stand = Stand::open().await;
    let first = stand.initialized().await;
    for n in 0..50 {
        let mut client = first.again().await;
        client.send(&call(n, "hold", json!({"tag": "a"}))).await;
        assert_eq!(stand.events.next().await, Event::Started("a".to_owned()));
        // No wait between the two: the door may or may not have noticed, the kernel has.
        drop(client);
        stand.script.release("a");
        assert_eq!(stand.events.next().await, Event::Released("a".to_owned()));
        assert_eq!(stand.events.next().await, settled("a", false), "round {n}");
    }
}

#[tokio::test]
async fn f7_a_client_that_closes_its_writing_half_counts_as_gone() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(stand.events.next().await, Event::Started("a".to_owned()));
    client.half_close().await;
    client.until_closed().await;
    stand.script.release("a");
    assert_eq!(stand.events.next().await, Event::Released("a".to_owned()));
    assert_eq!(stand.events.next().await, settled("a", false));
}

/// More than the two sockets' buffers can hold.
const UNBUFFERABLE: usize = 24 * 1024 * 1024;

#[tokio::test]
async fn f7_an_answer_too_big_for_the_sockets_is_written_only_when_it_is_read() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send(&call(1, "big", json!({ "bytes": UNBUFFERABLE }))).await;
    // Its beginning arrives, so the body has been handed over.
    let (_, headers) = client.head().await;
    assert!(stand.events.is_quiet(), "not written while most of it is still here");
    if headers.contains_key("content-length") {
        let length: usize = headers["content-length"].parse().unwrap();
        client.skip(length).await;
    } else {
        while client.chunk().await.is_some() {}
    }
    assert_eq!(stand.events.next().await, settled("call", true));
}

#[tokio::test]
async fn f7_an_answer_cut_in_the_middle_is_not_written() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send(&call(1, "big", json!({ "bytes": UNBUFFERABLE }))).await;
    client.head().await;
    drop(client);
    assert_eq!(stand.events.next().await, settled("call", false));
}

#[tokio::test]
async fn f7_pipelined_requests_are_answered_and_settled_one_by_one() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    for n in 0..5 {
        client.send(&call(n, "echo", json!({ "tag": format!("t{n}") }))).await;
    }
    for n in 0..5 {
        assert_eq!(client.response().await.json()["id"], n);
        assert_eq!(stand.events.next().await, settled(&format!("t{n}"), true));
    }
}

#[tokio::test]
async fn f7_a_request_running_when_the_door_stops_may_still_answer() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(stand.events.next().await, Event::Started("a".to_owned()));
    stand.shutdown.cancel();
    stand.script.release("a");
    assert_eq!(stand.events.next().await, Event::Released("a".to_owned()));
    assert_eq!(client.response().await.structured()["text"], "held");
    assert_eq!(stand.events.next().await, settled("a", true));
    client.until_closed().await;
}

#[tokio::test]
async fn f5_concurrent_requests_are_answered_in_the_order_they_end() {
    let mut stand = Stand::open().await;
    let first = stand.initialized().await;
    let mut clients = Vec::new();
    for n in 0..16 {
        let mut client = first.again().await;
        client.send(&call(n, "hold", json!({ "tag": format!("t{n}") }))).await;
        assert_eq!(stand.events.next().await, Event::Started(format!("t{n}")));
        clients.push(client);
    }
    for (n, client) in clients.iter_mut().enumerate().rev() {
        stand.script.release(&format!("t{n}"));
        assert_eq!(client.response().await.json()["id"], n);
        assert_eq!(stand.events.next().await, Event::Released(format!("t{n}")));
        assert_eq!(stand.events.next().await, settled(&format!("t{n}"), true));
    }
}
