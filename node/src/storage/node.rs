//! `node.redb`: what the session node owns — sessions, history, the operation journal, late results and inputs — and
//! what a device must know of its mesh when it starts: its copy of the roster, its last start, other devices.
//!
//! One table of rows under composite keys, one writer: a thread (failure rule F24), in a simulation a task. Changes are data ([`Change`]), so a
//! commit can be repeated after the database was reopened. A durable write returns after fsync; several that wait
//! together share one (group commit). A lazy write rides on the next durable one, or is committed within
//! [`LAZY_MAX`]; it is for what may be lost with the machine: reading tools' entries and acknowledgements.

mod key;
mod writer;

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, RwLock,
        mpsc::{SyncSender, sync_channel},
    },
    task::{Context, Poll},
    time::Duration,
};

use chappie_mesh::runtime;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata as _, TableDefinition};
use tokio::sync::{mpsc, oneshot};

pub use key::Key;

use super::{damage, medium::Medium};

/// The store's name in the home folder.
pub(super) const FILE: &str = "node.redb";
/// The table everything is in.
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
/// Facts about the file itself.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The format this program writes. 1: first.
const FORMAT: u64 = 1;
/// Page cache of the database. History pages are read in order and small; 4 MiB keeps a node's idle memory low.
const CACHE_BYTES: usize = 4 << 20;
/// Jobs that may wait for the writer. Each mutating call has at most three under way; 4,096 is far beyond the number of
/// calls the queues admit, so a full queue means a stuck disk and is answered as an error.
const QUEUE_MAX: usize = 4_096;
/// The longest a lazy write stays uncommitted.
pub const LAZY_MAX: Duration = Duration::from_millis(200);

/// One row to set or to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    key: Key,
    value: Option<Vec<u8>>,
}

impl Change {
    /// Sets `key` to the JSON of `value`.
    ///
    /// # Panics
    /// Never for our row types: all of them have string keys and finite numbers.
    pub fn set<T: serde::Serialize>(key: Key, value: &T) -> Self {
        let bytes = serde_json::to_vec(value).unwrap_or_else(|error| unreachable!("row types are JSON: {error}"));
        Self { key, value: Some(bytes) }
    }

    /// Removes `key`.
    #[must_use]
    pub fn remove(key: Key) -> Self {
        Self { key, value: None }
    }
}

/// Why a write is not known to be on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The database could not be opened at start.
    #[error("cannot open {path}: {cause}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system or redb said.
        cause: String,
    },
    /// Another process has it.
    #[error(
        "{path} is in use: is another chappie running with the same CHAPPIE_HOME? Stop it, or give this one its own"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Its contents cannot be true.
    #[error("{path} is damaged: {cause}; {advice}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What redb said.
        cause: String,
        /// What to do now, and what is lost by it.
        advice: String,
    },
    /// The file was written by a newer program.
    #[error(
        "{path} has format {found}, this program knows up to {known}; start the newer chappie again, or restore a backup of the file made before the upgrade{backup}"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format known here.
        known: u64,
        /// `: PATH` when a backup stands beside the file.
        backup: String,
    },
    /// The disk refused, twice. The write does not count; as with every failed commit (F12), it may stand after a restart
    /// all the same.
    #[error("the node's store could not be written ({0}); free some space or mend the disk, then try again")]
    Write(String),
    /// A read failed.
    #[error("the node's store could not be read: {0}")]
    Read(String),
    /// More writes wait than the store takes.
    #[error("the node's store is {QUEUE_MAX} writes behind; the disk is too slow or stuck, try again later")]
    Busy,
    /// The writer has stopped, because the node is stopping.
    #[error("the node is stopping")]
    Stopped,
}

type Done = oneshot::Sender<Result<(), StoreError>>;

/// A write in its place; resolves once it is on disk. Dropping it does not take the write back.
#[must_use = "a write that nobody waits for may fail unnoticed"]
pub struct Written(Result<oneshot::Receiver<Result<(), StoreError>>, StoreError>);

impl Future for Written {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Err(error) => Poll::Ready(Err(error.clone())),
            Ok(answer) => Pin::new(answer).poll(context).map(|done| done.unwrap_or(Err(StoreError::Stopped))),
        }
    }
}

/// Work for the writer.
enum Job {
    /// Commit now, then answer.
    Durable(Vec<Change>, Done),
    /// Commit with the next durable write or within [`LAZY_MAX`].
    Lazy(Vec<Change>),
    /// Commit everything lazy, then answer.
    Flush(Done),
    /// Commit everything, then end the writer.
    Stop(Done),
}

