//! The broker's errors: what was wanted, what was found, what to do next. Pure.

use std::{borrow::Cow, time::Duration};

use super::{
    command::TooLong,
    limits::{INVITE_USES_MAX, MEMBERS_MAX, QUEUE_MAX},
    receipts::{ReceiptKey, ReceiptStatus},
    select::{Missing, Refusal},
};
use crate::ids::SessionId;

pub use crate::storage::log::OpenError;

/// Why there is no session for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The named session did not come online in time.
    #[error(
        "session {session} is not online (waited {waited:?}); call `sessions` to see which are, then name one of those as sessionId"
    )]
    NotOnline {
        /// As named.
        session: SessionId,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The conversation's default did not come online in time; it is never replaced.
    #[error(
        "this conversation's session {session} is not online (waited {waited:?}) and is not replaced by another one; start it again, or call `init` with the sessionId of a session that `sessions` lists"
    )]
    DefaultNotOnline {
        /// The saved default.
        session: SessionId,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Every online session belongs to another conversation, or none is online.
    #[error(
        "no session is free: {online} online, each one another conversation's (waited {waited:?}); call `sessions` and pass one's sessionId to share it, or make one on a device with `chappie session new DIR`"
    )]
    NoneFree {
        /// Sessions online.
        online: usize,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A failed selection of this conversation is still being taken back, because the store does not take writes.
    #[error("this conversation's session is just being changed back after a failed `init`; repeat the request")]
    Undecided,
    /// `init` has nothing to bind to.
    #[error(
        "`init` needs a conversation to bind: the request carries no `openai/session` and no connection; leave `init` out and pass sessionId (see `sessions`) to each tool"
    )]
    InitWithoutConversation,
    /// Neither conversation nor session. `init` is no way out: it has nothing to bind to either.
    #[error(
        "which session? The request belongs to no conversation, so there is no default to go by; pass sessionId (call `sessions` for the list), or send the conversation's id (a text that is not blank) as _meta[\"openai/session\"]"
    )]
    NoTarget,
    /// The conversation has no session yet.
    #[error(
        "which session? This conversation has no default yet; pass sessionId (call `sessions` for the list), or call `init` first"
    )]
    NoDefault,
    /// Other requests kept changing the conversation's default.
    #[error("other requests of this conversation keep changing its session; repeat the request once they are done")]
    Contended,
    /// The new default could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why a change is not known to be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was recorded and nothing was done.
    #[error("not recorded, nothing was done ({0}); free space on the disk or mend it, then repeat the same request")]
    NotWritten(String),
    /// It may be recorded (F12). The same request again finds out: its identity decides.
    #[error("unknown whether it was recorded ({0}); nothing was started; repeat the same request with the same ids")]
    Unknown(String),
    /// Too many changes wait.
    #[error("{QUEUE_MAX} changes wait to be recorded; the disk is too slow or stuck: repeat the request later")]
    Busy,
    /// A table is full.
    #[error(
        "the table of {what} is full ({limit}); settle old ones with `chappie receipts`, or wait until they expire"
    )]
    Full {
        /// Which.
        what: Cow<'static, str>,
        /// Its size.
        limit: usize,
    },
    /// A text does not fit.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The node is stopping.
    #[error("the node is stopping; repeat the request when it runs again")]
    Stopped,
    /// This device is not the broker, or not any more. Nothing was recorded.
    #[error("another device is the broker now, nothing was done here; repeat the same request with the same ids")]
    NotBroker,
    /// After `mesh recover`, before every member said what it knows (failure rule F17).
    #[error(
        "after `mesh recover` no new operation is accepted before every device has said which ones it knows, and {} did not \
         yet: start chappie there, or give up what only they know with `chappie mesh recover --accept-loss`",
        .0.join(", ")
    )]
    Recovering(Vec<String>),
    /// The broker is on another device, and the word did not arrive there or its answer did not come back: repeat it.
    #[error("the broker could not be asked ({0}); repeat the same request with the same ids")]
    Unreachable(String),
}

/// Why a person's word on a receipt was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No such receipt.
    #[error("no receipt {0}; `chappie receipts` lists them")]
    Unknown(ReceiptKey),
    /// It needs no person.
    #[error("receipt {key} is {status}; only an uncertain one can be settled by hand")]
    NotUncertain {
        /// Which.
        key: ReceiptKey,
        /// Where it stands.
        status: ReceiptStatus,
    },
    /// It could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why there is no invite.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviteError {
    /// A number of uses that cannot be.
    #[error("an invite lets in 1 to {INVITE_USES_MAX} devices, and {0} were asked for; pass another --uses")]
    Uses(u32),
    /// A time that cannot be.
    #[error("an invite is good for 1 second to 7 days, and {0} ms were asked for; pass another --ttl, for example 10m")]
    Ttl(u64),
    /// Its id is taken by another secret.
    #[error("an invite with this id is there already; make another one")]
    Taken,
    /// Too many.
    #[error(
        "the table of {what} is full ({limit}); use one invite for several devices (--uses), or wait for one to expire"
    )]
    Full {
        /// Which.
        what: Cow<'static, str>,
        /// Its size.
        limit: usize,
    },
    /// This node is in no mesh of its own.
    #[error("this device has no mesh to invite to yet; start it with `chappie up` and try again")]
    NoMesh,
    /// It could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why a device is not let in. The sentences go to that device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// No such invite, or a wrong proof: the same words for both, so that nobody can ask which invites there are.
    #[error("this invite is not good here; check that it was copied whole, or make a new one with `chappie invite`")]
    Refused,
    /// Its time is over.
    #[error("this invite has expired; make a new one with `chappie invite`")]
    Expired,
    /// Other devices have used it up.
    #[error("this invite was used by as many devices as it was made for; make a new one with `chappie invite`")]
    Spent,
    /// This device used it, and was forgotten since.
    #[error("this device used this invite before and was forgotten since; make a new one with `chappie invite`")]
    Forgotten,
    /// The mesh is full.
    #[error("the mesh has {MEMBERS_MAX} devices, and that is the most; forget one with `chappie forget NODE` first")]
    Full,
    /// It could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Why a device was not forgotten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// It is the last one.
    #[error("{0} is the only device of its mesh, so there is nobody to forget it")]
    Last(String),
    /// It alone votes, so only it can be the broker, and it is not reached (failure rule F21).
    #[error(
        "{0} alone keeps the bindings and receipts for sure, and it is not reached, so it cannot be forgotten; start chappie \
         there, or go on without it with `chappie mesh recover`"
    )]
    OnlyVoter(String),
    /// It is the broker, and no other device can take that over now.
    #[error(
        "{0} is the broker, and no other device can take that over now: start chappie on another device of this mesh, wait \
         until `chappie status` shows it in step, and repeat"
    )]
    Broker(String),
    /// It is none of ours.
    #[error("{0} is not a device of this mesh; `chappie peers` lists them")]
    Unknown(String),
    /// It could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl Missing {
    pub(super) fn into_error(self, waited: Duration) -> SelectError {
        match self {
            Self::Named(session) => SelectError::NotOnline { session, waited },
            Self::SavedDefault(session) => SelectError::DefaultNotOnline { session, waited },
            Self::Free { online } => SelectError::NoneFree { online, waited },
            Self::Undo => SelectError::Undecided,
        }
    }
}

impl From<Refusal> for SelectError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InitWithoutConversation => Self::InitWithoutConversation,
            Refusal::NoTarget => Self::NoTarget,
            Refusal::NoDefault => Self::NoDefault,
        }
    }
}
