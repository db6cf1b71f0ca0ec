//! `history`: the session's branch in pages, or a wait for what comes next (behaviour 3.4 and 9). It selects nothing,
//! binds nothing and consumes nothing.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    compose::{Composer, refusal},
    operate::take,
    surface::{Answer, Request, Ticket, ToolSpec},
    toolbox::{READS, Toolbox, input_schema, spec as tool_spec},
};
use crate::{
    fleet::HistoryAsk,
    ids::{Conversation, EntryId, SessionId},
    sessions::history::{LIMIT_MAX, Range},
};

/// How long an empty page is held (the guide).
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Entries of a page when no limit is given (the guide).
const LIMIT_DEFAULT: usize = 20;

pub(super) fn spec() -> ToolSpec {
    let entry = |what: &str| json!({"type": "string", "minLength": 1, "maxLength": 128, "description": what});
    let properties = json!({
        "sessionId": {
            "type": "string", "minLength": 1, "maxLength": 256,
            "description": "Session to read; the conversation's default when left out"
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "description": "Entries, 20 when left out"},
        "before": entry("Only entries before this entry id"),
        "after": entry("Only entries after this entry id"),
        "wait": {"type": "boolean", "description": "At the end of the branch, wait up to 30 s for a new entry; with after"},
        "observer": {"type": "boolean", "description": "Read without leaving a notice in the session"},
    });
    tool_spec(
        "history",
        "Read history",
        "Reads the session's history with entry ids and timestamps, latest entries first chosen, in branch order. after with wait follows progress. Reading takes nothing away from later results.",
        input_schema(properties, &[], &[]),
        READS,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    let Request { mut arguments, caller, cancelled, .. } = request;
    let session = take(&mut arguments, "sessionId").map(SessionId);
    let limit = arguments.get("limit").and_then(Value::as_f64).map_or(LIMIT_DEFAULT, |limit| limit as usize);
    let flag = |key: &str| arguments.get(key).and_then(Value::as_bool).unwrap_or(false);
    let (wait, observer) = (flag("wait"), flag("observer"));
    let range = Range {
        limit,
        before: take(&mut arguments, "before").map(EntryId),
        after: take(&mut arguments, "after").map(EntryId),
    };
    let id = match toolbox.broker.target(caller.conversation.as_ref(), session).await {
        Ok(id) => id,
        Err(error) => return refusal(error.to_string()),
    };
    let Some(placed) = toolbox.directory.find(&id) else {
        return refusal(format!("session {id} ended just now"));
    };
    let wait = if wait && range.before.is_none() { WAIT_MAX } else { Duration::ZERO };
    let who = || caller.conversation.as_ref().map_or_else(|| "?".into(), Conversation::short);
    let ask = HistoryAsk { session: id, range, wait, reader: (!observer).then(who) };
    let page = tokio::select! {
        biased;
        () = cancelled.cancelled() => return refusal("cancelled"),
        page = placed.node.history(ask) => page,
    };
    match page {
        Ok(page) => {
            let mut composer = Composer::new();
            composer.parcel(page);
            composer.finish(false, Ticket::default())
        }
        Err(error) => refusal(error),
    }
}
