//! `chat`: an assistant message in the session (behaviour 3.7).

use std::sync::Arc;

use serde_json::json;

use super::{
    compose::refusal,
    operate::{Job, operate, take},
    surface::{Annotations, Answer, Request, ToolSpec},
    toolbox::{Toolbox, input_schema, spec as tool_spec},
};
use crate::{broker::ReceiptKind, ids::SessionId, sessions::Work};

/// The longest message, characters. It is a message to a person, and the history keeps it whole.
const TEXT_MAX: usize = 100_000;

pub(super) fn spec() -> ToolSpec {
    let properties = json!({
        "text": {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, "description": "The message"},
        "replyTo": {
            "type": "string", "minLength": 1, "maxLength": 256,
            "description": "Answers the modelRequest of this id instead of writing a message"
        },
    });
    let annotations = Annotations { read_only: false, destructive: false, idempotent: false, open_world: false };
    tool_spec(
        "chat",
        "Message the session",
        "Writes an assistant message into the session: progress and completion for the person there. With replyTo it answers a modelRequest.",
        input_schema(properties, &["text"], &["sessionId", "operationId"]),
        annotations,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, mut request: Request) -> Answer {
    let session = take(&mut request.arguments, "sessionId").map(SessionId);
    let operation_id = take(&mut request.arguments, "operationId");
    let text = take(&mut request.arguments, "text").unwrap_or_default();
    if let Some(id) = take(&mut request.arguments, "replyTo") {
        return refusal(format!(
            "no model request {id:?} waits for a reply: it ended, or belongs to another session. Nothing was written; leave replyTo out to write a message"
        ));
    }
    let signed = json!({ "text": text });
    operate(toolbox, request, Job { session, operation_id, kind: ReceiptKind::Chat, signed, work: Work::Chat(text) })
        .await
}
