//! A client that writes HTTP/1.1 by hand, so that a test decides what is sent, what is read and when it closes.

use std::{collections::HashMap, net::SocketAddr};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{EVER, PATIENCE};

/// One keep-alive connection.
pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    address: SocketAddr,
    /// Headers every request carries.
    pub(super) headers: Vec<(String, String)>,
}

/// A whole response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) headers: HashMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// The one JSON-RPC message of the body, whether it came whole or as an event.
    pub(super) fn json(&self) -> Value {
        let text = std::str::from_utf8(&self.body).unwrap();
        let message = if self.is_stream() {
            let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let message = data.next().unwrap_or_else(|| panic!("an event in {text:?}"));
            assert_eq!(data.next(), None, "one event");
            message
        } else {
            text
        };
        serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }

    pub(super) fn structured(&self) -> Value {
        self.json()["result"]["structuredContent"].clone()
    }
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new(), address, headers: Vec::new() }
    }

    /// Another connection of the same client.
    pub(super) async fn again(&self) -> Self {
        Self { headers: self.headers.clone(), ..Self::connect(self.address).await }
    }

    /// Shakes hands as 2025-11-25 and carries the session from then on.
    pub(super) async fn initialize(&mut self) -> String {
        let response = self.post(&initialize()).await;
        assert_eq!(response.status, 200, "{response:?}");
        let id = response.header("mcp-session-id").expect("a session id").to_owned();
        self.headers.retain(|(name, _)| name != "mcp-session-id" && name != "mcp-protocol-version");
        self.set("mcp-session-id", &id);
        self.set("mcp-protocol-version", "2025-11-25");
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.post(&initialized).await.status, 202);
        id
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// Carries what every 2026-07-28 POST of `method` on `name` does.
    pub(super) fn modern(&mut self, method: &str, name: Option<&str>) {
        self.set("mcp-protocol-version", "2026-07-28");
        self.set("mcp-method", method);
        self.headers.retain(|(known, _)| known != "mcp-name");
        if let Some(name) = name {
            self.set("mcp-name", name);
        }
    }

    pub(super) async fn post(&mut self, message: &Value) -> Response {
        self.send(message).await;
        self.response().await
    }

    pub(super) async fn send(&mut self, message: &Value) {
        self.send_body("POST", message.to_string().as_bytes()).await;
    }

    pub(super) async fn send_body(&mut self, method: &str, body: &[u8]) {
        let mut head = format!("{method} /mcp HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        let defaults = [
            ("host", self.address.to_string()),
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
        ];
        for (name, value) in defaults {
            if !self.headers.iter().any(|(known, _)| known == name) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.raw(head.as_bytes()).await;
        self.raw(body).await;
    }

    pub(super) async fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads one whole response.
    pub(super) async fn response(&mut self) -> Response {
        let (status, headers) = self.head().await;
        let mut body = Vec::new();
        if let Some(length) = headers.get("content-length") {
            let length = length.parse().unwrap();
            while self.buffer.len() < length {
                self.more().await;
            }
            body = self.buffer.drain(..length).collect();
        } else if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            while let Some(chunk) = self.chunk().await {
                body.extend(chunk);
            }
        }
        Response { status, headers, body }
    }

    /// Reads the head of a response.
    pub(super) async fn head(&mut self) -> (u16, HashMap<String, String>) {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at;
            }
            self.more().await;
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        (status, headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect())
    }

    /// Reads one chunk of a chunked body; `None` is its end.
    pub(super) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let (start, length) = loop {
            if let Some(at) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let length = usize::from_str_radix(std::str::from_utf8(&self.buffer[..at]).unwrap(), 16).unwrap();
                break (at + 2, length);
            }
            self.more().await;
        };
        while self.buffer.len() < start + length + 2 {
            self.more().await;
        }
        let chunk = self.buffer[start..start + length].to_vec();
        self.buffer.drain(..start + length + 2);
        (length > 0).then_some(chunk)
    }

    async fn more(&mut self) {
        assert!(self.read().await > 0, "the door closed the connection; unread: {:?}", self.buffer);
    }

    async fn read(&mut self) -> usize {
        timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await.expect("bytes in time").unwrap()
    }

    /// Waits until the door closes the connection; what came before that is returned.
    pub(super) async fn until_closed(mut self) -> Vec<u8> {
        while let Ok(Ok(1..)) = timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await {}
        self.buffer
    }

    /// The same within ten minutes of paused time.
    pub(super) async fn drained(&mut self) -> Vec<u8> {
        while let Ok(1..) = timeout(EVER, self.stream.read_buf(&mut self.buffer)).await.expect("an end at all") {}
        std::mem::take(&mut self.buffer)
    }

    /// Reads `length` bytes of a body and forgets them.
    pub(super) async fn skip(&mut self, mut length: usize) {
        loop {
            let taken = length.min(self.buffer.len());
            self.buffer.drain(..taken);
            length -= taken;
            if length == 0 {
                return;
            }
            self.more().await;
        }
    }

    /// Closes the writing half and keeps reading.
    pub(super) async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }
}

pub(super) fn initialize() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    })
}

pub(super) fn request(id: i64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(super) fn call(id: i64, tool: &str, arguments: Value) -> Value {
    request(id, "tools/call", json!({"name": tool, "arguments": arguments}))
}

/// `message` with the `_meta` that 2026-07-28 asks for.
pub(super) fn modern(mut message: Value) -> Value {
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "1"});
    message
}

/// `message` in a chat.
pub(super) fn in_chat(mut message: Value, chat: &str) -> Value {
    message["params"]["_meta"]["openai/session"] = json!(chat);
    message
}

pub(super) fn cancellation(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}
