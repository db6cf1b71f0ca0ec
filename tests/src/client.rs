//! A small MCP client over raw HTTP, for both revisions: the 2025-11-25 handshake and the stateless 2026-07-28. It adds
//! nothing that a test did not ask for: no retry, no reconnection, no schema check.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use crate::{
    answer::Answer,
    net::Namespace,
    wire::{self, Endpoint, Exchange, WireError},
};

/// No call of a test may take longer, however slow the machine: the product answers within its own budget of 45 s.
const CALL_LIMIT: Duration = Duration::from_secs(150);

/// Which revision of the protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// 2025-11-25: `initialize` first, perhaps a session id.
    Handshake,
    /// 2026-07-28: every request stands alone.
    Stateless,
}

impl Revision {
    /// The revision's date, as on the wire.
    #[must_use]
    pub const fn date(self) -> &'static str {
        match self {
            Self::Handshake => "2025-11-25",
            Self::Stateless => "2026-07-28",
        }
    }
}

/// Why a request gave no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The exchange broke.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The server refused with a JSON-RPC error, or with a status and no JSON at all.
    #[error("HTTP {status}, error {code}: {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// JSON-RPC code; 0 when the body was no JSON-RPC error.
        code: i64,
        /// Its message, or the body.
        message: String,
        /// Its data.
        data: Value,
    },
    /// The answer ended without the response.
    #[error("HTTP {status}: the answer ended without the response")]
    Missing {
        /// HTTP status.
        status: u16,
    },
    /// Nothing within the limit that no call may exceed.
    #[error("no answer within {CALL_LIMIT:?}")]
    Slow,
}

/// One client. Cheap to clone; clones share the handshake's session.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    revision: Revision,
    session: Option<String>,
    chat: Option<String>,
    next_id: Arc<AtomicU64>,
}

impl Client {
    /// A client that never shook hands.
    #[must_use]
    pub fn stateless(url: &str) -> Self {
        Self {
            endpoint: Endpoint::parse(url),
            revision: Revision::Stateless,
            session: None,
            chat: None,
            next_id: Arc::new(AtomicU64::new(1)),
        }
    }