type Shared = Arc<RwLock<Option<Arc<Database>>>>;

/// The way to the writer.
#[derive(Clone)]
enum Jobs {
    Thread(SyncSender<Job>),
    Task(mpsc::Sender<Job>),
}

impl Jobs {
    fn send(&self, job: Job) -> Result<(), StoreError> {
        match self {
            Self::Thread(jobs) => jobs.try_send(job).map_err(|error| match error {
                std::sync::mpsc::TrySendError::Full(_) => StoreError::Busy,
                std::sync::mpsc::TrySendError::Disconnected(_) => StoreError::Stopped,
            }),
            Self::Task(jobs) => jobs.try_send(job).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => StoreError::Busy,
                mpsc::error::TrySendError::Closed(_) => StoreError::Stopped,
            }),
        }
    }
}

/// Handle to the store; cheap to clone.
#[derive(Clone)]
pub struct NodeStore {
    jobs: Jobs,
    database: Shared,
}

impl NodeStore {
    /// Opens `<home>/node.redb` and starts its writer.
    ///
    /// # Errors
    /// [`StoreError::Open`], [`StoreError::InUse`], [`StoreError::Damaged`] or [`StoreError::Newer`].
    pub fn open(home: &Path) -> Result<Self, StoreError> {
        Self::open_on(&Medium::Folder(home.to_owned()))
    }

    /// Opens `node.redb` and starts its writer: on simulated disks, and in a simulation, as a task of this runtime, which
    /// commits what was asked for since its last turn in one transaction, as the thread does.
    ///
    /// # Errors
    /// As [`NodeStore::open`].
    ///
    /// # Panics
    /// On simulated disks outside a runtime.
    pub fn open_on(medium: &Medium) -> Result<Self, StoreError> {
        let database = open_database(medium)?;
        let shared: Shared = Arc::new(RwLock::new(Some(Arc::new(database))));
        let simulated = matches!(medium, Medium::Simulated(_)) || runtime::is_simulated();
        let writer = writer::Writer::new(medium.clone(), Arc::clone(&shared), simulated);
        if simulated {
            let (jobs, queue) = mpsc::channel(QUEUE_MAX);
            runtime::spawn(writer.serve(queue));
            return Ok(Self { jobs: Jobs::Task(jobs), database: shared });
        }
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("node-store".into())
            .spawn(move || writer.run(&queue))
            .map_err(|error| StoreError::Open { path: medium.path(FILE), cause: error.to_string() })?;
        Ok(Self { jobs: Jobs::Thread(jobs), database: shared })
    }

    /// Writes `changes` and resolves once they are on disk. They take their place in the order of writes now, not when
    /// the future is first polled; dropping the future does not take them back.
    ///
    /// # Errors
    /// [`StoreError::Write`]: none of them is kept. [`StoreError::Busy`], [`StoreError::Stopped`]: not attempted.
    pub fn durable(&self, changes: Vec<Change>) -> Written {
        self.ask(|done| Job::Durable(changes, done))
    }

    /// Writes `changes` soon. What is lost when the machine or the process dies within [`LAZY_MAX`] must be something
    /// that may be lost.
    pub fn lazy(&self, changes: Vec<Change>) {
        if let Err(error) = self.jobs.send(Job::Lazy(changes)) {
            tracing::warn!(%error, "a lazy write was dropped: the store is behind or stopping");
        }
    }

    /// Returns once every earlier write, lazy ones too, is on disk and visible to reads.
    ///
    /// # Errors
    /// As [`NodeStore::durable`].
    pub fn flush(&self) -> Written {
        self.ask(Job::Flush)
    }

    /// Commits everything and ends the writer.
    ///
    /// # Errors
    /// As [`NodeStore::durable`].
    pub fn stop(&self) -> Written {
        self.ask(Job::Stop)
    }

    fn ask(&self, job: impl FnOnce(Done) -> Job) -> Written {
        let (done, answer) = oneshot::channel();
        Written(self.jobs.send(job(done)).map(|()| answer))
    }

    /// The committed value of `key`.
    ///
    /// # Errors
    /// [`StoreError::Read`], also for a row that is not the JSON of `T`.
    pub fn read<T: serde::de::DeserializeOwned>(&self, key: &Key) -> Result<Option<T>, StoreError> {
        self.with(|table| {
            let found = table.get(key.as_bytes()).map_err(read_error)?;
            found.map(|value| serde_json::from_slice(value.value()).map_err(read_error)).transpose()
        })
    }

