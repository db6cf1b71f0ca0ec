//! What the command line asks of a running node, answered from its handles.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::net::UnixStream;

use super::{Node, desk::Undone};
use crate::{
    broker::{ImportError, Receipt, ReceiptKind, ReceiptStatus, Resolve, read_state_file},
    clock,
    config::JoinCode,
    content::Block,
    control::{
        CommandError, Commands, Finding, FollowRow, ForgetRow, ImportRow, InviteRow, JoinRow, LogEntry, LogPage,
        LogQuery, PeerRow, ReceiptReport, ReceiptRow, RecoverRow, Reply, Resolution, SessionNew, SessionRow,
        SessionStatus, StatusReport,
    },
    doors::stdio,
    fleet::{Directory as _, seat::Holder},
    host::{
        BoxFuture,
        native::image_part::{self, Picture},
    },
    ids::{Conversation, EntryId, SessionId},
    sessions::{
        SessionInfo,
        entry::{Body, Entry},
        history::{LIMIT_MAX, Page, Range},
    },
    storage::disk,
    tools::{Preferring, Surface},
};

/// How long `log` holds an empty page when it follows.
const FOLLOW_MAX: Duration = Duration::from_secs(30);
/// The longest text of one input. More belongs into a file that the text names.
const SAY_MAX_BYTES: usize = 512 << 10;
/// Images of one input.
const SAY_IMAGES_MAX: usize = 8;

fn failed(error: impl std::fmt::Display) -> CommandError {
    CommandError::new(error.to_string())
}

impl Node {
    /// This device's own sessions.
    pub(super) fn session_rows(&self) -> Vec<SessionRow> {
        let (counts, device) = (self.broker.binding_counts(), self.config.name.clone());
        self.sessions.infos().into_iter().map(|info| row(info, device.clone(), &counts)).collect()
    }

    /// The sessions of every device that is online, as this device knows them when it is the broker.
    pub(super) fn online_rows(&self) -> Vec<SessionRow> {
        let counts = self.broker.binding_counts();
        self.fleet.list().into_iter().map(|placed| row(placed.info, placed.device, &counts)).collect()
    }

    pub(super) fn receipt_rows(&self) -> Vec<ReceiptRow> {
        self.broker.receipts().iter().rev().map(receipt_row).collect()
    }

    pub(super) async fn receipt_report(&self, id: &str) -> Result<ReceiptReport, CommandError> {
        let receipt = self.find_receipt(id)?;
        let ended = match self.fleet.find(&receipt.session) {
            Some(placed) => placed.node.ended(receipt.key.0.clone()).await,
            None => None,
        };
        let details = json!({
            "ended": ended,
            "signature": receipt.signature,
            "callId": receipt.call_id,
            "attempt": receipt.attempt,
            "createdAt": clock::rfc3339(receipt.created),
            "reason": receipt.reason,
            "resources": receipt.resources,
        });
        Ok(ReceiptReport { row: receipt_row(&receipt), details: details.as_object().cloned().unwrap_or_default() })
    }

    pub(super) async fn resolve_here(&self, id: &str, how: Resolution) -> Result<(), Undone> {
        let receipt = self.find_receipt(id)?;
        let how = match how {
            Resolution::Completed => Resolve::Completed,
            Resolution::NotRun => Resolve::NotDone,
        };
        Ok(self.broker.resolve(receipt.key, how).await?)
    }

    fn find_receipt(&self, id: &str) -> Result<Receipt, CommandError> {
        let fits: Vec<Receipt> = self
            .broker
            .receipts()
            .into_iter()
            .filter(|receipt| !id.is_empty() && (receipt.key.0.starts_with(id) || receipt.operation_id == id))
            .collect();
        match fits.as_slice() {
            [receipt] => Ok(receipt.clone()),
            [] => Err(CommandError::new(format!("no receipt {id:?}; list them with `chappie receipts`"))),
            _ => Err(CommandError::new(format!("{id:?} fits {} receipts; give more of the id", fits.len()))),
        }
    }

