//! JSON lines: one message a line each way, over any pair of streams (stdio, a Unix socket). An rmcp transport that answers
//! what rmcp would ignore (text that is no message), bounds what it reads, and settles a request's ticket when the line
//! with its answer was flushed.
//!
//! Requests run concurrently; only reading and writing are sequential. At the end of input no more is read, answers that
//! are nearly ready still go out, and what is left runs on; its requests are told so.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, ClientRequest, GetExtensions, ServerJsonRpcMessage},
    serve_server,
    service::ServerInitializeError,
    transport::Transport,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{
    envelope::{Envelope, Kind},
    exchange::Exchange,
    inflight::{Inflight, Scope},
    refusal::Refusal,
    server::Handler,
};
use crate::tools::{Surface, Ticket};

/// Longest line read, as over HTTP. A longer one is answered with an error and skipped.
const LINE_BYTES_MAX: usize = super::http::BODY_BYTES_MAX;
/// Requests of one connection in flight at once. A client that does not read its answers stops here.
const REQUESTS_MAX: usize = 512;
/// Answers between the handlers and the writer. More wait in their tasks, which [`REQUESTS_MAX`] bounds.
const WRITE_QUEUE: usize = 64;
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
    let writing = tokio::spawn(write_lines(writer, jobs, link.clone()));
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
    let written = timeout_at(Instant::now() + DRAIN, writing).await;
    link.unanswerable.cancel();
    if let Some(error) = link.fault() {
        return Err(error);
    }
    if written.is_err() {
        tracing::debug!("the client stopped reading; the rest of its answers is dropped");
    }
    served
}

/// What the reading and the writing half share.
struct Link {
    connection: Scope,
    inflight: Arc<Inflight>,
    /// Requests read and not yet answered, by the JSON of their id.
    open: Mutex<HashMap<String, Open>>,
    /// Counts requests until their answer is flushed.
    unanswered: TaskTracker,
    /// Fires when no more answers can or need be written.
    unanswerable: CancellationToken,
    fault: Mutex<Option<LinesError>>,
}

struct Open {
    exchange: Arc<Exchange>,
    token: TaskTrackerToken,
}

impl Link {
    fn new(connection: Scope) -> Self {
        let unanswered = TaskTracker::new();
        unanswered.close();
        Self {
            connection,
            inflight: Arc::default(),
            open: Mutex::default(),
            unanswered,
            unanswerable: CancellationToken::new(),
            fault: Mutex::default(),
        }
    }

    /// Takes a request in, or says why not.
    fn admit(&self, id: &Value) -> Result<Arc<Exchange>, Refusal> {
        let mut open = self.open();
        if open.contains_key(&id.to_string()) {
            return Err(Refusal::invalid_message("its id is in use by a request that is not answered yet", id.clone()));
        }
        if open.len() >= REQUESTS_MAX {
            let detail = format!("{REQUESTS_MAX} requests are in flight; wait for an answer first");
            return Err(Refusal::invalid_message(&detail, id.clone()));
        }
        let cancelled = CancellationToken::new();
        let exchange = Arc::new(Exchange {
            connection: Some(self.connection.clone()),
            registration: Some(self.inflight.register(vec![self.connection.clone()], id, cancelled.clone())),
            cancelled,
            unanswerable: self.unanswerable.clone(),
            ..Exchange::default()
        });
        open.insert(id.to_string(), Open { exchange: exchange.clone(), token: self.unanswered.token() });
        Ok(exchange)
    }

    /// Cancels a request. rmcp drops the answer of a cancelled request, so nothing waits for it either.
    fn cancel(&self, id: &Value) {
        if self.inflight.cancel(&self.connection, id) {
            let closed = self.open().remove(&id.to_string());
            drop(closed);
        }
    }

    /// The request that `message` answers, if it does and the request is still open.
    fn close(&self, message: &ServerJsonRpcMessage) -> Option<Open> {
        let id = match message {
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => None,
        };
        let key = id?.clone().into_json_value().to_string();
        self.open().remove(&key)
    }

    /// Records the first fault and ends the connection. A client that closed its end is no fault.
    fn fail(&self, error: LinesError) {
        let (LinesError::Read(io) | LinesError::Write(io)) = &error else {
            return;
        };
        if !matches!(io.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        self.unanswerable.cancel();
    }

    fn fault(&self) -> Option<LinesError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One line to write.
struct Job {
    line: Vec<u8>,
    ticket: Option<Ticket>,
    /// Dropped once the line is out or never will be.
    _token: Option<TaskTrackerToken>,
    done: Option<oneshot::Sender<()>>,
}

impl Job {
    fn refusal(refusal: &Refusal) -> Self {
        Self { line: terminated(refusal.body().into()), ticket: None, _token: None, done: None }
    }
}

fn terminated(mut line: Vec<u8>) -> Vec<u8> {
    line.push(b'\n');
    line
}

/// Writes lines in order and flushes when no more are waiting, so that a burst costs one flush.
async fn write_lines<W: AsyncWrite + Unpin>(mut writer: W, mut jobs: mpsc::Receiver<Job>, link: Arc<Link>) {
    let mut unflushed = Vec::new();
    while let Some(job) = jobs.recv().await {
        let outcome = async {
            let mut next = Some(job);
            while let Some(job) = next {
                writer.write_all(&job.line).await?;
                unflushed.push(job);
                next = if unflushed.len() < WRITE_QUEUE { jobs.try_recv().ok() } else { None };
            }
            writer.flush().await
        };
        if let Err(error) = outcome.await {
            link.fail(LinesError::Write(error));
            return;
        }
        for Job { ticket, done, .. } in unflushed.drain(..) {
            if let Some(ticket) = ticket {
                ticket.written();
            }
            if let Some(done) = done {
                // The sender may be gone; the line is out all the same.
                let _ = done.send(());
            }
        }
    }
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
