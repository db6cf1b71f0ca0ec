//! `call`: one native batch of the session's tools, as JSON or as base64 of the same JSON (behaviour 3.8).

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    arguments::check,
    compose::{Composer, refusal},
    operate::{Job, operate, take},
    surface::{Answer, Caller, Request, Ticket, ToolSpec},
    toolbox::{ACTS, Toolbox, input_schema, spec as tool_spec},
};
use crate::{
    broker::{Receipt, ReceiptKind, ReceiptScope, ReceiptStatus, receipt_key},
    clock,
    content::{JsonObject, ToolCall},
    fleet::Cancel,
    ids::{CallId, SessionId},
    sessions::Work,
};

/// Members of one batch.
pub(super) const CALLS_MAX: usize = 128;

fn calls_schema() -> Value {
    json!({
        "type": "array", "minItems": 1, "maxItems": CALLS_MAX,
        "description": "The batch, in order",
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Tool name"},
                "arguments": {"type": "object", "description": "Native arguments"}
            },
            "required": ["name", "arguments"],
            "additionalProperties": false
        }
    })
}

pub(super) fn spec() -> ToolSpec {
    let properties = json!({
        "calls": calls_schema(),
        "base64": {
            "type": "string", "minLength": 4,
            "description": "Instead of calls: standard padded base64 of the UTF-8 JSON of the same array"
        },
    });
    tool_spec(
        "call",
        "Call session tools",
        "Runs one or more of the session's own tools as one native batch; results come in call order. Calls that depend on each other's results need separate requests. Give exactly one of calls and base64. See tools for the definitions.",
        input_schema(properties, &[], &["sessionId", "operationId"]),
        ACTS,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, mut request: Request) -> Answer {
    let session = take(&mut request.arguments, "sessionId").map(SessionId);
    let operation_id = take(&mut request.arguments, "operationId");
    let calls = match decode(&request.arguments) {
        Ok(calls) => calls,
        Err(error) => return refusal(format!("{error}. Nothing was done")),
    };
    if let [(name, arguments)] = calls.as_slice()
        && name == "process"
        && let Some(answer) = stop(toolbox, &request.caller, arguments).await
    {
        return answer;
    }
    let signed = json!({ "calls": calls.iter().map(|(name, arguments)| json!([name, arguments])).collect::<Vec<_>>() });
    let work = Work::Call(members(calls));
    operate(toolbox, request, Job { session, operation_id, kind: ReceiptKind::Call, signed, work }).await
}

/// Ends a running operation that was answered as running, when `process` is asked to stop its id. It cannot wait in the
/// session's queue: that is held by what it ends.
async fn stop(toolbox: &Toolbox, caller: &Caller, arguments: &JsonObject) -> Option<Answer> {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str);
    let id = text("id").filter(|_| text("action") == Some("stop"))?;
    let (call_id, session) = match named(toolbox, caller, id) {
        Some(receipt) => (receipt.call_id, Some(receipt.session)),
        // Anything else is a process of the session, which its own queue stops.
        None if is_call_id(id) => (CallId(id.to_owned()), None),
        None => return None,
    };
    let conversation = caller.conversation.clone();
    let cancel = Cancel { call_id: call_id.clone(), conversation, reason: "it was stopped by its id".into() };
    let nodes = match session.and_then(|session| toolbox.directory.find(&session)) {
        Some(placed) => vec![placed.node],
        None => toolbox.directory.nodes(),
    };
    if !join_all(nodes.iter().map(|node| node.cancel(cancel.clone()))).await.contains(&true) {
        return None;
    }
    let mut composer = Composer::new();
    composer.json(&json!({
        "operation": {
            "id": call_id,
            "status": "stopping",
            "instructions": "It ends within a second; what it did until then stands, and comes with a later result",
        }
    }));
    Some(composer.finish(false, Ticket::default()))
}

/// The running operation that a caller means by its own `operationId`.
fn named(toolbox: &Toolbox, caller: &Caller, id: &str) -> Option<Receipt> {
    let named = |kind| {
        let key = receipt_key(ReceiptScope::Conversation(caller.conversation.as_ref()?), kind, id);
        toolbox.broker.receipt(&key).filter(|receipt| receipt.status == ReceiptStatus::Running)
    };
    named(ReceiptKind::Call).or_else(|| named(ReceiptKind::Chat))
}

