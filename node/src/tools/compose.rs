//! Builds an answer inside its text budget: headers and the nodes' parcels as content blocks, and the same text once more
//! for `structuredContent`, because some hosts show the model only that (design 10).

use serde_json::Value;

use super::surface::{Answer, Content, Ticket};
use crate::{
    budget::TextBudget,
    content::JsonObject,
    fleet::{Parcel, parcel::IMAGES_MAX_BYTES},
};

/// An answer in the making.
pub(super) struct Composer {
    left: TextBudget,
    images_left: u64,
    content: Vec<Content>,
}

impl Composer {
    pub(super) const fn new() -> Self {
        Self { left: TextBudget::WHOLE, images_left: IMAGES_MAX_BYTES, content: Vec::new() }
    }

    /// What is left of the budget.
    pub(super) const fn left(&self) -> TextBudget {
        self.left
    }

    /// Adds a JSON block.
    pub(super) fn json(&mut self, value: &Value) {
        self.text(value.to_string());
    }

    fn text(&mut self, text: String) {
        // The newline that joins it to the block before in structuredContent counts too.
        self.left = self.left.minus("\n").minus(&text);
        self.content.push(Content::Text(text));
    }

    /// Adds one node's part. Each node bounds the images of its own; the answer bounds those of all of them.
    pub(super) fn parcel(&mut self, parcel: Parcel) {
        for part in parcel.content {
            match part {
                Content::Text(text) => self.text(text),
                Content::Image { mime, base64 } => {
                    let size = base64.len() as u64 / 4 * 3;
                    if size <= self.images_left {
                        self.images_left -= size;
                        self.content.push(Content::Image { mime, base64 });
                    } else {
                        self.text("An image is not shown: this answer is full. Read the reference that follows".into());
                    }
                }
            }
        }
    }

    /// The answer.
    pub(super) fn finish(self, is_error: bool, ticket: Ticket) -> Answer {
        Answer { structured: structured(&self.content), content: self.content, is_error, ticket }
    }
}

/// `{text}`: every text block, joined by a newline.
fn structured(content: &[Content]) -> JsonObject {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|block| match block {
            Content::Text(text) => Some(text.as_str()),
            Content::Image { .. } => None,
        })
        .collect();
    let mut object = JsonObject::new();
    object.insert("text".into(), Value::String(texts.join("\n")));
    object
}

/// A tool error: the text, nothing attached.
pub(super) fn refusal(text: impl Into<String>) -> Answer {
    let text: String = text.into();
    // An error may repeat what it was given; whatever that was, the answer keeps its budget.
    let content = vec![Content::Text(TextBudget::WHOLE.head(&text).to_owned())];
    Answer { structured: structured(&content), content, is_error: true, ticket: Ticket::default() }
}
