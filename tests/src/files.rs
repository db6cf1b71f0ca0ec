//! Looking at files from outside the product: hashes, modes, and whole folders before and after.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// The first 16 hex digits of the SHA-256 of a file, the form in which the cases state it.
///
/// # Panics
/// When the file cannot be read.
#[must_use]
pub fn sha16(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    sha16_of(&bytes)
}

/// The same of bytes.
#[must_use]
pub fn sha16_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..8])
}

/// Permission bits.
///
/// # Panics
/// When the file is not there.
#[must_use]
pub fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o7777
}

/// The text of a file.
///
/// # Panics
/// When it cannot be read or is no UTF-8.
#[must_use]
pub fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a folder and all below it hold: kind, permission bits, content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<OsString, Item>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    File { mode: u32, sha: String, inode: u64 },
    Folder { mode: u32 },
    Link(PathBuf),
    Other(String),
}

impl Snapshot {
    /// Looks at everything below `folder`. A file that cannot be read counts by its size.
    ///
    /// # Panics
    /// When the folder cannot be read.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let mut items = BTreeMap::new();
        walk(folder, &OsString::new(), &mut items);
        Self(items)
    }

    /// The paths in it, relative to the folder.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.keys().map(|name| name.to_string_lossy().into_owned()).collect()
    }
}

fn walk(folder: &Path, prefix: &OsString, items: &mut BTreeMap<OsString, Item>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries.filter_map(Result::ok) {
        let mut name = prefix.clone();
        if !name.is_empty() {
            name.push("/");
        }
        name.push(entry.file_name());
        let Ok(facts) = fs::symlink_metadata(entry.path()) else { continue };
        let kind = facts.file_type();
        let mode = facts.permissions().mode() & 0o7777;
        let item = if kind.is_symlink() {
            Item::Link(fs::read_link(entry.path()).unwrap_or_default())
        } else if kind.is_dir() {
            walk(&entry.path(), &name, items);
            Item::Folder { mode }
        } else if kind.is_file() {
            let sha = fs::read(entry.path()).map_or_else(|_| facts.len().to_string(), |bytes| sha16_of(&bytes));
            Item::File { mode, sha, inode: facts.ino() }
        } else {
            Item::Other(format!("fifo {} device {}", kind.is_fifo(), kind.is_char_device()))
        };
        items.insert(name, item);
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
