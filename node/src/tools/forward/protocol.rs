//! One call from a door to the broker on another device, [`chappie_mesh::StreamKind::Door`]. The door says `Call`, perhaps
//! `Ack` and `Cancel`, and at last `Written`. Append-only, as all of `fleet::protocol`. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    content::{JsonObject, Part},
    fleet::protocol::{Blob, Extensions, NotJson},
    ids::{CallId, Conversation, SessionId},
    tools::surface::Caller,
};

/// From the door. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// First, and once.
    Call(Box<Call>),
    /// The door knows where the call goes.
    Ack,
    /// The client cancelled.
    Cancel,
    /// Whether the answer was written to the client. Answered with [`News::Settled`].
    Written(bool),
}

/// From the broker. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum News {
    /// Where the call goes (failure rule F1).
    Assigned {
        /// The session.
        session: SessionId,
        /// What people call its device.
        device: String,
        /// Whether the broker waits for [`Order::Ack`] before it goes on.
        wait: bool,
    },
    /// The answer.
    Answer(Answer),
    /// No tool of that name.
    UnknownTool,
    /// This device is not the broker, or cannot take the call now.
    Refused(String),
    /// `Written` is noted.
    Settled,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Call {
    /// Made by the door, the same in every sending.
    pub(super) call_id: CallId,
    /// Which tool.
    pub(super) tool: String,
    /// Its arguments, a JSON object.
    pub(super) arguments: Blob,
    /// Whose call it is.
    pub(super) conversation: Option<Conversation>,
    /// The host's request id.
    pub(super) request_id: Option<String>,
    /// The session that is preferred for a caller without a default.
    pub(super) preferred: Option<SessionId>,
    /// What is left of the caller's budget, milliseconds (failure rule F5).
    pub(super) budget_ms: u64,
    /// Where an earlier sending went: it goes nowhere else (failure rule F1).
    pub(super) pin: Option<SessionId>,
    /// Where the conversation's last call went: when the broker agrees, it need not ask.
    pub(super) proposal: Option<SessionId>,
    /// Later fields.
    pub(super) ext: Extensions,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Blocks in order.
    pub(super) content: Vec<Part>,
    /// `structuredContent`, a JSON object.
    pub(super) structured: Blob,
    /// Whether the tool failed.
    pub(super) is_error: bool,
    /// Later fields.
    pub(super) ext: Extensions,
}

impl Call {
    /// A first sending.
    ///
    /// # Errors
    /// [`NotJson`]: arguments without a JSON form.
    pub(super) fn new(
        call_id: CallId,
        tool: &str,
        arguments: &JsonObject,
        caller: &Caller,
        budget: Duration,
    ) -> Result<Self, NotJson> {
        let mut call = Self {
            call_id,
            tool: tool.to_owned(),
            arguments: Blob::json(arguments)?,
            conversation: caller.conversation.clone(),
            request_id: caller.request_id.clone(),
            preferred: caller.preferred.clone(),
            budget_ms: 0,
            pin: None,
            proposal: None,
            ext: Extensions::new(),
        };
        call.leave(budget);
        Ok(call)
    }

    /// States what is left of the budget.
    pub(super) fn leave(&mut self, budget: Duration) {
        self.budget_ms = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
    }

    /// Who asks.
    #[must_use]
    pub(super) fn caller(&self) -> Caller {
        Caller { conversation: self.conversation.clone(), request_id: self.request_id.clone(), ..Caller::default() }
    }
}
