//! Stores as older programs left them, for tests.

use std::path::{Path, PathBuf};

use redb::{Database, TableDefinition, WriteTransaction};

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const SNAPSHOT: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("snapshot");
const PLAIN_BINDINGS: TableDefinition<'_, &str, &str> = TableDefinition::new("bindings");

/// The broker's store in a home.
pub(crate) fn store_path(home: &Path) -> PathBuf {
    home.join("consensus.redb")
}

fn make(home: &Path, format: u64, fill: impl FnOnce(&WriteTransaction)) {
    let database = Database::create(store_path(home)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", format).unwrap();
    fill(&transaction);
    transaction.commit().unwrap();
}

/// A store as the first format wrote it.
pub(crate) fn make_format_1(home: &Path, bindings: &[(&str, &str)]) {
    make(home, 1, |transaction| {
        let mut table = transaction.open_table(PLAIN_BINDINGS).unwrap();
        for (chat, session) in bindings {
            table.insert(chat, session).unwrap();
        }
    });
}

/// A store as the third format wrote it: a snapshot up to an index, and entries after it.
pub(crate) fn make_format_3(home: &Path, snapshot: Option<(u64, &[u8])>, entries: &[(u64, Vec<u8>)]) {
    make(home, 3, |transaction| {
        let mut pieces = transaction.open_table(SNAPSHOT).unwrap();
        if let Some((index, bytes)) = snapshot {
            pieces.insert(0, bytes).unwrap();
            let mut meta = transaction.open_table(META).unwrap();
            meta.insert("snapshot_index", index).unwrap();
            meta.insert("snapshot_bytes", bytes.len() as u64).unwrap();
        }
        let mut log = transaction.open_table(LOG).unwrap();
        for (index, entry) in entries {
            log.insert(index, entry.as_slice()).unwrap();
        }
    });
}
