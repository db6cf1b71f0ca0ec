//! `edit`: exact replacements in one file, or an OMP patch (behaviour 3.9). The schema is flat; which of the two forms a
//! session takes is its host's to say at run time.

use std::sync::Arc;

use serde_json::json;

use super::{
    compose::refusal,
    direct,
    surface::{Answer, Request, ToolSpec},
    toolbox::{ACTS, Toolbox, input_schema, spec as tool_spec},
};

pub(super) fn spec() -> ToolSpec {
    let properties = json!({
        "path": {"type": "string", "minLength": 1, "description": "File to edit"},
        "edits": {
            "type": "array", "minItems": 1, "maxItems": 128,
            "description": "Replacements, all matched against the file as it is; each oldText must occur exactly once",
            "items": {
                "type": "object",
                "properties": {
                    "oldText": {"type": "string", "description": "Exact text to replace"},
                    "newText": {"type": "string", "description": "What to put there"}
                },
                "required": ["oldText", "newText"],
                "additionalProperties": false
            }
        },
        "patch": {"type": "string", "minLength": 1, "description": "Native patch; only for sessions of host omp"},
    });
    tool_spec(
        "edit",
        "Edit a file",
        "Replaces exact text in a file, all or nothing: give path and edits (or, for an omp session, patch alone).",
        input_schema(properties, &[], &["sessionId", "operationId"]),
        ACTS,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    let has = |key: &str| request.arguments.contains_key(key);
    match (has("patch"), has("path") && has("edits"), has("path") || has("edits")) {
        (true, _, false) | (false, true, _) => direct::run(toolbox, request).await,
        (true, _, true) => refusal("edit takes path and edits, or patch alone, not both. Nothing was done"),
        (false, false, _) => refusal("edit needs path and edits (or, for an omp session, patch). Nothing was done"),
    }
}
