//! The engine's types, filled in for a mesh, and how they are written down. Pure.

use std::fmt;

use bytes::Bytes;
use openraft::{Membership, impls::leader_id_std, type_config::alias};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{api::MemberId, runtime::Seam};
use crate::{
    identity::NodeId,
    wire::{self, CodecError},
};

openraft::declare_raft_types!(
    /// What the engine is told about a mesh. One leader a term (`leader_id_std`), so that a term names an office.
    pub(crate) Types:
        D = Command,
        R = Reply,
        NodeId = MemberId,
        Node = Place,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<Self::Term, Self::NodeId>,
        AsyncRuntime = Seam,
);

pub(super) type Raft = openraft::Raft<Types, super::machine::Applier>;
pub(super) type Entry = alias::EntryOf<Types>;
pub(super) type LogId = alias::LogIdOf<Types>;
pub(super) type Vote = alias::VoteOf<Types>;
pub(super) type Meta = alias::SnapshotMetaOf<Types>;
pub(super) type StoredMembership = alias::StoredMembershipOf<Types>;
pub(super) type Snapshot = alias::SnapshotOf<Types, Bytes>;
pub(super) type Members = Membership<MemberId, Place>;
/// The leader of an entry or an office: in this configuration its term alone.
pub(super) type Term = alias::CommittedLeaderIdOf<Types>;

/// A command as the log keeps it. Cheap to clone: the same bytes stand in the log, in messages and before the machine.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(super) Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({} bytes)", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Bytes as serde sees them. Without this each byte would be a value of its own, thirty times slower.
pub(super) mod raw {
    use super::{Bytes, Deserializer, Serializer, de, fmt};

    pub(in super::super) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Reader;
        impl de::Visitor<'_> for Reader {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes::copy_from_slice(bytes))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_bytes(Reader)
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        raw::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        raw::deserialize(deserializer).map(Self)
    }
}

/// What the machine said to a command; empty for the engine's own entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply(pub(super) Vec<u8>);

/// Where a member is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The device whose store it is.
    pub(super) node: NodeId,
}

/// How much a command weighs beside its bytes, in the log's budget: its id, its place in the queue.
const ENTRY_OVERHEAD: u64 = 64;

/// What an entry weighs in memory and, nearly, in a message; in bytes.
pub(super) fn weight(entry: &Entry) -> u64 {
    let bytes = match &entry.payload {
        openraft::EntryPayload::Normal(command) => command.0.len() as u64,
        openraft::EntryPayload::Blank | openraft::EntryPayload::Membership(_) => 0,
    };
    bytes + ENTRY_OVERHEAD
}

/// First byte of everything that is kept: the format of what follows.
const FORMAT: u8 = 1;

/// `value` as the store keeps it.
pub(super) fn kept<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![FORMAT];
    bytes.extend(wire::encode(value)?);
    Ok(bytes)
}

/// The value of what [`kept`] wrote.
pub(super) fn keep<T: de::DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match bytes {
        [FORMAT, rest @ ..] => wire::decode(rest),
        [format, ..] => Err(CodecError::Version(format!(
            "the broker's log has format {format}, and this program knows {FORMAT}: use a newer chappie"
        ))),
        [] => Err(CodecError::Malformed { length: 0, cause: "nothing at all".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> LogId {
        LogId::new(Term::new(term), index)
    }

    #[test]
    fn what_is_kept_has_these_bytes() {
        let own = MemberId(0x0102_0304_0506_0708);
        let vote = Vote::new_committed(3, own);
        assert_eq!(kept(&vote).unwrap(), [1, 3, 1, 136, 142, 152, 168, 192, 224, 128, 129, 1, 1]);
        assert_eq!(kept(&Some(id(2, 300))).unwrap(), [1, 1, 2, 172, 2]);
        let entry = Entry { log_id: id(2, 5), payload: openraft::EntryPayload::Normal(Command("hey".into())) };
        assert_eq!(kept(&entry).unwrap(), [1, 2, 5, 1, 3, b'h', b'e', b'y']);
        let blank = Entry { log_id: id(2, 6), payload: openraft::EntryPayload::Blank };
        assert_eq!(kept(&blank).unwrap(), [1, 2, 6, 0]);
        assert_eq!(keep::<Entry>(&kept(&entry).unwrap()).unwrap(), entry);
        assert_eq!(keep::<Vote>(&kept(&vote).unwrap()).unwrap(), vote);
    }

    #[test]
    fn what_a_newer_program_kept_is_refused_by_name() {
        assert!(matches!(keep::<Vote>(&[9, 1]), Err(CodecError::Version(text)) if text.contains("format 9")));
        assert!(keep::<Vote>(&[]).is_err());
        assert!(keep::<Vote>(&[1, 3]).is_err());
    }
}
