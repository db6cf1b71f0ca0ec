//! The store on disks that fail, lie and end (failure rules F12 and F25).

use super::*;
use crate::storage::faulty::{Fault as DiskFault, FaultyDisks, Left};

const LEFT: [Left; 5] = [Left::Nothing, Left::Everything, Left::Even, Left::Odd, Left::Torn];

fn on(disks: &FaultyDisks) -> Result<(ConsensusStore, Opened), OpenError> {
    ConsensusStore::open(disks.medium(), device(1))
}

fn held(disks: &FaultyDisks) -> Persisted {
    on(disks).unwrap().1.persisted
}

/// A life of the store: each batch one transaction.
fn script() -> Vec<Vec<Write>> {
    vec![
        vec![Write::Vote(b"v1".to_vec()), rows(0..=0)],
        vec![rows(1..=3)],
        vec![Write::Committed(b"c3".to_vec()), Write::Vote(b"v2".to_vec())],
        vec![Write::TruncateFrom(2), rows(2..=6)],
        vec![snapshot("s4", 300_000)],
        vec![purge(4), rows(7..=7)],
        vec![snapshot("s9", 40), purge(9)],
        vec![rows(10..=40)],
        vec![Write::TruncateFrom(12), Write::Vote(b"v3".to_vec())],
    ]
}

#[test]
fn a_crash_at_every_write_leaves_the_state_before_or_after_its_transaction() {
    // Runs the script until the disks end; gives what was acknowledged, and the batch that was not.
    let run = |disks: &FaultyDisks| -> (Persisted, Option<Vec<Write>>) {
        let Ok((mut store, _)) = on(disks) else { return (Persisted::default(), None) };
        if store.reset(head(), vec![]).is_err() {
            return (Persisted::default(), None);
        }
        let mut state = Persisted::default();
        for batch in script() {
            if store.write(batch.clone()).is_err() {
                return (state, Some(batch));
            }
            state = model(state, &batch);
        }
        (state, None)
    };
    let whole = FaultyDisks::default();
    let (all, _) = run(&whole);
    let operations = whole.operations();
    assert_eq!(held(&whole), all);
    assert!(operations > 40, "{operations}");
    let (mut before, mut after) = (0, 0);
    for end in 0..operations {
        let disks = FaultyDisks::default();
        disks.end_at(end);
        let (state, cut) = run(&disks);
        for left in LEFT {
            let found = held(&disks.after_crash(left));
            let then = cut.as_ref().map(|batch| model(state.clone(), batch));
            before += usize::from(found == state);
            after += usize::from(then.as_ref() == Some(&found));
            assert!(found == state || Some(&found) == then.as_ref(), "ended at {end}, left {left:?}: {found:?}");
        }
    }
    assert!(before > operations && after > 0, "{before} {after}");
}

#[test]
fn what_was_acknowledged_survives_a_power_cut_at_every_commit() {
    let disks = FaultyDisks::default();
    let (mut store, _) = on(&disks).unwrap();
    store.reset(head(), vec![]).unwrap();
    let mut state = Persisted::default();
    for batch in script() {
        store.write(batch.clone()).unwrap();
        state = model(state, &batch);
        assert_eq!(held(&disks.after_power_cut()), state);
    }
}

#[test]
fn what_is_committed_costs_no_sync_and_goes_with_the_next_batch() {
    let disks = FaultyDisks::default();
    let (mut store, _) = on(&disks).unwrap();
    store.reset(head(), vec![rows(1..=1)]).unwrap();
    let (syncs, operations) = (disks.syncs(), disks.operations());
    for n in 0..9 {
        store.write(vec![Write::Committed(vec![n])]).unwrap();
    }
    store.write(vec![]).unwrap();
    assert_eq!((disks.syncs(), disks.operations()), (syncs, operations));
    assert_eq!(held(&disks.after_power_cut()).committed, None);
    store.write(vec![rows(2..=2)]).unwrap();
    assert_eq!(held(&disks.after_power_cut()).committed, Some(vec![8]));
    store.write(vec![Write::Committed(vec![9])]).unwrap();
    store.write(vec![Write::Committed(vec![10]), rows(3..=3)]).unwrap();
    assert_eq!(held(&disks.after_power_cut()).committed, Some(vec![10]), "the later one counts");
}

#[test]
fn f25_after_an_error_the_store_takes_nothing_until_it_is_reopened_in_process() {
    for fault in [DiskFault::Full, DiskFault::SyncLost, DiskFault::SyncKept] {
        let disks = FaultyDisks::default();
        let (mut store, _) = on(&disks).unwrap();
        let state = model(Persisted::default(), &[rows(1..=1)]);
        store.reset(head(), vec![rows(1..=1)]).unwrap();
        disks.fail(fault.clone());
        let batch = vec![Write::Append(vec![(2, vec![7; 4 << 20])])];
        assert!(store.write(batch.clone()).is_err());
        disks.mend();
        let told = store.write(vec![rows(2..=2)]).unwrap_err().to_string();
        assert!(told.contains("closed after a disk error"), "{told}");
        assert!(store.snapshot().is_err() && store.archive("x").is_err());
        let found = store.reopen().unwrap().persisted;
        let kept = model(state.clone(), &batch);
        assert!(found == state || found == kept, "{fault:?}");
        let next = found.log.len() as u64 + 1;
        store.write(vec![rows(next..=next)]).unwrap();
        assert_eq!(held(&disks.after_power_cut()), model(found, &[rows(next..=next)]), "{fault:?}");
    }
}

