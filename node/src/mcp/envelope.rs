//! The outside of one JSON-RPC message: what has to be known to route it, read without building its arguments. Pure.
//! The full decoding is rmcp's.

use std::borrow::Cow;

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny},
};
use serde_json::Value;

use super::refusal::Refusal;

/// What a message is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Expects an answer under this id (a string or an integer).
    Request(Value),
    /// Expects none.
    Notification,
    /// Answers something that a server asked.
    Response,
}

/// The routing facts of one message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Envelope {
    /// What it is.
    pub(super) kind: Kind,
    /// The method; empty for a response.
    pub(super) method: String,
    /// `params._meta["io.modelcontextprotocol/protocolVersion"]`: a 2026-07-28 client states it in every request.
    pub(super) version: Option<String>,
    /// `params._meta["openai/session"]` as it came.
    pub(super) chat: Option<Value>,
    /// `params.requestId` of a cancellation.
    pub(super) cancels: Option<Value>,
}

impl Envelope {
    /// Reads the outside of `body`.
    ///
    /// # Errors
    ///
    /// A refusal with -32700 for what is not JSON and -32600 for JSON that is not one JSON-RPC 2.0 message of MCP.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Err(Refusal::batch());
        }
        let raw: RawMessage = serde_json::from_slice(body).map_err(|error| {
            use serde_json::error::Category;
            match error.classify() {
                Category::Data => Refusal::invalid_message(&error.to_string(), Value::Null),
                Category::Syntax | Category::Eof | Category::Io => Refusal::parse_error(&error.to_string()),
            }
        })?;
        raw.check()
    }

    /// The id an error about this message answers; `null` unless it is a request.
    pub(super) fn id(&self) -> Value {
        match &self.kind {
            Kind::Request(id) => id.clone(),
            Kind::Notification | Kind::Response => Value::Null,
        }
    }
}

/// A field that tells "absent" from "null".
#[derive(Default)]
enum Field {
    #[default]
    Absent,
    Present(Value),
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::Present)
    }
}

#[derive(Deserialize)]
struct RawMessage<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(default)]
    id: Field,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    params: Option<RawParams>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct RawParams {
    #[serde(rename = "_meta")]
    meta: Option<RawMeta>,
    #[serde(rename = "requestId")]
    request_id: Option<Value>,
}

#[derive(Default, Deserialize)]
struct RawMeta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Value>,
    #[serde(rename = "openai/session")]
    chat: Option<Value>,
}

impl RawMessage<'_> {
    fn check(self) -> Result<Envelope, Refusal> {
        let echo = match &self.id {
            Field::Present(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
            Field::Present(_) | Field::Absent => Value::Null,
        };
        if self.jsonrpc.as_deref() != Some("2.0") {
            return Err(Refusal::invalid_message("expected \"jsonrpc\": \"2.0\"", echo));
        }
        let answered = self.result.is_some() || self.error.is_some();
        let kind = match (&self.method, self.id) {
            (Some(_), _) if answered => {
                return Err(Refusal::invalid_message("it has both a method and a result or error", echo));
            }
            (Some(_), Field::Absent) => Kind::Notification,
            (Some(_), Field::Present(Value::String(_))) => Kind::Request(echo),
            (Some(_), Field::Present(Value::Number(number))) if number.as_i64().is_some() => Kind::Request(echo),
            (Some(_), Field::Present(other)) => {
                let found = format!("expected a string or an integer as id, got {other}");
                return Err(Refusal::invalid_message(&found, Value::Null));
            }
            (None, _) if answered => Kind::Response,
            (None, _) => return Err(Refusal::invalid_message("it has neither method nor result nor error", echo)),
        };
        let params = self.params.unwrap_or_default();
        let meta = params.meta.unwrap_or_default();
        Ok(Envelope {
            kind,
            method: self.method.map(Cow::into_owned).unwrap_or_default(),
            version: meta.version.as_ref().and_then(Value::as_str).map(str::to_owned),
            chat: meta.chat,
            cancels: params.request_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Result<Envelope, Refusal> {
        Envelope::parse(text.as_bytes())
    }

    #[test]
    fn a_call_shows_its_version_and_chat_without_its_arguments() {
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","arguments":{"a":[{}]},
            "_meta":{"openai/session":"v1/abc","io.modelcontextprotocol/protocolVersion":"2026-07-28","other":1}}}"#;
        let envelope = parse(text).unwrap();
        assert_eq!(envelope.kind, Kind::Request(json!(7)));
        assert_eq!(envelope.method, "tools/call");
        assert_eq!(envelope.version.as_deref(), Some("2026-07-28"));
        assert_eq!(envelope.chat, Some(json!("v1/abc")));
    }

    #[test]
    fn a_cancellation_names_its_request() {
        let envelope =
            parse(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#).unwrap();
        assert_eq!(envelope.kind, Kind::Notification);
        assert_eq!(envelope.cancels, Some(json!("a")));
    }

    #[test]
    fn answers_and_errors_of_clients_are_responses() {
        for text in [r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#] {
            assert_eq!(parse(text).unwrap().kind, Kind::Response, "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_a_parse_error() {
        for text in ["", "{", "hello", "{\"jsonrpc\":\"2.0\",", "\u{1}", "{} {}"] {
            assert_eq!(parse(text).unwrap_err().error.code, -32700, "{text:?}");
        }
        assert_eq!(Envelope::parse(b"\"\xff\"").unwrap_err().error.code, -32700);
    }

    #[test]
    fn what_is_not_one_message_is_an_invalid_request() {
        for text in [
            "1",
            "\"x\"",
            "null",
            "{}",
            "[]",
            r#" [{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":7}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
        ] {
            assert_eq!(parse(text).unwrap_err().error.code, -32600, "{text}");
        }
    }

    #[test]
    fn an_error_answers_under_the_id_when_there_is_a_usable_one() {
        assert_eq!(parse(r#"{"jsonrpc":"1.0","id":"k","method":"ping"}"#).unwrap_err().error.id, json!("k"));
        assert_eq!(parse("{}").unwrap_err().error.id, Value::Null);
    }

    #[test]
    fn nesting_without_end_is_refused_not_followed() {
        let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{}}}}}"#, "[".repeat(100_000));
        assert_eq!(parse(&deep).unwrap_err().error.code, -32700);
    }
}
