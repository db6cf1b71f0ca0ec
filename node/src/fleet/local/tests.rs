//! This node through [`SessionNode`], as the broker uses it: over a real store and broker around a scripted host.

use std::sync::atomic::Ordering;

use super::*;
use crate::{
    broker::{ReceiptKey, ReceiptKind, ReceiptStatus, Reserve, Reserved},
    clock,
    content::Part,
    fleet::{Ran, Tenure},
    sessions::{
        ReceiptClaim,
        journal::{JournalRow, RowState},
        testing::{World, chat, crash, until, work, world},
    },
    storage::node::{Change, Key},
};

fn node(world: &World) -> Arc<LocalNode> {
    let blobs = Blobs::open(&world.home.path().join("blobs")).unwrap();
    LocalNode::new(Arc::clone(&world.sessions), blobs, "device".into())
}

fn dispatch(world: &World, name: &str, id: &str) -> Dispatch {
    let session = world.sessions.list().remove(0).record().id.clone();
    let tenure = Tenure { epoch: 1, term: 1 };
    Dispatch { session, operation: work(name, id), wait: Duration::from_secs(60), tenure, resent: false }
}

fn run(node: &Arc<LocalNode>, dispatch: Dispatch) -> Box<dyn Run> {
    SessionNode::run(Arc::clone(node), dispatch)
}

/// Each in a conversation of its own, so that one's outcome does not ride with another's.
fn alone(dispatch: Dispatch) -> Dispatch {
    let conversation = Some(Conversation::Chat(format!("v1/{}", dispatch.operation.call_id)));
    Dispatch { operation: Operation { conversation, ..dispatch.operation }, ..dispatch }
}

fn texts(ran: &Ran) -> Vec<&str> {
    let Ran::Finished(parcel) = ran else { panic!("expected an outcome, found {ran:?}") };
    parcel
        .content
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Image { mime, .. } => mime,
        })
        .collect()
}

fn board(by: &str, session: Option<SessionId>) -> Board {
    Board { by: CallId::from(by), conversation: Some(chat()), session, room: TextBudget::WHOLE }
}

fn ran(world: &World) -> Vec<String> {
    world.script.ran.lock().unwrap().clone()
}

const MARK: &str = "{\"redelivered\":true}";

