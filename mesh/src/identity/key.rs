//! The key file: made once, read ever after. The only file of the identity that does I/O.

use std::{
    fmt, fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _};

use super::NodeId;

const FILE: &str = "key.pem";
/// An Ed25519 key in PEM is about 150 bytes; whatever is larger is not ours and is not read into memory.
const FILE_BYTES_MAX: u64 = 16 * 1024;
/// Keys that were set aside, `key.pem.old-1` and on: nobody resets a device this often.
const OLD_MAX: u32 = 999;

/// What stands before the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410 section 7).
const PKCS8_ED25519: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// This device's key and the id that follows from it.
pub struct Identity {
    key: KeyPair,
    node_id: NodeId,
}

impl Identity {
    /// Reads `<home>/key.pem`, or makes it when there is none. Two processes that start at once get the same key.
    ///
    /// # Errors
    /// When the file is no Ed25519 key in PEM, when others than its owner can open it, or when the system fails.
    pub fn load_or_create(home: &Path) -> Result<Self, IdentityError> {
        let path = home.join(FILE);
        match load(&path) {
            Err(IdentityError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                create(home, &path)?;
                load(&path)
            }
            loaded => loaded,
        }
    }

    /// Sets the key aside as `<home>/key.pem.old-N`, N being the first that is free, and makes a new one; whatever stands
    /// in the key file, readable or not, is kept. Without a key it makes the first. Gives the new id. The node must
    /// not be running: it goes on with the key that it has read. Cut off anywhere, there is the old key or the new one.
    ///
    /// # Errors
    /// When the system fails, or 999 keys were set aside already. Then the key is as it was.
    pub fn reset(home: &Path) -> Result<NodeId, IdentityError> {
        let path = home.join(FILE);
        if set_aside(&path)? {
            let staged = stage(home, &path)?;
            let io = |cause| IdentityError::Io { doing: "write", path: path.clone(), cause };
            staged.persist(&path).map_err(|error| io(error.error))?;
            sync(home).map_err(io)?;
        }
        Ok(Self::load_or_create(home)?.node_id())
    }

    /// The identity whose private key is `seed` (RFC 8032). For simulations, whose devices are the same in every run of a
    /// seed; a real device's key comes from the system's randomness.
    ///
    /// # Errors
    /// When the library refuses the key.
    pub fn from_seed(seed: [u8; 32]) -> Result<Self, IdentityError> {
        let mut der = PKCS8_ED25519.to_vec();
        der.extend(seed);
        let generate = |cause: rcgen::Error| IdentityError::Generate(cause.to_string());
        let key = KeyPair::try_from(der.as_slice()).map_err(generate)?;
        let node_id = NodeId::of_spki(&key.subject_public_key_info());
        Ok(Self { key, node_id })
    }

    /// The device's id.
    #[must_use]
    pub const fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// The public key as a SubjectPublicKeyInfo in DER.
    #[must_use]
    pub fn public_key_der(&self) -> Vec<u8> {
        self.key_pair().subject_public_key_info()
    }

    /// The key pair, for the handshakes of this crate.
    pub(crate) const fn key_pair(&self) -> &KeyPair {
        &self.key
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The system refused.
    #[error("cannot {doing} the key file {}: {cause}", path.display())]
    Io {
        /// `read`, `write` or `set aside`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A folder, pipe or device stands there, or a file no key could be.
    #[error("{} is not a key file of at most 16 KiB; move it away and start again to get a new identity", .0.display())]
    NotAFile(PathBuf),
    /// Others than the owner may open it.
    #[error(
        "the key file {path} has mode {mode:04o} and must be 0600; run `chmod 600 {path}`, and if others had access, \
         move it away and start again to get a new identity",
        path = path.display()
    )]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not PEM, not a private key, or damaged.
    #[error(
        "{} is not a private key in PEM ({cause}); restore it from a backup, or move it away and start again to get a \
         new identity",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        cause: String,
    },
    /// A key of another kind.
    #[error("{} holds a {found} key and an Ed25519 key is needed; move it away and start again", path.display())]
    NotEd25519 {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// The system gave no randomness.
    #[error("cannot make a key: {0}")]
    Generate(String),
}

fn load(path: &Path) -> Result<Identity, IdentityError> {
    let io = |cause| IdentityError::Io { doing: "read", path: path.to_owned(), cause };
    // Looked at before it is opened: opening a pipe would wait for a writer for ever.
    let facts = fs::metadata(path).map_err(io)?;
    if !facts.is_file() || facts.len() > FILE_BYTES_MAX {
        return Err(IdentityError::NotAFile(path.to_owned()));
    }
    let mode = facts.mode() & 0o7777;
    if mode & 0o177 != 0 {
        return Err(IdentityError::TooOpen { path: path.to_owned(), mode });
    }
    let mut pem = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut pem));
    match read {
        Ok(_) => {}
        Err(cause) if cause.kind() == io::ErrorKind::InvalidData => {
            return Err(IdentityError::Unreadable { path: path.to_owned(), cause: "not text".to_owned() });
        }
        Err(cause) => return Err(io(cause)),
    }
    let key = KeyPair::from_pem(&pem)
        .map_err(|cause| IdentityError::Unreadable { path: path.to_owned(), cause: cause.to_string() })?;
    if !key.is_compatible(&PKCS_ED25519) {
        return Err(IdentityError::NotEd25519 { path: path.to_owned(), found: format!("{:?}", key.algorithm()) });
    }
    let node_id = NodeId::of_spki(&key.subject_public_key_info());
    Ok(Identity { key, node_id })
}

