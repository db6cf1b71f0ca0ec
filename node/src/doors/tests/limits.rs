//! What a door refuses and what it bounds.

use std::io::ErrorKind;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Event, PATIENCE, Script, Stand,
    wire::{Client, call, initialize, request},
};
use crate::doors::http::serve;

#[tokio::test]
async fn only_local_hosts_and_origins_are_served() {
    let stand = Stand::open().await;
    for (name, value, status) in [
        ("host", "localhost:1", 200),
        ("host", "[::1]", 200),
        ("host", "evil.example", 403),
        ("origin", "http://localhost:3000", 200),
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
    ] {
        let mut client = stand.client().await;
        client.set(name, value);
        let response = client.post(&initialize()).await;
        assert_eq!(response.status, status, "{name}: {value}");
        assert_eq!(response.json()["jsonrpc"], "2.0");
    }
}

#[tokio::test]
async fn only_loopback_is_bound_and_a_taken_port_is_named() {
    let (script, _events) = Script::new();
    let error = serve(script.clone(), "0.0.0.0:0".parse().unwrap(), CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("OAuth"), "{error}");
    let stand = Stand::open().await;
    let error = serve(script, stand.door.address, CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&stand.door.address.to_string()), "{error}");
}

#[tokio::test]
async fn bodies_that_are_no_message_get_a_json_rpc_error_and_the_connection_lives_on() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let batch = json!([request(1, "ping", json!({})), request(2, "ping", json!({}))]).to_string();
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}1{}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("hello", -32700),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":"\ud800"}}}"#,
            -32700,
        ),
        (deep.as_str(), -32700),
        (batch.as_str(), -32600),
        ("[]", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, -32600),
    ] {
        client.send_body("POST", body.as_bytes()).await;
        let response = client.response().await;
        assert_eq!(response.status, 400, "{body}");
        assert_eq!(response.json()["error"]["code"], code, "{body}");
    }
    client.send_body("POST", b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}").await;
    assert_eq!(client.response().await.json()["error"]["code"], -32700);
    assert_eq!(client.post(&request(9, "ping", json!({}))).await.json()["result"], json!({}));
}

#[tokio::test]
async fn wrong_paths_methods_and_media_types_say_what_is_right() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send_body("PUT", b"").await;
    let response = client.response().await;
    assert_eq!((response.status, response.header("allow")), (405, Some("POST, GET, DELETE")));
    let mut plain = client.again().await;
    plain.set("content-type", "text/plain");
    let response = plain.post(&request(1, "ping", json!({}))).await;
    assert_eq!((response.status, response.json()["id"].clone()), (415, json!(1)));
    let mut narrow = client.again().await;
    narrow.set("accept", "application/json");
    let response = narrow.post(&request(1, "ping", json!({}))).await;
    assert_eq!(response.status, 406);
    assert!(response.json()["error"]["message"].as_str().unwrap().contains("text/event-stream"));
    client.raw(b"POST /other HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!(response.status, 404);
    assert!(response.json()["error"]["message"].as_str().unwrap().contains("/mcp"));
}

#[tokio::test]
async fn a_body_over_64_mib_is_refused_before_it_is_read() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.raw(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 67108865\r\n\r\n").await;
    let (status, _) = client.head().await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn a_body_that_grows_past_64_mib_is_refused_where_it_does() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.raw(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let megabyte = vec![b' '; 1 << 20];
    for _ in 0..64 {
        client.raw(b"100000\r\n").await;
        client.raw(&megabyte).await;
        client.raw(b"\r\n").await;
    }
    client.raw(b"1\r\n \r\n").await;
    let (status, _) = client.head().await;
    assert_eq!(status, 413);
}

#[tokio::test]
async fn a_body_that_is_cut_short_ends_its_connection_only() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.raw(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"jsonrpc\"").await;
    drop(client);
    stand.connections(0).await;
    assert_eq!(stand.client().await.post(&initialize()).await.status, 200);
}

#[tokio::test]
async fn the_513th_connection_is_told_that_there_are_too_many() {
    let stand = Stand::open().await;
    let mut held = Vec::new();
    for _ in 0..512 {
        held.push(Client::connect(stand.door.address).await);
    }
    stand.connections(512).await;
    let mut refused = stand.client().await;
    let response = refused.response().await;
    assert_eq!(response.status, 503);
    assert!(String::from_utf8(response.body).unwrap().ends_with("try later"));
    held.pop();
    stand.connections(511).await;
    assert_eq!(stand.client().await.post(&initialize()).await.status, 200);
}

#[tokio::test]
async fn a_door_that_stops_is_closed_in_2_s_and_refuses_new_clients() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let mut listener = client.again().await;
    listener.send_body("GET", b"").await;
    listener.head().await;
    client.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(stand.events.next().await, Event::Started("a".to_owned()));
    let address = stand.door.address;
    stand.shutdown.cancel();
    listener.until_closed().await;
    client.until_closed().await;
    stand.connections(0).await;
    assert_eq!(tokio::net::TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let closed = stand.into_door().closed();
    tokio::time::timeout(PATIENCE, closed).await.expect("the door says that it is closed");
}

// Time stands still in these and jumps to the next deadline when nothing else can happen.

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_cut_off() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.raw(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await;
    client.drained().await;
    assert_eq!(stand.door.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_is_cut_off() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.raw(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{").await;
    let said = String::from_utf8(client.drained().await).unwrap();
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_opens_at_once_and_carries_a_comment_every_10_s() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(stand.events.next().await, Event::Started("a".to_owned()));
    let sent = tokio::time::Instant::now();
    client.head().await;
    assert_eq!(client.chunk().await.as_deref(), Some(b": open\n\n".as_slice()));
    assert!(sent.elapsed().as_millis() < 1_000, "opened after {:?}", sent.elapsed());
    let begun = tokio::time::Instant::now();
    for n in 1..=3 {
        assert_eq!(client.chunk().await.as_deref(), Some(b": keep-alive\n\n".as_slice()));
        assert_eq!(begun.elapsed().as_secs(), 10 * n);
    }
    stand.script.release("a");
    assert!(client.chunk().await.unwrap().starts_with(b"event: message\n"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_for_60_s_is_cut_off_and_got_nothing() {
    let mut stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send(&call(1, "big", json!({"bytes": 24 * 1024 * 1024}))).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(stand.events.next_ever().await, Event::Settled("call".to_owned(), false));
    assert!(begun.elapsed().as_secs() >= 60);
}