#[tokio::test]
async fn f6_the_same_call_id_attaches_and_never_runs_twice() {
    let (world, _session) = world().await;
    let node = node(&world);
    let mut first = run(&node, dispatch(&world, "hang", "1"));
    until("it runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let mut queued = run(&node, dispatch(&world, "note", "2"));
    let mut queued_again = run(&node, dispatch(&world, "note", "2"));
    assert!(!queued_again.is_running());
    let mut again = run(&node, dispatch(&world, "hang", "1"));
    assert!(again.is_running());
    // A connection that was lost gives its end up late: that detaches nobody who holds the call by now.
    drop(first);
    first = run(&node, dispatch(&world, "hang", "1"));
    again.cancel("enough".into()).await;
    let outcome = first.done().await;
    assert_eq!(outcome, again.done().await);
    assert!(texts(&outcome)[0].contains("chappie-1"));
    assert_eq!(first.done().await, outcome, "the same as often as it is asked for");
    assert_eq!(queued.done().await, queued_again.done().await);
    drop(queued);
    assert!(!world.sessions.operations().has_late(&chat()), "the latest end speaks for the caller");
    first.settle(true);
    drop(again);
    queued_again.settle(true);
    assert!(!world.sessions.operations().has_late(&chat()));
    assert_eq!(ran(&world), ["chappie-1", "chappie-2"]);
}

#[tokio::test]
async fn f6_an_outcome_that_nobody_had_is_the_repeated_calls_and_no_late_result_meanwhile() {
    let (world, _session) = world().await;
    let node = node(&world);
    let operations = world.sessions.operations();
    drop(run(&node, dispatch(&world, "note", "1")));
    until("it is late", || operations.has_late(&chat())).await;
    let mut again = run(&node, dispatch(&world, "note", "1"));
    let outcome = again.done().await;
    assert!(texts(&outcome)[0].contains("chappie-1"), "{outcome:?}");
    assert!(!operations.has_late(&chat()), "the repeat holds it");
    // Another broker sends it again: the earlier answer was not written, or its door would not have.
    let mut later = run(&node, dispatch(&world, "note", "1"));
    assert_eq!(later.done().await, outcome, "the same, and not as something that came before");
    again.settle(false);
    assert!(!operations.has_late(&chat()), "an earlier sending does not speak for the call any more");
    later.settle(false);
    assert!(operations.has_late(&chat()), "it was not written: late again");
    let mut last = run(&node, dispatch(&world, "note", "1"));
    assert_ne!(texts(&last.done().await)[0], MARK);
    last.settle(true);
    until("the broker has it", || world.broker.undelivered(&chat(), &["1".into()]).len() == 1).await;
    operations.stopped().await;
    assert_eq!(run(&node, dispatch(&world, "note", "1")).done().await, Ran::Gone);
    assert_eq!(ran(&world), ["chappie-1"]);
}

#[tokio::test]
async fn f7_what_rode_with_an_earlier_sending_rides_with_the_latest_and_is_no_repeat() {
    let (world, session) = world().await;
    let node = node(&world);
    let operations = world.sessions.operations();
    drop(run(&node, dispatch(&world, "note", "0")));
    until("it is late", || operations.has_late(&chat())).await;
    session.say(vec![crate::content::Block::text("from a person")]).await.unwrap();
    let mut first = run(&node, dispatch(&world, "note", "1"));
    let outcome = first.done().await;
    let whole = texts(&outcome).join(" ");
    assert!(whole.contains("from a person") && whole.contains("deferredResult"), "{whole}");
    // Its broker is gone, and stands still with the answer; another one sends the call again.
    let mut second = run(&node, dispatch(&world, "note", "1"));
    assert_eq!(second.done().await, outcome, "all of it, and nothing is called a repeat");
    drop(first);
    second.settle(true);
    until("nothing waits", || !operations.has_late(&chat()) && !session.has_inputs()).await;
    assert_eq!(ran(&world), ["chappie-0", "chappie-1"]);
}

#[tokio::test]
async fn f6_f8_a_restart_keeps_what_is_known_of_a_call() {
    let (world, _session) = world().await;
    let local = node(&world);
    for id in ["delivered", "told", "dropped"] {
        let mut run = run(&local, alone(dispatch(&world, "note", id)));
        assert!(matches!(run.done().await, Ran::Finished(_)));
        match id {
            "delivered" => run.settle(true),
            // The node ends with the response on its way.
            "told" => std::mem::forget(run),
            _ => run.settle(false),
        }
    }
    let cut_off = run(&local, alone(dispatch(&world, "hang", "cut off")));
    until("it runs", || world.script.running.load(Ordering::SeqCst) == 4).await;
    let after = crash(world).await;
    let node = node(&after);
    for (id, marked) in [("told", true), ("dropped", false)] {
        let mut again = run(&node, alone(dispatch(&after, "note", id)));
        let outcome = again.done().await;
        assert_eq!((texts(&outcome)[0] == MARK, texts(&outcome).contains(&"done")), (marked, true), "{id}");
        again.settle(true);
    }
    assert_eq!(run(&node, alone(dispatch(&after, "note", "delivered"))).done().await, Ran::Gone);
    let mut again = run(&node, alone(dispatch(&after, "hang", "cut off")));
    let Ran::Finished(parcel) = again.done().await else { panic!("an interruption is an outcome") };
    assert!(parcel.error.unwrap().contains("uncertain"));
    again.settle(true);
    assert_eq!(ran(&after), [""; 0], "nothing runs again");
    assert!(after.sessions.late_conversations().is_empty());
    drop(cut_off);
}

#[tokio::test]
async fn f6_a_caller_without_a_conversation_attaches_as_well() {
    let (world, _session) = world().await;
    let node = node(&world);
    let anonymous = |id: &str| {
        let dispatch = dispatch(&world, "note", id);
        Dispatch { operation: Operation { conversation: None, ..dispatch.operation }, ..dispatch }
    };
    drop(run(&node, anonymous("1")));
    let ended = || {
        let row: Option<JournalRow> = world.store.read(&Key::journal(&CallId::from("1"))).unwrap();
        row.is_some_and(|row| matches!(row.state, RowState::Finished(_)))
    };
    until("it ended", ended).await;
    let mut again = run(&node, anonymous("1"));
    assert!(texts(&again.done().await).contains(&"done"));
    again.settle(true);
    assert_eq!(run(&node, anonymous("1")).done().await, Ran::Gone);
    assert_eq!(ran(&world), ["chappie-1"]);
}

#[tokio::test]
async fn f4_a_cancel_that_overtakes_its_call_holds_over_a_restart() {
    let (world, _session) = world().await;
    let cancel = |conversation| Cancel { call_id: CallId::from("1"), conversation, reason: "enough".into() };
    assert!(!node(&world).cancel(cancel(Some(chat()))).await, "nothing of it was open");
    let world = crash(world).await;
    let node = node(&world);
    assert!(matches!(run(&node, dispatch(&world, "note", "1")).done().await, Ran::NeverRan(_)));
    let mut other = run(&node, dispatch(&world, "hang", "2"));
    until("it runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let foreign = Cancel { call_id: CallId::from("2"), ..cancel(Some(Conversation::Chat("v1/other".into()))) };
    assert!(!node.cancel(foreign).await, "only its own conversation ends it");
    assert!(node.cancel(Cancel { call_id: CallId::from("2"), ..cancel(Some(chat())) }).await);
    assert!(matches!(other.done().await, Ran::Finished(_)));
    assert!(!node.cancel(Cancel { call_id: CallId::from("2"), ..cancel(Some(chat())) }).await, "it ended");
    assert_eq!(ran(&world), ["chappie-2"]);
}

#[tokio::test]
async fn f4_a_queued_call_that_was_cancelled_does_not_run_when_it_is_sent_again() {
    let (world, _session) = world().await;
    let local = node(&world);
    let mut first = run(&local, dispatch(&world, "hang", "1"));
    until("it runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let mut queued = run(&local, dispatch(&world, "note", "2"));
    queued.cancel("changed my mind".into()).await;
    drop(queued);
    let world = crash(world).await;
    assert!(matches!(run(&node(&world), dispatch(&world, "note", "2")).done().await, Ran::NeverRan(_)));
    first.cancel("over".into()).await;
}

#[tokio::test]
async fn f3_a_call_that_was_asked_about_before_it_came_is_sealed_over_a_restart() {
    let (world, _session) = world().await;
    assert!(matches!(node(&world).known(CallId::from("1")).await, Ok(Known::Never(_))));
    let world = crash(world).await;
    let node = node(&world);
    assert!(matches!(run(&node, dispatch(&world, "note", "1")).done().await, Ran::NeverRan(_)));
    let mut second = run(&node, dispatch(&world, "hang", "2"));
    until("it runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let asked = |id: &'static str| {
        let operations = Arc::clone(world.sessions.operations());
        async move { operations.ask(&CallId::from(id), None).await.unwrap() }
    };
    let queued = run(&node, dispatch(&world, "note", "3"));
    assert_eq!((asked("2").await, asked("3").await), (Standing::Running, Standing::Queued));
    assert_eq!(node.known(CallId::from("2")).await, Ok(Known::Held));
    second.cancel("on".into()).await;
    second.done().await;
    assert_eq!(asked("2").await, Standing::Finished);
    second.settle(true);
    assert_eq!(asked("2").await, Standing::Delivered);
    drop(queued);
    assert_eq!(asked("1").await, Standing::NeverRun);
}

#[tokio::test]
async fn f3_a_call_that_was_sent_before_is_not_run_by_a_node_whose_journal_was_put_back() {
    let (world, _session) = world().await;
    let node = node(&world);
    let again = |id| Dispatch { resent: true, ..dispatch(&world, "note", id) };
    assert!(matches!(run(&node, again("1")).done().await, Ran::Finished(_)), "its journal is whole");
    world.store.durable(vec![Change::set(Key::journal_since(), &clock::now())]).await.unwrap();
    let ran_before = ran(&world).len();
    let lost = run(&node, again("2")).done().await;
    assert!(matches!(&lost, Ran::Unknown(why) if why.contains("put back to an older state")), "{lost:?}");
    assert!(node.known("3".into()).await.is_err());
    assert!(matches!(run(&node, dispatch(&world, "note", "3")).done().await, Ran::NeverRan(_)), "it was asked about");
    assert_eq!(ran(&world).len(), ran_before);
    assert!(matches!(run(&node, dispatch(&world, "note", "4")).done().await, Ran::Finished(_)), "a new one runs");
    assert!(matches!(run(&node, again("1")).done().await, Ran::Finished(_) | Ran::Gone), "a known one is attached to");
}

#[tokio::test]
async fn f7_what_an_answer_of_unknown_fate_carried_comes_again_and_says_so() {
    let (world, session) = world().await;
    let node = node(&world);
    session.say(vec![crate::content::Block::text("NOTE")]).await.unwrap();
    let mut lost = run(&node, dispatch(&world, "note", "1"));
    assert!(texts(&lost.done().await).contains(&"NOTE"));
    // The connection to the broker is gone, with the outcome on it.
    drop(lost);
    let parcel = node.board(board("r", Some(session.record().id.clone()))).await;
    let marked = |parcel: &Parcel| {
        let text = |part: &Part| matches!(part, Part::Text(text) if text.contains("\"redelivered\":true"));
        parcel.content.iter().filter(|part| text(part)).count()
    };
    assert_eq!((marked(&parcel), parcel.content.len()), (2, 5), "{parcel:?}");
    node.settle(CallId::from("r"), false);
    node.settle(CallId::from("r"), false);
    assert_eq!(marked(&node.board(board("s", None)).await), 1, "not written: it comes again");
    node.lapse(&CallId::from("s"));
    assert_eq!(marked(&node.board(board("t", Some(session.record().id.clone()))).await), 2);
    node.settle(CallId::from("t"), true);
    assert_eq!(node.board(board("u", Some(session.record().id.clone()))).await, Parcel::default());
}

/// Found by netsim (whole seed 149): the word that "still queued" was written came when the work had ended, and was taken for the
/// word on its outcome, which nobody was told then.
#[tokio::test]
async fn f7_the_word_on_an_answer_without_the_outcome_says_nothing_of_the_outcome() {
    let (world, session) = world().await;
    let node = node(&world);
    // Its door answered that the work goes on, and gave it up.
    drop(run(&node, dispatch(&world, "note", "1")));
    until("the work ends", || !session.is_executing() && ran(&world).len() == 1).await;
    until("its outcome waits", || node.operations().has_late(&chat())).await;
    node.settle(CallId::from("1"), true);
    assert!(node.operations().has_late(&chat()), "it was in no answer yet");
    let parcel = node.board(board("r", None)).await;
    assert!(!parcel.content.is_empty());
    node.lapse(&CallId::from("r"));
    node.settle(CallId::from("1"), true);
    assert!(node.operations().has_late(&chat()), "another answer carried it, whose fate nobody knows");
}

#[tokio::test]
async fn f7_an_outcome_that_was_not_written_comes_as_new_and_one_nobody_waited_for_too() {
    let (world, session) = world().await;
    let node = node(&world);
    let mut unwritten = run(&node, dispatch(&world, "note", "1"));
    unwritten.done().await;
    unwritten.settle(false);
    drop(run(&node, dispatch(&world, "note", "2")));
    let idle = || !session.is_executing() && ran(&world).len() == 2;
    until("both ended", idle).await;
    until("both are late", || world.sessions.late_conversations().contains(&chat())).await;
    let parcel = node.board(board("r", None)).await;
    let text = format!("{parcel:?}");
    assert_eq!((text.matches("deferredResult").count(), text.contains("redelivered")), (2, false), "{text}");
    // A word on a call that was given up takes back what it left.
    node.settle(CallId::from("r"), false);
    node.settle(CallId::from("1"), true);
    let text = format!("{:?}", node.board(board("s", None)).await);
    assert_eq!(text.matches("deferredResult").count(), 1, "{text}");
}

#[tokio::test]
async fn f11_an_office_that_is_over_is_refused_also_after_a_restart() {
    let (world, _session) = world().await;
    let at = |world: &World, id: &str, epoch, term| {
        let tenure = Tenure { epoch, term };
        run(&node(world), Dispatch { tenure, ..dispatch(world, "note", id) })
    };
    assert!(matches!(at(&world, "1", 2, 3).done().await, Ran::Finished(_)));
    for (id, epoch, term) in [("2", 2, 2), ("3", 1, 9)] {
        let Ran::Fenced(reason) = at(&world, id, epoch, term).done().await else { panic!("{id} ran") };
        assert!(reason.contains("epoch 2, term 3") && reason.contains(&format!("epoch {epoch}, term {term}")));
    }
    let world = crash(world).await;
    assert!(matches!(at(&world, "2", 2, 2).done().await, Ran::Fenced(_)));
    assert!(matches!(at(&world, "4", 2, 3).done().await, Ran::Finished(_)), "the same office goes on");
    assert!(matches!(at(&world, "5", 3, 1).done().await, Ran::Finished(_)));
    assert_eq!(world.sessions.tenure(), Tenure { epoch: 3, term: 1 });
    world.sessions.forget_tenure().await.unwrap();
    let world = crash(world).await;
    assert!(matches!(at(&world, "6", 1, 1).done().await, Ran::Finished(_)), "another mesh counts anew");
}

#[tokio::test]
async fn a_host_request_that_came_before_waits_for_its_twin_as_long_as_it_may() {
    let (world, _session) = world().await;
    let node = node(&world);
    let keyed = |name: &str, id: &str, wait| {
        let dispatch = dispatch(&world, name, id);
        let operation = Operation { request_key: Some("key".into()), ..dispatch.operation };
        Dispatch { operation, wait, ..dispatch }
    };
    let long = Duration::from_secs(60);
    let first = run(&node, keyed("hang", "1", long));
    until("it runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let twin = CallId::from("1");
    let mut impatient = run(&node, keyed("hang", "2", Duration::ZERO));
    assert_eq!(impatient.done().await, Ran::Duplicate { twin: twin.clone(), running: true });
    let mut patient = run(&node, keyed("hang", "3", long));
    let mut same = run(&node, keyed("hang", "1", long));
    same.cancel("enough".into()).await;
    assert_eq!(patient.done().await, Ran::Duplicate { twin, running: false });
    assert!(matches!(same.done().await, Ran::Finished(_)), "a call is no twin of its own");
    same.settle(true);
    drop(first);
    assert_eq!(ran(&world), ["chappie-1"]);
}

#[tokio::test]
async fn the_list_of_sessions_and_of_waiting_conversations_is_announced_by_a_counter() {
    let (world, session) = world().await;
    let node = node(&world);
    let mut changes = world.sessions.subscribe();
    changes.mark_unchanged();
    drop(run(&node, dispatch(&world, "note", "1")));
    until("it is late", || world.sessions.late_conversations() == [chat()].into()).await;
    assert!(changes.has_changed().unwrap());
    node.board(board("r", None)).await;
    assert!(world.sessions.late_conversations().is_empty(), "what is claimed does not wait");
    changes.mark_unchanged();
    node.settle(CallId::from("r"), false);
    assert!(changes.has_changed().unwrap());
    assert_eq!(world.sessions.late_conversations(), [chat()].into());
    assert_eq!(Directory::late(node.as_ref(), &chat()).len(), 1);
    let info = Directory::list(node.as_ref()).remove(0).info;
    assert_eq!((&info.id, info.created), (&session.record().id, session.record().created));
    world.sessions.end(&session).await.unwrap();
    assert!(changes.has_changed().unwrap() && Directory::list(node.as_ref()).is_empty());
    let gone = run(&node, Dispatch { session: info.id, ..dispatch_of("2") }).done().await;
    assert!(matches!(gone, Ran::NeverRan(reason) if reason.contains("ended just now")));
}

fn dispatch_of(id: &str) -> Dispatch {
    let (session, tenure) = (SessionId::from("nowhere"), Tenure { epoch: 1, term: 1 });
    Dispatch { session, operation: work("note", id), wait: Duration::ZERO, tenure, resent: false }
}

/// Reserves the call `id` as operation `op`, and gives its dispatch.
async fn reserved(world: &World, op: &str, id: &str) -> (Dispatch, u32) {
    let dispatch = dispatch(world, "note", id);
    let key = ReceiptKey(op.into());
    let reserve = Reserve {
        key: key.clone(),
        signature: "same".into(),
        operation_id: op.into(),
        conversation: Some(chat()),
        session: dispatch.session.clone(),
        cwd: "/".into(),
        kind: ReceiptKind::Call,
        call_id: id.into(),
    };
    let Reserved::Fresh { attempt } = world.broker.reserve(reserve).await.unwrap() else { panic!("it is not fresh") };
    let receipt = Some(ReceiptClaim { key, attempt });
    (Dispatch { operation: Operation { receipt, ..dispatch.operation }, ..dispatch }, attempt)
}

#[tokio::test]
async fn f3_a_dispatch_that_was_asked_about_before_it_came_is_ordered_again_as_the_next_attempt() {
    let (world, _session) = world().await;
    let local = node(&world);
    let (late, _) = reserved(&world, "op", "1").await;
    let (called_off, _) = reserved(&world, "other", "2").await;
    world.sessions.reconcile().await.unwrap();
    let first = run(&local, late.clone()).done().await;
    assert!(matches!(first, Ran::Fenced(_)), "{first:?}");
    let (retry, attempt) = reserved(&world, "op", "1").await;
    assert_eq!(attempt, 2);
    let mut second = run(&local, retry);
    assert!(matches!(second.done().await, Ran::Finished(_)));
    second.settle(true);
    until("its outcome is known", || {
        let receipt = world.broker.receipt(&ReceiptKey("op".into()));
        receipt.is_some_and(|receipt| receipt.status == ReceiptStatus::Completed)
    })
    .await;
    // It was cancelled meanwhile: no attempt of it runs.
    let cancel = Cancel { call_id: "2".into(), conversation: Some(chat()), reason: "enough".into() };
    local.cancel(cancel).await;
    assert!(matches!(run(&local, called_off).done().await, Ran::Fenced(_)));
    let (retry, _) = reserved(&world, "other", "2").await;
    assert!(matches!(run(&local, retry).done().await, Ran::NeverRan(_)));
    assert_eq!(ran(&world), ["chappie-1"]);
}

#[tokio::test]
async fn f3_an_attempt_that_was_asked_about_stays_sealed_over_a_restart() {
    let (world, _session) = world().await;
    let (late, _) = reserved(&world, "op", "1").await;
    let world = crash(world).await;
    assert!(matches!(run(&node(&world), late).done().await, Ran::Fenced(_)));
    assert_eq!(ran(&world), [""; 0]);
}

#[tokio::test]
async fn f26_a_late_result_whose_payload_is_gone_points_to_history() {
    let (world, _session) = world().await;
    let node = node(&world);
    drop(run(&node, dispatch(&world, "note", "1")));
    until("it is late", || world.sessions.operations().has_late(&chat())).await;
    world.store.durable(vec![Change::remove(Key::outcome(&CallId::from("1")))]).await.unwrap();
    let text = format!("{:?}", node.board(board("r", None)).await);
    assert!(text.contains("deferredResult") && text.contains("read the session's history"), "{text}");
}
