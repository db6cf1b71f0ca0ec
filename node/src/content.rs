//! What a host's tools take and give, independent of MCP and of storage. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object, keys in the order they came.
pub type JsonObject = Map<String, Value>;

/// One piece of a result, an input or a history entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Block {
    /// Text for the model.
    Text {
        /// The text itself.
        text: String,
    },
    /// A picture whose bytes stand in the blob store under their hash.
    Image(ImageRef),
}

impl Block {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// A picture by content: the bytes are in the owning node's blob store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageRef {
    /// SHA-256 of the bytes, lower-case hex; also the blob's name.
    pub sha256: String,
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`: what the bytes really are.
    pub mime: String,
    /// Length in bytes.
    pub size: u64,
}

impl ImageRef {
    /// The file name an exported copy gets.
    #[must_use]
    pub fn file_name(&self) -> String {
        let extension = match self.mime.as_str() {
            "image/jpeg" => "jpg",
            "image/gif" => "gif",
            "image/webp" => "webp",
            _ => "png",
        };
        format!("image.{extension}")
    }
}

/// One member of a batch, as the host will run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// `chappie-<uuid>`, made by the broker; unique in the session.
    pub id: String,
    /// The tool's name at the host.
    pub name: String,
    /// Native arguments, passed unmodified.
    pub arguments: JsonObject,
}

/// What one member of a batch gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The [`ToolCall::id`] this answers.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Whether the member failed.
    pub is_error: bool,
    /// Text and images, in order, already inside the budget the caller gave.
    pub content: Vec<Block>,
    /// Machine-readable facts (exit code, full-output path, truncation), when the tool has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

/// One piece of an answer, bytes included: what a client gets of a [`Block`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Part {
    /// Text.
    Text(String),
    /// An image.
    Image {
        /// Its type.
        mime: String,
        /// Standard padded base64 of its bytes.
        base64: String,
    },
}
