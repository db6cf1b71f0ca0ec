//! What a disk keeps, alone and under redb.

use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend as _, TableDefinition};

use super::{content::SECTOR, *};
use crate::world::trace::Keep;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");

fn disk(seed: u64) -> Disk {
    Disk::new("disk", Seed::new(seed), Trace::new(Keep::Hash))
}

fn content(disk: &Disk, name: &str) -> Vec<u8> {
    disk.image().0[name].clone()
}

#[test]
fn what_was_synced_survives_and_what_was_not_survives_in_any_part() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = disk(seed);
        let file = disk.open("f").unwrap();
        file.write(0, b"abc").unwrap();
        file.sync_data().unwrap();
        for at in 0..3 {
            file.write(at, b"N").unwrap();
        }
        assert_eq!(content(&disk, "f"), b"NNN");
        disk.crash();
        found.insert(String::from_utf8(content(&disk, "f")).unwrap());
    }
    assert_eq!(found.len(), 8, "every subset: {found:?}");
}

#[test]
fn a_long_write_is_torn_between_sectors_only() {
    let mut torn = 0;
    for seed in 0..200 {
        let disk = disk(seed);
        let file = disk.open("f").unwrap();
        file.set_len(3 * SECTOR as u64 + 100).unwrap();
        file.sync_data().unwrap();
        file.write(100, &[1; 3 * SECTOR]).unwrap();
        disk.crash();
        let bytes = content(&disk, "f");
        for (n, sector) in bytes.chunks(SECTOR).enumerate() {
            let written = &sector[if n == 0 { 100 } else { 0 }..];
            assert!(written.windows(2).all(|pair| pair[0] == pair[1]), "sector {n} of seed {seed} is torn inside");
        }
        torn += disk.counts().torn_writes;
    }
    assert!(torn > 5, "{torn}");
}

#[test]
fn a_lost_sync_is_an_error_and_the_file_is_as_before() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    file.write(0, b"abc").unwrap();
    file.sync_data().unwrap();
    disk.wear(Wear { lost_syncs: PerMille(1000), ..Wear::default() });
    file.write(1, b"XY").unwrap();
    assert!(file.sync_data().is_err());
    disk.wear(Wear::default());
    assert_eq!((content(&disk, "f"), disk.counts().lost_syncs), (b"abc".to_vec(), 1));
    file.write(1, b"Z").unwrap();
    file.sync_data().unwrap();
    disk.crash();
    assert_eq!(content(&disk, "f"), b"aZc");
}

#[test]
fn a_disk_that_lies_loses_what_it_promised() {
    let lost = (0..50).filter(|seed| {
        let disk = disk(*seed);
        disk.wear(Wear { lies: true, ..Wear::default() });
        let file = disk.open("f").unwrap();
        file.write(0, b"abc").unwrap();
        file.sync_data().unwrap();
        disk.crash();
        content(&disk, "f") != b"abc"
    });
    assert!(lost.count() > 5);
}

#[test]
fn a_full_disk_refuses_what_is_longer_and_takes_what_is_there() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    file.write(0, &[1; 100]).unwrap();
    disk.wear(Wear { room: Some(120), ..Wear::default() });
    assert_eq!(file.write(110, &[2; 20]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.set_len(121).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.copy("f", "g").unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.write(50, &[2; 50]).unwrap();
    file.write(100, &[3; 20]).unwrap();
    file.set_len(10).unwrap();
    assert_eq!((disk.size(), disk.counts().refused), (10, 3));
}

#[test]
fn a_slow_sync_is_owed_once() {
    let disk = disk(1);
    disk.wear(Wear { slow_syncs: PerMille(1000), slow_ms: 40, ..Wear::default() });
    let file = disk.open("f").unwrap();
    file.sync_data().unwrap();
    let owed = disk.owed();
    assert!((1..=40).contains(&owed.as_millis()), "{owed:?}");
    assert_eq!(disk.owed(), Duration::ZERO);
}

#[test]
fn a_file_is_open_once_and_useless_after_a_crash() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    assert_eq!(disk.open("f").unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    file.write(0, b"abc").unwrap();
    disk.crash();
    let again = disk.open("f").unwrap();
    assert!(file.write(0, b"N").is_err() && file.sync_data().is_err() && file.len().is_err());
    file.close().unwrap();
    drop(file);
    again.write(0, b"new").unwrap();
    assert!(disk.open("f").is_err(), "the old handle's end does not close the new one");
    drop(again);
    disk.open("f").unwrap();
}

#[test]
fn a_process_that_ends_leaves_what_it_wrote_to_the_system() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    file.write(0, b"abc").unwrap();
    disk.left();
    assert!(file.len().is_err());
    assert_eq!(content(&disk, "f"), b"abc");
    disk.open("f").unwrap();
}

