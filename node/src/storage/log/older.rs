//! What stores of formats 1 to 3 hold. They were written by one device for itself; nothing writes them any more.
//!
//! Format 1 kept a table of plain bindings, chat → session. Formats 2 and 3 kept a log of commands and a snapshot before
//! it; 3 may hold membership, which a program of format 2 cannot read.

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::rows::{LOG, META, SNAPSHOT};

/// Format 1: chat → session.
pub(super) const PLAIN_BINDINGS: TableDefinition<'_, &str, &str> = TableDefinition::new("bindings");

/// What a store of an older format held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Older {
    /// Plain bindings.
    Format1 {
        /// Chat → session, in the order of chat ids.
        bindings: Vec<(String, String)>,
    },
    /// Formats 2 and 3.
    Log {
        /// Index of the last entry inside the snapshot, and its bytes.
        snapshot: Option<(u64, Vec<u8>)>,
        /// Later entries, by index, without a gap.
        entries: Vec<(u64, Vec<u8>)>,
    },
}

/// Reads a store of format `found`.
pub(super) fn read(database: &Database, found: u64) -> Result<Older, redb::Error> {
    match found {
        1 => Ok(Older::Format1 { bindings: plain_bindings(database)? }),
        2 | 3 => log(database),
        other => Err(redb::Error::Corrupted(format!("it says format {other}, which never was"))),
    }
}

fn plain_bindings(database: &Database) -> Result<Vec<(String, String)>, redb::Error> {
    let transaction = database.begin_read()?;
    let mut bindings = Vec::new();
    for row in transaction.open_table(PLAIN_BINDINGS)?.iter()? {
        let (chat, session) = row?;
        bindings.push((chat.value().to_owned(), session.value().to_owned()));
    }
    Ok(bindings)
}

fn log(database: &Database) -> Result<Older, redb::Error> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let number = |name: &str| -> Result<Option<u64>, redb::Error> { Ok(meta.get(name)?.map(|value| value.value())) };
    let mut snapshot = None;
    if let (Some(index), Some(length)) = (number("snapshot_index")?, number("snapshot_bytes")?) {
        let mut bytes = Vec::new();
        for row in transaction.open_table(SNAPSHOT)?.iter()? {
            bytes.extend_from_slice(row?.1.value());
        }
        if bytes.len() as u64 != length {
            let cause = format!("the snapshot has {} bytes where {length} were written", bytes.len());
            return Err(redb::Error::Corrupted(cause));
        }
        snapshot = Some((index, bytes));
    }
    let first = snapshot.as_ref().map_or(1, |(index, _)| index + 1);
    let mut entries = Vec::new();
    for (row, expected) in transaction.open_table(LOG)?.iter()?.zip(first..) {
        let (index, bytes) = row?;
        let index = index.value();
        if index != expected {
            let cause = format!("entry {expected} of the log is missing, {index} follows");
            return Err(redb::Error::Corrupted(cause));
        }
        entries.push((index, bytes.value().to_vec()));
    }
    Ok(Older::Log { snapshot, entries })
}
