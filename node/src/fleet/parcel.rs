//! A parcel in the making: one node's part of an answer, inside the room that the answer has left for it (design 10).
//! Texts are counted as the answer counts them; who puts parcels together under a header is the broker's.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::Parcel;
use crate::{
    budget::TextBudget,
    content::{Block, ImageRef, Part, ToolResult},
    ids::SessionId,
    storage::blobs::Blobs,
};

/// Room that one response keeps for its own header blocks.
pub const HEADER: TextBudget = TextBudget { bytes: 768, tokens: 280 };
/// Room for the header of one batch member: its id, its tool's name and a flag.
pub const MEMBER: TextBudget = TextBudget { bytes: 84, tokens: 46 };
/// Room kept for waiting inputs and late results, so that full answers cannot starve them.
pub const RIDERS: TextBudget = TextBudget { bytes: 3_072, tokens: 1_100 };
/// Below this a rider is not begun: a header and a line of text would not fit.
pub const RIDER_MIN: TextBudget = TextBudget { bytes: 1_024, tokens: 380 };
/// Image bytes one answer carries. The host bounds its own batch; this bounds batch, inputs and late results together.
pub const IMAGES_MAX_BYTES: u64 = 16 << 20;

/// A parcel in the making.
pub(super) struct Packer<'a> {
    blobs: &'a Blobs,
    left: TextBudget,
    images_left: u64,
    content: Vec<Part>,
}

/// How far a parcel was packed, to take back what came after.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    left: TextBudget,
    images_left: u64,
    parts: usize,
}

impl<'a> Packer<'a> {
    pub(super) const fn new(blobs: &'a Blobs, room: TextBudget) -> Self {
        Self { blobs, left: room, images_left: IMAGES_MAX_BYTES, content: Vec::new() }
    }

    /// What is left of the room.
    pub(super) const fn left(&self) -> TextBudget {
        self.left
    }

    /// Whether a rider may be begun.
    pub(super) const fn has_room(&self) -> bool {
        self.left.bytes >= RIDER_MIN.bytes && self.left.tokens >= RIDER_MIN.tokens
    }

    /// Keeps room for a text that stands elsewhere in the answer.
    pub(super) fn reserve(&mut self, text: &str) {
        self.left = self.left.minus("\n").minus(text);
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { left: self.left, images_left: self.images_left, parts: self.content.len() }
    }

    /// Takes out everything since `mark`.
    pub(super) fn rewind(&mut self, mark: Mark) {
        self.content.truncate(mark.parts);
        (self.left, self.images_left) = (mark.left, mark.images_left);
    }

    /// Adds a JSON block.
    pub(super) fn json(&mut self, value: &Value) {
        self.text(value.to_string());
    }

    /// Adds a text block as it is; callers cut what they cannot bound.
    pub(super) fn text(&mut self, text: String) {
        // The newline that joins it to the block before in structuredContent counts too.
        self.left = self.left.minus("\n").minus(&text);
        self.content.push(Part::Text(text));
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
                self.content.push(Part::Image { mime: image.mime.clone(), base64: STANDARD.encode(bytes) });
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

    /// The parcel.
    pub(super) fn finish(self, failed: bool, error: Option<String>) -> Parcel {
        Parcel { content: self.content, failed, error }
    }
}

/// The reference of an image of a session (behaviour 7.6).
pub(super) fn image_uri(session: &SessionId, image: &ImageRef) -> String {
    format!("chappie://session/{session}/image/{}/{}", image.sha256, image.file_name())
}
