//! A real store and broker around a scripted host.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    testing::{World, chat, crash, open, open_with, until, work, world},
    *,
};
use crate::{
    broker::{
        Broker, ProposeError, ReceiptKey, ReceiptKind, ReceiptScope, ReceiptStatus, Reserve, Reserved, Settlement,
        receipt_key,
    },
    budget::TextBudget,
    content::Block,
    host::BoxFuture,
    ids::{CallId, Conversation, Millis},
    sessions::{
        entry::Body,
        history::Range,
        journal::{JournalRow, Outcome, RowState},
    },
};

async fn history(session: &Session) -> Vec<String> {
    let page = session.page(&Range { limit: 200, before: None, after: None }).await.unwrap();
    page.entries
        .iter()
        .map(|entry| match &entry.body {
            Body::User { .. } => "user".to_owned(),
            Body::Assistant { calls, .. } => format!("asks {}", calls.first().map_or("chat", |call| &call.name)),
            Body::ToolResult { result, .. } => format!("result {}", result.id),
            Body::Notice { event, .. } => format!("{event:?}"),
        })
        .collect()
}

async fn reserve(world: &World, session: &Session, operation: &str, call: &str) -> ReceiptClaim {
    let conversation = chat();
    let key = receipt_key(ReceiptScope::Conversation(&conversation), ReceiptKind::Call, operation);
    let reserve = Reserve {
        key: key.clone(),
        signature: "same".into(),
        operation_id: operation.into(),
        conversation: Some(chat()),
        session: session.record().id.clone(),
        cwd: session.record().cwd.clone(),
        kind: ReceiptKind::Call,
        call_id: CallId::from(call),
    };
    match world.broker.reserve(reserve).await.unwrap() {
        Reserved::Fresh { attempt } => ReceiptClaim { key, attempt },
        other => panic!("expected a fresh receipt, found {other:?}"),
    }
}

#[tokio::test]
async fn operations_of_one_session_run_in_order_and_are_in_history() {
    let (world, session) = world().await;
    let mut runs: Vec<_> = ["1", "2", "3"].iter().map(|id| session.submit(work("note", id)).unwrap()).collect();
    for run in &mut runs {
        assert!(matches!(run.done().await, Progress::Finished(_)));
    }
    assert_eq!(*world.script.ran.lock().unwrap(), ["chappie-1", "chappie-2", "chappie-3"]);
    let expected = ["asks note", "result chappie-1", "asks note", "result chappie-2", "asks note", "result chappie-3"];
    assert_eq!(history(&session).await, expected);
}

#[tokio::test]
async fn f24_arguments_too_large_for_a_row_are_kept_in_a_file_that_history_names() {
    let (_world, session) = world().await;
    for (id, length) in [("small", 60_000), ("large", 1_000_000)] {
        let mut operation = work("note", id);
        let content = "x".repeat(length);
        let Work::Call(calls) = &mut operation.work else { unreachable!() };
        calls[0].arguments.insert("content".into(), content.clone().into());
        let mut run = session.submit(operation).unwrap();
        assert!(matches!(run.done().await, Progress::Finished(_)));
        let page = session.page(&Range { limit: 2, before: None, after: None }).await.unwrap();
        let Body::Assistant { calls, .. } = &page.entries[0].body else { panic!("{page:?}") };
        let text = match calls[0].arguments.get("keptIn") {
            None => serde_json::to_string(&calls[0].arguments).unwrap(),
            Some(path) => std::fs::read_to_string(path.as_str().unwrap()).unwrap(),
        };
        assert_eq!(text, format!("{{\"content\":\"{content}\"}}"));
        assert_eq!(calls[0].arguments.contains_key("keptIn"), id == "large");
        assert!(serde_json::to_vec(&page.entries[0]).unwrap().len() < 64 << 10);
    }
}

