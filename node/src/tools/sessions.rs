//! `sessions`: what is connected, and the current default; a snapshot that waits for nobody (behaviour 3.5).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    compose::Composer,
    operate::take,
    riding::Riding,
    surface::{Answer, Request, ToolSpec},
    toolbox::{READS, Toolbox, describe, input_schema, spec as tool_spec},
};
use crate::clock;

/// Sessions one answer lists; each row is about 250 bytes. More are named by count, and found by `sessionId`.
const ROWS_MAX: usize = 40;

pub(super) fn spec() -> ToolSpec {
    let properties = json!({"sessionId": {
        "type": "string", "minLength": 1, "maxLength": 256, "description": "Show only this session"
    }});
    tool_spec(
        "sessions",
        "List sessions",
        "Lists the connected sessions with id, host, device, folder, name, status and how many conversations have each as default, and this conversation's default.",
        input_schema(properties, &[], &[]),
        READS,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    let Request { mut arguments, caller, .. } = request;
    let filter = take(&mut arguments, "sessionId");
    let counts = toolbox.broker.binding_counts();
    let binding = caller.conversation.as_ref().and_then(|conversation| toolbox.broker.binding(conversation));
    let list = toolbox.directory.list();
    let wanted: Vec<_> =
        list.iter().filter(|placed| filter.as_ref().is_none_or(|id| placed.info.id.as_str() == id)).collect();
    let rows: Vec<Value> = wanted
        .iter()
        .take(ROWS_MAX)
        .map(|placed| {
            let mut row = describe(placed);
            row["bindingCount"] = json!(counts.get(&placed.info.id).copied().unwrap_or(0));
            row
        })
        .collect();
    let mut answer = json!({ "binding": binding, "sessions": rows });
    if wanted.len() > ROWS_MAX {
        answer["omitted"] = json!(wanted.len() - ROWS_MAX);
    }
    let mut composer = Composer::new();
    composer.json(&answer);
    let ticket = Riding::new(toolbox, clock::call_id(), caller.conversation).others(&mut composer, None).await;
    composer.finish(false, ticket)
}
