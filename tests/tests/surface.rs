//! What every MCP client sees (design 10; behaviour 3): the fixed tool list, schemas, annotations, instructions, result
//! shape, and who is let in at the HTTP door. Against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use chappie_tests::{
    Client, Node, Revision,
    answer::excerpt,
    chatgpt::{ChatGpt, Switches},
    client::CallError,
    node::Setup,
    recorder::{Recorder, Reply},
    tokens, wire,
};
use http::Method;
use serde_json::{Value, json};

const TOOLS: [&str; 10] = ["init", "history", "sessions", "tools", "chat", "call", "read", "bash", "edit", "write"];

async fn listed(client: &Client) -> Vec<Value> {
    client.request("tools/list", json!({})).await.unwrap()["tools"].as_array().unwrap().clone()
}

#[tokio::test]
async fn the_tool_list_is_fixed_and_the_same_in_both_revisions() {
    let node = Node::single().await;
    let stateless = listed(&node.stateless()).await;
    let names: Vec<&str> = stateless.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, TOOLS);
    assert_eq!(listed(&node.client().await).await, stateless);
    let bare = Node::start(std::sync::Arc::new(chappie_tests::World::new()), Setup::new()).await;
    assert_eq!(listed(&bare.stateless()).await, stateless, "also without a session");
}

#[tokio::test]
async fn every_schema_is_a_flat_object_that_refuses_unknown_keys() {
    let node = Node::single().await;
    for tool in listed(&node.stateless()).await {
        let name = tool["name"].as_str().unwrap();
        for kind in ["inputSchema", "outputSchema"] {
            let schema = &tool[kind];
            assert_eq!(schema["type"], "object", "{name} {kind}");
            for forbidden in ["oneOf", "anyOf", "allOf", "$ref", "$defs", "not"] {
                assert!(schema.get(forbidden).is_none(), "{name} {kind} has a top-level {forbidden}");
            }
            assert!(!schema.to_string().contains("\"$ref\""), "{name} {kind}");
        }
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{name}");
        assert_eq!(tool["outputSchema"]["properties"]["text"]["type"], "string", "{name}");
        assert!(tool["title"].as_str().is_some_and(|title| !title.is_empty()), "{name}");
        let description = tool["description"].as_str().unwrap();
        assert!((20..4_000).contains(&description.len()), "{name}: {description}");
    }
}

#[tokio::test]
async fn only_the_tools_with_receipts_take_an_operation_id() {
    let node = Node::single().await;
    for tool in listed(&node.stateless()).await {
        let name = tool["name"].as_str().unwrap();
        let takes = tool["inputSchema"]["properties"].get("operationId").is_some();
        assert_eq!(takes, ["chat", "call", "bash", "edit", "write"].contains(&name), "{name}");
    }
}

#[tokio::test]
async fn the_hints_are_truthful_and_complete() {
    let node = Node::single().await;
    // Behaviour 3.2: read-only, destructive, idempotent, open world. Writing the same content twice equals once.
    for (name, hints) in [
        ("init", [false, false, true, false]),
        ("history", [true, false, true, false]),
        ("sessions", [true, false, true, false]),
        ("tools", [true, false, true, false]),
        ("chat", [false, false, false, false]),
        ("call", [false, true, false, true]),
        ("read", [true, false, true, true]),
        ("bash", [false, true, false, true]),
        ("edit", [false, true, false, true]),
        ("write", [false, true, true, true]),
    ] {
        let tools = listed(&node.stateless()).await;
        let annotations = &tools.iter().find(|tool| tool["name"] == name).unwrap()["annotations"];
        let given = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
            .map(|hint| annotations[hint].as_bool().unwrap_or_else(|| panic!("{name} does not state {hint}")));
        assert_eq!(given, hints, "{name}");
    }
}

/// The server instructions of a node.
async fn instructions(node: &Node) -> String {
    let result = node.stateless().request("server/discover", json!({})).await.unwrap();
    result["instructions"].as_str().unwrap().to_owned()
}

/// Each topic of behaviour 3.16 and of its override that exists in this version, with words that it cannot do without.
const TOPICS: [(&str, &[&str]); 25] = [
    ("call init first", &["init"]),
    ("resume a task by its session", &["sessionid", "resume"]),
    ("follow the global instructions file", &["globalagents.path"]),
    ("follow how to take part", &["initialization.instructions"]),
    ("sessionId is for one operation", &["sessionid", "one operation"]),
    ("no sub-agent of the same model", &["chappie/chatgpt", "wait"]),
    ("cloud tools for remote research", &["research"]),
    ("answer what people type", &["piinput", "promptly", "visibly"]),
    ("chat for progress and completion", &["chat", "progress", "completion"]),
    ("answer a model request", &["modelrequest", "replyto"]),
    ("direct tools and call", &["direct", "tools", "call"]),
    ("one array is one batch", &["batch", "separate requests"]),
    ("anchors of an omp edit", &["omp", "anchors", "patch"]),
    ("stable operation ids", &["operationid", "approval"]),
    ("what a replay is", &["replay", "receipt"]),
    ("uncertain means check", &["uncertain", "never"]),
    ("check history before a retry", &["check history before"]),
    ("text is repeated", &["structuredcontent"]),
    ("go on from received results", &["do not repeat work"]),
    ("long work in a process", &["process", "long"]),
    ("a running operation", &["running", "deferredresult"]),
    ("following history", &["history", "wait: true", "after"]),
    ("idle is not completion", &["idle", "complete"]),
    ("observers", &["observer: true", "neither execute, export", "completion"]),
    ("recovering an image by its reference", &["chappie://", "explicit request", "denied approval", "archive"]),
];