/// Writes a new key beside `path` and links it there, so that the file is whole or absent and never replaced.
fn create(home: &Path, path: &Path) -> Result<(), IdentityError> {
    let io = |cause| IdentityError::Io { doing: "write", path: path.to_owned(), cause };
    match stage(home, path)?.persist_noclobber(path) {
        Ok(_) => {}
        // Another process was faster: its key is this device's key.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(io(error.error)),
    }
    sync(home).map_err(io)
}

/// A new key in a file of another name, on disk.
fn stage(home: &Path, path: &Path) -> Result<tempfile::NamedTempFile, IdentityError> {
    let io = |cause| IdentityError::Io { doing: "write", path: path.to_owned(), cause };
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|cause| IdentityError::Generate(cause.to_string()))?;
    let mut staged = tempfile::Builder::new()
        .prefix(".key.")
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(home)
        .map_err(io)?;
    staged.write_all(key.serialize_pem().as_bytes()).map_err(io)?;
    staged.as_file().sync_all().map_err(io)?;
    Ok(staged)
}

/// Gives the key file a second name, the first `.old-N` that is free; false when there is no key file.
fn set_aside(path: &Path) -> Result<bool, IdentityError> {
    let io = |cause| IdentityError::Io { doing: "set aside", path: path.to_owned(), cause };
    for number in 1..=OLD_MAX {
        match fs::hard_link(path, path.with_file_name(format!("{FILE}.old-{number}"))) {
            Ok(()) => return Ok(true),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(cause) => return Err(io(cause)),
        }
    }
    let full = format!("{FILE}.old-1 to {FILE}.old-{OLD_MAX} are all taken; remove old ones");
    Err(io(io::Error::new(io::ErrorKind::AlreadyExists, full)))
}

