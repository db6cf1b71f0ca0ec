//! The other end of the control socket: [`Remote`] offers [`Commands`] of a node that runs in another process.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use super::{
    CommandError, Commands, Finding, FollowRow, ForgetRow, ImportRow, InviteRow, JoinRow, LogEntry, LogPage, LogQuery,
    PeerRow, ReceiptReport, ReceiptRow, RecoverRow, Reply, Resolution, SessionNew, SessionRow, StatusReport,
    frame::{Body, Lines, Method, Request, Response},
    socket::{self, SocketError},
};
use crate::{config::JoinCode, host::BoxFuture};

/// The longest command, a held `log`, answers after 30 s; a node that is silent for twice as long hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 8 * 1024;

/// A node that runs in another process. Each command has a connection of its own.
#[derive(Clone, Debug)]
pub struct Remote {
    home: PathBuf,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogEnd {
    session: String,
    has_more: bool,
}

impl Remote {
    /// The node that runs for `home`, when one does.
    ///
    /// # Errors
    /// When its socket is there and cannot be reached.
    pub async fn find(home: &Path) -> Result<Option<Self>, SocketError> {
        Ok(socket::connect(home).await?.map(|_| Self { home: home.to_owned() }))
    }

    /// A connection that carries MCP as a standard input and output would.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub async fn open_mcp(&self, session: Option<String>) -> Result<UnixStream, CommandError> {
        let mut exchange = self.send(Method::Mcp { session }).await?;
        exchange.finish::<Value>(|_| Err(unexpected())).await?;
        Ok(exchange.stream)
    }

    async fn send(&self, method: Method) -> Result<Exchange, CommandError> {
        let line = Request { id: 1, method }.encode()?;
        let stream = socket::connect(&self.home).await.map_err(|cause| CommandError::new(cause.to_string()))?;
        let mut stream = stream.ok_or_else(|| {
            CommandError::new(format!("no node runs for {}; start one with `chappie up`", self.home.display()))
        })?;
        // A node that turns the connection away has said why and closed: the answer is worth more than this error.
        let _ = timeout(ANSWER_LIMIT, stream.write_all(&line)).await;
        Ok(Exchange { stream, lines: Lines::default() })
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method) -> Result<T, CommandError> {
        self.send(method).await?.finish(|_| Err(unexpected())).await
    }
}

/// One request on its way.
struct Exchange {
    stream: UnixStream,
    lines: Lines,
}

impl Exchange {
    /// Reads up to the result, giving `on_item` what comes before it.
    async fn finish<T: DeserializeOwned>(
        &mut self,
        mut on_item: impl FnMut(Value) -> Result<(), CommandError>,
    ) -> Result<T, CommandError> {
        loop {
            let line = timeout(ANSWER_LIMIT, self.line()).await.map_err(|_| {
                CommandError::new(format!("the node did not answer within {} s", ANSWER_LIMIT.as_secs()))
            })??;
            match Response::decode(&line)?.body {
                Body::Item(value) => on_item(value)?,
                Body::Result(value) => return parsed(value),
                Body::Error(error) => return Err(error),
            }
        }
    }

    async fn line(&mut self) -> Result<Vec<u8>, CommandError> {
        let mut bytes = [0; READ_BYTES];
        loop {
            if let Some(line) = self.lines.take_line() {
                return Ok(line);
            }
            match self.stream.read(&mut bytes).await {
                Ok(0) => return Err(CommandError::new("the node stopped before it answered")),
                Ok(count) => {
                    self.lines.push(&bytes[..count]).map_err(|cause| CommandError::new(cause.to_string()))?;
                }
                Err(cause) => return Err(CommandError::new(format!("the connection to the node broke: {cause}"))),
            }
        }
    }
}

fn parsed<T: DeserializeOwned>(value: Value) -> Result<T, CommandError> {
    serde_json::from_value(value).map_err(|cause| {
        CommandError::new(format!("the node's answer is not what this version expects ({cause}); restart the node"))
    })
}

fn unexpected() -> CommandError {
    CommandError::new("the node sent a row where none belongs; restart the node")
}

impl Commands for Remote {
    fn status(&self) -> Reply<'_, StatusReport> {
        Box::pin(self.ask(Method::Status {}))
    }

    fn sessions(&self) -> Reply<'_, Vec<SessionRow>> {
        Box::pin(self.ask(Method::Sessions {}))
    }

    fn session_new(&self, request: SessionNew) -> Reply<'_, SessionRow> {
        Box::pin(self.ask(Method::SessionNew(request)))
    }

    fn session_end(&self, session: String) -> Reply<'_, ()> {
        Box::pin(self.ask(Method::SessionEnd { session }))
    }

    fn say(&self, session: Option<String>, text: String, images: Vec<PathBuf>) -> Reply<'_, String> {
        Box::pin(self.ask(Method::Say { session, text, images }))
    }

    fn log(&self, query: LogQuery) -> Reply<'_, LogPage> {
        Box::pin(async move {
            let mut entries: Vec<LogEntry> = Vec::new();
            let mut exchange = self.send(Method::Log(query)).await?;
            let end: LogEnd = exchange.finish(|value| parsed(value).map(|entry| entries.push(entry))).await?;
            Ok(LogPage { session: end.session, entries, has_more: end.has_more })
        })
    }

    fn receipts(&self) -> Reply<'_, Vec<ReceiptRow>> {
        Box::pin(async move {
            let mut rows = Vec::new();
            let mut exchange = self.send(Method::Receipts {}).await?;
            exchange.finish::<()>(|value| parsed(value).map(|row| rows.push(row))).await?;
            Ok(rows)
        })
    }

    fn receipt(&self, id: String) -> Reply<'_, ReceiptReport> {
        Box::pin(self.ask(Method::Receipt { id }))
    }

    fn resolve(&self, id: String, how: Resolution) -> Reply<'_, ()> {
        Box::pin(self.ask(Method::Resolve { id, how }))
    }

    fn import_state(&self, path: PathBuf) -> Reply<'_, ImportRow> {
        Box::pin(self.ask(Method::ImportState { path }))
    }

    fn doctor(&self) -> Reply<'_, Vec<Finding>> {
        Box::pin(self.ask(Method::Doctor {}))
    }

    fn invite(&self, uses: u32, ttl_ms: u64) -> Reply<'_, InviteRow> {
        Box::pin(self.ask(Method::Invite { uses, ttl_ms }))
    }

    fn join(&self, code: JoinCode) -> Reply<'_, JoinRow> {
        Box::pin(self.ask(Method::Join { code }))
    }

    fn peers(&self) -> Reply<'_, Vec<PeerRow>> {
        Box::pin(self.ask(Method::Peers {}))
    }

    fn forget(&self, device: String) -> Reply<'_, ForgetRow> {
        Box::pin(self.ask(Method::Forget { device }))
    }

    fn recover(&self, accept_loss: bool) -> Reply<'_, RecoverRow> {
        Box::pin(self.ask(Method::Recover { accept_loss }))
    }

    fn follow(&self, device: String) -> Reply<'_, FollowRow> {
        Box::pin(self.ask(Method::Follow { device }))
    }

    fn serve_mcp(self: Arc<Self>, mut stream: UnixStream, session: Option<String>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match self.open_mcp(session).await {
                Ok(mut node) => {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut node).await;
                }
                Err(error) => tracing::error!(%error, "the node does not take MCP"),
            }
        })
    }
}
