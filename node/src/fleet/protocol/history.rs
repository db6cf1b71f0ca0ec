//! One page of history from a session's node to the broker, [`chappie_mesh::StreamKind::History`]. A stream of its own,
//! because a page may be waited for; a stream that ends before the page gives the wait up. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Extensions,
    run::{Parcel, millis},
};
use crate::{
    fleet::HistoryAsk,
    ids::{EntryId, SessionId},
    sessions::history::{LIMIT_MAX, Range},
};

/// From the broker. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// The one question.
    Page(Wanted),
}

/// From the session's node. Append-only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum News {
    /// The page, composed.
    Page(Parcel),
    /// There is none, and why: a sentence for the model.
    Failed(String),
}

/// A [`HistoryAsk`] on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    session: SessionId,
    limit: u32,
    before: Option<EntryId>,
    after: Option<EntryId>,
    wait_ms: u64,
    reader: Option<String>,
    ext: Extensions,
}

impl From<HistoryAsk> for Wanted {
    fn from(ask: HistoryAsk) -> Self {
        let HistoryAsk { session, range, wait, reader } = ask;
        Self {
            session,
            limit: u32::try_from(range.limit).unwrap_or(u32::MAX),
            before: range.before,
            after: range.after,
            wait_ms: millis(wait),
            reader,
            ext: Extensions::new(),
        }
    }
}

impl From<Wanted> for HistoryAsk {
    fn from(wanted: Wanted) -> Self {
        let limit = usize::try_from(wanted.limit).unwrap_or(LIMIT_MAX).clamp(1, LIMIT_MAX);
        Self {
            session: wanted.session,
            range: Range { limit, before: wanted.before, after: wanted.after },
            wait: Duration::from_millis(wanted.wait_ms),
            reader: wanted.reader,
        }
    }
}
