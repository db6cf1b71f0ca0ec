//! `tools`: full definitions of a session's active tools, for `call` (behaviour 3.6).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    compose::{Composer, refusal},
    initialization::initialization,
    operate::take,
    riding::Riding,
    surface::{Annotations, Answer, Request, ToolSpec},
    toolbox::{Toolbox, describe, input_schema, not_selected, spec as tool_spec},
};
use crate::{
    broker::{Ask, Purpose},
    clock,
    fleet::parcel::{HEADER, RIDERS},
    host::ToolDefinition,
    ids::SessionId,
};

/// Unknown names that an answer repeats, and characters of each.
const UNKNOWN_MAX: usize = 20;

pub(super) fn spec() -> ToolSpec {
    let properties = json!({"names": {
        "type": "array", "minItems": 1, "maxItems": 256, "items": {"type": "string"},
        "description": "Only these tools"
    }});
    // It binds a conversation that has no default yet, like every selecting tool; that is no harm, but no pure read.
    let annotations = Annotations { read_only: true, destructive: false, idempotent: true, open_world: false };
    tool_spec(
        "tools",
        "Tool definitions",
        "Reads the full definitions (description, JSON Schema of the arguments) of the session's active tools, for use with call.",
        input_schema(properties, &[], &["sessionId"]),
        annotations,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    let mut request = request;
    let session = take(&mut request.arguments, "sessionId").map(SessionId);
    let caller = &request.caller;
    let names: Option<Vec<String>> = request
        .arguments
        .get("names")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    let ask = Ask { conversation: caller.conversation.as_ref(), session, purpose: Purpose::Operate };
    let selected = tokio::select! {
        biased;
        () = request.cancelled.cancelled() => return refusal("cancelled"),
        selected = toolbox.broker.select(ask) => selected,
    };
    let selection = match selected {
        Ok(selection) => selection,
        Err(error) => return not_selected(&request, &error),
    };
    let Some(placed) = toolbox.directory.find(&selection.session) else {
        return refusal(format!("session {} ended just now", selection.session));
    };
    let inspection = match placed.node.inspect(placed.info.id.clone()).await {
        Ok(inspection) => inspection,
        Err(error) => return refusal(error),
    };
    let wanted = inspection.tools.iter().filter(|tool| names.as_ref().is_none_or(|names| names.contains(&tool.name)));
    let mut composer = Composer::new();
    let mut header = json!({ "session": describe(&placed) });
    if let Some(mode) = selection.mode {
        header["initialization"] = initialization(&selection.session, mode, toolbox.cooldown);
    }
    fill(&mut header, wanted, &composer);
    let unknown = unknown(names.as_deref().unwrap_or_default(), &inspection.tools);
    if !unknown.is_empty() {
        header["unknown"] = json!(unknown);
    }
    composer.json(&header);
    let mut riding = Riding::new(toolbox, clock::call_id(), caller.conversation.clone());
    riding.session(&mut composer, &placed.node, Some(&placed.info.id)).await;
    let ticket = riding.others(&mut composer, Some(&placed.node)).await;
    composer.finish(false, ticket)
}

/// The names that no active tool has, as far as they are worth repeating.
fn unknown(names: &[String], tools: &[ToolDefinition]) -> Vec<String> {
    let missing = names.iter().filter(|name| !tools.iter().any(|tool| tool.name == **name));
    missing.take(UNKNOWN_MAX).map(|name| name.chars().take(UNKNOWN_MAX).collect()).collect()
}

/// As many definitions as fit, whole; the rest by name.
fn fill<'a>(header: &mut Value, wanted: impl Iterator<Item = &'a ToolDefinition>, composer: &Composer) {
    let mut left = composer.left();
    left.bytes = left.bytes.saturating_sub(HEADER.bytes + RIDERS.bytes);
    left.tokens = left.tokens.saturating_sub(HEADER.tokens + RIDERS.tokens);
    let (mut shown, mut omitted) = (Vec::new(), Vec::new());
    for tool in wanted {
        let definition = json!(tool);
        let text = definition.to_string();
        if omitted.is_empty() && left.fits(&text) {
            left = left.minus(&text);
            shown.push(definition);
        } else {
            omitted.push(tool.name.clone());
        }
    }
    header["tools"] = Value::Array(shown);
    if !omitted.is_empty() {
        header["omitted"] = json!(omitted);
        header["instructions"] =
            json!("Some definitions did not fit. Call tools again with names set to those omitted.");
    }
}
