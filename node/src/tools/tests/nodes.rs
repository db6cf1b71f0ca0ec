//! The broker's half over two nodes: both are of this process, and only one has the broker.

use super::*;
use crate::{
    broker::Announced,
    fleet::{Directory, Placed, SessionNode},
    host::BoxFuture,
    ids::SessionId,
    tools::surface::{Assign, Assigned, Sent},
};

/// The sessions of two nodes.
struct Pair([Arc<LocalNode>; 2]);

impl Directory for Pair {
    fn find(&self, session: &SessionId) -> Option<Placed> {
        self.0.iter().find_map(|node| node.find(session))
    }

    fn list(&self) -> Vec<Placed> {
        self.0.iter().flat_map(|node| node.list()).collect()
    }

    fn late(&self, conversation: &Conversation) -> Vec<Arc<dyn SessionNode>> {
        self.0.iter().flat_map(|node| node.late(conversation)).collect()
    }

    fn nodes(&self) -> Vec<Arc<dyn SessionNode>> {
        self.0.iter().flat_map(|node| node.nodes()).collect()
    }
}

/// Two worlds, and the tools of the first one's broker over the sessions of both.
async fn pair(budget: Duration) -> (World, World, Arc<Toolbox>) {
    let ((near, _), (far, _)) = (world().await, world().await);
    let node = |world: &World, device: &str| {
        let blobs = Blobs::open(&world.home.path().join("blobs")).unwrap();
        LocalNode::new(Arc::clone(&world.sessions), blobs, device.into())
    };
    let pair = Pair([node(&near, "near"), node(&far, "far")]);
    let announced = pair.list().into_iter().map(|placed| Announced {
        session: placed.info.id,
        created: placed.info.created,
        cwd: placed.info.cwd.into(),
    });
    near.broker.announce(announced.collect());
    let tenure = Arc::new(Tenure { epoch: 1, term: 1 });
    let toolbox = Toolbox::new(near.broker.clone(), Arc::new(pair), tenure, budget, Duration::from_secs(20));
    (near, far, Arc::new(toolbox))
}

fn at(world: &World, mut arguments: Value) -> Value {
    arguments["sessionId"] = json!(world.sessions.list()[0].record().id);
    arguments
}

#[tokio::test]
async fn f7_late_results_of_every_node_ride_with_one_answer_and_are_settled_at_each() {
    let (near, far, toolbox) = pair(Duration::from_millis(50)).await;
    let one = Chat::new(&toolbox, chat());
    let hang = json!({"calls": [{"name": "hang", "arguments": {}}], "operationId": "far"});
    let running = one.written("call", at(&far, hang)).await;
    let id = running[0]["operation"]["id"].clone();
    let stop = json!({"calls": [{"name": "process", "arguments": {"action": "stop", "id": id}}]});
    assert_eq!(one.written("call", at(&near, stop)).await[0]["operation"]["status"], "stopping");
    until("the far result is late", || far.sessions.operations().has_late(&chat())).await;
    let rides = |blocks: &[Value]| blocks.iter().filter(|block| block["deferredResult"] == id).count();
    let lost = one.ask("call", at(&near, note(None))).await;
    assert_eq!(rides(&blocks(&lost)), 1);
    assert!(!far.sessions.operations().has_late(&chat()), "claimed");
    drop(lost);
    assert!(far.sessions.operations().has_late(&chat()), "free again");
    let listed = one.written("sessions", json!({})).await;
    let rows = listed[0]["sessions"].as_array().unwrap();
    let devices: Vec<&str> = rows.iter().filter_map(|row| row["device"].as_str()).collect();
    assert_eq!((devices, rides(&listed)), (vec!["near", "far"], 1));
    assert!(!far.sessions.operations().has_late(&chat()));
    assert_eq!(rides(&one.written("call", at(&near, note(None))).await), 0);
    let replay =
        one.written("call", at(&far, json!({"calls": [{"name": "hang", "arguments": {}}], "operationId": "far"})));
    // The receipt's outcome was reported to the far world's own broker, so here it still runs.
    assert_eq!(replay.await[0]["replay"]["status"], "running");
}

#[tokio::test]
async fn work_on_another_node_is_ended_by_its_callers_name_for_it() {
    let (near, far, toolbox) = pair(Duration::from_millis(50)).await;
    let one = Chat::new(&toolbox, chat());
    let hang = json!({"calls": [{"name": "hang", "arguments": {}}], "operationId": "mine"});
    assert_eq!(one.written("call", at(&far, hang)).await[0]["operation"]["status"], "running");
    let stop = json!({"calls": [{"name": "process", "arguments": {"action": "stop", "id": "mine"}}]});
    assert_eq!(one.written("call", at(&near, stop)).await[0]["operation"]["status"], "stopping");
    until("its result is late", || far.sessions.operations().has_late(&chat())).await;
}

#[tokio::test]
async fn a_folders_session_is_preferred_only_where_nothing_else_is_said() {
    let (near, far, toolbox) = pair(LONG).await;
    let id = |world: &World| world.sessions.list()[0].record().id.clone();
    let mut one = Chat::new(&toolbox, Conversation::Connection("stdio:1".into()));
    one.caller.preferred = Some(id(&far));
    assert_eq!(one.written("call", note(None)).await[0]["sessionId"], json!(id(&far)));
    assert_eq!(one.written("call", at(&near, note(None))).await[0]["sessionId"], json!(id(&near)));
    assert_eq!(one.written("sessions", json!({})).await[0]["sessions"].as_array().unwrap().len(), 2);
    one.written("init", at(&near, json!({}))).await;
    assert_eq!(one.written("call", note(None)).await[0]["sessionId"], json!(id(&near)), "it has a default now");
    let mut chat = Chat::new(&toolbox, chat());
    chat.caller.preferred = Some(id(&near));
    assert_eq!(chat.written("call", note(None)).await[0]["sessionId"], json!(id(&far)), "a chat takes a free one");
}

/// A door that agrees with everything.
struct Agreeing;

impl Assign for Agreeing {
    fn assigned(&self, _: Assigned) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    fn again(&self, cause: &str) {
        panic!("it was to be sent again: {cause}");
    }
}

#[tokio::test]
async fn f1_a_call_with_a_pin_goes_there_and_nothing_is_selected() {
    let (near, far, toolbox) = pair(LONG).await;
    let id = |world: &World| world.sessions.list()[0].record().id.clone();
    let one = Chat::new(&toolbox, chat());
    one.written("init", at(&near, json!({}))).await;
    let sent = Sent { call_id: "pinned".into(), pin: Some(id(&far)), budget: LONG, assign: Arc::new(Agreeing) };
    let (caller, cancelled) = (one.caller.clone(), CancellationToken::new());
    let arguments = note(None).as_object().cloned().unwrap();
    let request = Request { tool: "call".into(), arguments, caller, cancelled, sent: Some(sent) };
    let answer = Arc::clone(&toolbox).call(request).await.unwrap();
    assert_eq!(blocks(&answer)[0]["sessionId"], json!(id(&far)), "its conversation's default is the other one");
    answer.ticket.written();
    assert_eq!((near.script.ran.lock().unwrap().len(), far.script.ran.lock().unwrap().len()), (0, 1));
    assert_eq!(one.written("call", note(None)).await[0]["sessionId"], json!(id(&near)), "the default is as before");
}
