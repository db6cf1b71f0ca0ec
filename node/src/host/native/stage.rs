//! Replacing a file whole or not at all: the new bytes are staged under a name of ours in the same folder, put on disk,
//! then renamed over the real file. A failure or a cancellation before the rename leaves the old file and nothing beside
//! it; a killed node's staging is recorded under `<CHAPPIE_HOME>/staging/` and removed at its next start ([`sweep`]).
//!
//! Kept of a replaced file: permission bits, extended attributes with access lists, and the owner where the system allows
//! it; what could not be kept is said ([`Committed::notes`]). A file with several hard links is replaced under this one
//! name and the others keep the old content, because writing in place could leave half a file; that is said too. Times
//! are those of the change. Nothing here decides who may write or what: callers hold the lock of [`super::locks`].

mod attributes;
mod record;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, accessat},
    io::Errno,
};

use self::record::Record;
pub use self::record::sweep;
use super::{
    paths::{Kind, cause},
    seen::Fingerprint,
};
use crate::clock;

/// Begins the name of every staged file.
pub const PREFIX: &str = ".chappie-";

/// What stands at a real path that is to be replaced; `None` when nothing does.
///
/// # Errors
/// [`TargetError`] when it is not a file or not to be written.
pub fn target(real: &Path) -> Result<Option<Metadata>, TargetError> {
    let found = match fs::symlink_metadata(real) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match Kind::of(found.file_type()) {
        Kind::File => {}
        other => return Err(TargetError::Kind(other)),
    }
    // The superuser may write everything, but a file that its owner protected stays protected.
    let protected = found.mode() & 0o200 == 0 && rustix::process::geteuid().is_root();
    match accessat(CWD, real, rustix::fs::Access::WRITE_OK, AtFlags::EACCESS) {
        _ if protected => Err(TargetError::ReadOnly),
        Ok(()) => Ok(Some(found)),
        Err(error) => Err(refusal(found.uid(), found.mode(), rustix::process::geteuid().as_raw(), error)),
    }
}

/// Why user `us` may not write a file of `owner`: only what the owner can mend is worth advising to the owner.
fn refusal(owner: u32, mode: u32, us: u32, error: Errno) -> TargetError {
    match error {
        Errno::ACCESS | Errno::PERM if owner != us => TargetError::Owner { owner, mode: mode & 0o7777, us },
        Errno::ACCESS if mode & 0o200 == 0 => TargetError::ReadOnly,
        other => TargetError::System(other.into()),
    }
}

/// Why a file is not to be replaced.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Only regular files are.
    #[error("is {}, not a file; nothing was changed", .0.noun())]
    Kind(Kind),
    /// As an editor would refuse.
    #[error("is read-only; nothing was changed. Make it writable first (chmod u+w) if it is meant to change")]
    ReadOnly,
    /// Another user's, who does not let us write it.
    #[error(
        "permission denied: it belongs to user {owner} with mode {mode:04o}, and the node runs as user {us}; nothing \
         was changed. Its owner or root must permit writing, or choose another file"
    )]
    Owner {
        /// User id of the file's owner.
        owner: u32,
        /// Permission bits.
        mode: u32,
        /// Our effective user id.
        us: u32,
    },
    /// What the system says.
    #[error("{}; nothing was changed", cause(.0))]
    System(#[from] io::Error),
}

/// Why a file was not replaced. It stands as before, and nothing was left beside it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {}; nothing was changed. {}", path.display(), cause(source), advice(source))]
pub struct StageError {
    /// What was attempted, to follow "cannot".
    pub action: &'static str,
    /// Where.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "Free some space there, then call again",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "The folder must be writable for the session's user; choose another place or change that first"
        }
        io::ErrorKind::ResourceBusy => {
            "It cannot be replaced in one step; if that is meant, change it in place with `bash`"
        }
        _ => "Mend the cause, then call again",
    }
}

/// New content that is complete on disk under a name of ours. Dropped, it is removed with every folder made for it.
#[derive(Debug)]
pub struct Staged {
    target: PathBuf,
    file: File,
    notes: Vec<String>,
    leftovers: Leftovers,
}

/// A file that was replaced or made.
#[derive(Debug)]
pub struct Committed {
    /// Its state now.
    pub state: Fingerprint,
    /// What the caller should know, each a sentence without a full stop.
    pub notes: Vec<String>,
}

/// Stages `bytes` for the real path `real`, whose present state is `before`. Folders on the way are made. `home` is
/// `CHAPPIE_HOME`. Blocks on the disk.
///
/// # Errors
/// See [`StageError`].
pub fn stage(home: &Path, real: &Path, bytes: &[u8], before: Option<&Metadata>) -> Result<Staged, StageError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| StageError { action, path, source }
    };
    let folder = real.parent().unwrap_or_else(|| Path::new("/"));
    let token = clock::token();
    let path = folder.join(format!("{PREFIX}{token}"));
    let missing = if before.is_some() { Vec::new() } else { missing_folders(folder) };
    let record = Record::write(home, &token, &path, &missing).map_err(failed("record the change in", home))?;
    let mut leftovers = Leftovers { path, made: Vec::new(), _record: record };
    for folder in missing {
        match DirBuilder::new().create(&folder) {
            Ok(()) => leftovers.made.push(folder),
            // Somebody else made it in between, so it is not ours to remove.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("make the folder", &folder)(error)),
        }
    }
    // A new file gets what the umask, or the folder's default access list, leaves of 0666. A replacement is private until
    // it has its predecessor's permissions.
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&leftovers.path)
        .map_err(failed("make a file beside", real))?;
    file.write_all(bytes).map_err(failed("write", real))?;
    let notes = match before {
        Some(before) => attributes::keep(real, before, &file).map_err(failed("set the permissions of", real))?,
        None => Vec::new(),
    };
    file.sync_all().map_err(failed("write", real))?;
    Ok(Staged { target: real.to_owned(), file, notes, leftovers })
}

impl Staged {
    /// Puts the staged content in the target's place. Blocks on the disk.
    ///
    /// # Errors
    /// See [`StageError`].
    pub fn commit(mut self) -> Result<Committed, StageError> {
        fs::rename(&self.leftovers.path, &self.target).map_err(|source| StageError {
            action: "replace",
            path: self.target.clone(),
            source,
        })?;
        let made = std::mem::take(&mut self.leftovers.made);
        let mut notes = std::mem::take(&mut self.notes);
        for folder in made.iter().map(PathBuf::as_path).chain([self.target.as_path()]).filter_map(Path::parent) {
            if let Err(error) = sync_folder(folder) {
                notes.push(format!("the change is made, but may not survive a power cut: {}", cause(&error)));
                break;
            }
        }
        let state = self.file.metadata().map_err(|source| StageError {
            action: "look at the new content of",
            path: self.target.clone(),
            source,
        })?;
        Ok(Committed { state: Fingerprint::of(&state), notes })
    }
}

/// What must go unless the staged file is committed; the rename takes the file away and `commit` empties `made`.
#[derive(Debug)]
struct Leftovers {
    path: PathBuf,
    /// Outermost first.
    made: Vec<PathBuf>,
    /// Dropped last: while anything of ours may be left, the record of it is.
    _record: Record,
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The folders that must be made so that `folder` is there, outermost first.
fn missing_folders(folder: &Path) -> Vec<PathBuf> {
    let mut missing: Vec<_> =
        folder.ancestors().take_while(|folder| fs::symlink_metadata(folder).is_err()).map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// Makes a rename in `folder` durable. Some file systems have nothing to do for a folder and say so.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        result => result,
    }
}
