//! The store alone: what it keeps, what it refuses, what it hands out.

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

fn open(home: &Path) -> Result<(ConsensusStore, Opened), OpenError> {
    ConsensusStore::open(Medium::Folder(home.to_owned()), device(1))
}

#[test]
fn everything_is_there_after_reopening() {
    let home = tempfile::tempdir().unwrap();
    let (mut store, opened) = open(home.path()).unwrap();
    assert_eq!(opened, Opened::default());
    store.reset(head(), vec![Write::Vote(b"v1".to_vec()), rows(0..=4)]).unwrap();
    store.write(vec![Write::Committed(b"c4".to_vec())]).unwrap();
    store.write(vec![Write::TruncateFrom(4), rows(4..=6), Write::Vote(b"v2".to_vec())]).unwrap();
    let data: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    store.write(vec![Write::Snapshot { meta: b"m".to_vec(), data: data.clone() }]).unwrap();
    store.write(vec![Write::Purge { through: 4, last: b"p4".to_vec() }]).unwrap();
    assert_eq!(store.snapshot().unwrap(), Some((b"m".to_vec(), data.clone())));
    let expected = Persisted {
        vote: Some(b"v2".to_vec()),
        committed: Some(b"c4".to_vec()),
        purged: Some(b"p4".to_vec()),
        snapshot: Some((b"m".to_vec(), data)),
        log: vec![row(5), row(6)],
    };
    drop(store);
    let (_, opened) = open(home.path()).unwrap();
    assert_eq!(opened.persisted, expected);
    assert_eq!((opened.head, opened.maker, opened.settled), (Some(head()), Some(device(1)), false));
}
