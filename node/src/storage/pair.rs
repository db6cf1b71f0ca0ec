//! The two stores of a home belong together: with one of them lost, a node that makes it anew would run operations a
//! second time. Looked at before either is opened; makes neither.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    consensus,
    damage::{ACCEPT, LOST_CONSENSUS, LOST_NODE},
    node,
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
    Consensus(#[from] consensus::OpenError),
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
    let (node, consensus) = (home.join(node::FILE), home.join(consensus::FILE));
    let accepted = take_accept(home)?;
    let lost = match (gone(&node), gone(&consensus)) {
        (None, Some(state)) if node::holds_rows(&node)? => (consensus, state, node, LOST_CONSENSUS),
        (Some(state), None) if consensus::holds_entries(&consensus)? => (node, state, consensus, LOST_NODE),
        _ => return Ok(()),
    };
    let (lost, state, kept, what) = lost;
    if accepted {
        tracing::warn!(lost = %lost.display(), "a lost store is made anew, as accepted: {what}");
        return Ok(());
    }
    Err(PairError::Lost { lost, state, kept, what, accept: home.join(ACCEPT) })
}

fn take_accept(home: &Path) -> Result<bool, PairError> {
    let path = home.join(ACCEPT);
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(PairError::Accept { path, cause }),
    }
}

/// How the store at `path` is gone; `None` when something is there, also when it cannot be looked at: opening tells.
fn gone(path: &Path) -> Option<&'static str> {
    match fs::metadata(path) {
        Ok(facts) if facts.len() == 0 => Some("empty"),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Some("missing"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SessionId,
        storage::{
            consensus::ConsensusStore,
            node::{Change, Key, NodeStore},
        },
    };

    async fn fill_node(home: &Path, rows: u64) {
        let store = NodeStore::open(home).unwrap();
        let session = SessionId("s1".into());
        let changes = (0..rows).map(|n| Change::set(Key::history(&session, n), &n)).collect();
        store.durable(changes).await.unwrap();
        store.stop().await.unwrap();
        drop(store);
        // The writer thread lets go of the file just after it answered the stop.
        let started = std::time::Instant::now();
        while node::holds_rows(&home.join(node::FILE)).is_err() {
            assert!(started.elapsed().as_secs() < 20, "the writer never let go");
            std::thread::yield_now();
        }
    }

    fn fill_consensus(home: &Path, entries: u64) {
        let open = ConsensusStore::open(&home.join(consensus::FILE), |_| Vec::new());
        let (mut store, _) = open.unwrap();
        let rows: Vec<_> = (1..=entries).map(|n| (n, b"entry".to_vec())).collect();
        store.append(&rows).unwrap();
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
        fs::write(home.join(consensus::FILE), "").unwrap();
        let told = refusal(home);
        assert!(told.contains("consensus.redb is empty") && told.contains(ACCEPT), "{told}");
        assert_eq!(fs::metadata(home.join(consensus::FILE)).unwrap().len(), 0, "looking makes nothing");
        fs::write(home.join(ACCEPT), "").unwrap();
        check(home).unwrap();
        assert!(!home.join(ACCEPT).exists(), "it speaks for one start");
        refusal(home);
        fill_consensus(home, 0);
        check(home).unwrap();
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
        fs::rename(home.join(consensus::FILE), home.join("away")).unwrap();
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
        fs::write(home.join(consensus::FILE), "").unwrap();
        check(home).unwrap();
        fill_consensus(home, 0);
        check(home).unwrap();
        fs::remove_file(home.join(node::FILE)).unwrap();
        check(home).unwrap();
    }

    #[test]
    fn a_damaged_store_says_what_to_do_and_keeps_the_other_from_being_made() {
        for name in [node::FILE, consensus::FILE] {
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
        let path = home.join(consensus::FILE);
        let bytes = fs::read(&path).unwrap();
        for name in [node::FILE, consensus::FILE] {
            fs::write(home.join(name), &bytes[..bytes.len() / 3]).unwrap();
        }
        let node = NodeStore::open(home).map(|_| ()).unwrap_err().to_string();
        let broker = ConsensusStore::open(&path, |_| Vec::new()).map(|_| ()).unwrap_err().to_string();
        for told in [node, broker] {
            assert!(told.contains("is damaged") && !told.contains("another chappie"), "{told}");
        }
    }
}