#[tokio::test]
async fn the_server_instructions_cover_every_topic() {
    let node = Node::single().await;
    let text = instructions(&node).await.to_lowercase();
    for (topic, words) in TOPICS {
        for word in words {
            assert!(text.contains(word), "the topic '{topic}' lacks '{word}'");
        }
    }
}

#[tokio::test]
async fn the_first_512_characters_of_the_instructions_say_what_matters_and_stay_affordable() {
    let node = Node::single().await;
    let text = instructions(&node).await;
    let start: String = text.chars().take(512).collect::<String>().to_lowercase();
    for word in ["init", "session", "history", "instructions"] {
        assert!(start.contains(word), "{word} is not in the part that ChatGPT surely reads: {start}");
    }
    assert!(tokens::count(&text) < 1_500, "{} tokens", tokens::count(&text));
    assert_eq!(Client::handshake(node.url()).await.initialize().await.unwrap()["instructions"], json!(text));
}

#[tokio::test]
async fn discovery_names_both_revisions_and_the_server() {
    let node = Node::single().await;
    let result = node.stateless().request("server/discover", json!({})).await.unwrap();
    let versions: Vec<&str> =
        result["supportedVersions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(versions.contains(&"2026-07-28"), "{versions:?}");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "chappie", "{result}");
    let shaken = Client::handshake(node.url()).await.initialize().await.unwrap();
    assert_eq!((&shaken["protocolVersion"], &shaken["serverInfo"]["name"]), (&json!("2025-11-25"), &json!("chappie")));
}

#[tokio::test]
async fn the_double_discovers_first_and_falls_back_behind_an_older_server() {
    let node = Node::single().await;
    let double = ChatGpt::connect(node.url(), "v1/new", Switches::chatgpt()).await.unwrap();
    assert_eq!(double.revision(), Revision::Stateless);
    assert_eq!(double.tools().await.unwrap().len(), TOOLS.len());
    let older = Recorder::start(Some(node.url()), |request| match request.rpc() {
        "server/discover" => Reply::error(request, 400, -32600, "unknown"),
        _ => Reply::Pass,
    })
    .await;
    let double = ChatGpt::connect(older.url(), "v1/old", Switches::chatgpt()).await.unwrap();
    assert_eq!(double.revision(), Revision::Handshake);
    let arguments = json!({"command": "echo through", "sessionId": node.session("s")});
    let answer = double.call("bash", arguments).await.answered().answer.ok();
    assert!(answer.output().contains("through"));
    let call = older.seen_of("tools/call").remove(0);
    assert_eq!(call.header("x-openai-session"), Some("v1/old"));
    assert!(call.header("mcp-session-id").is_none(), "the double sends no session id, and is served");
}

#[tokio::test]
async fn every_answer_repeats_its_text_in_structured_content_and_fits_what_chatgpt_shows() {
    let node = Node::single_with(Setup::new().cooldown(0.0)).await;
    let script = "seq 1 40000 > many.txt; head -c 200000 /dev/urandom | base64 > dense.txt; mkdir d; (cd d && for i in $(seq 1 2000); do : > \"file number $i\"; done)";
    node.world.sh(node.folder(), script);
    let double = ChatGpt::connect(node.url(), "v1/wide", Switches::chatgpt()).await.unwrap();
    let call = |name: &str, arguments: Value| json!({"calls": [{"name": name, "arguments": arguments}]});
    let batch: Vec<Value> = (0..20).map(|_| json!({"name": "read", "arguments": {"path": "dense.txt"}})).collect();
    for (tool, arguments) in [
        ("init", json!({})),
        ("tools", json!({})),
        ("sessions", json!({})),
        ("read", json!({"path": "many.txt"})),
        ("read", json!({"path": "dense.txt"})),
        ("bash", json!({"command": "cat many.txt"})),
        ("bash", json!({"command": "cat dense.txt; cat many.txt >&2; exit 1"})),
        ("bash", json!({"command": "head -c 300000 /dev/zero | tr '\\0' '\\346'"})),
        ("call", call("ls", json!({"path": "d"}))),
        ("call", call("find", json!({"pattern": "*", "path": "."}))),
        ("call", call("grep", json!({"pattern": "1", "path": "many.txt"}))),
        ("call", json!({"calls": batch})),
        ("history", json!({"limit": 200})),
        ("read", json!({"path": "x".repeat(30_000)})),
    ] {
        let view = double.call(tool, arguments.clone()).await.answered();
        let what = format!("{tool} {}", excerpt(&arguments.to_string()));
        assert!(!view.truncated, "{what}: ChatGPT would cut {} tokens", tokens::count(&view.answer.raw.to_string()));
        let structured = view.answer.structured["text"].as_str().unwrap_or_else(|| panic!("{what}: no text"));
        assert_eq!(structured, view.answer.text(), "{what}");
        let bytes = view.answer.text().len() + structured.len();
        assert!(bytes <= 24 * 1024 + 1024, "{what}: {bytes} bytes of text");
    }
}

async fn status(node: &Node, method: Method, headers: &[(&str, &str)], body: &Value) -> u16 {
    let endpoint = wire::Endpoint::parse(node.url());
    let mut all = vec![
        ("content-type".to_owned(), "application/json".to_owned()),
        ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
    ];
    for (name, value) in headers {
        all.retain(|(other, _)| other != name);
        all.push(((*name).to_owned(), (*value).to_owned()));
    }
    wire::send(&endpoint, method, &all, Bytes::from(body.to_string())).await.unwrap().status
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    }})
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_turned_away_and_loopback_ones_let_in() {
    let node = Node::single().await;
    let port = node.url().rsplit(':').next().unwrap().trim_end_matches("/mcp").to_owned();
    let with = async |name: &'static str, value: String| {
        status(&node, Method::POST, &[(name, value.as_str())], &initialize()).await
    };
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")] {
        assert_eq!(with("host", host.clone()).await, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "localhost.evil.example", "0x7f000001"] {
        let found = with("host", host.to_owned()).await;
        assert!((400..500).contains(&found), "{host}: {found}");
    }
    for origin in [format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}")] {
        assert_eq!(with("origin", origin.clone()).await, 200, "{origin}");
    }
    for origin in
        ["https://evil.example", "null", "http://localhost.evil.example", "file://", "https://chatgpt.com.evil.example"]
    {
        assert_eq!(with("origin", origin.to_owned()).await, 403, "{origin}");
    }
}

