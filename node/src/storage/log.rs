//! `consensus.redb`: where the consensus engine's vote, log and snapshot are kept, as bytes; what they mean is the engine's
//! business. Every change is one transaction, fsynced before it is acknowledged.
//!
//! Format 4. Stores of formats 1 to 3, which one device wrote for itself, are copied to `consensus.redb.format-N.bak` and
//! handed out as [`Older`]; [`ConsensusStore::reset`] then makes them format 4. A newer format is refused and left as it is.

mod copy;
mod older;
mod rows;

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use chappie_mesh::{
    Incarnation, NodeId,
    consensus::{Group, LogStore, Persisted, StoreId, Write},
};
use redb::{Builder, Database, ReadableDatabase, WriteTransaction};
use serde::{Deserialize, Serialize};

pub use older::Older;

use super::{
    damage,
    disk::Reserve,
    medium::{Medium, beside, is_full},
};
use rows::Fault;

/// The store's name.
pub(super) const FILE: &str = "consensus.redb";
/// The format this program writes.
pub(super) const FORMAT: u64 = 4;
/// Page cache. The engine keeps the log in memory; the file is only written and, at start, read once.
const CACHE_BYTES: usize = 1 << 20;
/// Kept for outcomes, votes and cancels when the disk is full (F25). An outcome of each of 512 running operations, 1.5 KiB
/// with its receipt (F26), takes a page of 4 KiB of the log when it is committed alone: 2 MiB. Each commit also writes the
/// path to its rows and redb's own tables anew, about 16 pages, which the commit after the next uses again: 64 KiB, and a
/// vote no more. Twice that, because redb places pages in powers of two.
const RESERVE_BYTES: u64 = 4 << 20;
/// The reserve's name.
const RESERVE: &str = "consensus.reserve";
/// A file larger than what it holds, half of that, and this is compacted when it is opened. Below it the pages that are free
/// are soon used again, by the next snapshot at the latest.
const COMPACT_OVER_BYTES: u64 = 4 << 20;

/// Whose log a store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The group that shares it.
    pub group: Group,
    /// The store's own number.
    pub store: StoreId,
    /// The last start of the device with it; binds it to `node.redb` ([`super::bond::bond`]).
    pub run: Incarnation,
}

/// What a store held when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whose log it is; `None` for a new store, and an older one.
    pub head: Option<Head>,
    /// The device that made it, which is another one after `reset-identity` or when the file was copied.
    pub maker: Option<NodeId>,
    /// Whether `node.redb` has the run of the head too ([`ConsensusStore::settle_run`]).
    pub settled: bool,
    /// Whether the file is a copy of the one that was written last.
    pub copied: bool,
    /// What the engine had written.
    pub persisted: Persisted,
    /// What a store of an older format held.
    pub older: Option<Older>,
}

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

/// The store. Clones are one store: one stays with whoever looks after it, one goes to the engine. [`ConsensusStore::reopen`]
/// and [`ConsensusStore::reset`] shut out the clones that were made before, so that an engine that was given up writes
/// nothing more. All calls block on the disk.
#[derive(Clone)]
pub struct ConsensusStore {
    inner: Arc<Mutex<Inner>>,
    turn: u64,
}

struct Inner {
    medium: Medium,
    own: NodeId,
    /// Counts what shuts clones out.
    turn: u64,
    reserve: Option<Reserve>,
    database: Option<Database>,
    /// Whether the store has a head, without which the engine's writes mean nothing.
    headed: bool,
    /// Number of the last transaction.
    batch: u64,
    /// What is known to be committed and not on disk yet. It may lag, so that it never costs a sync of its own.
    committed: Option<Vec<u8>>,
}

impl ConsensusStore {
    /// Opens or makes the store of the device `own`.
    ///
    /// # Errors
    /// [`OpenError`]; the file is then as it was.
    pub fn open(medium: Medium, own: NodeId) -> Result<(Self, Opened), OpenError> {
        let mut inner =
            Inner { medium, own, turn: 0, reserve: None, database: None, headed: false, batch: 0, committed: None };
        let opened = inner.open()?;
        inner.reserve = inner.medium.reserve(RESERVE, RESERVE_BYTES);
        Ok((Self { inner: Arc::new(Mutex::new(inner)), turn: 0 }, opened))
    }

    /// Closes the database and opens it again: what it holds now is the truth, also after a write that failed (F12, F25).
    ///
    /// # Errors
    /// [`OpenError`]; the store is closed then, and this may be tried again.
    pub fn reopen(&mut self) -> Result<Opened, OpenError> {
        let mut inner = self.lock();
        inner.turn += 1;
        let (turn, opened) = (inner.turn, inner.open());
        drop(inner);
        self.turn = turn;
        opened
    }

