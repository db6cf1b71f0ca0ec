//! `write`: text to a file, whole or not at all (behaviour 3.9).

use std::sync::Arc;

use serde_json::json;

use super::{
    direct,
    surface::{Annotations, Answer, Request, ToolSpec},
    toolbox::{Toolbox, input_schema, spec as tool_spec},
};

pub(super) fn spec() -> ToolSpec {
    let properties = json!({
        "path": {"type": "string", "minLength": 1, "description": "File to write; parents are made"},
        "content": {"type": "string", "description": "The whole content"},
    });
    let annotations = Annotations { read_only: false, destructive: true, idempotent: true, open_world: true };
    tool_spec(
        "write",
        "Write a file",
        "Writes text to a file, replacing what is there as a whole or not at all; parents are made, mode and links are kept.",
        input_schema(properties, &["path", "content"], &["sessionId", "operationId"]),
        annotations,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    direct::run(toolbox, request).await
}
