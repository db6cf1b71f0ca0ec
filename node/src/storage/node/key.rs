//! Row keys: a kind byte, then the parts; numbers big-endian, so that byte order is the order rows are read in. Pure.

use chappie_mesh::NodeId;

use crate::ids::{CallId, SessionId};

/// The key of one row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Vec<u8>);

/// Ends a text part. Ids are hexadecimal, base32 or UUIDs, so a zero byte cannot occur inside one.
const END: u8 = 0;

impl Key {
    fn of(kind: u8, text: &str) -> Self {
        let mut bytes = Vec::with_capacity(text.len() + 10);
        bytes.push(kind);
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(END);
        Self(bytes)
    }

    fn numbered(kind: u8, text: &str, number: u64) -> Self {
        let mut key = Self::of(kind, text);
        key.0.extend_from_slice(&number.to_be_bytes());
        key
    }

    /// A session's own row.
    #[must_use]
    pub fn session(id: &SessionId) -> Self {
        Self::of(b's', id.as_str())
    }

    /// The history entry at position `seq` of a session.
    #[must_use]
    pub fn history(id: &SessionId, seq: u64) -> Self {
        Self::numbered(b'h', id.as_str(), seq)
    }

    /// The input at history position `seq` that no result has carried yet.
    #[must_use]
    pub fn input(id: &SessionId, seq: u64) -> Self {
        Self::numbered(b'i', id.as_str(), seq)
    }

    /// The journal row of an operation.
    #[must_use]
    pub fn journal(id: &CallId) -> Self {
        Self::of(b'j', id.as_str())
    }

    /// The outcome of an operation, kept until it was delivered.
    #[must_use]
    pub fn outcome(id: &CallId) -> Self {
        Self::of(b'o', id.as_str())
    }

    /// An image that a session showed.
    #[must_use]
    pub fn image(id: &SessionId, sha256: &str) -> Self {
        let mut key = Self::of(b'm', id.as_str());
        key.0.extend_from_slice(sha256.as_bytes());
        key
    }

    /// What the journal knows of a receipt key.
    #[must_use]
    pub fn receipt(key: &str) -> Self {
        Self::of(b'r', key)
    }

    /// An operation that never runs under its identity, though no journal row speaks of it.
    #[must_use]
    pub fn tombstone(id: &CallId) -> Self {
        Self::of(b'x', id.as_str())
    }

    /// The highest office that was seen.
    #[must_use]
    pub fn tenure() -> Self {
        Self::of(b't', "")
    }

    /// Since when this journal is known to be whole: before that it may lack what ran, because an older copy was put back.
    #[must_use]
    pub fn journal_since() -> Self {
        Self::of(b'J', "")
    }

    /// The mesh that this node shares with other devices: its copy of the roster. The row stands there exactly while there
    /// are others.
    #[must_use]
    pub fn mesh() -> Self {
        Self::of(b'B', "")
    }

    /// The same in the form that it had before brokers were elected.
    #[must_use]
    pub fn membership() -> Self {
        Self::of(b'M', "")
    }

    /// This node's last start (failure rule F15).
    #[must_use]
    pub fn incarnation() -> Self {
        Self::of(b'I', "")
    }

    /// In which files the last start was written down (failure rule F15).
    #[must_use]
    pub fn footing() -> Self {
        Self::of(b'F', "")
    }

    /// What is remembered of another device: where it was and which start of it was seen.
    #[must_use]
    pub fn peer(node: &NodeId) -> Self {
        Self::of(b'P', &node.to_string())
    }

    /// The last announcement of a member, as its broker keeps it.
    #[must_use]
    pub fn announced(node: &NodeId) -> Self {
        Self::of(b'A', &node.to_string())
    }

    /// The least key of every kind at or after this one's kind byte: the range of all rows of `kind` is
    /// `first(kind)..after(kind)`.
    fn bound(kind: u8) -> Self {
        Self(vec![kind])
    }

    /// The range of every session row.
    #[must_use]
    pub fn sessions() -> (Self, Self) {
        (Self::bound(b's'), Self::bound(b's' + 1))
    }

    /// The range of every journal row.
    #[must_use]
    pub fn journals() -> (Self, Self) {
        (Self::bound(b'j'), Self::bound(b'j' + 1))
    }

    /// The range of every tombstone.
    #[must_use]
    pub fn tombstones() -> (Self, Self) {
        (Self::bound(b'x'), Self::bound(b'x' + 1))
    }

    /// The operation that a tombstone's key names.
    #[must_use]
    pub fn call_id(&self) -> Option<CallId> {
        let text = self.0.get(1..)?.strip_suffix(&[END])?;
        std::str::from_utf8(text).ok().map(CallId::from)
    }

    /// The range of every remembered device.
    #[must_use]
    pub fn peers() -> (Self, Self) {
        (Self::bound(b'P'), Self::bound(b'P' + 1))
    }

    /// The range of every kept announcement.
    #[must_use]
    pub fn announced_all() -> (Self, Self) {
        (Self::bound(b'A'), Self::bound(b'A' + 1))
    }

    /// The range of every input of a session.
    #[must_use]
    pub fn inputs(id: &SessionId) -> (Self, Self) {
        (Self::input(id, 0), Self::input(id, u64::MAX))
    }

    /// The number at the end of a numbered key.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        let start = self.0.len().checked_sub(8)?;
        Some(u64::from_be_bytes(self.0[start..].try_into().ok()?))
    }

    /// The device of a [`Key::peer`] or [`Key::announced`] row.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        let (b'P' | b'A', text) = self.0.split_first()? else { return None };
        std::str::from_utf8(text.strip_suffix(&[END])?).ok()?.parse().ok()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}
