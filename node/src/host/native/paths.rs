//! What a path argument means: where it leads, and what stands there, found out without ever blocking on it or touching a
//! device.
//!
//! Nothing here keeps a caller inside a folder: a session's tools reach whatever its user reaches.

use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, io::Errno};

/// Why an argument is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing was given.
    #[error("`path` is empty; give the path of a file, absolute or from the session's working folder")]
    Empty,
    /// No file name holds a NUL.
    #[error("`path` holds a NUL character, which no file name can; give the path without it")]
    Nul,
    /// Longer than the system takes.
    #[error("`path` is {0} bytes long with its folder; the system takes at most {LONGEST}")]
    TooLong(usize),
}

/// Linux takes 4,096 bytes with the closing NUL.
const LONGEST: usize = 4_095;

/// Most symbolic links on the way to one file; what Linux itself follows.
const LINKS: usize = 40;

/// The absolute path that `given` names: from `cwd`, or from `home` when it begins with `~/` or is `~`.
///
/// # Errors
/// See [`PathError`].
pub fn resolve(given: &str, cwd: &Path, home: &Path) -> Result<PathBuf, PathError> {
    if given.is_empty() {
        return Err(PathError::Empty);
    }
    if given.contains('\0') {
        return Err(PathError::Nul);
    }
    let path = match given.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => cwd.join(given),
    };
    match path.as_os_str().len() {
        length if length > LONGEST => Err(PathError::TooLong(length)),
        _ => Ok(path),
    }
}

/// The path that `path` leads to through all symbolic links. Its last parts need not exist: a link that leads nowhere
/// gives the place that it names.
///
/// # Errors
/// What the system says; links in a circle fail at once.
pub fn real(path: &Path) -> io::Result<PathBuf> {
    let mut wanted = path.to_owned();
    for _ in 0..LINKS {
        match real_or_link(&wanted)? {
            Step::Real(real) => return Ok(real),
            Step::Link(leads_to) => wanted = leads_to,
        }
    }
    Err(Errno::LOOP.into())
}

enum Step {
    Real(PathBuf),
    /// A dangling link stood on the way; this is the whole path with the link followed once.
    Link(PathBuf),
}

fn real_or_link(path: &Path) -> io::Result<Step> {
    let mut missing = Vec::new();
    let mut present = path;
    let mut real = loop {
        match fs::canonicalize(present) {
            Ok(real) => break real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (Some(parent), Some(name)) = (present.parent(), present.file_name()) else { return Err(error) };
                // `parent` drops a closing `/` or `/.` that says "a folder".
                if !present.as_os_str().as_encoded_bytes().ends_with(name.as_encoded_bytes()) {
                    return Err(Errno::ISDIR.into());
                }
                missing.push(name);
                present = parent;
            }
            Err(error) => return Err(error),
        }
    };
    if let Some(first) = missing.pop() {
        real.push(first);
        if let Ok(leads_to) = fs::read_link(&real) {
            real.pop();
            real.push(leads_to);
            real.extend(missing.iter().rev());
            return Ok(Step::Link(real));
        }
        real.extend(missing.iter().rev());
    }
    Ok(Step::Real(real))
}

/// The real path that the argument `given` leads to, or why there is none, in words for the caller.
///
/// # Errors
/// A sentence that names the argument and says that nothing was changed.
pub fn locate(given: &str, cwd: &Path, home: &Path) -> Result<PathBuf, String> {
    let path = resolve(given, cwd, home).map_err(|error| format!("{error}; nothing was done"))?;
    real(&path).map_err(|error| format!("{}; nothing was changed", complaint(given, &path, cwd, &error)))
}

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A named pipe.
    Pipe,
    /// A Unix socket.
    Socket,
    /// A character or block device.
    Device,
    /// Nothing of these.
    Other,
}

impl Kind {
    /// Of what the system says, links followed or not as it was asked.
    #[must_use]
    pub fn of(found: FileType) -> Self {
        match found {
            found if found.is_file() => Self::File,
            found if found.is_dir() => Self::Folder,
            found if found.is_fifo() => Self::Pipe,
            found if found.is_socket() => Self::Socket,
            found if found.is_char_device() || found.is_block_device() => Self::Device,
            _ => Self::Other,
        }
    }

    /// With its article, to end "is".
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Folder => "a folder",
            Self::Pipe => "a named pipe (FIFO)",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::Other => "something that is not a file",
        }
    }
}

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not a regular file.
    #[error("is {}, not a file", .0.noun())]
    Kind(Kind),
    /// What the system says.
    #[error("{}", cause(.0))]
    System(#[from] io::Error),
}

/// Opens a regular file for reading. Anything else is named and not opened: opening a pipe blocks until somebody writes,
/// and opening a device can make it act.
///
/// # Errors
/// See [`OpenError`].
pub fn open(path: &Path) -> Result<(File, Metadata), OpenError> {
    let kind = Kind::of(fs::metadata(path)?.file_type());
    if kind != Kind::File {
        return Err(OpenError::Kind(kind));
    }
    // Something else may stand there by now, so the opening does not wait either, and what was opened is asked again.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    match Kind::of(found.file_type()) {
        Kind::File => Ok((file, found)),
        other => Err(OpenError::Kind(other)),
    }
}

