//! Room on disk (failure rule F25): how much is left, and a reserve that is given up so that outcomes, votes and cancels
//! still find a place when everything else is full.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Below this much free space new mutating work is refused before it is accepted (F25).
pub const FREE_MIN_BYTES: u64 = 64 << 20;

/// Size of the reserve. An outcome is at most a few dozen KiB; a megabyte carries every operation in flight.
const RESERVE_BYTES: usize = 1 << 20;

/// Bytes an ordinary user can still write on the file system of `path`.
///
/// # Errors
/// What `statvfs` says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// A file of real blocks that can be deleted to make room.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
}

impl Reserve {
    /// Makes sure that `<home>/reserve` holds its blocks. A disk too full for it is no error: there is then nothing to
    /// give up, and new work is refused by [`FREE_MIN_BYTES`] anyway.
    #[must_use]
    pub fn hold(home: &Path) -> Self {
        let reserve = Self { path: home.join("reserve") };
        reserve.refill();
        reserve
    }

    /// Gives the blocks back to the file system. Returns whether there were any.
    #[must_use]
    pub fn release(&self) -> bool {
        std::fs::remove_file(&self.path).is_ok()
    }

    /// Takes the blocks again once there is room; a no-op while they are held.
    pub fn refill(&self) {
        let held = std::fs::metadata(&self.path).is_ok_and(|meta| meta.len() >= RESERVE_BYTES as u64);
        if !held && self.write().is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
        // Random-looking bytes, so that a compressing file system cannot keep them for free.
        let mut word: u32 = 0x9E37_79B9;
        let block: Vec<u8> = (0..RESERVE_BYTES)
            .map(|_| {
                word ^= word << 13;
                word ^= word >> 17;
                word ^= word << 5;
                word.to_le_bytes()[0]
            })
            .collect();
        file.write_all(&block)?;
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_given_up_once_and_taken_again() {
        let home = tempfile::tempdir().unwrap();
        let reserve = Reserve::hold(home.path());
        assert!(reserve.release());
        assert!(!reserve.release());
        reserve.refill();
        assert_eq!(std::fs::metadata(home.path().join("reserve")).unwrap().len(), RESERVE_BYTES as u64);
    }

    #[test]
    fn free_space_of_a_missing_folder_is_an_error() {
        assert!(free_bytes(Path::new("/nonexistent-folder-of-a-test")).is_err());
    }
}
