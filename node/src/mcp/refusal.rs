//! Why a message is not served, as an HTTP status and a JSON-RPC error. Pure.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

/// JSON-RPC 2.0: the text is not JSON.
pub(super) const PARSE_ERROR: i64 = -32700;
/// JSON-RPC 2.0: the JSON is not a request we can serve as it stands.
pub(super) const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC 2.0: our own fault.
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// MCP 2026-07-28: unsupported protocol version; `data.supported` lists ours.
const UNSUPPORTED_VERSION: i64 = -32022;
/// What the official SDKs answer for a session they do not know.
const SESSION_NOT_FOUND: i64 = -32001;

/// One refusal, ready for either transport.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status over HTTP.
    pub status: StatusCode,
    /// The JSON-RPC error code.
    pub code: i64,
    /// What was expected, what was found, what to do.
    pub message: String,
    /// `error.data`, when there is any.
    pub data: Option<Value>,
    /// The id of the request it answers, else null.
    pub id: Value,
}

impl Refusal {
    /// A refusal with `-32600`, for faults of a request as a whole (not of one message in it).
    #[must_use]
    pub fn request(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, code: INVALID_REQUEST, message: message.into(), data: None, id: Value::Null }
    }

    /// The body: a JSON-RPC error response.
    #[must_use]
    pub fn body(&self) -> Bytes {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        Bytes::from(json!({ "jsonrpc": "2.0", "id": self.id, "error": error }).to_string())
    }

    pub(super) fn parse_error(detail: &str) -> Self {
        let message = format!("parse error: expected one JSON-RPC message, got text that is not JSON ({detail})");
        Self { code: PARSE_ERROR, ..Self::request(StatusCode::BAD_REQUEST, message) }
    }

    pub(super) fn invalid_message(detail: &str, id: Value) -> Self {
        let message = format!("invalid request: expected one JSON-RPC 2.0 message ({detail})");
        Self { id, ..Self::request(StatusCode::BAD_REQUEST, message) }
    }

    pub(super) fn batch() -> Self {
        Self::request(
            StatusCode::BAD_REQUEST,
            "invalid request: expected one JSON-RPC message, got a batch array; MCP has no batches since 2025-06-18, \
             send each message by itself",
        )
    }

    pub(super) fn unsupported_version(found: &str, supported: &[&str], id: Value) -> Self {
        Self {
            code: UNSUPPORTED_VERSION,
            data: Some(json!({ "requested": found, "supported": supported })),
            id,
            ..Self::request(
                StatusCode::BAD_REQUEST,
                format!("unsupported protocol version: expected one of {}, got {found:?}", supported.join(", ")),
            )
        }
    }

    pub(super) fn unknown_session(id: Value) -> Self {
        Self {
            code: SESSION_NOT_FOUND,
            id,
            ..Self::request(
                StatusCode::NOT_FOUND,
                "session not found: this Mcp-Session-Id is unknown here or has ended; send `initialize` again",
            )
        }
    }

    pub(super) fn initialize_first(method: &str, id: Value) -> Self {
        Self {
            id,
            ..Self::request(
                StatusCode::BAD_REQUEST,
                format!(
                    "not initialized: `{method}` came without an Mcp-Session-Id; send `initialize` first and repeat the \
                     id it answers with, or speak 2026-07-28 (protocolVersion and clientCapabilities in `_meta`)"
                ),
            )
        }
    }
}
