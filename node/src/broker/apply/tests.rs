//! Life of a receipt as a table, the limits of every table, and compare-and-set.

use chappie_mesh::{InviteId, NodeId, fresh_invite};

use super::*;
use crate::{
    broker::{
        limits::{
            INVITE_USES_SUM_MAX, INVITES_MAX, MEMBERS_MAX, MEMBERSHIP_BYTES_MAX, NAME_BYTES_MAX, RECEIPT_KEEP_MS,
            REMOVED_MAX, STATE_BYTES_MAX,
        },
        membership::{Invite, Joined, Membership, Spent},
        receipts::ReceiptKind,
    },
    ids::CallId,
};

const START: u64 = 1_790_000_000_000;

struct Log {
    state: State,
    index: u64,
    at: u64,
}

impl Log {
    fn new() -> Self {
        Self { state: State::default(), index: 0, at: START }
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        apply(&mut self.state, &Stamped { at: Millis(self.at), index: self.index, command })
    }

    fn reserve(&mut self, key: &str) -> Reply {
        self.apply(Command::Reserve(reservation(key)))
    }

    fn settle(&mut self, key: &str, outcome: Settlement) -> Reply {
        self.apply(Command::Settle { key: ReceiptKey(key.into()), attempt: 1, outcome, left_out: 0 })
    }
}

fn reservation(key: &str) -> Reservation {
    Reservation {
        key: ReceiptKey(key.into()),
        signature: "s".into(),
        operation_id: key.into(),
        conversation: Some(Conversation::Chat("c".into())),
        session: SessionId::from("s1"),
        cwd: "/w".into(),
        kind: ReceiptKind::Call,
        call_id: CallId::from("call"),
    }
}

fn completed() -> Settlement {
    Settlement::Completed { resources: vec![] }
}

fn uncertain() -> Settlement {
    Settlement::Uncertain { reason: "why".into() }
}

#[test]
fn s8_2_every_outcome_on_every_status() {
    use ReceiptStatus::{Completed, NeverRun, Running, Uncertain};
    let sealed = || Settlement::NeverRun;
    let table: [(Option<Settlement>, Settlement, ReceiptStatus, bool); 12] = [
        (None, completed(), Completed, true),
        (None, uncertain(), Uncertain, true),
        (None, sealed(), NeverRun, true),
        (Some(completed()), completed(), Completed, false),
        (Some(completed()), uncertain(), Completed, false),
        (Some(completed()), sealed(), Completed, false),
        (Some(uncertain()), completed(), Completed, true),
        (Some(uncertain()), uncertain(), Uncertain, false),
        (Some(uncertain()), sealed(), NeverRun, true),
        (Some(sealed()), completed(), Completed, true),
        (Some(sealed()), uncertain(), NeverRun, false),
        (Some(sealed()), sealed(), NeverRun, false),
    ];
    for (before, outcome, status, changed) in table {
        let mut log = Log::new();
        log.reserve("k");
        assert_eq!(log.state.receipts[&ReceiptKey("k".into())].status, Running);
        if let Some(before) = before {
            log.settle("k", before);
        }
        let reply = log.settle("k", outcome.clone());
        let found = log.state.receipts[&ReceiptKey("k".into())].status;
        assert_eq!((found, reply), (status, Reply::Done(changed)), "{outcome:?}");
    }
}

#[test]
fn an_outcome_for_an_unknown_receipt_or_another_attempt_changes_nothing() {
    let mut log = Log::new();
    log.reserve("k");
    assert_eq!(log.settle("unknown", completed()), Reply::Done(false));
    for attempt in [0, 2] {
        let key = ReceiptKey("k".into());
        let reply = log.apply(Command::Settle { key, attempt, outcome: completed(), left_out: 0 });
        assert_eq!(reply, Reply::Done(false));
    }
}

#[test]
fn f26_a_full_receipt_table_fails_closed_and_evicts_only_what_expired() {
    let mut log = Log::new();
    for n in 0..RECEIPTS_MAX {
        assert_eq!(log.reserve(&format!("k{n}")), Reply::Fresh { attempt: 1 });
    }
    let full = Reply::full("operation receipts", RECEIPTS_MAX);
    assert_eq!(log.reserve("more"), full);
    assert!(receipts_full(&log.state, Millis(log.at), &reservation("more")));
    // A known operation is still answered.
    assert!(matches!(log.reserve("k7"), Reply::Replay(_)));

    log.settle("k0", completed());
    log.settle("k1", uncertain());
    log.at += RECEIPT_KEEP_MS - 1;
    assert_eq!(log.reserve("more"), full);
    log.at += 1;
    assert!(!receipts_full(&log.state, Millis(log.at), &reservation("more")));
    assert_eq!(log.reserve("more"), Reply::Fresh { attempt: 1 });
    assert_eq!(log.reserve("and more"), full);
    assert!(log.state.receipts.contains_key(&ReceiptKey("k1".into())));
}

