//! What becomes of each row when two meshes meet (F18), as tables.

use super::*;
use crate::{
    broker::{
        command::Command,
        limits::{BINDINGS_MAX, RECEIPT_KEEP_MS},
        receipts::{ReceiptKey, ReceiptKind, ResourceRefData},
    },
    ids::{CallId, Conversation},
};

const START: u64 = 1_790_000_000_000;
const DAY: u64 = 24 * 3_600_000;

fn entry(index: u64) -> Stamped {
    Stamped { at: Millis(START), index, command: Command::Forget { ids: vec![] } }
}

fn receipt(key: &str, status: ReceiptStatus, whose: &str, signature: &str) -> Receipt {
    Receipt {
        key: ReceiptKey(key.into()),
        signature: signature.into(),
        operation_id: key.into(),
        conversation: Some(Conversation::Chat("c".into())),
        session: SessionId(format!("session-{whose}")),
        cwd: "/w".into(),
        kind: ReceiptKind::Call,
        call_id: CallId(format!("call-{whose}")),
        attempt: 1,
        status,
        reason: None,
        created: Millis(START),
        updated: Millis(START),
        keep_from: Millis(START),
        resources: vec![],
        resources_left_out: 0,
        imported: false,
    }
}

fn binding(session: &str, used: u64) -> Binding {
    Binding { session: SessionId::from(session), last_used: Millis(used), idle_from: Millis(used), revision: 3 }
}

fn brought(chat: &str, session: &str, used: u64) -> BroughtBinding {
    let (last_used, idle_from) = (Millis(used), Millis(used));
    BroughtBinding { chat: chat.into(), session: SessionId::from(session), last_used, idle_from }
}

fn merged(state: &mut State, brought: &Belongings) -> MergeReport {
    match merge(state, &entry(9), "laptop", brought) {
        Reply::Merged(report) => report,
        other => panic!("{other:?}"),
    }
}

fn bring(receipts: Vec<Receipt>) -> Belongings {
    Belongings { at: Millis(START), receipts, ..Belongings::default() }
}

#[test]
fn f18_every_status_here_meets_every_status_there() {
    use ReceiptStatus::{Completed, NeverRun, Running, Uncertain};
    // (ours, theirs, same arguments) -> status afterwards, whose run it is
    let table = [
        (None, Running, true, Running, "theirs"),
        (None, Uncertain, true, Uncertain, "theirs"),
        (None, Completed, true, Completed, "theirs"),
        (None, NeverRun, true, NeverRun, "theirs"),
        (Some(Running), Running, true, Uncertain, "ours"),
        (Some(Running), Uncertain, true, Uncertain, "ours"),
        (Some(Running), Completed, true, Uncertain, "ours"),
        (Some(Running), NeverRun, true, Running, "ours"),
        (Some(Uncertain), Completed, true, Uncertain, "ours"),
        (Some(Uncertain), NeverRun, true, Uncertain, "ours"),
        (Some(Completed), Running, true, Completed, "ours"),
        (Some(Completed), Completed, true, Completed, "ours"),
        (Some(NeverRun), NeverRun, true, NeverRun, "ours"),
        (Some(NeverRun), Running, true, Running, "theirs"),
        (Some(NeverRun), Completed, true, Completed, "theirs"),
        (Some(Running), Running, false, Uncertain, "ours"),
        (Some(Completed), Completed, false, Uncertain, "ours"),
        (Some(Completed), NeverRun, false, Uncertain, "ours"),
        (Some(NeverRun), Completed, false, Uncertain, "ours"),
    ];
    for (ours, theirs, same, status, whose) in table {
        let mut state = State::default();
        if let Some(ours) = ours {
            let ours = receipt("k", ours, "ours", "s");
            state.receipts.insert(ours.key.clone(), ours);
        }
        let bringing = bring(vec![receipt("k", theirs, "theirs", if same { "s" } else { "t" })]);
        merged(&mut state, &bringing);
        let found = &state.receipts[&ReceiptKey("k".into())];
        let told = format!("{ours:?} meets {theirs:?}, same arguments: {same}");
        assert_eq!((found.status, found.call_id.0.as_str()), (status, format!("call-{whose}").as_str()), "{told}");
        let once = state.clone();
        let again = merged(&mut state, &bringing);
        assert_eq!((&state, again), (&once, MergeReport { receipts_kept: 1, ..MergeReport::default() }), "{told}");
    }
}

