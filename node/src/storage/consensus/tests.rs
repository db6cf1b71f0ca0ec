//! The store alone: what it keeps, what it refuses, what it migrates.

use super::{
    faulty::{Fault, FaultyDisk, store_path},
    *,
};

fn no_upgrade(older: Older) -> Vec<u8> {
    unreachable!("nothing older was made: {older:?}")
}

fn list_upgrade(older: Older) -> Vec<u8> {
    let Older::Format1 { bindings } = older;
    bindings.iter().map(|(chat, session)| format!("{chat}={session};")).collect::<String>().into_bytes()
}

fn row(index: u64) -> (u64, Vec<u8>) {
    (index, format!("entry {index}").into_bytes())
}

/// A store as the first format wrote it.
pub(crate) fn make_format_1(path: &Path, bindings: &[(&str, &str)]) {
    let database = Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", 1).unwrap();
    for (chat, session) in bindings {
        transaction.open_table(PLAIN_BINDINGS).unwrap().insert(chat, session).unwrap();
    }
    transaction.commit().unwrap();
}

fn set_format(path: &Path, format: u64) {
    let database = Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", format).unwrap();
    transaction.commit().unwrap();
}

#[test]
fn entries_and_snapshot_are_there_after_reopening() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (mut store, contents) = ConsensusStore::open(&path, no_upgrade).unwrap();
    assert_eq!(contents, Contents::default());
    store.append(&[row(1), row(2), row(3)]).unwrap();
    store.snapshot(2, b"up to two").unwrap();
    store.append(&[row(4)]).unwrap();
    drop(store);
    let (_, contents) = ConsensusStore::open(&path, no_upgrade).unwrap();
    assert_eq!(contents, Contents { snapshot: Some((2, b"up to two".to_vec())), tail: vec![row(3), row(4)] });
}

#[test]
fn a_smaller_snapshot_leaves_no_piece_of_a_larger_one() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (mut store, _) = ConsensusStore::open(&path, no_upgrade).unwrap();
    store.append(&[row(1), row(2)]).unwrap();
    let large: Vec<u8> = (0..3 * CHUNK_BYTES + 7).map(|n| (n % 251) as u8).collect();
    store.snapshot(1, &large).unwrap();
    assert_eq!(store.reopen().unwrap().snapshot, Some((1, large)));
    store.snapshot(2, b"small").unwrap();
    assert_eq!(store.reopen().unwrap(), Contents { snapshot: Some((2, b"small".to_vec())), tail: vec![] });
}

#[test]
fn a_second_opening_is_refused_while_the_first_lives() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (_store, _) = ConsensusStore::open(&path, no_upgrade).unwrap();
    let error = ConsensusStore::open(&path, no_upgrade).map(|_| ()).unwrap_err();
    assert_eq!(error, OpenError::InUse { path });
    assert!(error.to_string().contains("CHAPPIE_HOME"));
}

#[test]
fn the_file_is_its_owners_only() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (_store, _) = ConsensusStore::open(&path, no_upgrade).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_newer_format_is_refused_unchanged_and_the_backup_named_when_there_is_one() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (mut store, _) = ConsensusStore::open(&path, no_upgrade).unwrap();
    store.append(&[row(1)]).unwrap();
    drop(store);
    set_format(&path, FORMAT + 1);
    let error = ConsensusStore::open(&path, no_upgrade).map(|_| ()).unwrap_err();
    assert_eq!(error, OpenError::Newer { path: path.clone(), found: 4, known: 3, backup: None });

    let backup = beside(&path, "format-3.bak");
    std::fs::write(&backup, "what the newer program kept").unwrap();
    let told = ConsensusStore::open(&path, no_upgrade).map(|_| ()).unwrap_err().to_string();
    assert!(told.contains("format 4") && told.contains("up to 3") && told.contains("format-3.bak"), "{told}");

    set_format(&path, FORMAT);
    assert_eq!(ConsensusStore::open(&path, no_upgrade).unwrap().1.tail, vec![row(1)]);
}

#[test]
fn format_1_is_backed_up_and_migrated_once() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    make_format_1(&path, &[("chat-b", "S2"), ("chat-a", "S1")]);
    let before = std::fs::read(&path).unwrap();
    let (mut store, contents) = ConsensusStore::open(&path, list_upgrade).unwrap();
    assert_eq!(contents, Contents { snapshot: Some((0, b"chat-a=S1;chat-b=S2;".to_vec())), tail: vec![] });
    store.append(&[row(1)]).unwrap();
    drop(store);

    let backup = home.path().join("consensus.redb.format-1.bak");
    assert_eq!(std::fs::read(&backup).unwrap().len(), before.len());
    let kept = read_plain_bindings(&Database::open(&backup).unwrap()).unwrap();
    assert_eq!(kept, [("chat-a".into(), "S1".into()), ("chat-b".into(), "S2".into())]);
    assert_eq!(ConsensusStore::open(&path, no_upgrade).unwrap().1.tail, vec![row(1)]);
}