    async fn hear(&self, session: Option<String>, text: String, images: Vec<PathBuf>) -> Result<EntryId, CommandError> {
        if text.is_empty() && images.is_empty() {
            return Err(CommandError::new("say needs a text or an image"));
        }
        if text.len() > SAY_MAX_BYTES {
            return Err(CommandError::new(format!(
                "the text has {} bytes, at most {SAY_MAX_BYTES} are taken; put it into a file and name the file",
                text.len()
            )));
        }
        if images.len() > SAY_IMAGES_MAX {
            return Err(CommandError::new(format!("at most {SAY_IMAGES_MAX} images are taken at once")));
        }
        let session = self.sessions.named(session.as_deref()).map_err(failed)?;
        let mut content = Vec::new();
        if !text.is_empty() {
            content.push(Block::text(text));
        }
        for path in images {
            let blobs = self.blobs.clone();
            let image = tokio::task::spawn_blocking(move || {
                let picture = picture(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
                blobs.put(&picture.bytes, picture.mime).map_err(|error| failed(format!("{}: {error}", path.display())))
            });
            content.push(Block::Image(image.await.map_err(failed)??));
        }
        session.say(content).await.map_err(failed)
    }

    async fn read_log(&self, query: LogQuery) -> Result<LogPage, CommandError> {
        let session = self.sessions.named(query.session.as_deref()).map_err(failed)?;
        let range = Range {
            limit: query.limit.map_or(20, |limit| limit as usize).clamp(1, LIMIT_MAX),
            before: None,
            after: query.after.map(EntryId),
        };
        let deadline = tokio::time::Instant::now() + FOLLOW_MAX;
        let mut changes = session.history().subscribe();
        let page = loop {
            changes.mark_unchanged();
            let page: Page = session.page(&range).await.map_err(failed)?;
            if !query.wait || !page.entries.is_empty() || session.ended().is_cancelled() {
                break page;
            }
            if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
                break page;
            }
        };
        Ok(LogPage {
            session: session.record().id.to_string(),
            entries: page.entries.iter().map(log_entry).collect(),
            has_more: page.has_more,
        })
    }

    async fn import(&self, path: PathBuf) -> Result<ImportRow, CommandError> {
        if !self.is_broker() {
            let Holder::There(broker) = self.seat.holder() else {
                return Err(CommandError::temporary(self.fleet.no_broker()));
            };
            let broker = self.membership.roster().label(&broker);
            return Err(CommandError::new(format!(
                "the broker of this mesh is the device {broker}, and conversations are recorded there; run the import on it"
            )));
        }
        let file = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || read_state_file(&path));
        let imported = read.await.map_err(failed)?.map_err(|error| match error {
            ImportError::Read { .. } => failed(error),
            unfit => failed(format!("{file}: {unfit}")),
        })?;
        let report = self.broker.import(imported).await.map_err(failed)?;
        Ok(ImportRow {
            backup: Some(report.backup.display().to_string()),
            imported: (report.counts.bindings_added + report.counts.bindings_replaced) as u64,
            unchanged: report.counts.bindings_kept as u64,
            expired: report.counts.bindings_expired as u64,
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let free = disk::free_bytes(&self.config.home);
        let (ok, detail) = match &free {
            Ok(free) => (*free >= disk::FREE_MIN_BYTES, format!("{} MiB free", free >> 20)),
            Err(error) => (false, error.to_string()),
        };
        let mut findings = vec![Finding {
            name: "disk".into(),
            ok,
            detail,
            advice: if ok { String::new() } else { "free some space: new work is refused until then".into() },
        }];
        let uncertain =
            self.broker.receipts().iter().filter(|receipt| receipt.status == ReceiptStatus::Uncertain).count();
        findings.push(Finding {
            name: "receipts".into(),
            ok: uncertain == 0,
            detail: format!("{uncertain} uncertain"),
            advice: if uncertain == 0 { String::new() } else { "look at them with `chappie receipts`".into() },
        });
        for session in self.sessions.list() {
            let record = session.record();
            let there = record.cwd.is_dir();
            findings.push(Finding {
                name: format!("session {}", record.name.as_deref().unwrap_or(record.id.as_str())),
                ok: there,
                detail: record.cwd.display().to_string(),
                advice: if there {
                    String::new()
                } else {
                    "its folder is gone: make it again, or end the session".into()
                },
            });
        }
        findings.extend(self.mesh_findings());
        findings
    }
}

impl Commands for Node {
    fn status(&self) -> Reply<'_, StatusReport> {
        Box::pin(async move { Ok(self.report().await) })
    }

