//! One mutation lock per real file on the node, shared by the tools of all its sessions, so that two edits of one file
//! happen one after the other and neither is lost.
//!
//! A file is locked by its real path and, when it exists, by its device and inode too: hard links and bind mounts of one
//! file share a lock. Not a lock against other programs: against those, `edit` compares the file before it commits.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

/// The node's locks. Clones share them. Locks exist only while somebody holds or awaits them.
#[derive(Clone, Debug, Default)]
pub struct PathLocks(Arc<Mutex<Table>>);

type Table = HashMap<Key, Arc<tokio::sync::Mutex<()>>>;

/// What a lock is on. Ordered: everybody takes the path first and the inode second, so nobody waits in a circle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Path(PathBuf),
    Inode { device: u64, inode: u64 },
}

/// The file may be changed while this lives.
#[derive(Debug)]
pub struct PathGuard {
    _path: Held,
    _inode: Option<Held>,
}

/// Why no lock was given.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The caller gave up.
    #[error("cancelled while waiting for another change of the same file; nothing was changed")]
    Cancelled,
    /// Another program replaces the file again and again.
    #[error("another program replaced the file {ATTEMPTS} times while this waited for it; try again when it has ended")]
    Restless,
    /// The file cannot be looked at.
    #[error("{}; nothing was changed", super::paths::cause(.0))]
    Look(#[from] io::Error),
}

/// A holder replaces the file once, so a waiter looks again once for each holder before it; more means that somebody
/// outside replaces it.
const ATTEMPTS: usize = 64;

impl PathLocks {
    /// Waits for the lock on `real`, which is a path without symbolic links (see [`super::paths::real`]). Waiters are
    /// served in order. The wait ends early only by `cancel`; its length is bounded by that of the holders' changes.
    ///
    /// # Errors
    /// See [`LockError`].
    pub async fn lock(&self, real: &Path, cancel: &CancellationToken) -> Result<PathGuard, LockError> {
        let path = self.hold(Key::Path(real.to_owned()), cancel).await?;
        for _ in 0..ATTEMPTS {
            let Some(key) = inode(real)? else { return Ok(PathGuard { _path: path, _inode: None }) };
            let held = self.hold(key.clone(), cancel).await?;
            // Who held it before, under another name of the file, may have put another inode in its place.
            if inode(real)? == Some(key) {
                return Ok(PathGuard { _path: path, _inode: Some(held) });
            }
        }
        Err(LockError::Restless)
    }

    async fn hold(&self, key: Key, cancel: &CancellationToken) -> Result<Held, LockError> {
        let lock = Arc::clone(self.table().entry(key.clone()).or_default());
        let claim = Claim { locks: self.clone(), key };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(LockError::Cancelled),
            guard = lock.lock_owned() => Ok(Held { guard: Some(guard), _claim: claim }),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The inode at `real`, or `None` when nothing is there yet.
fn inode(real: &Path) -> io::Result<Option<Key>> {
    match fs::symlink_metadata(real) {
        Ok(found) => Ok(Some(Key::Inode { device: found.dev(), inode: found.ino() })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Debug)]
struct Held {
    guard: Option<OwnedMutexGuard<()>>,
    _claim: Claim,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Before the claim, which counts who is left.
        self.guard = None;
    }
}

/// One holder's or waiter's interest in an entry; the last one to go takes the entry with it.
#[derive(Debug)]
struct Claim {
    locks: PathLocks,
    key: Key,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.locks.table();
        // Interest is only ever taken under the table's lock, so a count of one means that only the table is left.
        if table.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            table.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::*;

    async fn lock(locks: &PathLocks, path: &Path) -> PathGuard {
        locks.lock(path, &CancellationToken::new()).await.unwrap()
    }

    /// Whether a lock on `path` must wait, without waiting.
    async fn is_taken(locks: &PathLocks, path: &Path) -> bool {
        let cancel = CancellationToken::new();
        let attempt = locks.lock(path, &cancel);
        tokio::pin!(attempt);
        std::future::poll_fn(|context| std::task::Poll::Ready(attempt.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn a_path_is_locked_once_and_another_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let locks = PathLocks::default();
        let guard = lock(&locks, &dir.path().join("a")).await;
        assert!(is_taken(&locks.clone(), &dir.path().join("a")).await);
        assert!(!is_taken(&locks, &dir.path().join("b")).await);
        drop(guard);
        assert!(!is_taken(&locks, &dir.path().join("a")).await);
    }

    #[tokio::test]
    async fn hard_links_share_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::write(&one, "x").unwrap();
        fs::hard_link(&one, &two).unwrap();
        let locks = PathLocks::default();
        let _guard = lock(&locks, &one).await;
        assert!(is_taken(&locks, &two).await);
    }

    #[tokio::test]
    async fn no_entry_outlives_its_holders_and_waiters() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "x").unwrap();
        let locks = PathLocks::default();
        let guard = lock(&locks, &path).await;
        assert!(is_taken(&locks, &path).await);
        assert_eq!(locks.table().len(), 2);
        drop(guard);
        assert_eq!(locks.table().len(), 0);
    }

    #[tokio::test]
    async fn a_cancelled_wait_ends_at_once_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let locks = PathLocks::default();
        let guard = lock(&locks, &path).await;
        let cancel = CancellationToken::new();
        let waiter = tokio::spawn({
            let (locks, path, cancel) = (locks.clone(), path.clone(), cancel.clone());
            async move { locks.lock(&path, &cancel).await.map(drop) }
        });
        cancel.cancel();
        assert!(matches!(waiter.await.unwrap(), Err(LockError::Cancelled)));
        drop(guard);
        assert_eq!(locks.table().len(), 0);
    }

    #[tokio::test]
    async fn a_waiter_whose_file_was_replaced_holds_the_new_inode() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link, new) = (dir.path().join("a"), dir.path().join("link"), dir.path().join("new"));
        fs::write(&path, "old").unwrap();
        fs::hard_link(&path, &link).unwrap();
        let locks = PathLocks::default();
        let guard = lock(&locks, &link).await;
        let waiter = tokio::spawn({
            let (locks, path) = (locks.clone(), path.clone());
            async move { lock(&locks, &path).await }
        });
        while locks.table().len() < 3 {
            tokio::task::yield_now().await;
        }
        fs::write(&new, "new").unwrap();
        fs::rename(&new, &path).unwrap();
        drop(guard);
        let _held = waiter.await.unwrap();
        let key = inode(&path).unwrap().unwrap();
        assert!(locks.table().contains_key(&key));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn holders_never_overlap() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let (locks, inside) = (PathLocks::default(), Arc::new(AtomicBool::new(false)));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (locks, path, inside) = (locks.clone(), path.clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    let _guard = lock(&locks, &path).await;
                    assert!(!inside.swap(true, Ordering::SeqCst));
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}
