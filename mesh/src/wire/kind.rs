//! What a stream is for. The first byte of every stream says so. Pure.

/// Purposes of streams between members. Append-only: a number keeps its meaning (7 is the mesh's own question for a
/// roster); a stream of an unknown kind is reset and
/// its connection stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StreamKind {
    /// One question and its answer.
    Ask = 1,
    /// A member's announcements to the broker, and the broker's word to it; lives as long as the connection.
    Feed = 2,
    /// One call, from the door to the broker.
    Door = 3,
    /// One operation, from the broker to the session's node.
    Run = 4,
    /// One page of history, which may be waited for.
    History = 5,
    /// What a member asks of the broker's device for itself or for a person: who may join, who is there, what is recorded.
    Desk = 6,
}

impl StreamKind {
    /// The kind of a first byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Ask,
            2 => Self::Feed,
            3 => Self::Door,
            4 => Self::Run,
            5 => Self::History,
            6 => Self::Desk,
            _ => return None,
        })
    }

    /// The first byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Whether somebody waits on the other side while it is open: then the peer is asked each second whether it is there
    /// (failure rule F23).
    #[must_use]
    pub const fn is_work(self) -> bool {
        !matches!(self, Self::Feed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_survives_the_wire_and_unknown_bytes_are_none() {
        let known: Vec<u8> = (0..=u8::MAX).filter(|byte| StreamKind::from_byte(*byte).is_some()).collect();
        assert_eq!(known, [1, 2, 3, 4, 5, 6]);
        assert!(known.iter().all(|byte| StreamKind::from_byte(*byte).map(StreamKind::byte) == Some(*byte)));
    }
}
