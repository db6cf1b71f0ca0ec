//! Crashes, failing disks, clocks that jump, old and foreign stores, imports.

use chappie_mesh::consensus::{LogStore as _, MemberId, Write, seed};

use super::{
    command::{Command, Entry, ImportCounts, Stamped},
    limits::{BATCH_MAX, QUEUE_MAX},
    state::State,
    testing::alone,
    *,
};
use crate::storage::{
    faulty::Fault,
    log::{ConsensusStore, Opened},
    relics::{make_format_1, store_path},
};

fn seal(key: &str) -> (ReceiptKey, u32, Settlement) {
    (ReceiptKey(key.into()), 1, Settlement::NeverRun)
}

async fn deliver(rig: &Rig, id: &str) -> Result<(), ProposeError> {
    rig.broker.delivered(&chat("c"), vec![id.into()]).await
}

fn has(rig: &Rig, id: &str) -> bool {
    rig.broker.undelivered(&chat("c"), &[id.into()]).is_empty()
}

#[tokio::test]
async fn a_crash_between_append_and_apply_loses_nothing() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    rig.session_of(operate(&chat("c"))).await;
    let mut expected = State::decode(&rig.state()).unwrap();

    // The log gets an entry, and the process is killed before it is applied.
    rig.clock.advance(7);
    rig.disk.fail(Fault::SyncKept);
    deliver(&rig, "late").await.unwrap_err();
    assert!(!has(&rig, "late"));
    let deliver = Command::Deliver { conversation: chat("c").key(), ids: vec!["late".into()] };
    machine::apply_next(&mut expected, Entry { at: Millis(START + 7), command: deliver });

    let rig = rig.after_power_cut().await;
    assert!(rig.state() == expected.encode());
    assert!(has(&rig, "late"));
}

#[tokio::test]
async fn every_acknowledged_change_survives_a_power_cut() {
    let rig = Rig::new(quick()).await;
    for n in 0..40 {
        deliver(&rig, &format!("r{n}")).await.unwrap();
        assert!(rig.after_power_cut().await.state() == rig.state());
    }
}

#[tokio::test]
async fn f25_a_full_disk_is_told_apart_and_the_broker_recovers_by_itself() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    rig.session_of(operate(&chat("c"))).await;
    rig.disk.fail(Fault::Full);
    let error = deliver(&rig, "lost").await.unwrap_err();
    assert!(error.to_string().contains("repeat the same request"), "{error}");
    until(|| rig.broker.trouble().is_some()).await;
    let refused = rig.broker.reserve(reserve(&chat("c"), "op", "{}")).await.unwrap_err();
    assert!(matches!(refused, ProposeError::NotWritten(_)), "{refused}");
    // What needs no write goes on.
    assert_eq!(rig.session_of(operate(&chat("c"))).await, "s1");
    rig.disk.mend();
    until(|| rig.broker.trouble().is_none()).await;
    assert!(!has(&rig, "lost"));
    deliver(&rig, "kept").await.unwrap();
    assert!(rig.after_power_cut().await.state() == rig.state());
}

#[tokio::test]
async fn f12_an_unknown_commit_that_was_kept_is_in_the_rebuilt_state() {
    let rig = Rig::new(quick()).await;
    deliver(&rig, "before").await.unwrap();
    rig.disk.fail(Fault::SyncKept);
    let error = deliver(&rig, "unknown").await.unwrap_err();
    assert!(matches!(error, ProposeError::Unknown(_)), "{error}");
    rig.disk.mend();
    until(|| has(&rig, "unknown")).await;
    deliver(&rig, "after").await.unwrap();
    assert!(rig.after_power_cut().await.state() == rig.state());
}

