//! The ChatGPT double against scripted servers: each switch changes what is on the wire or what the model gets. These
//! tests need no product; they keep the double honest.

use std::time::Duration;

use chappie_tests::{
    chatgpt::{ChatGpt, Outcome, Switches},
    client::Revision,
    recorder::{Recorded, Recorder, Reply},
    tokens,
};
use serde_json::{Value, json};

/// A server of the 2025-11-25 revision that knows nothing newer and issues a session id.
fn older_server(request: &Recorded) -> Reply {
    match request.rpc() {
        "server/discover" => Reply::error(request, 400, -32600, "unsupported"),
        "initialize" => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "older"}});
            let body = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result});
            Reply::Json(200, vec![("mcp-session-id", "issued-7".to_owned())], body)
        }
        "tools/call" => Reply::result(request, &small_answer()),
        "tools/list" => Reply::result(request, &json!({"tools": []})),
        _ => Reply::Accepted,
    }
}

/// A server of the 2026-07-28 revision.
fn newer_server(request: &Recorded) -> Reply {
    match request.rpc() {
        "server/discover" => Reply::result(request, &json!({"supportedVersions": ["2026-07-28"]})),
        _ => older_server(request),
    }
}

fn small_answer() -> Value {
    json!({"content": [{"type": "text", "text": "hello"}], "structuredContent": {"text": "hello"}})
}

/// What the server saw of one conversation with one call.
async fn seen(server: fn(&Recorded) -> Reply, switches: Switches) -> Vec<Recorded> {
    let recorder = Recorder::start(None, server).await;
    let double = ChatGpt::connect(recorder.url(), "v1/chat", switches).await.expect("connects");
    let _ = double.call("read", json!({"path": "a"})).await.answered();
    recorder.seen()
}

fn rpcs(seen: &[Recorded]) -> Vec<&str> {
    seen.iter().map(Recorded::rpc).collect()
}

