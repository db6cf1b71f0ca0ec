//! Staged files: whole or absent, with the mode and owner they had.

use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{Gid, Uid, XattrFlags, fchown, getxattr, setxattr};

use super::*;

struct Place {
    _dir: tempfile::TempDir,
    home: PathBuf,
    work: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let (home, work) = (root.join("home"), root.join("work"));
        fs::create_dir(&home).unwrap();
        fs::create_dir(&work).unwrap();
        Self { _dir: dir, home, work }
    }

    fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.work.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn stage(&self, path: &Path, content: &str) -> Result<Staged, StageError> {
        let before = target(path).unwrap();
        stage(&self.home, path, content.as_bytes(), before.as_ref())
    }

    fn replace(&self, path: &Path, content: &str) -> Committed {
        self.stage(path, content).unwrap().commit().unwrap()
    }

    /// Names in the working folder, and how many changes are recorded as unfinished.
    fn left(&self) -> (Vec<String>, usize) {
        let list = |dir: &Path| fs::read_dir(dir).map(|entries| entries.map(|e| e.unwrap().file_name()).collect());
        let mut names: Vec<String> = list(&self.work)
            .map(|names: Vec<std::ffi::OsString>| names.into_iter().map(|n| n.into_string().unwrap()).collect())
            .unwrap();
        names.sort();
        (names, list(&self.home.join("staging")).map(|names: Vec<_>| names.len()).unwrap_or(0))
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_replacement_keeps_the_permission_bits_and_leaves_nothing_beside() {
    let place = Place::new();
    for bits in [0o755, 0o640, 0o600, 0o4711, 0o666] {
        let path = place.file("f", "old", bits);
        let committed = place.replace(&path, "new");
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("new", bits));
        assert_eq!(committed.state, Fingerprint::of(&fs::metadata(&path).unwrap()));
        assert_eq!(committed.notes, Vec::<String>::new());
        assert_eq!(place.left(), (vec!["f".to_owned()], 0));
    }
}

#[test]
fn a_new_file_gets_what_the_umask_leaves_and_its_folders() {
    let place = Place::new();
    let path = place.work.join("a/b/new");
    place.replace(&path, "x");
    // What the system gives a file made the ordinary way, whatever the umask is.
    fs::write(place.work.join("plain"), "").unwrap();
    fs::create_dir(place.work.join("plain-folder")).unwrap();
    assert_eq!(mode(&path), mode(&place.work.join("plain")));
    assert_eq!(mode(&place.work.join("a/b")), mode(&place.work.join("plain-folder")));
}

#[test]
fn staged_content_that_is_not_committed_goes_with_its_folders() {
    let place = Place::new();
    let path = place.file("f", "old", 0o644);
    let staged = place.stage(&path, "new").unwrap();
    assert_eq!(place.left().1, 1, "recorded while it is there");
    drop(staged);
    drop(place.stage(&place.work.join("a/b/new"), "x").unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(place.left(), (vec!["f".to_owned()], 0));
}

#[test]
fn a_failed_staging_or_commit_leaves_nothing() {
    let place = Place::new();
    let path = place.work.join("a").join("n".repeat(256));
    let error = stage(&place.home, &path, b"x", None).unwrap().commit().unwrap_err();
    assert!(error.to_string().contains("a name in the path is longer"), "{error}");
    assert_eq!(place.left(), (vec![], 0));
    let path = place.work.join("a").join("n".repeat(256)).join("f");
    let error = stage(&place.home, &path, b"x", None).unwrap_err();
    assert!(error.to_string().starts_with("cannot make the folder /"), "{error}");
    assert_eq!(place.left(), (vec![], 0));
    place.file("f", "", 0o644);
    let error = stage(&place.home, &place.work.join("f/g"), b"x", None).unwrap_err();
    assert!(error.to_string().contains("a part of the path is a file, not a folder"), "{error}");
    assert_eq!(place.left(), (vec!["f".to_owned()], 0));
}

#[test]
fn a_folder_that_others_filled_meanwhile_is_not_removed() {
    let place = Place::new();
    let staged = place.stage(&place.work.join("a/b/new"), "x").unwrap();
    fs::write(place.work.join("a/theirs"), "").unwrap();
    drop(staged);
    assert!(place.work.join("a/theirs").exists() && !place.work.join("a/b").exists());
}

#[test]
fn a_full_disk_is_named_with_what_to_do() {
    let error = StageError {
        action: "write",
        path: "/x/y".into(),
        source: File::options().write(true).open("/dev/full").unwrap().write_all(b"x").unwrap_err(),
    };
    assert_eq!(
        error.to_string(),
        "cannot write /x/y: no space left on the disk; nothing was changed. Free some space there, then call again"
    );
}

#[test]
fn hard_links_and_extended_attributes_are_kept_or_named() {
    let place = Place::new();
    let path = place.file("f", "old", 0o644);
    fs::hard_link(&path, place.work.join("other")).unwrap();
    setxattr(&path, "user.tag", b"blue", XattrFlags::empty())
        .expect("the folder for temporary files keeps extended attributes; set TMPDIR to one that does");
    let committed = place.replace(&path, "new");
    assert_eq!(committed.notes, ["the file had 1 more hard link(s), which keep the old content"]);
    assert_eq!(fs::read_to_string(place.work.join("other")).unwrap(), "old");
    let mut value = [0; 16];
    let length = getxattr(&path, "user.tag", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"blue");
}

#[test]
fn the_owner_is_kept_by_the_superuser() {
    let place = Place::new();
    let path = place.file("f", "old", 0o6755);
    fchown(File::open(&path).unwrap(), Some(Uid::from_raw(4_242)), Some(Gid::from_raw(4_243)))
        .expect("this test gives a file away, which needs root: run it as root (CI does)");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let committed = place.replace(&path, "new");
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid(), mode(&path)), (4_242, 4_243, 0o4755));
    assert_eq!(committed.notes, Vec::<String>::new());
}

