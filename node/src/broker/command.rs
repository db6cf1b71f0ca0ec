//! The commands of the log: the only way the state changes. Pure.
//!
//! Variants and fields are append-only, because a log entry must stay readable for every later program: a new field is a
//! new variant. `golden` tests pin the bytes.

use std::borrow::Cow;

use chappie_mesh::{InviteId, InviteKey, MeshId, NodeId};
use serde::{Deserialize, Serialize};

use super::{
    limits::{
        CALL_BYTES_MAX, CONVERSATION_BYTES_MAX, FORGET_SESSIONS_MAX, IMPORT_BATCH, NAME_BYTES_MAX,
        OPERATION_ID_CHARS_MAX, SESSION_BYTES_MAX,
    },
    membership::Verdict,
    merge::{Belongings, MergeReport},
    reannounce::Reannounced,
    receipts::{Receipt, ReceiptKey, ReceiptKind, ResourceRefData},
    state::{self, Binding, DecodeError},
};
use crate::ids::{CallId, Conversation, Millis, SessionId};

/// First byte of an encoded entry.
///
/// 1: [`Stamped`], in stores of formats 2 and 3. 2: [`Entry`].
const ENTRY_VERSION: u8 = 2;
/// First byte of an encoded reply.
const REPLY_VERSION: u8 = 1;

/// A command as it is proposed. Its place is known only when it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Mesh time at the broker that proposed it. When it is applied it counts as the latest stamp of all before, if that is
    /// later.
    pub at: Millis,
    /// What to do.
    pub command: Command,
}

impl Entry {
    /// The entry as bytes: one version byte, then postcard.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        state::encode(ENTRY_VERSION, self)
    }

    /// The entry of [`Entry::encode`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        state::decode(ENTRY_VERSION, bytes)
    }
}

/// A command with its place among all that were applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped {
    /// Mesh time; never before the stamp of the entry before.
    pub at: Millis,
    /// 1, 2, 3, … without a gap.
    pub index: u64,
    /// What to do.
    pub command: Command,
}

impl Stamped {
    /// An entry of version 1, as stores of formats 2 and 3 hold them.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        state::decode(1, bytes)
    }

    #[cfg(test)]
    pub(super) fn encode(&self) -> Vec<u8> {
        state::encode(1, self)
    }
}

