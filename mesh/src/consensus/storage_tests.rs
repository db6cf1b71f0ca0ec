//! Log and machine against the engine's own suite for stores, on the writer's thread and without it; and what the suite does
//! not ask.

use std::collections::BTreeMap;

use openraft::{
    EntryPayload, RaftLogReader as _, StorageError,
    storage::{IOFlushed, RaftLogStorage as _},
    testing::log::{StoreBuilder, Suite},
};

use super::{
    fixture::{Disk, Tally, lab, node},
    log::Log,
    machine::Applier,
    types::{Command, Entry, LogId, Place, Term, Types},
    writer::Writer,
    *,
};

impl From<u64> for MemberId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self { node: node(0) }
    }
}

struct Empty;

fn open(disk: &Disk) -> (Log, Applier) {
    let persisted = disk.persisted();
    let writer = Writer::start(disk.open()).unwrap();
    let log = Log::open(&persisted, writer.clone()).unwrap();
    (log, Applier::open(Box::new(Tally::default()), None, writer).unwrap().0)
}

impl StoreBuilder<Types, Log, Applier> for Empty {
    async fn build(&self) -> Result<((), Log, Applier), StorageError<Types>> {
        let (log, applier) = open(&Disk::default());
        Ok(((), log, applier))
    }
}

#[test]
fn the_engines_suite_passes_in_a_simulation() {
    lab(1, async { Suite::test_all(Empty).await.unwrap() });
}

#[tokio::test]
async fn the_engines_suite_passes_with_the_writers_thread() {
    Suite::test_all(Empty).await.unwrap();
}

fn entry(index: u64, bytes: usize) -> Entry {
    let payload = EntryPayload::Normal(Command(vec![7; bytes].into()));
    Entry { log_id: LogId::new(Term::new(1), index), payload }
}

#[tokio::test]
async fn what_one_message_takes_is_bounded_by_bytes_and_is_never_nothing() {
    let disk = Disk::default();
    let (mut log, _) = open(&disk);
    let entries = (1..=8).map(|index| entry(index, 1 << 20)).chain([entry(9, 9 << 20)]);
    log.append(entries, IOFlushed::noop()).await.unwrap();
    let mut read = async |start, end| -> Vec<u64> {
        let entries = log.limited_get_log_entries(start, end).await.unwrap();
        entries.iter().map(|entry| entry.log_id.index).collect()
    };
    assert_eq!(read(1, 10).await, [1], "two of them are more than two megabytes");
    assert_eq!(read(9, 10).await, [9], "one is taken whatever it weighs");
    assert_eq!(read(4, 5).await, [4]);
    assert_eq!(log.try_get_log_entries(1..10).await.unwrap().len(), 9);
}

#[tokio::test]
async fn the_log_is_on_disk_as_it_is_in_memory() {
    let disk = Disk::default();
    let (mut log, _) = open(&disk);
    log.append((1..=9).map(|index| entry(index, 10)), IOFlushed::noop()).await.unwrap();
    log.truncate_after(Some(LogId::new(Term::new(1), 7))).await.unwrap();
    log.append([entry(8, 20)], IOFlushed::noop()).await.unwrap();
    log.purge(LogId::new(Term::new(1), 3)).await.unwrap();
    log.save_committed(Some(LogId::new(Term::new(1), 5))).await.unwrap();
    // Waits for all before it.
    log.save_vote(&types::Vote::new(1, MemberId(1))).await.unwrap();
    let before = log.bytes();
    let entries = log.try_get_log_entries(..).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
    let again = Disk::default();
    again.become_like(&disk);
    let (mut log, _) = open(&again);
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), entries);
    assert_eq!(log.bytes(), before);
    assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, Some(LogId::new(Term::new(1), 3)));
    assert_eq!(log.read_committed().await.unwrap(), Some(LogId::new(Term::new(1), 5)));
}

#[test]
fn members_of_one_device_differ_by_their_store() {
    let ids: BTreeMap<MemberId, (u8, u8)> =
        (0..20).flat_map(|n| (0..20).map(move |store| (MemberId::of(&node(n), &[store; 16]), (n, store)))).collect();
    assert_eq!(ids.len(), 400);
}