/// What the system says, in words that stand after the name of a file.
#[must_use]
pub fn cause(error: &io::Error) -> String {
    let words = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => "does not exist",
        Some(Errno::ACCESS | Errno::PERM) => "permission denied",
        Some(Errno::NOTDIR) => "a part of the path is a file, not a folder",
        Some(Errno::ISDIR) => "is a folder, not a file",
        Some(Errno::LOOP) => "symbolic links lead in a circle",
        Some(Errno::NAMETOOLONG) => "a name in the path is longer than the file system takes",
        Some(Errno::NOSPC) => "no space left on the disk",
        Some(Errno::DQUOT) => "the disk quota is used up",
        Some(Errno::ROFS) => "the file system is read-only",
        Some(Errno::BUSY) => "is in use as a mount point",
        Some(Errno::IO) => "the disk reported an input/output error",
        Some(Errno::WOULDBLOCK) => "has nothing to read at the moment and would block",
        _ => return error.to_string(),
    };
    words.to_owned()
}

/// The message for a file that cannot be used: names it as the caller did, and where that is when it is not plain.
#[must_use]
pub fn complaint(given: &str, path: &Path, cwd: &Path, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound && from_lost_folder(given, cwd) {
        return format!(
            "{given}: the session's working folder {} does not exist any more; create it again or give an absolute path",
            cwd.display()
        );
    }
    let place = if Path::new(given) == path { String::new() } else { format!(" (at {})", path.display()) };
    format!("{given}: {}{place}", cause(error))
}

/// Whether `given` is relative to a working folder that does not exist any more.
#[must_use]
pub fn from_lost_folder(given: &str, cwd: &Path) -> bool {
    !given.starts_with(['/', '~']) && !cwd.is_dir()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, os::unix::net::UnixListener};

    use super::*;

    #[test]
    fn paths_resolve_from_the_working_folder_and_home() {
        let at = |given| resolve(given, Path::new("/src"), Path::new("/home/u")).unwrap();
        assert_eq!(at("a/b"), Path::new("/src/a/b"));
        assert_eq!(at("/etc/x"), Path::new("/etc/x"));
        assert_eq!(at("~"), Path::new("/home/u"));
        assert_eq!(at("~/a"), Path::new("/home/u/a"));
        assert_eq!(at("~//etc"), Path::new("/home/u/etc"));
        assert_eq!(at("~u/a"), Path::new("/src/~u/a"));
        assert_eq!(at("vide é 👍"), Path::new("/src/vide é 👍"));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let at = |given: &str| resolve(given, Path::new("/work"), Path::new("/home/u"));
        assert_eq!(at(""), Err(PathError::Empty));
        assert_eq!(at("a\0b"), Err(PathError::Nul));
        assert_eq!(at(&"a".repeat(4_090)), Err(PathError::TooLong(4_096)));
        assert!(at(&"a".repeat(4_089)).is_ok());
    }

    #[test]
    fn links_are_followed_to_what_need_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/file"), "").unwrap();
        symlink("sub", at("alias")).unwrap();
        symlink("alias/file", at("l1")).unwrap();
        symlink("l1", at("l2")).unwrap();
        symlink("sub/absent", at("dangling")).unwrap();
        symlink("dangling", at("dangling2")).unwrap();
        symlink("sub/new", at("gone-folder")).unwrap();
        assert_eq!(real(&at("l2")).unwrap(), at("sub/file"));
        assert_eq!(real(&at("alias/x/y/z")).unwrap(), at("sub/x/y/z"));
        assert_eq!(real(&at("dangling2")).unwrap(), at("sub/absent"));
        assert_eq!(real(&at("gone-folder/deep/file")).unwrap(), at("sub/new/deep/file"));
        assert_eq!(real(&at("sub/../l1")).unwrap(), at("sub/file"));
    }

    #[test]
    fn circles_of_links_end_at_once() {
        let dir = tempfile::tempdir().unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        symlink("b/x", dir.path().join("a")).unwrap();
        symlink("a/x", dir.path().join("b")).unwrap();
        for name in ["loop", "loop/file", "a", "b/more"] {
            let error = real(&dir.path().join(name)).unwrap_err();
            assert_eq!(cause(&error), "symbolic links lead in a circle", "{name}");
        }
    }

    #[test]
    fn a_name_that_ends_as_a_folder_is_no_new_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["new/", "new/.", "new//"] {
            let error = real(&dir.path().join(name)).unwrap_err();
            assert_eq!(cause(&error), "is a folder, not a file", "{name}");
        }
        assert!(real(&dir.path().join("absent/../file")).is_err());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(cause(&real(&dir.path().join("file/x")).unwrap_err()).contains("a file, not a folder"));
    }

    #[test]
    fn what_is_no_file_is_named_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), 0o600.into()).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        symlink("pipe", at("to-pipe")).unwrap();
        for (path, kind) in [
            (at("pipe"), Kind::Pipe),
            (at("to-pipe"), Kind::Pipe),
            (at("socket"), Kind::Socket),
            (at("."), Kind::Folder),
            (PathBuf::from("/dev/null"), Kind::Device),
        ] {
            assert!(matches!(open(&path), Err(OpenError::Kind(found)) if found == kind), "{}", path.display());
        }
        assert!(matches!(open(&at("absent")), Err(OpenError::System(e)) if e.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_complaint_names_the_file_and_a_lost_working_folder() {
        let missing = || io::Error::from(Errno::NOENT);
        let cwd = std::env::temp_dir();
        let said = complaint("a.txt", &cwd.join("a.txt"), &cwd, &missing());
        assert_eq!(said, format!("a.txt: does not exist (at {})", cwd.join("a.txt").display()));
        assert_eq!(complaint("/no/such", Path::new("/no/such"), &cwd, &missing()), "/no/such: does not exist");
        let said = complaint("a", Path::new("/gone/away/a"), Path::new("/gone/away"), &missing());
        assert!(said.contains("working folder /gone/away does not exist any more"), "{said}");
    }
}
