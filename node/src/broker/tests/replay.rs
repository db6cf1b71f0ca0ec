//! Determinism: the same log gives the same state, byte for byte; after a snapshot too.

use chappie_mesh::{InviteId, MeshId, NodeId, consensus::contents, fresh_invite};

use super::{
    apply::apply,
    command::{Command, Entry, ImportRow, Kept, Reply, Reservation, Stamped},
    machine::apply_next,
    membership::Verdict,
    merge::{Belongings, BroughtBinding, BroughtDelivery},
    state::{Binding, State},
    *,
};
use crate::storage::log::ConsensusStore;

/// A small generator of our own: the same seed, the same commands, on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn name(&mut self, prefix: &str, sides: u64) -> String {
        format!("{prefix}{}", self.roll(sides))
    }

    fn key(&mut self) -> ReceiptKey {
        ReceiptKey(self.name("k", 12))
    }

    fn binding(&mut self) -> Binding {
        let at = Millis(START - self.roll(40 * DAY));
        Binding { session: SessionId(self.name("s", 4)), last_used: at, idle_from: at, revision: self.roll(50) }
    }

    fn reservation(&mut self) -> Reservation {
        Reservation {
            key: self.key(),
            signature: self.name("sig", 2),
            operation_id: self.name("op", 12),
            conversation: (self.roll(4) > 0).then(|| chat(&self.name("c", 3))),
            session: SessionId(self.name("s", 4)),
            cwd: "/w".repeat(usize::try_from(self.roll(900)).unwrap()),
            kind: if self.roll(2) == 0 { ReceiptKind::Chat } else { ReceiptKind::Call },
            call_id: CallId(self.name("call", 99)),
        }
    }

    fn settlement(&mut self) -> Settlement {
        match self.roll(3) {
            0 => Settlement::NeverRun,
            1 => Settlement::Uncertain { reason: "x".repeat(usize::try_from(self.roll(400)).unwrap()) },
            _ => {
                let resource = |n| ResourceRefData {
                    uri: format!("chappie://session/s/file/{n}/{}", "y".repeat(60)),
                    name: "n".into(),
                    mime_type: "text/plain".into(),
                    size: n,
                    source_read_at: None,
                };
                Settlement::Completed { resources: (0..self.roll(20)).map(resource).collect() }
            }
        }
    }

    fn node(&mut self) -> NodeId {
        NodeId::from([u8::try_from(self.roll(5)).unwrap(); 32])
    }

    fn invite(&mut self) -> InviteId {
        InviteId::from([u8::try_from(self.roll(4)).unwrap(); 8])
    }

    fn brought(&mut self) -> Belongings {
        let at = Millis(START - self.roll(3 * DAY));
        let binding = BroughtBinding {
            chat: self.name("c", 6),
            session: SessionId(self.name("s", 4)),
            last_used: at,
            idle_from: Millis(at.0 - self.roll(40 * DAY)),
        };
        let mut empty = State::default();
        let reserve = Command::Reserve(self.reservation());
        apply(&mut empty, &Stamped { at, index: 1, command: reserve });
        let delivery = BroughtDelivery { id: self.name("r", 30), conversation: self.name("chat:c", 3), at };
        let receipts = empty.receipts.into_values().collect();
        Belongings { at, bindings: vec![binding], receipts, delivered: vec![delivery] }
    }

    fn reannounced(&mut self) -> Reannounced {
        let Reservation { key, conversation, session, cwd, kind, call_id, .. } = self.reservation();
        let attempt = u32::try_from(1 + self.roll(2)).unwrap();
        let outcome = (self.roll(3) > 0).then(|| self.settlement());
        Reannounced { key, attempt, conversation, session, cwd, kind, call_id, outcome, age_ms: self.roll(30 * HOUR) }
    }

    fn mesh_command(&mut self) -> Command {
        let (mesh, node, name) = (MeshId::from([1; 16]), NodeId::from([0; 32]), self.name("n", 3));
        match self.roll(28) {
            0..4 => Command::Found { mesh, node, name },
            4..8 => Command::Invite {
                id: self.invite(),
                key: fresh_invite([u8::try_from(self.roll(2)).unwrap(); 24]).1.key(),
                uses: u32::try_from(1 + self.roll(2)).unwrap(),
                ttl_ms: 1_000 + self.roll(2 * HOUR),
            },
            8..14 => Command::Admit { node: self.node(), name, invite: self.invite() },
            14..16 => Command::Rename { node: self.node(), name },
            16..19 => Command::Remove { node: self.node(), sessions: vec![SessionId(self.name("s", 4))] },
            19..23 => Command::Merge { from: self.node(), brought: self.brought() },
            23..26 => {
                Command::Reannounce { node: self.node(), rows: vec![self.reannounced()], last: self.roll(3) == 0 }
            }
            26 => Command::AcceptLoss,
            _ => Command::StartOver { mesh: MeshId::from([u8::try_from(self.roll(2)).unwrap(); 16]), node, name },
        }
    }

    fn command(&mut self) -> Command {
        if self.roll(4) == 0 {
            return self.mesh_command();
        }
        let revision = self.roll(60);
        let expected = (self.roll(3) > 0).then_some(revision);
        match self.roll(11) {
            0 => Command::Bind { chat: self.name("c", 6), session: SessionId(self.name("s", 4)), expected },
            1 => Command::Touch { chat: self.name("c", 6), revision },
            2 => Command::Restore {
                chat: self.name("c", 6),
                revision,
                previous: (self.roll(2) == 0).then(|| self.binding()),
            },
            3 | 4 => Command::Reserve(self.reservation()),
            5 => Command::Settle {
                key: self.key(),
                attempt: u32::try_from(1 + self.roll(2)).unwrap(),
                outcome: self.settlement(),
                left_out: 0,
            },
            6 => Command::Resolve {
                key: self.key(),
                how: if self.roll(2) == 0 { Resolve::Completed } else { Resolve::NotDone },
            },
            7 => Command::Deliver { conversation: self.name("chat:c", 3), ids: vec![self.name("r", 30)] },
            8 => Command::Forget { ids: vec![self.name("r", 30)] },
            9 => Command::Jump { gap_ms: 1 + self.roll(40 * DAY) },
            _ => Command::Import {
                bindings: vec![ImportRow {
                    chat: self.name("c", 6),
                    session: SessionId(self.name("s", 4)),
                    last_used: (self.roll(2) == 0).then(|| Millis(START + self.roll(80 * DAY))),
                }],
                receipts: vec![],
            },
        }
    }

    /// Commands of brokers that relieve each other: the clock of a later one may be behind.
    fn log(&mut self, length: u64) -> Vec<Entry> {
        let mut at = START;
        let entry = |_| {
            at += if self.roll(20) == 0 { self.roll(3 * DAY) } else { self.roll(60_000) };
            Entry { at: Millis(at - self.roll(2) * self.roll(DAY)), command: self.command() }
        };
        (0..length).map(entry).collect()
    }
}

