//! The store alone, on a folder: what it keeps, what it refuses, what it hands out.

mod disks;
mod formats;
mod size;

use std::path::Path;

use chappie_mesh::consensus::Epoch;

use super::*;

fn device(n: u8) -> NodeId {
    NodeId::from([n; 32])
}

fn head() -> Head {
    let epoch = Epoch { count: 1, id: [2; 16] };
    Head { group: Group { mesh: [1; 16].into(), epoch }, store: [3; 16], run: Incarnation::first([4; 16]) }
}

fn row(index: u64) -> (u64, Vec<u8>) {
    (index, format!("entry {index}").into_bytes())
}

fn rows(indexes: std::ops::RangeInclusive<u64>) -> Write {
    Write::Append(indexes.map(row).collect())
}

fn purge(through: u64) -> Write {
    Write::Purge { through, last: format!("purged {through}").into_bytes() }
}

fn snapshot(meta: &str, bytes: usize) -> Write {
    let data = (0..bytes).map(|n| (n % 251) as u8).collect();
    Write::Snapshot { meta: meta.into(), data }
}

fn open(home: &Path) -> Result<(ConsensusStore, Opened), OpenError> {
    ConsensusStore::open(Medium::Folder(home.to_owned()), device(1))
}

fn filled(home: &Path, writes: Vec<Write>) -> ConsensusStore {
    let (mut store, _) = open(home).unwrap();
    store.reset(head(), writes).unwrap();
    store
}

/// What the writes come to, carried out in memory.
fn model(mut state: Persisted, writes: &[Write]) -> Persisted {
    for write in writes.iter().cloned() {
        match write {
            Write::Vote(vote) => state.vote = Some(vote),
            Write::Committed(committed) => state.committed = Some(committed),
            Write::Append(rows) => {
                for (index, row) in rows {
                    state.log.retain(|(at, _)| *at != index);
                    state.log.push((index, row));
                }
                state.log.sort();
            }
            Write::TruncateFrom(index) => state.log.retain(|(at, _)| *at < index),
            Write::Purge { through, last } => {
                state.log.retain(|(at, _)| *at > through);
                state.purged = Some(last);
            }
            Write::Snapshot { meta, data } => state.snapshot = Some((meta, data)),
        }
    }
    state
}

#[test]
fn everything_is_there_after_reopening() {
    let home = tempfile::tempdir().unwrap();
    let (mut store, opened) = open(home.path()).unwrap();
    assert_eq!(opened, Opened::default());
    let first = vec![Write::Vote(b"v1".to_vec()), rows(0..=4)];
    let batches = [
        vec![Write::Committed(b"c4".to_vec())],
        vec![Write::TruncateFrom(4), rows(4..=6), Write::Vote(b"v2".to_vec())],
        vec![snapshot("m", 600_000)],
        vec![purge(4), rows(6..=8)],
    ];
    store.reset(head(), first.clone()).unwrap();
    let mut expected = model(Persisted::default(), &first);
    for batch in batches {
        expected = model(expected, &batch);
        store.write(batch).unwrap();
        assert_eq!(store.snapshot().unwrap(), expected.snapshot);
    }
    assert_eq!(store.reopen().unwrap().persisted, expected);
    drop(store);
    let (_, opened) = open(home.path()).unwrap();
    assert_eq!(opened.persisted, expected);
    assert_eq!((opened.head, opened.maker, opened.settled), (Some(head()), Some(device(1)), false));
    assert_eq!(expected.log.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [5, 6, 7, 8]);
}

#[test]
fn a_smaller_snapshot_leaves_no_piece_of_a_larger_one() {
    let home = tempfile::tempdir().unwrap();
    let mut store = filled(home.path(), vec![snapshot("large", 3 * rows::CHUNK_BYTES + 7)]);
    store.write(vec![snapshot("small", 5)]).unwrap();
    let expected = Some((b"small".to_vec(), vec![0, 1, 2, 3, 4]));
    assert_eq!(store.snapshot().unwrap(), expected);
    store.write(vec![snapshot("none", 0)]).unwrap();
    assert_eq!(store.reopen().unwrap().persisted.snapshot, Some((b"none".to_vec(), vec![])));
}

#[test]
fn a_reset_leaves_nothing_of_what_was() {
    let home = tempfile::tempdir().unwrap();
    let mut store = filled(home.path(), vec![rows(5..=9), Write::Vote(b"v".to_vec()), snapshot("m", 9), purge(7)]);
    store.settle_run().unwrap();
    let other = Head { store: [9; 16], ..head() };
    store.reset(other, vec![rows(1..=2)]).unwrap();
    let opened = store.reopen().unwrap();
    assert_eq!((opened.head, opened.settled), (Some(other), false));
    assert_eq!(opened.persisted, model(Persisted::default(), &[rows(1..=2)]));
}

#[test]
fn a_run_is_settled_once_and_the_next_one_anew() {
    let home = tempfile::tempdir().unwrap();
    let mut store = filled(home.path(), vec![]);
    store.settle_run().unwrap();
    assert!(store.reopen().unwrap().settled);
    store.set_run(head().run).unwrap();
    assert!(store.reopen().unwrap().settled, "the same run, which was settled");
    let next = head().run.next([5; 16]);
    store.set_run(next).unwrap();
    let opened = store.reopen().unwrap();
    assert_eq!((opened.head, opened.settled), (Some(Head { run: next, ..head() }), false));
}

