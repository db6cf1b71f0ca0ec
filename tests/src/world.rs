//! A throw-away world for one test: a root folder with a home, a state folder and working folders, a user that is not
//! root, and a mark on every process. What is left running when the world is dropped is ended by that mark.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, OnceLock},
};

use tempfile::TempDir;
use uuid::Uuid;

use crate::{
    net::Namespace,
    process::{self, MARK},
};

/// `nobody` of every Linux distribution: a user who owns nothing.
const ORDINARY: u32 = 65534;

/// Throw-away folders, an ordinary user, and a mark.
#[derive(Debug)]
pub struct World {
    root: Option<TempDir>,
    mark: String,
    ordinary: bool,
    namespace: Option<Arc<Namespace>>,
}

impl World {
    /// A world in which everything runs as an ordinary user, also when the tests run as root.
    ///
    /// # Panics
    /// When the temporary folder cannot be written.
    #[must_use]
    pub fn new() -> Self {
        Self::with_user(rustix::process::geteuid().is_root())
    }

    /// A world in which everything runs as the user of the tests: for what only root may do.
    ///
    /// # Panics
    /// When the temporary folder cannot be written.
    #[must_use]
    pub fn privileged() -> Self {
        Self::with_user(false)
    }

    /// A world on a machine of its own: everything runs in that network namespace, as an ordinary user.
    ///
    /// # Panics
    /// When the temporary folder cannot be written.
    #[must_use]
    pub fn on(machine: &Arc<Namespace>) -> Self {
        let mut world = Self::new();
        world.namespace = Some(Arc::clone(machine));
        world
    }

    fn with_user(ordinary: bool) -> Self {
        let root = tempfile::Builder::new().prefix("checks-").tempdir().expect("the temporary folder is writable");
        let world = Self { root: Some(root), mark: Uuid::new_v4().simple().to_string(), ordinary, namespace: None };
        world.own(world.root());
        for name in ["home", "state"] {
            world.folder(name);
        }
        fs::write(world.root().join("home/.gitconfig"), "[user]\n\tname = A\n\temail = a@example.org\n")
            .expect("the home folder is writable");
        world
    }

    /// The folder that holds everything.
    ///
    /// # Panics
    /// Never: the folder lives as long as the world.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.as_ref().expect("held until drop").path()
    }

    /// CHAPPIE_HOME.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.root().join("state")
    }

    /// HOME.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// The mark on this world's processes.
    #[must_use]
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// The network namespace of its machine, if that is not the tests' own.
    #[must_use]
    pub const fn namespace(&self) -> Option<&Arc<Namespace>> {
        self.namespace.as_ref()
    }

    /// A folder of that name under the root, made when it is not there, owned by the world's user.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.root().join(name);
        fs::create_dir_all(&path).expect("the world's root is writable");
        self.own(&path);
        path
    }

    /// Writes a file owned by the world's user, mode 0644.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn put(&self, path: &Path, bytes: impl AsRef<[u8]>) {
        fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("just written");
        self.own(path);
    }

    /// Runs a shell script in `folder` as the world's user; it must succeed. Gives its standard output.
    ///
    /// # Panics
    /// When the script fails.
    pub fn sh(&self, folder: &Path, script: &str) -> String {
        let output = self.command("bash").args(["-c", script]).current_dir(folder).output().expect("bash runs");
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A command that runs as the world's user, with its home, its state folder and its mark.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let inside = |program: &OsStr| match &self.namespace {
            None => Command::new(program),
            Some(namespace) => namespace.command(program),
        };
        let mut command = if self.ordinary {
            let mut command = inside(OsStr::new("setpriv"));
            command.args([&format!("--reuid={ORDINARY}"), &format!("--regid={ORDINARY}"), "--clear-groups", "--"]);
            command.arg(program);
            command
        } else {
            inside(program.as_ref())
        };
        command
            .env("HOME", self.home())
            .env("CHAPPIE_HOME", self.state())
            .env(MARK, &self.mark)
            // Worlds run beside each other and must not meet; a test of the mesh says otherwise by flags or variables.
            .env("CHAPPIE_LISTEN", "127.0.0.1:0")
            .env("CHAPPIE_NO_MDNS", "true")
            .env_remove("CHAPPIE_CONNECT")
            .env_remove("CHAPPIE_JOIN")
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .current_dir(self.root())
            .stdin(Stdio::null());
        command
    }

    /// Where the program under test stands for this world's user.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        program(self.ordinary)
    }

    /// The program under test, as this world's user runs it.
    #[must_use]
    pub fn chappie(&self) -> Command {
        self.command(self.program())
    }

    /// Runs a subcommand to its end; one that does not end within two minutes is ended, and fails with status 124.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, &[])
    }

    /// The same with environment variables.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.command("timeout");
        command.args(["--foreground", "--kill-after=5", "120"]).arg(program(self.ordinary)).args(arguments);
        command.envs(environment.iter().copied()).output().expect("the program starts")
    }

    /// Runs a subcommand that must succeed and gives its standard output.
    ///
    /// # Panics
    /// When it fails.
    pub fn run_ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "chappie {arguments:?}: {}: {error}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn own(&self, path: &Path) {
        if self.ordinary {
            let (uid, gid) = (rustix::fs::Uid::from_raw(ORDINARY), rustix::fs::Gid::from_raw(ORDINARY));
            rustix::fs::chown(path, Some(uid), Some(gid)).expect("root may give a file away");
        }
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        process::end_marked(&self.mark);
        if std::thread::panicking()
            && std::env::var_os("CHECKS_KEEP").is_some()
            && let Some(root) = self.root.take()
        {
            println!("kept {}", root.keep().display());
        }
    }
}

/// The program beside the test's own executable: `target/<profile>/chappie`. Built by the test command, since the program
/// belongs to another package. For an ordinary user who cannot reach it there, a copy stands in the temporary folder.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn program(ordinary: bool) -> PathBuf {
    static REACHABLE: OnceLock<PathBuf> = OnceLock::new();
    let own = std::env::current_exe().expect("a running program has a path");
    let built = own.ancestors().nth(2).expect("target/<profile>/deps/<test>").join("chappie");
    assert!(built.exists(), "{} is not there: run `cargo build -p chappie` first, or deploy/ci/test", built.display());
    if !ordinary {
        return built;
    }
    REACHABLE
        .get_or_init(|| {
            let user = format!("--reuid={ORDINARY}");
            let group = format!("--regid={ORDINARY}");
            let probe = Command::new("setpriv")
                .args([&user, &group, "--clear-groups", "--", "test", "-x"])
                .arg(&built)
                .status()
                .expect("setpriv of util-linux is installed");
            if probe.success() { built } else { copy_for_all(&built) }
        })
        .clone()
}

fn copy_for_all(built: &Path) -> PathBuf {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let facts = fs::metadata(built).expect("exists, seen above");
    let mut hasher = DefaultHasher::new();
    (built, facts.len(), facts.modified().ok()).hash(&mut hasher);
    let folder = std::env::temp_dir().join(format!("checks-program-{:016x}", hasher.finish()));
    let copy = folder.join("chappie");
    if !copy.exists() {
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let staged = folder.join(format!("staged-{}", std::process::id()));
        fs::copy(built, &staged).expect("the temporary folder has room for the program");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("made above");
        fs::set_permissions(&staged, fs::Permissions::from_mode(0o755)).expect("copied above");
        fs::rename(&staged, &copy).expect("in the same folder");
    }
    copy
}
