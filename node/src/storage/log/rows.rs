//! Format 4, row by row, inside transactions that others begin and commit.

use std::io;

use chappie_mesh::{
    Incarnation, NodeId,
    consensus::{Persisted, Write},
};
use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable, ReadableTableMetadata as _, Table,
    TableDefinition, TableError, WriteTransaction,
};

use super::{FORMAT, Head, Opened, older};
use crate::storage::medium::{Mark, is_copy};

/// Numbers about the file: `format`, `snapshot_bytes`, `purged_through`. The table is that of every format.
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Rows of which there is one each.
pub(super) const SINGLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("single");
/// Entries, by index.
pub(super) const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The snapshot in pieces of [`CHUNK_BYTES`], so that it can be streamed and no row needs one large allocation.
pub(super) const SNAPSHOT: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("snapshot");

/// Bytes of one piece of a snapshot. With redb's header of a page it just fits into 256 KiB; pages are powers of two.
pub(super) const CHUNK_BYTES: usize = (256 << 10) - 64;

const FORMAT_ROW: &str = "format";
const SNAPSHOT_BYTES: &str = "snapshot_bytes";
const PURGED_THROUGH: &str = "purged_through";

const BATCH: &str = "batch";
const HEAD: &str = "head";
const MAKER: &str = "maker";
const MARK: &str = "mark";
const SETTLED: &str = "settled";
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const SNAPSHOT_META: &str = "snapshot";

/// A snapshot: what it is of, and its bytes.
type Snapshot = (Vec<u8>, Vec<u8>);

/// Why a transaction is given up.
#[derive(Debug)]
pub(super) enum Fault {
    /// The rows, or those that are asked for, cannot be true; in words.
    Refused(String),
    /// The disk or the database.
    Redb(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

fn refused<T>(cause: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Refused(cause.into()))
}

/// What the system said, with its kind.
pub(super) fn io_error(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(cause) => cause,
        other => io::Error::other(other),
    }
}

/// The format; `None` in a file that is new.
pub(super) fn format(transaction: &ReadTransaction) -> Result<Option<u64>, Fault> {
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(TableError::Storage(error)) => return Err(error.into()),
        Err(error) => return refused(error.to_string()),
    };
    let format = meta.get(FORMAT_ROW)?.map(|format| format.value());
    format.map_or_else(|| refused("it has no format number"), |format| Ok(Some(format)))
}

/// Makes the tables of a new store.
pub(super) fn make(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert(FORMAT_ROW, FORMAT)?;
    transaction.open_table(SINGLE)?;
    transaction.open_table(LOG)?;
    transaction.open_table(SNAPSHOT)?;
    transaction.commit()?;
    Ok(())
}

/// Replaces everything.
pub(super) fn replace(
    transaction: &WriteTransaction,
    head: &Head,
    maker: &NodeId,
    mark: Option<Mark>,
    writes: &[Write],
) -> Result<(), Fault> {
    transaction.delete_table(older::PLAIN_BINDINGS)?;
    transaction.delete_table(META)?;
    transaction.delete_table(SINGLE)?;
    transaction.delete_table(LOG)?;
    transaction.delete_table(SNAPSHOT)?;
    transaction.open_table(META)?.insert(FORMAT_ROW, FORMAT)?;
    transaction.open_table(LOG)?;
    transaction.open_table(SNAPSHOT)?;
    {
        let mut single = transaction.open_table(SINGLE)?;
        single.insert(HEAD, encode(head)?.as_slice())?;
        single.insert(MAKER, maker.as_bytes().as_slice())?;
        keep_mark(&mut single, mark)?;
    }
    write(transaction, writes)
}

fn keep_mark(single: &mut Table<'_, &'static str, &'static [u8]>, mark: Option<Mark>) -> Result<(), Fault> {
    match mark {
        Some(mark) => drop(single.insert(MARK, mark.as_slice())?),
        None => drop(single.remove(MARK)?),
    }
    Ok(())
}

/// Changes the run of the head, which is not settled then, and says which file the store is in.
pub(super) fn set_run(transaction: &WriteTransaction, run: Incarnation, mark: Option<Mark>) -> Result<(), Fault> {
    let mut single = transaction.open_table(SINGLE)?;
    let Some(head) = single.get(HEAD)?.map(|row| decode_head(row.value())).transpose()? else {
        return refused("the store belongs to no group yet; reset it first");
    };
    if head.run != run {
        single.insert(HEAD, encode(&Head { run, ..head })?.as_slice())?;
        single.remove(SETTLED)?;
    }
    keep_mark(&mut single, mark)
}

