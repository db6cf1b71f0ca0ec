//! The replicated state and its encoding. Pure; changed only by [`super::apply::apply`].

use std::collections::{BTreeMap, BTreeSet};

use chappie_mesh::NodeId;
use serde::{Deserialize, Serialize};

use super::{
    bindings::Bindings,
    limits::{BINDING_IDLE_MS, BINDING_PRUNE_MS},
    membership::Membership,
    receipts::{Receipt, ReceiptKey},
};
use crate::ids::{Millis, SessionId};

/// First byte of an encoded state. Append-only: an old number keeps its meaning, and [`State::decode`] reads it.
///
/// 2: without membership. 3: with it at the end. 4: and after it, who has yet to re-announce.
const STATE_VERSION: u8 = 4;

/// A conversation's default session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The session.
    pub session: SessionId,
    /// Last use that was written; the real one may be up to a day later (touches are rare).
    pub last_used: Millis,
    /// From when its idle time counts: `last_used`, moved by clock jumps (F14).
    pub idle_from: Millis,
    /// Index of the command that made it; a rollback names it.
    pub revision: u64,
}

impl Binding {
    /// Whether it was idle for more than 30 days, given the last use in memory.
    #[must_use]
    pub fn expired(&self, seen: Option<Millis>, now: Millis) -> bool {
        now.since(seen.map_or(self.idle_from, |seen| seen.max(self.idle_from))) > BINDING_IDLE_MS
    }

    /// Whether it may leave the state: what memory may know of its use is covered.
    #[must_use]
    pub(super) const fn prunable(&self, now: Millis) -> bool {
        now.since(self.idle_from) > BINDING_PRUNE_MS
    }
}

/// A late result that was written to its conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Key of the conversation.
    pub conversation: String,
    /// When it was recorded.
    pub at: Millis,
}

/// Everything the log says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Index of the last command applied; 0 before the first.
    pub applied: u64,
    /// Its stamp.
    pub at: Millis,
    /// When expired rows were last looked for.
    pub pruned: Millis,
    /// Chat id → default session.
    pub bindings: Bindings,
    /// Receipts by key.
    pub receipts: BTreeMap<ReceiptKey, Receipt>,
    /// Late results that were delivered and whose owner still has them.
    pub delivered: BTreeMap<String, Delivered>,
    /// The mesh; `None` before this node founded one.
    pub membership: Option<Membership>,
    /// After `mesh recover`: members that have not said yet which operations they know of the last 24 h (failure rule F17).
    pub recovering: BTreeSet<NodeId>,
}

/// The state of version 2.
#[derive(Deserialize)]
struct State2 {
    applied: u64,
    at: Millis,
    pruned: Millis,
    bindings: Bindings,
    receipts: BTreeMap<ReceiptKey, Receipt>,
    delivered: BTreeMap<String, Delivered>,
}

impl From<State2> for State {
    fn from(old: State2) -> Self {
        let State2 { applied, at, pruned, bindings, receipts, delivered } = old;
        Self { applied, at, pruned, bindings, receipts, delivered, ..Self::default() }
    }
}

/// The state of version 3.
#[derive(Deserialize)]
struct State3 {
    applied: u64,
    at: Millis,
    pruned: Millis,
    bindings: Bindings,
    receipts: BTreeMap<ReceiptKey, Receipt>,
    delivered: BTreeMap<String, Delivered>,
    membership: Option<Membership>,
}

impl From<State3> for State {
    fn from(old: State3) -> Self {
        let State3 { applied, at, pruned, bindings, receipts, delivered, membership } = old;
        Self { applied, at, pruned, bindings, receipts, delivered, membership, ..Self::default() }
    }
}

/// Why bytes are not a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A version of a newer program, or nonsense.
    #[error("the record has version {found}, this program knows up to {known}")]
    Version {
        /// The first byte.
        found: u8,
        /// What this program writes.
        known: u8,
    },
    /// The bytes do not decode.
    #[error("the record is damaged: {0}")]
    Damaged(String),
}

impl State {
    /// The state as bytes: one version byte, then postcard. The same state gives the same bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(STATE_VERSION, self)
    }

    /// The state of [`State::encode`], of this program's version or of an older one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.first() {
            Some(2) => decode::<State2>(2, bytes).map(Self::from),
            Some(3) => decode::<State3>(3, bytes).map(Self::from),
            _ => decode(STATE_VERSION, bytes),
        }
    }

    /// The state that a store of format 1 stands for: it kept plain strings, chat → session, without a time, so every
    /// use counts from `now`, the moment of the upgrade.
    #[must_use]
    pub fn from_plain_bindings(bindings: impl IntoIterator<Item = (String, String)>, now: Millis) -> Self {
        let bind = |(chat, session)| {
            (chat, Binding { session: SessionId(session), last_used: now, idle_from: now, revision: 0 })
        };
        Self { at: now, pruned: now, bindings: bindings.into_iter().map(bind).collect(), ..Self::default() }
    }
}

pub(super) fn encode<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![version])
        .unwrap_or_else(|error| unreachable!("our rows are plain data that postcard takes: {error}"))
}

