//! `import-state`: reads the original's `chappie.state.json`. Pure: bytes in, rows out.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    command::{ImportCounts, ImportRow, Reply},
    limits::{
        CONVERSATION_BYTES_MAX, IMPORT_BYTES_MAX, OPERATION_ID_CHARS_MAX, SESSION_BYTES_MAX, SETTLED_RESOURCES_MAX,
    },
    receipts::{Receipt, ReceiptKey, ReceiptKind, ReceiptScope, ReceiptStatus, ResourceRefData, receipt_key},
};
use crate::ids::{CallId, Conversation, Millis, SessionId};

/// A binding of the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedBinding {
    /// Chat id (`openai/session`).
    pub conversation: String,
    /// Its session.
    pub session: SessionId,
    /// Last use; `None` for the plain form, which had none.
    pub last_used: Option<Millis>,
}

impl From<ImportedBinding> for ImportRow {
    fn from(binding: ImportedBinding) -> Self {
        Self { chat: binding.conversation, session: binding.session, last_used: binding.last_used }
    }
}

/// What a state file holds for us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Bindings.
    pub bindings: Vec<ImportedBinding>,
    /// Receipts.
    pub receipts: Vec<Receipt>,
    /// What is not taken over.
    pub skipped: Vec<Skipped>,
}

impl From<Vec<ImportedBinding>> for Imported {
    fn from(bindings: Vec<ImportedBinding>) -> Self {
        Self { bindings, ..Self::default() }
    }
}

/// A part of the file that is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Skipped {
    /// Its name in the file.
    pub name: String,
    /// How many records.
    pub count: usize,
    /// Why.
    pub why: String,
}

/// How an import went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// Counts by what became of each row.
    #[serde(flatten)]
    pub counts: ImportCounts,
    /// What was not taken over.
    pub skipped: Vec<Skipped>,
    /// The store as it was before.
    pub backup: PathBuf,
}

impl ImportReport {
    pub(super) fn add(&mut self, reply: Reply) {
        let Reply::Imported(more) = reply else { return };
        let counts = &mut self.counts;
        counts.bindings_added += more.bindings_added;
        counts.bindings_replaced += more.bindings_replaced;
        counts.bindings_kept += more.bindings_kept;
        counts.bindings_expired += more.bindings_expired;
        counts.receipts_added += more.receipts_added;
        counts.receipts_kept += more.receipts_kept;
        counts.receipts_expired += more.receipts_expired;
        counts.no_room += more.no_room;
    }
}

/// Why a file is not a state file of the original. Nothing is imported then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Too large to be one.
    #[error("it has {found} bytes where a state file has at most {IMPORT_BYTES_MAX}; is it the right file?")]
    TooBig {
        /// Its size.
        found: u64,
    },
    /// Not JSON.
    #[error("it is not JSON: {0}; `import-state` takes the original's chappie.state.json")]
    NotJson(String),
    /// JSON of another kind.
    #[error("{place}: expected {expected}, found {found}; nothing was imported")]
    Unexpected {
        /// Where in the file.
        place: String,
        /// What would have been right.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
}

/// Reads a state file. Bindings may be plain strings or `{sessionId, lastUsedAt}`, mixed; receipts (`operations`) keep
/// their keys, and one that was running is uncertain now. Every other part is skipped by name.
///
/// # Errors
/// [`ImportError`] naming the first place that is wrong.
pub fn parse(bytes: &[u8]) -> Result<Imported, ImportError> {
    if bytes.len() > IMPORT_BYTES_MAX {
        return Err(ImportError::TooBig { found: bytes.len() as u64 });
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let file: Value = serde_json::from_slice(text).map_err(|error| ImportError::NotJson(error.to_string()))?;
    let Value::Object(file) = file else { return Err(unexpected("the file", "a JSON object", &file)) };
    let mut imported = Imported::default();
    for (name, value) in &file {
        match name.as_str() {
            "bindings" => imported.bindings = bindings(value)?,
            "operations" => imported.receipts = operations(value)?,
            other => imported.skipped.extend(skipped(other, value)),
        }
    }
    Ok(imported)
}

fn skipped(name: &str, value: &Value) -> Option<Skipped> {
    let count = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        Value::Null => 0,
        _ => 1,
    };
    let why = match name {
        "deliveries" => "late results stay with their session: read them in its history",
        "deliveredIds" => "they only guard `deliveries`, which are not taken over",
        "questions" => "questions are asked anew",
        _ => "not a part of the state that is known",
    };
    (count > 0).then(|| Skipped { name: name.to_owned(), count, why: why.to_owned() })
}

fn bindings(value: &Value) -> Result<Vec<ImportedBinding>, ImportError> {
    let Value::Object(rows) = value else { return Err(unexpected("bindings", "an object", value)) };
    let row = |(chat, value): (&String, &Value)| {
        let place = format!("bindings[{chat:?}]");
        short("the key", &place, chat, CONVERSATION_BYTES_MAX)?;
        let (session, last_used) = match value {
            Value::String(session) => (session.clone(), None),
            Value::Object(fields) => {
                let used = fields.get("lastUsedAt").map(|used| moment(&format!("{place}.lastUsedAt"), used));
                (text(fields, &place, "sessionId", SESSION_BYTES_MAX)?, used.transpose()?)
            }
            other => return Err(unexpected(&place, "a session id or {sessionId, lastUsedAt}", other)),
        };
        short("a session id", &place, &session, SESSION_BYTES_MAX)?;
        Ok(ImportedBinding { conversation: chat.clone(), session: SessionId(session), last_used })
    };
    rows.iter().map(row).collect()
}

