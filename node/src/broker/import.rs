//! `import-state`: reads the original's `chappie.state.json`. Pure: bytes in, rows out.

use std::path::PathBuf;

use serde::Serialize;

use super::{
    command::{ImportCounts, ImportRow, Reply},
    receipts::Receipt,
};
use crate::ids::{Millis, SessionId};

/// A binding of the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedBinding {
    /// Chat id (`openai/session`).
    pub conversation: String,
    /// Its session.
    pub session: SessionId,
    /// Last use; `None` for the plain form, which had none.
    pub last_used: Option<Millis>,
}

impl From<ImportedBinding> for ImportRow {
    fn from(binding: ImportedBinding) -> Self {
        Self { chat: binding.conversation, session: binding.session, last_used: binding.last_used }
    }
}

/// What a state file holds for us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Bindings.
    pub bindings: Vec<ImportedBinding>,
    /// Receipts.
    pub receipts: Vec<Receipt>,
    /// What is not taken over.
    pub skipped: Vec<Skipped>,
}

impl From<Vec<ImportedBinding>> for Imported {
    fn from(bindings: Vec<ImportedBinding>) -> Self {
        Self { bindings, ..Self::default() }
    }
}

/// A part of the file that is not taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Skipped {
    /// Its name in the file.
    pub name: String,
    /// How many records.
    pub count: usize,
    /// Why.
    pub why: String,
}

/// How an import went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// Counts by what became of each row.
    #[serde(flatten)]
    pub counts: ImportCounts,
    /// What was not taken over.
    pub skipped: Vec<Skipped>,
    /// The store as it was before.
    pub backup: PathBuf,
}

impl ImportReport {
    pub(super) fn add(&mut self, reply: Reply) {
        let Reply::Imported(more) = reply else { return };
        let counts = &mut self.counts;
        counts.bindings_added += more.bindings_added;
        counts.bindings_replaced += more.bindings_replaced;
        counts.bindings_kept += more.bindings_kept;
        counts.bindings_expired += more.bindings_expired;
        counts.receipts_added += more.receipts_added;
        counts.receipts_kept += more.receipts_kept;
        counts.receipts_expired += more.receipts_expired;
        counts.no_room += more.no_room;
    }
}