/// What changes the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Makes `session` the default of a chat, if its binding still has revision `expected` (F13: a compare-and-set).
    Bind {
        /// Chat id.
        chat: String,
        /// New default.
        session: SessionId,
        /// Revision seen when choosing; `None`: there was no row.
        expected: Option<u64>,
    },
    /// Writes a later use of a binding.
    Touch {
        /// Chat id.
        chat: String,
        /// Revision that was used.
        revision: u64,
    },
    /// Puts the previous binding back, if nobody changed it since.
    Restore {
        /// Chat id.
        chat: String,
        /// Revision of the bind that is undone.
        revision: u64,
        /// What stood there; `None`: nothing.
        previous: Option<Binding>,
    },
    /// Reserves a receipt, before dispatch.
    Reserve(Reservation),
    /// Reports the outcome of an attempt (F9: from the session node).
    Settle {
        /// Which operation.
        key: ReceiptKey,
        /// Which attempt; another one's report is ignored.
        attempt: u32,
        /// The outcome.
        outcome: Settlement,
        /// References that did not come along; the journal has them.
        left_out: u32,
    },
    /// A person settles an uncertain receipt.
    Resolve {
        /// Which operation.
        key: ReceiptKey,
        /// What the person found.
        how: Resolve,
    },
    /// Late results were written to their conversation.
    Deliver {
        /// Key of the conversation.
        conversation: String,
        /// Their ids.
        ids: Vec<String>,
    },
    /// Their owner has deleted these (F26).
    Forget {
        /// Ids.
        ids: Vec<String>,
    },
    /// The wall clock jumped by so many milliseconds before this entry (F14).
    Jump {
        /// Skipped time.
        gap_ms: u64,
    },
    /// The bytes of a resource were read through the broker.
    SourceRead {
        /// The receiving conversation.
        conversation: Conversation,
        /// Its URI as the receipt has it.
        uri: String,
    },
    /// Rows of the original's state file.
    Import {
        /// Bindings; ours win unless older.
        bindings: Vec<ImportRow>,
        /// Receipts; ours win.
        receipts: Vec<Receipt>,
    },
    /// This node becomes a mesh of one, unless it is the broker of one already; then it takes the name. In logs of format 3
    /// only.
    Found {
        /// The new mesh.
        mesh: MeshId,
        /// This node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// Opens an invite.
    Invite {
        /// Its id.
        id: InviteId,
        /// What checks a proof of its secret.
        key: InviteKey,
        /// How many devices it lets in.
        uses: u32,
        /// For how long.
        ttl_ms: u64,
    },
    /// A device proved an invite's secret (F19).
    Admit {
        /// Which device.
        node: NodeId,
        /// Its name.
        name: String,
        /// Which invite.
        invite: InviteId,
    },
    /// A member is called otherwise.
    Rename {
        /// Which member.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// A member is forgotten (F21).
    Remove {
        /// Which member.
        node: NodeId,
        /// Its sessions, as far as they are known.
        sessions: Vec<SessionId>,
    },
    /// Rows of a mesh of one that joined (F18).
    Merge {
        /// The device that brought them.
        from: NodeId,
        /// The rows.
        brought: Belongings,
    },
    /// Everything goes, and this node becomes a mesh of one. In logs of format 3 only.
    StartOver {
        /// The new mesh; a repeated command with the same one changes nothing.
        mesh: MeshId,
        /// This node.
        node: NodeId,
        /// Its name.
        name: String,
    },
    /// After `mesh recover`: which operations a member knows of the last 24 h (failure rule F17).
    Reannounce {
        /// The member.
        node: NodeId,
        /// Its operations, or some of them.
        rows: Vec<Reannounced>,
        /// Whether these are the last of them.
        last: bool,
    },
    /// What members that have not re-announced know is given up (failure rule F17).
    AcceptLoss,
}

/// A reserved operation, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Identity.
    pub key: ReceiptKey,
    /// Canonical hash of the arguments.
    pub signature: String,
    /// The caller's own id.
    pub operation_id: String,
    /// Whose it is.
    pub conversation: Option<Conversation>,
    /// Where it goes.
    pub session: SessionId,
    /// That session's folder.
    pub cwd: String,
    /// Message or batch.
    pub kind: ReceiptKind,
    /// The call that will carry it.
    pub call_id: CallId,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Settlement {
    /// It finished. Final.
    Completed {
        /// What it exported.
        resources: Vec<ResourceRefData>,
    },
    /// It may have run.
    Uncertain {
        /// Why that is not known.
        reason: String,
    },
    /// The session node sealed it: it did not run and never will (F3). A retry gets the next attempt.
    NeverRun,
}

/// What a person found about an uncertain operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolve {
    /// The work was done.
    Completed,
    /// It was not; it may run again.
    NotDone,
}

/// One imported binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportRow {
    /// Chat id.
    pub chat: String,
    /// Its session.
    pub session: SessionId,
    /// Last use; `None` for the original's plain form, which yields to any binding we have.
    pub last_used: Option<Millis>,
}