fn operations(value: &Value) -> Result<Vec<Receipt>, ImportError> {
    let Value::Array(rows) = value else { return Err(unexpected("operations", "an array", value)) };
    rows.iter().enumerate().map(|(n, row)| operation(&format!("operations[{n}]"), row)).collect()
}

fn operation(place: &str, value: &Value) -> Result<Receipt, ImportError> {
    let Value::Object(fields) = value else { return Err(unexpected(place, "an object", value)) };
    let conversation = Conversation::Chat(text(fields, place, "chatId", CONVERSATION_BYTES_MAX)?);
    let updated = fields.get("updatedAt").unwrap_or(&Value::Null);
    let updated = moment(&format!("{place}.updatedAt"), updated)?;
    let kind =
        if fields.get("kind").and_then(Value::as_str) == Some("chat") { ReceiptKind::Chat } else { ReceiptKind::Call };
    let named = fields.get("operationId").and_then(Value::as_str).unwrap_or_default();
    let named = if named.chars().count() <= OPERATION_ID_CHARS_MAX { named } else { "" };
    // A record that names its operation gets our key; else the original's stands, which a replay can compute.
    let key = match named {
        "" => ReceiptKey(text(fields, place, "key", 64)?),
        named => receipt_key(ReceiptScope::Conversation(&conversation), kind, named),
    };
    let status = text(fields, place, "status", 64)?;
    let (status, reason) = match status.as_str() {
        "completed" => (ReceiptStatus::Completed, None),
        "running" => (ReceiptStatus::Uncertain, Some("it was running when the original's state was saved".to_owned())),
        other => (ReceiptStatus::Uncertain, Some(format!("the original called it {other}"))),
    };
    let (resources, resources_left_out) = resources(place, fields.get("resources").unwrap_or(&Value::Null))?;
    let mut receipt = Receipt {
        key,
        signature: String::new(),
        operation_id: named.to_owned(),
        conversation: Some(conversation),
        session: SessionId(text(fields, place, "sessionId", SESSION_BYTES_MAX)?),
        cwd: fields.get("cwd").and_then(Value::as_str).unwrap_or_default().to_owned(),
        kind,
        call_id: CallId(String::new()),
        attempt: 1,
        status,
        reason,
        created: updated,
        updated,
        keep_from: updated,
        resources,
        resources_left_out,
        imported: true,
    };
    receipt.fit();
    Ok(receipt)
}

fn resources(place: &str, value: &Value) -> Result<(Vec<ResourceRefData>, u32), ImportError> {
    let rows = match value {
        Value::Null => return Ok((Vec::new(), 0)),
        Value::Array(rows) => rows,
        other => return Err(unexpected(&format!("{place}.resources"), "an array", other)),
    };
    let reference = |(n, row): (usize, &Value)| {
        let place = format!("{place}.resources[{n}]");
        let Value::Object(fields) = row else { return Err(unexpected(&place, "an object", row)) };
        let read = fields.get("sourceReadAt").map(|read| moment(&format!("{place}.sourceReadAt"), read));
        Ok(ResourceRefData {
            uri: text(fields, &place, "uri", usize::MAX)?,
            name: fields.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            mime_type: fields.get("mimeType").and_then(Value::as_str).unwrap_or_default().to_owned(),
            size: fields.get("size").and_then(Value::as_u64).unwrap_or_default(),
            source_read_at: read.transpose()?,
        })
    };
    let left_out = u32::try_from(rows.len().saturating_sub(SETTLED_RESOURCES_MAX)).unwrap_or(u32::MAX);
    let kept = rows.iter().take(SETTLED_RESOURCES_MAX).enumerate().map(reference).collect::<Result<_, _>>()?;
    Ok((kept, left_out))
}

/// A text field, present, not blank, at most `max` bytes.
fn text(fields: &Map<String, Value>, place: &str, name: &str, max: usize) -> Result<String, ImportError> {
    let place = format!("{place}.{name}");
    match fields.get(name) {
        Some(Value::String(text)) => {
            short("a text", &place, text, max)?;
            Ok(text.clone())
        }
        other => Err(unexpected(&place, "a text", other.unwrap_or(&Value::Null))),
    }
}

fn short(what: &'static str, place: &str, text: &str, max: usize) -> Result<(), ImportError> {
    let fail = |found| Err(ImportError::Unexpected { place: place.to_owned(), expected: what, found });
    match text.len() {
        _ if text.trim().is_empty() => fail("an empty one".to_owned()),
        length if length > max => fail(format!("one of {length} bytes, where at most {max} are taken")),
        _ => Ok(()),
    }
}

/// A time stamp: milliseconds since 1970 as the original writes it, or RFC 3339.
fn moment(place: &str, value: &Value) -> Result<Millis, ImportError> {
    let expected = "a time stamp in milliseconds or as RFC 3339";
    let found = match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64().filter(|float| (0.0..9.0e15).contains(float))?;
            format!("{float:.0}").parse().ok()
        }),
        Value::String(text) => {
            text.parse::<jiff::Timestamp>().ok().and_then(|stamp| u64::try_from(stamp.as_millisecond()).ok())
        }
        _ => None,
    };
    found.map(Millis).ok_or_else(|| unexpected(place, expected, value))
}

fn unexpected(place: &str, expected: &'static str, found: &Value) -> ImportError {
    let found = match found {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    ImportError::Unexpected { place: place.to_owned(), expected, found }
}

#[cfg(test)]
mod tests;