#[tokio::test]
async fn discover_first_sends_the_probe_with_its_id_before_all_else() {
    let with = seen(newer_server, Switches { discover_first: true, ..Switches::none() }).await;
    assert_eq!(rpcs(&with), ["server/discover", "tools/call"]);
    assert_eq!(with[0].body["id"], "openai-mcp-discover");
    assert_eq!(with[0].meta()["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    let without = seen(newer_server, Switches::none()).await;
    assert_eq!(rpcs(&without), ["initialize", "notifications/initialized", "tools/call"]);
}

#[tokio::test]
async fn fall_back_goes_on_with_initialize_after_a_400() {
    let switches = Switches { discover_first: true, fall_back: true, ..Switches::none() };
    let with = seen(older_server, switches.clone()).await;
    assert_eq!(rpcs(&with), ["server/discover", "initialize", "notifications/initialized", "tools/call"]);
    assert_eq!(with[1].body["params"]["protocolVersion"], "2025-11-25");
    assert_eq!(with[1].body["params"]["clientInfo"], json!({"name": "openai-mcp", "version": "1.0.0"}));

    let recorder = Recorder::start(None, older_server).await;
    let refused = ChatGpt::connect(recorder.url(), "v1/chat", Switches { fall_back: false, ..switches }).await;
    assert!(refused.is_err(), "without the switch there is nothing after the probe");
    assert_eq!(rpcs(&recorder.seen()), ["server/discover"]);
}

#[tokio::test]
async fn a_server_that_knows_2026_07_28_is_used_without_a_handshake() {
    let recorder = Recorder::start(None, newer_server).await;
    let double = ChatGpt::connect(recorder.url(), "v1/chat", Switches::chatgpt()).await.expect("connects");
    assert_eq!(double.revision(), Revision::Stateless);
    let _ = double.call("read", json!({})).await.answered();
    let seen = recorder.seen();
    assert_eq!(seen[1].header("mcp-method"), Some("tools/call"));
    assert_eq!(seen[1].header("mcp-name"), Some("read"));
    assert_eq!(seen[1].header("mcp-protocol-version"), Some("2026-07-28"));
}

#[tokio::test]
async fn openai_meta_puts_all_six_keys_on_tool_calls() {
    let keys = ["session", "subject", "organization", "locale", "userAgent", "userLocation"];
    let with = seen(older_server, Switches { openai_meta: true, ..Switches::none() }).await;
    let call = with.last().expect("a call");
    for key in keys {
        assert!(!call.meta()[format!("openai/{key}")].is_null(), "{key} in {}", call.body);
    }
    assert_eq!(call.meta()["openai/session"], "v1/chat");
    let without = seen(older_server, Switches::none()).await;
    for key in keys {
        assert!(without.last().expect("a call").meta()[format!("openai/{key}")].is_null());
    }
}

#[tokio::test]
async fn openai_headers_name_the_agent_the_session_and_the_subject() {
    let with = seen(older_server, Switches { openai_headers: true, ..Switches::none() }).await;
    let call = with.last().expect("a call");
    assert_eq!(call.header("x-openai-session"), Some("v1/chat"));
    assert_eq!(call.header("x-openai-subject"), Some("v1/subject"));
    assert_eq!(call.header("user-agent"), Some("openai-mcp/1.0.0"));
    let handshake = &with[0];
    assert_eq!(handshake.header("user-agent"), Some("openai-mcp/1.0.0"));
    assert_eq!(handshake.header("x-openai-session"), None, "only tool calls carry it");
    let without = seen(older_server, Switches::none()).await;
    for name in ["x-openai-session", "x-openai-subject", "user-agent"] {
        assert_eq!(without.last().expect("a call").header(name), None);
    }
}

#[tokio::test]
async fn drop_session_id_never_sends_back_what_the_server_issued() {
    let with = seen(older_server, Switches { drop_session_id: true, ..Switches::none() }).await;
    assert!(with.iter().all(|request| request.header("mcp-session-id").is_none()));
    let without = seen(older_server, Switches::none()).await;
    assert_eq!(without.last().expect("a call").header("mcp-session-id"), Some("issued-7"));
}

#[tokio::test]
async fn cut_at_gives_up_on_a_silent_server_by_closing_the_connection() {
    fn silent(request: &Recorded) -> Reply {
        if request.rpc() == "tools/call" { Reply::Silence } else { older_server(request) }
    }
    let recorder = Recorder::start(None, silent).await;
    let switches = Switches { cut_at: Some(Duration::from_millis(300)), ..Switches::none() };
    let double = ChatGpt::connect(recorder.url(), "v1/chat", switches).await.expect("connects");
    let Outcome::Cut { after } = double.call("bash", json!({})).await else { panic!("not given up") };
    assert!(after >= Duration::from_millis(300));
    assert!(recorder.seen_of("notifications/cancelled").is_empty(), "a cut is not a cancellation");

    let patient = ChatGpt::connect(recorder.url(), "v1/chat", Switches::none()).await.expect("connects");
    let waits = tokio::time::timeout(Duration::from_millis(900), patient.call("bash", json!({}))).await;
    assert!(waits.is_err(), "without the switch the double waits three times as long and longer");
}

#[tokio::test]
async fn duplicates_send_the_same_call_twice_under_two_ids() {
    let with = seen(older_server, Switches { duplicates: true, no_progress_token: true, ..Switches::none() }).await;
    let calls: Vec<_> = with.iter().filter(|request| request.rpc() == "tools/call").collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].body["params"], calls[1].body["params"]);
    assert_ne!(calls[0].body["id"], calls[1].body["id"]);
    let without = seen(older_server, Switches::none()).await;
    assert_eq!(without.iter().filter(|request| request.rpc() == "tools/call").count(), 1);
}

#[tokio::test]
async fn truncate_at_counts_content_and_structured_content_together() {
    fn long(request: &Recorded) -> Reply {
        if request.rpc() != "tools/call" {
            return older_server(request);
        }
        let text = "some words of an answer ".repeat(1_500);
        let content = json!([{"type": "text", "text": text}]);
        Reply::result(request, &json!({"content": content, "structuredContent": {"text": text}}))
    }
    let recorder = Recorder::start(None, long).await;
    let view = |limit| {
        let url = recorder.url().to_owned();
        async move {
            let switches = Switches { truncate_at: limit, ..Switches::none() };
            let double = ChatGpt::connect(&url, "v1/chat", switches).await.expect("connects");
            double.call("read", json!({})).await.answered()
        }
    };
    let whole = view(None).await;
    assert!(!whole.truncated);
    let once = tokens::count(&whole.answer.text());
    assert!(once < 10_000, "one copy alone fits: {once} tokens");
    assert!(tokens::count(&whole.text) > 10_000, "both together do not");
    let cut = view(Some(10_000)).await;
    assert!(cut.truncated);
    assert!(tokens::count(&cut.text) <= 10_000);
    assert!(whole.text.starts_with(&cut.text));
}

#[tokio::test]
async fn no_progress_token_leaves_it_out() {
    let with = seen(older_server, Switches { no_progress_token: true, ..Switches::none() }).await;
    assert!(with.last().expect("a call").meta()["progressToken"].is_null());
    let without = seen(older_server, Switches::none()).await;
    assert!(!without.last().expect("a call").meta()["progressToken"].is_null());
}
