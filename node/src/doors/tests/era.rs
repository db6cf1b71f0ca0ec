//! Which era a request speaks, which session it is in and whose it is.

use serde_json::{Value, json};

use super::{
    Stand,
    wire::{Response, call, in_chat, initialize, modern, request},
};

fn error_code(response: &Response) -> i64 {
    let body = response.json();
    assert_eq!(body["jsonrpc"], "2.0");
    assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    body["error"]["code"].as_i64().unwrap()
}

#[tokio::test]
async fn dev_24_a_session_id_is_issued_honoured_and_replaced() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    let listed = client.post(&request(1, "tools/list", json!({}))).await;
    assert_eq!((listed.status, error_code(&listed)), (400, -32600), "a request before initialize");
    assert!(listed.json()["error"]["message"].as_str().unwrap().contains("initialize"));
    assert_eq!(listed.json()["id"], 1);
    let first = client.initialize().await;
    assert_eq!(client.post(&request(2, "tools/list", json!({}))).await.status, 200);

    // Another door knows nothing of the id: as after a restart of the node.
    let restarted = Stand::open().await;
    let mut client = restarted.client().await;
    client.set("mcp-session-id", &first);
    client.set("mcp-protocol-version", "2025-11-25");
    let old = client.post(&request(3, "tools/list", json!({}))).await;
    assert_eq!((old.status, error_code(&old)), (404, -32001));
    let again = client.post(&initialize()).await;
    assert_eq!(again.status, 200);
    let second = again.header("mcp-session-id").unwrap().to_owned();
    assert_ne!(second, first);
    client.set("mcp-session-id", &second);
    let called = client.post(&call(4, "echo", json!({}))).await;
    assert_eq!((called.status, called.json()["result"]["isError"].clone()), (200, json!(false)));
}

#[tokio::test]
async fn dev_24_delete_ends_a_session_once() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    client.send_body("DELETE", b"").await;
    assert_eq!(client.response().await.status, 204);
    assert_eq!(client.post(&request(1, "tools/list", json!({}))).await.status, 404);
    client.send_body("DELETE", b"").await;
    assert_eq!(client.response().await.status, 404);
}

#[tokio::test]
async fn initialize_answers_with_name_version_instructions_and_the_asked_revision() {
    let stand = Stand::open().await;
    for version in ["2025-11-25", "2025-06-18"] {
        let mut message = initialize();
        message["params"]["protocolVersion"] = json!(version);
        let result = stand.client().await.post(&message).await.json()["result"].clone();
        assert_eq!(result["protocolVersion"], version);
        assert_eq!(result["serverInfo"], json!({"name": "chappie", "version": env!("CARGO_PKG_VERSION")}));
        assert_eq!(result["instructions"], "Scripted instructions.");
        assert_eq!(result["capabilities"], json!({"tools": {}, "resources": {}}));
    }
    let mut message = initialize();
    message["params"]["protocolVersion"] = json!("2026-07-28");
    let result = stand.client().await.post(&message).await.json()["result"].clone();
    assert_eq!(result["protocolVersion"], "2025-11-25", "2026-07-28 has no handshake");
}

#[tokio::test]
async fn the_2026_07_28_revision_needs_no_handshake_and_gets_no_session() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.modern("server/discover", None);
    let discovered = client.post(&modern(request(1, "server/discover", json!({})))).await;
    assert_eq!(discovered.status, 200);
    assert_eq!(discovered.header("mcp-session-id"), None);
    let result = discovered.json()["result"].clone();
    assert!(result["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")));
    assert_eq!(result["instructions"], "Scripted instructions.");
    client.modern("tools/list", None);
    let listed = client.post(&modern(request(2, "tools/list", json!({})))).await.json()["result"].clone();
    assert_eq!(listed["resultType"], "complete");
    assert_eq!((listed["ttlMs"].clone(), listed["cacheScope"].clone()), (json!(300_000), json!("private")));
    client.modern("tools/call", Some("echo"));
    let called = client.post(&modern(call(3, "echo", json!({"a": 1})))).await;
    assert_eq!(called.structured()["arguments"], json!({"a": 1}));
    assert_eq!(called.structured()["conversation"], Value::Null, "stateless and nameless");
}

#[tokio::test]
async fn a_2026_07_28_request_ignores_a_session_id_of_the_older_era() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.set("mcp-session-id", "never-ours");
    client.modern("tools/call", Some("echo"));
    let called = client.post(&modern(call(1, "echo", json!({})))).await;
    assert_eq!(called.status, 200);
    assert_eq!(called.structured()["conversation"], Value::Null);
}