/// What a command did. Variants are append-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The binding stands under this revision; what stood there before, unless expired.
    Bound {
        /// Revision of the new binding.
        revision: u64,
        /// The previous one.
        previous: Option<Binding>,
    },
    /// Somebody changed the binding meanwhile: select again.
    Stale,
    /// A receipt is reserved for this attempt: dispatch it.
    Fresh {
        /// 1, or more after a sealed attempt.
        attempt: u32,
    },
    /// The operation is known; its receipt.
    Replay(Box<Receipt>),
    /// The id is known with other arguments; its receipt.
    Conflict(Box<Receipt>),
    /// The table is full.
    Full {
        /// Of what.
        what: Cow<'static, str>,
        /// The limit.
        limit: usize,
    },
    /// A person's word was refused: the receipt is unknown (`None`) or stands like this.
    Unresolvable(Option<super::receipts::ReceiptStatus>),
    /// How an import went.
    Imported(ImportCounts),
    /// What became of a device that proved an invite's secret.
    Admission(Verdict),
    /// An invite of this id is there with another secret.
    Taken,
    /// There is no mesh yet.
    NoMesh,
    /// The device was not forgotten.
    Kept(Kept),
    /// How a merge went.
    Merged(MergeReport),
    /// Done; whether anything changed.
    Done(bool),
    /// Nothing new may be reserved yet: these members have not re-announced, by name.
    Recovering(Vec<String>),
}

impl Reply {
    /// The table of `what` is full.
    pub(super) const fn full(what: &'static str, limit: usize) -> Self {
        Self::Full { what: Cow::Borrowed(what), limit }
    }

    /// The reply as bytes: one version byte, then postcard.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        state::encode(REPLY_VERSION, self)
    }

    /// The reply of [`Reply::encode`].
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        state::decode(REPLY_VERSION, bytes)
    }
}

/// Why a device was not forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// It is the last one.
    Last,
    /// It is no member and never was, as far as is known.
    Unknown,
}

/// Counts of one import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportCounts {
    /// Bindings that were not there.
    pub bindings_added: usize,
    /// Bindings that replaced an older one of ours.
    pub bindings_replaced: usize,
    /// Bindings where ours is as new or newer.
    pub bindings_kept: usize,
    /// Bindings idle for more than 30 days.
    pub bindings_expired: usize,
    /// Receipts that were not there.
    pub receipts_added: usize,
    /// Receipts we had.
    pub receipts_kept: usize,
    /// Receipts completed more than 24 h ago.
    pub receipts_expired: usize,
    /// Rows for which the table was full.
    pub no_room: usize,
}

/// A text that is too long for the state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is too long: {found} where at most {limit} is taken")]
pub struct TooLong {
    /// Which text.
    pub what: &'static str,
    /// Its length, with the unit.
    pub found: String,
    /// The limit, with the unit.
    pub limit: String,
}

impl Command {
    /// Checks the lengths that bound the state; to be called before the command gets a stamp.
    ///
    /// # Errors
    /// [`TooLong`] with the first text that is over its limit.
    pub fn check(&self) -> Result<(), TooLong> {
        match self {
            Self::Bind { chat, session, .. } => {
                bytes("the conversation's id", chat, CONVERSATION_BYTES_MAX)?;
                bytes("the session's id", session.as_str(), SESSION_BYTES_MAX)
            }
            Self::Reserve(reservation) => reservation.check(),
            Self::Deliver { conversation, ids } => {
                bytes("the conversation's id", conversation, CONVERSATION_BYTES_MAX + 5)?;
                ids.iter().try_for_each(|id| bytes("the late result's id", id, CALL_BYTES_MAX))
            }
            Self::Import { bindings, receipts } => {
                bindings.iter().try_for_each(|row| {
                    bytes("the conversation's id", &row.chat, CONVERSATION_BYTES_MAX)?;
                    bytes("the session's id", row.session.as_str(), SESSION_BYTES_MAX)
                })?;
                receipts.iter().try_for_each(|receipt| Reservation::of(receipt).check())
            }
            Self::Found { name, .. }
            | Self::Admit { name, .. }
            | Self::Rename { name, .. }
            | Self::StartOver { name, .. } => bytes("the device's name", name, NAME_BYTES_MAX),
            Self::Remove { sessions, .. } => {
                at_most("the list of the device's sessions", sessions.len(), FORGET_SESSIONS_MAX)?;
                sessions.iter().try_for_each(|id| bytes("the session's id", id.as_str(), SESSION_BYTES_MAX))
            }
            Self::Merge { brought, .. } => check_brought(brought),
            Self::Reannounce { rows, .. } => {
                at_most("the piece of what a device re-announces", rows.len(), IMPORT_BATCH)?;
                rows.iter().try_for_each(Reannounced::check)
            }
            Self::Invite { .. }
            | Self::Touch { .. }
            | Self::Restore { .. }
            | Self::Settle { .. }
            | Self::Resolve { .. }
            | Self::Forget { .. }
            | Self::Jump { .. }
            | Self::SourceRead { .. }
            | Self::AcceptLoss => Ok(()),
        }
    }

