//! Disks for tests: they keep what was written apart from what was synced, can lose the difference or a part of it, fail in
//! chosen ways, end at a chosen operation, and make a sync wait.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use redb::StorageBackend;

use super::medium::{Disks, Medium};

/// How the disks fail until they are mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Every write fails, as on a full disk.
    Full,
    /// The same, while a file of the real system takes the place.
    FullWhile(PathBuf),
    /// Every sync fails and keeps nothing.
    SyncLost,
    /// Every sync keeps everything, and then says that it failed.
    SyncKept,
    /// Every sync keeps nothing, and says that it did.
    SyncSkipped,
}

/// What a crash leaves of the writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// Every second one, from the first.
    Even,
    /// Every second one, from the second.
    Odd,
    /// All but the last, and of that one the first half.
    Torn,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Clone, Debug, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Length(length) => self.0.resize(usize::try_from(*length).unwrap(), 0),
            Change::Write(offset, data) => {
                let start = usize::try_from(*offset).unwrap();
                if self.0.len() < start + data.len() {
                    self.0.resize(start + data.len(), 0);
                }
                self.0[start..start + data.len()].copy_from_slice(data);
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
struct File {
    written: Bytes,
    synced: Bytes,
    unsynced: Vec<Change>,
}

impl File {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            self.synced.apply(&change);
        }
    }

    fn left(&self, left: Left) -> Self {
        let mut synced = self.synced.clone();
        let last = self.unsynced.len().saturating_sub(1);
        for (at, change) in self.unsynced.iter().enumerate() {
            match (left, change) {
                (Left::Nothing, _) => {}
                (Left::Torn, Change::Write(offset, data)) if at == last => {
                    synced.apply(&Change::Write(*offset, data[..data.len() / 2].to_vec()));
                }
                (Left::Even, _) if at % 2 == 1 => {}
                (Left::Odd, _) if at % 2 == 0 => {}
                _ => synced.apply(change),
            }
        }
        Self { written: synced.clone(), synced, unsynced: Vec::new() }
    }
}

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<String, File>,
    fault: Option<Fault>,
    once: bool,
    syncs: usize,
    held: bool,
    operations: usize,
    ends_at: Option<usize>,
}

impl Inner {
    fn file(&mut self, name: &str) -> &mut File {
        self.files.entry(name.to_owned()).or_default()
    }

    /// Counts an operation that changes something; an error when the disks have ended.
    fn count(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.ends_at {
            Some(end) if self.operations > end => Err(io::Error::other("the test's disk has ended")),
            _ => Ok(()),
        }
    }

    fn fault(&mut self) -> Option<Fault> {
        if self.once { self.fault.take() } else { self.fault.clone() }
    }
}

/// The disks of one node; clones are the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultyDisks {
    inner: Arc<(Mutex<Inner>, Condvar)>,
}

impl FaultyDisks {
    /// For the stores.
    pub(crate) fn medium(&self) -> Medium {
        Medium::Simulated(Arc::new(self.clone()))
    }

    /// Fails from now on.
    pub(crate) fn fail(&self, fault: Fault) {
        let mut inner = self.lock();
        (inner.fault, inner.once) = (Some(fault), false);
    }

    /// Fails at the next operation that the fault is about, and then works again.
    pub(crate) fn fail_once(&self, fault: Fault) {
        let mut inner = self.lock();
        (inner.fault, inner.once) = (Some(fault), true);
    }

    /// Works again.
    pub(crate) fn mend(&self) {
        self.lock().fault = None;
    }

    /// Disks with what a power cut would leave of these: what was synced.
    pub(crate) fn after_power_cut(&self) -> Self {
        self.after_crash(Left::Nothing)
    }

    /// Disks with what a crash of that kind would leave of these.
    pub(crate) fn after_crash(&self, left: Left) -> Self {
        let files = self.lock().files.iter().map(|(name, file)| (name.clone(), file.left(left))).collect();
        Self { inner: Arc::new((Mutex::new(Inner { files, ..Inner::default() }), Condvar::new())) }
    }

    /// The file, cut off by so many bytes.
    pub(crate) fn truncate(&self, name: &str, bytes: usize) {
        let mut inner = self.lock();
        let file = inner.file(name);
        assert!(file.unsynced.is_empty(), "the file is in use");
        let length = file.synced.0.len() - bytes;
        file.synced.0.truncate(length);
        file.written = file.synced.clone();
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        self.lock().file(name).written.0.clone()
    }

    /// Puts other bytes into the file.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        let bytes = Bytes(bytes);
        let file = File { written: bytes.clone(), synced: bytes, unsynced: Vec::new() };
        self.lock().files.insert(name.to_owned(), file);
    }

    /// How often they were synced.
    pub(crate) fn syncs(&self) -> usize {
        self.lock().syncs
    }

    /// How often something was written, resized or synced.
    pub(crate) fn operations(&self) -> usize {
        self.lock().operations
    }

    /// Everything fails after so many operations.
    pub(crate) fn end_at(&self, operations: usize) {
        self.lock().ends_at = Some(operations);
    }

    /// Lets the next sync wait for [`FaultyDisks::release`].
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

impl Disks for FaultyDisks {
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        self.lock().file(name);
        Ok(Box::new(Handle { disks: self.clone(), name: name.to_owned() }))
    }

    fn archive(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.files.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let copy = inner.file(from).left(Left::Everything);
        inner.files.insert(to.to_owned(), copy);
        Ok(())
    }
}

/// One open file.
#[derive(Debug)]
struct Handle {
    disks: FaultyDisks,
    name: String,
}

impl Handle {
    fn change(&self, change: Change) -> io::Result<()> {
        let mut inner = self.disks.lock();
        inner.count()?;
        let full = match &inner.fault {
            Some(Fault::Full) => true,
            Some(Fault::FullWhile(path)) => path.exists(),
            _ => false,
        };
        if full && matches!(change, Change::Write(..)) {
            inner.fault();
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = inner.file(&self.name);
        file.written.apply(&change);
        file.unsynced.push(change);
        Ok(())
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disks.lock().file(&self.name).written.0.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        let mut inner = self.disks.lock();
        let bytes = inner.file(&self.name).written.0.get(start..start + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.disks.lock();
        while inner.held {
            inner = self.disks.inner.1.wait(inner).unwrap();
        }
        inner.count()?;
        inner.syncs += 1;
        let fault = match &inner.fault {
            Some(Fault::SyncLost | Fault::SyncKept | Fault::SyncSkipped) => inner.fault(),
            _ => None,
        };
        if !matches!(fault, Some(Fault::SyncLost | Fault::SyncSkipped)) {
            inner.file(&self.name).sync();
        }
        match fault {
            None | Some(Fault::SyncSkipped) => Ok(()),
            Some(_) => Err(io::Error::other("the test's disk does not sync")),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(offset, data.to_vec()))
    }
}