#[test]
fn f18_a_conflict_names_the_device_and_no_report_of_either_run_settles_it() {
    for (signature, told) in [("other", "with other arguments"), ("s", "may have run")] {
        let mut state = State::default();
        let ours = receipt("k", ReceiptStatus::Running, "ours", "s");
        state.receipts.insert(ours.key.clone(), ours);
        let theirs = Receipt { attempt: 4, ..receipt("k", ReceiptStatus::Running, "theirs", signature) };
        let report = merged(&mut state, &bring(vec![theirs]));
        assert_eq!(report, MergeReport { receipts_uncertain: 1, ..MergeReport::default() });
        let found = &state.receipts[&ReceiptKey("k".into())];
        let reason = found.reason.as_deref().unwrap();
        assert!(reason.contains(told) && reason.contains("laptop"), "{reason}");
        assert_eq!(found.attempt, 5);
    }
}

#[test]
fn f18_an_imported_receipt_whose_arguments_are_not_known_is_no_conflict() {
    let mut state = State::default();
    let ours = receipt("k", ReceiptStatus::Completed, "ours", "");
    state.receipts.insert(ours.key.clone(), ours.clone());
    merged(&mut state, &bring(vec![receipt("k", ReceiptStatus::Completed, "theirs", "s")]));
    assert_eq!(state.receipts[&ours.key], ours);
}

#[test]
fn f18_a_chat_keeps_its_default_here_unless_it_is_idle() {
    let mut state = State::default();
    state.bindings.insert("ours".into(), binding("s1", START - DAY));
    state.bindings.insert("idle".into(), binding("s2", START - 31 * DAY));
    let bindings = vec![
        brought("ours", "t1", START),
        brought("idle", "t2", START - DAY),
        brought("new", "t3", START - 2 * DAY),
        brought("dead", "t4", START - 31 * DAY),
    ];
    let bringing = Belongings { at: Millis(START), bindings, ..Belongings::default() };
    let expected = MergeReport { bindings_added: 2, bindings_kept: 1, bindings_expired: 1, ..MergeReport::default() };
    assert_eq!(merged(&mut state, &bringing), expected);
    let bound: Vec<_> = state.bindings.iter().map(|(chat, row)| (chat.as_str(), row.session.as_str())).collect();
    assert_eq!(bound, [("idle", "t2"), ("new", "t3"), ("ours", "s1")]);
    assert_eq!(state.bindings["new"].revision, 9);
    let once = state.clone();
    assert_eq!(merged(&mut state, &bringing).bindings_added, 0);
    assert_eq!(state, once);
}

#[test]
fn f14_ages_are_taken_over_and_not_the_stamps_of_another_clock() {
    for their_now in [START - 5_000 * DAY, START, START + 5_000 * DAY] {
        let ago = |days| Millis(their_now - days * DAY);
        let resource = ResourceRefData {
            uri: "u".into(),
            name: "n".into(),
            mime_type: "m".into(),
            size: 1,
            source_read_at: Some(ago(1)),
        };
        let held = Receipt {
            created: ago(3),
            updated: ago(2),
            keep_from: ago(2),
            resources: vec![resource],
            ..receipt("held", ReceiptStatus::Uncertain, "theirs", "s")
        };
        let old = Receipt {
            keep_from: Millis(their_now - RECEIPT_KEEP_MS),
            ..receipt("old", ReceiptStatus::Completed, "theirs", "s")
        };
        let bringing = Belongings {
            at: Millis(their_now),
            bindings: vec![brought("new", "t", their_now - 29 * DAY), brought("dead", "t", their_now - 31 * DAY)],
            receipts: vec![held, old],
            delivered: vec![BroughtDelivery { id: "r".into(), conversation: "chat:c".into(), at: ago(4) }],
        };
        let mut state = State::default();
        let report = merged(&mut state, &bringing);
        assert_eq!((report.bindings_expired, report.receipts_expired), (1, 1));
        let found = &state.receipts[&ReceiptKey("held".into())];
        let here = |days| Millis(START - days * DAY);
        assert_eq!((found.created, found.updated, found.keep_from), (here(3), here(2), here(2)));
        assert_eq!(found.resources[0].source_read_at, Some(here(1)));
        assert_eq!((state.bindings["new"].last_used, state.delivered["r"].at), (here(29), here(4)));
    }
}

