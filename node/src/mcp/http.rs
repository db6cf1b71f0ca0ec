//! Streamable HTTP: one POST is one message and one answer. Reads the body ([`super::body`]), routes it ([`route`]), lets
//! rmcp validate and dispatch it, and answers as JSON when the call is quick, as an event stream when it is not.
//! Sockets, Host and Origin are the door's.

use std::{
    convert::Infallible,
    fmt::Display,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use rmcp::{
    model::ProtocolVersion,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    },
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    body::{BODY_BYTES_MAX, Intake},
    caller,
    delivery::Outbox,
    envelope::{Envelope, Kind},
    exchange::Exchange,
    inflight::{Inflight, Scope},
    refusal::{INTERNAL_ERROR, Refusal},
    reply::{Parcel, Reply},
    route::{Facts, Route, SessionFact, route},
    server::Handler,
    sessions::{Session, Sessions},
};
use crate::{clock, ids::Conversation, tools::Surface};

/// A call that ends within this is answered in one piece, one write and no chunking; nearly all reading tools do. After
/// it the stream opens, long before the 12 s that ChatGPT waits for a first byte.
const STREAM_AFTER: Duration = Duration::from_millis(50);

/// How rmcp begins to say that a body is no message.
const UNDECODABLE: &str = "fail to deserialize request body";

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";

/// The MCP endpoint of one door.
pub struct Endpoint {
    surface: Arc<dyn Surface>,
    service: StreamableHttpService<Handler, NeverSessionManager>,
    intake: Intake,
    sessions: Sessions,
    inflight: Arc<Inflight>,
    known_versions: Vec<&'static str>,
    closing: CancellationToken,
}

/// An answer of the endpoint.
type Answered = Response<Reply>;

impl Endpoint {
    /// An endpoint for `surface`. `closing` fires when the door begins to stop: from then on closed requests are our
    /// doing and cancel nothing, and listening streams end.
    #[must_use]
    pub fn new(surface: Arc<dyn Surface>, closing: CancellationToken) -> Self {
        let handler = Handler::new(Arc::clone(&surface));
        // Host and Origin are checked by the door, for every path and before the body is read.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(BODY_BYTES_MAX)
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let service =
            StreamableHttpService::new(move || Ok(handler.clone()), Arc::new(NeverSessionManager::default()), config);
        Self {
            surface,
            service,
            intake: Intake::new(),
            sessions: Sessions::default(),
            inflight: Arc::default(),
            known_versions: ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect(),
            closing,
        }
    }

    /// Serves one request that arrived on the connection of `outbox`.
    pub async fn handle<B>(&self, request: Request<B>, outbox: &Arc<Outbox>) -> Answered
    where
        B: Body + Send + Unpin + 'static,
        B::Error: Display,
    {
        let outcome = match *request.method() {
            Method::POST => self.post(request, outbox).await,
            Method::GET => self.listen(request.headers()),
            Method::DELETE => self.end(request.headers()),
            _ => Err(Refusal::request(StatusCode::METHOD_NOT_ALLOWED, "expected POST, GET or DELETE")),
        };
        outcome.unwrap_or_else(Refusal::into_response)
    }

    async fn post<B>(&self, request: Request<B>, outbox: &Arc<Outbox>) -> Result<Answered, Refusal>
    where
        B: Body + Send + Unpin + 'static,
        B::Error: Display,
    {
        let (mut parts, body) = request.into_parts();
        let (body, room) = self.intake.read(&parts.headers, body).await?;
        let envelope = Envelope::parse(&body)?;
        let session = self.session(&parts.headers);
        let facts = Facts {
            version: text(&parts.headers, VERSION_HEADER),
            session: match &session {
                None => SessionFact::Absent,
                Some(None) => SessionFact::Unknown,
                Some(Some(_)) => SessionFact::Live,
            },
            chatgpt: shows_chatgpt(&parts.headers),
        };
        let route = route(facts, &envelope, &self.known_versions)?;
        let session = session.flatten().filter(|_| route == Route::Session);
        let mut exchange = Exchange::from_headers(&parts.headers);
        exchange.connection = session.as_deref().map(conversation);
        exchange.session = session;
        exchange.room = Mutex::new(Some(room));
        self.file(&mut exchange, &envelope);
        let exchange = Arc::new(exchange);
        parts.extensions.insert(exchange.clone());
        let parcel = match (route, &envelope.kind) {
            (Route::Modern, Kind::Request(_)) => {
                Parcel::cancelling(exchange.clone(), outbox.clone(), self.closing.clone())
            }
            _ => Parcel::detaching(exchange.clone(), outbox.clone()),
        };
        let mut answer = self.dispatch(Request::from_parts(parts, Full::new(body)), envelope.id(), parcel).await;
        if route == Route::Initialize && exchange.shook_hands.load(Ordering::Acquire) {
            let id = clock::token();
            if let Ok(value) = HeaderValue::from_str(&id) {
                answer.headers_mut().insert(SESSION_HEADER, value);
                self.sessions.open(id, clock::now());
            }
        }
        Ok(answer)
    }

    /// Files a call where a cancellation finds it, or carries a cancellation out.
    fn file(&self, exchange: &mut Exchange, envelope: &Envelope) {
        let chat = envelope.chat.as_ref().and_then(caller::chat_value).or_else(|| exchange.header_chat.clone());
        let scopes: Vec<Scope> = exchange.connection.iter().cloned().chain(chat.map(Conversation::Chat)).collect();
        match &envelope.kind {
            Kind::Request(id) if envelope.method == "tools/call" => {
                let token = exchange.cancelled.clone();
                exchange.registration = Some(self.inflight.register(scopes, id, token));
            }
            Kind::Notification if envelope.method == "notifications/cancelled" => {
                if let Some(id) = &envelope.cancels {
                    // The narrowest scope that knows the call decides.
                    let _ = scopes.iter().any(|scope| self.inflight.cancel(scope, id));
                }
            }
            _ => {}
        }
    }