#[tokio::test]
async fn f24_commands_that_wait_together_share_a_commit() {
    let rig = Rig::new(quick()).await;
    deliver(&rig, "first").await.unwrap();
    let one = {
        let before = rig.disk.syncs();
        deliver(&rig, "one").await.unwrap();
        rig.disk.syncs() - before
    };
    rig.disk.hold();
    let before = rig.disk.syncs();
    let broker = &rig.broker;
    let one_more = |n| async move { broker.delivered(&chat("c"), vec![format!("r{n}")]).await };
    let mut waiting: Vec<_> = (0..BATCH_MAX).map(|n| Box::pin(one_more(n))).collect();
    waiting.iter_mut().for_each(|one| start(one.as_mut()));
    // The log takes them all while the first of them waits for the disk.
    let proposed = futures_util::future::join_all(waiting);
    tokio::pin!(proposed);
    assert!(tokio::time::timeout(Duration::from_millis(300), proposed.as_mut()).await.is_err());
    rig.disk.release();
    proposed.await.into_iter().for_each(|done| done.unwrap());
    let syncs = rig.disk.syncs() - before;
    assert!(syncs <= BATCH_MAX / 8 * one, "{syncs} syncs for {BATCH_MAX} commands, {one} for one");
    assert!(has(&rig, "r0") && has(&rig, &format!("r{}", BATCH_MAX - 1)));
}

#[tokio::test]
async fn a_full_queue_is_an_error_and_nothing_of_it_is_kept() {
    let rig = Rig::new(quick()).await;
    rig.disk.hold();
    let settle = || {
        let (key, attempt, settlement) = seal("k");
        rig.broker.settle(key, attempt, settlement)
    };
    let mut first = Box::pin(settle());
    start(first.as_mut());
    let mut waiting = vec![first];
    let refused = loop {
        assert!(waiting.len() <= QUEUE_MAX + BATCH_MAX + 1);
        let mut next = Box::pin(settle());
        match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Pending => waiting.push(next),
            std::task::Poll::Ready(result) => break result.unwrap_err(),
        }
    };
    assert_eq!(refused, ProposeError::Busy);
    rig.disk.release();
    let accepted = waiting.len() as u64;
    for done in waiting {
        done.await.unwrap();
    }
    assert_eq!(rig.applied(), accepted);
}

#[tokio::test]
async fn a_closed_broker_refuses_and_its_file_can_be_opened_again() {
    let home = tempfile::tempdir().unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    let told = alone(home.path(), node(1), quick()).await.map(|_| ()).unwrap_err();
    assert!(matches!(told, OpenError::InUse { .. }), "{told}");
    broker.delivered(&chat("c"), vec!["r".into()]).await.unwrap();
    broker.close().await;
    broker.close().await;
    assert_eq!(broker.delivered(&chat("c"), vec!["s".into()]).await, Err(ProposeError::Stopped));
    let again = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!(again.undelivered(&chat("c"), &["r".into(), "s".into()]), ["s"]);
}

/// The broker's refusal of a store whose last run ended, and to which `spoil` did something.
async fn refusal(spoil: impl FnOnce(&mut ConsensusStore, Opened)) -> String {
    let rig = Rig::new(quick()).await;
    rig.broker.close().await;
    let (mut store, opened) = ConsensusStore::open(rig.disk.medium(), node(1)).unwrap();
    spoil(&mut store, opened);
    drop(store);
    Rig::open(rig.disk, rig.clock, quick()).await.map(|_| ()).unwrap_err().to_string()
}

#[tokio::test]
async fn a_damaged_entry_or_state_is_named_and_never_skipped() {
    let told = refusal(|store, opened| {
        let next = opened.persisted.log.last().unwrap().0 + 1;
        store.write(vec![Write::Append(vec![(next, vec![9, 9, 9])])]).unwrap();
    });
    let told = told.await;
    assert!(told.contains("is damaged") && told.contains("format 9"), "{told}");
    let told = refusal(|store, opened| {
        let head = opened.head.unwrap();
        let own = MemberId::of(&node(1), &head.store);
        store.reset(head, seed(own, node(1), vec![9, 9, 9])).unwrap();
    });
    let told = told.await;
    assert!(told.contains("is damaged") && told.contains("version 9"), "{told}");
}

#[tokio::test]
async fn a_store_of_format_1_is_migrated_with_a_backup_and_used_on() {
    let home = tempfile::tempdir().unwrap();
    make_format_1(home.path(), &[("old", "s1")]);
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    broker.announce(online(&["s1", "s2"]));
    assert_eq!(broker.binding(&chat("old")), Some(session("s1")));
    assert_eq!(broker.select(operate(&chat("new"))).await.unwrap().session, session("s2"));
    assert_eq!(broker.select(init(&chat("old"), Some("s2"))).await.unwrap().session, session("s2"));
    broker.close().await;
    assert!(home.path().join("consensus.redb.format-1.bak").exists());
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!(broker.binding_counts(), [(session("s2"), 2)].into());
}