#[test]
fn a_store_of_no_group_takes_nothing_but_a_reset() {
    let home = tempfile::tempdir().unwrap();
    let (mut store, _) = open(home.path()).unwrap();
    for refused in [
        store.write(vec![rows(1..=1)]),
        store.write(vec![Write::Committed(vec![1])]),
        store.set_run(head().run),
        store.settle_run(),
    ] {
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(store.reopen().unwrap(), Opened::default());
    store.reset(head(), vec![]).unwrap();
    store.write(vec![rows(1..=1)]).unwrap();
}

#[test]
fn rows_that_make_no_log_are_refused_and_nothing_of_their_batch_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let first = vec![rows(1..=9), purge(4)];
    let mut store = filled(home.path(), first.clone());
    for wrong in
        [rows(11..=12), rows(4..=5), Write::Append(vec![row(10), row(12)]), Write::Append(vec![row(9), row(9)])]
    {
        let error = store.write(vec![Write::Vote(b"lost".to_vec()), wrong.clone()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{wrong:?}");
    }
    assert_eq!(store.reopen().unwrap().persisted, model(Persisted::default(), &first));
    // A snapshot beyond the end of the log takes all of it along, and the log goes on after it.
    let second = vec![snapshot("m", 3), purge(20), rows(21..=22)];
    store.write(second.clone()).unwrap();
    assert_eq!(store.reopen().unwrap().persisted, model(model(Persisted::default(), &first), &second));
}

#[test]
fn whoever_opens_it_anew_shuts_the_others_out() {
    let home = tempfile::tempdir().unwrap();
    let mut store = filled(home.path(), vec![]);
    let mut engine = store.clone();
    engine.write(vec![rows(1..=1)]).unwrap();
    let opened = store.reopen().unwrap();
    let told = engine.write(vec![rows(2..=2)]).unwrap_err().to_string();
    assert!(told.contains("opened anew by others"), "{told}");
    assert!(engine.snapshot().is_err());
    assert_eq!(store.reopen().unwrap(), opened);
    let mut engine = store.clone();
    store.reset(head(), vec![]).unwrap();
    assert!(engine.write(vec![rows(1..=1)]).is_err());
    let mut engine = store.clone();
    store.close();
    assert!(engine.write(vec![rows(1..=1)]).is_err());
    assert!(open(home.path()).is_ok(), "a closed store lets go of its file");
}

#[test]
fn a_second_opening_is_refused_while_the_first_lives() {
    let home = tempfile::tempdir().unwrap();
    let (_store, _) = open(home.path()).unwrap();
    let error = open(home.path()).map(|_| ()).unwrap_err();
    assert_eq!(error, OpenError::InUse { path: home.path().join(FILE) });
    assert!(error.to_string().contains("CHAPPIE_HOME"));
}

#[test]
fn its_files_are_their_owners_only() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let store = filled(home.path(), vec![]);
    store.archive("test").unwrap();
    let files: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 3);
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn an_archive_is_a_whole_store_under_the_first_free_number() {
    let home = tempfile::tempdir().unwrap();
    let writes = vec![rows(1..=3), Write::Vote(b"v".to_vec()), snapshot("m", 700_000), purge(2)];
    let mut store = filled(home.path(), writes.clone());
    store.write(vec![Write::Committed(b"c".to_vec())]).unwrap();
    assert_eq!(store.archive("before-join").unwrap(), home.path().join("consensus.redb.before-join-1.bak"));
    store.reset(head(), vec![]).unwrap();
    let second = store.archive("before-join").unwrap();
    assert_eq!(second, home.path().join("consensus.redb.before-join-2.bak"));
    drop(store);
    std::fs::rename(home.path().join("consensus.redb.before-join-1.bak"), home.path().join(FILE)).unwrap();
    let (_, opened) = open(home.path()).unwrap();
    assert_eq!((opened.head, opened.persisted), (Some(head()), model(Persisted::default(), &writes)));
    assert!(
        std::fs::read_dir(home.path())
            .unwrap()
            .all(|file| { !file.unwrap().file_name().to_string_lossy().ends_with(".tmp") })
    );
}

#[test]
fn f15_a_copy_of_the_store_is_known_as_one_until_its_start_is_written_down() {
    let home = tempfile::tempdir().unwrap();
    drop(filled(home.path(), Vec::new()));
    assert!(!open(home.path()).unwrap().1.copied);
    let (path, backup) = (home.path().join(FILE), home.path().join("backup"));
    std::fs::copy(&path, &backup).unwrap();
    std::fs::rename(&backup, &path).unwrap();
    let (store, opened) = open(home.path()).unwrap();
    assert!(opened.copied);
    drop(store);
    let (store, opened) = open(home.path()).unwrap();
    assert!(opened.copied, "a start that was cut off changes nothing");
    store.set_run(Incarnation::first([9; 16])).unwrap();
    drop(store);
    assert!(!open(home.path()).unwrap().1.copied);
}

#[test]
fn the_head_on_disk_has_these_bytes() {
    let bytes = postcard::to_stdvec(&head()).unwrap();
    let expected = [&[1; 16][..], &[1], &[2; 16], &[3; 16], &[1], &[4; 16], &[0; 16]].concat();
    assert_eq!(bytes, expected);
}
