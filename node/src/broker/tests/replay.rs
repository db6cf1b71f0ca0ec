//! Determinism: the same log gives the same state, byte for byte; after a snapshot too.

use chappie_mesh::{InviteId, MeshId, NodeId, fresh_invite};

use super::{
    apply::apply,
    command::{Command, ImportRow, Kept, Reply, Reservation, Stamped},
    limits::SNAPSHOT_EVERY,
    membership::Verdict,
    merge::{Belongings, BroughtBinding, BroughtDelivery},
    state::{Binding, State},
    *,
};

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

    fn mesh_command(&mut self) -> Command {
        let (mesh, node, name) = (MeshId::from([1; 16]), NodeId::from([0; 32]), self.name("n", 3));
        match self.roll(24) {
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

    fn log(&mut self, length: u64) -> Vec<Stamped> {
        let mut at = START;
        let stamped = |index| {
            at += if self.roll(20) == 0 { self.roll(3 * DAY) } else { self.roll(60_000) };
            Stamped { at: Millis(at), index, command: self.command() }
        };
        (1..=length).map(stamped).collect()
    }
}

fn replayed(from: State, log: &[Stamped]) -> State {
    let mut state = from;
    for entry in log {
        apply(&mut state, &Stamped::decode(&entry.encode()).unwrap());
    }
    state
}

#[test]
fn replaying_the_log_gives_the_same_bytes_also_after_a_snapshot_at_any_place() {
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let log = dice.log(250);
        let whole = replayed(State::default(), &log).encode();
        assert_eq!(replayed(State::default(), &log).encode(), whole, "seed {seed}");
        let cut = usize::try_from(dice.roll(250)).unwrap();
        let snapshot = replayed(State::default(), &log[..cut]).encode();
        let tail = replayed(State::decode(&snapshot).unwrap(), &log[cut..]);
        assert_eq!(tail.encode(), whole, "seed {seed}, cut at {cut}");
    }
}

#[test]
fn f26_no_command_sequence_makes_a_receipt_too_large() {
    for seed in 1_000..1_040 {
        let state = replayed(State::default(), &Dice(seed).log(400));
        for receipt in state.receipts.values() {
            let size = postcard::to_stdvec(receipt).unwrap().len();
            assert!(size <= limits::RECEIPT_BYTES_MAX, "seed {seed}: {size} bytes");
            assert!(receipt.reason.as_ref().is_none_or(|reason| reason.len() <= limits::REASON_BYTES_MAX));
        }
    }
}

#[test]
fn the_log_reaches_every_kind_of_reply() {
    let mut seen = [false; 16];
    for seed in 0..120 {
        let mut state = State::default();
        for entry in Dice(seed).log(250) {
            let kind = match apply(&mut state, &entry) {
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
                Reply::Kept(Kept::Broker) => 13,
                Reply::Kept(Kept::Unknown) => 14,
                Reply::Merged(_) => 15,
            };
            seen[kind] = true;
        }
    }
    assert_eq!(seen, [true; 16]);
}

#[tokio::test]
async fn a_broker_with_snapshots_reopens_to_the_same_bytes() {
    let rig = Rig::new(quick());
    let rounds = SNAPSHOT_EVERY + 300;
    for n in 0..rounds {
        let id = vec![format!("r{n}")];
        rig.broker.delivered(&chat("c"), id.clone()).await.unwrap();
        if n % 3 == 0 {
            rig.broker.forget_delivered(id).await.unwrap();
        }
    }
    let before = rig.state();
    let rig = rig.restart().await;
    assert_eq!(rig.state(), before);
    rig.broker.close().await;
    let (_, contents) = rig.disk.open(upgrade).unwrap();
    let (snapshot, _) = contents.snapshot.unwrap();
    assert!(snapshot >= SNAPSHOT_EVERY && contents.tail.len() < usize::try_from(SNAPSHOT_EVERY).unwrap());
    assert_eq!(snapshot + contents.tail.len() as u64, rounds + rounds.div_ceil(3));
}
