//! The node's store over a real file: what is acknowledged is there after reopening.

mod disks;

use chappie_mesh::{Incarnation, NodeId, Roster};

use super::*;
use crate::ids::{CallId, SessionId};

fn session() -> SessionId {
    SessionId("s1".into())
}

#[tokio::test]
async fn a_durable_write_is_there_after_reopening() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    store.durable(vec![Change::set(Key::session(&session()), &"one")]).await.unwrap();
    store.stop().await.unwrap();
    drop(store);
    let store = reopen(home.path());
    assert_eq!(store.read::<String>(&Key::session(&session())).unwrap().as_deref(), Some("one"));
}

/// The old writer thread lets go of the file just after it answered the stop.
fn reopen(home: &Path) -> NodeStore {
    let started = std::time::Instant::now();
    loop {
        match NodeStore::open(home) {
            Ok(store) => return store,
            Err(error) if started.elapsed().as_secs() > 20 => panic!("{error}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[tokio::test]
async fn a_lazy_write_is_visible_after_a_flush() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    store.lazy(vec![Change::set(Key::history(&session(), 7), &7)]);
    store.flush().await.unwrap();
    assert_eq!(store.read::<u64>(&Key::history(&session(), 7)).unwrap(), Some(7));
}

#[tokio::test]
async fn a_lazy_write_is_committed_without_being_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    store.lazy(vec![Change::set(Key::history(&session(), 7), &7)]);
    let started = std::time::Instant::now();
    while store.read::<u64>(&Key::history(&session(), 7)).unwrap().is_none() {
        assert!(started.elapsed().as_secs() < 20, "the lazy write was never committed");
        tokio::time::sleep(LAZY_MAX / 4).await;
    }
}

#[tokio::test]
async fn a_scan_sees_one_sessions_rows_in_order_and_backwards() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    let other = SessionId("s10".into());
    let mut changes: Vec<_> = [3_u64, 1, 256, 2].iter().map(|n| Change::set(Key::history(&session(), *n), n)).collect();
    changes.push(Change::set(Key::history(&other, 9), &9));
    store.durable(changes).await.unwrap();
    let mut seen = Vec::new();
    let (from, to) = (Key::history(&session(), 0), Key::history(&session(), u64::MAX));
    store
        .scan::<u64>(&from, &to, false, |key, value| {
            assert_eq!(key.number(), Some(value));
            seen.push(value);
            true
        })
        .unwrap();
    assert_eq!(seen, [1, 2, 3, 256]);
    seen.clear();
    store
        .scan::<u64>(&from, &to, true, |_, value| {
            seen.push(value);
            seen.len() < 2
        })
        .unwrap();
    assert_eq!(seen, [256, 3]);
}

#[tokio::test]
async fn many_writers_share_commits_and_all_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    let writes = (0..200_u64).map(|n| {
        let store = store.clone();
        tokio::spawn(
            async move { store.durable(vec![Change::set(Key::journal(&CallId(format!("{n:04}"))), &n)]).await },
        )
    });
    for write in futures_util::future::join_all(writes).await {
        write.unwrap().unwrap();
    }
    let (from, to) = Key::journals();
    let mut count = 0;
    store
        .scan::<u64>(&from, &to, false, |_, _| {
            count += 1;
            true
        })
        .unwrap();
    assert_eq!(count, 200);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("node.redb");
    {
        let database = Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("format", FORMAT + 1).unwrap();
        transaction.commit().unwrap();
    }
    let error = NodeStore::open(home.path()).map(drop).unwrap_err();
    assert_eq!(error, StoreError::Newer { path, found: FORMAT + 1, known: FORMAT, backup: String::new() });
}

fn device(n: u8) -> NodeId {
    NodeId::from([n; 32])
}

#[tokio::test]
async fn what_a_node_knows_of_its_mesh_is_there_after_reopening() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    let roster = Roster::alone([7; 16].into(), device(1), "box".into());
    let incarnation = Incarnation::first([3; 16]);
    let changes = vec![
        Change::set(Key::membership(), &roster),
        Change::set(Key::incarnation(), &incarnation),
        Change::set(Key::peer(&device(2)), &vec!["[fe80::1%2]:24274"]),
    ];
    store.durable(changes).await.unwrap();
    store.stop().await.unwrap();
    drop(store);
    let store = reopen(home.path());
    assert_eq!(store.read::<Roster>(&Key::membership()).unwrap(), Some(roster));
    assert_eq!(store.read::<Incarnation>(&Key::incarnation()).unwrap(), Some(incarnation));
    let addresses = store.read::<Vec<String>>(&Key::peer(&device(2))).unwrap();
    assert_eq!(addresses.as_deref(), Some(&["[fe80::1%2]:24274".to_owned()][..]));
    store.durable(vec![Change::remove(Key::membership())]).await.unwrap();
    assert_eq!(store.read::<Roster>(&Key::membership()).unwrap(), None);
}

#[tokio::test]
async fn a_scan_of_devices_sees_each_once_by_its_id_and_nothing_of_another_kind() {
    let home = tempfile::tempdir().unwrap();
    let store = NodeStore::open(home.path()).unwrap();
    let mut changes = vec![
        Change::set(Key::membership(), &0),
        Change::set(Key::incarnation(), &0),
        Change::set(Key::session(&session()), &0),
        Change::set(Key::history(&session(), 1), &0),
    ];
    for n in [255, 0, 9] {
        changes.push(Change::set(Key::peer(&device(n)), &n));
        changes.push(Change::set(Key::announced(&device(n)), &(u32::from(n) + 1_000)));
    }
    store.durable(changes).await.unwrap();
    for ((from, to), more) in [(Key::peers(), 0), (Key::announced_all(), 1_000)] {
        let mut seen = Vec::new();
        store
            .scan::<u32>(&from, &to, false, |key, value| {
                seen.push((key.node().unwrap(), value));
                true
            })
            .unwrap();
        seen.sort();
        assert_eq!(seen, [0, 9, 255].map(|n| (device(n), u32::from(n) + more)));
    }
    for other in [Key::membership(), Key::incarnation(), Key::session(&session()), Key::peers().0] {
        assert_eq!(other.node(), None, "{other:?}");
    }
}
