//! Pinned bytes: an entry that an older program wrote must decode to the same command for ever.

use chappie_mesh::fresh_invite;

use super::*;
use crate::broker::merge::{BroughtBinding, BroughtDelivery};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn samples() -> Vec<(&'static str, Command)> {
    let session = || SessionId::from("s");
    let key = || ReceiptKey("k".into());
    let binding = Binding { session: session(), last_used: Millis(3), idle_from: Millis(4), revision: 5 };
    let resource = ResourceRefData {
        uri: "u".into(),
        name: "n".into(),
        mime_type: "m".into(),
        size: 6,
        source_read_at: Some(Millis(7)),
    };
    let reservation = Reservation {
        key: key(),
        signature: "g".into(),
        operation_id: "o".into(),
        conversation: Some(Conversation::Connection("c".into())),
        session: session(),
        cwd: "/".into(),
        kind: ReceiptKind::Call,
        call_id: CallId::from("i"),
    };
    let settle = |outcome| Command::Settle { key: key(), attempt: 2, outcome, left_out: 1 };
    let row = ImportRow { chat: "c".into(), session: session(), last_used: None };
    vec![
        ("bind", Command::Bind { chat: "c".into(), session: session(), expected: Some(1) }),
        ("touch", Command::Touch { chat: "c".into(), revision: 2 }),
        ("restore", Command::Restore { chat: "c".into(), revision: 2, previous: Some(binding) }),
        ("reserve", Command::Reserve(reservation)),
        ("completed", settle(Settlement::Completed { resources: vec![resource] })),
        ("uncertain", settle(Settlement::Uncertain { reason: "r".into() })),
        ("never-run", settle(Settlement::NeverRun)),
        ("resolve", Command::Resolve { key: key(), how: Resolve::NotDone }),
        ("deliver", Command::Deliver { conversation: "c".into(), ids: vec!["i".into()] }),
        ("forget", Command::Forget { ids: vec!["i".into()] }),
        ("jump", Command::Jump { gap_ms: 300 }),
        ("source-read", Command::SourceRead { conversation: Conversation::Chat("c".into()), uri: "u".into() }),
        ("import", Command::Import { bindings: vec![row], receipts: vec![] }),
    ]
    .into_iter()
    .chain(mesh_samples())
    .collect()
}

fn mesh_samples() -> Vec<(&'static str, Command)> {
    let (mesh, node) = (MeshId::from([0xaa; 16]), NodeId::from([0xbb; 32]));
    let invite = || InviteId::from([0xcc; 8]);
    let name = || "n".to_owned();
    // SHA-256 of the secret 16 × dd.
    let key = fresh_invite([0xdd; 24]).1.key();
    let bindings = vec![BroughtBinding {
        chat: "c".into(),
        session: SessionId::from("s"),
        last_used: Millis(3),
        idle_from: Millis(4),
    }];
    let delivered = vec![BroughtDelivery { id: "i".into(), conversation: "c".into(), at: Millis(5) }];
    let row = Reannounced {
        key: ReceiptKey("k".into()),
        attempt: 2,
        conversation: Some(Conversation::Chat("c".into())),
        session: SessionId::from("s"),
        cwd: "/".into(),
        kind: ReceiptKind::Call,
        call_id: CallId::from("i"),
        outcome: Some(Settlement::NeverRun),
        age_ms: 300,
    };
    let brought = Belongings { at: Millis(6), bindings, receipts: vec![], delivered };
    vec![
        ("found", Command::Found { mesh, node, name: name() }),
        ("invite", Command::Invite { id: invite(), key, uses: 300, ttl_ms: 2 }),
        ("admit", Command::Admit { node, name: name(), invite: invite() }),
        ("rename", Command::Rename { node, name: name() }),
        ("remove", Command::Remove { node, sessions: vec![SessionId::from("s")] }),
        ("merge", Command::Merge { from: node, brought }),
        ("start-over", Command::StartOver { mesh, node, name: name() }),
        ("reannounce", Command::Reannounce { node, rows: vec![row], last: true }),
        ("accept-loss", Command::AcceptLoss),
    ]
}

const GOLDEN: &[(&str, &str)] = &[
    ("bind", "01010200016301730101"),
    ("touch", "01010201016302"),
    ("restore", "01010202016302010173030405"),
    ("reserve", "01010203016b0167016f010101630173012f010169"),
    ("completed", "01010204016b0200010175016e016d06010701"),
    ("uncertain", "01010204016b0201017201"),
    ("never-run", "01010204016b020201"),
    ("resolve", "01010205016b01"),
    ("deliver", "010102060163010169"),
    ("forget", "01010207010169"),
    ("jump", "01010208ac02"),
    ("source-read", "010102090001630175"),
    ("import", "0101020a01016301730000"),
    (
        "found",
        "0101020baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb016e",
    ),
    ("invite", "0101020ccccccccccccccccc2022a166ffc35b0cd2ead0d288c2d97822945719de7a7660882a4271d0dd9e09ac0202"),
    ("admit", "0101020dbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb016ecccccccccccccccc"),
    ("rename", "0101020ebbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb016e"),
    ("remove", "0101020fbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb010173"),
    ("merge", "01010210bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb060101630173030400010169016305"),
    (
        "start-over",
        "01010211aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb016e",
    ),
    (
        "reannounce",
        "01010212bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb01016b020100016301730\
         12f0101690102ac0201",
    ),
    ("accept-loss", "01010213"),
];

#[test]
fn entries_keep_their_bytes() {
    for ((name, command), (golden, bytes)) in samples().into_iter().zip(GOLDEN) {
        // A log of version 1 has the index after the stamp.
        let old = Stamped { at: Millis(1), index: 2, command: command.clone() };
        assert_eq!((name, hex(&old.encode()).as_str()), (*golden, *bytes));
        assert_eq!(Stamped::decode(&old.encode()), Ok(old));
        let entry = Entry { at: Millis(1), command };
        assert_eq!(hex(&entry.encode()), bytes.replacen("010102", "0201", 1), "{name}");
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }
    assert_eq!(samples().len(), GOLDEN.len());
}

#[test]
fn an_entry_of_another_version_or_cut_short_is_an_error() {
    let (_, command) = samples().remove(0);
    let bytes = Entry { at: Millis(1), command }.encode();
    for version in [1, 3] {
        let other = [&[version], &bytes[1..]].concat();
        assert_eq!(Entry::decode(&other), Err(DecodeError::Version { found: version, known: 2 }));
    }
    for cut in 0..bytes.len() {
        assert!(Entry::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(Entry::decode(&[&bytes[..], &[0]].concat()).is_err());
    assert!(Entry::decode(&[2, 1, 200]).is_err());
}

#[test]
fn a_reply_is_read_as_it_was_written() {
    let replies = [Reply::full("receipts", 7), Reply::Recovering(vec!["n".into()]), Reply::Kept(Kept::Last)];
    assert_eq!(
        replies.each_ref().map(|reply| hex(&reply.encode())),
        [
            "01050872656365697074730\
7",
            "010e01016e",
            "010b00"
        ]
        .map(String::from)
    );
    for reply in replies {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
}
