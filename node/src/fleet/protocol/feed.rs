//! What a member and the broker tell each other unasked, [`chappie_mesh::StreamKind::Feed`]. The member opens the stream
//! and announces; the broker answers with the roster. It lives as long as the connection. Pure.

use std::net::SocketAddr;

use chappie_mesh::{NodeId, Roster};
use serde::{Deserialize, Serialize};

use super::Extensions;
use crate::{ids::Conversation, sessions::SessionInfo};

/// From the member. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Up {
    /// All that the member has; replaces what it announced before.
    Announce(Announcement),
}

/// From the broker. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Down {
    /// Who belongs to the mesh, and where the broker saw them.
    Roster(Box<News>),
}

/// The broker's word to members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct News {
    /// The roster.
    pub roster: Roster,
    /// Addresses of members, as far as the broker knows them.
    pub addresses: Vec<(NodeId, Vec<SocketAddr>)>,
    /// Later fields.
    pub ext: Extensions,
}

/// All that one node has (failure rule F13).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announcement {
    /// Which run of the node says it: a nonce.
    pub boot: [u8; 16],
    /// Grows with every announcement of one run.
    pub seq: u64,
    /// Its sessions.
    pub sessions: Vec<SessionInfo>,
    /// Conversations with late results there.
    pub late: Vec<Conversation>,
    /// Later fields.
    pub ext: Extensions,
}
