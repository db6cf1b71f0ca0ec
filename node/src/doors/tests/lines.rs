//! The line door over in-memory pipes and a Unix socket.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex,
        split,
    },
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Events, PATIENCE, Script,
    wire::{call, cancellation, in_chat, initialize, modern, request},
};
use crate::doors::stdio::{LinesError, serve};

/// A client of the line door.
struct Peer {
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
    script: Arc<Script>,
    events: Events,
    shutdown: CancellationToken,
    served: JoinHandle<Result<(), LinesError>>,
}

impl Peer {
    /// A connection whose pipes hold 1 MiB each way.
    fn connect() -> Self {
        Self::with_pipes(1 << 20)
    }

    fn with_pipes(bytes: usize) -> Self {
        let (script, events) = Script::new();
        let (ours, theirs) = duplex(bytes);
        let (reader, writer) = split(theirs);
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(script.clone(), reader, writer, shutdown.clone()));
        let (reader, writer) = split(ours);
        Self { reader: BufReader::new(reader), writer, script, events, shutdown, served }
    }

    async fn initialized() -> Self {
        let mut peer = Self::connect();
        peer.send(&initialize()).await;
        assert_eq!(peer.receive().await["result"]["protocolVersion"], "2025-11-25");
        peer.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        peer
    }

    async fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    async fn raw(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    /// The next line, which must be a JSON-RPC message: the door writes nothing else.
    async fn receive(&mut self) -> Value {
        let line = self.line().await.expect("a line before the end");
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0");
        message
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.reader.read_line(&mut line)).await.expect("a line in time");
        (read.unwrap() > 0).then_some(line)
    }

    async fn ask(&mut self, message: Value) -> Value {
        self.send(&message).await;
        let answer = self.receive().await;
        assert_eq!(answer["id"], message["id"], "{answer}");
        answer
    }

    /// Ends the input and waits until the door is done.
    async fn end(mut self) -> (Result<(), LinesError>, Events, Arc<Script>) {
        self.writer.shutdown().await.unwrap();
        drop((self.writer, self.reader));
        let served = timeout(PATIENCE, self.served).await.expect("the door ends in time").unwrap();
        (served, self.events, self.script)
    }
}

fn settled(tag: &str, written: bool) -> Event {
    Event::Settled(tag.to_owned(), written)
}

#[tokio::test]
async fn a_handshake_opens_a_conversation_of_the_connection() {
    let mut peer = Peer::initialized().await;
    let listed = peer.ask(request(1, "tools/list", json!({}))).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 4);
    let first = peer.ask(call(2, "echo", json!({}))).await["result"]["structuredContent"]["conversation"].clone();
    let second = peer.ask(call(3, "echo", json!({}))).await["result"]["structuredContent"]["conversation"].clone();
    assert!(first.as_str().unwrap().starts_with("conn:stdio:"), "{first}");
    assert_eq!(first, second);
    let chat = peer.ask(in_chat(call(4, "echo", json!({})), "v1/abc")).await;
    assert_eq!(chat["result"]["structuredContent"]["conversation"], "chat:v1/abc");
    let mut other = Peer::initialized().await;
    let other = other.ask(call(2, "echo", json!({}))).await["result"]["structuredContent"]["conversation"].clone();
    assert_ne!(first, other);
}

#[tokio::test]
async fn the_2026_07_28_revision_works_without_a_handshake_and_after_a_discovery() {
    let mut peer = Peer::connect();
    let discovered = peer.ask(modern(request(1, "server/discover", json!({})))).await;
    assert!(discovered["result"]["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")));
    let called = peer.ask(modern(call(2, "echo", json!({})))).await;
    let conversation = called["result"]["structuredContent"]["conversation"].as_str().unwrap().to_owned();
    assert!(conversation.starts_with("conn:stdio:"), "{conversation}");
    assert_eq!(called["result"]["resultType"], "complete");
}

