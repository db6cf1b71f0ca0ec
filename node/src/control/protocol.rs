//! What crosses the control socket: requests, replies, their JSON names and limits (docs/PROTOCOL.md section 1). Pure:
//! no socket, no clock. The row types are also what `--json` prints, so their field names are a contract with scripts.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{content::JsonObject, host::HostKind};

/// The node at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// This node's id, in full.
    pub node: String,
    /// This node's name.
    pub name: String,
    /// The mesh's id; `None` while the node is alone.
    pub mesh: Option<String>,
    /// The acting broker; `None` when there is none.
    pub broker: Option<BrokerRow>,
    /// Whether decisions can be taken.
    pub quorum: QuorumRow,
    /// The other devices.
    pub peers: Vec<PeerRow>,
    /// The connected sessions.
    pub sessions: Vec<SessionRow>,
    /// The program's version.
    pub version: String,
    /// What is wrong with this node's place in the mesh, such as a second device with its identity; a sentence.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Where the mesh listens, `ADDR:PORT` (UDP); `None` while it does not.
    #[serde(default)]
    pub quic: Option<String>,
}

/// Who acts as broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRow {
    /// Its node id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// The term it was elected in.
    pub term: u64,
    /// Whether it is the node that answers.
    #[serde(rename = "self")]
    pub is_self: bool,
}

/// The voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuorumRow {
    /// How many there are.
    pub voters: u32,
    /// How many of them answer.
    pub reachable: u32,
    /// Whether those are enough.
    pub ok: bool,
}

/// Another device of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRow {
    /// Its node id.
    pub node: String,
    /// Its name.
    pub name: String,
    /// How the connection stands: `connected`, `connecting`, `waiting` (for the next try), `idle` (nobody here needs one)
    /// or `unknown` (needed, and no address known).
    pub state: String,
    /// Where it was seen.
    pub addresses: Vec<String>,
    /// Measured round trip, milliseconds; `None` when not connected.
    pub rtt_ms: Option<f64>,
    /// Whether it votes on who is broker.
    #[serde(default)]
    pub voter: bool,
    /// At the broker: how many of its log's entries the device lacks; `None` elsewhere, or when it never answered.
    #[serde(default)]
    pub lag: Option<u64>,
    /// Why it cannot be reached or counted on, when that is known; a sentence.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// An invite, made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteRow {
    /// The code: a secret until it is used up or expired.
    pub code: String,
    /// RFC 3339, UTC: until when it is good.
    pub expires_at: String,
}

/// The code stays out of logs.
impl fmt::Debug for InviteRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InviteRow").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// A mesh, joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRow {
    /// The mesh's id.
    pub mesh: String,
    /// What people call the device that let this one in.
    pub device: String,
    /// How many devices the mesh has now, this one among them.
    pub members: u64,
    /// Whether this device was a member before; then nothing was done.
    #[serde(default)]
    pub already: bool,
}

/// A device, forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetRow {
    /// Its node id.
    pub node: String,
    /// What people called it.
    pub name: String,
    /// Its sessions as they were listed; the mesh has them no longer.
    pub sessions: Vec<SessionRow>,
}

/// A new beginning of the mesh, made on this device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoverRow {
    /// The mesh's id.
    pub mesh: String,
    /// Which beginning it is; one more than before.
    pub epoch: u64,
    /// Devices whose operations are not known yet: new operations with an `operationId` are refused until they are back.
    pub missing: Vec<String>,
    /// Whether the mesh goes on as it was, and no more was done than to give up what missing devices know.
    #[serde(default)]
    pub loss_only: bool,
}

/// A device whose side this one takes after a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowRow {
    /// What people call it.
    pub device: String,
    /// Where this device's own side of the broker's records was put.
    pub archived: String,
}

/// What a session does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    /// Nothing runs.
    Idle,
    /// Waits for ChatGPT to act.
    Ready,
    /// A request is active.
    Executing,
}

