//! A network namespace that lives as long as the test. Its name tells which process made it, so that what a killed test
//! left behind is found and removed by the next one.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Once,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process;

/// Names are `checks-<process>-<number>-<label>`.
const PREFIX: &str = "checks-";

/// Where `ip netns` keeps them.
const FOLDER: &str = "/run/netns";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A network namespace, removed on drop. What runs in it keeps it alive, unnamed, until it ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new namespace in which only loopback is up.
    ///
    /// # Panics
    /// When the test does not run as root or the kernel has no namespaces.
    #[must_use]
    pub fn new(label: &str) -> Arc<Self> {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces, which needs root: run it as root (CI does)"
        );
        static SWEPT: Once = Once::new();
        SWEPT.call_once(Self::sweep);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{label}", std::process::id());
        // The first `ip netns add` on a machine mounts the folder, which two at a time cannot.
        let lock =
            File::create(std::env::temp_dir().join("checks-netns.lock")).expect("the temporary folder is writable");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("a local file can be locked");
        run(&["netns", "add", &name]);
        drop(lock);
        let namespace = Self { name };
        // Addresses are usable at once: there is nobody else whose address they could be.
        namespace.sh("sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        namespace.ip("link set lo up");
        Arc::new(namespace)
    }

    /// Its name, as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Runs `ip WORDS` in it; it must succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, words: &str) -> String {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(words.split_whitespace());
        run(&all)
    }

    /// Runs a shell script in it as the user of the tests; it must succeed. Gives its standard output.
    ///
    /// # Panics
    /// When it fails.
    pub fn sh(&self, script: &str) -> String {
        output(self.command("bash").args(["-c", script]))
    }

    /// A command that runs in it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// Does `work` on a thread inside it. Sockets that are made there stay in it, wherever they are used.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.path(), work)
    }

    /// Removes what tests left behind whose process is gone, with the processes in it. The first [`Self::new`] of a process
    /// does it too.
    pub fn sweep() {
        let Ok(entries) = fs::read_dir(FOLDER) else { return };
        for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
            let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<i32>().ok());
            if owner.is_some_and(|owner| !process::is_alive(owner)) {
                let pids = Command::new("ip").args(["netns", "pids", &name]).output();
                let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
                pids.lines().filter_map(|pid| pid.trim().parse().ok()).for_each(process::kill);
                let _ = Command::new("ip").args(["netns", "delete", &name]).output();
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

/// Does `work` on a thread inside the namespace that the file `path` stands for.
///
/// # Panics
/// When it cannot be entered, or when `work` panics.
fn inside<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter a namespace");
        work()
    };
    thread::scope(|scope| scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn run(words: &[&str]) -> String {
    output(Command::new("ip").args(words))
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
