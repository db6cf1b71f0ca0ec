//! JSON lines: one message a line each way, over any pair of streams (stdio, a Unix socket). An rmcp transport that answers
//! what rmcp would ignore (text that is no message), bounds what it reads, and settles a request's ticket when the line
//! with its answer was flushed.
//!
//! Requests run concurrently; only reading and writing are sequential. At the end of input no more is read, answers that
//! are nearly ready still go out, and what is left runs on; its requests are told so.

mod link;
mod writer;

use std::{io, sync::Arc, time::Duration};

use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, ClientRequest, GetExtensions, ServerJsonRpcMessage},
    serve_server,
    service::ServerInitializeError,
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader},
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use self::{
    link::{Link, Open},
    writer::{Job, WRITE_QUEUE, terminated, write_lines},
};
use super::{
    envelope::{Envelope, Kind},
    inflight::Scope,
    refusal::Refusal,
    server::Handler,
};
use crate::tools::Surface;

/// Longest line read, as over HTTP. A longer one is answered with an error and skipped.
const LINE_BYTES_MAX: usize = super::body::BODY_BYTES_MAX;
/// After the end of input, how long answers may still come: under the 2 s after which MCP clients kill their server.
const DRAIN: Duration = Duration::from_millis(1_500);
/// What the reader's buffer holds before it grows into a line.
const READ_BYTES: usize = 64 * 1024;

/// Why a line connection ended other than by its end of input.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    /// The input broke.
    #[error("reading MCP messages failed: {0}")]
    Read(io::Error),
    /// The output broke other than by the client closing it.
    #[error("writing MCP messages failed: {0}")]
    Write(io::Error),
    /// rmcp gave up on the connection.
    #[error("the MCP connection failed: {0}")]
    Protocol(String),
}

/// Serves one client until its input ends, its output closes, or `shutdown` fires.
///
/// # Errors
///
/// An I/O error other than the client closing its end, or a protocol failure.
pub async fn serve_lines<R, W>(
    surface: Arc<dyn Surface>,
    connection: Scope,
    reader: R,
    writer: W,
    shutdown: CancellationToken,
) -> Result<(), LinesError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let link = Arc::new(Link::new(connection));
    let (queue, jobs) = mpsc::channel(WRITE_QUEUE);
    let mut writing = chappie_mesh::runtime::spawn(write_lines(writer, jobs, link.clone()));
    let lines = Lines {
        reader: BufReader::with_capacity(READ_BYTES, reader),
        line: Vec::new(),
        skipping: false,
        opened: false,
        queue,
        reply: None,
        drain_until: None,
        link: link.clone(),
        shutdown,
    };
    let served = match serve_server(Handler::new(surface), lines).await {
        Ok(service) => service.waiting().await.map(drop).map_err(|error| LinesError::Protocol(error.to_string())),
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(LinesError::Protocol(error.to_string())),
    };
    // The transport is gone and with it the queue: the writer ends once it has written the rest.
    if timeout(DRAIN, &mut writing).await.is_err() {
        tracing::debug!("the client stopped reading; the rest of its answers is dropped");
        writing.abort();
    }
    link.unanswerable.cancel();
    link.fault().map_or(served, Err)
}

/// The reading half, and rmcp's door to the writing half.
struct Lines<R> {
    reader: BufReader<R>,
    /// The line being read; kept across calls, because rmcp drops `receive` whenever something else happens.
    line: Vec<u8>,
    /// Inside a line that is too long.
    skipping: bool,
    /// Whether a lifecycle was chosen. Before that rmcp would end the connection over a stray notification.
    opened: bool,
    queue: mpsc::Sender<Job>,
    /// A refusal on its way to the queue.
    reply: Option<Job>,
    /// Set at the end of input: when waiting for answers ends.
    drain_until: Option<Instant>,
    link: Arc<Link>,
    shutdown: CancellationToken,
}

/// What came in.
enum Input {
    Line,
    TooLong,
    End,
}

