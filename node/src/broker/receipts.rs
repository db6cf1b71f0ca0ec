//! Receipts of operations (behaviour 8): identity, signature, the record and its life. Pure.
//!
//! ```text
//! (none) --reserve--> running --completed--> completed --24 h--> gone
//!                     running --uncertain--> uncertain --late outcome or a person--> completed | never-run
//!                     running --sealed, never ran--> never-run --reserve--> running, attempt + 1
//! ```
//! `completed` is final. `running` and `uncertain` stay until someone settles them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::limits::{REASON_BYTES_MAX, RECEIPT_BYTES_MAX, RECEIPT_KEEP_MS};
use crate::ids::{CallId, Conversation, Millis, SessionId};

/// Identity of an operation: SHA-256 in lower-case hex, see [`receipt_key`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReceiptKey(pub String);

impl fmt::Display for ReceiptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an operation is to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiptKind {
    /// A message.
    Chat,
    /// A batch of tools, a direct tool among them.
    Call,
}

impl ReceiptKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Call => "call",
        }
    }
}

/// Within what an `operationId` is unique (design section 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptScope<'a> {
    /// The caller's conversation.
    Conversation(&'a Conversation),
    /// The session, for a stateless caller without one.
    Session(&'a SessionId),
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiptStatus {
    /// Reserved; it may be executing.
    Running,
    /// Native execution finished. Says nothing about whether ChatGPT saved a file.
    Completed,
    /// It may have run: check the original work, never retry.
    Uncertain,
    /// It is certain that this attempt did nothing; the same operation may run again.
    NeverRun,
}

impl fmt::Display for ReceiptStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Uncertain => "uncertain",
            Self::NeverRun => "never-run",
        })
    }
}

/// A file the operation produced, by reference: never bytes, never a signed URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRefData {
    /// `chappie://session/…`
    pub uri: String,
    /// File name.
    pub name: String,
    /// MIME type.
    pub mime_type: String,
    /// Bytes.
    pub size: u64,
    /// When its bytes were first read through the broker.
    pub source_read_at: Option<Millis>,
}

/// The record of one operation; at most [`RECEIPT_BYTES_MAX`] encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Its identity.
    pub key: ReceiptKey,
    /// Canonical hash of the arguments; empty for an imported receipt, whose arguments are not known.
    pub signature: String,
    /// The caller's own id; empty for an imported receipt.
    pub operation_id: String,
    /// Whose operation it is; `None` for a stateless caller.
    pub conversation: Option<Conversation>,
    /// Where it was sent.
    pub session: SessionId,
    /// That session's folder then; a very long one is cut at its front.
    pub cwd: String,
    /// Message or batch.
    pub kind: ReceiptKind,
    /// The call that carries the current attempt.
    pub call_id: CallId,
    /// 1, and one more for each run after a sealed one (F3).
    pub attempt: u32,
    /// Where it stands.
    pub status: ReceiptStatus,
    /// Why it is uncertain, or who said what.
    pub reason: Option<String>,
    /// First reservation.
    pub created: Millis,
    /// Last change of status.
    pub updated: Millis,
    /// From when its 24 h count: `updated`, moved by clock jumps (F14).
    pub keep_from: Millis,
    /// References, as many as fit.
    pub resources: Vec<ResourceRefData>,
    /// How many references were left out; the session node's journal has them.
    pub resources_left_out: u32,
    /// Taken over from the original's state file; its key is the original's.
    pub imported: bool,
}

impl Receipt {
    /// Whether it stays until someone settles it.
    #[must_use]
    pub const fn unresolved(&self) -> bool {
        matches!(self.status, ReceiptStatus::Running | ReceiptStatus::Uncertain)
    }

    /// Whether its time is over at `now`. Unresolved ones never expire.
    #[must_use]
    pub const fn expired(&self, now: Millis) -> bool {
        !self.unresolved() && now.since(self.keep_from) >= RECEIPT_KEEP_MS
    }

    /// Moves to `status` at `at`.
    pub(super) fn change(&mut self, status: ReceiptStatus, reason: Option<&str>, at: Millis) {
        self.status = status;
        self.reason = reason.map(|text| clip_end(text, REASON_BYTES_MAX));
        self.updated = at;
        self.keep_from = at;
        self.fit();
    }