    /// Replaces everything in one transaction, and makes a store of an older format one of this.
    ///
    /// # Errors
    /// What the system or the database said; `InvalidInput` when `writes` are no log. The store must then be reopened.
    pub fn reset(&mut self, head: Head, writes: Vec<Write>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.turn += 1;
        let turn = inner.turn;
        let (own, mark) = (inner.own, inner.medium.mark(FILE));
        let done = inner.durably(|transaction| rows::replace(transaction, &head, &own, mark, &writes));
        if done.is_ok() {
            (inner.headed, inner.committed) = (true, None);
        }
        drop(inner);
        self.turn = turn;
        done
    }

    /// Writes down that this start has the store; to be called before `node.redb` says so, and then
    /// [`ConsensusStore::settle_run`].
    ///
    /// # Errors
    /// What the system or the database said; `InvalidInput` when the store has no head yet.
    pub fn set_run(&self, run: Incarnation) -> io::Result<()> {
        let mut inner = self.lock();
        let mark = inner.medium.mark(FILE);
        inner.durably(|transaction| rows::set_run(transaction, run, mark))
    }

    /// Writes down that `node.redb` has the run too. Without this call a `node.redb` that is put back, and one start older,
    /// looks like a start that was cut off.
    ///
    /// # Errors
    /// What the system or the database said; `InvalidInput` when the store has no head yet.
    pub fn settle_run(&self) -> io::Result<()> {
        self.lock().durably(rows::settle)
    }

    /// Copies the store to the first free `consensus.redb.WHAT_FOR-N.bak`, whole or not at all.
    ///
    /// # Errors
    /// What the system or the database said.
    pub fn archive(&self, what_for: &str) -> io::Result<PathBuf> {
        let inner = self.lock();
        let database = inner.database.as_ref().ok_or_else(closed)?;
        copy::archive(database, &inner.medium, what_for)
    }

    /// Closes the database; nothing is written any more until [`ConsensusStore::reopen`].
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.turn += 1;
        inner.database = None;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in a transaction leaves it unwritten, and the database as it was.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mine(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.lock();
        if inner.turn == self.turn {
            Ok(inner)
        } else {
            Err(io::Error::other("the store has been opened anew by others"))
        }
    }
}

impl LogStore for ConsensusStore {
    fn write(&mut self, writes: Vec<Write>) -> io::Result<()> {
        let mut inner = self.mine()?;
        if inner.database.is_none() {
            return Err(closed());
        }
        if !inner.headed {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the store belongs to no group yet; reset it first",
            ));
        }
        let only_committed = writes.iter().all(|write| matches!(write, Write::Committed(_)));
        let mut batch = Vec::with_capacity(writes.len() + 1);
        batch.extend(inner.committed.take().map(Write::Committed));
        batch.extend(writes);
        if only_committed {
            inner.committed = batch.into_iter().next_back().and_then(|write| match write {
                Write::Committed(committed) => Some(committed),
                _ => None,
            });
            return Ok(());
        }
        inner.durably(|transaction| rows::write(transaction, &batch))
    }

    fn snapshot(&mut self) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let inner = self.mine()?;
        let transaction = inner.database.as_ref().ok_or_else(closed)?.begin_read();
        let transaction = transaction.map_err(|error| rows::io_error(error.into()))?;
        rows::snapshot(&transaction).map_err(rows::io_error)
    }
}

fn fault_error(fault: Fault) -> io::Error {
    match fault {
        Fault::Refused(cause) => io::Error::new(io::ErrorKind::InvalidInput, cause),
        Fault::Redb(error) => rows::io_error(error),
    }
}

fn closed() -> io::Error {
    io::Error::other("the store is closed after a disk error; it is being opened anew")
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    // Every page is checked against its sum, so that a file that was changed outside is damage and never another log.
    builder.set_check_integrity_on_open(true);
    builder
}

impl Inner {
    /// One durable transaction. When the disk is full, once more with the reserve given up (F25), unless it turns out to
    /// have been kept.
    fn durably(&mut self, body: impl Fn(&WriteTransaction) -> Result<(), Fault>) -> io::Result<()> {
        let batch = self.batch.saturating_add(1);
        let numbered = |transaction: &WriteTransaction| {
            body(transaction)?;
            rows::number(transaction, batch)
        };
        let mut done = self.attempt(numbered);
        if let Err(error) = &done
            && is_full(error)
            && self.reserve.as_ref().is_some_and(Reserve::release)
        {
            tracing::warn!(%error, "the disk is full; the reserve of the broker's store is given up");
            let database = self.open_database().map_err(io::Error::other)?;
            let kept = rows::last_number(&database).map_err(fault_error)? == batch;
            self.database = Some(database);
            done = if kept { Ok(()) } else { self.attempt(numbered) };
        }
        if done.is_ok() {
            self.batch = batch;
            if let Some(reserve) = &self.reserve {
                reserve.refill();
            }
        }
        done
    }

