//! Where a node's databases are: files in its home folder, or the disks of a simulation. Knows nothing of what is in them.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt as _, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use redb::{Builder, Database, DatabaseError, StorageBackend};

use super::disk::Reserve;

/// Bytes at the begin of a file by which redb knows its own.
const MARK_BYTES: u64 = 9;
/// redb's pages; its header is in the first.
const PAGE_BYTES: u64 = 4_096;

/// Which file it is: what stays with a file however often it is written, and is another one for each copy of it. On a file
/// system it is the inode's number and the time of its making.
pub type Mark = [u8; 16];

/// The disks of one simulated node. A simulation decides what a crash leaves of them.
pub trait Disks: fmt::Debug + Send + Sync + 'static {
    /// The file `name`, which is empty when it was never there.
    ///
    /// # Errors
    /// What the simulated system says.
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>>;

    /// Copies the file `from` to `to`, whole or not at all, and durably.
    ///
    /// # Errors
    /// `AlreadyExists` when `to` is there; what the simulated system says.
    fn archive(&self, from: &str, to: &str) -> io::Result<()>;

    /// Which file `name` is; `None` where copies cannot be told from their originals.
    fn mark(&self, _name: &str) -> Option<Mark> {
        None
    }
}

/// Whether a file that was marked as `kept` when it was last in use is a copy of that one (failure rule F15). Where files
/// have no marks, or it was never marked, none is.
pub(super) fn is_copy(kept: Option<Mark>, now: Option<Mark>) -> bool {
    matches!((kept, now), (Some(kept), Some(now)) if kept != now)
}

/// Where databases are.
#[derive(Clone, Debug)]
pub enum Medium {
    /// Files in this folder.
    Folder(PathBuf),
    /// Simulated disks.
    Simulated(Arc<dyn Disks>),
}

impl Medium {
    /// How the file `name` is called in messages.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(home) => home.join(name),
            Self::Simulated(_) => PathBuf::from(name),
        }
    }

    /// The folder, when there is one.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(home) => Some(home),
            Self::Simulated(_) => None,
        }
    }

    /// A reserve beside the databases; a simulated disk has none.
    pub(super) fn reserve(&self, name: &str, bytes: u64) -> Option<Reserve> {
        self.folder().map(|home| Reserve::hold(home, name, bytes))
    }

    /// Opens or makes the database `name`, readable by its owner only. One whose making was cut off is made again.
    pub(super) fn open(&self, name: &str, builder: &Builder) -> Result<Database, DatabaseError> {
        match self {
            Self::Folder(home) => {
                let path = home.join(name);
                make_private(&path)?;
                let file = OpenOptions::new().read(true).write(true).open(&path)?;
                // Looked at again under the lock: who holds it may be making it right now.
                if blank_file(&file)? && file.try_lock().is_ok() && blank_file(&file)? {
                    file.set_len(0)?;
                }
                drop(file);
                builder.create(path)
            }
            Self::Simulated(disks) => {
                let file = SimulatedFile(disks.open(name)?);
                if blank_simulated(&file)? {
                    file.set_len(0)?;
                }
                builder.create_with_backend(file)
            }
        }
    }

    /// How the file `name` is gone, in a word; `None` when something is there, also when it cannot be looked at: opening
    /// tells.
    pub(super) fn gone(&self, name: &str) -> Option<&'static str> {
        let blank = match self {
            Self::Folder(home) => match File::open(home.join(name)) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Some("missing"),
                file => file.and_then(|file| blank_file(&file)),
            },
            Self::Simulated(disks) => disks.open(name).and_then(|file| blank_simulated(&SimulatedFile(file))),
        };
        blank.is_ok_and(|blank| blank).then_some("empty")
    }

    /// Which file `name` is, to be kept in it: a file that says it is another one is a copy (failure rule F15). `None` when
    /// it is not there, or its file system does not say when it was made.
    #[must_use]
    pub fn mark(&self, name: &str) -> Option<Mark> {
        match self {
            Self::Folder(home) => {
                let meta = fs::metadata(home.join(name)).ok()?;
                let made = meta.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
                let made = u64::try_from(made.as_nanos()).ok()?;
                Some((u128::from(meta.ino()) << 64 | u128::from(made)).to_be_bytes())
            }
            Self::Simulated(disks) => disks.mark(name),
        }
    }

    /// Copies the closed file `from` over an older copy `to`, whole or not at all.
    pub(super) fn back_up(&self, from: &str, to: &str) -> io::Result<()> {
        match self {
            Self::Folder(home) => copy_file(&home.join(from), &home.join(to)),
            Self::Simulated(disks) => match disks.archive(from, to) {
                // Of the same start, which a crash cut off: nothing was changed since.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            },
        }
    }

    /// Lets the system forget what it keeps of the file `name` in memory, as far as it can: after a sync that failed,
    /// memory may hold what is not on the disk and never will be, and only the disk may be believed (failure rule F25).
    pub(super) fn forget_cached(&self, name: &str) {
        if let Self::Folder(home) = self
            && let Ok(file) = File::open(home.join(name))
            && let Err(error) = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        {
            tracing::warn!(name, %error, "the system's memory of a file could not be dropped");
        }
    }
}