/// Of every other seed, the state of a mesh after its recovery.
fn first(seed: u64) -> State {
    let node = |n: u8| NodeId::from([n; 32]);
    let recovering = if seed.is_multiple_of(2) { [].into() } else { [0, 1, 2].map(node).into() };
    State { recovering, ..State::default() }
}

fn replayed(from: State, log: &[Entry]) -> State {
    let mut state = from;
    for entry in log {
        let before = (state.applied, state.at);
        let (stamped, reply) = apply_next(&mut state, Entry::decode(&entry.encode()).unwrap());
        assert!(stamped.index == before.0 + 1 && stamped.at >= before.1, "{stamped:?} after {before:?}");
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
    state
}

#[test]
fn replaying_the_log_gives_the_same_bytes_also_after_a_snapshot_at_any_place() {
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let log = dice.log(250);
        let whole = replayed(first(seed), &log).encode();
        assert_eq!(replayed(first(seed), &log).encode(), whole, "seed {seed}");
        let cut = usize::try_from(dice.roll(250)).unwrap();
        let snapshot = replayed(first(seed), &log[..cut]).encode();
        let tail = replayed(State::decode(&snapshot).unwrap(), &log[cut..]);
        assert_eq!(tail.encode(), whole, "seed {seed}, cut at {cut}");
    }
}

#[test]
fn f26_no_command_sequence_makes_a_receipt_too_large() {
    for seed in 1_000..1_040 {
        let state = replayed(first(seed), &Dice(seed).log(400));
        for receipt in state.receipts.values() {
            let size = postcard::to_stdvec(receipt).unwrap().len();
            assert!(size <= limits::RECEIPT_BYTES_MAX, "seed {seed}: {size} bytes");
            assert!(receipt.reason.as_ref().is_none_or(|reason| reason.len() <= limits::REASON_BYTES_MAX));
        }
    }
}

#[test]
fn the_log_reaches_every_kind_of_reply() {
    let mut seen = [false; 17];
    for seed in 0..120 {
        let mut state = first(seed);
        for entry in Dice(seed).log(250) {
            let kind = match apply_next(&mut state, entry).1 {
                Reply::Bound { .. } => 0,
                Reply::Stale => 1,
                Reply::Fresh { attempt: 1 } => 2,
                Reply::Fresh { .. } => 3,
                Reply::Replay(_) => 4,
                Reply::Conflict(_) => 5,
                Reply::Unresolvable(_) => 6,
                Reply::Done(_) | Reply::Imported(_) | Reply::Full { .. } => 7,
                Reply::Admission(Verdict::Known) => 8,
                Reply::Admission(Verdict::Admit) => 9,
                Reply::Admission(Verdict::Deny(_)) => 10,
                Reply::Taken => 11,
                Reply::NoMesh => 12,
                Reply::Kept(Kept::Last) => 13,
                Reply::Kept(Kept::Unknown) => 14,
                Reply::Merged(_) => 15,
                Reply::Recovering(_) => 16,
            };
            seen[kind] = true;
        }
    }
    assert_eq!(seen, [true; 17]);
}

#[tokio::test]
async fn a_broker_with_snapshots_reopens_to_the_same_bytes() {
    // More than the engine keeps without a snapshot; 200 of them are committed at a time.
    const BATCHES: u64 = 30;
    let rig = Rig::new(quick()).await;
    for batch in 0..BATCHES {
        let ids: Vec<_> = (0..200).map(|n| vec![format!("r{}", batch * 200 + n)]).collect();
        let deliver = |id: &Vec<String>| {
            let (broker, id) = (rig.broker.clone(), id.clone());
            async move { broker.delivered(&chat("c"), id).await.unwrap() }
        };
        futures_util::future::join_all(ids.iter().map(deliver)).await;
        rig.broker.forget_delivered(ids.concat()[..150].to_vec()).await.unwrap();
    }
    let before = rig.state();
    assert_eq!(rig.applied(), BATCHES * 201);
    let rig = rig.restart().await;
    assert!(rig.state() == before);
    rig.broker.close().await;
    let (_, opened) = ConsensusStore::open(rig.disk.medium(), node(1)).unwrap();
    let (snapshot, tail) = contents(&opened.persisted).unwrap();
    let snapshot = State::decode(&snapshot.unwrap()).unwrap();
    assert!(snapshot.applied > 0 && (tail.len() as u64) < BATCHES * 201 - 1_000, "{} entries are left", tail.len());
    assert_eq!(snapshot.applied + tail.len() as u64, BATCHES * 201);
}
