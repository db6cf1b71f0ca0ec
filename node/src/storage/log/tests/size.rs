//! How large the file becomes.

use std::os::unix::fs::MetadataExt;

use super::*;

/// The most receipts that there are.
const RECEIPTS: u64 = 16_384;

/// Writes as many receipts, some in a batch, with a snapshot at times, as the engine does.
fn fill(store: &mut ConsensusStore, batch: usize) {
    let sizes = (1..=RECEIPTS).map(|index| (index, vec![index as u8; 300 + (index as usize * 37) % 1_200]));
    let entries: Vec<_> = sizes.collect();
    let mut written = 0;
    for (at, entries) in entries.chunks(batch).enumerate() {
        store.write(vec![Write::Append(entries.to_vec())]).unwrap();
        written += entries.iter().map(|(_, row)| row.len()).sum::<usize>();
        let last = ((at + 1) * batch) as u64;
        if last.is_multiple_of(4_096) {
            store.write(vec![snapshot("m", written), purge(last - 1_000)]).unwrap();
        }
    }
}

#[test]
fn a_store_with_every_receipt_is_hardly_larger_than_what_it_must_hold_and_is_compacted() {
    let home = tempfile::tempdir().unwrap();
    let mut store = filled(home.path(), vec![]);
    fill(&mut store, 64);
    let blocks = || std::fs::metadata(home.path().join(FILE)).unwrap().blocks() * 512;
    let grown = blocks();
    drop(store);
    let started = std::time::Instant::now();
    let (_store, opened) = open(home.path()).unwrap();
    let (took, holds, then) = (started.elapsed(), rows::bytes(&opened.persisted), blocks());
    println!("holds {holds} bytes; blocks of {grown} bytes, {then} after opening, which took {took:?}");
    // While a snapshot is written the one before it is there, too.
    assert!(grown < 2 * holds + (8 << 20), "{grown} for {holds}");
    assert!(then < holds + holds / 2 + (5 << 20), "{then} for {holds}");
}