fn blank_file(file: &File) -> io::Result<bool> {
    is_blank(file.metadata()?.len(), |offset, out| file.read_exact_at(out, offset))
}

fn blank_simulated(file: &SimulatedFile) -> io::Result<bool> {
    is_blank(file.len()?, |offset, out| file.read(offset, out))
}

/// Whether a file is empty, or redb was interrupted when it made a database in it: it writes its mark last, and nothing
/// beyond the first page before that.
fn is_blank(length: u64, read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<bool> {
    let mut mark = [0; MARK_BYTES as usize];
    if length == 0 {
        return Ok(true);
    }
    if length < MARK_BYTES {
        return Ok(false);
    }
    read(0, &mut mark)?;
    if mark != [0; MARK_BYTES as usize] {
        return Ok(false);
    }
    let mut page = [0; PAGE_BYTES as usize];
    for offset in (PAGE_BYTES..length).step_by(PAGE_BYTES as usize) {
        let part = usize::try_from(length - offset).unwrap_or(usize::MAX).min(page.len());
        read(offset, &mut page[..part])?;
        if page[..part].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the disk, or this user's share of it, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// redb takes a backend by value; this is one behind a box.
#[derive(Debug)]
struct SimulatedFile(Box<dyn StorageBackend>);

impl StorageBackend for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

/// `path` with `.suffix` added to its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the file, readable by its owner only, when it is not there; its name is then on disk too.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => sync_folder(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Puts the name of `path` on disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let staged = beside(to, "tmp");
    let copied = fs::copy(from, &staged).and_then(|_| File::open(&staged)?.sync_all());
    let settled = copied.and_then(|()| fs::rename(&staged, to)).and_then(|()| sync_folder(to));
    settled.inspect_err(|_| {
        let _ = fs::remove_file(&staged);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::faulty::{FaultyDisks, Left};

    const NAME: &str = "x.redb";

    #[test]
    fn a_database_whose_making_was_cut_off_at_any_write_is_made_again() {
        let whole = FaultyDisks::default();
        drop(whole.medium().open(NAME, &Builder::new()).unwrap());
        let mut blank = 0;
        for end in 0..whole.operations() {
            for left in [Left::Nothing, Left::Everything, Left::Even, Left::Odd, Left::Torn] {
                let disks = FaultyDisks::default();
                disks.end_at(end);
                drop(disks.medium().open(NAME, &Builder::new()));
                let disks = disks.after_crash(left);
                blank += usize::from(disks.medium().gone(NAME).is_some() && !disks.bytes(NAME).is_empty());
                let home = tempfile::tempdir().unwrap();
                fs::write(home.path().join(NAME), disks.bytes(NAME)).unwrap();
                let folder = Medium::Folder(home.path().to_owned());
                assert_eq!(folder.gone(NAME), disks.medium().gone(NAME));
                for medium in [disks.medium(), folder] {
                    medium.open(NAME, &Builder::new()).unwrap();
                    assert_eq!(medium.gone(NAME), None);
                }
            }
        }
        assert!(blank > 1, "{blank}");
    }

    #[test]
    fn f15_a_copy_of_a_file_has_another_mark_and_the_file_keeps_its_own() {
        let home = tempfile::tempdir().unwrap();
        let medium = Medium::Folder(home.path().to_owned());
        assert_eq!(medium.mark(NAME), None);
        drop(medium.open(NAME, &Builder::new()).unwrap());
        let mark = medium.mark(NAME);
        assert!(mark.is_some(), "this file system says when files were made");
        drop(medium.open(NAME, &Builder::new()).unwrap());
        fs::rename(home.path().join(NAME), home.path().join("moved")).unwrap();
        assert_eq!(medium.mark("moved"), mark);
        fs::copy(home.path().join("moved"), home.path().join(NAME)).unwrap();
        fs::remove_file(home.path().join("moved")).unwrap();
        assert!(is_copy(mark, medium.mark(NAME)));
        assert!(!is_copy(mark, mark) && !is_copy(None, mark) && !is_copy(mark, None));
    }

    #[test]
    fn a_file_with_anything_in_it_is_not_taken_for_one_that_was_cut_off() {
        let home = tempfile::tempdir().unwrap();
        let medium = Medium::Folder(home.path().to_owned());
        assert_eq!(medium.gone(NAME), Some("missing"));
        let mut later = vec![0; 3 * 4_096];
        later[2 * 4_096 + 5] = 1;
        for bytes in [vec![0; 8], b"redb".to_vec(), vec![1; 9], later] {
            fs::write(home.path().join(NAME), &bytes).unwrap();
            assert_eq!(medium.gone(NAME), None);
            assert!(medium.open(NAME, &Builder::new()).is_err());
            assert_eq!(fs::read(home.path().join(NAME)).unwrap(), bytes);
        }
        fs::write(home.path().join(NAME), vec![0; 10_000]).unwrap();
        assert_eq!(medium.gone(NAME), Some("empty"));
    }
}