    /// Visits the committed rows between two keys (`from` included, `to` not), forwards or backwards, until `visit` says
    /// `false`. A row that is not the JSON of `T` ends the scan with an error that names it.
    ///
    /// # Errors
    /// [`StoreError::Read`].
    pub fn scan<T: serde::de::DeserializeOwned>(
        &self,
        from: &Key,
        to: &Key,
        backwards: bool,
        mut visit: impl FnMut(&Key, T) -> bool,
    ) -> Result<(), StoreError> {
        self.with(|table| {
            let mut rows = table.range(from.as_bytes()..to.as_bytes()).map_err(read_error)?;
            while let Some(row) = if backwards { rows.next_back() } else { rows.next() } {
                let (key, value) = row.map_err(read_error)?;
                let key = Key::from_bytes(key.value());
                let value = serde_json::from_slice(value.value())
                    .map_err(|error| StoreError::Read(format!("row {key:?} is damaged: {error}")))?;
                if !visit(&key, value) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn with<T>(
        &self,
        read: impl FnOnce(&redb::ReadOnlyTable<&'static [u8], &'static [u8]>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let database = self.database.read().ok().and_then(|guard| guard.clone());
        let Some(database) = database else {
            return Err(StoreError::Read("it is being reopened after a disk error; try again".into()));
        };
        let transaction = database.begin_read().map_err(read_error)?;
        let table = transaction.open_table(ROWS).map_err(read_error)?;
        read(&table)
    }
}

fn read_error(error: impl std::fmt::Display) -> StoreError {
    StoreError::Read(error.to_string())
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Opens or makes the database and checks its format.
fn open_database(medium: &Medium) -> Result<Database, StoreError> {
    let path = medium.path(FILE);
    let fail = |error| open_error(&path, &error);
    let database = medium.open(FILE, &builder()).map_err(|error| fail(error.into()))?;
    let found = settle_format(&database).map_err(fail)?;
    if found > FORMAT {
        let backup = path.with_extension(format!("redb.format-{FORMAT}.bak"));
        let backup = if backup.exists() { format!(": {}", backup.display()) } else { String::new() };
        return Err(StoreError::Newer { path, found, known: FORMAT, backup });
    }
    Ok(database)
}

/// The format of the database, which a new one is given along with its tables; one of a newer format is left as it is.
fn settle_format(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let found = {
        let mut meta = transaction.open_table(META)?;
        transaction.open_table(ROWS)?;
        let found = meta.get("format")?.map(|value| value.value());
        if found.is_none() {
            meta.insert("format", FORMAT)?;
        }
        found.unwrap_or(FORMAT)
    };
    if found <= FORMAT {
        transaction.commit()?;
    }
    Ok(found)
}

/// What a store shows of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It holds no row.
    None,
    /// It holds rows.
    Alone,
    /// It holds rows, and among them that this device has others in its mesh ([`Key::mesh`]).
    Member,
}

/// What the store, which is there, shows of its use.
///
/// # Errors
/// As [`NodeStore::open`], but for the format, which is not looked at.
pub(super) fn usage(medium: &Medium) -> Result<Use, StoreError> {
    let look = || -> Result<Use, redb::Error> {
        let database = medium.open(FILE, &builder())?;
        let rows = match database.begin_read()?.open_table(ROWS) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Use::None),
            rows => rows?,
        };
        let others = rows.get(Key::mesh().as_bytes())?.is_some() || rows.get(Key::membership().as_bytes())?.is_some();
        Ok(match (rows.is_empty()?, others) {
            (true, _) => Use::None,
            (false, false) => Use::Alone,
            (false, true) => Use::Member,
        })
    };
    look().map_err(|error| open_error(&medium.path(FILE), &error))
}

fn open_error(path: &Path, error: &redb::Error) -> StoreError {
    let (path, cause) = (path.to_owned(), error.to_string());
    match error {
        redb::Error::DatabaseAlreadyOpen => StoreError::InUse { path },
        error if damage::is_damage(error) => {
            let advice = damage::advice(&path, damage::LOST_NODE);
            StoreError::Damaged { path, cause, advice }
        }
        _ => StoreError::Open { path, cause },
    }
}

#[cfg(test)]
mod tests;