    /// A client after `initialize` and `notifications/initialized`.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn handshake(url: &str) -> Self {
        Self::stateless(url).shake_hands().await
    }

    /// The same endpoint on another machine.
    #[must_use]
    pub fn on(mut self, machine: Option<&Arc<Namespace>>) -> Self {
        self.endpoint.machine = machine.map(Arc::clone);
        self
    }

    /// The same client after `initialize` and `notifications/initialized` of 2025-11-25.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn shake_hands(self) -> Self {
        let mut client = Self { revision: Revision::Handshake, ..self };
        client.initialize().await.unwrap_or_else(|error| panic!("initialize: {error}"));
        client
    }

    /// A client of either revision.
    pub async fn open(url: &str, revision: Revision) -> Self {
        match revision {
            Revision::Handshake => Self::handshake(url).await,
            Revision::Stateless => Self::stateless(url),
        }
    }

    /// The same client as part of the ChatGPT conversation `chat` (`_meta["openai/session"]`).
    #[must_use]
    pub fn chat(&self, chat: &str) -> Self {
        Self { chat: Some(chat.to_owned()), ..self.clone() }
    }

    /// The session id that the server issued, if it issues any.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// The same client with another session id, or none.
    #[must_use]
    pub fn with_session(&self, session: Option<&str>) -> Self {
        Self { session: session.map(str::to_owned), ..self.clone() }
    }

    /// The revision it speaks.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Shakes hands, keeping the session id that comes back, and gives the `initialize` result.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn initialize(&mut self) -> Result<Value, CallError> {
        let params = json!({
            "protocolVersion": self.revision.date(),
            "capabilities": {},
            "clientInfo": {"name": "chappie-tests", "version": "1"},
        });
        let id = self.id();
        let mut exchange = self.post(&message(id, "initialize", params)).await?;
        let session = exchange.header("mcp-session-id").to_owned();
        let result = response(&mut exchange, id).await?;
        if !session.is_empty() {
            self.session = Some(session);
        }
        self.notify("notifications/initialized", json!({})).await?;
        Ok(result)
    }

    /// Sends a request and waits for its result.
    ///
    /// # Errors
    /// When the exchange breaks or the server refuses.
    pub async fn request(&self, method: &str, params: Value) -> Result<Value, CallError> {
        self.request_as(self.id(), method, params).await
    }

    /// Sends a notification; the server must accept it.
    ///
    /// # Errors
    /// When the exchange breaks or the status is not 2xx.
    pub async fn notify(&self, method: &str, params: Value) -> Result<(), CallError> {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": self.dressed(params)});
        let mut exchange = self.post(&body).await?;
        match exchange.status {
            200..=299 => Ok(()),
            status => Err(refusal(status, &exchange.text().await?)),
        }
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// When the exchange breaks or the server refuses; a tool's own failure is an [`Answer`].
    pub async fn try_call(&self, tool: &str, arguments: Value) -> Result<Answer, CallError> {
        let result = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await?;
        Ok(Answer::of(&result))
    }

    /// Calls a tool that must answer.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        match self.try_call(tool, arguments.clone()).await {
            Ok(answer) => answer,
            Err(error) => panic!("{tool} {arguments}: {error}"),
        }
    }

    /// Starts a call and goes on.
    #[must_use]
    pub fn begin(&self, tool: &str, arguments: Value) -> InFlight {
        let id = self.id();
        let client = self.clone();
        let params = json!({"name": tool, "arguments": arguments});
        let task = tokio::spawn(async move { client.request_as(id, "tools/call", params).await });
        InFlight { client: self.clone(), id, task: Task(Some(task)) }
    }

    /// Sends a request whose answer the caller reads itself, with headers of its own besides the protocol's.
    ///
    /// # Errors
    /// When the exchange breaks.
    pub async fn exchange(&self, body: &Value, headers: &[(String, String)]) -> Result<Exchange, WireError> {
        let mut all = self.headers(body);
        for (name, value) in headers {
            all.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            all.push((name.clone(), value.clone()));
        }
        wire::send(&self.endpoint, Method::POST, &all, Bytes::from(body.to_string())).await
    }

    /// A request body as this client would send it.
    #[must_use]
    pub fn body(&self, method: &str, params: Value) -> Value {
        message(self.id(), method, self.dressed(params))
    }

    async fn request_as(&self, id: u64, method: &str, params: Value) -> Result<Value, CallError> {
        let body = message(id, method, self.dressed(params));
        let run = async {
            let mut exchange = self.post(&body).await?;
            response(&mut exchange, id).await
        };
        tokio::time::timeout(CALL_LIMIT, run).await.unwrap_or(Err(CallError::Slow))
    }

    async fn post(&self, body: &Value) -> Result<Exchange, WireError> {
        self.exchange(body, &[]).await
    }

    fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn dressed(&self, params: Value) -> Value {
        let mut meta = Map::new();
        if self.revision == Revision::Stateless {
            meta = stateless_meta("chappie-tests", "1");
        }
        if let Some(chat) = &self.chat {
            meta.insert("openai/session".to_owned(), json!(chat));
        }
        with_meta(params, meta)
    }

    fn headers(&self, body: &Value) -> Vec<(String, String)> {
        let mut headers = protocol_headers(self.revision, body);
        if let Some(session) = &self.session {
            headers.push(("mcp-session-id".to_owned(), session.clone()));
        }
        headers
    }
}

/// A call on its way. Dropping it cuts its connection.
#[derive(Debug)]
pub struct InFlight {
    client: Client,
    /// The JSON-RPC id.
    pub id: u64,
    task: Task,
}

#[derive(Debug)]
struct Task(Option<JoinHandle<Result<Value, CallError>>>);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl InFlight {
    /// Waits for the answer.
    ///
    /// # Panics
    /// When there is none.
    pub async fn answer(self) -> Answer {
        let id = self.id;
        self.try_answer().await.unwrap_or_else(|error| panic!("call {id}: {error}"))
    }