/// Whether `id` has the form of the ids that answers give to operations: only those are asked about at other devices.
fn is_call_id(id: &str) -> bool {
    id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// The members of one batch with fresh ids. They are short and cheap in tokens, because an answer repeats each of up to 128:
/// fifteen decimal digits, 49 random bits, which two batches of one session will not share in its lifetime.
pub(super) fn members(calls: Vec<(String, JsonObject)>) -> Vec<ToolCall> {
    let batch = u64::from_str_radix(clock::token().get(..15).unwrap_or("0"), 16).unwrap_or(0) % 1_000_000_000_000_000;
    let member = |(index, (name, arguments))| ToolCall { id: format!("chappie-{batch:015}-{index}"), name, arguments };
    calls.into_iter().enumerate().map(member).collect()
}

/// The batch from exactly one of `calls` and `base64`. Pure.
fn decode(arguments: &JsonObject) -> Result<Vec<(String, JsonObject)>, String> {
    let calls = match (arguments.get("calls"), arguments.get("base64").and_then(Value::as_str)) {
        (Some(calls), None) => calls.clone(),
        (None, Some(text)) => decode_base64(text)?,
        _ => return Err("call takes exactly one of calls and base64".into()),
    };
    let mut wrapped = JsonObject::new();
    wrapped.insert("calls".into(), calls);
    let schema = json!({ "properties": { "calls": calls_schema() } });
    check("call", &schema, &wrapped).map_err(|error| error.trim_end_matches(". Nothing was done").to_owned())?;
    let members = wrapped["calls"].as_array().into_iter().flatten();
    members
        .map(|member| {
            let name = member["name"].as_str().unwrap_or_default().to_owned();
            let arguments = member["arguments"].as_object().cloned().unwrap_or_default();
            if name == "transfer" && arguments.contains_key("files") {
                return Err("call: transfer with files is only taken as the direct transfer tool, where the host turns them into downloads".to_owned());
            }
            Ok((name, arguments))
        })
        .collect()
}

fn decode_base64(text: &str) -> Result<Value, String> {
    let canonical = "call: base64 must be standard base64 with padding, without spaces or line breaks";
    let bytes = STANDARD.decode(text).map_err(|error| format!("{canonical}: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|error| format!("call: base64 does not hold UTF-8: {error}"))?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| format!("call: base64 does not hold JSON: {error}"))?;
    if value.is_array() { Ok(value) } else { Err("call: base64 must hold the calls array itself".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(arguments: Value) -> Result<Vec<(String, JsonObject)>, String> {
        decode(arguments.as_object().unwrap())
    }

    #[test]
    fn both_forms_give_the_same_batch() {
        let calls = json!([{"name": "edit", "arguments": {"path": "d.js", "newText": "\"$& $1\""}}]);
        let base64 = STANDARD.encode(calls.to_string());
        assert_eq!(decoded(json!({"calls": calls})).unwrap(), decoded(json!({"base64": base64})).unwrap());
    }

    #[test]
    fn what_is_not_exactly_one_batch_is_refused_with_its_cause() {
        let call = json!({"name": "ls", "arguments": {}});
        for (arguments, word) in [
            (json!({}), "exactly one"),
            (json!({"calls": [call], "base64": "e30="}), "exactly one"),
            (json!({"calls": []}), "at least 1 items"),
            (json!({"calls": vec![call; CALLS_MAX + 1]}), "at most 128"),
            (json!({"calls": [{"name": "ls"}]}), "lacks \"arguments\""),
            (json!({"calls": [{"name": "ls", "arguments": "{}"}]}), "must be an object"),
            (json!({"calls": [{"name": "ls", "arguments": {}, "id": 1}]}), "unknown key \"id\""),
            (json!({"base64": "e30"}), "padding"),
            (json!({"base64": "e30=\n"}), "standard base64"),
            (json!({"base64": "e31="}), "standard base64"),
            (json!({"base64": STANDARD.encode([0xff, 0xfe])}), "UTF-8"),
            (json!({"base64": STANDARD.encode("[")}), "JSON"),
            (json!({"base64": STANDARD.encode("{}")}), "array itself"),
            (json!({"calls": [{"name": "transfer", "arguments": {"files": []}}]}), "direct transfer"),
        ] {
            let error = decoded(arguments.clone()).unwrap_err();
            assert!(error.contains(word), "{arguments}: {error}");
        }
    }
}
