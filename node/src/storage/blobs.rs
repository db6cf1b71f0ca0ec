//! Pictures by content: each is one file, named by the SHA-256 of its bytes, under `<CHAPPIE_HOME>/blobs/`. The same bytes
//! are kept once, however often they are put.
//!
//! Nothing here decides how long a blob lives or what a picture is; it does not keep the type, which stands in the
//! [`ImageRef`]. Calls block on the disk.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{clock, content::ImageRef};

/// The store of one node. Clones share the folder.
#[derive(Clone, Debug)]
pub struct Blobs {
    dir: PathBuf,
}

/// Begins the name of a file that is not complete yet.
const UNFINISHED: &str = ".tmp-";

/// Most bytes of one blob, the most that a resource read may give back (behaviour 7.6).
const LARGEST: u64 = 32 * 1024 * 1024;

impl Blobs {
    /// Opens the store in `dir`, which is made (mode 0700) when missing, and removes what a killed node left unfinished.
    ///
    /// # Errors
    /// When the folder cannot be made or listed.
    pub fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Keeps `bytes`, durably before it returns. Bytes that are there already are not written again.
    ///
    /// # Errors
    /// When there are more than 32 MiB of them or they cannot be written; nothing is left of them then.
    pub fn put(&self, bytes: &[u8], mime: &str) -> io::Result<ImageRef> {
        let size = bytes.len() as u64;
        if size > LARGEST {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("an image of {size} bytes is more than the {LARGEST} that are kept"),
            ));
        }
        let image = ImageRef { sha256: hash(bytes), mime: mime.to_owned(), size };
        let path = self.dir.join(&image.sha256);
        if fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == size) {
            return Ok(image);
        }
        let unfinished = self.dir.join(format!("{UNFINISHED}{}", clock::token()));
        let written = write_durably(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        File::open(&self.dir)?.sync_all()?;
        Ok(image)
    }

    /// The bytes behind `image`, checked against its hash.
    ///
    /// # Errors
    /// `NotFound` when the store has none of that hash, `InvalidInput` for a reference that is no hash, `InvalidData` when
    /// the bytes on disk are not the ones that were put.
    pub fn bytes(&self, image: &ImageRef) -> io::Result<Vec<u8>> {
        let is_hash = image.sha256.len() == 64 && image.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a SHA-256 in 64 lower-case hex digits"));
        }
        let bytes = fs::read(self.dir.join(&image.sha256))?;
        if hash(&bytes) != image.sha256 {
            let message = format!("the image {} is damaged on disk; show the picture again", image.sha256);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(bytes)
    }
}

fn hash(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn store() -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&dir.path().join("blobs")).unwrap();
        (dir, blobs)
    }

    #[test]
    fn what_was_put_comes_back_after_a_reopening() {
        let (_dir, blobs) = store();
        let image = blobs.put(b"picture", "image/png").unwrap();
        assert_eq!(image.sha256, "2cea274d0bedc39ec4ab6ba9e59ec889e3ed6fb56a1cf088a64d9b383378dc97");
        assert_eq!((image.mime.as_str(), image.size), ("image/png", 7));
        let again = Blobs::open(&blobs.dir).unwrap();
        assert_eq!(again.bytes(&image).unwrap(), b"picture");
    }

    #[test]
    fn the_same_bytes_are_written_once() {
        let (_dir, blobs) = store();
        let image = blobs.put(b"picture", "image/png").unwrap();
        let path = blobs.dir.join(&image.sha256);
        let before = fs::metadata(&path).unwrap();
        blobs.put(b"picture", "image/jpeg").unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
        assert_eq!(fs::read_dir(&blobs.dir).unwrap().count(), 1);
    }

    #[test]
    fn only_the_owner_reads_them() {
        let (_dir, blobs) = store();
        let image = blobs.put(b"picture", "image/png").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&blobs.dir), mode(&blobs.dir.join(&image.sha256))), (0o700, 0o600));
    }

    #[test]
    fn unfinished_files_go_at_the_next_opening_and_blobs_stay() {
        let (_dir, blobs) = store();
        let image = blobs.put(b"picture", "image/png").unwrap();
        let unfinished = blobs.dir.join(format!("{UNFINISHED}1"));
        fs::write(&unfinished, "half").unwrap();
        Blobs::open(&blobs.dir).unwrap();
        assert!(!unfinished.exists());
        assert!(blobs.bytes(&image).is_ok());
    }

    #[test]
    fn a_torn_blob_is_named_and_mended_by_the_next_put() {
        let (_dir, blobs) = store();
        let image = blobs.put(b"picture", "image/png").unwrap();
        fs::write(blobs.dir.join(&image.sha256), "pict").unwrap();
        assert_eq!(blobs.bytes(&image).unwrap_err().kind(), io::ErrorKind::InvalidData);
        blobs.put(b"picture", "image/png").unwrap();
        assert_eq!(blobs.bytes(&image).unwrap(), b"picture");
    }

    #[test]
    fn a_reference_never_leads_out_of_the_folder() {
        let (dir, blobs) = store();
        fs::write(dir.path().join("secret"), "x").unwrap();
        for name in ["../secret", "", "A1", "/etc/passwd"] {
            let image = ImageRef { sha256: name.into(), mime: "image/png".into(), size: 1 };
            assert_eq!(blobs.bytes(&image).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let unknown = ImageRef { sha256: "0".repeat(64), mime: "image/png".into(), size: 1 };
        assert_eq!(blobs.bytes(&unknown).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_failed_put_leaves_nothing() {
        let (_dir, blobs) = store();
        let name = hash(b"picture");
        fs::create_dir_all(blobs.dir.join(&name).join("in the way")).unwrap();
        assert!(blobs.put(b"picture", "image/png").is_err());
        assert_eq!(fs::read_dir(&blobs.dir).unwrap().count(), 1);
        let too_large = vec![0; usize::try_from(LARGEST).unwrap() + 1];
        assert_eq!(blobs.put(&too_large, "image/png").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