#[tokio::test]
async fn f2_acceptance_is_on_disk_before_the_host_starts_and_reading_leaves_no_row() {
    let (world, session) = world().await;
    let mut run = session.submit(work("hang", "1")).unwrap();
    until("the host runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let row: JournalRow = world.store.read(&Key::journal(&CallId::from("1"))).unwrap().unwrap();
    assert_eq!(row.state, RowState::Running);
    run.cancel("test");
    run.done().await;
    let mut run = session.submit(work("read", "2")).unwrap();
    assert!(matches!(run.done().await, Progress::Finished(_)));
    run.delivered();
    world.store.flush().await.unwrap();
    assert_eq!(world.store.read::<JournalRow>(&Key::journal(&CallId::from("2"))).unwrap(), None);
}

#[tokio::test]
async fn f2_a_queued_operation_is_in_memory_only_and_goes_with_the_node() {
    let (world, session) = world().await;
    let first = session.submit(work("hang", "1")).unwrap();
    until("the first runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let queued = session.submit(work("note", "2")).unwrap();
    let row = |world: &World| world.store.read::<JournalRow>(&Key::journal(&CallId::from("2"))).unwrap();
    world.store.flush().await.unwrap();
    assert_eq!(row(&world), None);
    let after = crash(world).await;
    assert_eq!(row(&after), None);
    assert_eq!(history(&after.sessions.list().remove(0)).await, ["asks hang", "Interrupted"]);
    let late = after.sessions.operations().claim_late(&CallId::from("r"), &chat()).await.unwrap();
    assert_eq!(late.iter().map(|late| late.call_id.as_str()).collect::<Vec<_>>(), ["1"]);
    assert!(after.script.ran.lock().unwrap().is_empty());
    drop((first, queued));
}

#[tokio::test]
async fn f4_a_queued_operation_that_is_cancelled_never_runs() {
    let (world, session) = world().await;
    let first = session.submit(work("hang", "1")).unwrap();
    let mut second = session.submit(work("note", "2")).unwrap();
    until("the first runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    second.cancel("changed my mind");
    first.cancel("go on");
    assert!(matches!(second.done().await, Progress::NeverRan(_)));
    assert_eq!(*world.script.ran.lock().unwrap(), ["chappie-1"]);
    drop(second);
    drop(first);
    until("only the running one is late", || world.sessions.operations().has_late(&chat())).await;
    let late = world.sessions.operations().claim_late(&CallId::from("r"), &chat()).await.unwrap();
    assert_eq!(late.iter().map(|late| late.call_id.as_str()).collect::<Vec<_>>(), ["1"]);
}

#[tokio::test]
async fn f6_a_call_whose_outcome_is_late_is_not_queued_again() {
    let (world, session) = world().await;
    drop(session.submit(work("note", "1")).unwrap());
    until("it is late", || world.sessions.operations().has_late(&chat())).await;
    assert!(matches!(session.submit(work("note", "1")), Err(SessionError::Known(_))));
    assert_eq!(world.script.ran.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn f5_f7_a_detached_outcome_arrives_once_with_a_later_response() {
    let (world, session) = world().await;
    let run = session.submit(work("note", "1")).unwrap();
    drop(run);
    let operations = world.sessions.operations();
    until("it is late", || operations.has_late(&chat())).await;
    let (one, two) = (CallId::from("r1"), CallId::from("r2"));
    let late = operations.claim_late(&one, &chat()).await.unwrap();
    assert_eq!((late.len(), late[0].redelivered), (1, false));
    assert_eq!(late[0].outcome.as_ref().unwrap().results[0].id, "chappie-1");
    operations.offering(&[late[0].call_id.clone()], Vec::new()).await.unwrap();
    assert!(operations.claim_late(&two, &chat()).await.unwrap().is_empty(), "claimed by one at a time");
    operations.release_late(&one);
    assert_eq!(operations.claim_late(&two, &chat()).await.unwrap().len(), 1, "not written: free again");
    operations.confirm_late(&two);
    assert!(!operations.has_late(&chat()));
    operations.stopped().await;
    let world = crash(world).await;
    assert!(!world.sessions.operations().has_late(&chat()), "delivered stays delivered");
}

#[tokio::test]
async fn f7_an_outcome_whose_response_may_have_been_written_comes_again_marked() {
    let (world, session) = world().await;
    let mut run = session.submit(work("note", "1")).unwrap();
    run.done().await;
    let after = crash(world).await;
    let late = after.sessions.operations().claim_late(&CallId::from("r"), &chat()).await.unwrap();
    assert_eq!((late.len(), late[0].redelivered), (1, true));
    run.delivered();
}

#[tokio::test]
async fn f7_an_outcome_whose_response_is_known_to_be_lost_comes_after_a_crash_as_new() {
    let (world, session) = world().await;
    let mut run = session.submit(work("note", "1")).unwrap();
    run.done().await;
    drop(run);
    let after = crash(world).await;
    let late = after.sessions.operations().claim_late(&CallId::from("r"), &chat()).await.unwrap();
    assert_eq!((late.len(), late[0].redelivered), (1, false));
}

#[tokio::test]
async fn f2_f8_a_crash_while_running_is_interrupted_uncertain_and_told_once() {
    let (world, session) = world().await;
    let claim = reserve(&world, &session, "op", "1").await;
    let run = session.submit(Operation { receipt: Some(claim.clone()), ..work("hang", "1") }).unwrap();
    until("the host runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let after = crash(world).await;
    let session = after.sessions.list().remove(0);
    assert_eq!(history(&session).await, ["asks hang", "Interrupted"]);
    until("the receipt is uncertain", || {
        after.broker.receipt(&claim.key).is_some_and(|receipt| receipt.status == ReceiptStatus::Uncertain)
    })
    .await;
    let late = after.sessions.operations().claim_late(&CallId::from("r"), &chat()).await.unwrap();
    assert!(late[0].outcome.as_ref().unwrap().error.as_ref().unwrap().contains("uncertain"));
    assert!(after.script.ran.lock().unwrap().is_empty(), "it never runs again");
    drop(run);
}

/// A broker behind a line that may be cut.
struct Line {
    broker: Broker,
    up: AtomicBool,
}

impl Line {
    fn check(&self) -> Result<(), ProposeError> {
        let cut = || ProposeError::NotWritten("the line is cut".into());
        self.up.load(Ordering::SeqCst).then_some(()).ok_or_else(cut)
    }
}

impl Office for Line {
    fn settle(&self, key: ReceiptKey, attempt: u32, settlement: Settlement) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(async move {
            self.check()?;
            self.broker.settle(key, attempt, settlement).await
        })
    }

    fn undelivered(
        &self,
        conversation: Conversation,
        ids: Vec<String>,
    ) -> BoxFuture<'_, Result<Vec<String>, ProposeError>> {
        Box::pin(async move {
            self.check()?;
            Ok(self.broker.undelivered(&conversation, &ids))
        })
    }

    fn delivered(&self, conversation: Conversation, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(async move {
            self.check()?;
            self.broker.delivered(&conversation, ids).await
        })
    }

    fn forget_delivered(&self, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(async move {
            self.check()?;
            self.broker.forget_delivered(ids).await
        })
    }

    fn running(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<Vec<RunningReceipt>, ProposeError>> {
        Box::pin(async move {
            self.check()?;
            Office::running(&self.broker, sessions).await
        })
    }

    fn announce(&self, sessions: Vec<SessionInfo>) {
        Office::announce(&self.broker, sessions);
    }
}

/// A world whose broker cannot be reached, and the line to it.
async fn cut_off() -> (World, Arc<Line>, Arc<Session>) {
    let mut line = None;
    let world = open_with(tempfile::tempdir().unwrap(), |broker| {
        let cut = Arc::new(Line { broker, up: AtomicBool::new(false) });
        line = Some(Arc::clone(&cut));
        cut
    })
    .await;
    let session = world.sessions.create(world.home.path(), None).await.unwrap();
    (world, line.unwrap(), session)
}

#[tokio::test]
async fn f9_an_outcome_that_the_broker_did_not_hear_of_is_reported_after_a_restart() {
    let (world, _line, session) = cut_off().await;
    let status = |world: &World, claim: &ReceiptClaim| world.broker.receipt(&claim.key).map(|receipt| receipt.status);
    let claim = reserve(&world, &session, "op", "1").await;
    let mut run = session.submit(Operation { receipt: Some(claim.clone()), ..work("note", "1") }).unwrap();
    assert!(matches!(run.done().await, Progress::Finished(_)));
    run.delivered();
    assert_eq!(status(&world, &claim), Some(ReceiptStatus::Running), "the broker has heard nothing");
    let after = crash(world).await;
    until("it is reported", || status(&after, &claim) == Some(ReceiptStatus::Completed)).await;
    assert!(after.script.ran.lock().unwrap().is_empty());
}

#[tokio::test]
async fn f9_a_broker_that_was_away_hears_everything_when_it_is_met_again() {
    let (world, line, session) = cut_off().await;
    let status = |claim: &ReceiptClaim| world.broker.receipt(&claim.key).map(|receipt| receipt.status);
    let (ran, lost) = (reserve(&world, &session, "ran", "1").await, reserve(&world, &session, "lost", "2").await);
    let running = reserve(&world, &session, "running", "3").await;
    drop(session.submit(Operation { receipt: Some(ran.clone()), ..work("note", "1") }).unwrap());
    let operations = world.sessions.operations();
    until("its outcome is late", || operations.has_late(&chat())).await;
    let held = session.submit(Operation { receipt: Some(running.clone()), ..work("hang", "3") }).unwrap();
    assert!(operations.claim_late(&CallId::from("r"), &chat()).await.unwrap().is_empty(), "is it delivered? ask later");
    assert!(operations.has_late(&chat()));
    assert!(matches!(world.sessions.reconcile().await, Err(ReconcileError::Office(_))));
    assert_eq!(status(&ran), Some(ReceiptStatus::Running));
    line.up.store(true, Ordering::SeqCst);
    let (one, two) = tokio::join!(world.sessions.reconcile(), world.sessions.reconcile());
    assert_eq!((one, two), (Ok(()), Ok(())));
    until("the outcome is reported", || status(&ran) == Some(ReceiptStatus::Completed)).await;
    assert_eq!((status(&lost), status(&running)), (Some(ReceiptStatus::NeverRun), Some(ReceiptStatus::Running)));
    let late = operations.claim_late(&CallId::from("r"), &chat()).await.unwrap();
    assert_eq!((late.len(), late[0].redelivered), (1, false));
    line.up.store(false, Ordering::SeqCst);
    operations.confirm_late(&CallId::from("r"));
    assert_eq!(operations.ask(&CallId::from("1"), None).await.unwrap(), Standing::Delivered);
    line.up.store(true, Ordering::SeqCst);
    let delivered = || {
        let row: Option<JournalRow> = world.store.read(&Key::journal(&CallId::from("1"))).unwrap();
        row.is_some_and(|row| row.delivered)
    };
    until("the broker heard of the delivery", delivered).await;
    held.cancel("over");
}

#[tokio::test]
async fn f3_a_receipt_that_reached_no_journal_is_sealed_and_a_retry_runs_as_the_next_attempt() {
    let (world, session) = world().await;
    let claim = reserve(&world, &session, "op", "1").await;
    let after = crash(world).await;
    let session = after.sessions.list().remove(0);
    assert!(after.sessions.operations().is_sealed(&claim.key.0, claim.attempt).unwrap());
    let stale = session.submit(Operation { receipt: Some(claim.clone()), ..work("note", "1") });
    assert!(matches!(stale.unwrap().done().await, Progress::NeverRan(_)), "a sealed attempt never runs");
    let mut stale = session.submit(Operation { receipt: Some(claim.clone()), ..work("note", "1b") }).unwrap();
    assert!(matches!(stale.done().await, Progress::NeverRan(_)), "by whatever call");
    let again = reserve(&after, &session, "op", "2").await;
    assert!(again.attempt > claim.attempt);
    let mut run = session.submit(Operation { receipt: Some(again), ..work("note", "2") }).unwrap();
    assert!(matches!(run.done().await, Progress::Finished(_)));
}

#[tokio::test]
async fn f3_what_an_older_journal_does_not_know_stays_uncertain() {
    let (world, session) = world().await;
    let since = |at| world.store.durable(vec![Change::set(Key::journal_since(), &at)]);
    let status = |claim: &ReceiptClaim| world.broker.receipt(&claim.key).map(|receipt| receipt.status);
    let soon = reserve(&world, &session, "soon", &clock::call_id().0).await;
    since(clock::now()).await.unwrap();
    world.sessions.reconcile().await.unwrap();
    assert_eq!(status(&soon), Some(ReceiptStatus::Uncertain), "whatever the clock of its door says");
    let day_later = reserve(&world, &session, "later", &clock::call_id().0).await;
    since(Millis(clock::now().0 - 26 * 3_600_000)).await.unwrap();
    world.sessions.reconcile().await.unwrap();
    assert_eq!(status(&day_later), Some(ReceiptStatus::NeverRun));
}

#[tokio::test]
async fn f2_an_operation_that_ran_is_not_run_again_under_its_receipt_by_another_call() {
    let (world, session) = world().await;
    let claim = reserve(&world, &session, "op", "1").await;
    let mut first = session.submit(Operation { receipt: Some(claim.clone()), ..work("note", "1") }).unwrap();
    assert!(matches!(first.done().await, Progress::Finished(_)));
    // As by a broker that lost sight of the receipt.
    let mut second = session.submit(Operation { receipt: Some(claim.clone()), ..work("note", "2") }).unwrap();
    assert!(matches!(second.done().await, Progress::NeverRan(reason) if reason.contains("ran before as 1")));
    assert!(!world.script.ran.lock().unwrap().contains(&"chappie-2".to_owned()));
    let receipt = || world.broker.receipt(&claim.key).map(|receipt| receipt.status);
    until("the receipt says that it was done", || receipt() == Some(ReceiptStatus::Completed)).await;
    assert!(!world.sessions.operations().is_sealed(&claim.key.0, claim.attempt).unwrap());
}

#[tokio::test]
async fn a_full_queue_is_said_at_once_and_changes_nothing() {
    let (world, session) = world().await;
    let first = session.submit(work("hang", "first")).unwrap();
    until("the first runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    let mut runs: Vec<_> = (0..512).map(|n| session.submit(work("note", &format!("{n}"))).unwrap()).collect();
    assert!(matches!(session.submit(work("note", "over")), Err(SessionError::QueueFull(_))));
    first.cancel("go on");
    assert!(matches!(runs.pop().unwrap().done().await, Progress::Finished(_)));
    assert!(!world.script.ran.lock().unwrap().contains(&"chappie-over".to_owned()));
}

#[tokio::test]
async fn an_ended_session_refuses_what_waited_and_is_gone_after_a_restart() {
    let (world, session) = world().await;
    let mut running = session.submit(work("hang", "1")).unwrap();
    let mut queued = session.submit(work("note", "2")).unwrap();
    until("the first runs", || world.script.running.load(Ordering::SeqCst) == 1).await;
    world.sessions.end(&session).await.unwrap();
    assert!(matches!(running.done().await, Progress::Finished(_)));
    assert!(matches!(queued.done().await, Progress::NeverRan(_)));
    assert!(matches!(session.submit(work("note", "3")), Err(SessionError::Ended(_))));
    assert!(world.sessions.list().is_empty());
    assert!(crash(world).await.sessions.list().is_empty());
}

#[tokio::test]
async fn f7_inputs_survive_a_restart_and_are_consumed_only_when_written() {
    let (world, session) = world().await;
    for text in ["NOTE-A", "NOTE-B"] {
        session.say(vec![Block::text(text)]).await.unwrap();
    }
    let world = crash(world).await;
    let session = world.sessions.list().remove(0);
    let by = CallId::from("r");
    let texts = |inputs: &[Input]| inputs.iter().map(|input| input.content.clone()).collect::<Vec<_>>();
    let both = [vec![Block::text("NOTE-A")], vec![Block::text("NOTE-B")]];
    let inputs = session.claim_inputs(&by).unwrap();
    assert_eq!(texts(&inputs), both);
    assert!(inputs.iter().all(|input| !input.redelivered));
    world.sessions.operations().offering(&[], session.offering(&inputs)).await.unwrap();
    session.release_inputs(&by);
    assert_eq!(texts(&session.claim_inputs(&by).unwrap()), both, "not written: they come again");
    let other = crash(world).await;
    let session = other.sessions.list().remove(0);
    let inputs = session.claim_inputs(&by).unwrap();
    assert!(inputs.iter().all(|input| input.redelivered), "offered before the crash: they say so");
    session.confirm_inputs(&by);
    let last = crash(other).await;
    assert!(!last.sessions.list().remove(0).has_inputs());
}

#[tokio::test]
async fn a_session_is_found_by_id_name_and_unique_prefix() {
    let world = open(tempfile::tempdir().unwrap()).await;
    let folder = world.home.path();
    assert!(matches!(world.sessions.named(None), Err(DirectoryError::Unknown { .. })));
    let one = world.sessions.create(folder, Some("one".into())).await.unwrap();
    assert_eq!(world.sessions.named(None).unwrap().record().id, one.record().id);
    let same = world.sessions.create(folder, Some("one".into())).await.unwrap();
    assert_eq!(same.record().id, one.record().id);
    let two = world.sessions.create(folder, Some("two".into())).await.unwrap();
    assert!(matches!(world.sessions.named(None), Err(DirectoryError::Ambiguous { .. })));
    assert_eq!(world.sessions.named(Some("two")).unwrap().record().id, two.record().id);
    assert_eq!(world.sessions.named(Some(one.record().id.as_str())).unwrap().record().id, one.record().id);
    assert!(matches!(world.sessions.named(Some("nobody")), Err(DirectoryError::Unknown { .. })));
    for name in ["", "a\nb", &"x".repeat(200)] {
        assert!(matches!(world.sessions.create(folder, Some(name.into())).await, Err(DirectoryError::Name(_))));
    }
    let missing = folder.join("missing");
    assert!(matches!(world.sessions.create(&missing, None).await, Err(DirectoryError::Folder { .. })));
}

#[test]
fn only_a_request_id_that_names_one_request_is_an_identity() {
    let full = format!("wfr_{}/7", "a1".repeat(16));
    let chat = chat();
    let identity = |id: &str, signature: &str| request_identity(Some(&chat), id, signature);
    assert!(identity(&full, "s").is_some());
    assert_ne!(identity(&full, "s"), identity(&full, "t"));
    assert_ne!(identity(&full, "s"), request_identity(None, &full, "s"));
    for id in [&full[..36], "wfr_12/3", "abc", &format!("{}/", &full[..36])] {
        assert_eq!(identity(id, "s"), None, "{id}");
    }
    assert_eq!(Millis(5).since(Millis(9)), 0);
}

#[tokio::test]
async fn f26_beyond_2048_late_results_the_oldest_is_a_stub_that_a_restart_keeps() {
    const KEPT: usize = 2_048;
    // What one outcome has is bounded by the text of an answer; pictures are references. So 256 MiB are never reached.
    const { assert!(KEPT * TextBudget::WHOLE.bytes * 8 <= 256 << 20) };
    let (world, session) = world().await;
    let whose = |n: usize| Conversation::Chat(format!("v1/{n}"));
    let row = |n: usize| JournalRow {
        call_id: CallId(format!("{n:05}")),
        session: session.record().id.clone(),
        cwd: "/".into(),
        conversation: Some(whose(n)),
        request_id: None,
        request_key: None,
        receipt: None,
        label: "note".into(),
        accepted: clock::now(),
        state: RowState::Finished(clock::now()),
        ended: None,
        settled: true,
        delivered: false,
        detached: true,
        offered: 0,
    };
    let (rows, outcome) = ((0..=KEPT).map(row).collect::<Vec<_>>(), Outcome::default());
    let both = |row: &JournalRow| {
        [Change::set(Key::journal(&row.call_id), row), Change::set(Key::outcome(&row.call_id), &outcome)]
    };
    world.store.durable(rows.iter().flat_map(both).collect()).await.unwrap();
    rows.into_iter().for_each(|row| world.sessions.operations().insert_late(row, false));
    let looked_at = async |world: &World| {
        for (n, kept) in [(0, None), (1, Some(&outcome)), (KEPT, Some(&outcome))] {
            let by = CallId::from("r");
            let late = world.sessions.operations().claim_late(&by, &whose(n)).await.unwrap();
            assert_eq!((late.len(), late[0].outcome.as_ref()), (1, kept), "{n}");
            world.sessions.operations().release_late(&by);
        }
    };
    looked_at(&world).await;
    looked_at(&crash(world).await).await;
}
