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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sign(arguments: Value) -> String {
        signature(ReceiptKind::Call, &arguments)
    }

    fn widest() -> Receipt {
        Receipt {
            key: ReceiptKey("f".repeat(64)),
            signature: "f".repeat(64),
            operation_id: "\u{10FFFF}".repeat(128),
            conversation: Some(Conversation::Connection("c".repeat(256))),
            session: SessionId("s".repeat(96)),
            cwd: "/ä".repeat(3_000),
            kind: ReceiptKind::Call,
            call_id: CallId("c".repeat(64)),
            attempt: u32::MAX,
            status: ReceiptStatus::Running,
            reason: None,
            created: Millis(u64::MAX),
            updated: Millis(u64::MAX),
            keep_from: Millis(u64::MAX),
            resources: Vec::new(),
            resources_left_out: 0,
            imported: false,
        }
    }

    fn resource(n: usize) -> ResourceRefData {
        ResourceRefData {
            uri: format!("chappie://session/s/file/{n}/name"),
            name: "name".into(),
            mime_type: "text/plain".into(),
            size: u64::MAX,
            source_read_at: None,
        }
    }

    fn size(receipt: &Receipt) -> usize {
        postcard::to_stdvec(receipt).unwrap().len() + receipt.key.0.len() + 1
    }

    #[test]
    fn s8_1_a_signature_does_not_depend_on_the_order_of_keys() {
        let one = sign(json!({"a": 1, "b": {"x": [1, {"p": 1, "q": 2}], "y": null}}));
        assert_eq!(one, sign(json!({"b": {"y": null, "x": [1, {"q": 2, "p": 1}]}, "a": 1})));
        assert_ne!(one, sign(json!({"b": {"y": null, "x": [{"q": 2, "p": 1}, 1]}, "a": 1})));
        assert_eq!(one.len(), 64);
    }

    #[test]
    fn s8_1_only_the_url_of_a_file_rotates() {
        let with = |url: &str, id: &str| sign(json!({"files": [{"file_id": id, "download_url": url}], "paths": ["p"]}));
        assert_eq!(with("https://a", "f"), with("https://b", "f"));
        assert_ne!(with("https://a", "f"), with("https://a", "g"));
        let nested = |url: &str| sign(json!({"calls": [{"arguments": {"download_url": url}}]}));
        assert_ne!(nested("a"), nested("b"));
    }

    #[test]
    fn s8_1_the_target_and_the_identity_are_not_arguments_but_a_transfers_other_side_is() {
        let plain = sign(json!({"paths": ["p"]}));
        assert_eq!(plain, sign(json!({"paths": ["p"], "operationId": "o", "sessionId": "s"})));
        let to = |session: &str| sign(json!({"to": {"sessionId": session, "paths": ["p"]}}));
        assert_ne!(to("a"), to("b"));
        assert_ne!(plain, signature(ReceiptKind::Chat, &json!({"paths": ["p"]})));
    }

    #[test]
    fn s8_1_keys_of_different_operations_cannot_collide() {
        let chat = |id: &str| Conversation::Chat(id.into());
        let session = SessionId::from("chat:a");
        let keys = [
            receipt_key(ReceiptScope::Conversation(&chat("a")), ReceiptKind::Call, "o"),
            receipt_key(ReceiptScope::Conversation(&chat("a\",\"call")), ReceiptKind::Call, "o"),
            receipt_key(ReceiptScope::Conversation(&chat("a")), ReceiptKind::Chat, "o"),
            receipt_key(ReceiptScope::Conversation(&Conversation::Connection("a".into())), ReceiptKind::Call, "o"),
            receipt_key(ReceiptScope::Session(&session), ReceiptKind::Call, "o"),
        ];
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
        assert_eq!(keys[0], receipt_key(ReceiptScope::Conversation(&chat("a")), ReceiptKind::Call, "o"));
    }

    #[test]
    fn f26_the_widest_receipt_fits_with_its_reason_and_keeps_the_end_of_its_folder() {
        let mut receipt = widest();
        receipt.fit();
        assert!(size(&receipt) <= RECEIPT_BYTES_MAX - REASON_BYTES_MAX, "{}", size(&receipt));
        assert!(receipt.cwd.starts_with('…') && receipt.cwd.ends_with("/ä"), "{}", receipt.cwd);
        receipt.change(ReceiptStatus::Uncertain, Some(&"ü".repeat(500)), Millis(u64::MAX));
        assert_eq!(receipt.reason.as_ref().map(String::len), Some(REASON_BYTES_MAX));
        assert!(size(&receipt) <= RECEIPT_BYTES_MAX, "{}", size(&receipt));
    }

    #[test]
    fn f26_references_that_do_not_fit_are_counted_and_room_for_their_stamps_is_kept() {
        let mut receipt = Receipt { operation_id: "op".into(), cwd: "/w".into(), ..widest() };
        let resources: Vec<_> = (0..64).map(resource).collect();
        receipt.add_resources(&resources, 5);
        let kept = receipt.resources.len();
        assert!(kept > 2);
        assert_eq!(receipt.resources_left_out as usize, 64 - kept + 5);
        for resource in &mut receipt.resources {
            resource.source_read_at = Some(Millis(u64::MAX));
        }
        assert!(size(&receipt) <= RECEIPT_BYTES_MAX, "{}", size(&receipt));
    }

    #[test]
    fn the_same_reference_is_kept_once() {
        let mut receipt = Receipt { operation_id: "op".into(), cwd: "/w".into(), ..widest() };
        receipt.add_resources(&[resource(1), resource(1)], 0);
        assert_eq!((receipt.resources.len(), receipt.resources_left_out), (1, 0));
    }
}