#[test]
fn f12_reopening_tells_whether_a_failed_commit_was_kept() {
    for (fault, kept) in [(DiskFault::SyncLost, false), (DiskFault::SyncKept, true)] {
        let disks = FaultyDisks::default();
        let (mut store, _) = on(&disks).unwrap();
        store.reset(head(), vec![rows(1..=1)]).unwrap();
        disks.fail(fault.clone());
        assert!(store.write(vec![rows(2..=2)]).is_err());
        let expected = if kept { vec![row(1), row(2)] } else { vec![row(1)] };
        assert_eq!(held(&disks.after_power_cut()).log, expected, "{fault:?}");
    }
}

#[test]
fn the_test_notices_a_disk_that_skips_its_syncs() {
    let disks = FaultyDisks::default();
    let (mut store, _) = on(&disks).unwrap();
    store.reset(head(), vec![rows(1..=1)]).unwrap();
    disks.fail(DiskFault::SyncSkipped);
    store.write(vec![rows(2..=2)]).unwrap();
    assert_eq!(held(&disks.after_power_cut()).log, [row(1)], "what such a disk confirms is lost");
    assert_eq!(held(&disks.after_crash(Left::Everything)).log, [row(1), row(2)]);
}

#[test]
fn f25_a_full_disk_gets_the_reserve_and_the_write_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let disks = FaultyDisks::default();
    let (mut store, _) = on(&disks).unwrap();
    store.reset(head(), vec![rows(1..=1)]).unwrap();
    store.lock().reserve = Some(Reserve::hold(home.path(), "blocks", 1 << 20));
    let reserve = home.path().join("blocks");
    disks.fail(DiskFault::FullWhile(reserve.clone()));
    store.write(vec![Write::Vote(b"v".to_vec()), rows(2..=2)]).unwrap();
    disks.mend();
    let expected = Persisted { vote: Some(b"v".to_vec()), log: vec![row(1), row(2)], ..Persisted::default() };
    assert_eq!(held(&disks.after_power_cut()), expected);
    assert!(reserve.exists(), "the real disk has room, so it is taken again");
    // Without a reserve to give up the error is told.
    store.lock().reserve = None;
    disks.fail(DiskFault::Full);
    let error = store.write(vec![rows(3..=3)]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn f25_a_write_that_was_kept_though_it_failed_is_not_carried_out_again() {
    let disks = FaultyDisks::default();
    let (store, _) = on(&disks).unwrap();
    let mut store = store;
    store.reset(head(), vec![rows(1..=3)]).unwrap();
    let last = |disks: &FaultyDisks| {
        let database = disks.medium().open(FILE, &builder()).unwrap();
        rows::last_number(&database).unwrap()
    };
    assert_eq!(last(&disks.after_power_cut()), 1);
    disks.fail_once(DiskFault::SyncKept);
    assert!(store.write(vec![purge(2), Write::TruncateFrom(3)]).is_err());
    assert_eq!(last(&disks.after_power_cut()), 2, "its number says so");
    store.reopen().unwrap();
    store.write(vec![rows(3..=3)]).unwrap();
    assert_eq!(last(&disks), 3);
}

#[test]
fn a_file_cut_off_by_a_few_bytes_or_changed_is_damaged_or_whole_and_never_another_log() {
    let disks = FaultyDisks::default();
    let (mut store, _) = on(&disks).unwrap();
    store.reset(head(), vec![snapshot("m", 300_000), rows(1..=300)]).unwrap();
    let state = store.reopen().unwrap();
    drop(store);
    let whole = disks.bytes(FILE);
    let mut refused = 0;
    let mut judge = |disks: &FaultyDisks, what: String| match on(disks) {
        Ok((_, opened)) => assert_eq!(opened, state, "{what}"),
        Err(OpenError::Damaged { .. }) => refused += 1,
        Err(other) => panic!("{what}: {other}"),
    };
    for bytes in [1, 2, 100, 4_095, 4_096, 4_097, 100_000, whole.len() - 1] {
        let disks = disks.after_power_cut();
        disks.truncate(FILE, bytes);
        judge(&disks, format!("cut off by {bytes}"));
    }
    // 61 is no divisor of a page, so that every part of one is met.
    for at in (0..whole.len()).step_by(whole.len() / 61) {
        let disks = FaultyDisks::default();
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        disks.put(FILE, bytes);
        judge(&disks, format!("byte {at} changed"));
    }
    assert!(refused > 8, "{refused}");
}

#[test]
fn reopening_waits_for_the_write_that_is_under_way() {
    let disks = FaultyDisks::default();
    let (mut store, _) = on(&disks).unwrap();
    store.reset(head(), vec![rows(1..=1)]).unwrap();
    let mut engine = store.clone();
    disks.hold();
    let writing = std::thread::spawn(move || engine.write(vec![rows(2..=2)]));
    let started = std::time::Instant::now();
    while store.inner.try_lock().is_ok() {
        assert!(started.elapsed().as_secs() < 20, "nothing was ever written");
        std::thread::yield_now();
    }
    disks.release();
    assert_eq!(store.reopen().unwrap().persisted.log, [row(1), row(2)]);
    writing.join().unwrap().unwrap();
}
