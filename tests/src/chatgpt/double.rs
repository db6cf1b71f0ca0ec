//! The double itself: it connects as its switches say, calls tools, and keeps for each call what the model would see.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::Switches;
use crate::{
    answer::Answer,
    client::{CallError, Revision, message, protocol_headers, response, stateless_meta, with_meta},
    tokens,
    wire::{self, Endpoint, Exchange, WireError},
};

/// Longer than any call may take when nothing cuts it.
const PATIENT: Duration = Duration::from_secs(150);

/// The client name of the captures.
const NAME: &str = "openai-mcp";

/// One ChatGPT conversation with one server.
#[derive(Clone, Debug)]
pub struct ChatGpt {
    endpoint: Endpoint,
    switches: Switches,
    conversation: String,
    revision: Revision,
    session: Option<String>,
    next_id: Arc<AtomicU64>,
    /// What the server said of itself while connecting (`server/discover` or `initialize`).
    pub server: Value,
}

/// What became of one call.
#[derive(Debug)]
pub enum Outcome {
    /// An answer.
    Answered(View),
    /// The double gave up, as [`Switches::cut_at`] says.
    Cut {
        /// After so long.
        after: Duration,
    },
    /// The server or the wire refused.
    Failed(CallError),
}

/// What the model gets to see of an answer.
#[derive(Clone, Debug)]
pub struct View {
    /// The answer as it came.
    pub answer: Answer,
    /// `content` and `structuredContent` as the model reads them, cut at the limit.
    pub text: String,
    /// Whether the limit cut anything.
    pub truncated: bool,
    /// How long it took.
    pub took: Duration,
}

impl Outcome {
    /// The answer.
    ///
    /// # Panics
    /// When there was none.
    pub fn answered(self) -> View {
        match self {
            Self::Answered(view) => view,
            Self::Cut { after } => panic!("given up after {after:?} without an answer"),
            Self::Failed(error) => panic!("{error}"),
        }
    }
}

impl ChatGpt {
    /// Connects as the switches say.
    ///
    /// # Errors
    /// When the server refuses and there is nothing to fall back to.
    pub async fn connect(url: &str, conversation: &str, switches: Switches) -> Result<Self, CallError> {
        let mut double = Self {
            endpoint: Endpoint::parse(url),
            conversation: conversation.to_owned(),
            revision: if switches.discover_first { Revision::Stateless } else { Revision::Handshake },
            switches,
            session: None,
            next_id: Arc::new(AtomicU64::new(1)),
            server: Value::Null,
        };
        if double.switches.discover_first {
            match double.discover().await {
                Ok(server) => {
                    double.server = server;
                    return Ok(double);
                }
                Err(CallError::Refused { status: 400, .. }) if double.switches.fall_back => {
                    double.revision = Revision::Handshake;
                }
                Err(error) => return Err(error),
            }
        }
        double.server = double.initialize().await?;
        Ok(double)
    }

