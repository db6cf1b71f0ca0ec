//! Copies a store, of whatever format, while it is open.

use std::{fs, io, path::PathBuf};

use redb::{
    Database, Key, ReadTransaction, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableError, Value,
    WriteTransaction,
};

use super::{
    FILE, builder, older,
    rows::{self, LOG, META, SINGLE, SNAPSHOT},
};
use crate::storage::medium::{Medium, beside, make_private, sync_folder};

/// Copies for one reason. A person made each of them, so more is a program that runs amok.
const COPIES_MAX: u32 = 9_999;

/// Copies the committed contents to the first free `consensus.redb.WHAT_FOR-N.bak`.
pub(super) fn archive(database: &Database, medium: &Medium, what_for: &str) -> io::Result<PathBuf> {
    for number in 1..=COPIES_MAX {
        let name = format!("{FILE}.{what_for}-{number}.bak");
        let copied = match medium {
            Medium::Folder(home) => copy(database, &home.join(&name)),
            Medium::Simulated(disks) => disks.archive(FILE, &name),
        };
        match copied {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(medium.path(&name)),
        }
    }
    Err(io::Error::other(format!(
        "there are {COPIES_MAX} copies {FILE}.{what_for}-N.bak; move some away and try again"
    )))
}

/// Copies to `target`, whole or not at all.
fn copy(database: &Database, target: &std::path::Path) -> io::Result<()> {
    if target.exists() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", target.display())));
    }
    let staged = beside(target, "tmp");
    let _ = fs::remove_file(&staged);
    make_private(&staged)?;
    let copied = copy_rows(database, &staged).map_err(rows::io_error);
    let settled = copied.and_then(|()| fs::rename(&staged, target)).and_then(|()| sync_folder(target));
    settled.inspect_err(|_| {
        let _ = fs::remove_file(&staged);
    })
}

fn copy_rows(database: &Database, target: &std::path::Path) -> Result<(), redb::Error> {
    let from = database.begin_read()?;
    let copy = builder().create(target)?;
    let to = copy.begin_write()?;
    copy_table(&from, &to, META)?;
    copy_table(&from, &to, SINGLE)?;
    copy_table(&from, &to, LOG)?;
    copy_table(&from, &to, SNAPSHOT)?;
    copy_table(&from, &to, older::PLAIN_BINDINGS)?;
    to.commit()?;
    Ok(())
}

fn copy_table<K: Key + 'static, V: Value + 'static>(
    from: &ReadTransaction,
    to: &WriteTransaction,
    table: TableDefinition<'_, K, V>,
) -> Result<(), redb::Error> {
    let rows = match from.open_table(table) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        rows => rows?,
    };
    let mut target = to.open_table(table)?;
    for row in rows.iter()? {
        let (key, value) = row?;
        target.insert(key.value(), value.value())?;
    }
    Ok(())
}
