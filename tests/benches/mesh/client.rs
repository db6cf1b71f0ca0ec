//! An MCP client that costs as little as possible: one kept connection, blocking, no check but that the call succeeded.
//! What it measures is the server's time.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use chappie_tests::{
    Node,
    client::{self, Revision},
    wire::Endpoint,
};
use serde_json::{Value, json};

/// One kept connection to a node's door.
pub(crate) struct Caller {
    socket: TcpStream,
    endpoint: Endpoint,
    chat: String,
    data: Vec<u8>,
}

impl Caller {
    /// Connects to the door of `node`, on its own machine, as the conversation `chat`.
    pub(crate) fn of(node: &Node, chat: &str) -> Self {
        let endpoint = Endpoint::parse(node.url());
        let connect = || TcpStream::connect(&endpoint.authority).expect("the node listens");
        let socket = match node.world.namespace() {
            None => connect(),
            Some(machine) => machine.inside(connect),
        };
        socket.set_nodelay(true).expect("a TCP socket");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a TCP socket");
        Self { socket, endpoint, chat: chat.to_owned(), data: Vec::new() }
    }

    /// Sends a call.
    pub(crate) fn send(&mut self, tool: &str, arguments: &Value) {
        let mut meta = client::stateless_meta("bench", "1");
        meta.insert("openai/session".to_owned(), json!(self.chat));
        let params = client::with_meta(json!({"name": tool, "arguments": arguments}), meta);
        let body = client::message(1, "tools/call", params);
        let headers: String = client::protocol_headers(Revision::Stateless, &body)
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let body = body.to_string();
        let (path, host, length) = (&self.endpoint.path, &self.endpoint.authority, body.len());
        let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n{headers}\r\n");
        self.socket.write_all((head + &body).as_bytes()).expect("the node reads");
    }

    /// Waits for the answer to what was sent.
    pub(crate) fn receive(&mut self) -> String {
        let mut buffer = [0; 1 << 16];
        loop {
            if let Some((text, end)) = whole(&self.data) {
                self.data.drain(..end);
                return text;
            }
            let count = self.socket.read(&mut buffer).expect("an answer within a minute");
            assert!(count > 0, "the node closed the connection");
            self.data.extend_from_slice(&buffer[..count]);
        }
    }

    /// Calls a tool, which must succeed; gives the time.
    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Duration {
        let start = Instant::now();
        self.send(tool, arguments);
        let text = self.receive();
        let took = start.elapsed();
        assert!(text.contains("\"result\"") && !text.contains("\"isError\":true"), "{tool} {arguments}: {text}");
        took
    }

    /// The same, when it may fail.
    pub(crate) fn tries(&mut self, tool: &str, arguments: &Value) -> Option<String> {
        self.send(tool, arguments);
        let text = self.receive();
        (text.contains("\"result\"") && !text.contains("\"isError\":true")).then_some(text)
    }
}

/// The body of a whole answer and where it ends, once it is there.
fn whole(data: &[u8]) -> Option<(String, usize)> {
    let find = |from: usize, what: &[u8]| {
        data[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
    };
    let start = find(0, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&data[..start]).to_ascii_lowercase();
    if let Some(rest) = head.split("content-length:").nth(1) {
        let length: usize = rest.split("\r\n").next()?.trim().parse().ok()?;
        let body = data.get(start..start + length)?;
        return Some((String::from_utf8_lossy(body).into_owned(), start + length));
    }
    let (mut at, mut body) = (start, String::new());
    loop {
        let line = find(at, b"\r\n")?;
        let size = usize::from_str_radix(String::from_utf8_lossy(&data[at..line]).trim(), 16).ok()?;
        let chunk = data.get(line + 2..line + 2 + size)?;
        body.push_str(&String::from_utf8_lossy(chunk));
        at = line + 4 + size;
        if size == 0 {
            return (data.len() >= at).then_some((body, at));
        }
    }
}

/// Calls from `width` connections at once, `count` in all; gives calls a second.
pub(crate) fn rate(node: &Node, tool: &str, arguments: &Value, width: usize, count: usize) -> f64 {
    let mut callers: Vec<Caller> = (0..width).map(|_| Caller::of(node, "v1/bench")).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for caller in &mut callers {
            scope.spawn(move || (0..count / width).for_each(|_| _ = caller.call(tool, arguments)));
        }
    });
    (count / width * width) as f64 / start.elapsed().as_secs_f64()
}

/// The times of `count` calls one after another, sorted; the first ones are left out.
pub(crate) fn times(node: &Node, tool: &str, arguments: &Value, count: usize) -> Vec<Duration> {
    let mut caller = Caller::of(node, "v1/bench");
    (0..count / 10).for_each(|_| _ = caller.call(tool, arguments));
    let mut times: Vec<Duration> = (0..count).map(|_| caller.call(tool, arguments)).collect();
    times.sort();
    times
}

/// The middle of what is sorted.
pub(crate) fn median<T: Copy>(sorted: &[T]) -> T {
    sorted[sorted.len() / 2]
}