impl SessionStatus {
    /// The word that JSON and people see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Ready => "ready",
            Self::Executing => "executing",
        }
    }
}

/// One connected session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRow {
    /// Its id.
    pub id: String,
    /// The name a person gave it.
    pub name: Option<String>,
    /// What runs its tools.
    pub host: HostKind,
    /// The folder with the host's own files.
    pub agent_dir: String,
    /// The device's name.
    pub device: String,
    /// The working folder.
    pub cwd: String,
    /// What it does now.
    pub status: SessionStatus,
    /// How many conversations have it as their default.
    pub binding_count: u64,
}

/// What `session new` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionNew {
    /// The working folder, absolute.
    pub dir: PathBuf,
    /// A name for people.
    #[serde(default)]
    pub name: Option<String>,
    /// What shall run its tools.
    pub host: HostKind,
}

/// Which part of a session's history is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogQuery {
    /// Id, unique prefix or name; `None` is the only session there is.
    #[serde(default)]
    pub session: Option<String>,
    /// Entries after this one; `None` gives the latest.
    #[serde(default)]
    pub after: Option<String>,
    /// At most so many entries; 1 to [`LOG_LIMIT_MAX`], default 20.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Hold an empty page for up to 30 s until an entry comes.
    #[serde(default)]
    pub wait: bool,
}

/// The most entries one page holds, as in the `history` tool.
pub const LOG_LIMIT_MAX: u32 = 200;

/// A page of history, in branch order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogPage {
    /// The session's full id.
    pub session: String,
    /// Oldest first.
    pub entries: Vec<LogEntry>,
    /// Whether there are more in the direction that was read.
    pub has_more: bool,
}

/// One entry of a session's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Stable id.
    pub id: String,
    /// RFC 3339, UTC, milliseconds.
    pub timestamp: String,
    /// What it is, in one word: `user`, `assistant`, `tool`, `notice`.
    pub kind: String,
    /// What a person reads; may hold several lines.
    pub text: String,
    /// The entry as the `history` tool shows it.
    pub raw: Value,
}

/// One operation receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptRow {
    /// Its key; any unique prefix names it.
    pub id: String,
    /// The caller's name for the operation.
    pub operation_id: String,
    /// The tool.
    pub kind: String,
    /// The conversation, shortened for people.
    pub conversation: String,
    /// The session it was sent to.
    pub session_id: String,
    /// That session's folder.
    pub cwd: String,
    /// `running`, `completed` or `uncertain`.
    pub status: String,
    /// RFC 3339, UTC, of the last change.
    pub updated_at: String,
}

/// One receipt with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptReport {
    /// The row.
    #[serde(flatten)]
    pub row: ReceiptRow,
    /// Signature, references and what the session's journal says.
    pub details: JsonObject,
}

/// What a person found out about an uncertain operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    /// It did its work: a replay gets the completed receipt.
    Completed,
    /// It did nothing: the receipt goes, and the same `operationId` may run.
    NotRun,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportRow {
    /// The backup of the store as it was before; `None` when nothing was new.
    pub backup: Option<String>,
    /// Bindings added.
    pub imported: u64,
    /// Bindings that were here already, theirs or newer.
    pub unchanged: u64,
    /// Bindings idle for more than 30 days, left out.
    pub expired: u64,
}

/// One thing `doctor` looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do next; empty when nothing needs doing.
    #[serde(default)]
    pub advice: String,
}

/// Why a command was not done: a sentence for people that says what was found and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    /// The sentence.
    pub message: String,
    /// Whether the same command may work in a while without anybody doing anything, as when a device is not reachable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
}

impl CommandError {
    /// An error with this sentence; trying again changes nothing.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), temporary: false }
    }

    /// An error with this sentence that may pass by itself.
    pub fn temporary(message: impl Into<String>) -> Self {
        Self { message: message.into(), temporary: true }
    }
}
