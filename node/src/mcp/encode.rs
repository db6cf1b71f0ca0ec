//! From [`crate::tools`] to rmcp's model: tool specifications, answers, resources, errors. Pure.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::{
    ErrorData,
    model::{
        CallToolResult, ContentBlock, ImageContent, MetaObject, ReadResourceResult, ResourceContents, ResourceTemplate,
        TextContent, Tool, ToolAnnotations,
    },
};
use serde_json::{Value, json};

use crate::{
    content::JsonObject,
    tools::{Content, ResourceError, ResourceRead, ToolSpec},
};

/// One tool as `tools/list` shows it, all four hints stated.
pub(super) fn tool(spec: &ToolSpec) -> Tool {
    let hints = spec.annotations;
    let annotations = ToolAnnotations::new()
        .read_only(hints.read_only)
        .destructive(hints.destructive)
        .idempotent(hints.idempotent)
        .open_world(hints.open_world);
    let tool = Tool::new(spec.name, spec.description.clone(), object(&spec.input_schema))
        .with_title(spec.title)
        .with_raw_output_schema(object(&spec.output_schema))
        .with_annotations(annotations);
    match &spec.meta {
        Some(meta) => tool.with_meta(MetaObject(meta.clone())),
        None => tool,
    }
}

/// An answer. `structuredContent` is always set, also on errors: hosts that show the model only that must not show nothing.
pub(super) fn answer(content: Vec<Content>, structured: JsonObject, is_error: bool) -> CallToolResult {
    let blocks = content.into_iter().map(block).collect();
    let mut result = if is_error { CallToolResult::error(blocks) } else { CallToolResult::success(blocks) };
    result.structured_content = Some(Value::Object(structured));
    result
}

/// A tool error made here: the call never reached a tool. Text and structure say the same.
pub(super) fn tool_error(text: String) -> CallToolResult {
    let structured = JsonObject::from_iter([("text".to_owned(), Value::String(text.clone()))]);
    answer(vec![Content::Text(text)], structured, true)
}

/// One `resources/templates/list` entry.
pub(super) fn template((uri, name, description): (String, String, String)) -> ResourceTemplate {
    ResourceTemplate::new(uri, name).with_description(description)
}

/// The bytes behind `uri`, always one blob under the URI that was asked for.
pub(super) fn resource(uri: String, read: &ResourceRead) -> ReadResourceResult {
    let blob = ResourceContents::blob(STANDARD.encode(&read.bytes), uri).with_mime_type(read.mime.clone());
    ReadResourceResult::new(vec![blob])
}

/// A failed read. Not found is -32002, which rmcp turns into -32602 for 2026-07-28.
pub(super) fn resource_error(uri: &str, error: &ResourceError) -> ErrorData {
    let data = Some(json!({ "uri": uri }));
    match error {
        ResourceError::NotFound(text) => ErrorData::resource_not_found(text.clone(), data),
        ResourceError::Unreadable(text) => ErrorData::internal_error(text.clone(), data),
    }
}

fn block(content: Content) -> ContentBlock {
    match content {
        Content::Text(text) => ContentBlock::Text(TextContent::new(text)),
        Content::Image { mime, base64 } => ContentBlock::Image(ImageContent::new(base64, mime)),
    }
}

/// A schema as rmcp wants it; a schema that is no object (a fault of ours that `tools` tests for) allows anything.
fn object(schema: &Value) -> Arc<JsonObject> {
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Annotations;

    #[test]
    fn a_tool_shows_title_schemas_meta_and_all_four_hints() {
        let spec = ToolSpec {
            name: "read",
            title: "Read a file",
            description: "Reads.".to_owned(),
            input_schema: json!({"type": "object", "additionalProperties": false}),
            output_schema: json!({"type": "object", "required": ["text"]}),
            annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: true },
            meta: json!({"openai/fileParams": ["files"]}).as_object().cloned(),
        };
        assert_eq!(
            serde_json::to_value(tool(&spec)).unwrap(),
            json!({
                "name": "read", "title": "Read a file", "description": "Reads.",
                "inputSchema": {"type": "object", "additionalProperties": false},
                "outputSchema": {"type": "object", "required": ["text"]},
                "annotations": {
                    "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": true
                },
                "_meta": {"openai/fileParams": ["files"]},
            })
        );
    }

    #[test]
    fn an_answer_keeps_its_blocks_in_order_and_always_has_structure() {
        let content = vec![
            Content::Text("a".to_owned()),
            Content::Image { mime: "image/png".to_owned(), base64: "AA==".to_owned() },
        ];
        let structured = json!({"text": "a"}).as_object().cloned().unwrap();
        let value = serde_json::to_value(answer(content, structured, false)).unwrap();
        assert_eq!(
            value["content"],
            json!([{"type": "text", "text": "a"}, {"type": "image", "data": "AA==", "mimeType": "image/png"}])
        );
        assert_eq!(value["structuredContent"], json!({"text": "a"}));
        assert_eq!(value["isError"], json!(false));
    }

    #[test]
    fn an_error_answer_says_so_and_repeats_its_text_in_the_structure() {
        let value = serde_json::to_value(tool_error("no".to_owned())).unwrap();
        assert_eq!(value["isError"], json!(true));
        assert_eq!(value["content"], json!([{"type": "text", "text": "no"}]));
        assert_eq!(value["structuredContent"], json!({"text": "no"}));
    }

    #[test]
    fn a_resource_is_one_blob_under_the_uri_that_was_asked_for() {
        let read = ResourceRead { mime: "image/png".to_owned(), bytes: vec![0, 255] };
        let value = serde_json::to_value(resource("chappie://x?chatId=1".to_owned(), &read)).unwrap();
        assert_eq!(
            value["contents"],
            json!([{"uri": "chappie://x?chatId=1", "mimeType": "image/png", "blob": "AP8="}])
        );
    }
}