#[tokio::test]
async fn f14_one_wrong_clock_prunes_nothing_and_expiry_waits_a_full_period() {
    let rig = Rig::new(quick()).await;
    rig.broker.announce(online(&["s1"]));
    let conversation = chat("c");
    let operation = reserve(&conversation, "op", "{}");
    rig.session_of(operate(&conversation)).await;
    rig.broker.reserve(operation.clone()).await.unwrap();
    rig.broker.settle(operation.key.clone(), 1, Settlement::Completed { resources: vec![] }).await.unwrap();
    rig.clock.advance(23 * HOUR);
    rig.clock.jump(400 * DAY);
    deliver(&rig, "after the jump").await.unwrap();
    let there = |rig: &Rig| (rig.broker.binding(&conversation).is_some(), rig.broker.receipt(&operation.key).is_some());
    assert_eq!(there(&rig), (true, true));
    rig.clock.advance(DAY - 1);
    assert_eq!(there(&rig), (true, true));
    rig.clock.advance(1);
    assert_eq!(there(&rig), (true, false));
    rig.clock.advance(29 * DAY);
    assert_eq!(there(&rig), (true, false));
    rig.clock.advance(1);
    assert_eq!(there(&rig), (false, false));
}

#[tokio::test]
async fn f14_nightly_pauses_delay_expiry_by_themselves_only() {
    let rig = Rig::new(quick()).await;
    let operation = reserve(&chat("c"), "op", "{}");
    rig.broker.reserve(operation.clone()).await.unwrap();
    rig.broker.settle(operation.key.clone(), 1, Settlement::Completed { resources: vec![] }).await.unwrap();
    // Off for 14 hours, on for 10, each day: the first pause starts the period anew, the others add nothing to it.
    for day in 0..3 {
        rig.clock.jump(14 * HOUR);
        deliver(&rig, &format!("morning {day}")).await.unwrap();
        assert!(rig.broker.receipt(&operation.key).is_some(), "day {day}");
        rig.clock.advance(10 * HOUR);
    }
    assert!(rig.broker.receipt(&operation.key).is_none());
}

#[tokio::test]
async fn f14_stamps_never_go_back_over_a_restart_with_a_slow_clock() {
    let rig = Rig::new(quick()).await;
    rig.clock.advance(5 * HOUR);
    deliver(&rig, "a").await.unwrap();
    let slow = TestClock::new();
    rig.broker.close().await;
    let rig = Rig::on(rig.disk, slow, quick()).await;
    deliver(&rig, "b").await.unwrap();
    assert_eq!(rig.broker.shared.state().at, Millis(START + 5 * HOUR));
}

fn rows(file: &str) -> Imported {
    import::parse(file.as_bytes()).unwrap()
}

#[tokio::test]
async fn s6_2_import_takes_both_forms_once_ours_win_unless_older_and_the_store_is_backed_up() {
    let home = tempfile::tempdir().unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    broker.announce(online(&["s1", "s2"]));
    broker.select(operate_on(&chat("ours"), "s1")).await.unwrap();
    let now = crate::clock::now().0;
    let file = format!(
        r#"{{"bindings":{{"ours":{{"sessionId":"X","lastUsedAt":{}}},"plain-ours":"X","plain":"P",
            "stamped":{{"sessionId":"S","lastUsedAt":{}}},"dead":{{"sessionId":"D","lastUsedAt":{}}}}},
            "operations":[{{"key":"k","chatId":"c","sessionId":"S","status":"running","updatedAt":{now}}}],
            "deliveries":[{{}}]}}"#,
        now - DAY,
        now - 2 * DAY,
        now - 31 * DAY,
    );
    broker.select(operate_on(&chat("plain-ours"), "s2")).await.unwrap();
    let report = broker.import(rows(&file)).await.unwrap();
    let counts = ImportCounts {
        bindings_added: 2,
        bindings_kept: 2,
        bindings_expired: 1,
        receipts_added: 1,
        ..ImportCounts::default()
    };
    assert_eq!((report.counts, report.skipped.len()), (counts, 1));
    let bound = |whose: &str| broker.binding(&chat(whose)).map(|session| session.0);
    let after = || ["ours", "plain-ours", "plain", "stamped", "dead"].map(bound);
    let expected = [Some("s1"), Some("s2"), Some("P"), Some("S"), None].map(|id| id.map(String::from));
    assert_eq!(after(), expected);

    let again = broker.import(rows(&file)).await.unwrap();
    let counts = ImportCounts { bindings_kept: 4, bindings_expired: 1, receipts_kept: 1, ..ImportCounts::default() };
    assert_eq!((again.counts, after()), (counts, expected));
    assert_eq!(report.backup, home.path().join("consensus.redb.import-1.bak"));
    assert_eq!(again.backup, home.path().join("consensus.redb.import-2.bak"));

    // The backup is a store: put back, it holds what was there before.
    broker.close().await;
    std::fs::rename(&report.backup, store_path(home.path())).unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    assert_eq!(broker.binding_counts(), [(session("s1"), 1), (session("s2"), 1)].into());
}

