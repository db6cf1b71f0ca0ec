//! Room on disk (failure rule F25): how much is left, and reserves that are given up so that outcomes, votes and cancels
//! still find a place when everything else is full.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::FallocateFlags;

/// Below this much free space new mutating work is refused before it is accepted (F25).
pub const FREE_MIN_BYTES: u64 = 64 << 20;
/// Bytes of a reserve written at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes an ordinary user can still write on the file system of `path`.
///
/// # Errors
/// What `statvfs` says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// A file of real blocks that can be deleted to make room. Each database has its own, since each meets the full disk by
/// itself, and none may live on what was kept for the other.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    held: AtomicBool,
}

impl Reserve {
    /// Makes sure that `<home>/<name>` holds `bytes` of blocks. A disk too full for it is no error: there is then nothing
    /// to give up, and new work is refused by [`FREE_MIN_BYTES`] anyway.
    #[must_use]
    pub(super) fn hold(home: &Path, name: &str, bytes: u64) -> Self {
        let path = home.join(name);
        let held = fs::metadata(&path).is_ok_and(|meta| meta.len() >= bytes);
        let reserve = Self { path, bytes, held: AtomicBool::new(held) };
        reserve.refill();
        reserve
    }

    /// Gives the blocks back to the file system. Returns whether there were any.
    #[must_use]
    pub(super) fn release(&self) -> bool {
        self.held.swap(false, Ordering::Relaxed) && fs::remove_file(&self.path).is_ok()
    }

    /// Takes the blocks again once there is so much room that new work is accepted, too: before that they would only be
    /// taken from what they were given up for. A no-op while they are held.
    pub(super) fn refill(&self) {
        if self.held.load(Ordering::Relaxed) {
            return;
        }
        let free = self.path.parent().and_then(|home| free_bytes(home).ok()).unwrap_or(0);
        if free < FREE_MIN_BYTES + self.bytes {
            return;
        }
        let written = self.write();
        if written.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        self.held.store(written.is_ok(), Ordering::Relaxed);
    }

    fn write(&self) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes).is_err() {
            // Not every file system can set blocks aside without writing them.
            fill(&mut file, self.bytes)?;
        }
        file.sync_all()
    }
}

/// Writes random-looking bytes, so that a compressing file system cannot keep them for free.
fn fill(file: &mut impl Write, bytes: u64) -> io::Result<()> {
    let mut word: u32 = 0x9E37_79B9;
    let mut noise = move || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word.to_le_bytes()
    };
    let mut left = bytes;
    while left > 0 {
        let block: Vec<u8> = (0..PIECE_BYTES / 4).flat_map(|_| noise()).collect();
        let piece = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
        file.write_all(&block[..piece])?;
        left -= piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_given_up_once_and_taken_again() {
        let home = tempfile::tempdir().unwrap();
        let reserve = Reserve::hold(home.path(), "reserve", 100_000);
        let size = || fs::metadata(home.path().join("reserve")).map(|meta| meta.len()).ok();
        assert_eq!(size(), Some(100_000));
        assert!(reserve.release());
        assert_eq!(size(), None);
        assert!(!reserve.release());
        reserve.refill();
        assert_eq!(size(), Some(100_000));
        assert!(reserve.release());
    }

    #[test]
    fn a_reserve_that_is_there_is_kept_and_a_short_one_made_whole() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("whole"), vec![1; 10]).unwrap();
        fs::write(home.path().join("short"), vec![1; 9]).unwrap();
        drop(Reserve::hold(home.path(), "whole", 10));
        drop(Reserve::hold(home.path(), "short", 10));
        assert_eq!(fs::read(home.path().join("whole")).unwrap(), vec![1; 10]);
        assert_eq!(fs::read(home.path().join("short")).unwrap().len(), 10);
    }

    #[test]
    fn a_filled_file_has_exactly_its_bytes_and_no_two_pieces_alike() {
        let mut bytes = Vec::new();
        fill(&mut bytes, 150_000).unwrap();
        assert_eq!(bytes.len(), 150_000);
        assert_ne!(bytes[..PIECE_BYTES], bytes[PIECE_BYTES..2 * PIECE_BYTES]);
    }

    #[test]
    fn a_reserve_has_its_blocks() {
        use std::os::unix::fs::MetadataExt;
        let home = tempfile::tempdir().unwrap();
        drop(Reserve::hold(home.path(), "reserve", 1 << 20));
        assert!(fs::metadata(home.path().join("reserve")).unwrap().blocks() * 512 >= 1 << 20);
    }

    #[test]
    fn free_space_of_a_missing_folder_is_an_error() {
        assert!(free_bytes(Path::new("/nonexistent-folder-of-a-test")).is_err());
    }
}