#[test]
fn an_image_is_put_back_as_a_whole() {
    let disk = disk(1);
    disk.open("f").unwrap().write(0, b"old").unwrap();
    let backup = disk.image();
    disk.copy("f", "f.bak").unwrap();
    disk.rename("f", "g").unwrap();
    disk.open("g").unwrap().write(0, b"new").unwrap();
    assert_eq!(disk.names(), ["f.bak", "g"]);
    disk.put_back(&backup);
    assert_eq!((disk.names(), content(&disk, "f")), (vec!["f".to_owned()], b"old".to_vec()));
    let clone = super::tests::disk(2);
    clone.put_back(&disk.image());
    assert_eq!(clone.image(), backup);
    disk.remove("f");
    clone.wipe();
    assert_eq!((disk.image(), clone.image(), disk.has("f")), (Image::default(), Image::default(), false));
    assert!(disk.rename("f", "g").is_err() && disk.copy("f", "g").is_err());
}

/// All rows, and what is wrong with the file.
fn rows(disk: &Disk) -> Result<Rows, String> {
    let file = disk.open("db").map_err(|error| error.to_string())?;
    let database = Database::builder().create_with_backend(file).map_err(|error| error.to_string())?;
    let reading = database.begin_read().map_err(|error| error.to_string())?;
    let Ok(table) = reading.open_table(TABLE) else {
        return Ok(Rows::new());
    };
    let rows = table.iter().map_err(|error| error.to_string())?;
    rows.map(|row| row.map(|(key, value)| (key.value(), value.value().to_vec())).map_err(|error| error.to_string()))
        .collect()
}

/// Writes rows in transactions until the power goes, in the middle of one or after the last; gives what must be there,
/// and what may be there instead: the transaction that was being committed.
fn write_and_crash(disk: &Disk, rng: &mut Rng, have: Rows) -> [Rows; 2] {
    let database = Database::builder().create_with_backend(disk.open("db").unwrap()).unwrap();
    if rng.hits(PerMille(800)) {
        disk.crash_after(rng.within(0..=60), || {});
    }
    let mut have = have;
    for _ in 0..rng.within(1..=6) {
        let mut next = have.clone();
        if transaction(&database, rng, &mut next).is_err() {
            return [have, next];
        }
        have = next;
    }
    disk.crash();
    [have.clone(), have]
}

type Rows = BTreeMap<u64, Vec<u8>>;

fn transaction(database: &Database, rng: &mut Rng, rows: &mut Rows) -> Result<(), redb::Error> {
    let changes: Vec<(u64, Vec<u8>)> = (0..rng.within(1..=5))
        .map(|_| {
            (rng.below(40), vec![u8::try_from(rng.below(256)).unwrap(); usize::try_from(rng.within(1..=9000)).unwrap()])
        })
        .collect();
    rows.extend(changes.iter().cloned());
    let writing = database.begin_write()?;
    let mut table = writing.open_table(TABLE)?;
    for (key, value) in &changes {
        table.insert(key, value.as_slice())?;
    }
    drop(table);
    writing.commit()?;
    Ok(())
}

#[test]
fn redb_finds_every_commit_again_after_any_crash() {
    let (mut lost, mut torn, mut inside) = (0, 0, 0);
    for seed in 0..60 {
        let disk = disk(seed);
        let mut rng = Seed::new(seed).fork("rows").rng();
        let mut have = Rows::new();
        for crash in 0..8 {
            let may = write_and_crash(&disk, &mut rng, have);
            inside += u64::from(may[0] != may[1]);
            have = rows(&disk).unwrap_or_else(|error| panic!("seed {seed} crash {crash}: {error}"));
            assert!(may.contains(&have), "seed {seed} crash {crash}");
            // What was found may rest on what was not synced yet; redb has synced it when it repaired, and reads no more.
        }
        lost += disk.counts().lost_writes;
        torn += disk.counts().torn_writes;
    }
    assert!(lost > 100 && torn > 10 && inside > 50, "{lost} {torn} {inside}");
}

#[test]
fn the_power_goes_at_the_step_that_was_named() {
    let disk = disk(1);
    let file = disk.open("f").unwrap();
    let told = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&told);
    disk.crash_after(2, move || *seen.lock().unwrap() += 1);
    file.write(0, b"abc").unwrap();
    file.sync_data().unwrap();
    assert!(file.write(0, b"XYZ").is_err() && file.sync_data().is_err());
    let again = disk.open("f").unwrap();
    again.write(3, b"d").unwrap();
    assert_eq!((content(&disk, "f"), *told.lock().unwrap()), (b"abcd".to_vec(), 1));
}

#[test]
fn redb_loses_commits_on_a_disk_that_lies() {
    let broken = (0..40).filter(|seed| {
        let disk = disk(*seed);
        disk.wear(Wear { lies: true, ..Wear::default() });
        let mut rng = Seed::new(*seed).fork("rows").rng();
        let may = write_and_crash(&disk, &mut rng, Rows::new());
        rows(&disk).is_ok_and(|rows| !may.contains(&rows)) || rows(&disk).is_err()
    });
    assert!(broken.count() > 10);
}
