//! Why a message is not served, as an HTTP status and a JSON-RPC error. Pure.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

/// JSON-RPC 2.0: the text is not JSON.
pub(super) const PARSE_ERROR: i64 = -32700;
/// JSON-RPC 2.0: the JSON is not a request we can serve as it stands.
pub(super) const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC 2.0: no such method.
const METHOD_NOT_FOUND: i64 = -32601;
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
    /// The JSON-RPC error. Boxed: refusals are rare, results that may hold one are everywhere.
    pub(super) error: Box<RpcError>,
}

/// `error` of a JSON-RPC response, and whom it answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    /// What was expected, what was found, what to do.
    pub(super) message: String,
    pub(super) data: Option<Value>,
    /// The id of the request it answers, else null.
    pub(super) id: Value,
}

impl Refusal {
    /// A refusal with `-32600`, for faults of a request as a whole (not of one message in it).
    #[must_use]
    pub fn request(status: StatusCode, message: impl Into<String>) -> Self {
        let error = RpcError { code: INVALID_REQUEST, message: message.into(), data: None, id: Value::Null };
        Self { status, error: Box::new(error) }
    }

    /// The body: a JSON-RPC error response.
    #[must_use]
    pub fn body(&self) -> Bytes {
        let RpcError { code, message, data, id } = self.error.as_ref();
        let mut error = json!({ "code": code, "message": message });
        if let Some(data) = data {
            error["data"] = data.clone();
        }
        Bytes::from(json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string())
    }

    /// The same as an answer to the request `id`.
    #[must_use]
    pub(super) fn to(mut self, id: Value) -> Self {
        self.error.id = id;
        self
    }

    /// The same with another code.
    #[must_use]
    pub(super) fn coded(mut self, code: i64) -> Self {
        self.error.code = code;
        self
    }

    pub(super) fn parse_error(detail: &str) -> Self {
        let message = format!("parse error: expected one JSON-RPC message, got text that is not JSON ({detail})");
        Self::request(StatusCode::BAD_REQUEST, message).coded(PARSE_ERROR)
    }

    pub(super) fn invalid_message(detail: &str, id: Value) -> Self {
        let message = format!("invalid request: expected one JSON-RPC 2.0 message ({detail})");
        Self::request(StatusCode::BAD_REQUEST, message).to(id)
    }

    pub(super) fn batch() -> Self {
        let message = "invalid request: expected one JSON-RPC message, got a batch array; MCP has no batches since \
                       2025-06-18, send each message by itself";
        Self::request(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn unsupported_version(found: &str, supported: &[&str], id: Value) -> Self {
        let message = format!("unsupported protocol version: expected one of {}, got {found:?}", supported.join(", "));
        let mut refusal = Self::request(StatusCode::BAD_REQUEST, message).coded(UNSUPPORTED_VERSION).to(id);
        refusal.error.data = Some(json!({ "requested": found, "supported": supported }));
        refusal
    }

    pub(super) fn removed_method(method: &str, id: Value) -> Self {
        let message =
            format!("unknown method `{method}`: 2026-07-28 has no such method, every request stands by itself");
        Self::request(StatusCode::NOT_FOUND, message).coded(METHOD_NOT_FOUND).to(id)
    }

    pub(super) fn unknown_session(id: Value) -> Self {
        let message = "session not found: this Mcp-Session-Id is unknown here or has ended; send `initialize` again";
        Self::request(StatusCode::NOT_FOUND, message).coded(SESSION_NOT_FOUND).to(id)
    }

    pub(super) fn initialize_first(method: &str, id: Value) -> Self {
        let message = format!(
            "not initialized: `{method}` came without an Mcp-Session-Id; send `initialize` first and repeat the id it \
             answers with, or speak 2026-07-28 (protocolVersion and clientCapabilities in `_meta`)"
        );
        Self::request(StatusCode::BAD_REQUEST, message).to(id)
    }
}
