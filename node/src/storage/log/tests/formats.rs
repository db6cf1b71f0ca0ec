//! Stores that an older or a newer program wrote, and files that are no store.

use std::path::PathBuf;

use redb::TableDefinition;

use super::*;
use crate::storage::log::rows::{LOG, META, SNAPSHOT};

fn path(home: &Path) -> PathBuf {
    home.join(FILE)
}

fn set_format(home: &Path, format: u64) {
    let database = Database::create(path(home)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", format).unwrap();
    transaction.commit().unwrap();
}

/// A store as format 1 was written.
fn format_1(home: &Path, bindings: &[(&str, &str)]) {
    set_format(home, 1);
    let database = Database::create(path(home)).unwrap();
    let transaction = database.begin_write().unwrap();
    for (chat, session) in bindings {
        transaction.open_table(older::PLAIN_BINDINGS).unwrap().insert(chat, session).unwrap();
    }
    transaction.commit().unwrap();
}

/// A store as formats 2 and 3 were written.
fn format_3(home: &Path, format: u64, covered: Option<u64>, entries: &[u64]) {
    set_format(home, format);
    let database = Database::create(path(home)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(SNAPSHOT).unwrap();
    if let Some(index) = covered {
        transaction.open_table(SNAPSHOT).unwrap().insert(0, b"sna".as_slice()).unwrap();
        transaction.open_table(SNAPSHOT).unwrap().insert(1, b"p".as_slice()).unwrap();
        transaction.open_table(META).unwrap().insert("snapshot_index", index).unwrap();
        transaction.open_table(META).unwrap().insert("snapshot_bytes", 4).unwrap();
    }
    {
        let mut log = transaction.open_table(LOG).unwrap();
        for index in entries {
            log.insert(index, row(*index).1.as_slice()).unwrap();
        }
    }
    transaction.commit().unwrap();
}

#[test]
fn a_newer_format_is_refused_unchanged_and_the_backup_named_when_there_is_one() {
    let home = tempfile::tempdir().unwrap();
    drop(filled(home.path(), vec![rows(1..=1)]));
    set_format(home.path(), FORMAT + 1);
    let error = open(home.path()).map(|_| ()).unwrap_err();
    assert_eq!(error, OpenError::Newer { path: path(home.path()), found: 5, known: 4, backup: None });
    std::fs::write(home.path().join("consensus.redb.format-4.bak"), "what the newer program kept").unwrap();
    let told = open(home.path()).map(|_| ()).unwrap_err().to_string();
    assert!(told.contains("format 5") && told.contains("up to 4") && told.contains("format-4.bak"), "{told}");
    set_format(home.path(), FORMAT);
    assert_eq!(open(home.path()).unwrap().1.persisted.log, [row(1)]);
}

#[test]
fn format_1_is_handed_out_until_a_reset_makes_it_this_one() {
    let home = tempfile::tempdir().unwrap();
    format_1(home.path(), &[("chat-b", "S2"), ("chat-a", "S1")]);
    let bindings = vec![("chat-a".into(), "S1".into()), ("chat-b".into(), "S2".into())];
    let older = Opened { older: Some(Older::Format1 { bindings }), ..Opened::default() };
    let (mut store, opened) = open(home.path()).unwrap();
    assert_eq!(opened, older);
    assert!(store.write(vec![rows(1..=1)]).is_err());
    drop(store);
    let (mut store, opened) = open(home.path()).unwrap();
    assert_eq!(opened, older, "a crash before the reset");
    store.reset(head(), vec![snapshot("m", 10)]).unwrap();
    let opened = store.reopen().unwrap();
    assert_eq!((opened.head, opened.older), (Some(head()), None));
    drop(store);

    std::fs::rename(home.path().join("consensus.redb.format-1.bak"), path(home.path())).unwrap();
    assert_eq!(open(home.path()).unwrap().1, older, "the backup is the store as it was");
}

#[test]
fn formats_2_and_3_are_handed_out_with_snapshot_and_entries() {
    for (format, covered, entries) in
        [(2, Some(4), &[5, 6][..]), (3, Some(4), &[]), (3, None, &[1, 2, 3]), (3, None, &[])]
    {
        let home = tempfile::tempdir().unwrap();
        format_3(home.path(), format, covered, entries);
        let (mut store, opened) = open(home.path()).unwrap();
        let snapshot = covered.map(|index| (index, b"snap".to_vec()));
        let entries = entries.iter().map(|index| row(*index)).collect();
        let older = Some(Older::Log { snapshot, entries });
        assert_eq!(opened, Opened { older, ..Opened::default() });
        store.reset(head(), vec![rows(7..=8)]).unwrap();
        let kept = model(Persisted::default(), &[rows(7..=8)]);
        assert_eq!(store.reopen().unwrap().persisted, kept, "nothing of format {format} is left");
        assert!(home.path().join(format!("consensus.redb.format-{format}.bak")).exists());
    }
}

#[test]
fn the_store_that_the_last_release_wrote_is_read() {
    let home = tempfile::tempdir().unwrap();
    let disks = crate::storage::faulty::FaultyDisks::default();
    format_3(home.path(), 3, Some(2), &[3]);
    disks.put(FILE, std::fs::read(path(home.path())).unwrap());
    let (mut store, opened) = ConsensusStore::open(disks.medium(), device(1)).unwrap();
    let older = Older::Log { snapshot: Some((2, b"snap".to_vec())), entries: vec![row(3)] };
    assert_eq!(opened.older, Some(older), "also on simulated disks");
    assert_eq!(store.reopen().unwrap(), opened, "its backup is there already");
    store.reset(head(), vec![]).unwrap();
    assert_eq!(store.reopen().unwrap().head, Some(head()));
}

#[test]
fn a_format_that_never_was_and_a_hole_are_damage() {
    let cases: [(u64, Option<u64>, &[u64], &str); 4] = [
        (0, None, &[], "format 0, which never was"),
        (3, None, &[1, 3], "entry 2 of the log is missing"),
        (3, Some(4), &[6], "entry 5 of the log is missing"),
        (2, None, &[2], "entry 1 of the log is missing"),
    ];
    for (format, covered, entries, said) in cases {
        let home = tempfile::tempdir().unwrap();
        format_3(home.path(), format, covered, entries);
        let error = open(home.path()).map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_hole_in_the_log_is_damage_not_a_shorter_log() {
    for lost in [2, 1] {
        let home = tempfile::tempdir().unwrap();
        drop(filled(home.path(), vec![purge(0), rows(1..=3)]));
        let database = Database::create(path(home.path())).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(LOG).unwrap().remove(lost).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let told = open(home.path()).map(|_| ()).unwrap_err().to_string();
        assert!(told.contains(&format!("entry {lost} of the log is missing")) && told.contains(FILE), "{told}");
    }
}

#[test]
fn a_log_of_nobody_and_a_short_snapshot_are_damage() {
    type Harm = fn(&WriteTransaction, TableDefinition<'_, &str, &[u8]>);
    let single = TableDefinition::<&str, &[u8]>::new("single");
    let cases: [(&str, Harm); 3] = [
        ("does not say whose", |transaction, single| {
            drop(transaction.open_table(single).unwrap().remove("head").unwrap())
        }),
        ("its head cannot be read", |transaction, single| {
            transaction.open_table(single).unwrap().insert("head", b"x".as_slice()).unwrap();
        }),
        ("the snapshot has", |transaction, _| {
            transaction.open_table(SNAPSHOT).unwrap().remove(1).unwrap();
        }),
    ];
    for (said, harm) in cases {
        let home = tempfile::tempdir().unwrap();
        drop(filled(home.path(), vec![rows(1..=3), snapshot("m", 600_000)]));
        let database = Database::create(path(home.path())).unwrap();
        let transaction = database.begin_write().unwrap();
        harm(&transaction, single);
        transaction.commit().unwrap();
        drop(database);
        let error = open(home.path()).map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }) && error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_backup_that_fails_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    format_1(home.path(), &[("a", "S")]);
    // A folder stands where the backup would go.
    std::fs::create_dir_all(home.path().join("consensus.redb.format-1.bak/x")).unwrap();
    let told = open(home.path()).map(|_| ()).unwrap_err().to_string();
    assert!(told.contains("no backup"), "{told}");
    std::fs::remove_dir_all(home.path().join("consensus.redb.format-1.bak")).unwrap();
    let bindings = vec![("a".into(), "S".into())];
    assert_eq!(open(home.path()).unwrap().1.older, Some(Older::Format1 { bindings }));
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(path(home.path()), vec![b'x'; 100_000]).unwrap();
    assert!(matches!(open(home.path()), Err(OpenError::Damaged { .. })));
    assert_eq!(std::fs::read(path(home.path())).unwrap(), vec![b'x'; 100_000]);
}
