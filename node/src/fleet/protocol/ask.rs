//! One question and its answer, [`chappie_mesh::StreamKind::Ask`]. A question that this version does not know is answered
//! [`Reply::Unsupported`], and the connection stays. Pure.

use serde::{Deserialize, Serialize};

use super::{
    Blob, Extensions,
    run::{Parcel, budget},
};
use crate::{
    broker::{ProposeError, Reannounced, ReceiptKey, Settlement},
    fleet,
    ids::{CallId, Conversation, SessionId},
    sessions::{Ended, RunningReceipt, entry::Event},
};

/// The question. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// The broker asks a session's node.
    Session(SessionAsk),
    /// A session's node asks the broker.
    Office(OfficeAsk),
    /// A door asks the broker.
    Door(DoorAsk),
}

/// Methods of [`fleet::SessionNode`] that neither run nor wait. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SessionAsk {
    /// `inspect`.
    Inspect(SessionId),
    /// `known`: what is unknown is sealed.
    Known(CallId),
    /// `board`.
    Board(Boarding),
    /// `settle`.
    Settle {
        /// The answer.
        by: CallId,
        /// Whether it was written.
        written: bool,
    },
    /// `lapse`.
    Lapse(CallId),
    /// `revoke`: an operation of the broker's own, known there or not yet.
    Revoke {
        /// Which operation.
        call_id: CallId,
        /// Why.
        reason: String,
    },
    /// `notice`.
    Notice {
        /// Where.
        session: SessionId,
        /// What.
        event: Event,
        /// In words.
        message: String,
    },
    /// `cancel`.
    Cancel {
        /// Which operation.
        call_id: CallId,
        /// Whose.
        conversation: Option<Conversation>,
        /// Why.
        reason: String,
    },
    /// `ended`: by receipt key.
    Ended(String),
    /// `image`.
    Image {
        /// Which session showed it.
        session: SessionId,
        /// Its hash.
        sha256: String,
    },
}

/// Methods of [`crate::sessions::Office`]. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OfficeAsk {
    /// `settle`.
    Settle {
        /// Which receipt.
        key: ReceiptKey,
        /// Which attempt.
        attempt: u32,
        /// Its outcome.
        settlement: Settlement,
    },
    /// `undelivered`.
    Undelivered {
        /// Whose.
        conversation: Conversation,
        /// Late results.
        ids: Vec<String>,
    },
    /// `delivered`.
    Delivered {
        /// Whose.
        conversation: Conversation,
        /// Late results.
        ids: Vec<String>,
    },
    /// `forget_delivered`.
    ForgetDelivered(Vec<String>),
    /// `running`.
    Running(Vec<SessionId>),
    /// What the asker knows of operations of the last 24 h, after `mesh recover` (failure rule F17).
    Reannounce {
        /// A part of it.
        rows: Vec<Reannounced>,
        /// Whether it was the last part.
        last: bool,
    },
}

/// What a door asks beside its calls. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DoorAsk {
    /// The bytes behind a `chappie://` reference.
    Resource {
        /// The reference.
        uri: String,
        /// Who asks.
        conversation: Option<Conversation>,
        /// The host's request id.
        request_id: Option<String>,
    },
    /// A connection ended: nothing is kept for it.
    Disconnected(Conversation),
    /// The client cancelled a call whose stream is gone.
    Cancel {
        /// The call.
        call_id: CallId,
        /// Whose it is.
        conversation: Option<Conversation>,
        /// Why.
        reason: String,
    },
    /// Whether an answer was written whose stream is gone.
    Written {
        /// Whose answer.
        call_id: CallId,
        /// Whether it was.
        written: bool,
    },
    /// `Cancel` with what the door knows of where the call went.
    CallOff {
        /// The call.
        call_id: CallId,
        /// The session that it went to.
        pin: Option<SessionId>,
        /// Whose it is.
        conversation: Option<Conversation>,
        /// Why.
        reason: String,
    },
}

/// The answer. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// This version does not know the question.
    Unsupported(String),
    /// The asker may not ask this here: the asker is not the broker, or this node is not.
    Refused(String),
    /// It was tried and failed: a sentence for the model.
    Failed(String),
    /// Done, nothing to say.
    Done,
    /// Yes or no.
    Flag(bool),
    /// An inspection, as JSON.
    Inspected(Blob),
    /// Sealed: it never ran and never will.
    Never(String),
    /// The operation is here.
    Held,
    /// What rides.
    Parcel(Parcel),
    /// How it ended.
    Ended(Option<Ended>),
    /// An image, if the session showed it.
    Image(Option<Picture>),
    /// Ids of late results.
    Ids(Vec<String>),
    /// Receipts that run.
    Running(Vec<RunningReceipt>),
    /// Not known to be recorded.
    Unrecorded(Unrecorded),
    /// Bytes of a resource.
    Resource(Picture),
    /// No such resource.
    NotFound(String),
    /// The resource cannot be read.
    Unreadable(String),
}

/// An image on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// Its type.
    pub mime: String,
    /// Raw.
    pub bytes: Blob,
}

/// A [`fleet::Board`] on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boarding {
    by: CallId,
    conversation: Option<Conversation>,
    session: Option<SessionId>,
    room_bytes: u64,
    room_tokens: u64,
    ext: Extensions,
}

/// A [`ProposeError`] on the wire. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Unrecorded {
    /// [`ProposeError::NotWritten`], and what no other variant fits.
    NotWritten(String),
    /// [`ProposeError::Unknown`].
    Unknown(String),
    /// [`ProposeError::Busy`].
    Busy,
    /// [`ProposeError::Stopped`].
    Stopped,
    /// [`ProposeError::NotBroker`].
    NotBroker,
}

impl Boarding {
    /// The answer it claims for.
    #[must_use]
    pub const fn by(&self) -> &CallId {
        &self.by
    }
}

impl From<fleet::Board> for Boarding {
    fn from(board: fleet::Board) -> Self {
        let fleet::Board { by, conversation, session, room } = board;
        let (room_bytes, room_tokens) = (room.bytes as u64, room.tokens as u64);
        Self { by, conversation, session, room_bytes, room_tokens, ext: Extensions::new() }
    }
}

impl From<Boarding> for fleet::Board {
    fn from(boarding: Boarding) -> Self {
        let Boarding { by, conversation, session, room_bytes, room_tokens, ext: _ } = boarding;
        Self { by, conversation, session, room: budget(room_bytes, room_tokens) }
    }
}

impl From<fleet::Picture> for Picture {
    fn from(picture: fleet::Picture) -> Self {
        Self { mime: picture.mime, bytes: Blob(picture.bytes) }
    }
}

impl From<Picture> for fleet::Picture {
    fn from(picture: Picture) -> Self {
        Self { mime: picture.mime, bytes: picture.bytes.0 }
    }
}

impl From<ProposeError> for Unrecorded {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Unknown(cause) => Self::Unknown(cause),
            ProposeError::Busy => Self::Busy,
            ProposeError::Stopped => Self::Stopped,
            ProposeError::NotBroker => Self::NotBroker,
            ProposeError::NotWritten(cause) => Self::NotWritten(cause),
            other => Self::NotWritten(other.to_string()),
        }
    }
}

impl From<Unrecorded> for ProposeError {
    fn from(error: Unrecorded) -> Self {
        match error {
            Unrecorded::NotWritten(cause) => Self::NotWritten(cause),
            Unrecorded::Unknown(cause) => Self::Unknown(cause),
            Unrecorded::Busy => Self::Busy,
            Unrecorded::Stopped => Self::Stopped,
            Unrecorded::NotBroker => Self::NotBroker,
        }
    }
}
