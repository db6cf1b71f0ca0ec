//! The note of one staging in progress: which file of ours, and which folders made for it, a killed node leaves behind.
//!
//! A note is not put on disk before the staging starts: it survives the death of the node, not a power cut. After that
//! a file named `.chappie-…` can stay; it is never mistaken for anybody else's.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use super::PREFIX;

/// A note on disk; gone when dropped.
#[derive(Debug)]
pub(super) struct Record(PathBuf);

/// Between the paths of a note: the one byte that no path holds.
const SEPARATOR: u8 = 0;

impl Record {
    pub(super) fn write(home: &Path, token: &str, staged: &Path, folders: &[PathBuf]) -> io::Result<Self> {
        let dir = home.join("staging");
        let path = dir.join(token);
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = match create() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
                create()?
            }
            result => result?,
        };
        let record = Self(path);
        let paths: Vec<_> = [staged].into_iter().chain(folders.iter().map(PathBuf::as_path)).collect();
        file.write_all(&paths.iter().map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&SEPARATOR))?;
        Ok(record)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes what the stagings of an earlier, killed run of this node left: staged files, and folders made for them that
/// are still empty. Returns the removed files. To be called before the node takes work.
///
/// # Errors
/// When the notes cannot be listed. A single leftover that cannot be removed keeps its note for the next start.
pub fn sweep(home: &Path) -> io::Result<Vec<PathBuf>> {
    let notes = match fs::read_dir(home.join("staging")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        notes => notes?,
    };
    let mut removed = Vec::new();
    for note in notes {
        let note = note?;
        let text = fs::read(note.path())?;
        let mut paths = text.split(|byte| *byte == SEPARATOR).map(|path| Path::new(OsStr::from_bytes(path)));
        let Some(staged) = paths.next().filter(|staged| is_ours(staged, &note.file_name())) else {
            // Killed while it wrote the note, so before it staged anything.
            fs::remove_file(note.path())?;
            continue;
        };
        match fs::remove_file(staged) {
            Ok(()) => removed.push(staged.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => continue,
        }
        for folder in paths.collect::<Vec<_>>().into_iter().rev() {
            // Refused by the system unless it is empty.
            let _ = fs::remove_dir(folder);
        }
        fs::remove_file(note.path())?;
    }
    Ok(removed)
}

/// Whether a note named `token` may speak of `staged`.
fn is_ours(staged: &Path, token: &OsStr) -> bool {
    let name = staged.file_name().map(OsStr::as_bytes).unwrap_or_default();
    staged.is_absolute() && name.strip_prefix(PREFIX.as_bytes()) == Some(token.as_bytes())
}