    fn attempt(&mut self, body: impl Fn(&WriteTransaction) -> Result<(), Fault>) -> io::Result<()> {
        let database = self.database.as_ref().ok_or_else(closed)?;
        // redb's transactions are durable (`Durability::Immediate`) unless told otherwise.
        let done = database.begin_write().map_err(Fault::from).and_then(|transaction| {
            body(&transaction)?;
            transaction.commit().map_err(Fault::from)
        });
        if matches!(done, Err(Fault::Redb(_))) {
            self.database = None;
        }
        done.map_err(fault_error)
    }

    fn open(&mut self) -> Result<Opened, OpenError> {
        self.database = None;
        (self.headed, self.committed) = (false, None);
        let mut database = self.open_database()?;
        let opened = match self.format_of(&database)? {
            None => {
                rows::make(&database).map_err(|error| self.error(&error))?;
                Opened::default()
            }
            Some(FORMAT) => self.read(&mut database)?,
            Some(found) if found > FORMAT => return Err(self.newer(found)),
            Some(found) => {
                let older = older::read(&database, found).map_err(|error| self.damaged(error))?;
                drop(database);
                self.back_up(found)?;
                database = self.open_database()?;
                Opened { older: Some(older), ..Opened::default() }
            }
        };
        self.batch = rows::last_number(&database).map_err(|error| self.damaged(fault_error(error)))?;
        self.headed = opened.head.is_some();
        self.database = Some(database);
        Ok(opened)
    }

    fn read(&self, database: &mut Database) -> Result<Opened, OpenError> {
        let transaction = database.begin_read().map_err(|error| self.error(&error.into()))?;
        let opened = rows::read(&transaction, self.medium.mark(FILE)).map_err(|fault| match fault {
            Fault::Refused(cause) => self.damaged(cause),
            Fault::Redb(error) if matches!(error, redb::Error::Io(_)) => self.error(&error),
            Fault::Redb(error) => self.damaged(error),
        })?;
        drop(transaction);
        self.compact(database, rows::bytes(&opened.persisted));
        Ok(opened)
    }

    /// Gives back what the file has over. Costs nothing but time when it fails.
    fn compact(&self, database: &mut Database, holds: u64) {
        let length =
            self.medium.folder().and_then(|home| std::fs::metadata(home.join(FILE)).ok()).map(|meta| meta.len());
        if length.is_some_and(|length| length > COMPACT_OVER_BYTES + holds + holds / 2)
            && let Err(error) = database.compact()
        {
            tracing::warn!(%error, "the broker's store could not be compacted");
        }
    }

    fn open_database(&self) -> Result<Database, OpenError> {
        self.medium.forget_cached(FILE);
        self.medium.open(FILE, &builder()).map_err(|error| self.error(&error.into()))
    }

    fn format_of(&self, database: &Database) -> Result<Option<u64>, OpenError> {
        let transaction = database.begin_read().map_err(|error| self.error(&error.into()))?;
        rows::format(&transaction).map_err(|fault| match fault {
            Fault::Refused(cause) => self.damaged(cause),
            Fault::Redb(error) => self.error(&error),
        })
    }

    fn back_up(&self, found: u64) -> Result<(), OpenError> {
        let backup = format!("{FILE}.format-{found}.bak");
        self.medium.back_up(FILE, &backup).map_err(|error| OpenError::Io {
            path: self.path(),
            cause: format!("no backup {}: {error}", self.medium.path(&backup).display()),
        })?;
        tracing::info!(format = found, backup, "the broker's store is of an older format; it was copied");
        Ok(())
    }

    fn newer(&self, found: u64) -> OpenError {
        let backup = beside(&self.path(), &format!("format-{FORMAT}.bak"));
        OpenError::Newer { path: self.path(), found, known: FORMAT, backup: Some(backup).filter(|path| path.exists()) }
    }

    fn path(&self) -> PathBuf {
        self.medium.path(FILE)
    }

    fn damaged(&self, cause: impl ToString) -> OpenError {
        OpenError::Damaged { path: self.path(), cause: cause.to_string() }
    }

    fn error(&self, error: &redb::Error) -> OpenError {
        open_error(self.path(), error)
    }
}

fn open_error(path: PathBuf, error: &redb::Error) -> OpenError {
    let cause = error.to_string();
    match error {
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse { path },
        error if damage::is_damage(error) => OpenError::Damaged { path, cause },
        _ => OpenError::Io { path, cause },
    }
}

/// Whether the store, which is there, holds an entry or a snapshot.
///
/// # Errors
/// As [`ConsensusStore::open`], but for the format, which is not looked at.
pub(super) fn holds_entries(medium: &Medium) -> Result<bool, OpenError> {
    let look = || -> Result<bool, redb::Error> {
        let database = medium.open(FILE, &builder())?;
        let transaction = database.begin_read()?;
        rows::is_filled(&transaction)
    };
    look().map_err(|error| open_error(medium.path(FILE), &error))
}

#[cfg(test)]
mod tests;