#[test]
fn what_is_read_only_or_no_file_is_refused() {
    let place = Place::new();
    for bits in [0o444, 0o555, 0o400] {
        let path = place.file("f", "old", bits);
        assert!(matches!(target(&path), Err(TargetError::ReadOnly)), "{bits:o}");
        fs::remove_file(path).unwrap();
    }
    rustix::fs::mkfifoat(CWD, place.work.join("pipe"), 0o600.into()).unwrap();
    symlink("pipe", place.work.join("link")).unwrap();
    assert!(matches!(target(&place.work.join("pipe")), Err(TargetError::Kind(Kind::Pipe))));
    assert!(matches!(target(&place.work), Err(TargetError::Kind(Kind::Folder))));
    assert!(matches!(target(Path::new("/dev/null")), Err(TargetError::Kind(Kind::Device))));
    assert!(matches!(target(&place.work.join("absent")), Ok(None)));
}

#[test]
fn a_file_that_its_owner_keeps_from_us_is_not_called_read_only() {
    let said = |owner, mode, error| refusal(owner, mode, 65_534, error).to_string();
    let theirs = said(0, 0o100_600, Errno::ACCESS);
    assert!(theirs.contains("belongs to user 0 with mode 0600, and the node runs as user 65534"), "{theirs}");
    assert!(theirs.contains("nothing was changed") && !theirs.contains("chmod"), "{theirs}");
    assert!(said(0, 0o100_444, Errno::ACCESS).contains("belongs to user 0 with mode 0444"));
    assert!(said(65_534, 0o100_444, Errno::ACCESS).contains("is read-only"));
    // Immutable: no permission bit is in the way.
    assert!(said(65_534, 0o100_644, Errno::PERM).starts_with("permission denied; nothing"));
    assert!(said(0, 0o100_644, Errno::ROFS).starts_with("the file system is read-only"));
}

#[test]
fn the_leftovers_of_a_killed_node_go_at_the_next_start() {
    let place = Place::new();
    let path = place.file("f", "old", 0o644);
    // A kill runs no destructor.
    std::mem::forget(place.stage(&path, "new").unwrap());
    std::mem::forget(place.stage(&place.work.join("a/b/new"), "x").unwrap());
    assert_eq!(place.left().1, 2);
    let mut removed = sweep(&place.home).unwrap();
    removed.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(PREFIX));
    assert_eq!(removed.len(), 2);
    assert_eq!(place.left(), (vec!["f".to_owned()], 0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(sweep(&place.home).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_sweep_touches_nothing_but_staged_files() {
    let place = Place::new();
    let (theirs, path) = (place.file(".chappie-abc", "keep", 0o644), place.file("f", "keep", 0o644));
    fs::create_dir(place.home.join("staging")).unwrap();
    for (token, content) in [("abd", theirs.as_path()), ("f", path.as_path()), ("torn", Path::new(""))] {
        fs::write(place.home.join("staging").join(token), content.as_os_str().as_encoded_bytes()).unwrap();
    }
    assert_eq!(sweep(&place.home).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(place.left(), (vec![".chappie-abc".to_owned(), "f".to_owned()], 0));
    assert_eq!(sweep(&place.work.join("no-home")).unwrap(), Vec::<PathBuf>::new());
}