#[test]
fn format_2_is_backed_up_and_keeps_its_rows() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (mut store, _) = ConsensusStore::open(&path, no_upgrade).unwrap();
    store.append(&[row(1), row(2)]).unwrap();
    store.snapshot(1, b"one").unwrap();
    drop(store);
    set_format(&path, 2);
    let kept = Contents { snapshot: Some((1, b"one".to_vec())), tail: vec![row(2)] };
    let (mut store, contents) = ConsensusStore::open(&path, no_upgrade).unwrap();
    assert_eq!(contents, kept);
    store.append(&[row(3)]).unwrap();
    drop(store);
    let backup = home.path().join("consensus.redb.format-2.bak");
    assert_eq!(ConsensusStore::open(&backup, no_upgrade).unwrap().1, kept);
}

#[test]
fn a_migration_whose_backup_fails_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    make_format_1(&path, &[("a", "S")]);
    // A folder stands where the backup would go.
    std::fs::create_dir_all(home.path().join("consensus.redb.format-1.bak/x")).unwrap();
    let told = ConsensusStore::open(&path, list_upgrade).map(|_| ()).unwrap_err().to_string();
    assert!(told.contains("no backup"), "{told}");
    assert_eq!(read_plain_bindings(&Database::open(&path).unwrap()).unwrap().len(), 1);
}

#[test]
fn a_hole_in_the_log_is_damage_not_a_shorter_log() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    let (mut store, _) = ConsensusStore::open(&path, no_upgrade).unwrap();
    store.append(&[row(1), row(3)]).unwrap();
    let told = store.reopen().unwrap_err().to_string();
    assert!(told.contains("entry 2 of the log is missing") && told.contains("consensus.redb"), "{told}");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = store_path(home.path());
    std::fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert!(ConsensusStore::open(&path, no_upgrade).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 100_000]);
}

#[test]
fn a_copy_is_a_whole_store_and_never_overwrites() {
    let home = tempfile::tempdir().unwrap();
    let (mut store, _) = ConsensusStore::open(&store_path(home.path()), no_upgrade).unwrap();
    store.append(&[row(1), row(2)]).unwrap();
    store.snapshot(1, b"one").unwrap();
    let target = home.path().join("copy");
    store.copy_to(&target).unwrap();
    assert_eq!(store.copy_to(&target).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let (_, copied) = ConsensusStore::open(&target, no_upgrade).unwrap();
    assert_eq!(copied, Contents { snapshot: Some((1, b"one".to_vec())), tail: vec![row(2)] });
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2);
}

#[test]
fn f25_a_full_disk_says_not_written_and_the_store_works_again_after_reopening() {
    let disk = FaultyDisk::default();
    let (mut store, _) = disk.open(no_upgrade).unwrap();
    store.append(&[row(1)]).unwrap();
    disk.fail(Fault::Full);
    assert!(store.append(&[(2, vec![7; 4 << 20])]).is_err());
    assert_eq!(store.append(&[row(2)]), Err(WriteError::NotWritten("the store is closed".into())));
    disk.mend();
    assert_eq!(store.reopen().unwrap().tail, vec![row(1)]);
    store.append(&[row(2)]).unwrap();
    assert_eq!(disk.after_power_cut().open(no_upgrade).unwrap().1.tail, vec![row(1), row(2)]);
}

#[test]
fn f12_a_failed_commit_is_unknown_and_reopening_tells() {
    let disk = FaultyDisk::default();
    let (mut store, _) = disk.open(no_upgrade).unwrap();
    store.append(&[row(1)]).unwrap();
    disk.fail(Fault::SyncLost);
    assert!(matches!(store.append(&[row(2)]), Err(WriteError::Unknown(_))));
    assert_eq!(disk.after_power_cut().open(no_upgrade).unwrap().1.tail, vec![row(1)]);
}

#[test]
fn what_was_acknowledged_survives_a_power_cut_at_every_commit() {
    let disk = FaultyDisk::default();
    let (mut store, _) = disk.open(no_upgrade).unwrap();
    let mut expected = Vec::new();
    for index in 1..=20 {
        store.append(&[row(index)]).unwrap();
        expected.push(row(index));
        if index % 7 == 0 {
            store.snapshot(index, b"s").unwrap();
            expected.clear();
        }
        assert_eq!(disk.after_power_cut().open(no_upgrade).unwrap().1.tail, expected);
    }
}
