//! `read`: text or images of the session's device (behaviour 3.9).

use std::sync::Arc;

use serde_json::json;

use super::{
    direct,
    surface::{Annotations, Answer, Request, ToolSpec},
    toolbox::{Toolbox, input_schema, spec as tool_spec},
};

pub(super) fn spec() -> ToolSpec {
    let properties = json!({
        "path": {"type": "string", "minLength": 1, "description": "File; relative to the session's folder, absolute, or ~/…"},
        "offset": {"type": "integer", "minimum": 1, "description": "First line, from 1"},
        "limit": {"type": "integer", "minimum": 1, "description": "Number of lines"},
        "column": {"type": "integer", "minimum": 1, "description": "Where to go on inside a very long line, as the notice of a cut read says"},
    });
    let annotations = Annotations { read_only: true, destructive: false, idempotent: true, open_world: true };
    tool_spec(
        "read",
        "Read a file",
        "Reads a text file in pages, or shows an image. What is cut says how to read on.",
        input_schema(properties, &["path"], &["sessionId"]),
        annotations,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    direct::run(toolbox, request).await
}
