//! `bash`: one shell command on the session's device (behaviour 3.9).

use std::sync::Arc;

use serde_json::json;

use super::{
    direct,
    surface::{Answer, Request, ToolSpec},
    toolbox::{ACTS, Toolbox, input_schema, spec as tool_spec},
};

pub(super) fn spec() -> ToolSpec {
    let properties = json!({
        "command": {"type": "string", "minLength": 1, "description": "The command; no terminal, no input"},
        "timeout": {"type": "number", "description": "Seconds after which it is ended; none when left out"},
    });
    tool_spec(
        "bash",
        "Run a command",
        "Runs a shell command in the session's folder and returns output and exit code; long output is cut, with the path of the whole. Work longer than half a minute belongs into the process tool (see tools).",
        input_schema(properties, &["command"], &["sessionId", "operationId"]),
        ACTS,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    direct::run(toolbox, request).await
}