#[tokio::test]
async fn headers_that_contradict_a_2026_07_28_body_are_a_mismatch() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.modern("tools/call", Some("hold"));
    let wrong_name = client.post(&modern(call(1, "echo", json!({})))).await;
    assert_eq!((wrong_name.status, error_code(&wrong_name)), (400, -32020));
    client.modern("tools/list", None);
    client.set("mcp-protocol-version", "2025-11-25");
    let wrong_version = client.post(&modern(request(2, "tools/list", json!({})))).await;
    assert_eq!((wrong_version.status, error_code(&wrong_version)), (400, -32020));
    client.modern("nothing/such", None);
    let unknown = client.post(&modern(request(3, "nothing/such", json!({})))).await;
    assert_eq!((unknown.status, error_code(&unknown)), (404, -32601));
}

#[tokio::test]
async fn an_unsupported_version_is_a_400_that_lists_ours_in_every_position() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    for version in ["invalid-protocol-version", "2000-01-01", "2099-01-01"] {
        client.set("mcp-protocol-version", version);
        let refused = client.post(&request(1, "tools/list", json!({}))).await;
        assert_eq!((refused.status, error_code(&refused)), (400, -32022), "{version}");
        let supported = refused.json()["error"]["data"]["supported"].clone();
        assert!(supported.as_array().unwrap().contains(&json!("2025-11-25")), "{supported}");
    }
    client.set("mcp-protocol-version", "2099-01-01");
    client.set("mcp-method", "tools/list");
    let mut message = modern(request(2, "tools/list", json!({})));
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
    let refused = client.post(&message).await;
    assert_eq!((refused.status, error_code(&refused)), (400, -32022));
}

#[tokio::test]
async fn an_older_client_that_lost_its_session_is_served_when_it_names_its_chat() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    client.set("mcp-protocol-version", "2025-11-25");
    let called = client.post(&in_chat(call(1, "echo", json!({})), "v1/abc")).await;
    assert_eq!(called.structured()["conversation"], "chat:v1/abc");
    assert_eq!(called.header("mcp-session-id"), None);
    client.set("x-openai-session", "v1/def");
    assert_eq!(client.post(&request(2, "tools/list", json!({}))).await.status, 200);
    assert_eq!(client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await.status, 202);
    assert_eq!(client.post(&call(3, "echo", json!({}))).await.structured()["conversation"], "chat:v1/def");

    let mut scanner = stand.client().await;
    scanner.set("user-agent", "openai-mcp/1.0.0");
    assert_eq!(scanner.post(&request(4, "tools/list", json!({}))).await.status, 200);
    assert_eq!(scanner.post(&call(5, "echo", json!({}))).await.structured()["conversation"], Value::Null);
}

#[tokio::test]
async fn the_conversation_is_the_chat_else_the_session_else_none() {
    let stand = Stand::open().await;
    let mut client = stand.client().await;
    let id = client.initialize().await;
    let session = client.post(&call(1, "echo", json!({}))).await.structured();
    assert_eq!(session["conversation"], format!("conn:mcp:{id}"));
    let chat = client.post(&in_chat(call(2, "echo", json!({})), "v1/abc")).await.structured();
    assert_eq!(chat["conversation"], "chat:v1/abc");
    let endless = client.post(&in_chat(call(3, "echo", json!({})), &"x".repeat(513))).await.structured();
    assert_eq!(endless["conversation"], format!("conn:mcp:{id}"), "too long to be one");
    client.set("x-request-id", "wfr_1/2");
    assert_eq!(client.post(&call(4, "echo", json!({}))).await.structured()["requestId"], "wfr_1/2");
    let mut message = call(5, "echo", json!({}));
    message["params"]["_meta"]["otunnel/requestId"] = json!("wfr_meta");
    assert_eq!(client.post(&message).await.structured()["requestId"], "wfr_meta");
    // Chats in the second era too.
    client.modern("tools/call", Some("echo"));
    let chat = client.post(&in_chat(modern(call(6, "echo", json!({}))), "v1/abc")).await.structured();
    assert_eq!(chat["conversation"], "chat:v1/abc");
}

