//! How one POSTed message is served: which era it speaks and which conversation it can belong to. Pure.

use serde_json::Value;

use super::{
    envelope::{Envelope, Kind},
    refusal::Refusal,
};

/// The revision that dropped `initialize`; versions are ISO dates and compare as text.
pub(super) const STATELESS_REVISION: &str = "2026-07-28";

/// What the headers say, as far as routing goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    /// `MCP-Protocol-Version`.
    pub(super) version: Option<&'a str>,
    /// Whether an `Mcp-Session-Id` came, and whether it is a live one.
    pub(super) session: SessionFact,
    /// Whether a header or the user agent shows ChatGPT.
    pub(super) chatgpt: bool,
}

/// The `Mcp-Session-Id` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SessionFact {
    /// None came.
    #[default]
    Absent,
    /// A session of this door.
    Live,
    /// Never ours, ended or expired.
    Unknown,
}

/// How to serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// 2026-07-28: stateless; closing the request cancels it.
    Modern,
    /// `initialize`: opens a session, whatever id it carries.
    Initialize,
    /// In the session that its id names.
    Session,
    /// An older client without a session that names its chat or is ChatGPT: served statelessly.
    Detached,
}

/// Decides how `envelope` is served.
///
/// # Errors
///
/// A refusal for a version nobody knows (400), a handshake in the era without one (404), an unknown session (404), or an
/// older client that did not shake hands and does not say which chat it is (400).
pub(super) fn route(facts: Facts<'_>, envelope: &Envelope, known_versions: &[&str]) -> Result<Route, Refusal> {
    let is_request = matches!(envelope.kind, Kind::Request(_));
    if is_request && envelope.method == "initialize" {
        // A request that itself says 2026-07-28 is of an era without this method.
        return match envelope.version.as_deref() {
            Some(version) if version >= STATELESS_REVISION => {
                Err(Refusal::removed_method(&envelope.method, envelope.id()))
            }
            _ => Ok(Route::Initialize),
        };
    }
    if let Some(version) = facts.version
        && envelope.version.is_none()
        && !known_versions.contains(&version)
    {
        return Err(Refusal::unsupported_version(version, known_versions, envelope.id()));
    }
    let modern_header = facts.version.is_some_and(|version| version >= STATELESS_REVISION);
    if modern_header || envelope.version.is_some() || (is_request && envelope.method == "server/discover") {
        return Ok(Route::Modern);
    }
    match facts.session {
        SessionFact::Live => Ok(Route::Session),
        SessionFact::Unknown => Err(Refusal::unknown_session(envelope.id())),
        SessionFact::Absent if facts.chatgpt || names_chat(envelope.chat.as_ref()) => Ok(Route::Detached),
        SessionFact::Absent => Err(Refusal::initialize_first(&envelope.method, envelope.id())),
    }
}

fn names_chat(value: Option<&Value>) -> bool {
    value.is_some_and(|value| super::caller::chat_value(value).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["2025-06-18", "2025-11-25", "2026-07-28"];

    fn message(method: &str, meta: &str) -> Envelope {
        let id = if method.starts_with("notifications/") { "" } else { r#""id":1,"# };
        let text = format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{"_meta":{meta}}}}}"#);
        Envelope::parse(text.as_bytes()).unwrap()
    }

    const MODERN_META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    const CHAT_META: &str = r#"{"openai/session":"v1/abc"}"#;

    /// Method, meta, version header, session, shows ChatGPT; the route, or the refusal's status.
    type Row<'a> = (&'a str, &'a str, Option<&'a str>, SessionFact, bool, Result<Route, u16>);

    #[test]
    fn every_combination_of_era_session_and_chat_has_one_route() {
        use SessionFact::{Absent, Live, Unknown};
        let none = "{}";
        let old = Some("2025-11-25");
        let new = Some("2026-07-28");
        let table: [Row<'_>; 22] = [
            ("initialize", none, None, Absent, false, Ok(Route::Initialize)),
            ("initialize", none, old, Unknown, false, Ok(Route::Initialize)),
            ("initialize", none, old, Live, true, Ok(Route::Initialize)),
            ("initialize", MODERN_META, new, Absent, false, Err(404)),
            ("server/discover", MODERN_META, new, Absent, false, Ok(Route::Modern)),
            ("server/discover", none, None, Absent, false, Ok(Route::Modern)),
            ("tools/list", MODERN_META, new, Absent, false, Ok(Route::Modern)),
            ("tools/list", MODERN_META, None, Absent, false, Ok(Route::Modern)),
            ("tools/list", none, new, Live, false, Ok(Route::Modern)),
            ("tools/call", MODERN_META, new, Unknown, true, Ok(Route::Modern)),
            ("notifications/cancelled", none, new, Absent, false, Ok(Route::Modern)),
            ("tools/list", none, old, Live, false, Ok(Route::Session)),
            ("tools/list", none, None, Live, false, Ok(Route::Session)),
            ("tools/call", CHAT_META, old, Live, true, Ok(Route::Session)),
            ("tools/list", none, old, Unknown, false, Err(404)),
            ("tools/call", CHAT_META, old, Unknown, true, Err(404)),
            ("tools/call", CHAT_META, old, Absent, false, Ok(Route::Detached)),
            ("tools/list", none, old, Absent, true, Ok(Route::Detached)),
            ("tools/list", none, old, Absent, false, Err(400)),
            ("notifications/initialized", none, old, Absent, false, Err(400)),
            ("tools/list", none, Some("2000-01-01"), Live, true, Err(400)),
            ("tools/list", none, Some("2099-01-01"), Absent, true, Err(400)),
        ];
        for (method, meta, version, session, chatgpt, expected) in table {
            let got = route(Facts { version, session, chatgpt }, &message(method, meta), &KNOWN);
            let got = got.map_err(|refusal| refusal.status.as_u16());
            assert_eq!(got, expected, "{method} {meta} {version:?} {session:?} chatgpt={chatgpt}");
        }
    }

    #[test]
    fn a_chat_of_the_wrong_type_names_none() {
        let got = route(Facts::default(), &message("tools/list", r#"{"openai/session":7}"#), &KNOWN);
        assert_eq!(got.unwrap_err().status, 400);
    }

    #[test]
    fn an_unknown_version_in_the_message_itself_is_left_to_the_handler() {
        let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}"#;
        let facts = Facts { version: Some("2099-01-01"), ..Facts::default() };
        assert_eq!(route(facts, &message("tools/list", meta), &KNOWN), Ok(Route::Modern));
    }

    #[test]
    fn the_refusal_answers_under_the_request_id_and_says_what_to_do() {
        let refusal = route(Facts::default(), &message("tools/list", "{}"), &KNOWN).unwrap_err();
        assert_eq!(refusal.error.id, 1);
        assert!(refusal.error.message.contains("initialize"), "{}", refusal.error.message);
    }
}
