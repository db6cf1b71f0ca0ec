//! What crosses a [`chappie_mesh::StreamKind::Desk`] stream: one question, one answer. Append-only: variants are added at
//! the end and keep their place (postcard numbers them). Rows travel as the JSON that the command line prints. Pure.

use chappie_mesh::{InviteId, InviteKey, NodeId, Roster};
use serde::{Deserialize, Serialize};

use crate::{broker::Belongings, control::Resolution};

/// Bytes of one question. A piece of belongings is the largest, about 200 KiB.
pub(super) const ASK_MAX: usize = 1 << 20;
/// Bytes of one answer: 16,384 receipts as rows of JSON have less.
pub(super) const TOLD_MAX: usize = 40 << 20;

/// A question to the broker's device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum DeskAsk {
    /// A device shows an invite at the asking member's door.
    Admit {
        /// The device, by the key that it proved.
        node: NodeId,
        /// What it wants to be called.
        name: String,
        /// Which invite.
        invite: InviteId,
        /// The TLS exporter's value of its connection.
        binding: [u8; 32],
        /// Its proof over that.
        proof: [u8; 32],
    },
    /// A person makes an invite.
    Invite {
        /// Its id.
        id: InviteId,
        /// What proves its secret.
        key: InviteKey,
        /// How many devices may use it.
        uses: u32,
        /// How long it stands, milliseconds.
        ttl_ms: u64,
    },
    /// The asking member has another name now.
    Rename(String),
    /// What the asking member's own broker knew before it joined.
    Merge(Belongings),
    /// The fleet's sessions.
    Sessions,
    /// The receipts.
    Receipts,
    /// One receipt.
    Receipt(String),
    /// A person's word on a receipt.
    Resolve(String, Resolution),
    /// A device shall be forgotten: a word that names it.
    Forget(String),
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum DeskTold {
    /// Done; nothing to tell.
    Done,
    /// JSON of what the command line prints.
    Rows(Vec<u8>),
    /// The members.
    Roster(Roster),
    /// Not done.
    Refused {
        /// Why, and what to do next.
        message: String,
        /// Whether the same again may succeed by itself.
        temporary: bool,
    },
    /// Not done: this device is not the broker. Who is, as far as it knows.
    Elsewhere(Option<NodeId>),
}
