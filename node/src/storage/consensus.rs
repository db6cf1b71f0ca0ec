//! `consensus.redb`: the broker's log and its snapshot, as bytes; what they mean is the broker's business.
//!
//! One thread writes (F24), every commit is fsynced before it is acknowledged. A store of an older format is copied to
//! `consensus.redb.format-N.bak` and migrated in one transaction; one of a newer format is refused and left as it is.
//!
//! Format 1 kept only a table of plain bindings, chat → session. Format 2 keeps a log and a snapshot. Format 3 keeps the
//! same tables; its entries and snapshots may hold membership, which a program of format 2 cannot read.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::damage;

/// The format this program writes.
const FORMAT: u64 = 3;
/// Facts about the file: `format`, `snapshot_index`, `snapshot_bytes`.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Entries after the snapshot, by index.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The snapshot in pieces of [`CHUNK_BYTES`], so that it can be streamed and no row needs one large allocation.
const SNAPSHOT: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("snapshot");
/// Format 1: chat → session.
const PLAIN_BINDINGS: TableDefinition<'_, &str, &str> = TableDefinition::new("bindings");
/// Bytes of one piece of a snapshot.
const CHUNK_BYTES: usize = 256 << 10;
/// Page cache. The state lives in memory and the file is only written and, at start, read once.
const CACHE_BYTES: usize = 1 << 20;

/// What a store held when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Index of the last entry inside the snapshot, and its bytes.
    pub snapshot: Option<(u64, Vec<u8>)>,
    /// Later entries, by index, without a gap.
    pub tail: Vec<(u64, Vec<u8>)>,
}

/// What a store of an older format held, where its rows are not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Older {
    /// Plain bindings, chat → session.
    Format1 {
        /// In the order of chat ids.
        bindings: Vec<(String, String)>,
    },
}

/// Turns what an older store held into a snapshot before the first entry.
pub type Upgrade = fn(Older) -> Vec<u8>;

/// Why the store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{path} is in use: another chappie runs with the same CHAPPIE_HOME; stop it, or give this one its own")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error(
        "{path} has format {found}, this program knows formats up to {known}; start the newer chappie again{}",
        backup.as_ref().map(|backup| format!(", or put its backup {} back in its place", backup.display()))
            .unwrap_or_default()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format known here.
        known: u64,
        /// The copy that the newer program made before it migrated, when there is one.
        backup: Option<PathBuf>,
    },
    /// Its contents cannot be true.
    #[error("{path} is damaged: {cause}; {}", damage::advice(path, damage::LOST_CONSENSUS))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// The system refused.
    #[error("cannot open {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system or redb said.
        cause: String,
    },
}

/// Why a write is not known to be on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The transaction was given up before its commit.
    #[error("{0}")]
    NotWritten(String),
    /// The commit itself failed: it may be on disk or not (F12). Only reopening tells.
    #[error("{0}")]
    Unknown(String),
}

type Opener = Box<dyn Fn() -> Result<Database, DatabaseError> + Send>;

/// The store. After a [`WriteError`] it takes nothing more until [`ConsensusStore::reopen`].
pub struct ConsensusStore {
    path: PathBuf,
    opener: Opener,
    upgrade: Upgrade,
    database: Option<Database>,
}

impl ConsensusStore {
    /// Opens or makes the store at `path`, and migrates an older one.
    ///
    /// # Errors
    /// [`OpenError`]; the file is then as it was.
    pub fn open(path: &Path, upgrade: Upgrade) -> Result<(Self, Contents), OpenError> {
        let file = path.to_owned();
        let opener = move || {
            make_private(&file)?;
            Database::builder().set_cache_size(CACHE_BYTES).create(&file)
        };
        Self::with_opener(path, Box::new(opener), upgrade)
    }

    fn with_opener(path: &Path, opener: Opener, upgrade: Upgrade) -> Result<(Self, Contents), OpenError> {
        let mut store = Self { path: path.to_owned(), opener, upgrade, database: None };
        let contents = store.reopen()?;
        Ok((store, contents))
    }

