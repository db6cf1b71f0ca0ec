//! A disk for tests: it keeps what was written apart from what was synced, can lose the difference, fail in chosen ways,
//! and make a sync wait.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use redb::{Database, StorageBackend};

use super::{ConsensusStore, Contents, OpenError, Upgrade};

/// How the disk fails until it is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Every write fails, as on a full disk.
    Full,
    /// Every sync fails and keeps nothing.
    SyncLost,
    /// Every sync keeps everything, and then says that it failed.
    SyncKept,
}

#[derive(Debug, Default)]
struct Inner {
    written: Vec<u8>,
    synced: Vec<u8>,
    fault: Option<Fault>,
    syncs: usize,
    held: bool,
}

/// The disk; clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultyDisk {
    inner: Arc<(Mutex<Inner>, Condvar)>,
}

impl FaultyDisk {
    /// Opens the store on this disk.
    pub(crate) fn open(&self, upgrade: Upgrade) -> Result<(ConsensusStore, Contents), OpenError> {
        let disk = self.clone();
        let opener = move || Database::builder().create_with_backend(disk.clone());
        ConsensusStore::with_opener(Path::new("faulty.redb"), Box::new(opener), upgrade)
    }

    /// Fails from now on.
    pub(crate) fn fail(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Works again.
    pub(crate) fn mend(&self) {
        self.lock().fault = None;
    }

    /// A disk with what a power cut would leave of this one.
    pub(crate) fn after_power_cut(&self) -> Self {
        let synced = self.lock().synced.clone();
        let inner = Inner { written: synced.clone(), synced, ..Inner::default() };
        Self { inner: Arc::new((Mutex::new(inner), Condvar::new())) }
    }

    /// How often it was synced.
    pub(crate) fn syncs(&self) -> usize {
        self.lock().syncs
    }

    /// Lets the next sync wait for [`FaultyDisk::release`].
    pub(crate) fn hold(&self) {
        self.lock().held = true;
    }

    /// Ends the wait.
    pub(crate) fn release(&self) {
        self.lock().held = false;
        self.inner.1.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.0.lock().unwrap()
    }
}

/// A file for tests that need a path of their own.
pub(crate) fn store_path(home: &Path) -> PathBuf {
    home.join("consensus.redb")
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().written.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let inner = self.lock();
        let bytes = inner.written.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.lock().written.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.lock();
        while inner.held {
            inner = self.inner.1.wait(inner).unwrap();
        }
        inner.syncs += 1;
        if inner.fault != Some(Fault::SyncLost) {
            inner.synced = inner.written.clone();
        }
        match inner.fault {
            None => Ok(()),
            Some(_) => Err(io::Error::other("the test's disk does not sync")),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let mut inner = self.lock();
        if inner.fault == Some(Fault::Full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.written[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}