    /// Adds references, as many as fit; the rest is counted.
    pub(super) fn add_resources(&mut self, resources: &[ResourceRefData], left_out: u32) {
        for resource in resources {
            if self.resources.iter().any(|known| known.uri == resource.uri) {
                continue;
            }
            self.resources.push(resource.clone());
            if encoded_size(self) > RECEIPT_BYTES_MAX {
                self.resources.pop();
                self.resources_left_out = self.resources_left_out.saturating_add(1);
            }
        }
        self.resources_left_out = self.resources_left_out.saturating_add(left_out);
    }

    /// Cuts what may be cut until the record fits: references from the end, then the folder from its front, so that
    /// a reason always has its room.
    pub(super) fn fit(&mut self) {
        while encoded_size(self) > RECEIPT_BYTES_MAX && self.resources.pop().is_some() {
            self.resources_left_out = self.resources_left_out.saturating_add(1);
        }
        let reason = self.reason.as_ref().map_or(0, String::len);
        let room = RECEIPT_BYTES_MAX.saturating_sub(REASON_BYTES_MAX.saturating_sub(reason));
        let over = encoded_size(self).saturating_sub(room);
        if over > 0 && self.resources.is_empty() {
            self.cwd = clip_front(&self.cwd, self.cwd.len().saturating_sub(over));
        }
    }
}

/// What the record takes as a row of the state: itself, its key once more, and room for stamps that its references may
/// still get (up to 10 bytes each, the tag is there already).
fn encoded_size(receipt: &Receipt) -> usize {
    let stamps = 10 * receipt.resources.iter().filter(|resource| resource.source_read_at.is_none()).count();
    let key = receipt.key.0.len() + 1;
    postcard::experimental::serialized_size(receipt).map_or(usize::MAX, |size| size.saturating_add(stamps + key))
}

/// The identity of an operation: scope, kind and the caller's `operationId`.
#[must_use]
pub fn receipt_key(scope: ReceiptScope<'_>, kind: ReceiptKind, operation_id: &str) -> ReceiptKey {
    let (what, whose) = match scope {
        ReceiptScope::Conversation(conversation) => ("conversation", conversation.key()),
        ReceiptScope::Session(session) => ("session", session.0.clone()),
    };
    ReceiptKey(hash_of(&[what, &whose, kind.name(), operation_id]))
}

/// The key the original would have given a transfer with this `operationId`, so that an imported receipt still answers
/// its replay. `None` without a ChatGPT conversation: the original had none without.
pub(super) fn original_key(
    conversation: Option<&Conversation>,
    session: &SessionId,
    kind: ReceiptKind,
    operation_id: &str,
) -> Option<ReceiptKey> {
    let Some(Conversation::Chat(chat)) = conversation else { return None };
    Some(ReceiptKey(hash_of(&[chat, session.as_str(), kind.name(), "operation", operation_id])))
}

/// SHA-256 of a JSON array of strings: no two lists share a text.
fn hash_of(parts: &[&str]) -> String {
    let list: Vec<Value> = parts.iter().map(|part| Value::from(*part)).collect();
    sha256_hex(&Value::Array(list).to_string())
}

/// Canonical hash of the arguments: SHA-256 of the kind and of the JSON with sorted keys.
///
/// Left out at the top level: `operationId`, which is the identity itself, and `sessionId`, so that the same operation
/// asked again with its session spelled out, or after the default moved, is a replay and never a second run. Left out
/// in members of `files`: `download_url`, which rotates; `file_id` stays. A batch that came as Base64 must be decoded
/// to `calls` before it comes here.
#[must_use]
pub fn signature(kind: ReceiptKind, arguments: &Value) -> String {
    let mut canonical = sorted(arguments);
    if let Value::Object(fields) = &mut canonical {
        fields.retain(|name, _| name != "operationId" && name != "sessionId");
        if let Some(Value::Array(files)) = fields.get_mut("files") {
            for file in files.iter_mut().filter_map(Value::as_object_mut) {
                file.retain(|name, _| name != "download_url");
            }
        }
    }
    sha256_hex(&format!("{} {canonical}", kind.name()))
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut pairs: Vec<(&String, &Value)> = fields.iter().collect();
            pairs.sort_by_key(|(name, _)| *name);
            Value::Object(pairs.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn sha256_hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// At most `max` bytes of `text` from its start, whole characters.
pub(super) fn clip_end(text: &str, max: usize) -> String {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// At most `max` bytes of `text` from its end, whole characters, with `…` where something was cut.
fn clip_front(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut start = (text.len() - max + '…'.len_utf8()).min(text.len());
    while !text.is_char_boundary(start) {
        start += 1;
    }
    if max < '…'.len_utf8() { String::new() } else { format!("…{}", &text[start..]) }
}