    /// Closes the database and opens it again; what it holds now is the truth.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn reopen(&mut self) -> Result<Contents, OpenError> {
        self.database = None;
        let mut database = self.open_database()?;
        match self.format_of(&database)? {
            None => self.initialise(&database)?,
            Some(FORMAT) => {}
            Some(found) if found > FORMAT => return Err(self.newer(found)),
            Some(found) => database = self.migrate(database, found)?,
        }
        let contents = self.contents(&database)?;
        self.database = Some(database);
        Ok(contents)
    }

    /// Appends entries in one durable transaction.
    ///
    /// # Errors
    /// [`WriteError`], for all of them.
    pub fn append(&mut self, rows: &[(u64, Vec<u8>)]) -> Result<(), WriteError> {
        self.commit(|transaction| {
            let mut log = transaction.open_table(LOG)?;
            for (index, row) in rows {
                log.insert(index, row.as_slice())?;
            }
            Ok(())
        })
    }

    /// Replaces the snapshot by one up to and including `index`, and drops the log that it covers.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn snapshot(&mut self, index: u64, bytes: &[u8]) -> Result<(), WriteError> {
        self.commit(|transaction| {
            write_snapshot(transaction, index, bytes)?;
            transaction.open_table(LOG)?.retain_in(..=index, |_, _| false)?;
            Ok(())
        })
    }

    /// Copies the committed contents into a new store at `target`, whole or not at all.
    ///
    /// # Errors
    /// What the system or redb said; also when `target` exists.
    pub fn copy_to(&self, target: &Path) -> io::Result<()> {
        let Some(database) = &self.database else {
            return Err(io::Error::other("the store is being reopened after a disk error; try again"));
        };
        if target.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", target.display())));
        }
        let contents = self.contents(database).map_err(io::Error::other)?;
        let staged = beside(target, "tmp");
        let _ = std::fs::remove_file(&staged);
        make_private(&staged)?;
        let copied = write_copy(&staged, &contents).map_err(io::Error::other);
        let settled = copied.and_then(|()| std::fs::rename(&staged, target)).and_then(|()| sync_folder(target));
        settled.inspect_err(|_| {
            let _ = std::fs::remove_file(&staged);
        })
    }

    /// The store's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn commit(
        &mut self,
        write: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), WriteError> {
        let not_written = |error: redb::Error| WriteError::NotWritten(error.to_string());
        let Some(database) = &self.database else {
            return Err(WriteError::NotWritten("the store is closed".into()));
        };
        // redb's transactions are durable (`Durability::Immediate`) unless told otherwise.
        let written = database
            .begin_write()
            .map_err(|error| not_written(error.into()))
            .and_then(|transaction| write(&transaction).map_err(not_written).map(|()| transaction))
            .and_then(|transaction| transaction.commit().map_err(|error| WriteError::Unknown(error.to_string())));
        if written.is_err() {
            self.database = None;
        }
        written
    }

    fn open_database(&self) -> Result<Database, OpenError> {
        (self.opener)().map_err(|error| open_error(&self.path, &error.into()))
    }

    fn format_of(&self, database: &Database) -> Result<Option<u64>, OpenError> {
        let transaction = database.begin_read().map_err(|error| open_error(&self.path, &error.into()))?;
        let meta = match transaction.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.damaged(error)),
        };
        let format = meta.get("format").map_err(|error| open_error(&self.path, &error.into()))?;
        format
            .map(|format| format.value())
            .map_or_else(|| Err(self.damaged("it has no format number")), |f| Ok(Some(f)))
    }

    fn initialise(&self, database: &Database) -> Result<(), OpenError> {
        let make = || -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            transaction.open_table(META)?.insert("format", FORMAT)?;
            transaction.open_table(LOG)?;
            transaction.open_table(SNAPSHOT)?;
            transaction.commit()?;
            Ok(())
        };
        make().map_err(|error| open_error(&self.path, &error))
    }

    fn migrate(&self, database: Database, found: u64) -> Result<Database, OpenError> {
        let older = match found {
            1 => {
                let bindings = read_plain_bindings(&database).map_err(|error| self.damaged(error))?;
                Some(Older::Format1 { bindings })
            }
            // Its rows are ours: entries and snapshots say of themselves how they are read.
            2 => None,
            other => return Err(self.damaged(format!("it says format {other}, which never was"))),
        };
        drop(database);
        let backup = self.format_backup(found);
        copy_file(&self.path, &backup).map_err(|error| self.io(format!("no backup {}: {error}", backup.display())))?;
        let database = self.open_database()?;
        let snapshot = older.map(self.upgrade);
        let write = || -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            if let Some(snapshot) = &snapshot {
                write_snapshot(&transaction, 0, snapshot)?;
                transaction.open_table(LOG)?;
                transaction.delete_table(PLAIN_BINDINGS)?;
            }
            transaction.open_table(META)?.insert("format", FORMAT)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| self.io(error))?;
        tracing::info!(from = found, to = FORMAT, backup = %backup.display(), "the broker's store was migrated");
        Ok(database)
    }

    fn newer(&self, found: u64) -> OpenError {
        let backup = Some(self.format_backup(FORMAT)).filter(|backup| backup.exists());
        OpenError::Newer { path: self.path.clone(), found, known: FORMAT, backup }
    }

    fn format_backup(&self, format: u64) -> PathBuf {
        beside(&self.path, &format!("format-{format}.bak"))
    }

    fn contents(&self, database: &Database) -> Result<Contents, OpenError> {
        let transaction = database.begin_read().map_err(|error| open_error(&self.path, &error.into()))?;
        let contents = read_contents(&transaction).map_err(|error| self.damaged(error))?;
        let first = contents.snapshot.as_ref().map_or(1, |(index, _)| index + 1);
        for (expected, (index, _)) in (first..).zip(&contents.tail) {
            if *index != expected {
                return Err(self.damaged(format!("entry {expected} of the log is missing, {index} follows")));
            }
        }
        Ok(contents)
    }

    fn io(&self, cause: impl ToString) -> OpenError {
        OpenError::Io { path: self.path.clone(), cause: cause.to_string() }
    }

    fn damaged(&self, cause: impl ToString) -> OpenError {
        OpenError::Damaged { path: self.path.clone(), cause: cause.to_string() }
    }
}