#[tokio::test]
async fn tools_are_listed_in_their_order_and_an_unknown_one_is_invalid_params() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let listed = client.post(&request(1, "tools/list", json!({}))).await.json()["result"].clone();
    let names: Vec<_> = listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["echo", "hold", "big", "boom"]);
    assert_eq!(listed.get("ttlMs"), None, "no field of a later revision");
    let unknown = client.post(&call(2, "nope", json!({}))).await;
    assert_eq!((unknown.status, error_code(&unknown)), (200, -32602));
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("nope") && message.contains("echo"), "{message}");
}

#[tokio::test]
async fn arguments_that_are_no_object_are_a_tool_error_the_model_can_read() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    for arguments in [json!([1]), json!("text"), json!(7), json!(true)] {
        let result = client.post(&call(1, "echo", arguments.clone())).await.json()["result"].clone();
        assert_eq!(result["isError"], true, "{arguments}");
        assert!(result["content"][0]["text"].as_str().unwrap().contains("JSON object"), "{result}");
        assert_eq!(result["structuredContent"]["text"], result["content"][0]["text"]);
        assert_eq!(result.get("resultType"), None);
    }
    let unknown = client.post(&call(2, "nope", json!([]))).await;
    assert_eq!(error_code(&unknown), -32602);
    let nameless = client.post(&request(3, "tools/call", json!({}))).await;
    assert_eq!(error_code(&nameless), -32602);
    let absent = client.post(&request(4, "tools/call", json!({"name": "echo"}))).await;
    assert_eq!(absent.structured()["arguments"], json!({}));
    let null = client.post(&request(5, "tools/call", json!({"name": "echo", "arguments": null}))).await;
    assert_eq!(null.structured()["arguments"], json!({}));
}

#[tokio::test]
async fn resources_are_read_as_blobs_and_a_missing_one_has_the_code_of_its_revision() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let templates = client.post(&request(1, "resources/templates/list", json!({}))).await.json();
    assert_eq!(templates["result"]["resourceTemplates"][0]["uriTemplate"], "chappie://session/{sessionId}");
    let list = client.post(&request(2, "resources/list", json!({}))).await.json();
    assert_eq!(list["result"]["resources"], json!([]));
    let read = client.post(&request(3, "resources/read", json!({"uri": "chappie://there"}))).await.json();
    let blob = json!([{"uri": "chappie://there", "mimeType": "text/plain", "blob": "aGk="}]);
    assert_eq!(read["result"]["contents"], blob);
    let missing = request(4, "resources/read", json!({"uri": "chappie://gone"}));
    assert_eq!(error_code(&client.post(&missing).await), -32002);
    let broken = client.post(&request(5, "resources/read", json!({"uri": "chappie://broken"}))).await;
    assert_eq!(error_code(&broken), -32603);
    assert_eq!(error_code(&client.post(&request(6, "resources/read", json!({}))).await), -32602);
    client.modern("resources/read", Some("chappie://gone"));
    assert_eq!(error_code(&client.post(&modern(missing)).await), -32602);
}

#[tokio::test]
async fn a_tool_that_panics_is_an_error_answer_and_the_door_lives_on() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let result = client.post(&call(1, "boom", json!({}))).await.json()["result"].clone();
    assert_eq!(result["isError"], true);
    assert_eq!(result["structuredContent"]["text"], result["content"][0]["text"]);
    assert_eq!(client.post(&call(2, "echo", json!({}))).await.status, 200);
}

#[tokio::test]
async fn two_requests_with_one_id_both_get_their_answer() {
    let stand = Stand::open().await;
    let mut first = stand.initialized().await;
    let mut second = first.again().await;
    first.send(&call(1, "hold", json!({"tag": "a"}))).await;
    second.send(&call(1, "hold", json!({"tag": "b"}))).await;
    stand.script.release("b");
    assert_eq!(second.response().await.structured()["text"], "held");
    stand.script.release("a");
    assert_eq!(first.response().await.structured()["text"], "held");
}

#[tokio::test]
async fn a_session_can_listen_and_its_stream_ends_with_it() {
    let stand = Stand::open().await;
    let mut client = stand.initialized().await;
    let mut listener = client.again().await;
    listener.send_body("GET", b"").await;
    let (status, headers) = listener.head().await;
    assert_eq!((status, headers["content-type"].as_str()), (200, "text/event-stream"));
    assert_eq!(listener.chunk().await.as_deref(), Some(b": open\n\n".as_slice()));
    client.send_body("DELETE", b"").await;
    assert_eq!(client.response().await.status, 204);
    assert_eq!(listener.chunk().await, None);
    let mut stranger = stand.client().await;
    stranger.send_body("GET", b"").await;
    assert_eq!(stranger.response().await.status, 400);
}
