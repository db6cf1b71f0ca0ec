//! Receipts and delivered late results (behaviour 8 and 11), through the handle.

use super::*;
use crate::storage::faulty::Fault;

fn resource(n: usize) -> ResourceRefData {
    ResourceRefData {
        uri: format!("chappie://session/s1/file/{n}/f"),
        name: "f".into(),
        mime_type: "text/plain".into(),
        size: 3,
        source_read_at: None,
    }
}

fn completed(resources: Vec<ResourceRefData>) -> Settlement {
    Settlement::Completed { resources }
}

fn uncertain(reason: &str) -> Settlement {
    Settlement::Uncertain { reason: reason.into() }
}

async fn fresh(rig: &Rig, reserve: Reserve) -> u32 {
    match rig.broker.reserve(reserve).await.unwrap() {
        Reserved::Fresh { attempt } => attempt,
        other => panic!("expected a fresh receipt, got {other:?}"),
    }
}

async fn replay(rig: &Rig, reserve: Reserve) -> Receipt {
    match rig.broker.reserve(reserve).await.unwrap() {
        Reserved::Replay(receipt) => receipt,
        other => panic!("expected a replay, got {other:?}"),
    }
}

#[tokio::test]
async fn s8_2_a_receipt_is_on_disk_before_its_dispatch() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    assert_eq!(fresh(&rig, operation.clone()).await, 1);
    let left = rig.after_power_cut().await.broker.receipt(&operation.key).unwrap();
    assert_eq!((left.status, left.attempt, left.cwd.as_str()), (ReceiptStatus::Running, 1, "/w"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_2_simultaneous_approvals_execute_once() {
    let rig = Rig::new(quick()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let broker = rig.broker.clone();
        tasks.spawn(async move { broker.reserve(reserve(&chat("c"), "op", "{}")).await.unwrap() });
    }
    let reserved = tasks.join_all().await;
    assert_eq!(reserved.iter().filter(|found| matches!(found, Reserved::Fresh { attempt: 1 })).count(), 1);
    assert_eq!(reserved.iter().filter(|found| matches!(found, Reserved::Replay(_))).count(), 15);
}

#[tokio::test]
async fn s17_a_replay_after_a_restart_finds_the_receipt_with_its_references() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", r#"{"paths":["a"]}"#);
    fresh(&rig, operation.clone()).await;
    rig.broker.settle(operation.key.clone(), 1, completed(vec![resource(1)])).await.unwrap();
    let rig = rig.restart().await;
    let receipt = replay(&rig, operation).await;
    assert_eq!((receipt.status, receipt.resources), (ReceiptStatus::Completed, vec![resource(1)]));
}

#[tokio::test]
async fn s17_other_arguments_conflict_and_a_rotated_url_does_not() {
    let rig = Rig::new(quick()).await;
    let files =
        |url: &str, id: &str| format!(r#"{{"paths":["a"],"files":[{{"download_url":"{url}","file_id":"{id}"}}]}}"#);
    let operation = |arguments: &str| reserve(&chat("c"), "op", arguments);
    fresh(&rig, operation(&files("https://a", "f1"))).await;
    assert_eq!(replay(&rig, operation(&files("https://b", "f1"))).await.status, ReceiptStatus::Running);
    let changed = rig.broker.reserve(operation(&files("https://a", "f2"))).await.unwrap();
    assert!(matches!(changed, Reserved::Conflict(receipt) if receipt.operation_id == "op"));
}

#[tokio::test]
async fn s17_another_conversation_session_scope_or_kind_is_another_operation() {
    let rig = Rig::new(quick()).await;
    let stateless = |session: &str| Reserve {
        key: receipt_key(ReceiptScope::Session(&SessionId::from(session)), ReceiptKind::Call, "op"),
        conversation: None,
        ..reserve(&chat("x"), "op", "{}")
    };
    let said = Reserve {
        key: receipt_key(ReceiptScope::Conversation(&chat("a")), ReceiptKind::Chat, "op"),
        kind: ReceiptKind::Chat,
        ..reserve(&chat("a"), "op", "{}")
    };
    for operation in [
        reserve(&chat("a"), "op", "{}"),
        reserve(&chat("b"), "op", "{}"),
        reserve(&connection("a"), "op", "{}"),
        stateless("s1"),
        stateless("s2"),
        said,
    ] {
        assert_eq!(fresh(&rig, operation).await, 1);
    }
}

#[tokio::test]
async fn d12_the_same_operation_sent_to_another_session_is_a_replay_of_the_first() {
    let rig = Rig::new(quick()).await;
    fresh(&rig, reserve(&chat("c"), "op", r#"{"paths":["a"]}"#)).await;
    let named = Reserve { session: session("s2"), ..reserve(&chat("c"), "op", r#"{"paths":["a"],"sessionId":"s2"}"#) };
    assert_eq!(replay(&rig, named).await.session, session("s1"));
}

#[tokio::test]
async fn f3_a_sealed_attempt_runs_again_under_the_next_number_and_its_late_report_is_ignored() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    let key = operation.key.clone();
    fresh(&rig, operation.clone()).await;
    rig.broker.settle(key.clone(), 1, Settlement::NeverRun).await.unwrap();
    let retry = Reserve { call_id: CallId::from("call-2"), session: session("s2"), ..operation.clone() };
    assert_eq!(fresh(&rig, retry).await, 2);
    rig.broker.settle(key.clone(), 1, completed(vec![])).await.unwrap();
    let receipt = rig.broker.receipt(&key).unwrap();
    assert_eq!((receipt.status, receipt.call_id), (ReceiptStatus::Running, CallId::from("call-2")));
    rig.broker.settle(key.clone(), 2, completed(vec![])).await.unwrap();
    assert_eq!(replay(&rig, operation).await.attempt, 2);
}

#[tokio::test]
async fn s8_2_completed_is_final_and_an_uncertain_one_may_still_complete() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    let key = operation.key.clone();
    fresh(&rig, operation.clone()).await;
    rig.broker.settle(key.clone(), 1, uncertain("the session node is gone")).await.unwrap();
    let receipt = replay(&rig, operation.clone()).await;
    assert_eq!(
        (receipt.status, receipt.reason.as_deref()),
        (ReceiptStatus::Uncertain, Some("the session node is gone"))
    );
    rig.clock.advance(1_000);
    rig.broker.settle(key.clone(), 1, completed(vec![resource(1)])).await.unwrap();
    for later in [uncertain("again"), Settlement::NeverRun, completed(vec![resource(2)])] {
        rig.broker.settle(key.clone(), 1, later).await.unwrap();
    }
    let receipt = replay(&rig, operation).await;
    assert_eq!(
        (receipt.status, receipt.reason, receipt.resources),
        (ReceiptStatus::Completed, None, vec![resource(1)])
    );
    assert_eq!(receipt.updated, Millis(START + 1_000));
}

#[tokio::test]
async fn s8_2_only_settled_receipts_expire_and_the_same_id_then_executes_anew() {
    let rig = Rig::new(quick()).await;
    let operation = |id: &str| reserve(&chat("c"), id, "{}");
    for id in ["completed", "uncertain", "running", "sealed"] {
        fresh(&rig, operation(id)).await;
        rig.clock.advance(1);
    }
    rig.broker.settle(operation("completed").key, 1, completed(vec![])).await.unwrap();
    rig.broker.settle(operation("uncertain").key, 1, uncertain("why")).await.unwrap();
    rig.broker.settle(operation("sealed").key, 1, Settlement::NeverRun).await.unwrap();
    rig.clock.advance(DAY - 1);
    assert_eq!(replay(&rig, operation("completed")).await.status, ReceiptStatus::Completed);
    rig.clock.advance(1);
    assert_eq!(rig.broker.receipt(&operation("completed").key), None);
    assert_eq!(fresh(&rig, operation("completed")).await, 2);
    rig.clock.advance(400 * DAY);
    assert_eq!(replay(&rig, operation("running")).await.status, ReceiptStatus::Running);
    assert_eq!(replay(&rig, operation("uncertain")).await.status, ReceiptStatus::Uncertain);
    rig.broker.forget_delivered(vec![]).await.unwrap();
    rig.broker.delivered(&chat("c"), vec!["x".into()]).await.unwrap();
    let listed: Vec<String> = rig.broker.receipts().into_iter().map(|receipt| receipt.operation_id).collect();
    assert_eq!(listed, ["completed", "running", "uncertain"]);
}

#[tokio::test]
async fn a_person_settles_uncertain_receipts_and_only_those() {
    let rig = Rig::new(quick()).await;
    let operation = |id: &str| reserve(&chat("c"), id, "{}");
    let key = |id: &str| operation(id).key;
    for id in ["done", "undone", "running"] {
        fresh(&rig, operation(id)).await;
    }
    for id in ["done", "undone"] {
        rig.broker.settle(key(id), 1, uncertain("why")).await.unwrap();
    }
    rig.broker.resolve(key("done"), Resolve::Completed).await.unwrap();
    rig.broker.resolve(key("undone"), Resolve::NotDone).await.unwrap();
    assert_eq!(replay(&rig, operation("done")).await.status, ReceiptStatus::Completed);
    assert_eq!(fresh(&rig, operation("undone")).await, 2);

    let running = rig.broker.resolve(key("running"), Resolve::Completed).await.unwrap_err();
    assert!(running.to_string().contains("is running; only an uncertain one"), "{running}");
    let unknown = rig.broker.resolve(ReceiptKey("no".into()), Resolve::NotDone).await.unwrap_err();
    assert_eq!(unknown, ResolveError::Unknown(ReceiptKey("no".into())));
    rig.broker.resolve(key("done"), Resolve::Completed).await.unwrap();
}

#[tokio::test]
async fn a_reservation_whose_caller_left_did_not_run_and_may_be_made_again() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    let mut applied = rig.broker.subscribe();
    rig.disk.hold();
    let mut left = Box::pin(rig.broker.reserve(operation.clone()));
    start(left.as_mut());
    rig.disk.release();
    applied.changed().await.unwrap();
    drop(left);
    until(|| rig.broker.receipt(&operation.key).is_some_and(|receipt| receipt.status == ReceiptStatus::NeverRun)).await;
    assert_eq!(fresh(&rig, operation).await, 2);
}

#[tokio::test]
async fn f12_a_reservation_reported_as_unknown_that_was_kept_is_taken_back() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    rig.disk.fail(Fault::SyncKept);
    let error = rig.broker.reserve(operation.clone()).await.unwrap_err();
    assert!(matches!(error, ProposeError::Unknown(_)), "{error}");
    rig.disk.mend();
    until(|| rig.broker.receipt(&operation.key).is_some_and(|receipt| receipt.status == ReceiptStatus::NeverRun)).await;
    assert_eq!(fresh(&rig, operation).await, 2);
}

#[tokio::test]
async fn an_operation_id_has_1_to_128_characters() {
    let rig = Rig::new(quick()).await;
    fresh(&rig, reserve(&chat("c"), &"ä".repeat(128), "{}")).await;
    let error = rig.broker.reserve(reserve(&chat("c"), &"a".repeat(129), "{}")).await.unwrap_err();
    assert!(error.to_string().contains("129 characters where at most 128"), "{error}");
    assert_eq!(rig.broker.receipts().len(), 1);
}

#[tokio::test]
async fn s7_6_the_first_read_of_a_resource_is_recorded_on_the_conversations_receipts() {
    let rig = Rig::new(quick()).await;
    for (whose, id) in [("a", "1"), ("a", "2"), ("b", "3")] {
        let operation = reserve(&chat(whose), id, "{}");
        fresh(&rig, operation.clone()).await;
        rig.broker.settle(operation.key, 1, completed(vec![resource(1)])).await.unwrap();
    }
    rig.clock.advance(5);
    rig.broker.source_read(&chat("a"), &resource(1).uri).await.unwrap();
    rig.clock.advance(5);
    rig.broker.source_read(&chat("a"), &resource(1).uri).await.unwrap();
    let read = |id: &str, whose: &str| {
        let key = reserve(&chat(whose), id, "{}").key;
        rig.broker.receipt(&key).unwrap().resources[0].source_read_at
    };
    let at = Some(Millis(START + 5));
    assert_eq!([read("1", "a"), read("2", "a"), read("3", "b")], [at, at, None]);
}

#[tokio::test]
async fn f6_a_replay_can_wait_for_the_running_work() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    fresh(&rig, operation.clone()).await;
    let mut applied = rig.broker.subscribe();
    let broker = rig.broker.clone();
    let key = operation.key.clone();
    let waiting = tokio::spawn(async move {
        applied.wait_for(|_| broker.receipt(&key).is_some_and(|receipt| !receipt.unresolved())).await.unwrap();
    });
    rig.broker.settle(operation.key, 1, completed(vec![])).await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn s11_a_delivered_late_result_stays_delivered_until_its_owner_forgot_it() {
    let rig = Rig::new(quick()).await;
    let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    rig.broker.delivered(&chat("c"), ids(&["r1", "r2"])).await.unwrap();
    let rig = rig.restart().await;
    assert_eq!(rig.broker.undelivered(&chat("c"), &ids(&["r3", "r2", "r1"])), ids(&["r3"]));
    assert_eq!(rig.broker.undelivered(&chat("d"), &ids(&["r1"])), ids(&["r1"]));
    rig.clock.advance(400 * DAY);
    let before = rig.applied();
    rig.broker.delivered(&chat("c"), ids(&["r1"])).await.unwrap();
    assert_eq!(rig.applied(), before);
    rig.broker.forget_delivered(ids(&["r1", "unknown"])).await.unwrap();
    assert_eq!(rig.broker.undelivered(&chat("c"), &ids(&["r1", "r2"])), ids(&["r1"]));
}

#[tokio::test]
async fn f26_delivered_ids_are_never_dropped_for_room() {
    let rig = Rig::new(quick()).await;
    let ids: Vec<String> = (0..limits::DELIVERED_MAX).map(|n| format!("r{n}")).collect();
    rig.broker.delivered(&chat("c"), ids.clone()).await.unwrap();
    let error = rig.broker.delivered(&chat("c"), vec!["r0".into(), "more".into()]).await.unwrap_err();
    assert_eq!(error, ProposeError::Full { what: "delivered late results".into(), limit: limits::DELIVERED_MAX });
    assert!(rig.broker.undelivered(&chat("c"), &ids).is_empty());
    rig.broker.forget_delivered(vec!["r0".into()]).await.unwrap();
    rig.broker.delivered(&chat("c"), vec!["more".into()]).await.unwrap();
}