fn open_error(path: &Path, error: &redb::Error) -> OpenError {
    let (path, cause) = (path.to_owned(), error.to_string());
    match error {
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse { path },
        error if damage::is_damage(error) => OpenError::Damaged { path, cause },
        _ => OpenError::Io { path, cause },
    }
}

/// `path` with `.suffix` added to its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the file, readable by its owner only, when it is not there; its name is then on disk too.
fn make_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => sync_folder(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Copies a closed file, whole or not at all, over an older copy of the same format.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let staged = beside(to, "tmp");
    std::fs::copy(from, &staged)?;
    File::open(&staged)?.sync_all()?;
    std::fs::rename(&staged, to)?;
    sync_folder(to)
}

fn write_snapshot(transaction: &redb::WriteTransaction, index: u64, bytes: &[u8]) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(SNAPSHOT)?;
    let mut chunks = 0_u32;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        table.insert(chunks, chunk)?;
        chunks += 1;
    }
    table.retain_in(chunks.., |_, _| false)?;
    let mut meta = transaction.open_table(META)?;
    meta.insert("snapshot_index", index)?;
    meta.insert("snapshot_bytes", bytes.len() as u64)?;
    Ok(())
}

fn read_contents(transaction: &redb::ReadTransaction) -> Result<Contents, redb::Error> {
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
    let mut tail = Vec::new();
    for row in transaction.open_table(LOG)?.iter()? {
        let (index, bytes) = row?;
        tail.push((index.value(), bytes.value().to_vec()));
    }
    Ok(Contents { snapshot, tail })
}

fn read_plain_bindings(database: &Database) -> Result<Vec<(String, String)>, redb::Error> {
    let transaction = database.begin_read()?;
    let table = transaction.open_table(PLAIN_BINDINGS)?;
    let mut bindings = Vec::new();
    for row in table.iter()? {
        let (chat, session) = row?;
        bindings.push((chat.value().to_owned(), session.value().to_owned()));
    }
    Ok(bindings)
}

fn write_copy(path: &Path, contents: &Contents) -> Result<(), redb::Error> {
    let database = Database::builder().set_cache_size(CACHE_BYTES).create(path)?;
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert("format", FORMAT)?;
    transaction.open_table(SNAPSHOT)?;
    if let Some((index, bytes)) = &contents.snapshot {
        write_snapshot(&transaction, *index, bytes)?;
    }
    {
        let mut log = transaction.open_table(LOG)?;
        for (index, row) in &contents.tail {
            log.insert(index, row.as_slice())?;
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod faulty;
#[cfg(test)]
pub(crate) mod tests;
