//! Who asks: the chat and the host's own request id, from `_meta` first and HTTP headers second. Pure.

use http::HeaderMap;
use serde_json::Value;

use crate::content::JsonObject;

/// Longest conversation or request id taken over, in bytes. ChatGPT's are under 100; a longer one is treated as absent so
/// that no client can grow keys that are replicated.
const ID_BYTES_MAX: usize = 512;

/// ChatGPT's conversation in `_meta`: an opaque correlator, never a credential.
const META_CHAT: &str = "openai/session";
/// The same on some requests as a header.
const HEADER_CHAT: &str = "x-openai-session";
/// The host's request id that otunnel copies into `_meta`.
const META_REQUEST: &str = "otunnel/requestId";
/// The same as a header.
const HEADER_REQUEST: &str = "x-request-id";
/// How ChatGPT's MCP client introduces itself (`openai-mcp/1.0.0`).
const CHATGPT_AGENT: &str = "openai-mcp";

/// The chat that `_meta` names.
pub(super) fn chat_in_meta(meta: &JsonObject) -> Option<String> {
    chat_value(meta.get(META_CHAT)?)
}

/// The chat in the value of `_meta["openai/session"]`.
pub(super) fn chat_value(value: &Value) -> Option<String> {
    usable(value.as_str()?)
}

/// The chat that a header names.
pub(super) fn chat_in_headers(headers: &HeaderMap) -> Option<String> {
    header(headers, HEADER_CHAT)
}

/// The host's own request id in `_meta`.
pub(super) fn request_in_meta(meta: &JsonObject) -> Option<String> {
    usable(meta.get(META_REQUEST)?.as_str()?)
}

/// The host's own request id in a header.
pub(super) fn request_in_headers(headers: &HeaderMap) -> Option<String> {
    header(headers, HEADER_REQUEST)
}

/// Whether the client calls itself ChatGPT. Its requests other than tool calls carry no chat, so one that lost its
/// MCP session could not even list the tools without this.
pub(super) fn is_chatgpt(headers: &HeaderMap) -> bool {
    let agent = headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with(CHATGPT_AGENT))
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    usable(headers.get(name)?.to_str().ok()?.trim())
}

fn usable(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= ID_BYTES_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn meta(value: Value) -> JsonObject {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_chat_is_a_string_of_1_to_512_bytes() {
        let longest = "x".repeat(ID_BYTES_MAX);
        assert_eq!(chat_in_meta(&meta(json!({ META_CHAT: longest }))), Some(longest));
        for bad in [json!(""), json!("x".repeat(ID_BYTES_MAX + 1)), json!(5), json!(null), json!(["a"])] {
            assert_eq!(chat_in_meta(&meta(json!({ META_CHAT: bad }))), None, "{bad}");
        }
        assert_eq!(chat_in_meta(&meta(json!({}))), None);
    }

    #[test]
    fn headers_name_the_chat_and_the_request() {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER_CHAT, HeaderValue::from_static("v1/abc"));
        headers.insert(HEADER_REQUEST, HeaderValue::from_static("wfr_1"));
        assert_eq!(chat_in_headers(&headers).as_deref(), Some("v1/abc"));
        assert_eq!(request_in_headers(&headers).as_deref(), Some("wfr_1"));
        headers.insert(HEADER_CHAT, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(chat_in_headers(&headers), None);
    }

    #[test]
    fn chatgpt_is_known_by_its_user_agent() {
        let mut headers = HeaderMap::new();
        assert!(!is_chatgpt(&headers));
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static("openai-mcp/1.0.0 (ChatGPT)"));
        assert!(is_chatgpt(&headers));
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static("curl/8"));
        assert!(!is_chatgpt(&headers));
    }
}