#[test]
fn f18_delivered_results_are_not_delivered_again_in_the_new_mesh() {
    let mut state = State::default();
    state.delivered.insert("r1".into(), Delivered { conversation: "chat:ours".into(), at: Millis(1) });
    let row = |id: &str| BroughtDelivery { id: id.into(), conversation: "chat:theirs".into(), at: Millis(START) };
    let bringing = Belongings { at: Millis(START), delivered: vec![row("r1"), row("r2")], ..Belongings::default() };
    let report = merged(&mut state, &bringing);
    assert_eq!((report.delivered_added, report.delivered_kept), (1, 1));
    assert_eq!(state.delivered["r1"].conversation, "chat:ours");
    assert_eq!(merged(&mut state, &bringing).delivered_kept, 2);
}

#[test]
fn f26_what_finds_no_room_is_counted_and_what_is_there_stays() {
    let mut state = State::default();
    for n in 0..RECEIPTS_MAX {
        let ours = receipt(&format!("k{n}"), ReceiptStatus::Uncertain, "ours", "s");
        state.receipts.insert(ours.key.clone(), ours);
    }
    for n in 0..BINDINGS_MAX {
        state.bindings.insert(format!("c{n}"), binding("s", START));
    }
    for n in 0..DELIVERED_MAX {
        state.delivered.insert(format!("r{n}"), Delivered { conversation: "chat:c".into(), at: Millis(START) });
    }
    let before = state.clone();
    let bringing = Belongings {
        at: Millis(START),
        bindings: vec![brought("more", "t", START), brought("c1", "t", START)],
        receipts: vec![receipt("more", ReceiptStatus::Running, "theirs", "s")],
        delivered: vec![BroughtDelivery { id: "more".into(), conversation: "chat:c".into(), at: Millis(START) }],
    };
    let report = merged(&mut state, &bringing);
    assert_eq!((report.no_room, report.bindings_kept), (3, 1));
    assert!((&state.bindings, &state.receipts) == (&before.bindings, &before.receipts));
    assert!(state.delivered == before.delivered);
}

#[test]
fn f26_a_receipt_from_elsewhere_is_cut_to_size_like_ours() {
    let mut state = State::default();
    let wide = Receipt {
        cwd: "/w".repeat(3_000),
        reason: Some("x".repeat(5_000)),
        ..receipt("k", ReceiptStatus::Uncertain, "theirs", "s")
    };
    merged(&mut state, &bring(vec![wide]));
    let size = postcard::to_stdvec(&state.receipts[&ReceiptKey("k".into())]).unwrap().len();
    assert!(size <= crate::broker::limits::RECEIPT_BYTES_MAX, "{size} bytes");
}

#[test]
fn pieces_hold_every_row_once_and_are_small() {
    let many = |n: usize| n * IMPORT_BATCH + 1;
    let whole = Belongings {
        at: Millis(7),
        bindings: (0..many(2)).map(|n| brought(&format!("c{n}"), "t", START)).collect(),
        receipts: vec![receipt("k", ReceiptStatus::Running, "theirs", "s")],
        delivered: vec![],
    };
    let pieces = whole.clone().pieces();
    assert_eq!(pieces.iter().map(Belongings::rows).collect::<Vec<_>>(), [IMPORT_BATCH, IMPORT_BATCH, 1, 1]);
    assert!(pieces.iter().all(|piece| piece.at == Millis(7)));
    let rows: Vec<_> = pieces.iter().flat_map(|piece| piece.bindings.clone()).collect();
    assert_eq!(rows, whole.bindings);
    assert!(Belongings::default().pieces().is_empty());
}
