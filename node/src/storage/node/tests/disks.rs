//! The store on simulated disks: its writer is a task, and the disks fail and end (failure rule F25).

use super::*;
use crate::storage::faulty::{Fault, FaultyDisks, Left};

fn open(disks: &FaultyDisks) -> NodeStore {
    NodeStore::open_on(&disks.medium()).unwrap()
}

fn put(n: u64) -> Vec<Change> {
    vec![Change::set(Key::history(&session(), n), &n)]
}

fn rows(store: &NodeStore) -> Vec<u64> {
    let (from, to) = (Key::history(&session(), 0), Key::history(&session(), u64::MAX));
    let mut seen = Vec::new();
    store
        .scan::<u64>(&from, &to, false, |_, value| {
            seen.push(value);
            true
        })
        .unwrap();
    seen
}

/// What a crash would leave.
fn left(disks: &FaultyDisks, left: Left) -> Vec<u64> {
    let disks = disks.after_crash(left);
    rows(&open(&disks))
}

#[tokio::test(start_paused = true)]
async fn writes_that_wait_together_share_a_sync_and_a_dropped_one_is_kept() {
    let disks = FaultyDisks::default();
    let store = open(&disks);
    store.durable(put(0)).await.unwrap();
    let before = disks.syncs();
    store.durable(put(1)).await.unwrap();
    let one = disks.syncs() - before;
    let before = disks.syncs();
    let writes: Vec<_> = (2..200).map(|n| store.durable(put(n))).collect();
    drop(store.durable(put(200)));
    assert_eq!(rows(&store), [0, 1], "not before the task had its turn");
    for write in writes {
        write.await.unwrap();
    }
    assert!(disks.syncs() - before <= 2 * one, "{} syncs, {one} for one write", disks.syncs() - before);
    assert_eq!(left(&disks, Left::Nothing), (0..=200).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_lazy_write_rides_on_the_next_durable_one_or_is_committed_in_time() {
    let disks = FaultyDisks::default();
    let store = open(&disks);
    store.lazy(put(1));
    store.durable(put(2)).await.unwrap();
    assert_eq!(left(&disks, Left::Nothing), [1, 2]);
    store.lazy(put(3));
    let asked = tokio::time::Instant::now();
    while left(&disks, Left::Nothing) != [1, 2, 3] {
        assert!(asked.elapsed() < 2 * LAZY_MAX, "the lazy write was never committed");
        tokio::time::sleep(LAZY_MAX / 8).await;
    }
    assert!(asked.elapsed() >= LAZY_MAX, "it was to wait for company");
    store.lazy(put(4));
    store.flush().await.unwrap();
    assert_eq!(left(&disks, Left::Nothing), [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_store_has_everything_on_disk_and_takes_nothing_more() {
    let disks = FaultyDisks::default();
    let store = open(&disks);
    store.lazy(put(1));
    store.stop().await.unwrap();
    assert_eq!(store.durable(put(2)).await, Err(StoreError::Stopped));
    assert!(store.read::<u64>(&Key::history(&session(), 1)).is_err());
    assert_eq!(rows(&open(&disks)), [1], "the file can be opened at once");
}

#[tokio::test(start_paused = true)]
async fn f25_a_commit_that_fails_once_is_made_good_in_process() {
    for fault in [Fault::Full, Fault::SyncLost, Fault::SyncKept] {
        let disks = FaultyDisks::default();
        let store = open(&disks);
        store.durable(put(1)).await.unwrap();
        store.lazy(put(2));
        disks.fail_once(fault.clone());
        store.durable(put(3)).await.unwrap();
        assert_eq!(left(&disks, Left::Nothing), [1, 2, 3], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f25_a_disk_that_refuses_is_told_and_the_store_works_again_when_it_is_mended() {
    for fault in [Fault::Full, Fault::SyncLost, Fault::SyncKept] {
        let disks = FaultyDisks::default();
        let store = open(&disks);
        store.durable(put(1)).await.unwrap();
        disks.fail(fault.clone());
        store.lazy(put(2));
        for n in [3, 4] {
            let error = store.durable(put(n)).await.unwrap_err();
            assert!(matches!(error, StoreError::Write(_) | StoreError::Open { .. }), "{error}");
        }
        disks.mend();
        store.durable(put(5)).await.unwrap();
        let kept = rows(&store);
        assert!([1, 2, 5].iter().all(|n| kept.contains(n)), "{fault:?}: {kept:?}");
        assert_eq!(left(&disks, Left::Nothing), kept, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_every_write_loses_nothing_that_was_acknowledged_and_tears_no_write() {
    /// Two rows a write, until the disks end; gives how many writes were acknowledged.
    async fn run(disks: &FaultyDisks) -> u64 {
        let Ok(store) = NodeStore::open_on(&disks.medium()) else { return 0 };
        for n in 0..6 {
            if store.durable([put(2 * n), put(2 * n + 1)].concat()).await.is_err() {
                return n;
            }
        }
        6
    }
    let whole = FaultyDisks::default();
    assert_eq!(run(&whole).await, 6);
    for end in 0..whole.operations() {
        let disks = FaultyDisks::default();
        disks.end_at(end);
        let acknowledged = run(&disks).await;
        for kind in [Left::Nothing, Left::Everything, Left::Even, Left::Odd, Left::Torn] {
            let found = left(&disks, kind);
            let (least, most) = (2 * acknowledged, 2 * acknowledged + 2);
            let expected = |until: u64| found == (0..until).collect::<Vec<_>>();
            assert!(expected(least) || expected(most), "ended at {end}, left {kind:?}: {found:?}");
        }
    }
}