#[tokio::test]
async fn a_client_may_discover_first_and_then_shake_hands() {
    let mut peer = Peer::connect();
    peer.ask(modern(request(1, "server/discover", json!({})))).await;
    assert_eq!(peer.ask(initialize()).await["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(peer.ask(call(2, "echo", json!({}))).await["result"]["isError"], false);
}

#[tokio::test]
async fn what_comes_before_the_handshake_does_not_end_the_connection() {
    let mut peer = Peer::connect();
    peer.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    peer.send(&cancellation(1)).await;
    peer.send(&json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await;
    assert_eq!(peer.ask(request(1, "ping", json!({}))).await["result"], json!({}));
    assert!(peer.ask(request(2, "tools/list", json!({}))).await["error"]["code"].is_i64());
    assert!(peer.ask(call(3, "echo", json!({}))).await["error"]["code"].is_i64());
    assert_eq!(peer.ask(initialize()).await["result"]["serverInfo"]["name"], "chappie");
    assert_eq!(peer.ask(call(4, "echo", json!({}))).await["result"]["isError"], false);
}

#[tokio::test]
async fn lines_that_are_no_message_get_an_error_and_the_connection_lives_on() {
    let mut peer = Peer::initialized().await;
    for (line, code) in [
        ("hello", -32700),
        ("{", -32700),
        ("[]", -32600),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
        ("7", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", -32600),
    ] {
        peer.raw(format!("{line}\n").as_bytes()).await;
        let answer = peer.receive().await;
        assert_eq!((answer["error"]["code"].clone(), answer["id"].clone()), (json!(code), json!(null)), "{line}");
    }
    peer.raw(b"\xff\xfe\n").await;
    assert_eq!(peer.receive().await["error"]["code"], -32700);
    peer.raw(b"\n  \r\n").await;
    assert_eq!(peer.ask(request(1, "ping", json!({}))).await["result"], json!({}));
    assert_eq!(peer.ask(request(2, "nothing/such", json!({}))).await["error"]["code"], -32601);
    peer.raw(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\r\n").await;
    assert_eq!(peer.receive().await["id"], 3, "a carriage return is white space");
}

#[tokio::test]
async fn a_line_over_64_mib_is_answered_and_skipped() {
    let mut peer = Peer::initialized().await;
    let megabyte = vec![b'x'; 1 << 20];
    for _ in 0..65 {
        peer.raw(&megabyte).await;
    }
    let answer = peer.receive().await;
    assert_eq!(answer["error"]["code"], -32600);
    assert!(answer["error"]["message"].as_str().unwrap().contains("67108864"), "{answer}");
    peer.raw(b"the rest of it\n").await;
    assert_eq!(peer.ask(request(1, "ping", json!({}))).await["result"], json!({}));
}

#[tokio::test]
async fn requests_run_concurrently_and_answer_in_the_order_they_end() {
    let mut peer = Peer::initialized().await;
    for n in 0..8 {
        peer.send(&call(n, "hold", json!({ "tag": format!("t{n}") }))).await;
        assert_eq!(peer.events.next().await, Event::Started(format!("t{n}")));
    }
    assert_eq!(peer.ask(call(100, "echo", json!({}))).await["result"]["isError"], false);
    assert_eq!(peer.events.next().await, settled("call", true));
    for n in (0..8).rev() {
        peer.script.release(&format!("t{n}"));
        assert_eq!(peer.receive().await["id"], n);
        assert_eq!(peer.events.next().await, Event::Released(format!("t{n}")));
        assert_eq!(peer.events.next().await, settled(&format!("t{n}"), true));
    }
}

#[tokio::test]
async fn an_id_in_use_is_refused_and_free_again_after_its_answer() {
    let mut peer = Peer::initialized().await;
    peer.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(peer.events.next().await, Event::Started("a".to_owned()));
    let refused = peer.ask(call(1, "echo", json!({}))).await;
    assert_eq!(refused["error"]["code"], -32600);
    peer.script.release("a");
    assert_eq!(peer.receive().await["result"]["isError"], false);
    assert_eq!(peer.ask(call(1, "echo", json!({}))).await["result"]["isError"], false);
}

#[tokio::test]
async fn the_513th_request_in_flight_is_refused() {
    let mut peer = Peer::initialized().await;
    for n in 0..512 {
        peer.send(&call(n, "hold", json!({ "tag": "all" }))).await;
        assert_eq!(peer.events.next().await, Event::Started("all".to_owned()));
    }
    let refused = peer.ask(call(512, "echo", json!({}))).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("512"), "{refused}");
    peer.script.release("all");
    assert_eq!(peer.receive().await["result"]["isError"], false);
    assert_eq!(peer.ask(call(512, "echo", json!({}))).await["result"]["isError"], false);
}

#[tokio::test]
async fn f4_a_cancellation_reaches_its_call_which_is_not_answered() {
    let mut peer = Peer::initialized().await;
    // In one write: the cancellation may not overtake or miss its call.
    peer.raw(format!("{}\n{}\n", call(1, "hold", json!({"tag": "a"})), cancellation(1)).as_bytes()).await;
    assert_eq!(peer.events.next().await, Event::Started("a".to_owned()));
    assert_eq!(peer.events.next().await, Event::Cancelled("a".to_owned()));
    assert_eq!(peer.events.next().await, settled("a", false));
    peer.send(&cancellation(77)).await;
    assert_eq!(peer.ask(call(2, "echo", json!({}))).await["id"], 2, "the next line answers the next call");
}

#[tokio::test]
async fn f4_a_cancellation_works_in_the_2026_07_28_revision_too() {
    let mut peer = Peer::connect();
    peer.send(&modern(call(1, "hold", json!({"tag": "a"})))).await;
    assert_eq!(peer.events.next().await, Event::Started("a".to_owned()));
    peer.send(&cancellation(1)).await;
    assert_eq!(peer.events.next().await, Event::Cancelled("a".to_owned()));
}

#[tokio::test]
async fn f4_the_end_of_input_neither_cancels_nor_ends_a_running_call() {
    let mut peer = Peer::initialized().await;
    peer.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(peer.events.next().await, Event::Started("a".to_owned()));
    let (served, mut events, script) = peer.end().await;
    served.unwrap();
    assert!(events.is_quiet());
    script.release("a");
    assert_eq!(events.next().await, Event::Released("a".to_owned()));
    assert_eq!(events.next().await, settled("a", false));
}

#[tokio::test]
async fn answers_that_are_nearly_ready_still_come_after_the_end_of_input() {
    let mut peer = Peer::connect();
    let mut input = format!("{}\n", initialize());
    for n in 1..=20 {
        input.push_str(&format!("{}\n", call(n, "echo", json!({}))));
    }
    // The last line has no line end.
    peer.raw(input.trim_end().as_bytes()).await;
    peer.writer.shutdown().await.unwrap();
    let mut ids = Vec::new();
    while let Some(line) = peer.line().await {
        ids.push(serde_json::from_str::<Value>(&line).unwrap()["id"].as_i64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..=20).collect::<Vec<_>>());
    for _ in 1..=20 {
        assert_eq!(peer.events.next().await, settled("call", true));
    }
    timeout(PATIENCE, peer.served).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn an_input_that_ends_at_once_ends_the_door_without_a_word() {
    let mut peer = Peer::connect();
    peer.writer.shutdown().await.unwrap();
    assert_eq!(peer.line().await, None);
    timeout(PATIENCE, peer.served).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn f7_an_answer_is_written_when_the_pipe_took_it_all() {
    let mut peer = Peer::with_pipes(64 * 1024);
    peer.send(&initialize()).await;
    peer.receive().await;
    peer.send(&call(1, "big", json!({"bytes": 1 << 20}))).await;
    // Its first bytes are here, so the line is being written.
    assert!(!timeout(PATIENCE, peer.reader.fill_buf()).await.unwrap().unwrap().is_empty());
    assert!(peer.events.is_quiet());
    peer.receive().await;
    assert_eq!(peer.events.next().await, settled("call", true));
}

#[tokio::test]
async fn f7_a_client_that_stops_reading_ends_the_door_and_got_nothing() {
    let mut peer = Peer::initialized().await;
    peer.send(&call(1, "hold", json!({"tag": "a"}))).await;
    assert_eq!(peer.events.next().await, Event::Started("a".to_owned()));
    drop((peer.reader, peer.writer));
    peer.script.release("a");
    assert_eq!(peer.events.next().await, Event::Released("a".to_owned()));
    assert_eq!(peer.events.next().await, settled("a", false));
    timeout(PATIENCE, peer.served).await.unwrap().unwrap().expect("a closed pipe is no error");
}

#[tokio::test]
async fn a_stop_lets_running_calls_answer_and_then_ends_the_door() {
    let mut peer = Peer::initialized().await;
    peer.send(&call(1, "hold", json!({"tag": "a"}))).await;
    peer.send(&call(2, "hold", json!({"tag": "b"}))).await;
    for _ in 0..2 {
        assert!(matches!(peer.events.next().await, Event::Started(_)));
    }
    peer.shutdown.cancel();
    peer.script.release("a");
    assert_eq!(peer.receive().await["id"], 1);
    let unanswered = peer.receive().await;
    assert_eq!(unanswered["id"], 2);
    assert!(unanswered["error"]["message"].as_str().unwrap().contains("history"), "{unanswered}");
    assert_eq!(peer.line().await, None);
    timeout(PATIENCE, peer.served).await.unwrap().unwrap().unwrap();
    assert_eq!(peer.events.next().await, Event::Released("a".to_owned()));
    assert_eq!(peer.events.next().await, settled("a", true));
    peer.script.release("b");
    assert_eq!(peer.events.next().await, Event::Released("b".to_owned()));
    assert_eq!(peer.events.next().await, settled("b", false));
}

/// Fails every write with an error that is no closed pipe.
struct Broken;

impl AsyncWrite for Broken {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::task::Poll::Ready(Err(std::io::Error::other("the disk is on fire")))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// Fails every read.
impl AsyncRead for Broken {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::Error::other("the wire is cut")))
    }
}

#[tokio::test]
async fn broken_streams_end_the_door_with_their_error() {
    let (script, _events) = Script::new();
    let input = format!("{}\n", initialize());
    let served = serve(script.clone(), std::io::Cursor::new(input), Broken, CancellationToken::new());
    let error = timeout(PATIENCE, served).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("the disk is on fire"), "{error}");
    let served = serve(script, Broken, tokio::io::sink(), CancellationToken::new());
    let error = timeout(PATIENCE, served).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("the wire is cut"), "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn the_door_serves_a_unix_socket_as_it_serves_pipes() {
    let (script, mut events) = Script::new();
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let (reader, writer) = theirs.into_split();
    let served = tokio::spawn(serve(script, reader, writer, CancellationToken::new()));
    let (reader, mut writer) = ours.into_split();
    let mut lines = BufReader::new(reader).lines();
    writer.write_all(format!("{}\n{}\n", initialize(), call(1, "echo", json!({}))).as_bytes()).await.unwrap();
    for id in [0, 1] {
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["id"], id);
    }
    assert_eq!(events.next().await, settled("call", true));
    drop((lines, writer));
    timeout(PATIENCE, served).await.unwrap().unwrap().unwrap();
}