#[test]
fn s6_2_an_imported_binding_that_is_newer_replaces_ours() {
    let binding = |session: &str, last_used| ImportedBinding {
        conversation: "c".into(),
        session: SessionId::from(session),
        last_used: Some(Millis(last_used)),
    };
    let mut state = State::default();
    for (index, row, expected) in
        [(1, binding("A", START - DAY), "A"), (2, binding("B", START - 1), "B"), (3, binding("C", START - 2), "B")]
    {
        let command = Command::Import { bindings: vec![row.into()], receipts: vec![] };
        apply::apply(&mut state, &Stamped { at: Millis(START), index, command });
        assert_eq!(state.bindings["c"].session, session(expected));
    }
}

#[tokio::test]
async fn an_imported_receipt_answers_the_replay_of_its_operation() {
    let home = tempfile::tempdir().unwrap();
    let broker = alone(home.path(), node(1), quick()).await.unwrap();
    let operation = Reserve { session: session("S"), ..reserve(&chat("c"), "op", r#"{"paths":["a"]}"#) };
    // SHA-256 of ["c","S","call","operation","op"], as the original made its keys.
    let key = "0dbf9fbf69f5d71c14d692ecbca1a2ba8624bdb46b7e65e8a0dbb95108d10749";
    let now = crate::clock::now().0;
    let file = format!(
        r#"{{"operations":[{{"key":"{key}","signature":"theirs","chatId":"c","sessionId":"S","status":"completed","updatedAt":{now}}}]}}"#
    );
    broker.import(rows(&file)).await.unwrap();
    let Reserved::Replay(receipt) = broker.reserve(operation.clone()).await.unwrap() else { panic!("it ran again") };
    assert_eq!((receipt.status, receipt.imported), (ReceiptStatus::Completed, true));
    // From then on it is ours: found by our key, and bound to its arguments.
    assert_eq!(broker.receipt(&operation.key), Some(receipt));
    let changed = Reserve { session: session("S"), ..reserve(&chat("c"), "op", r#"{"paths":["b"]}"#) };
    assert!(matches!(broker.reserve(changed).await.unwrap(), Reserved::Conflict(_)));
    let elsewhere = Reserve { session: session("T"), ..reserve(&chat("c"), "op-2", "{}") };
    assert!(matches!(broker.reserve(elsewhere).await.unwrap(), Reserved::Fresh { attempt: 1 }));
}

#[test]
fn a_state_file_that_cannot_be_one_is_refused_before_it_is_read() {
    let home = tempfile::tempdir().unwrap();
    let told = |path: &std::path::Path| read_state_file(path).unwrap_err().to_string();
    assert!(told(home.path()).contains("not a regular file"));
    assert!(told(&home.path().join("none")).contains("No such file"));
    let huge = home.path().join("huge");
    std::fs::File::create(&huge).unwrap().set_len(65 << 20).unwrap();
    assert!(told(&huge).contains("at most 67108864"));
    let right = home.path().join("right");
    std::fs::write(&right, r#"{"bindings":{"a":"S"}}"#).unwrap();
    assert_eq!(read_state_file(&right).unwrap().bindings.len(), 1);
}
