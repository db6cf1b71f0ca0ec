//! The two stores of a home belong together: with one of them lost, a node that makes it anew would run operations a
//! second time. Looked at before either is opened; makes neither.
//!
//! The exception is the `consensus.redb` of a device with others in its mesh: what is in it the others have, and the device
//! comes back as another member (failure rule F15).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    damage::{ACCEPT, LOST_CONSENSUS, LOST_NODE},
    log,
    medium::Medium,
    node::{self, Use},
};

/// Why the stores are not opened.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One is gone, and the other one shows that it was in use.
    #[error(
        "{lost} is {state}, but {kept} beside it is in use: {what}. Put a backup of it in its place; or, to start \
         without it, make the empty file {accept} (or move {kept} away as well) and start again",
        lost = lost.display(), kept = kept.display(), accept = accept.display()
    )]
    Lost {
        /// The file that is gone.
        lost: PathBuf,
        /// `missing` or `empty`.
        state: &'static str,
        /// The other one.
        kept: PathBuf,
        /// What is lost with it.
        what: &'static str,
        /// The file that accepts the loss.
        accept: PathBuf,
    },
    /// One is gone, and `node.redb` cannot be opened to see whether it was in use.
    #[error(transparent)]
    Node(#[from] node::StoreError),
    /// One is gone, and `consensus.redb` cannot be opened to see whether it was in use.
    #[error(transparent)]
    Consensus(#[from] log::OpenError),
    /// The file that accepts a loss cannot be removed; it would accept a later loss too.
    #[error("cannot remove {}: {cause}; remove it by hand and start again", path.display())]
    Accept {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// Refuses a home in which one store is missing or empty while the other one holds something, unless the file
/// `accept-lost-store` is there. That file is removed in any case: it speaks for one start.
///
/// A first start that was killed leaves the second store missing or empty and nothing in the first: that is no loss.
///
/// # Errors
/// [`PairError`]; no store was made then.
pub fn check(home: &Path) -> Result<(), PairError> {
    check_on(&Medium::Folder(home.to_owned()))
}

/// The same wherever the stores are. Simulated disks know no `accept-lost-store`.
///
/// # Errors
/// As [`check`].
pub fn check_on(medium: &Medium) -> Result<(), PairError> {
    let accepted = medium.folder().map_or(Ok(false), take_accept)?;
    let (lost, state, kept, what) = match (medium.gone(node::FILE), medium.gone(log::FILE)) {
        (None, Some(state)) => match node::usage(medium)? {
            Use::None => return Ok(()),
            Use::Alone => (log::FILE, state, node::FILE, LOST_CONSENSUS),
            Use::Member => {
                tracing::warn!(state, "{} is lost; the other devices of the mesh have what was in it", log::FILE);
                return Ok(());
            }
        },
        (Some(state), None) if log::holds_entries(medium)? => (node::FILE, state, log::FILE, LOST_NODE),
        _ => return Ok(()),
    };
    if accepted {
        tracing::warn!(lost, "a lost store is made anew, as accepted: {what}");
        return Ok(());
    }
    let (lost, kept, accept) = (medium.path(lost), medium.path(kept), medium.path(ACCEPT));
    Err(PairError::Lost { lost, state, kept, what, accept })
}

fn take_accept(home: &Path) -> Result<bool, PairError> {
    let path = home.join(ACCEPT);
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(PairError::Accept { path, cause }),
    }
}

#[cfg(test)]
mod tests {
    use chappie_mesh::{
        Incarnation, NodeId,
        consensus::{Group, Write},
    };

    use super::*;
    use crate::{
        ids::SessionId,
        storage::{
            log::{ConsensusStore, Head},
            node::{Change, Key, NodeStore},
        },
    };

    fn folder(home: &Path) -> Medium {
        Medium::Folder(home.to_owned())
    }

    async fn write(home: &Path, changes: Vec<Change>) {
        let store = NodeStore::open(home).unwrap();
        store.durable(changes).await.unwrap();
        store.stop().await.unwrap();
        drop(store);
        // The writer thread lets go of the file just after it answered the stop.
        let started = std::time::Instant::now();
        while node::usage(&folder(home)).is_err() {
            assert!(started.elapsed().as_secs() < 20, "the writer never let go");
            std::thread::yield_now();
        }
    }

    async fn fill_node(home: &Path, rows: u64) {
        let session = SessionId("s1".into());
        write(home, (0..rows).map(|n| Change::set(Key::history(&session, n), &n)).collect()).await;
    }

    fn fill_consensus(home: &Path, entries: u64) {
        let (mut store, opened) = ConsensusStore::open(folder(home), NodeId::from([1; 32])).unwrap();
        assert_eq!(opened.persisted.log, []);
        let rows = (1..=entries).map(|n| (n, b"entry".to_vec())).collect();
        let group = Group { mesh: [1; 16].into(), epoch: Default::default() };
        let head = Head { group, store: [2; 16], run: Incarnation::first([3; 16]) };
        store.reset(head, vec![Write::Append(rows)]).unwrap();
    }

    fn refusal(home: &Path) -> String {
        let error = check(home).unwrap_err();
        assert!(matches!(error, PairError::Lost { .. }), "{error}");
        error.to_string()
    }

    #[tokio::test]
    async fn a_lost_consensus_store_is_refused_until_it_is_accepted_once() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        fill_node(home, 1).await;
        let told = refusal(home);
        assert!(told.contains("consensus.redb is missing") && told.contains("receipts are lost"), "{told}");
        fs::write(home.join(log::FILE), "").unwrap();
        let told = refusal(home);
        assert!(told.contains("consensus.redb is empty") && told.contains(ACCEPT), "{told}");
        assert_eq!(fs::metadata(home.join(log::FILE)).unwrap().len(), 0, "looking makes nothing");
        fs::write(home.join(ACCEPT), "").unwrap();
        check(home).unwrap();
        assert!(!home.join(ACCEPT).exists(), "it speaks for one start");
        refusal(home);
        fill_consensus(home, 0);
        check(home).unwrap();
    }

    #[tokio::test]
    async fn f15_a_device_with_others_in_its_mesh_starts_without_its_consensus_store() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        fill_node(home, 1).await;
        write(home, vec![Change::set(Key::mesh(), &"others")]).await;
        check(home).unwrap();
        fs::write(home.join(log::FILE), "").unwrap();
        check(home).unwrap();
        write(home, vec![Change::remove(Key::mesh())]).await;
        refusal(home);
    }

    #[tokio::test]
    async fn a_lost_node_store_is_refused_and_moving_the_other_away_accepts_it() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        fill_consensus(home, 2);
        let told = refusal(home);
        assert!(told.contains("node.redb is missing") && told.contains("sessions"), "{told}");
        fs::write(home.join(node::FILE), "").unwrap();
        refusal(home);
        fs::rename(home.join(log::FILE), home.join("away")).unwrap();
        check(home).unwrap();
    }

    #[tokio::test]
    async fn a_first_start_that_was_killed_at_any_point_may_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        check(home).unwrap();
        fs::write(home.join(node::FILE), "").unwrap();
        check(home).unwrap();
        fill_node(home, 0).await;
        check(home).unwrap();
        fs::write(home.join(log::FILE), "").unwrap();
        check(home).unwrap();
        fill_consensus(home, 0);
        check(home).unwrap();
        fs::remove_file(home.join(node::FILE)).unwrap();
        check(home).unwrap();
    }

    #[test]
    fn a_damaged_store_says_what_to_do_and_keeps_the_other_from_being_made() {
        for name in [node::FILE, log::FILE] {
            let folder = tempfile::tempdir().unwrap();
            let home = folder.path();
            fs::write(home.join(name), vec![b'x'; 20_000]).unwrap();
            fs::write(home.join(format!("{name}.format-1.bak")), "").unwrap();
            let told = check(home).unwrap_err().to_string();
            for word in ["is damaged", "format-1.bak", ACCEPT, "lost"] {
                assert!(told.contains(word), "'{word}' is not in: {told}");
            }
            assert!(!told.contains("another chappie"), "{told}");
        }
    }

    #[test]
    fn a_truncated_store_is_damaged_and_not_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        fill_consensus(home, 3);
        let path = home.join(log::FILE);
        let bytes = fs::read(&path).unwrap();
        for name in [node::FILE, log::FILE] {
            fs::write(home.join(name), &bytes[..bytes.len() / 3]).unwrap();
        }
        let node = NodeStore::open(home).map(|_| ()).unwrap_err().to_string();
        let broker = ConsensusStore::open(super::tests::folder(home), NodeId::from([1; 32]));
        let broker = broker.map(|_| ()).unwrap_err().to_string();
        for told in [node, broker] {
            assert!(told.contains("is damaged") && !told.contains("another chappie"), "{told}");
        }
    }
}