/// Says that both databases have the run of the head.
pub(super) fn settle(transaction: &WriteTransaction) -> Result<(), Fault> {
    let mut single = transaction.open_table(SINGLE)?;
    if single.get(HEAD)?.is_none() {
        return refused("the store belongs to no group yet; reset it first");
    }
    single.insert(SETTLED, [].as_slice())?;
    Ok(())
}

/// Numbers this transaction, so that it can be told later whether it was kept.
pub(super) fn number(transaction: &WriteTransaction, batch: u64) -> Result<(), Fault> {
    transaction.open_table(SINGLE)?.insert(BATCH, batch.to_be_bytes().as_slice())?;
    Ok(())
}

/// The number of the last transaction that was kept; 0 when none has one.
pub(super) fn last_number(database: &Database) -> Result<u64, Fault> {
    let transaction = database.begin_read()?;
    let single = match transaction.open_table(SINGLE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(0),
        single => single?,
    };
    let Some(row) = single.get(BATCH)? else { return Ok(0) };
    let bytes = row.value().try_into().map_err(|_| Fault::Refused("the number of its last change is none".into()))?;
    Ok(u64::from_be_bytes(bytes))
}

/// The engine's changes, in their order.
pub(super) fn write(transaction: &WriteTransaction, writes: &[Write]) -> Result<(), Fault> {
    let mut meta = transaction.open_table(META)?;
    let mut single = transaction.open_table(SINGLE)?;
    let mut log = transaction.open_table(LOG)?;
    for write in writes {
        match write {
            Write::Vote(vote) => drop(single.insert(VOTE, vote.as_slice())?),
            Write::Committed(committed) => drop(single.insert(COMMITTED, committed.as_slice())?),
            Write::Append(rows) => {
                let purged = meta.get(PURGED_THROUGH)?.map(|index| index.value());
                append(&mut log, purged, rows)?;
            }
            Write::TruncateFrom(index) => log.retain_in(*index.., |_, _| false)?,
            Write::Purge { through, last } => {
                log.retain_in(..=*through, |_, _| false)?;
                single.insert(PURGED, last.as_slice())?;
                meta.insert(PURGED_THROUGH, through)?;
            }
            Write::Snapshot { meta: what, data } => {
                let mut chunks = 0_u32;
                let mut snapshot = transaction.open_table(SNAPSHOT)?;
                for chunk in data.chunks(CHUNK_BYTES) {
                    snapshot.insert(chunks, chunk)?;
                    chunks += 1;
                }
                snapshot.retain_in(chunks.., |_, _| false)?;
                single.insert(SNAPSHOT_META, what.as_slice())?;
                meta.insert(SNAPSHOT_BYTES, data.len() as u64)?;
            }
        }
    }
    Ok(())
}

/// Adds rows that stand one after the other, to a log that they continue or whose end they replace.
fn append(log: &mut redb::Table<'_, u64, &[u8]>, purged: Option<u64>, rows: &[(u64, Vec<u8>)]) -> Result<(), Fault> {
    let Some((first, _)) = rows.first() else { return Ok(()) };
    let last = log.last()?.map(|(index, _)| index.value()).or(purged);
    if last.is_some_and(|last| *first > last.saturating_add(1)) || purged.is_some_and(|purged| *first <= purged) {
        return refused(format!(
            "entry {first} does not continue a log that was dropped through {purged:?} and ends at {last:?}"
        ));
    }
    for ((index, row), expected) in rows.iter().zip(*first..) {
        if *index != expected {
            return refused(format!("entry {index} stands where {expected} is expected"));
        }
        log.insert(index, row.as_slice())?;
    }
    Ok(())
}

