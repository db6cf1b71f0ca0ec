//! What an executing and an observing conversation are told (behaviour 10). Pure.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{broker::Mode, ids::SessionId};

/// The `initialization` object of a result.
pub(super) fn initialization(session: &SessionId, mode: Mode, cooldown: Duration) -> Value {
    let instructions = match mode {
        Mode::Executor => {
            "You execute the work of this session. When resuming, read recent history first and go on from what is done, then continue with the current request. Share progress and completion with chat.".to_owned()
        }
        Mode::Observer => format!(
            "Another execution of this conversation may be doing this task: it initialised this session within the last {} seconds. Observe: follow the work with history, passing observer: true, wait: true and after, and think for yourself. Do not execute, export or write a second completion message, and do not initialise again to get out of observing.",
            cooldown.as_secs()
        ),
    };
    json!({ "sessionId": session, "mode": mode, "instructions": instructions })
}
