//! Serves the control socket: one task a connection, one request at a time on each. It decodes, calls and encodes.

use std::{io, path::Path, sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    CommandError, Commands, LogPage, LogQuery,
    frame::{Body, CONNECTIONS_MAX, Lines, Method, Request, Response, fitting},
    socket::{Bound, SocketError},
};

/// A client that reads nothing for so long is gone in all but name.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// What runs at the stop may finish: the longest command, ending a session, takes five seconds.
const STOP_LIMIT: Duration = Duration::from_secs(6);
/// After a failed accept (no descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 8 * 1024;

/// The bound control socket, not yet serving.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    bound: Bound,
}

impl Server {
    /// Takes the socket of `home`, so that a second node fails before it touches anything.
    ///
    /// # Errors
    /// See [`Bound::bind`].
    pub async fn bind(home: &Path) -> Result<Self, SocketError> {
        let (listener, bound) = Bound::bind(home).await?;
        Ok(Self { listener, bound })
    }

    /// Serves until `stop`; then the socket goes, requests that run get [`STOP_LIMIT`], and waits and MCP streams end
    /// at once. Returns when all of that is done.
    pub async fn serve(self, commands: Arc<dyn Commands>, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(cause) => {
                    tracing::warn!(%cause, "a control connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                turn_away(&stream);
                continue;
            };
            let connection = Connection { stream, lines: Lines::default(), stop: stop.clone() };
            let commands = Arc::clone(&commands);
            connections.spawn(async move {
                let _permit = permit;
                if let Err(cause) = connection.run(commands).await {
                    tracing::debug!(%cause, "a control connection ended");
                }
            });
        }
        drop((self.listener, self.bound));
        if timeout(STOP_LIMIT, async { while connections.join_next().await.is_some() {} }).await.is_err() {
            tracing::warn!(left = connections.len(), "control requests were cut off at the stop");
        }
    }
}

/// Says why before closing; whether it arrives is the client's luck, so nothing waits for it.
fn turn_away(stream: &UnixStream) {
    let error = CommandError::new(format!("{CONNECTIONS_MAX} control connections are open already; close some"));
    if let Ok(line) = (Response { id: None, body: Body::Error(error) }).encode() {
        let _ = stream.try_write(&line);
    }
}

struct Connection {
    stream: UnixStream,
    lines: Lines,
    stop: CancellationToken,
}

impl Connection {
    async fn run(mut self, commands: Arc<dyn Commands>) -> io::Result<()> {
        loop {
            let stop = self.stop.clone();
            let line = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                line = self.line() => match line? {
                    Some(line) => line,
                    None => return Ok(()),
                },
            };
            let request = match Request::decode(&line) {
                Ok(request) => request,
                Err(malformed) => {
                    self.send(malformed.id, Body::Error(malformed.error)).await?;
                    continue;
                }
            };
            if let Method::Mcp { session } = request.method {
                return self.hand_over(request.id, session, commands).await;
            }
            self.answer(request.id, request.method, commands.as_ref()).await?;
        }
    }

    /// The next line; `None` at the end of the stream.
    async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = [0; READ_BYTES];
        loop {
            if let Some(line) = self.lines.take_line() {
                return Ok(Some(line));
            }
            let count = self.stream.read(&mut bytes).await?;
            if count == 0 {
                return Ok(None);
            }
            if let Err(too_long) = self.lines.push(&bytes[..count]) {
                self.send(None, Body::Error(CommandError::new(too_long.to_string()))).await?;
                return Err(io::Error::other(too_long));
            }
        }
    }

    async fn answer(&mut self, id: u64, method: Method, commands: &dyn Commands) -> io::Result<()> {
        let result = match method {
            Method::Status {} => encoded(commands.status().await),
            Method::Sessions {} => encoded(commands.sessions().await),
            Method::SessionNew(request) => encoded(commands.session_new(request).await),
            Method::SessionEnd { session } => encoded(commands.session_end(session).await),
            Method::Say { session, text, images } => encoded(commands.say(session, text, images).await),
            Method::Log(query) => match self.log(query, commands).await {
                Some(Ok(page)) => {
                    for entry in page.entries {
                        self.send(Some(id), Body::Item(json!(fitting(entry)))).await?;
                    }
                    Ok(json!({"session": page.session, "hasMore": page.has_more}))
                }
                Some(Err(error)) => Err(error),
                None => return Ok(()),
            },
            Method::Receipts {} => match commands.receipts().await {
                Ok(rows) => {
                    for row in rows {
                        self.send(Some(id), Body::Item(json!(row))).await?;
                    }
                    Ok(Value::Null)
                }
                Err(error) => Err(error),
            },
            Method::Receipt { id } => encoded(commands.receipt(id).await),
            Method::Resolve { id, how } => encoded(commands.resolve(id, how).await),
            Method::ImportState { path } => encoded(commands.import_state(path).await),
            Method::Doctor {} => encoded(commands.doctor().await),
            Method::Invite { uses, ttl_ms } => encoded(commands.invite(uses, ttl_ms).await),
            Method::Join { code } => encoded(commands.join(code).await),
            Method::Peers {} => encoded(commands.peers().await),
            Method::Forget { device } => encoded(commands.forget(device).await),
            Method::Recover { accept_loss } => encoded(commands.recover(accept_loss).await),
            Method::Follow { device } => encoded(commands.follow(device).await),
            // Taken by `hand_over` before.
            Method::Mcp { .. } => Ok(Value::Null),
        };
        self.send(Some(id), result.map_or_else(Body::Error, Body::Result)).await
    }

    /// The page; `None` when the client left while it waited.
    async fn log(&mut self, query: LogQuery, commands: &dyn Commands) -> Option<Result<LogPage, CommandError>> {
        if !query.wait {
            return Some(commands.log(query).await);
        }
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            page = commands.log(query) => Some(page),
            () = stop.cancelled() => Some(Err(CommandError::new("the node stops"))),
            () = self.gone() => None,
        }
    }

    /// Ends when the client closed its side. A request that comes early is kept for later, and then nothing is noticed.
    async fn gone(&mut self) {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes).await {
            Ok(0) | Err(_) => {}
            Ok(count) => {
                // Too much is noticed again by the next `line`.
                let _ = self.lines.push(&bytes[..count]);
                std::future::pending().await
            }
        }
    }

    async fn hand_over(mut self, id: u64, session: Option<String>, commands: Arc<dyn Commands>) -> io::Result<()> {
        if !self.lines.is_empty() {
            let error = CommandError::new("bytes came after the request for mcp and before its answer");
            return self.send(Some(id), Body::Error(error)).await;
        }
        self.send(Some(id), Body::Result(Value::Null)).await?;
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            () = commands.serve_mcp(self.stream, session) => {}
        }
        Ok(())
    }

    async fn send(&mut self, id: Option<u64>, body: Body) -> io::Result<()> {
        let line = Response { id, body }.encode().or_else(|error| Response { id, body: Body::Error(error) }.encode());
        let line = line.map_err(io::Error::other)?;
        timeout(WRITE_LIMIT, self.stream.write_all(&line)).await?
    }
}

fn encoded<T: Serialize>(outcome: Result<T, CommandError>) -> Result<Value, CommandError> {
    outcome.and_then(|value| serde_json::to_value(value).map_err(|cause| CommandError::new(cause.to_string())))
}