    fn sessions(&self) -> Reply<'_, Vec<SessionRow>> {
        Box::pin(async move { Ok(self.fleet_sessions().await) })
    }

    fn session_new(&self, request: SessionNew) -> Reply<'_, SessionRow> {
        Box::pin(async move {
            let session = self.sessions.create(&request.dir, request.name).await.map_err(failed)?;
            Ok(row(self.sessions.info(&session), self.config.name.clone(), &self.broker.binding_counts()))
        })
    }

    fn session_end(&self, session: String) -> Reply<'_, ()> {
        Box::pin(async move {
            let session = self.sessions.named(Some(&session)).map_err(failed)?;
            self.sessions.end(&session).await.map_err(failed)
        })
    }

    fn say(&self, session: Option<String>, text: String, images: Vec<PathBuf>) -> Reply<'_, String> {
        Box::pin(async move { Ok(self.hear(session, text, images).await?.0) })
    }

    fn log(&self, query: LogQuery) -> Reply<'_, LogPage> {
        Box::pin(self.read_log(query))
    }

    fn receipts(&self) -> Reply<'_, Vec<ReceiptRow>> {
        Box::pin(self.all_receipts())
    }

    fn receipt(&self, id: String) -> Reply<'_, ReceiptReport> {
        Box::pin(self.one_receipt(id))
    }

    fn resolve(&self, id: String, how: Resolution) -> Reply<'_, ()> {
        Box::pin(self.settle_by_word(id, how))
    }

    fn import_state(&self, path: PathBuf) -> Reply<'_, ImportRow> {
        Box::pin(self.import(path))
    }

    fn doctor(&self) -> Reply<'_, Vec<Finding>> {
        Box::pin(async move { Ok(self.findings()) })
    }

    fn invite(&self, uses: u32, ttl_ms: u64) -> Reply<'_, InviteRow> {
        Box::pin(self.make_invite(uses, ttl_ms))
    }

    fn join(&self, code: JoinCode) -> Reply<'_, JoinRow> {
        Box::pin(self.join_mesh(code))
    }

    fn peers(&self) -> Reply<'_, Vec<PeerRow>> {
        Box::pin(async move { Ok(self.peer_rows()) })
    }

    fn forget(&self, device: String) -> Reply<'_, ForgetRow> {
        Box::pin(self.forget_device(device))
    }

    fn recover(&self, accept_loss: bool) -> Reply<'_, RecoverRow> {
        Box::pin(self.recover_mesh(accept_loss))
    }

    fn follow(&self, device: String) -> Reply<'_, FollowRow> {
        Box::pin(async move { self.follow_device(&device).await })
    }

    fn serve_mcp(self: Arc<Self>, stream: UnixStream, session: Option<String>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let surface: Arc<dyn Surface> = match session {
                Some(session) => Arc::new(Preferring::new(self.gate.clone(), SessionId(session))),
                None => self.gate.clone(),
            };
            let (reader, writer) = stream.into_split();
            if let Err(error) = stdio::serve(surface, reader, writer, self.stopping.child_token()).await {
                tracing::debug!(%error, "an MCP client on the control socket ended");
            }
        })
    }
}

fn row(info: SessionInfo, device: String, counts: &BTreeMap<SessionId, usize>) -> SessionRow {
    SessionRow {
        binding_count: counts.get(&info.id).copied().unwrap_or(0) as u64,
        id: info.id.to_string(),
        name: info.name,
        host: info.host,
        agent_dir: info.agent_dir,
        device,
        cwd: info.cwd,
        status: if info.executing { SessionStatus::Executing } else { SessionStatus::Idle },
    }
}

/// The picture in a file, as it will be shown.
fn picture(path: &Path) -> Result<Picture, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !size.is_file() {
        return Err("it is no regular file".into());
    }
    if size.len() > image_part::FILE {
        return Err(format!("it has {} bytes; at most {} are taken", size.len(), image_part::FILE));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let format = image::guess_format(&bytes).map_err(|_| "it is no png, jpeg, gif, webp or bmp image".to_owned())?;
    image_part::picture(bytes, format).map_err(|error| error.to_string())
}

fn receipt_row(receipt: &Receipt) -> ReceiptRow {
    ReceiptRow {
        id: receipt.key.0.clone(),
        operation_id: receipt.operation_id.clone(),
        kind: match receipt.kind {
            ReceiptKind::Chat => "chat".into(),
            ReceiptKind::Call => "call".into(),
        },
        conversation: receipt.conversation.as_ref().map_or_else(|| "-".into(), Conversation::short),
        session_id: receipt.session.to_string(),
        cwd: receipt.cwd.clone(),
        status: receipt.status.to_string(),
        updated_at: clock::rfc3339(receipt.updated),
    }
}

/// An entry for people: what a terminal shows of it.
fn log_entry(entry: &Entry) -> LogEntry {
    let (kind, text) = match &entry.body {
        Body::User { content } => ("user", plain(content)),
        Body::Assistant { content, calls, .. } => {
            let calls = calls.iter().map(|call| format!("{} {}", call.name, json!(call.arguments)));
            let text = plain(content);
            let lines: Vec<String> = Some(text).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
            ("assistant", lines.join("\n"))
        }
        Body::ToolResult { result, .. } => ("tool", plain(&result.content)),
        Body::Notice { message, .. } => ("notice", message.clone()),
    };
    LogEntry {
        id: entry.id.to_string(),
        timestamp: clock::rfc3339(entry.at),
        kind: kind.into(),
        text,
        raw: json!(entry),
    }
}

fn plain(blocks: &[Block]) -> String {
    let lines = blocks.iter().map(|block| match block {
        Block::Text { text } => text.clone(),
        Block::Image(image) => format!("[image {}, {} bytes]", image.mime, image.size),
    });
    lines.collect::<Vec<_>>().join("\n")
}