    /// Waits for the answer or for what stood in its way.
    ///
    /// # Errors
    /// When the exchange broke or the server refused.
    pub async fn try_answer(mut self) -> Result<Answer, CallError> {
        let task = self.task.0.take().expect("taken once, here");
        Ok(Answer::of(&task.await.expect("nothing else ends the task")?))
    }

    /// Whether the answer is there.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Cancels the way the client's revision does: a `notifications/cancelled`, or the closed request.
    ///
    /// # Panics
    /// When the notification is refused.
    pub async fn cancel(self) {
        if self.client.revision == Revision::Handshake {
            let params = json!({"requestId": self.id, "reason": "the test gave up"});
            self.client.notify("notifications/cancelled", params).await.expect("the cancellation is accepted");
        }
    }

    /// Cuts the connection without a word.
    pub fn cut(self) {
        drop(self);
    }
}

/// `_meta` that every 2026-07-28 request carries (spec/chatgpt.md 4.1).
#[must_use]
pub fn stateless_meta(name: &str, version: &str) -> Map<String, Value> {
    let Value::Object(meta) = json!({
        "io.modelcontextprotocol/protocolVersion": Revision::Stateless.date(),
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": version},
        "io.modelcontextprotocol/clientCapabilities": {},
    }) else {
        unreachable!("an object literal")
    };
    meta
}

/// `params` with `meta` added to its `_meta`.
#[must_use]
pub fn with_meta(mut params: Value, meta: Map<String, Value>) -> Value {
    if !meta.is_empty() {
        let slot = &mut params["_meta"];
        if !slot.is_object() {
            *slot = json!({});
        }
        slot.as_object_mut().expect("made an object just above").extend(meta);
    }
    params
}

/// Headers that the transport asks for: `Mcp-Method` and `Mcp-Name` belong to 2026-07-28 (spec/chatgpt.md 4.1).
#[must_use]
pub fn protocol_headers(revision: Revision, body: &Value) -> Vec<(String, String)> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut headers =
        vec![pair("content-type", "application/json"), pair("accept", "application/json, text/event-stream")];
    let method = body["method"].as_str().unwrap_or_default();
    if method != "initialize" {
        headers.push(pair("mcp-protocol-version", revision.date()));
    }
    if revision == Revision::Stateless {
        headers.push(pair("mcp-method", method));
        let params = &body["params"];
        if let Some(name) = params["name"].as_str().or_else(|| params["uri"].as_str()) {
            headers.push(pair("mcp-name", name));
        }
    }
    headers
}

/// A JSON-RPC request.
#[must_use]
pub fn message(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Reads an answer until the response to `id`.
///
/// # Errors
/// When it breaks off, ends without it, or is a refusal.
pub async fn response(exchange: &mut Exchange, id: impl Into<Value>) -> Result<Value, CallError> {
    let id = id.into();
    let status = exchange.status;
    if !exchange.header("content-type").contains("json") && !(200..300).contains(&status) {
        return Err(refusal(status, &exchange.text().await?));
    }
    while let Some(message) = exchange.next_message().await? {
        if let Some(error) = message.get("error") {
            return Err(rpc_error(status, error));
        }
        if message["id"] == id && message.get("result").is_some() {
            return Ok(message["result"].clone());
        }
    }
    Err(CallError::Missing { status })
}

fn refusal(status: u16, body: &str) -> CallError {
    match serde_json::from_str::<Value>(body) {
        Ok(value) if value.get("error").is_some() => rpc_error(status, &value["error"]),
        _ => CallError::Refused { status, code: 0, message: body.to_owned(), data: Value::Null },
    }
}

fn rpc_error(status: u16, error: &Value) -> CallError {
    CallError::Refused {
        status,
        code: error["code"].as_i64().unwrap_or(0),
        message: error["message"].as_str().unwrap_or_default().to_owned(),
        data: error["data"].clone(),
    }
}
