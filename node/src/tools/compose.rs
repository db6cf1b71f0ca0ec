//! Builds an answer inside its text budget: content blocks, and the same text once more for `structuredContent`, because
//! some hosts show the model only that (design 10).

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::surface::{Answer, Content, Ticket};
use crate::{
    budget::TextBudget,
    content::{Block, ImageRef, JsonObject, ToolResult},
    ids::SessionId,
    storage::blobs::Blobs,
};

/// Room that one response keeps for its own header blocks.
pub(super) const HEADER: TextBudget = TextBudget { bytes: 768, tokens: 280 };
/// Room for the header of one batch member: its id, its tool's name and a flag.
pub(super) const MEMBER: TextBudget = TextBudget { bytes: 84, tokens: 46 };
/// Room kept for waiting inputs and late results, so that full answers cannot starve them.
pub(super) const RIDERS: TextBudget = TextBudget { bytes: 3_072, tokens: 1_100 };
/// Below this a rider is not begun: a header and a line of text would not fit.
pub(super) const RIDER_MIN: TextBudget = TextBudget { bytes: 1_024, tokens: 380 };
/// Image bytes one answer carries. The host bounds its own batch; this bounds batch, inputs and late results together.
const IMAGES_MAX_BYTES: u64 = 16 << 20;

/// An answer in the making.
pub(super) struct Composer<'a> {
    blobs: &'a Blobs,
    left: TextBudget,
    images_left: u64,
    content: Vec<Content>,
}

impl<'a> Composer<'a> {
    pub(super) fn new(blobs: &'a Blobs) -> Self {
        Self { blobs, left: TextBudget::WHOLE, images_left: IMAGES_MAX_BYTES, content: Vec::new() }
    }

    /// What is left of the budget.
    pub(super) const fn left(&self) -> TextBudget {
        self.left
    }

    /// Adds a JSON block.
    pub(super) fn json(&mut self, value: &Value) {
        self.text(value.to_string());
    }

    /// Adds a text block as it is; callers cut what they cannot bound.
    pub(super) fn text(&mut self, text: String) {
        // The newline that joins it to the block before in structuredContent counts too.
        self.left = self.left.minus("\n").minus(&text);
        self.content.push(Content::Text(text));
    }

    /// Adds an image of a session with its reference, or a word on why it is not there.
    pub(super) fn image(&mut self, session: &SessionId, image: &ImageRef) {
        let reference = json!({ "piImage": image_uri(session, image) }).to_string();
        if image.size > self.images_left {
            let size = image.size;
            self.text(format!("{reference}\nThe image ({size} bytes) is not shown: this answer is full. Read its reference, or ask for it alone"));
            return;
        }
        match self.blobs.bytes(image) {
            Ok(bytes) => {
                self.images_left -= image.size;
                self.content.push(Content::Image { mime: image.mime.clone(), base64: STANDARD.encode(bytes) });
                self.text(reference);
            }
            Err(error) => self.text(format!("{reference}\nThe image could not be read from the node's store: {error}")),
        }
    }

    /// Adds the blocks of a result, an input or an entry.
    pub(super) fn blocks(&mut self, session: &SessionId, blocks: &[Block]) {
        for block in blocks {
            match block {
                Block::Text { text } => self.text(text.clone()),
                Block::Image(image) => self.image(session, image),
            }
        }
    }

    /// Adds one member's header and content.
    pub(super) fn result(&mut self, session: &SessionId, result: &ToolResult) {
        self.json(&json!({ "toolCallId": result.id, "toolName": result.name, "isError": result.is_error }));
        self.blocks(session, &result.content);
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

/// The reference of an image of a session (behaviour 7.6).
pub(super) fn image_uri(session: &SessionId, image: &ImageRef) -> String {
    format!("chappie://session/{session}/image/{}/{}", image.sha256, image.file_name())
}

/// Cuts `blocks` to `budget`. Text that does not fit is kept whole in `<outputs>/<name>.txt` on the session's device,
/// and the notice says which call reads it.
pub(super) fn cut(blocks: &[Block], budget: TextBudget, outputs: &Path, name: &str) -> Vec<Block> {
    let whole: String = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            Block::Image(_) => None,
        })
        .collect::<Vec<_>>()
        .join("\n");
    if budget.fits(&whole) {
        return blocks.to_vec();
    }
    let notice = match keep(&whole, outputs, name) {
        Ok(path) => {
            let call = json!({ "path": path });
            format!("\n[cut: {} bytes in all; read {call} shows the rest]", whole.len())
        }
        Err(error) => format!("\n[cut: {} bytes in all; the rest could not be kept: {error}]", whole.len()),
    };
    let shown = budget.minus(&notice).head(&whole).to_owned();
    let mut kept = vec![Block::Text { text: shown + &notice }];
    kept.extend(blocks.iter().filter(|block| matches!(block, Block::Image(_))).cloned());
    kept
}

fn keep(text: &str, outputs: &Path, name: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(outputs)?;
    let path = outputs.join(format!("{name}.txt"));
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() == text.len() as u64) {
        return Ok(path);
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}