    /// Runs the request through rmcp. Quick answers come whole; otherwise the stream opens and the answer follows on it.
    async fn dispatch(&self, request: Request<Full<Bytes>>, id: Value, parcel: Parcel) -> Answered {
        let service = self.service.clone();
        let mut call = Box::pin(async move { Inner::read(service.handle(request).await).await });
        match tokio::time::timeout(STREAM_AFTER, &mut call).await {
            Ok(inner) => inner.whole(id, parcel),
            Err(_elapsed) => {
                let json = async move { call.await.json(id) };
                let mut answer = Response::new(Reply::answer_stream(json, parcel));
                stream_headers(answer.headers_mut());
                answer
            }
        }
    }

    /// GET opens a stream for what the server says unasked. We never do, but ChatGPT was seen to loop on 405, so whoever
    /// may POST gets a stream of comments.
    fn listen(&self, headers: &HeaderMap) -> Result<Answered, Refusal> {
        if text(headers, VERSION_HEADER).is_some_and(|version| version >= super::route::STATELESS_REVISION) {
            return Err(Refusal::request(StatusCode::METHOD_NOT_ALLOWED, "2026-07-28 has no GET: expected POST"));
        }
        if !text(headers, ACCEPT.as_str()).is_some_and(|accept| accept.contains(EVENT_STREAM)) {
            return Err(Refusal::request(StatusCode::NOT_ACCEPTABLE, "GET needs Accept: text/event-stream"));
        }
        let session = match self.session(headers) {
            None if !shows_chatgpt(headers) => return Err(Refusal::initialize_first("GET", Value::Null)),
            None => None,
            Some(None) => return Err(Refusal::unknown_session(Value::Null)),
            Some(Some(session)) => Some(session),
        };
        let closing = self.closing.clone();
        let end = async move {
            let Some(session) = session else {
                return closing.cancelled().await;
            };
            tokio::select! {
                () = session.ended.cancelled() => {}
                () = closing.cancelled() => {}
            }
        };
        let mut answer = Response::new(Reply::silent_stream(end));
        stream_headers(answer.headers_mut());
        Ok(answer)
    }

    /// DELETE ends a session. Its running calls go on: ending a connection cancels nothing (F4).
    fn end(&self, headers: &HeaderMap) -> Result<Answered, Refusal> {
        let Some(id) = text(headers, SESSION_HEADER) else {
            return Err(Refusal::initialize_first("DELETE", Value::Null));
        };
        if !self.sessions.end(id) {
            return Err(Refusal::unknown_session(Value::Null));
        }
        self.surface.disconnected(&Conversation::Connection(format!("mcp:{id}")));
        Ok(status_only(StatusCode::NO_CONTENT))
    }

    /// The session the headers name: `None` when they name none, `Some(None)` when it is not live.
    fn session(&self, headers: &HeaderMap) -> Option<Option<Arc<Session>>> {
        let value = headers.get(SESSION_HEADER)?;
        Some(value.to_str().ok().and_then(|id| self.sessions.touch(id, clock::now())))
    }
}

fn shows_chatgpt(headers: &HeaderMap) -> bool {
    caller::chat_in_headers(headers).is_some() || caller::is_chatgpt(headers)
}

/// The conversation of a session whose calls name no chat.
fn conversation(session: &Session) -> Conversation {
    Conversation::Connection(format!("mcp:{}", session.id))
}

/// rmcp's answer with its body read. The body is in memory already, so reading it takes no time.
struct Inner {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Inner {
    async fn read(response: Response<BoxBody<Bytes, Infallible>>) -> Self {
        let (parts, body) = response.into_parts();
        let Ok(collected) = body.collect().await;
        Self { status: parts.status, headers: parts.headers, bytes: collected.to_bytes() }
    }

    fn is_json(&self) -> bool {
        self.headers.get(CONTENT_TYPE).is_some_and(|value| value == JSON)
    }

    /// rmcp's own refusals (406, 415, an unreadable body) are plain text: the client gets them as JSON-RPC errors.
    fn as_refusal(&self, id: Value) -> Refusal {
        let said = String::from_utf8_lossy(&self.bytes).into_owned();
        // rmcp answers 415 to a body that it cannot decode, as to a wrong content type; only the latter is one.
        if let Some(detail) = said.strip_prefix(UNDECODABLE) {
            return Refusal::parse_error(detail.trim()).to(id);
        }
        let refusal = Refusal::request(self.status, said).to(id);
        if self.status.is_server_error() { refusal.coded(INTERNAL_ERROR) } else { refusal }
    }

    fn whole(self, id: Value, parcel: Parcel) -> Answered {
        if !self.is_json() && !self.status.is_success() {
            return self.as_refusal(id).into_response();
        }
        let mut answer = Response::new(Reply::whole(self.bytes, parcel));
        *answer.status_mut() = self.status;
        *answer.headers_mut() = self.headers;
        answer
    }

    /// The JSON-RPC message for a stream, whose status was sent long ago.
    fn json(self, id: Value) -> Bytes {
        if self.is_json() { self.bytes } else { self.as_refusal(id).body() }
    }
}

fn status_only(status: StatusCode) -> Answered {
    let mut answer = Response::new(Reply::empty());
    *answer.status_mut() = status;
    answer
}

/// What keeps proxies from holding a stream back.
fn stream_headers(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
