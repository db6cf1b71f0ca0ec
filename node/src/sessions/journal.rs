//! The operation journal's rows and their life (failure rules F2, F3, F8). Pure.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    broker::ReceiptKey,
    content::ToolResult,
    ids::{CallId, Conversation, Millis, SessionId},
};

/// How long a row outlives its delivery. Receipts are kept for 24 h after their last change, journal keys longer (F26).
pub const ROW_KEPT_MS: u64 = 25 * 3_600_000;
/// How long a host's request id names the operation it made (design 7).
pub const REQUEST_KEPT_MS: u64 = 3_600_000;
/// How long an undelivered result waits for its conversation (F26).
pub const LATE_KEPT_MS: u64 = 30 * 24 * 3_600_000;

/// The receipt an operation carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptClaim {
    /// Its key.
    pub key: ReceiptKey,
    /// Which attempt under that key; a sealed attempt never runs.
    pub attempt: u32,
}

/// What the journal says of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalRow {
    /// The operation.
    pub call_id: CallId,
    /// Where it runs.
    pub session: SessionId,
    /// That session's folder then; late results keep it.
    pub cwd: PathBuf,
    /// Who asked.
    pub conversation: Option<Conversation>,
    /// The host's request id, for labels.
    pub request_id: Option<String>,
    /// Identity by host request, when the host's id names one request ([`super::request_identity`]).
    pub request_key: Option<String>,
    /// The receipt, when the operation has an `operationId`.
    pub receipt: Option<ReceiptClaim>,
    /// Tool names, or `chat`; for notices.
    pub label: String,
    /// When it was accepted.
    pub accepted: Millis,
    /// How far it came.
    pub state: RowState,
    /// How it ended, in a word for a replay; `None` while it runs and in rows of older versions.
    #[serde(default)]
    pub ended: Option<Ended>,
    /// Whether the broker confirmed the receipt's settlement.
    pub settled: bool,
    /// Whether some response carried the outcome.
    pub delivered: bool,
    /// Whether it is known that its own response never went out: then it was not delivered, however the node ended.
    #[serde(default)]
    pub detached: bool,
    /// How many responses were about to carry it.
    pub offered: u32,
}

/// How far an operation came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RowState {
    /// The host was started, or was about to be.
    Running,
    /// The outcome is in the row beside this one.
    Finished(Millis),
    /// The node died meanwhile; what was done is unknown. Never run again by us.
    Interrupted(Millis),
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// Every member succeeded.
    Succeeded,
    /// Some member failed.
    Failed,
    /// It was cut off on somebody's demand; what was done until then stands.
    Cancelled,
}

/// What an operation gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// In call order; empty for a chat.
    pub results: Vec<ToolResult>,
    /// Why it is not whole, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Outcome {
    /// How it ended.
    #[must_use]
    pub fn ended(&self) -> Ended {
        if self.error.is_some() {
            Ended::Cancelled
        } else if self.results.iter().any(|result| result.is_error) {
            Ended::Failed
        } else {
            Ended::Succeeded
        }
    }
}

/// What the journal knows of a receipt key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReceiptRow {
    /// This operation ran under it.
    Ran(CallId, u32),
    /// Asked about before it ran: this attempt never will (F3).
    Sealed(u32, Millis),
}

/// What becomes of a row when the node starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// Nothing is left to do: remove the row.
    Expired,
    /// Kept as a key only.
    Kept,
    /// It was running: now interrupted.
    Interrupted,
    /// Its outcome waits for its conversation.
    Late,
}

impl JournalRow {
    /// Decides what a restart at `now` makes of this row.
    #[must_use]
    pub fn recover(&self, now: Millis) -> Recovered {
        match self.state {
            RowState::Running => Recovered::Interrupted,
            RowState::Finished(at) | RowState::Interrupted(at) => {
                let deliverable = matches!(self.conversation, Some(Conversation::Chat(_)));
                if !self.delivered && deliverable && now.since(at) < LATE_KEPT_MS {
                    Recovered::Late
                } else if now.since(at) < ROW_KEPT_MS || (self.receipt.is_some() && !self.settled) {
                    Recovered::Kept
                } else {
                    Recovered::Expired
                }
            }
        }
    }
}

/// What a caller hears of work that a crash of the node cut off.
#[must_use]
pub fn interrupted(label: &str) -> String {
    format!(
        "interrupted: the node stopped while {label} ran, so what it did is uncertain. Check its effects (history, files, processes) before deciding anything; do not simply repeat it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: RowState) -> JournalRow {
        JournalRow {
            call_id: CallId::from("c"),
            session: SessionId::from("s"),
            cwd: PathBuf::from("/tmp"),
            conversation: Some(Conversation::Chat("v1/x".into())),
            request_id: None,
            request_key: None,
            receipt: None,
            label: "bash".into(),
            accepted: Millis(0),
            state,
            ended: None,
            settled: true,
            delivered: false,
            detached: false,
            offered: 0,
        }
    }

    #[test]
    fn f8_work_that_was_running_is_interrupted_never_run_again() {
        assert_eq!(row(RowState::Running).recover(Millis(1)), Recovered::Interrupted);
    }

    #[test]
    fn f26_an_undelivered_outcome_waits_thirty_days() {
        let row = row(RowState::Finished(Millis(0)));
        assert_eq!(row.recover(Millis(LATE_KEPT_MS - 1)), Recovered::Late);
        assert_eq!(row.recover(Millis(LATE_KEPT_MS)), Recovered::Expired);
    }

    #[test]
    fn an_outcome_of_a_closed_connection_has_nobody_to_wait_for() {
        let mut row = row(RowState::Finished(Millis(0)));
        row.conversation = Some(Conversation::Connection("stdio:1".into()));
        assert_eq!(row.recover(Millis(1)), Recovered::Kept);
        row.conversation = None;
        assert_eq!(row.recover(Millis(1)), Recovered::Kept);
    }

    #[test]
    fn f26_a_delivered_row_stays_as_a_key_longer_than_its_receipt() {
        let mut row = row(RowState::Finished(Millis(0)));
        row.delivered = true;
        assert_eq!(row.recover(Millis(ROW_KEPT_MS - 1)), Recovered::Kept);
        assert_eq!(row.recover(Millis(ROW_KEPT_MS)), Recovered::Expired);
    }

    #[test]
    fn f9_a_row_whose_receipt_is_not_settled_stays() {
        let mut row = row(RowState::Finished(Millis(0)));
        row.delivered = true;
        row.settled = false;
        row.receipt = Some(ReceiptClaim { key: ReceiptKey("k".into()), attempt: 1 });
        assert_eq!(row.recover(Millis(ROW_KEPT_MS * 2)), Recovered::Kept);
    }
}