    /// The revision that connecting settled on.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// The tool list.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn tools(&self) -> Result<Vec<Value>, CallError> {
        let result = self.request(self.id(), "tools/list", json!({})).await?;
        Ok(result["tools"].as_array().cloned().unwrap_or_default())
    }

    /// Calls a tool once, or twice with [`Switches::duplicates`]; gives what became of each, in the order of sending.
    pub async fn deliveries(&self, tool: &str, arguments: Value) -> Vec<Outcome> {
        if self.switches.duplicates {
            let (first, second) = tokio::join!(self.once(tool, arguments.clone()), self.once(tool, arguments.clone()));
            vec![first, second]
        } else {
            vec![self.once(tool, arguments).await]
        }
    }

    /// Calls a tool and gives what became of it (of the first sending, with duplicates).
    ///
    /// # Panics
    /// Never: a call is sent at least once.
    pub async fn call(&self, tool: &str, arguments: Value) -> Outcome {
        self.deliveries(tool, arguments).await.into_iter().next().expect("sent at least once")
    }

    /// Reads a resource, as ChatGPT does to materialise a reference.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn read_resource(&self, uri: &str) -> Result<Value, CallError> {
        self.request(self.id(), "resources/read", json!({"uri": uri})).await
    }

    async fn once(&self, tool: &str, arguments: Value) -> Outcome {
        let start = Instant::now();
        let limit = self.switches.cut_at.unwrap_or(PATIENT);
        let request = self.request(self.id(), "tools/call", json!({"name": tool, "arguments": arguments}));
        // Dropping the request closes its connection, which is all that ChatGPT does when it gives up.
        match tokio::time::timeout(limit, request).await {
            Err(_) => Outcome::Cut { after: start.elapsed() },
            Ok(Err(error)) => Outcome::Failed(error),
            Ok(Ok(result)) => Outcome::Answered(self.view(&result, start.elapsed())),
        }
    }

    fn view(&self, result: &Value, took: Duration) -> View {
        let answer = Answer::of(result);
        let mut text = answer.text();
        if !answer.structured.is_null() {
            text.push('\n');
            text.push_str(&answer.structured.to_string());
        }
        let (text, truncated) = match self.switches.truncate_at {
            Some(limit) => tokens::truncate(&text, limit),
            None => (text, false),
        };
        View { answer, text, truncated, took }
    }

    async fn discover(&self) -> Result<Value, CallError> {
        self.request("openai-mcp-discover", "server/discover", json!({})).await
    }

    async fn initialize(&mut self) -> Result<Value, CallError> {
        let id = self.id();
        let capabilities = json!({
            "experimental": {"openai/visibility": {"enabled": true}},
            "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
        });
        let params = json!({
            "protocolVersion": Revision::Handshake.date(),
            "capabilities": capabilities,
            "clientInfo": {"name": NAME, "version": "1.0.0"},
        });
        let body = message(id, "initialize", params);
        let mut exchange = self.post(&body).await?;
        let session = exchange.header("mcp-session-id").to_owned();
        let result = response(&mut exchange, id).await?;
        if !session.is_empty() && !self.switches.drop_session_id {
            self.session = Some(session);
        }
        let mut accepted = self.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        let _ = accepted.text().await?;
        Ok(result)
    }

    async fn request(&self, id: impl Into<Value>, method: &str, params: Value) -> Result<Value, CallError> {
        let id = id.into();
        let mut body = message(0, method, self.dressed(method, params));
        body["id"] = id.clone();
        let mut exchange = self.post(&body).await?;
        response(&mut exchange, id).await
    }

    async fn post(&self, body: &Value) -> Result<Exchange, WireError> {
        let mut headers = protocol_headers(self.revision, body);
        let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        if self.switches.openai_headers {
            add("user-agent", "openai-mcp/1.0.0");
            if body["method"] == "tools/call" {
                add("x-openai-session", &self.conversation);
                add("x-openai-subject", "v1/subject");
            }
        }
        if let Some(session) = &self.session {
            add("mcp-session-id", session);
        }
        wire::send(&self.endpoint, Method::POST, &headers, Bytes::from(body.to_string())).await
    }

    fn dressed(&self, method: &str, params: Value) -> Value {
        let mut meta = serde_json::Map::new();
        if self.revision == Revision::Stateless {
            meta = stateless_meta(NAME, "1.0.0");
        }
        if method == "tools/call" && self.switches.openai_meta {
            let location = json!({
                "city": "Utrecht", "region": "Utrecht", "country": "NL", "timezone": "Europe/Amsterdam",
                "longitude": "5.12", "latitude": "52.09",
            });
            for (key, value) in [
                ("openai/session", json!(self.conversation)),
                ("openai/subject", json!("v1/subject")),
                ("openai/organization", json!("v1/organization")),
                ("openai/locale", json!("en-US")),
                ("openai/userAgent", json!("Mozilla/5.0 (X11; Linux x86_64)")),
                ("openai/userLocation", location),
            ] {
                meta.insert(key.to_owned(), value);
            }
        }
        if method == "tools/call" && !self.switches.no_progress_token {
            meta.insert("progressToken".to_owned(), json!(self.next_id.load(Ordering::Relaxed)));
        }
        with_meta(params, meta)
    }

    fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}
