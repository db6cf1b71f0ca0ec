//! A loopback HTTP server of the tests' own that writes down every request and either answers by a script or passes it
//! on to a real node. It shows what a client really put on the wire, and it can stand in for a server that is older than
//! ours or that loses an answer.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::wire::Endpoint;

type Body = BoxBody<Bytes, hyper::Error>;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// HTTP method.
    pub method: String,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as JSON; null when it is none.
    pub body: Value,
}

impl Recorded {
    /// A header as text, `None` when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The JSON-RPC method, empty when there is none.
    #[must_use]
    pub fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    /// `params._meta`.
    #[must_use]
    pub fn meta(&self) -> &Value {
        &self.body["params"]["_meta"]
    }
}

/// What a script does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Answer with this status, these headers and this JSON.
    Json(u16, Vec<(&'static str, String)>, Value),
    /// Accept without a body (202).
    Accepted,
    /// Never answer.
    Silence,
    /// Pass it on to the real node.
    Pass,
}

impl Reply {
    /// A JSON-RPC result for the request.
    #[must_use]
    pub fn result(request: &Recorded, result: &Value) -> Self {
        Self::Json(200, Vec::new(), json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}))
    }

    /// A JSON-RPC error for the request.
    #[must_use]
    pub fn error(request: &Recorded, status: u16, code: i64, message: &str) -> Self {
        let error = json!({"code": code, "message": message});
        Self::Json(status, Vec::new(), json!({"jsonrpc": "2.0", "id": request.body["id"], "error": error}))
    }
}

type Script = Arc<dyn Fn(&Recorded) -> Reply + Send + Sync>;

/// The server. It ends with the test's runtime.
#[derive(Clone)]
pub struct Recorder {
    url: String,
    seen: Arc<Mutex<Vec<Recorded>>>,
}

impl Recorder {
    /// Listens on a free port, answers by `script`, and passes on to `upstream` where the script says so.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start(upstream: Option<&str>, script: impl Fn(&Recorded) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let port = listener.local_addr().expect("bound above").port();
        let recorder = Self { url: format!("http://127.0.0.1:{port}/mcp"), seen: Arc::default() };
        let state = State {
            seen: Arc::clone(&recorder.seen),
            script: Arc::new(script),
            upstream: upstream.map(Endpoint::parse),
        };
        tokio::spawn(accept(listener, state));
        recorder
    }

    /// Passes everything on to `upstream`.
    pub async fn in_front_of(upstream: &str) -> Self {
        Self::start(Some(upstream), |_| Reply::Pass).await
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Everything that arrived so far.
    ///
    /// # Panics
    /// Never: no holder of the lock panics.
    #[must_use]
    pub fn seen(&self) -> Vec<Recorded> {
        self.seen.lock().expect("no holder panics").clone()
    }

    /// The requests of one JSON-RPC method.
    #[must_use]
    pub fn seen_of(&self, rpc: &str) -> Vec<Recorded> {
        self.seen().into_iter().filter(|request| request.rpc() == rpc).collect()
    }
}

#[derive(Clone)]
struct State {
    seen: Arc<Mutex<Vec<Recorded>>>,
    script: Script,
    upstream: Option<Endpoint>,
}

async fn accept(listener: TcpListener, state: State) {
    while let Ok((socket, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let state = state.clone();
                async move { Ok::<_, Infallible>(handle(request, state).await) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn handle(request: Request<Incoming>, state: State) -> Response<Body> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let recorded = Recorded {
        method: head.method.to_string(),
        headers: head.headers.clone(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    state.seen.lock().expect("no holder panics").push(recorded.clone());
    match (state.script)(&recorded) {
        Reply::Json(status, headers, value) => {
            let mut response = Response::builder().status(status).header("content-type", "application/json");
            for (name, text) in headers {
                response = response.header(name, text);
            }
            response.body(whole(value.to_string())).expect("the test's own headers are valid")
        }
        Reply::Accepted => Response::builder().status(202).body(whole(String::new())).expect("a plain status"),
        Reply::Silence => std::future::pending().await,
        Reply::Pass => pass(Request::from_parts(head, Full::new(bytes)), state.upstream.as_ref()).await,
    }
}

/// A boxed future: hyper's connection types would otherwise make this function's type too deep to print.
fn pass<'a>(
    mut request: Request<Full<Bytes>>,
    upstream: Option<&'a Endpoint>,
) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>> {
    Box::pin(async move {
        let upstream = upstream.expect("a script passes on only with a node behind it");
        let broken = |what: String| Response::builder().status(502).body(whole(what)).expect("a plain status");
        let socket = match TcpStream::connect(&upstream.authority).await {
            Ok(socket) => socket,
            Err(error) => return broken(format!("the node behind the recorder: {error}")),
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("a handshake that only sets up");
        let connection = tokio::spawn(connection);
        request.headers_mut().insert("host", upstream.authority.parse().expect("an authority is a header value"));
        *request.uri_mut() = upstream.path.parse().expect("a path is a URI");
        match sender.send_request(request).await {
            Ok(response) => {
                let held = Held { inner: response, connection };
                held.into_response()
            }
            Err(error) => broken(format!("the node behind the recorder: {error}")),
        }
    })
}

/// Ties the life of the connection to the node to the life of the answer: the client's cut reaches the node.
struct Held {
    inner: Response<Incoming>,
    connection: tokio::task::JoinHandle<hyper::Result<()>>,
}

struct Guard(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Held {
    fn into_response(self) -> Response<Body> {
        let guard = Guard(self.connection);
        self.inner.map(|body| {
            body.map_frame(move |frame| {
                let _held = &guard;
                frame
            })
            .boxed()
        })
    }
}

fn whole(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}