/// Makes the names in `folder` last.
fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder).and_then(|folder| folder.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032 section 7.1, test 1, as PKCS #8; the id was computed with other programs.
    const KNOWN_PEM: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
        -----END PRIVATE KEY-----\n";
    const KNOWN_ID: &str = "A3R73D6-2FG5WBJ-K2ZKV66-MHW3BLQ-WNWIYRG-S7DBZ2R-3IVPY4G-3ZF6UQ2";

    fn home_with(contents: &[u8], mode: u32) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        home
    }

    #[test]
    fn the_first_start_makes_a_private_key_file_and_later_ones_read_it() {
        let home = tempfile::tempdir().unwrap();
        let first = Identity::load_or_create(home.path()).unwrap();
        let second = Identity::load_or_create(home.path()).unwrap();
        assert_eq!(first.node_id(), second.node_id());
        assert_eq!(first.node_id(), NodeId::of_spki(&second.public_key_der()));
        assert_eq!(fs::metadata(home.path().join(FILE)).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_seed_is_always_the_same_identity() {
        // RFC 8032 section 7.1, test 1.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let seed: [u8; 32] = data_encoding::HEXLOWER.decode(seed.as_bytes()).unwrap().try_into().unwrap();
        assert_eq!(Identity::from_seed(seed).unwrap().node_id().to_string(), KNOWN_ID);
        assert_ne!(Identity::from_seed([1; 32]).unwrap().node_id().to_string(), KNOWN_ID);
    }

    #[test]
    fn two_devices_get_different_identities() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ids = [&here, &there].map(|home| Identity::load_or_create(home.path()).unwrap().node_id());
        assert_ne!(ids[0], ids[1]);
    }

    #[test]
    fn starts_at_the_same_moment_agree_on_one_key() {
        let home = tempfile::tempdir().unwrap();
        let ids: Vec<NodeId> = std::thread::scope(|scope| {
            let start = || Identity::load_or_create(home.path()).unwrap().node_id();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_id_is_the_hash_of_the_public_key_info() {
        let home = home_with(KNOWN_PEM.as_bytes(), 0o600);
        assert_eq!(Identity::load_or_create(home.path()).unwrap().node_id().to_string(), KNOWN_ID);
    }

    #[test]
    fn a_key_that_others_can_open_is_refused_with_the_remedy_and_left_alone() {
        for mode in [0o640, 0o604, 0o660, 0o601, 0o644, 0o700] {
            let home = home_with(KNOWN_PEM.as_bytes(), mode);
            let error = Identity::load_or_create(home.path()).unwrap_err();
            assert!(matches!(error, IdentityError::TooOpen { mode: found, .. } if found == mode), "{error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
            assert_eq!(fs::read(home.path().join(FILE)).unwrap(), KNOWN_PEM.as_bytes());
        }
        let read_only = home_with(KNOWN_PEM.as_bytes(), 0o400);
        assert!(Identity::load_or_create(read_only.path()).is_ok(), "stricter than 0600 is fine");
    }

    #[test]
    fn what_is_no_ed25519_key_is_refused_and_left_alone() {
        let garbage: [&[u8]; 4] = [b"", b"not a key", &[0xff; 100], b"-----BEGIN PRIVATE KEY-----\nAAAA"];
        for contents in garbage {
            let home = home_with(contents, 0o600);
            let error = Identity::load_or_create(home.path()).unwrap_err();
            assert!(matches!(error, IdentityError::Unreadable { .. }), "{error}");
            assert_eq!(fs::read(home.path().join(FILE)).unwrap(), contents);
        }
        let p256 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let other_kind = home_with(p256.serialize_pem().as_bytes(), 0o600);
        let error = Identity::load_or_create(other_kind.path()).unwrap_err();
        assert!(matches!(error, IdentityError::NotEd25519 { .. }), "{error}");
    }

    #[test]
    fn a_folder_or_a_huge_file_in_the_key_s_place_is_refused() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(FILE)).unwrap();
        assert!(matches!(Identity::load_or_create(home.path()), Err(IdentityError::NotAFile(_))));
        let home = home_with(&vec![b'A'; 20_000], 0o600);
        assert!(matches!(Identity::load_or_create(home.path()), Err(IdentityError::NotAFile(_))));
    }

    #[test]
    fn a_home_that_is_not_there_is_an_error_that_names_the_file() {
        let error = Identity::load_or_create(Path::new("/nonexistent/home")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/home/key.pem"), "{error}");
    }
    #[test]
    fn a_reset_sets_each_key_aside_and_makes_a_new_one() {
        let home = tempfile::tempdir().unwrap();
        let old = |number: u32| home.path().join(format!("{FILE}.old-{number}"));
        let mut ids = vec![Identity::reset(home.path()).unwrap()];
        assert!(!old(1).exists(), "there was none to set aside");
        for number in 1..=3 {
            let before = fs::read(home.path().join(FILE)).unwrap();
            ids.push(Identity::reset(home.path()).unwrap());
            assert_eq!(fs::read(old(number)).unwrap(), before);
            assert_eq!(fs::metadata(old(number)).unwrap().mode() & 0o7777, 0o600);
        }
        ids.dedup();
        assert_eq!(ids.len(), 4);
        assert_eq!(Identity::load_or_create(home.path()).unwrap().node_id(), ids[3]);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 4, "nothing else is left behind");
    }

    #[test]
    fn a_reset_takes_a_free_number_and_never_replaces_an_old_key() {
        let home = home_with(KNOWN_PEM.as_bytes(), 0o600);
        fs::write(home.path().join("key.pem.old-1"), "other").unwrap();
        Identity::reset(home.path()).unwrap();
        assert_eq!(fs::read(home.path().join("key.pem.old-1")).unwrap(), b"other");
        assert_eq!(fs::read(home.path().join("key.pem.old-2")).unwrap(), KNOWN_PEM.as_bytes());
    }

    #[test]
    fn a_reset_mends_a_key_that_cannot_be_used() {
        for (contents, mode) in [(&b"damaged"[..], 0o600), (KNOWN_PEM.as_bytes(), 0o644)] {
            let home = home_with(contents, mode);
            let id = Identity::reset(home.path()).unwrap();
            assert_eq!(Identity::load_or_create(home.path()).unwrap().node_id(), id);
            assert_eq!(fs::read(home.path().join("key.pem.old-1")).unwrap(), contents);
        }
    }

    #[test]
    fn a_reset_that_fails_leaves_the_key_as_it_was() {
        let home = home_with(KNOWN_PEM.as_bytes(), 0o600);
        for number in 1..=OLD_MAX {
            fs::write(home.path().join(format!("key.pem.old-{number}")), "").unwrap();
        }
        let error = Identity::reset(home.path()).unwrap_err();
        assert!(error.to_string().contains("remove old ones"), "{error}");
        assert_eq!(Identity::load_or_create(home.path()).unwrap().node_id().to_string(), KNOWN_ID);
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FILE)).unwrap();
        assert!(Identity::reset(folder.path()).is_err());
        assert!(folder.path().join(FILE).is_dir());
        assert!(Identity::reset(Path::new("/nonexistent/home")).is_err());
    }

    #[test]
    fn a_key_is_not_printed() {
        let home = home_with(KNOWN_PEM.as_bytes(), 0o600);
        let identity = Identity::load_or_create(home.path()).unwrap();
        for shown in [format!("{identity:?}"), format!("{identity:#?}")] {
            assert!(!shown.contains("PRIVATE") && !shown.contains("nWGxne") && !shown.contains("157"), "{shown}");
        }
    }
}
