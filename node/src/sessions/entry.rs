//! What a native session's history holds. Pure: ids and stamps are arguments.

use serde::{Deserialize, Serialize};

use crate::{
    content::{Block, ImageRef, ToolCall, ToolResult},
    ids::{CallId, EntryId, Millis},
};

/// One entry of the branch. Its place is the number at the start of its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Stable for the life of the session.
    pub id: EntryId,
    /// The entry before it.
    pub parent_id: Option<EntryId>,
    /// When it was written.
    pub at: Millis,
    /// What it is.
    pub body: Body,
}

/// The kinds of entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Body {
    /// What a person typed at the session.
    User {
        /// Text and images.
        content: Vec<Block>,
    },
    /// What ChatGPT said or asked for.
    Assistant {
        /// Text, for a `chat`.
        content: Vec<Block>,
        /// One native batch, for a `call` or a direct tool.
        calls: Vec<ToolCall>,
        /// Where it came from.
        source: Source,
    },
    /// What one member of a batch gave.
    ToolResult {
        /// The result.
        result: ToolResult,
        /// Where its call came from.
        source: Source,
    },
    /// What happened around the work.
    Notice {
        /// The event's name.
        event: Event,
        /// A sentence for people.
        message: String,
    },
}

/// The request an entry belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The conversation, when the request named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<String>,
    /// The host's request id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The operation.
    pub call_id: CallId,
}

/// What a notice reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A conversation made this session its default.
    Joined,
    /// A conversation took another default.
    Left,
    /// A caller gave up.
    Cancelled,
    /// A conversation read the history; never part of a page itself.
    History,
    /// The node stopped while an operation ran.
    Interrupted,
}

impl Body {
    /// The images in it.
    pub fn images(&self) -> impl Iterator<Item = &ImageRef> {
        let blocks = match self {
            Self::User { content } | Self::Assistant { content, .. } => content.as_slice(),
            Self::ToolResult { result, .. } => result.content.as_slice(),
            Self::Notice { .. } => &[],
        };
        blocks.iter().filter_map(|block| match block {
            Block::Image(image) => Some(image),
            Block::Text { .. } => None,
        })
    }

    /// Whether history readers see it. Reading leaves a notice that must not wake readers.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        !matches!(self, Self::Notice { event: Event::History, .. })
    }
}

/// Makes the id of the entry at `seq`; `salt` keeps an id of one session from naming an entry of another.
#[must_use]
pub fn entry_id(seq: u64, salt: &str) -> EntryId {
    EntryId(format!("{seq:06x}-{}", salt.get(..6).unwrap_or(salt)))
}

/// The place an id claims; whether the entry there really has this id is for the reader to check.
#[must_use]
pub fn place(id: &EntryId) -> Option<u64> {
    let (seq, salt) = id.as_str().split_once('-')?;
    let plain = !salt.is_empty() && (6..=16).contains(&seq.len());
    plain.then(|| u64::from_str_radix(seq, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_place() {
        for seq in [0, 1, 0xFF_FFFF, 0x100_0000, u64::MAX] {
            assert_eq!(place(&entry_id(seq, "abcdef123")), Some(seq));
        }
    }

    #[test]
    fn a_foreign_id_names_no_place() {
        for id in ["", "-", "zz-aaaaaa", "1-aaaaaa", "000001-", "latest", "00000100000000000001-aaaaaa"] {
            assert_eq!(place(&EntryId::from(id)), None, "{id}");
        }
    }

    #[test]
    fn reading_history_is_no_history() {
        let body = |event| Body::Notice { event, message: String::new() };
        assert!(!body(Event::History).is_readable());
        assert!(body(Event::Cancelled).is_readable());
    }
}
