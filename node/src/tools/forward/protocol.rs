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
    /// This device was not the broker when the call came, and has done nothing with it.
    NotTaken(String),
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
        Caller {
            conversation: self.conversation.clone(),
            request_id: self.request_id.clone(),
            preferred: self.preferred.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    /// Checks that `message` is written as `hex` and read back the same.
    fn golden<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, hex: &str) {
        let bytes = postcard::to_stdvec(message).unwrap();
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{message:?}");
        assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), message);
    }

    fn call() -> Call {
        let caller = Caller {
            conversation: Some(Conversation::Chat("v".into())),
            request_id: Some("q".into()),
            preferred: Some("p".into()),
        };
        let arguments = json!({"a": 1}).as_object().unwrap().clone();
        let mut call = Call::new("c".into(), "bash", &arguments, &caller, Duration::from_secs(45)).unwrap();
        assert_eq!(call.caller(), caller);
        call.pin = Some("s".into());
        call
    }

    #[test]
    fn messages_of_a_door_keep_their_bytes() {
        golden(&Order::Call(Box::new(call())), "0001630462617368077b2261223a317d01000176010171010170c8df020101730000");
        golden(&Order::Ack, "01");
        golden(&Order::Cancel, "02");
        golden(&Order::Written(true), "0301");
        let assigned = News::Assigned { session: "s".into(), device: "d".into(), wait: true };
        golden(&assigned, "000173016401");
        let content = vec![Part::Text("t".into()), Part::Image { mime: "m".into(), base64: "AA==".into() }];
        let structured = Blob(b"{}".to_vec());
        let answer = Answer { content, structured, is_error: true, ext: Extensions::new() };
        golden(&News::Answer(answer), "0102000174 01016d0441413d3d 027b7d 01 00".replace(' ', "").as_str());
        golden(&News::UnknownTool, "02");
        golden(&News::Refused("why".into()), "0303776879");
        golden(&News::NotTaken("why".into()), "0503776879");
        golden(&News::Settled, "04");
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error() {
        for bytes in [&[][..], &[9], &[0, 1], &[255; 40]] {
            assert!(postcard::from_bytes::<Order>(bytes).is_err(), "{bytes:?}");
        }
    }
}
