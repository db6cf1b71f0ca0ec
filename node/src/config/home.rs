//! The home folder: made on first use, private to its owner. Nothing inside it is touched here.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Files that show that a folder is a node's home already.
const OURS: [&str; 2] = ["key.pem", super::FILE];

/// Why the home folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The system refused.
    #[error("cannot {doing} the home folder {path}: {cause}; set CHAPPIE_HOME to a folder you may write to",
        path = path.display())]
    Io {
        /// `make`, `read` or `protect`.
        doing: &'static str,
        /// The folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Something else stands there.
    #[error("{} is not a folder; set CHAPPIE_HOME to another path", .0.display())]
    NotAFolder(PathBuf),
    /// It belongs to another user.
    #[error("the home folder {path} belongs to user {owner} and not to you; set CHAPPIE_HOME to a folder of your own",
        path = path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
    },
    /// Others may look into it, and it is not plainly a node's own, so its mode is left alone.
    #[error(
        "{path} is open to others (mode {mode:04o}) and holds files that are not a node's; set CHAPPIE_HOME to a \
         folder of its own, or run `chmod 700 {path}` if that is what you want",
        path = path.display()
    )]
    Shared {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Makes `home` with mode 0700 when it is missing. One that is there and open to others is closed to them when it is
/// empty or a node's already, and refused otherwise.
///
/// # Errors
/// When the folder cannot be made, is not the caller's, or is shared with other things.
pub fn prepare(home: &Path) -> Result<(), HomeError> {
    let io = |doing| move |cause| HomeError::Io { doing, path: home.to_owned(), cause };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(|cause| match fs::metadata(home) {
        Ok(facts) if !facts.is_dir() => HomeError::NotAFolder(home.to_owned()),
        _ => io("make")(cause),
    })?;
    let facts = fs::metadata(home).map_err(io("read"))?;
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(HomeError::Foreign { path: home.to_owned(), owner: facts.uid() });
    }
    let mode = facts.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let empty = fs::read_dir(home).map_err(io("read"))?.next().is_none();
    if !empty && !OURS.iter().any(|file| home.join(file).is_file()) {
        return Err(HomeError::Shared { path: home.to_owned(), mode });
    }
    fs::set_permissions(home, fs::Permissions::from_mode(0o700)).map_err(io("protect"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn folder(mode: u32, files: &[&str]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(home.path().join(file), "").unwrap();
        }
        fs::set_permissions(home.path(), fs::Permissions::from_mode(mode)).unwrap();
        home
    }

    #[test]
    fn a_missing_home_is_made_private_with_its_parents() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("state/chappie");
        prepare(&home).unwrap();
        assert_eq!(mode(&home), 0o700);
        prepare(&home).unwrap();
    }

    #[test]
    fn an_open_home_is_closed_when_it_is_empty_or_a_node_s() {
        for files in [&[][..], &["key.pem", "node.redb"][..], &["config.toml"][..]] {
            let home = folder(0o755, files);
            prepare(home.path()).unwrap();
            assert_eq!(mode(home.path()), 0o700, "{files:?}");
        }
    }

    #[test]
    fn an_open_folder_with_other_things_is_refused_and_left_as_it_is() {
        let home = folder(0o755, &["notes.txt"]);
        let error = prepare(home.path()).unwrap_err();
        assert!(matches!(error, HomeError::Shared { mode: 0o755, .. }), "{error}");
        assert_eq!(mode(home.path()), 0o755);
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
        prepare(home.path()).unwrap();
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("home");
        fs::write(&home, "").unwrap();
        assert!(matches!(prepare(&home), Err(HomeError::NotAFolder(_))));
        assert!(matches!(prepare(&home.join("below")), Err(HomeError::Io { doing: "make", .. })));
    }
}