pub(super) fn decode<T: for<'a> Deserialize<'a>>(known: u8, bytes: &[u8]) -> Result<T, DecodeError> {
    match bytes {
        [version, rest @ ..] if *version == known => {
            let (value, rest) =
                postcard::take_from_bytes(rest).map_err(|error| DecodeError::Damaged(error.to_string()))?;
            if rest.is_empty() {
                Ok(value)
            } else {
                Err(DecodeError::Damaged(format!("{} bytes too many", rest.len())))
            }
        }
        [version, ..] => Err(DecodeError::Version { found: *version, known }),
        [] => Err(DecodeError::Damaged("it is empty".into())),
    }
}

#[cfg(test)]
mod tests {
    use chappie_mesh::{InviteId, fresh_invite};

    use super::*;
    use crate::{
        broker::receipts::{ReceiptKind, ReceiptStatus, ResourceRefData},
        ids::{CallId, Conversation},
    };

    fn sample() -> State {
        let resource =
            ResourceRefData { uri: "u".into(), name: "n".into(), mime_type: "m".into(), size: 9, source_read_at: None };
        let receipt = Receipt {
            key: ReceiptKey("k".into()),
            signature: "g".into(),
            operation_id: "o".into(),
            conversation: Some(Conversation::Chat("c".into())),
            session: SessionId::from("s"),
            cwd: "/".into(),
            kind: ReceiptKind::Chat,
            call_id: CallId::from("i"),
            attempt: 1,
            status: ReceiptStatus::NeverRun,
            reason: Some("r".into()),
            created: Millis(4),
            updated: Millis(5),
            keep_from: Millis(6),
            resources: vec![resource],
            resources_left_out: 7,
            imported: true,
        };
        let mut state = State::from_plain_bindings([("c".into(), "s".into())], Millis(2));
        state.applied = 8;
        state.receipts.insert(receipt.key.clone(), receipt);
        state.delivered.insert("d".into(), Delivered { conversation: "chat:c".into(), at: Millis(3) });
        state
    }

    /// The sample without its mesh, after the version.
    const ROWS: &str = "080202010163017302020001016b016b0167016f010001630173012f0001690103010172040506010175016e016d0900070101016406636861743a6303";

    fn with_mesh() -> State {
        let id = InviteId::from([0xcc; 8]);
        let (one, two) = (NodeId::from([0x11; 32]), NodeId::from([0x22; 32]));
        let mut mesh = Membership::alone([0xaa; 16].into(), one, "n", Millis(10));
        let key = fresh_invite([0xdd; 24]).1.key();
        mesh.invite(id, key, 2, 1_000, Millis(11));
        mesh.admit(two, "m", id, Millis(12));
        mesh.remove(&two);
        State { membership: Some(mesh), ..sample() }
    }

    fn hex(state: &State) -> String {
        state.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_state_keeps_its_bytes() {
        assert_eq!(hex(&sample()), format!("04{ROWS}0000"));
        let (mesh, one, two) = ("aa".repeat(16), "11".repeat(32), "22".repeat(32));
        let key = "2022a166ffc35b0cd2ead0d288c2d97822945719de7a7660882a4271d0dd9e09";
        let members = format!("{mesh}0103{one}01{one}016e0a00");
        let invites = format!("01cccccccccccccccc{key}010be8070001{two}0c");
        let mesh = format!("01{members}01{two}03{invites}");
        assert_eq!(hex(&with_mesh()), format!("04{ROWS}{mesh}00"));
        let recovering = State { recovering: [NodeId::from([0x33; 32])].into(), ..with_mesh() };
        assert_eq!(hex(&recovering), format!("04{ROWS}{mesh}01{}", "33".repeat(32)));
        for state in [sample(), with_mesh(), recovering] {
            assert_eq!(State::decode(&state.encode()), Ok(state));
        }
        assert_eq!(State::decode(&bytes(&format!("03{ROWS}{mesh}"))), Ok(with_mesh()), "version 3");
    }

    #[test]
    fn a_state_of_version_2_is_read_and_has_no_mesh() {
        assert_eq!(State::decode(&bytes(&format!("02{ROWS}"))), Ok(sample()));
        assert!(matches!(State::decode(&bytes(&format!("02{ROWS}00"))), Err(DecodeError::Damaged(_))));
    }

    #[test]
    fn a_state_of_another_version_or_cut_short_is_an_error() {
        let bytes = sample().encode();
        let newer = [&[STATE_VERSION + 1], &bytes[1..]].concat();
        assert_eq!(State::decode(&newer), Err(DecodeError::Version { found: 5, known: 4 }));
        assert!((0..bytes.len()).all(|cut| State::decode(&bytes[..cut]).is_err()));
    }

    #[test]
    fn s6_2_a_binding_expires_after_30_days_of_the_later_of_both_uses() {
        let at = Millis(1_000);
        let binding = Binding { session: SessionId::from("s"), last_used: at, idle_from: at, revision: 1 };
        for (seen, age, expired) in [
            (None, BINDING_IDLE_MS, false),
            (None, BINDING_IDLE_MS + 1, true),
            (Some(500), BINDING_IDLE_MS + 1, true),
            (Some(1_001), BINDING_IDLE_MS + 1, false),
        ] {
            assert_eq!(binding.expired(seen.map(Millis), at.plus(age)), expired, "{seen:?} {age}");
        }
        assert!(!binding.prunable(at.plus(BINDING_PRUNE_MS)) && binding.prunable(at.plus(BINDING_PRUNE_MS + 1)));
    }
}