    /// The command that takes this one back, given what it did, for a proposer that went away before it learnt the
    /// reply: nothing was dispatched for it.
    #[must_use]
    pub fn undo(&self, reply: &Reply) -> Option<Self> {
        match (self, reply) {
            (Self::Bind { chat, .. }, Reply::Bound { revision, previous }) => {
                Some(Self::Restore { chat: chat.clone(), revision: *revision, previous: previous.clone() })
            }
            (Self::Reserve(reservation), Reply::Fresh { attempt }) => Some(Self::Settle {
                key: reservation.key.clone(),
                attempt: *attempt,
                outcome: Settlement::NeverRun,
                left_out: 0,
            }),
            _ => None,
        }
    }

    /// Whether it can be taken back, so that it need not be written at all once its proposer is gone.
    #[must_use]
    pub const fn revocable(&self) -> bool {
        matches!(self, Self::Bind { .. } | Self::Reserve(_))
    }
}

impl Reservation {
    fn of(receipt: &Receipt) -> Self {
        Self {
            key: receipt.key.clone(),
            signature: receipt.signature.clone(),
            operation_id: receipt.operation_id.clone(),
            conversation: receipt.conversation.clone(),
            session: receipt.session.clone(),
            cwd: String::new(),
            kind: receipt.kind,
            call_id: receipt.call_id.clone(),
        }
    }

    fn check(&self) -> Result<(), TooLong> {
        let found = self.operation_id.chars().count();
        if found > OPERATION_ID_CHARS_MAX {
            let limit = format!("{OPERATION_ID_CHARS_MAX} characters");
            return Err(TooLong { what: "operationId", found: format!("{found} characters"), limit });
        }
        if let Some(Conversation::Chat(id) | Conversation::Connection(id)) = &self.conversation {
            bytes("the conversation's id", id, CONVERSATION_BYTES_MAX)?;
        }
        bytes("the session's id", self.session.as_str(), SESSION_BYTES_MAX)?;
        bytes("the call's id", self.call_id.as_str(), CALL_BYTES_MAX)?;
        bytes("the receipt's key", &self.key.0, 64)?;
        bytes("the arguments' signature", &self.signature, 64)
    }
}

fn check_brought(brought: &Belongings) -> Result<(), TooLong> {
    at_most("the piece of what a device brings along", brought.rows(), IMPORT_BATCH)?;
    brought.bindings.iter().try_for_each(|row| {
        bytes("the conversation's id", &row.chat, CONVERSATION_BYTES_MAX)?;
        bytes("the session's id", row.session.as_str(), SESSION_BYTES_MAX)
    })?;
    brought.receipts.iter().try_for_each(|receipt| Reservation::of(receipt).check())?;
    brought.delivered.iter().try_for_each(|row| {
        bytes("the late result's id", &row.id, CALL_BYTES_MAX)?;
        bytes("the conversation's id", &row.conversation, CONVERSATION_BYTES_MAX + 5)
    })
}

fn at_most(what: &'static str, rows: usize, max: usize) -> Result<(), TooLong> {
    if rows <= max {
        return Ok(());
    }
    Err(TooLong { what, found: format!("{rows} rows"), limit: format!("{max} rows") })
}

pub(super) fn bytes(what: &'static str, text: &str, max: usize) -> Result<(), TooLong> {
    if text.len() <= max {
        return Ok(());
    }
    Err(TooLong { what, found: format!("{} bytes", text.len()), limit: format!("{max} bytes") })
}

#[cfg(test)]
mod tests;
