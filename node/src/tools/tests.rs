//! The tools through [`Surface`], over a real store and broker around a scripted host.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    content::{Block, JsonObject},
    fleet::{LocalNode, Tenure},
    ids::Conversation,
    sessions::{
        Session,
        testing::{World, chat, crash, open, until, world},
    },
    storage::blobs::Blobs,
};

fn toolbox(world: &World, budget: Duration) -> Arc<Toolbox> {
    let blobs = Blobs::open(&world.home.path().join("blobs")).unwrap();
    let node = LocalNode::new(Arc::clone(&world.sessions), blobs, "device".into());
    let tenure = Arc::new(Tenure { epoch: 1, term: 1 });
    Arc::new(Toolbox::new(world.broker.clone(), node, tenure, budget, Duration::from_secs(20)))
}

struct Chat {
    toolbox: Arc<Toolbox>,
    caller: Caller,
}

impl Chat {
    fn new(toolbox: &Arc<Toolbox>, conversation: Conversation) -> Self {
        let caller = Caller { conversation: Some(conversation), ..Caller::default() };
        Self { toolbox: Arc::clone(toolbox), caller }
    }

    async fn ask(&self, tool: &str, arguments: Value) -> Answer {
        self.ask_until(tool, arguments, CancellationToken::new()).await
    }

    async fn ask_until(&self, tool: &str, arguments: Value, cancelled: CancellationToken) -> Answer {
        let arguments = arguments.as_object().cloned().unwrap();
        let request = Request { tool: tool.into(), arguments, caller: self.caller.clone(), cancelled, sent: None };
        Arc::clone(&self.toolbox).call(request).await.unwrap()
    }

    /// Asks, and says that the answer was written.
    async fn written(&self, tool: &str, arguments: Value) -> Vec<Value> {
        let answer = self.ask(tool, arguments).await;
        let blocks = blocks(&answer);
        answer.ticket.written();
        blocks
    }
}

