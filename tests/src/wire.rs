//! One HTTP exchange with an MCP endpoint, as raw as a test needs it: own headers, one connection per request, the answer
//! read message by message, and a connection that is cut by dropping it. Knows JSON and server-sent events, not MCP.

use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::net::Namespace;

/// No answer of the product is larger; a test that meets more fails instead of filling the memory.
const BODY_MAX: usize = 96 * 1024 * 1024;

/// Loopback either takes a connection at once or refuses it.
const CONNECT: Duration = Duration::from_secs(20);

/// Where an MCP endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port`.
    pub authority: String,
    /// `/mcp`.
    pub path: String,
    /// The network namespace of its machine, if that is not the tests' own.
    pub machine: Option<Arc<Namespace>>,
}

impl Endpoint {
    /// Takes `http://host:port/path` apart.
    ///
    /// # Panics
    /// When `url` is not of that form.
    #[must_use]
    pub fn parse(url: &str) -> Self {
        let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url} does not start with http://"));
        let (authority, path) = rest.split_once('/').unwrap_or_else(|| panic!("{url} has no path"));
        Self { authority: authority.to_owned(), path: format!("/{path}"), machine: None }
    }

    /// The same as text.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.authority, self.path)
    }
}

/// Why an exchange did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Nothing listens there.
    #[error("could not connect: {0}")]
    Connect(std::io::Error),
    /// The connection ended before the head of the answer.
    #[error("no answer: {0}")]
    Head(hyper::Error),
    /// The connection ended inside the body.
    #[error("the answer broke off: {0}")]
    Body(hyper::Error),
    /// A message that is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// More than any answer may hold.
    #[error("more than {BODY_MAX} bytes")]
    TooLarge,
}

/// Ends the connection's task, and with it the connection, when dropped.
#[derive(Debug)]
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer whose head has arrived.
#[derive(Debug)]
pub struct Exchange {
    /// HTTP status.
    pub status: u16,
    /// The answer's headers.
    pub headers: HeaderMap,
    body: Incoming,
    buffer: BytesMut,
    ended: bool,
    _connection: AbortOnDrop,
}

/// Sends one request on a fresh connection and waits for the head of the answer. `headers` may override `host`.
///
/// # Errors
/// When nothing listens or the connection ends first.
pub async fn send(
    endpoint: &Endpoint,
    method: Method,
    headers: &[(String, String)],
    body: Bytes,
) -> Result<Exchange, WireError> {
    let socket = match tokio::time::timeout(CONNECT, connect(endpoint)).await {
        Ok(socket) => socket.map_err(WireError::Connect)?,
        Err(_) => return Err(WireError::Connect(std::io::ErrorKind::TimedOut.into())),
    };
    let _ = socket.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(WireError::Head)?;
    let connection = AbortOnDrop(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let mut request = Request::builder().method(method).uri(&endpoint.path);
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", &endpoint.authority);
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).expect("the test's own headers are valid");
    let answer = sender.send_request(request).await.map_err(WireError::Head)?;
    let (head, body) = answer.into_parts();
    Ok(Exchange {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
        buffer: BytesMut::new(),
        ended: false,
        _connection: connection,
    })
}

async fn connect(endpoint: &Endpoint) -> io::Result<TcpStream> {
    let Some(machine) = &endpoint.machine else { return TcpStream::connect(&endpoint.authority).await };
    let (machine, authority) = (Arc::clone(machine), endpoint.authority.clone());
    let task = move || machine.inside(|| std::net::TcpStream::connect(&authority));
    let socket = tokio::task::spawn_blocking(task).await.map_err(io::Error::other)??;
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

impl Exchange {
    /// A header as text, empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next JSON message of the answer: the whole body of a JSON answer, one event of an event stream. `None` at the
    /// end. Keep-alive comments and events without data are passed over.
    ///
    /// # Errors
    /// When the connection ends inside a message or a message is not JSON.
    pub async fn next_message(&mut self) -> Result<Option<Value>, WireError> {
        if !self.header("content-type").starts_with("text/event-stream") {
            let text = self.text().await?;
            return if text.trim().is_empty() { Ok(None) } else { parse(&text).map(Some) };
        }
        loop {
            while let Some(event) = self.take_event() {
                if let Some(data) = event_data(&event) {
                    return parse(&data).map(Some);
                }
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The rest of the body as text.
    ///
    /// # Errors
    /// When the connection ends first.
    pub async fn text(&mut self) -> Result<String, WireError> {
        while self.fill().await? {}
        Ok(String::from_utf8_lossy(&self.buffer.split()).into_owned())
    }

    /// Waits for the first bytes of the body, whatever they are.
    ///
    /// # Errors
    /// When the connection ends first.
    pub async fn first_bytes(&mut self) -> Result<bool, WireError> {
        self.fill().await
    }

    async fn fill(&mut self) -> Result<bool, WireError> {
        if self.ended {
            return Ok(false);
        }
        match self.body.frame().await {
            None => {
                self.ended = true;
                Ok(false)
            }
            Some(Err(error)) => Err(WireError::Body(error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.buffer.extend_from_slice(&data);
                }
                if self.buffer.len() > BODY_MAX { Err(WireError::TooLarge) } else { Ok(true) }
            }
        }
    }

    fn take_event(&mut self) -> Option<String> {
        let (end, skip) = (0..self.buffer.len()).find_map(|at| {
            let rest = &self.buffer[at..];
            if rest.starts_with(b"\n\n") {
                Some((at, 2))
            } else if rest.starts_with(b"\r\n\r\n") {
                Some((at, 4))
            } else {
                None
            }
        })?;
        let event = self.buffer.split_to(end + skip);
        Some(String::from_utf8_lossy(&event).into_owned())
    }
}

fn event_data(event: &str) -> Option<String> {
    let lines: Vec<&str> = event
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(|data| data.strip_prefix(' ').unwrap_or(data))
        .collect();
    let data = lines.join("\n");
    (!data.trim().is_empty()).then_some(data)
}

fn parse(text: &str) -> Result<Value, WireError> {
    serde_json::from_str(text).map_err(|_| WireError::Json(text.chars().take(300).collect()))
}
