//! One operation from the broker to its session's node, [`chappie_mesh::StreamKind::Run`]. The broker's side says
//! `Dispatch`, then perhaps `Cancel`, and at last `Written`; a stream that ends without `Written` detaches. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Blob, Extensions, NotJson};
use crate::{
    budget::TextBudget,
    content::{Part, ToolCall},
    fleet::{self, Ran, Tenure},
    ids::{CallId, Conversation, SessionId},
    sessions::{Operation, ReceiptClaim},
};

/// From the broker. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// First, and once.
    Dispatch(Box<Dispatched>),
    /// The caller gave up, and why. Answered with [`News::CancelTaken`].
    Cancel(String),
    /// Whether the answer with the outcome was written. Answered with [`News::Settled`].
    Written(bool),
}

/// From the session's node. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum News {
    /// The node has it: in the queue or, for a repeated dispatch, wherever it is.
    Accepted,
    /// The host has it.
    Running,
    /// [`Ran::Finished`].
    Finished(Parcel),
    /// [`Ran::NeverRan`].
    NeverRan(String),
    /// [`Ran::Duplicate`].
    Duplicate {
        /// The operation that runs or ran.
        twin: CallId,
        /// Whether it still runs.
        running: bool,
    },
    /// [`Ran::Gone`].
    Gone,
    /// [`Ran::Unknown`].
    Unknown(String),
    /// The order to cancel is noted; it holds from now on.
    CancelTaken,
    /// `Written` is noted.
    Settled,
    /// [`Ran::Fenced`].
    Fenced(String),
}

/// A [`fleet::Dispatch`] on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatched {
    session: SessionId,
    call_id: CallId,
    conversation: Option<Conversation>,
    request_id: Option<String>,
    request_key: Option<String>,
    receipt: Option<ReceiptClaim>,
    work: Work,
    budget_bytes: u64,
    budget_tokens: u64,
    wait_ms: u64,
    tenure: Tenure,
    resent: bool,
    ext: Extensions,
}

/// The work. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Work {
    Call(Vec<Member>),
    Chat(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Member {
    id: String,
    name: String,
    arguments: Blob,
}

/// A [`fleet::Parcel`] on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parcel {
    content: Vec<Part>,
    failed: bool,
    error: Option<String>,
    ext: Extensions,
}

impl Dispatched {
    /// `dispatch` on the wire.
    ///
    /// # Errors
    /// [`NotJson`]: arguments without a JSON form.
    pub fn of(dispatch: &fleet::Dispatch) -> Result<Self, NotJson> {
        let operation = &dispatch.operation;
        let work = match &operation.work {
            crate::sessions::Work::Chat(text) => Work::Chat(text.clone()),
            crate::sessions::Work::Call(calls) => Work::Call(calls.iter().map(member).collect::<Result<_, _>>()?),
        };
        Ok(Self {
            session: dispatch.session.clone(),
            call_id: operation.call_id.clone(),
            conversation: operation.conversation.clone(),
            request_id: operation.request_id.clone(),
            request_key: operation.request_key.clone(),
            receipt: operation.receipt.clone(),
            work,
            budget_bytes: operation.budget.bytes as u64,
            budget_tokens: operation.budget.tokens as u64,
            wait_ms: millis(dispatch.wait),
            tenure: dispatch.tenure,
            resent: dispatch.resent,
            ext: Extensions::new(),
        })
    }

    /// The operation's identity.
    #[must_use]
    pub const fn call_id(&self) -> &CallId {
        &self.call_id
    }

    /// About how many bytes it has on the wire.
    #[must_use]
    pub fn weight(&self) -> usize {
        match &self.work {
            Work::Chat(text) => text.len(),
            Work::Call(members) => members.iter().map(|member| member.arguments.0.len()).sum(),
        }
    }

    /// The same with less time left to wait, and marked as sent before.
    pub fn again(&mut self, wait: Duration) {
        self.wait_ms = millis(wait);
        self.resent = true;
    }

    /// What it says.
    ///
    /// # Errors
    /// [`NotJson`]: arguments that are no JSON object.
    pub fn open(self) -> Result<fleet::Dispatch, NotJson> {
        let work = match self.work {
            Work::Chat(text) => crate::sessions::Work::Chat(text),
            Work::Call(members) => {
                crate::sessions::Work::Call(members.into_iter().map(Member::open).collect::<Result<_, _>>()?)
            }
        };
        let operation = Operation {
            call_id: self.call_id,
            conversation: self.conversation,
            request_id: self.request_id,
            request_key: self.request_key,
            receipt: self.receipt,
            work,
            budget: budget(self.budget_bytes, self.budget_tokens),
        };
        Ok(fleet::Dispatch {
            session: self.session,
            operation,
            wait: Duration::from_millis(self.wait_ms),
            tenure: self.tenure,
            resent: self.resent,
        })
    }
}

fn member(call: &ToolCall) -> Result<Member, NotJson> {
    Ok(Member { id: call.id.clone(), name: call.name.clone(), arguments: Blob::json(&call.arguments)? })
}

impl Member {
    fn open(self) -> Result<ToolCall, NotJson> {
        Ok(ToolCall { id: self.id, name: self.name, arguments: self.arguments.parse()? })
    }
}

/// A peer's word is never taken for more than a whole answer.
pub(super) fn budget(bytes: u64, tokens: u64) -> TextBudget {
    let whole = TextBudget::WHOLE;
    TextBudget {
        bytes: usize::try_from(bytes).unwrap_or(usize::MAX).min(whole.bytes),
        tokens: usize::try_from(tokens).unwrap_or(usize::MAX).min(whole.tokens),
    }
}

/// Whole milliseconds, saturating.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<fleet::Parcel> for Parcel {
    fn from(parcel: fleet::Parcel) -> Self {
        let fleet::Parcel { content, failed, error } = parcel;
        Self { content, failed, error, ext: Extensions::new() }
    }
}

impl From<Parcel> for fleet::Parcel {
    fn from(parcel: Parcel) -> Self {
        let Parcel { content, failed, error, ext: _ } = parcel;
        Self { content, failed, error }
    }
}

impl From<Ran> for News {
    fn from(ran: Ran) -> Self {
        match ran {
            Ran::Finished(parcel) => Self::Finished(parcel.into()),
            Ran::NeverRan(reason) => Self::NeverRan(reason),
            Ran::Duplicate { twin, running } => Self::Duplicate { twin, running },
            Ran::Gone => Self::Gone,
            Ran::Unknown(reason) => Self::Unknown(reason),
            Ran::Fenced(reason) => Self::Fenced(reason),
        }
    }
}

impl News {
    /// The outcome, when this is one.
    #[must_use]
    pub fn outcome(self) -> Option<Ran> {
        Some(match self {
            Self::Finished(parcel) => Ran::Finished(parcel.into()),
            Self::NeverRan(reason) => Ran::NeverRan(reason),
            Self::Duplicate { twin, running } => Ran::Duplicate { twin, running },
            Self::Gone => Ran::Gone,
            Self::Unknown(reason) => Ran::Unknown(reason),
            Self::Fenced(reason) => Ran::Fenced(reason),
            Self::Accepted | Self::Running | Self::CancelTaken | Self::Settled => return None,
        })
    }
}
