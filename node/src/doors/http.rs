//! The HTTP door: MCP at `/mcp` on a loopback address. Accepts, limits and orderly closes connections; hyper parses them,
//! [`Endpoint`] answers.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{guard, watched::Watched};
use crate::{
    mcp::{Endpoint, Outbox, Refusal, Reply},
    tools::Surface,
};

/// The one path.
pub const PATH: &str = "/mcp";

/// Connections at once. One carries one request at a time, so this also bounds the requests in flight; a client over it
/// is told so (503) instead of waiting.
const CONNECTIONS_MAX: usize = 512;
/// A request's head must be in within this, counted from the end of the request before: it also closes idle connections.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// After a stop, how long running requests may still answer.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Pause after accept failed for want of descriptors or memory: trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a connection over the limit gets.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
    content-type: text/plain\r\ncontent-length: 45\r\n\r\ntoo many connections: close some or try later";

/// A door that stands open.
#[derive(Debug)]
pub struct HttpDoor {
    /// Where it listens; the port that was picked when 0 was asked for.
    pub address: SocketAddr,
    connections: TaskTracker,
    task: JoinHandle<()>,
}

impl HttpDoor {
    /// Connections open now, idle ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Waits until the door is closed: at most [`STOP_MAX`] after its `shutdown` token fired.
    pub async fn closed(self) {
        // The task neither panics nor is aborted; if the runtime ends first, so does this.
        let _ = self.task.await;
    }
}

/// Opens the door on `bind`, which must be a loopback address. It stays open until `shutdown` fires: then listening
/// stops, running requests get up to 2 s to answer, and what is left runs on without its client.
///
/// # Errors
///
/// `InvalidInput` for an address that other machines can reach; else what the operating system says, with the address.
pub async fn serve(surface: Arc<dyn Surface>, bind: SocketAddr, shutdown: CancellationToken) -> io::Result<HttpDoor> {
    guard::check_bind(bind).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    let listener = TcpListener::bind(bind)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot serve MCP on {bind}: {error}")))?;
    let address = listener.local_addr()?;
    let endpoint = Arc::new(Endpoint::new(surface, shutdown.clone()));
    let connections = TaskTracker::new();
    let task = chappie_mesh::runtime::spawn(accept(listener, endpoint, connections.clone(), shutdown));
    Ok(HttpDoor { address, connections, task })
}

async fn accept(listener: TcpListener, endpoint: Arc<Endpoint>, connections: TaskTracker, shutdown: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => match places.clone().try_acquire_owned() {
                Ok(place) => {
                    let connection = serve_connection(stream, endpoint.clone(), shutdown.clone(), place);
                    let cut = cut.clone();
                    connections.spawn(async move {
                        tokio::select! {
                            () = connection => {}
                            () = cut.cancelled() => {}
                        }
                    });
                }
                // Best effort: the socket is new, so its buffer takes these few bytes.
                Err(_full) => drop(stream.try_write(BUSY)),
            },
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if timeout(STOP_MAX, connections.wait()).await.is_err() {
        cut.cancel();
        connections.wait().await;
    }
}

async fn serve_connection(
    stream: TcpStream,
    endpoint: Arc<Endpoint>,
    shutdown: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let outbox = Arc::new(Outbox::default());
    let io = TokioIo::new(Watched::new(stream, outbox.clone()));
    let service = service_fn(move |request| answer(endpoint.clone(), outbox.clone(), request));
    let mut connection = std::pin::pin!(
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).serve_connection(io, service)
    );
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn answer(
    endpoint: Arc<Endpoint>,
    outbox: Arc<Outbox>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    let allowed = guard::check_request(request.uri(), request.headers()).and_then(|()| check_path(&request));
    Ok(match allowed {
        Ok(()) => endpoint.handle(request, &outbox).await,
        Err(refusal) => refusal.into_response(),
    })
}

fn check_path<B>(request: &Request<B>) -> Result<(), Refusal> {
    let path = request.uri().path();
    if path.strip_suffix('/').unwrap_or(path) == PATH {
        return Ok(());
    }
    Err(Refusal::request(StatusCode::NOT_FOUND, format!("nothing at this path: MCP is at {PATH}")))
}

/// Whether accept failed for a connection that is gone already, which says nothing about the next one.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
