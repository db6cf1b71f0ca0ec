//! Why a connection was closed, as a number on the wire (RFC 9000 section 19.19, application error codes). Pure.

/// Application error codes of CONNECTION_CLOSE. Append-only: a number keeps its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseCode {
    /// The device is stopping in order.
    Stopping = 0,
    /// It speaks another protocol, or no version that both know.
    Version = 1,
    /// The device is not on the roster. Retryable: rosters travel (failure rule F20).
    NotMember = 2,
    /// The device was forgotten: it is a mesh of its own now.
    Forgotten = 3,
    /// Two devices use one identity (failure rule F15).
    DuplicateIdentity = 4,
    /// Both sides dialled; the other connection is kept.
    Redundant = 5,
    /// It did not answer while work was in flight (failure rule F23).
    Unresponsive = 6,
    /// Bytes that are no message, or a message over its limit.
    Malformed = 7,
    /// It belongs to another mesh, or to another epoch of this one.
    OtherMesh = 8,
    /// The invite is wrong, spent or expired.
    InviteRefused = 9,
    /// Too many attempts: try again later.
    Busy = 10,
    /// Nothing was said within the time that is given.
    Silent = 11,
    /// The join is done; go on as a member.
    Done = 12,
}

impl CloseCode {
    const ALL: [Self; 13] = [
        Self::Stopping,
        Self::Version,
        Self::NotMember,
        Self::Forgotten,
        Self::DuplicateIdentity,
        Self::Redundant,
        Self::Unresponsive,
        Self::Malformed,
        Self::OtherMesh,
        Self::InviteRefused,
        Self::Busy,
        Self::Silent,
        Self::Done,
    ];

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The code of a number; `None` for one that a newer program made.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|code| u64::from(code.number()) == number)
    }

    /// Whether dialling again by itself can help.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        !matches!(self, Self::Forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_meaning() {
        for (number, code) in CloseCode::ALL.into_iter().enumerate() {
            assert_eq!(code.number() as usize, number);
            assert_eq!(CloseCode::from_number(number as u64), Some(code));
        }
        assert_eq!(CloseCode::from_number(13), None);
        assert_eq!(CloseCode::from_number(u64::MAX), None);
    }
}
