//! F4 over sockets: what cancels a call and what only loses its client.

use serde_json::{Value, json};

use super::{
    Event, Stand,
    wire::{Client, call, cancellation, in_chat, modern},
};

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Era {
    /// 2025-11-25 in a session.
    Session,
    /// 2025-11-25 without a session, naming its chat.
    Detached,
    /// 2026-07-28.
    Modern,
}

/// A client of `era` and its held call `tag`, sent and begun.
async fn holding(stand: &mut Stand, era: Era, id: i64, tag: &str) -> Client {
    let mut client = match era {
        Era::Session => stand.initialized().await,
        Era::Detached | Era::Modern => stand.client().await,
    };
    let held = call(id, "hold", json!({ "tag": tag }));
    let message = match era {
        Era::Session => held,
        Era::Detached => in_chat(held, "v1/abc"),
        Era::Modern => {
            client.modern("tools/call", Some("hold"));
            modern(held)
        }
    };
    client.send(&message).await;
    assert_eq!(stand.events.next().await, Event::Started(tag.to_owned()));
    client
}

/// The stream of the held call has opened.
async fn opened(client: &mut Client) {
    let (status, headers) = client.head().await;
    assert_eq!((status, headers["content-type"].as_str()), (200, "text/event-stream"));
    assert_eq!(headers["x-accel-buffering"], "no");
    assert_eq!(client.chunk().await.as_deref(), Some(b": open\n\n".as_slice()), "a first byte before the tool ends");
}

#[tokio::test]
async fn f4_a_lost_connection_of_an_older_client_neither_cancels_nor_ends_the_call() {
    for era in [Era::Session, Era::Detached] {
        for wait_for_stream in [true, false] {
            let mut stand = Stand::open().await;
            let mut client = holding(&mut stand, era, 1, "a").await;
            if wait_for_stream {
                opened(&mut client).await;
            }
            drop(client);
            stand.connections(0).await;
            stand.script.release("a");
            assert_eq!(stand.events.next().await, Event::Released("a".to_owned()), "{era:?}");
            assert_eq!(stand.events.next().await, Event::Settled("a".to_owned(), false), "{era:?}");
        }
    }
}

#[tokio::test]
async fn f4_a_closed_request_of_2026_07_28_cancels_its_call() {
    for wait_for_stream in [true, false] {
        let mut stand = Stand::open().await;
        let mut client = holding(&mut stand, Era::Modern, 1, "a").await;
        if wait_for_stream {
            opened(&mut client).await;
        }
        drop(client);
        assert_eq!(stand.events.next().await, Event::Cancelled("a".to_owned()));
        assert_eq!(stand.events.next().await, Event::Settled("a".to_owned(), false));
    }
}

#[tokio::test]
async fn f4_a_request_that_ended_is_not_cancelled_by_closing_its_connection() {
    let mut stand = Stand::open().await;
    let mut client = holding(&mut stand, Era::Modern, 1, "a").await;
    opened(&mut client).await;
    stand.script.release("a");
    assert_eq!(stand.events.next().await, Event::Released("a".to_owned()));
    assert!(client.chunk().await.is_some());
    drop(client);
    assert_eq!(stand.events.next().await, Event::Settled("a".to_owned(), true));
    stand.connections(0).await;
    assert!(stand.events.is_quiet());
}

#[tokio::test]
async fn f4_a_cancellation_in_the_session_reaches_its_call_and_its_stream_ends_without_an_answer() {
    let mut stand = Stand::open().await;
    let mut client = holding(&mut stand, Era::Session, 5, "a").await;
    opened(&mut client).await;
    let mut canceller = client.again().await;
    assert_eq!(canceller.post(&cancellation(5)).await.status, 202);
    assert_eq!(stand.events.next().await, Event::Cancelled("a".to_owned()));
    assert_eq!(stand.events.next().await, Event::Settled("a".to_owned(), false), "nobody reads that answer");
    assert_eq!(client.chunk().await, None);
    assert_eq!(client.post(&call(6, "echo", json!({}))).await.status, 200, "the connection lives on");
}

#[tokio::test]
async fn f4_a_cancellation_with_the_chat_in_header_or_meta_reaches_the_call_of_that_chat() {
    for in_header in [true, false] {
        let mut stand = Stand::open().await;
        let client = holding(&mut stand, Era::Detached, 5, "a").await;
        let mut canceller = client.again().await;
        let mut message = cancellation(5);
        if in_header {
            canceller.set("x-openai-session", "v1/abc");
        } else {
            message = in_chat(message, "v1/abc");
        }
        assert_eq!(canceller.post(&message).await.status, 202);
        assert_eq!(stand.events.next().await, Event::Cancelled("a".to_owned()));
    }
}

#[tokio::test]
async fn f4_a_cancellation_still_finds_its_call_after_the_connection_was_lost() {
    let mut stand = Stand::open().await;
    let client = holding(&mut stand, Era::Session, 5, "a").await;
    let mut canceller = client.again().await;
    drop(client);
    stand.connections(1).await;
    assert_eq!(canceller.post(&cancellation(5)).await.status, 202);
    assert_eq!(stand.events.next().await, Event::Cancelled("a".to_owned()));
}

#[tokio::test]
async fn f4_a_cancellation_from_elsewhere_or_of_another_id_cancels_nothing() {
    let mut stand = Stand::open().await;
    let client = holding(&mut stand, Era::Session, 5, "a").await;
    let mut stranger = stand.initialized().await;
    assert_eq!(stranger.post(&cancellation(5)).await.status, 202);
    let mut owner = client.again().await;
    for id in [json!(6), json!("5"), json!(null), json!({})] {
        let mut message = cancellation(0);
        message["params"]["requestId"] = id;
        assert_eq!(owner.post(&message).await.status, 202);
    }
    let bare: Value = json!({"jsonrpc": "2.0", "method": "notifications/cancelled"});
    assert_eq!(owner.post(&bare).await.status, 202);
    stand.script.release("a");
    assert_eq!(stand.events.next().await, Event::Released("a".to_owned()));
}

#[tokio::test]
async fn f4_a_door_that_stops_cuts_its_clients_off_without_cancelling() {
    for era in [Era::Session, Era::Modern] {
        let mut stand = Stand::open().await;
        let client = holding(&mut stand, era, 1, "a").await;
        stand.shutdown.cancel();
        client.until_closed().await;
        stand.connections(0).await;
        stand.script.release("a");
        assert_eq!(stand.events.next().await, Event::Released("a".to_owned()), "{era:?}");
        assert_eq!(stand.events.next().await, Event::Settled("a".to_owned(), false), "{era:?}");
    }
}