/// Text blocks, as JSON where they are JSON.
fn blocks(answer: &Answer) -> Vec<Value> {
    answer
        .content
        .iter()
        .map(|block| match block {
            Content::Text(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
            Content::Image { mime, .. } => json!({ "image": mime }),
        })
        .collect()
}

fn note(operation: Option<&str>) -> Value {
    let mut arguments = json!({"calls": [{"name": "note", "arguments": {}}]});
    if let Some(operation) = operation {
        arguments["operationId"] = json!(operation);
    }
    arguments
}

mod nodes;
mod office;

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn init_selects_a_free_session_and_a_second_init_within_the_window_observes() {
    let (world, session) = world().await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    let first = one.written("init", json!({})).await;
    assert_eq!(first[0]["selection"], "automatic");
    assert_eq!(first[0]["initialization"]["mode"], "executor");
    assert_eq!(first[0]["session"]["id"], json!(session.record().id));
    session.say(vec![Block::text("hello")]).await.unwrap();
    let second = one.written("init", json!({})).await;
    assert_eq!(second[0]["selection"], "existing");
    assert_eq!(second[0]["initialization"]["mode"], "observer");
    assert_eq!(second.len(), 1, "an observer gets no inputs");
    let next = one.written("call", note(None)).await;
    assert!(next.iter().any(|block| block["piInput"].is_string()), "{next:?}");
}

#[tokio::test]
async fn an_answer_repeats_its_text_in_structured_content() {
    let (world, _session) = world().await;
    let answer = Chat::new(&toolbox(&world, LONG), chat()).ask("call", note(None)).await;
    let texts: Vec<&str> = answer
        .content
        .iter()
        .filter_map(|block| match block {
            Content::Text(text) => Some(text.as_str()),
            Content::Image { .. } => None,
        })
        .collect();
    assert_eq!(answer.structured["text"], json!(texts.join("\n")));
}

#[tokio::test]
async fn f5_a_call_over_its_budget_is_answered_as_running_and_its_result_comes_once_later() {
    let (world, _session) = world().await;
    let brief = Chat::new(&toolbox(&world, Duration::from_millis(50)), chat());
    let running = brief.written("call", json!({"calls": [{"name": "hang", "arguments": {}}]})).await;
    assert_eq!(running[0]["operation"]["status"], "running");
    let id = running[0]["operation"]["id"].as_str().unwrap().to_owned();
    let patient = Chat::new(&toolbox(&world, LONG), chat());
    let stop = json!({"calls": [{"name": "process", "arguments": {"action": "stop", "id": id}}]});
    let stranger = Chat::new(&brief.toolbox, Conversation::Chat("v1/other".into()));
    stranger.written("call", stop.clone()).await;
    assert!(!world.sessions.operations().has_late(&chat()), "only its own conversation ends it");
    let stopping = brief.written("call", stop).await;
    assert_eq!(stopping[0]["operation"]["status"], "stopping");
    until("the result is late", || world.sessions.operations().has_late(&chat())).await;
    let next = patient.written("call", note(None)).await;
    let late: Vec<&Value> = next.iter().filter(|block| block["deferredResult"] == json!(id)).collect();
    assert_eq!(late.len(), 1, "{next:?}");
    assert_eq!(late[0]["error"], "it was stopped by its id");
    let after = patient.written("call", note(None)).await;
    assert!(!after.iter().any(|block| block.get("deferredResult").is_some()));
}

#[tokio::test]
async fn detached_work_is_ended_by_the_callers_own_name_for_it() {
    let (world, _session) = world().await;
    let brief = Chat::new(&toolbox(&world, Duration::from_millis(50)), chat());
    let hang = json!({"calls": [{"name": "hang", "arguments": {}}], "operationId": "mine"});
    assert_eq!(brief.written("call", hang).await[0]["operation"]["status"], "running");
    let stop = json!({"calls": [{"name": "process", "arguments": {"action": "stop", "id": "mine"}}]});
    assert_eq!(brief.written("call", stop).await[0]["operation"]["status"], "stopping");
    until("its result is late", || world.sessions.operations().has_late(&chat())).await;
}

#[tokio::test]
async fn f7_what_rode_on_an_unwritten_answer_comes_again() {
    let (world, session) = world().await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    for text in ["NOTE-A", "NOTE-B"] {
        session.say(vec![Block::text(text)]).await.unwrap();
    }
    let lost = one.ask("call", note(None)).await;
    drop(lost);
    until("the lost result is late", || world.sessions.operations().has_late(&chat())).await;
    let next = one.written("call", note(None)).await;
    let order: Vec<&Value> = next.iter().filter(|block| *block == "NOTE-A" || *block == "NOTE-B").collect();
    assert_eq!(order, ["NOTE-A", "NOTE-B"]);
    assert_eq!(next.iter().filter(|block| block.get("deferredResult").is_some()).count(), 1);
    assert_eq!(one.written("call", note(None)).await.len(), 3, "header, result header, text: nothing rides twice");
}

#[tokio::test]
async fn f6_the_same_operation_id_is_a_receipt_and_other_arguments_are_an_error() {
    let (world, _session) = world().await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    one.written("call", note(Some("op"))).await;
    let replay = one.written("call", note(Some("op"))).await;
    assert_eq!(replay.len(), 1);
    assert_eq!(replay[0]["replay"]["status"], "completed");
    assert_eq!(replay[0]["replay"]["delivery"]["hostReceipt"], "unconfirmed");
    assert_eq!(replay[0]["replay"]["ended"], "succeeded");
    assert_eq!(world.script.ran.lock().unwrap().len(), 1);
    let conflict = one.ask("call", json!({"calls": [{"name": "read", "arguments": {}}], "operationId": "op"})).await;
    assert!(conflict.is_error);
    let other = Chat::new(&toolbox(&world, LONG), Conversation::Chat("v1/other".into()));
    let other = other.written("call", note(Some("op"))).await;
    assert!(other[0].get("replay").is_none(), "another conversation is another identity: {other:?}");
}

#[tokio::test]
async fn f6_a_replay_while_running_waits_for_the_first_and_gets_the_receipt_only() {
    let (world, _session) = world().await;
    let one = Arc::new(Chat::new(&toolbox(&world, LONG), chat()));
    let arguments = json!({"calls": [{"name": "hang", "arguments": {}}], "operationId": "op"});
    let cancelled = CancellationToken::new();
    let first = tokio::spawn({
        let (one, arguments, cancelled) = (Arc::clone(&one), arguments.clone(), cancelled.clone());
        async move { one.ask_until("call", arguments, cancelled).await }
    });
    until("the first runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let second = tokio::spawn({
        let one = Arc::clone(&one);
        async move { one.written("call", arguments).await }
    });
    cancelled.cancel();
    first.await.unwrap();
    let replay = second.await.unwrap();
    assert_eq!((replay.len(), &replay[0]["replay"]["status"]), (1, &json!("completed")));
    assert_eq!(replay[0]["replay"]["ended"], "cancelled", "an aborted operation never ran to its end");
    assert_eq!(world.script.ran.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_host_request_sent_twice_runs_once() {
    let (world, _session) = world().await;
    let mut one = Chat::new(&toolbox(&world, LONG), chat());
    one.caller.request_id = Some(format!("wfr_{}/1", "0a".repeat(16)));
    one.written("call", note(None)).await;
    let twin = one.written("call", note(None)).await;
    assert_eq!(twin[0]["replay"]["status"], "completed");
    one.caller.request_id = Some(format!("wfr_{}/2", "0a".repeat(16)));
    one.written("call", note(None)).await;
    assert_eq!(world.script.ran.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn f8_a_crash_while_running_is_uncertain_and_a_replay_says_so() {
    let (world, _session) = world().await;
    let arguments = json!({"calls": [{"name": "hang", "arguments": {}}], "operationId": "op"});
    let one = Chat::new(&toolbox(&world, Duration::from_millis(50)), chat());
    one.written("call", arguments.clone()).await;
    let world = crash(world).await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    let replay = one.written("call", arguments).await;
    assert_eq!(replay[0]["replay"]["status"], "uncertain");
    let next = one.written("call", note(None)).await;
    let late = next.iter().find(|block| block.get("deferredResult").is_some()).unwrap();
    assert!(late["error"].as_str().unwrap().contains("uncertain"));
}

#[tokio::test]
async fn an_explicit_session_is_for_one_operation_and_history_never_binds() {
    let (world, first) = world().await;
    let folder = tempfile::tempdir().unwrap();
    let second = world.sessions.create(folder.path(), Some("second".into())).await.unwrap();
    let one = Chat::new(&toolbox(&world, LONG), chat());
    let unbound = one.ask("history", json!({})).await;
    assert!(unbound.is_error);
    one.written("history", json!({"sessionId": second.record().id})).await;
    assert_eq!(one.written("sessions", json!({})).await[0]["binding"], Value::Null);
    one.written("init", json!({"sessionId": first.record().id})).await;
    let there = one
        .written("call", json!({"calls": [{"name": "note", "arguments": {}}], "sessionId": second.record().id}))
        .await;
    assert_eq!(there[0]["sessionId"], json!(second.record().id));
    assert_eq!(one.written("sessions", json!({})).await[0]["binding"], json!(first.record().id));
}

#[tokio::test]
async fn history_waits_for_the_next_entry_and_consumes_nothing() {
    let (world, session) = world().await;
    let one = Arc::new(Chat::new(&toolbox(&world, LONG), chat()));
    one.written("init", json!({})).await;
    one.written("call", note(None)).await;
    let page = one.written("history", json!({"limit": 1})).await;
    let last = page[1]["id"].clone();
    let wait = json!({"after": last, "wait": true, "observer": true});
    let reader = tokio::spawn({
        let one = Arc::clone(&one);
        async move { one.written("history", wait).await }
    });
    session.say(vec![Block::text("NOTE")]).await.unwrap();
    let page = reader.await.unwrap();
    assert_eq!(page[0]["history"], json!({"count": 1, "hasMore": false}));
    assert_eq!((&page[1]["message"]["role"], &page[2]), (&json!("user"), &json!("NOTE")));
    let next = one.written("call", note(None)).await;
    assert!(next.contains(&json!("NOTE")), "reading took it away: {next:?}");
}

async fn pages_of_everything(one: &Chat, session: &Session) -> Vec<String> {
    let mut ids = Vec::new();
    let mut before: Option<String> = None;
    loop {
        let mut arguments = json!({"limit": 200, "sessionId": session.record().id});
        if let Some(before) = &before {
            arguments["before"] = json!(before);
        }
        let answer = one.ask("history", arguments).await;
        let text = answer.structured["text"].as_str().unwrap();
        assert!(text.len() <= 12 << 10, "a page of {} bytes", text.len());
        let page = blocks(&answer);
        let entries: Vec<String> = page
            .iter()
            .filter(|block| block.get("parentId").is_some())
            .map(|block| block["id"].as_str().unwrap().to_owned())
            .collect();
        before = entries.first().cloned();
        ids.splice(0..0, entries);
        if page[0]["history"]["hasMore"] == false {
            return ids;
        }
    }
}

#[tokio::test]
async fn history_pages_stay_inside_the_budget_and_lose_nothing() {
    let (world, session) = world().await;
    let mut expected = Vec::new();
    for index in 0..12 {
        let text = format!("{index} ").repeat(if index == 5 { 40_000 } else { 1_500 });
        expected.push(session.say(vec![Block::text(text)]).await.unwrap().0);
    }
    let one = Chat::new(&toolbox(&world, LONG), chat());
    assert_eq!(pages_of_everything(&one, &session).await, expected);
}

#[tokio::test]
async fn long_inputs_are_cut_with_a_way_to_read_on_and_an_answer_never_outgrows_its_budget() {
    let (world, session) = world().await;
    let long = "word ".repeat(30_000);
    session.say(vec![Block::text(long.clone())]).await.unwrap();
    session.say(vec![Block::text("after")]).await.unwrap();
    let one = Chat::new(&toolbox(&world, LONG), chat());
    let answer = one.ask("call", note(None)).await;
    let text = answer.structured["text"].as_str().unwrap().to_owned();
    assert!(text.len() <= 12 << 10, "{} bytes", text.len());
    answer.ticket.written();
    let path = text.split("\"path\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(path).unwrap(), long);
    let next = one.written("call", note(None)).await;
    assert!(next.contains(&json!("after")), "{next:?}");
}

#[tokio::test]
async fn the_headers_of_the_largest_batches_stay_inside_the_budget() {
    let (world, _session) = world().await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    // The estimate is pessimistic on punctuation: 128 headers are 6,000 by it, and about 3,500 for ChatGPT.
    for (members, tokens) in [(64, 4_500), (128, 6_500)] {
        let calls: Vec<Value> = (0..members).map(|_| json!({"name": "note", "arguments": {}})).collect();
        let answer = one.ask("call", json!({"calls": calls})).await;
        let text = answer.structured["text"].as_str().unwrap();
        assert_eq!(text.matches("toolCallId").count(), members);
        let found = (text.len(), crate::budget::tokens(text));
        assert!(found.0 <= 12 << 10 && found.1 <= tokens, "{members} members: {found:?}");
    }
}

#[tokio::test]
async fn bad_arguments_are_refused_before_anything_is_selected() {
    let (world, _session) = world().await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    for (tool, arguments, word) in [
        ("read", json!({"path": "a", "encoding": "utf8"}), "encoding"),
        ("read", json!({"path": 7}), "must be a string"),
        ("bash", json!({}), "command"),
        ("edit", json!({"path": "a"}), "needs path and edits"),
        ("edit", json!({"path": "a", "edits": [{"oldText": "a", "newText": "b"}], "patch": "x"}), "not both"),
        ("call", json!({}), "exactly one"),
        ("history", json!({"limit": 0}), "at least 1"),
        ("history", json!({"limit": 201}), "at most 200"),
        ("chat", json!({"text": ""}), "at least 1"),
        ("chat", json!({"text": "x", "replyTo": "nobody"}), "no model request"),
        ("write", json!({"path": "a", "content": "b", "operationId": "x".repeat(129)}), "at most 128"),
        ("write", json!({"path": "a", "content": "b", "operationId": " \t"}), "must not be blank"),
        ("read", json!({"path": "a", "operationId": "op"}), "no argument"),
    ] {
        let answer = one.ask(tool, arguments).await;
        let text = answer.structured["text"].as_str().unwrap();
        assert!(answer.is_error && text.contains(word), "{tool}: {text}");
    }
    assert_eq!(one.written("sessions", json!({})).await[0]["binding"], Value::Null);
}

#[tokio::test]
async fn an_error_repeats_only_so_much_of_what_it_was_given() {
    let (world, _session) = world().await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    let long = "z".repeat(40_000);
    for (tool, arguments) in [
        ("bash", json!({"command": "true", &long: 1})),
        ("edit", json!({"path": "a", "edits": [{"oldText": "a", "newText": "b", &long: 1}]})),
        ("chat", json!({"text": "a", "replyTo": "b".repeat(256)})),
        ("init", json!({"sessionId": "s".repeat(256)})),
        ("history", json!({"after": long.get(..128), "sessionId": "x"})),
    ] {
        let answer = one.ask(tool, arguments).await;
        let text = answer.structured["text"].as_str().unwrap();
        assert!(answer.is_error && text.len() < 2_000, "{tool}: {} bytes", text.len());
    }
    let unknown = one.written("tools", json!({"names": ["nope"]})).await;
    assert_eq!((&unknown[0]["unknown"], &unknown[0]["tools"]), (&json!(["nope"]), &json!([])));
}

#[tokio::test]
async fn a_client_started_in_a_folder_works_there_until_it_selects_another() {
    let (world, first) = world().await;
    let folder = tempfile::tempdir().unwrap();
    let own = world.sessions.create(folder.path(), None).await.unwrap();
    let toolbox = toolbox(&world, LONG);
    let surface = Arc::new(Preferring::new(toolbox, own.record().id.clone()));
    let connection = Conversation::Connection("stdio:1".into());
    let ask = async |conversation: &Conversation, tool: &str, arguments: Value| {
        let caller = Caller { conversation: Some(conversation.clone()), ..Caller::default() };
        let arguments = arguments.as_object().cloned().unwrap();
        let request = Request { tool: tool.into(), arguments, caller, cancelled: CancellationToken::new(), sent: None };
        let answer = Arc::clone(&surface).call(request).await.unwrap();
        blocks(&answer).swap_remove(0)
    };
    let chatgpt = ask(&chat(), "call", note(None)).await;
    assert_eq!(chatgpt["sessionId"], json!(first.record().id), "a chat selects by its own rules: {chatgpt}");
    assert_eq!(ask(&connection, "call", note(None)).await["sessionId"], json!(own.record().id));
    assert_eq!(ask(&connection, "sessions", json!({})).await["sessions"].as_array().unwrap().len(), 2);
    ask(&connection, "init", json!({"sessionId": first.record().id})).await;
    assert_eq!(ask(&connection, "call", note(None)).await["sessionId"], json!(first.record().id));
}

#[tokio::test]
async fn without_a_conversation_a_session_must_be_named() {
    let (world, session) = world().await;
    let mut one = Chat::new(&toolbox(&world, LONG), chat());
    one.caller.conversation = None;
    assert!(one.ask("call", note(None)).await.is_error);
    let mut named = note(None);
    named["sessionId"] = json!(session.record().id);
    assert!(!one.ask("call", named).await.is_error);
    assert_eq!(one.written("sessions", json!({})).await[0]["binding"], Value::Null);
}

#[tokio::test]
async fn with_no_session_at_all_the_answer_says_what_to_do() {
    let world = open(tempfile::tempdir().unwrap()).await;
    let one = Chat::new(&toolbox(&world, LONG), chat());
    let answer = one.ask("init", json!({})).await;
    assert!(answer.is_error && answer.structured["text"].as_str().unwrap().contains("session"));
}

#[test]
fn every_schema_is_a_flat_object_that_refuses_unknown_keys() {
    let home = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = open(home).await;
        let toolbox = toolbox(&world, LONG);
        let names: Vec<&str> = toolbox.specs().iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["init", "history", "sessions", "tools", "chat", "call", "read", "bash", "edit", "write"]);
        for spec in toolbox.specs() {
            for schema in [&spec.input_schema, &spec.output_schema] {
                let text = schema.to_string();
                assert!(!text.contains("$ref") && schema.get("oneOf").is_none(), "{}: {text}", spec.name);
                assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
            }
            let empty = JsonObject::new();
            assert!(
                !spec.description.is_empty()
                    && spec.input_schema["properties"]
                        .as_object()
                        .unwrap_or(&empty)
                        .values()
                        .all(|property| property["description"].is_string()),
                "{}",
                spec.name
            );
        }
    });
}