/// Everything, from the file that is marked as `mark` now.
pub(super) fn read(transaction: &ReadTransaction, mark: Option<Mark>) -> Result<Opened, Fault> {
    let single = transaction.open_table(SINGLE)?;
    let row = |name: &str| -> Result<Option<Vec<u8>>, Fault> { Ok(single.get(name)?.map(|row| row.value().to_vec())) };
    let head = row(HEAD)?.map(|bytes| decode_head(&bytes)).transpose()?;
    let maker = row(MAKER)?.map(|bytes| {
        let id: Result<[u8; 32], _> = bytes.as_slice().try_into();
        id.map(NodeId::from).map_err(|_| Fault::Refused("the id of its device is no id".into()))
    });
    let log = read_log(transaction)?;
    let snapshot = snapshot_row(transaction, &single)?;
    let (vote, committed, purged) = (row(VOTE)?, row(COMMITTED)?, row(PURGED)?);
    let persisted = Persisted { vote, committed, purged, snapshot, log };
    if head.is_none() && persisted != Persisted::default() {
        return refused("it has a log and does not say whose");
    }
    let kept = row(MARK)?.and_then(|bytes| Mark::try_from(bytes.as_slice()).ok());
    let (settled, copied) = (row(SETTLED)?.is_some(), is_copy(kept, mark));
    Ok(Opened { head, maker: maker.transpose()?, settled, copied, persisted, older: None })
}

fn read_log(transaction: &ReadTransaction) -> Result<Vec<(u64, Vec<u8>)>, Fault> {
    let purged = transaction.open_table(META)?.get(PURGED_THROUGH)?.map(|index| index.value());
    let mut expected = purged.map(|index| index.saturating_add(1));
    let mut log = Vec::new();
    for row in transaction.open_table(LOG)?.iter()? {
        let (index, bytes) = row?;
        let index = index.value();
        if let Some(expected) = expected
            && expected != index
        {
            return refused(format!("entry {expected} of the log is missing, {index} follows"));
        }
        expected = Some(index.saturating_add(1));
        log.push((index, bytes.value().to_vec()));
    }
    Ok(log)
}

/// The snapshot alone.
pub(super) fn snapshot(transaction: &ReadTransaction) -> Result<Option<Snapshot>, redb::Error> {
    let single = transaction.open_table(SINGLE)?;
    snapshot_row(transaction, &single).map_err(|fault| match fault {
        Fault::Refused(cause) => redb::Error::Corrupted(cause),
        Fault::Redb(error) => error,
    })
}

fn snapshot_row(
    transaction: &ReadTransaction,
    single: &redb::ReadOnlyTable<&'static str, &'static [u8]>,
) -> Result<Option<Snapshot>, Fault> {
    let Some(what) = single.get(SNAPSHOT_META)?.map(|row| row.value().to_vec()) else { return Ok(None) };
    let length = transaction.open_table(META)?.get(SNAPSHOT_BYTES)?.map(|length| length.value());
    let mut data = Vec::with_capacity(length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0));
    for row in transaction.open_table(SNAPSHOT)?.iter()? {
        data.extend_from_slice(row?.1.value());
    }
    if Some(data.len() as u64) != length {
        return refused(format!("the snapshot has {} bytes where {length:?} were written", data.len()));
    }
    Ok(Some((what, data)))
}

/// Whether there is an entry or a snapshot, in whatever format.
pub(super) fn is_filled(transaction: &ReadTransaction) -> Result<bool, redb::Error> {
    fn filled<K: redb::Key + 'static, V: redb::Value + 'static>(
        table: Result<redb::ReadOnlyTable<K, V>, TableError>,
    ) -> Result<bool, redb::Error> {
        match table {
            Ok(table) => Ok(!table.is_empty()?),
            Err(TableError::TableDoesNotExist(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
    Ok(filled(transaction.open_table(LOG))? || filled(transaction.open_table(SNAPSHOT))?)
}

/// Bytes of all rows.
pub(super) fn bytes(persisted: &Persisted) -> u64 {
    let log: usize = persisted.log.iter().map(|(_, row)| row.len()).sum();
    let snapshot = persisted.snapshot.as_ref().map_or(0, |(what, data)| what.len() + data.len());
    (log + snapshot) as u64
}

fn encode(head: &Head) -> Result<Vec<u8>, Fault> {
    postcard::to_stdvec(head).map_err(|error| Fault::Refused(format!("its head has no bytes: {error}")))
}

fn decode_head(bytes: &[u8]) -> Result<Head, Fault> {
    postcard::from_bytes(bytes).map_err(|error| Fault::Refused(format!("its head cannot be read: {error}")))
}