impl<R: AsyncRead + Send + Unpin> Lines<R> {
    /// Reads until a whole line stands in `self.line`. Dropping the future loses nothing.
    async fn read(&mut self) -> io::Result<Input> {
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                self.skipping = false;
                // A last line without a line end counts.
                return Ok(if self.line.is_empty() { Input::End } else { Input::Line });
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            let too_long = !self.skipping && self.line.len() + taken > LINE_BYTES_MAX;
            if !self.skipping && !too_long {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.reader.consume(taken);
            if too_long {
                self.line = Vec::new();
                self.skipping = end.is_none();
                return Ok(Input::TooLong);
            }
            if end.is_some() && !std::mem::take(&mut self.skipping) {
                return Ok(Input::Line);
            }
        }
    }

    /// Decodes the line read, admitting requests and carrying out cancellations; `None` for what rmcp need not see.
    fn decode(&mut self) -> Result<Option<ClientJsonRpcMessage>, Refusal> {
        let mut line = std::mem::take(&mut self.line);
        if line.iter().all(u8::is_ascii_whitespace) {
            line.clear();
            self.line = line;
            return Ok(None);
        }
        let envelope = Envelope::parse(&line)?;
        if envelope.kind == Kind::Notification
            && envelope.method == "notifications/cancelled"
            && let Some(id) = &envelope.cancels
        {
            self.link.cancel(id);
        }
        let Kind::Request(id) = &envelope.kind else {
            if !self.opened {
                return Ok(None);
            }
            return serde_json::from_slice(&line)
                .map(Some)
                .map_err(|error| Refusal::invalid_message(&error.to_string(), Value::Null));
        };
        let mut message: ClientJsonRpcMessage =
            serde_json::from_slice(&line).map_err(|error| Refusal::invalid_message(&error.to_string(), id.clone()))?;
        let exchange = self.link.admit(id)?;
        if let ClientJsonRpcMessage::Request(request) = &mut message {
            request.request.extensions_mut().insert(exchange);
            let undecided =
                matches!(request.request, ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_));
            self.opened |= matches!(request.request, ClientRequest::InitializeRequest(_))
                || (!undecided && envelope.version.is_some());
        }
        Ok(Some(message))
    }

    /// Waits for the answers that are still to come, then says that no more will.
    async fn drain(&mut self) {
        let until = *self.drain_until.get_or_insert_with(|| Instant::now() + DRAIN);
        tokio::select! {
            _ = timeout_at(until, self.link.unanswered.wait()) => {}
            () = self.link.unanswerable.cancelled() => {}
        }
        self.link.unanswerable.cancel();
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let open = self.link.close(&message);
        let queue = self.queue.clone();
        async move {
            let line = terminated(serde_json::to_vec(&message)?);
            let (exchange, token) = open.map(|Open { exchange, token }| (exchange, token)).unzip();
            let ticket = exchange.and_then(|exchange| exchange.take_ticket());
            let (done, written) = oneshot::channel();
            let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
            queue.send(Job { line, ticket, _token: token, done: Some(done) }).await.map_err(|_| closed())?;
            written.await.map_err(|_| closed())
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.drain_until.is_some() {
                self.drain().await;
                return None;
            }
            if self.reply.is_some() {
                let permit = self.queue.reserve().await.ok()?;
                if let Some(job) = self.reply.take() {
                    permit.send(job);
                }
            }
            let (unanswerable, shutdown) = (self.link.unanswerable.clone(), self.shutdown.clone());
            let input = tokio::select! {
                input = self.read() => input,
                () = unanswerable.cancelled() => return None,
                () = shutdown.cancelled() => Ok(Input::End),
            };
            match input {
                Ok(Input::Line) => match self.decode() {
                    Ok(Some(message)) => return Some(message),
                    Ok(None) => {}
                    Err(refusal) => self.reply = Some(Job::refusal(&refusal)),
                },
                Ok(Input::TooLong) => {
                    let detail = format!("its line is longer than {LINE_BYTES_MAX} bytes; send less per call");
                    self.reply = Some(Job::refusal(&Refusal::invalid_message(&detail, Value::Null)));
                }
                Ok(Input::End) => self.drain_until = Some(Instant::now() + DRAIN),
                Err(error) => {
                    self.link.fail(LinesError::Read(error));
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