#[test]
fn a_full_table_of_bindings_fails_closed_and_drops_only_idle_ones() {
    let mut log = Log::new();
    let bind = |chat: &str| Command::Bind { chat: chat.into(), session: SessionId::from("s"), expected: None };
    log.apply(bind("oldest"));
    log.at += 30 * 24 * 3_600_000;
    for n in 1..BINDINGS_MAX {
        assert!(matches!(log.apply(bind(&format!("c{n}"))), Reply::Bound { .. }));
    }
    assert_eq!(log.apply(bind("more")), Reply::full("saved conversations", BINDINGS_MAX));
    log.at += 2 * 24 * 3_600_000;
    assert!(matches!(log.apply(bind("more")), Reply::Bound { previous: None, .. }));
    assert!(!log.state.bindings.contains_key("oldest"));
}

/// Every table of it at its limit, with the widest rows.
fn fullest_membership(at: Millis) -> Membership {
    let node = |n: usize, kind: u8| {
        let mut bytes = [kind; 32];
        bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
        NodeId::from(bytes)
    };
    let id = |n: usize| InviteId::from((n as u64).to_be_bytes());
    let mut mesh = Membership::alone([1; 16].into(), node(0, 1), &"n".repeat(NAME_BYTES_MAX), at);
    mesh.version = u64::MAX;
    for n in 1..MEMBERS_MAX {
        mesh.members.insert(node(n, 1), Joined { name: "n".repeat(NAME_BYTES_MAX), at, invite: Some(id(n)) });
    }
    mesh.removed = (0..REMOVED_MAX).map(|n| (node(n, 2), u64::MAX)).collect();
    for n in 0..INVITES_MAX {
        let key = fresh_invite([1; 24]).1.key();
        let spent =
            (0..if n < INVITE_USES_SUM_MAX - INVITES_MAX { 2 } else { 1 }).map(|n| Spent { node: node(n, 1), at });
        let (uses_left, from, ttl_ms) = (u32::MAX, at, u64::MAX);
        mesh.invites.insert(id(n), Invite { key, uses_left, from, ttl_ms, extended: true, spent: spent.collect() });
    }
    let size = postcard::to_stdvec(&mesh).unwrap().len();
    assert!(size <= MEMBERSHIP_BYTES_MAX && size > MEMBERSHIP_BYTES_MAX - (64 << 10), "{size} bytes");
    mesh
}

#[test]
fn f26_the_fullest_state_stays_within_32_mib_and_decodes_again() {
    let mut state = State::default();
    let at = Millis(u64::MAX / 2);
    for n in 0..RECEIPTS_MAX {
        let key = ReceiptKey(format!("{n:064}"));
        let wide = Reservation {
            key: key.clone(),
            signature: "f".repeat(64),
            operation_id: "\u{10FFFF}".repeat(128),
            conversation: Some(Conversation::Chat("c".repeat(256))),
            session: SessionId("s".repeat(96)),
            cwd: "/x".repeat(2_000),
            call_id: CallId("c".repeat(64)),
            ..reservation("")
        };
        let mut receipt = new_receipt(&wide, u32::MAX, at, at);
        receipt.change(ReceiptStatus::Uncertain, Some(&"r".repeat(400)), at);
        state.receipts.insert(key, receipt);
    }
    for n in 0..BINDINGS_MAX {
        let session = SessionId("s".repeat(96));
        let binding = Binding { session, last_used: at, idle_from: at, revision: u64::MAX };
        state.bindings.insert(format!("{n:0256}"), binding);
    }
    for n in 0..DELIVERED_MAX {
        let conversation = format!("chat:{}", "c".repeat(256));
        state.delivered.insert(format!("{n:064}"), Delivered { conversation, at });
    }
    state.membership = Some(fullest_membership(at));
    let bytes = state.encode();
    assert!(bytes.len() <= STATE_BYTES_MAX, "{} bytes", bytes.len());
    assert!(bytes.len() > STATE_BYTES_MAX - (4 << 20), "the bound is not tight: {} bytes", bytes.len());
    assert_eq!(State::decode(&bytes), Ok(state));
}

#[test]
fn f13_a_bind_is_a_compare_and_set() {
    let mut log = Log::new();
    let bind =
        |session: &str, expected| Command::Bind { chat: "c".into(), session: SessionId::from(session), expected };
    assert_eq!(log.apply(bind("a", Some(7))), Reply::Stale);
    assert_eq!(log.apply(bind("a", None)), Reply::Bound { revision: 2, previous: None });
    assert_eq!(log.apply(bind("b", None)), Reply::Stale);
    let previous = log.state.bindings.get("c").cloned();
    assert_eq!(log.apply(bind("b", Some(2))), Reply::Bound { revision: 4, previous: previous.clone() });

    let restore = |revision| Command::Restore { chat: "c".into(), revision, previous: previous.clone() };
    assert_eq!(log.apply(restore(2)), Reply::Done(false));
    assert_eq!(log.apply(restore(4)), Reply::Done(true));
    assert_eq!(log.apply(restore(4)), Reply::Done(false));
    assert_eq!(log.state.bindings["c"].session, SessionId::from("a"));
}