#[tokio::test]
async fn nothing_but_the_endpoint_is_served_and_wrong_methods_are_refused() {
    let node = Node::single().await;
    assert_eq!(status(&node, Method::PUT, &[], &json!({})).await, 405);
    let root = wire::Endpoint { path: "/".into(), ..wire::Endpoint::parse(node.url()) };
    assert_eq!(wire::send(&root, Method::GET, &[], Bytes::new()).await.unwrap().status, 404);
    let plain = status(&node, Method::POST, &[("content-type", "text/plain")], &initialize()).await;
    assert_eq!(plain, 415);
}

#[tokio::test]
async fn the_stateless_revision_checks_its_headers_against_the_body() {
    let node = Node::single().await;
    let client = node.stateless();
    let body = client.body("tools/call", json!({"name": "sessions", "arguments": {}}));
    let with = async |name: &str, value: &str| {
        let mut exchange = client.exchange(&body, &[(name.to_owned(), value.to_owned())]).await.unwrap();
        let message = exchange.next_message().await.unwrap().unwrap_or_default();
        (exchange.status, message["error"]["code"].as_i64())
    };
    assert_eq!(with("x-nothing", "1").await, (200, None));
    assert_eq!(with("mcp-method", "tools/list").await, (400, Some(-32020)));
    assert_eq!(with("mcp-name", "bash").await, (400, Some(-32020)));
    let mut unsupported = body.clone();
    unsupported["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2031-01-01");
    let version = [("mcp-protocol-version".to_owned(), "2031-01-01".to_owned())];
    let mut exchange = client.exchange(&unsupported, &version).await.unwrap();
    assert_eq!(exchange.status, 400);
    assert_eq!(exchange.next_message().await.unwrap().unwrap()["error"]["code"], -32022);
    let unknown = client.request("no/such/method", json!({})).await;
    let Err(CallError::Refused { status: 404, code: -32601, .. }) = unknown else { panic!("{unknown:?}") };
}

#[tokio::test]
async fn an_unknown_tool_and_broken_requests_are_protocol_errors_and_the_next_call_works() {
    let node = Node::single().await;
    let client = node.chat("v1/x");
    let unknown = client.try_call("no_such_tool", json!({})).await;
    let Err(CallError::Refused { code: -32602, message, .. }) = unknown else { panic!("{unknown:?}") };
    assert!(message.contains("no_such_tool"), "{message}");
    let endpoint = wire::Endpoint::parse(node.url());
    let headers = [
        ("content-type".to_owned(), "application/json".to_owned()),
        ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
    ];
    for body in ["", "{", "[]", "7", "null", "{\"jsonrpc\":\"2.0\"}", "\u{0}\u{1}"] {
        let exchange = wire::send(&endpoint, Method::POST, &headers, Bytes::from(body)).await.unwrap();
        assert!((400..500).contains(&exchange.status), "{body:?}: {}", exchange.status);
    }
    assert!(client.call("bash", json!({"command": "echo fine"})).await.ok().output().contains("fine"));
}
