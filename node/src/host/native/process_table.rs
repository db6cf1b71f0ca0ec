//! The long-running processes of a session, as folders: `<CHAPPIE_HOME>/processes/<session>/<id>/` holds what is known
//! of one (`meta.json`), its output (`out`), its input (`in`, a FIFO) and how it ended (`status`). There is no other
//! state, so a node that was killed and started again finds all of them.
//!
//! A process reads and writes these files itself, never through the node. A shell of its own group (see [`WRAPPER`])
//! starts it and writes its exit code down, so that the code is known although nobody was there to wait.
//!
//! Everything here blocks except [`Table::start`], which hands the wait for the process to a task.

mod status;
mod watch;

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::Signal,
};
use serde::{Deserialize, Serialize};

pub(super) use self::status::State;
use super::group::{self, Ended, Identity, Marker, Target};
use crate::{
    clock,
    ids::{Millis, SessionId},
};

/// Processes of one session that may run at a time: each is a person's or a model's long work, not a job queue.
pub(super) const RUNNING_MAX: usize = 64;

/// How long an ended process stays listed, in milliseconds: one day.
const LISTED_MS: u64 = 24 * 60 * 60 * 1000;

/// How long `stop` waits between TERM and KILL: servers and databases close their files.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);

/// The same when the session ends; closing a session may take five seconds in all.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Reads nothing, prints nothing: runs its arguments, writes the exit code over the status file. Signals for the group
/// only interrupt its wait (a trap, unlike ignoring, is not inherited). The file is written in place, which needs no
/// room on a full disk. `$1` is the status file.
const WRAPPER: &str = "trap : TERM INT HUP QUIT USR1 USR2 ALRM\n\
    s=$1; shift\n\
    \"$@\"\n\
    printf '%-11s\\n' \"exit $?\" 1<>\"$s\"\n";

/// The processes one session sees.
#[derive(Clone, Debug)]
pub(super) struct Table {
    root: PathBuf,
    session: SessionId,
}

/// What is known of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    /// Unique on this node.
    pub(super) id: String,
    /// What the caller called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Its beginning, [`COMMAND_CHARS_MAX`] characters.
    pub(super) command: String,
    pub(super) cwd: String,
    /// Lives on when its session ends.
    pub(super) keep: bool,
    /// Whose it is.
    pub(super) session: SessionId,
    pub(super) started: Millis,
    /// The process of [`WRAPPER`], which leads the group; missing when the node died while it started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leader: Option<Leader>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Leader {
    pid: i32,
    start: u64,
    boot: String,
}

/// A command is kept to recognise it, not to run it again.
const COMMAND_CHARS_MAX: usize = 2_000;

/// One process and its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) meta: Meta,
    folder: PathBuf,
}

/// What to start.
pub(super) struct Start<'a> {
    /// The shell.
    pub(super) shell: &'a Path,
    /// Runs in the shell.
    pub(super) command: &'a str,
    /// See [`Meta::name`].
    pub(super) name: Option<String>,
    /// Working folder.
    pub(super) cwd: &'a Path,
    /// See [`Meta::keep`].
    pub(super) keep: bool,
}

impl Table {
    /// The table of `session` on the node of `home`.
    pub(super) fn new(home: &Path, session: &SessionId) -> Self {
        Self { root: home.join("processes"), session: session.clone() }
    }

    /// Looks after the processes of the session that an earlier run of the node started. Needs a tokio runtime.
    pub(super) fn adopt(&self) {
        let own = self.entries().into_iter().filter(|entry| entry.meta.session == self.session);
        own.filter(|entry| entry.state() == State::Running).for_each(|entry| watch::start(entry, None));
    }

    /// Starts a process. Blocks for the moment that takes; needs a tokio runtime.
    pub(super) fn start(&self, start: &Start<'_>) -> io::Result<Entry> {
        let mut entry = self.create(start)?;
        match entry.spawn(start) {
            Ok(child) => watch::start(entry.clone(), Some(child)),
            Err(cause) => {
                // Nothing ran; half an entry would be listed as lost.
                let _ = fs::remove_dir_all(&entry.folder);
                return Err(cause);
            }
        }
        Ok(entry)
    }

    /// Every process the session may see, oldest first: its own, and those of other sessions that were kept. Ended ones
    /// are forgotten after a day.
    pub(super) fn list(&self) -> Vec<Entry> {
        let now = clock::now();
        let (old, mut current): (Vec<Entry>, Vec<Entry>) =
            self.entries().into_iter().partition(|entry| entry.ended().is_some_and(|end| now.since(end) > LISTED_MS));
        old.iter().for_each(Entry::forget);
        current.sort_by(|a, b| (a.meta.started, &a.meta.id).cmp(&(b.meta.started, &b.meta.id)));
        current
    }

    /// The process called `id`.
    pub(super) fn find(&self, id: &str) -> Option<Entry> {
        self.entries().into_iter().find(|entry| entry.meta.id == id)
    }

    /// How many of the session's own processes run.
    pub(super) fn running(&self) -> usize {
        let own = self.entries().into_iter().filter(|entry| entry.meta.session == self.session);
        own.filter(|entry| entry.state() == State::Running).count()
    }

    /// Ends the session's processes that were not to be kept. Blocks for at most [`CLOSE_GRACE`] and two seconds.
    pub(super) fn close(&self) {
        let own = self.entries().into_iter().filter(|e| e.meta.session == self.session && !e.meta.keep);
        let threads: Vec<_> = own.map(|entry| std::thread::spawn(move || entry.end(CLOSE_GRACE))).collect();
        for thread in threads {
            // A panic there leaves that one process; the others are ended.
            let _ = thread.join();
        }
    }

    fn create(&self, start: &Start<'_>) -> io::Result<Entry> {
        let session = self.root.join(&self.session.0);
        DirBuilder::new().recursive(true).mode(0o700).create(&session)?;
        let (id, folder) = loop {
            // 32 bits of 122 random ones: short enough to type, and a name in use is drawn again.
            let id = format!("p{}", &clock::token()[..8]);
            match DirBuilder::new().mode(0o700).create(session.join(&id)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    made?;
                    break (id.clone(), session.join(id));
                }
            }
        };
        let meta = Meta {
            id,
            name: start.name.clone(),
            command: start.command.chars().take(COMMAND_CHARS_MAX).collect(),
            cwd: start.cwd.to_string_lossy().into_owned(),
            keep: start.keep,
            session: self.session.clone(),
            started: clock::now(),
            leader: None,
        };
        Ok(Entry { meta, folder })
    }

    fn entries(&self) -> Vec<Entry> {
        let sessions = folders(&self.root);
        let entries = sessions.iter().flat_map(|session| folders(session)).filter_map(Entry::read);
        entries.filter(|entry| entry.meta.session == self.session || entry.meta.keep).collect()
    }
}

impl Entry {
    fn read(folder: PathBuf) -> Option<Self> {
        let meta = serde_json::from_slice(&fs::read(folder.join("meta.json")).ok()?).ok()?;
        Some(Self { meta, folder })
    }

    /// The file of everything it printed.
    pub(super) fn output(&self) -> PathBuf {
        self.folder.join("out")
    }

    /// The FIFO it reads.
    pub(super) fn input(&self) -> PathBuf {
        self.folder.join("in")
    }

    /// Whether it runs, or how it ended.
    pub(super) fn state(&self) -> State {
        let path = self.status_file();
        match status::read(&path) {
            State::Running if !self.leads() => {
                // It may have ended, and said so, between the two looks.
                let again = status::read(&path);
                if again == State::Running { State::Lost } else { again }
            }
            state => state,
        }
    }

    /// The leader's process id.
    pub(super) fn pid(&self) -> Option<i32> {
        self.meta.leader.as_ref().map(|leader| leader.pid)
    }

    /// Sends `signal` to all of its processes; gives how many there were.
    pub(super) fn signal(&self, signal: Signal) -> usize {
        self.target().signal(signal)
    }

    /// Ends all of its processes.
    pub(super) fn end(&self, grace: Duration) -> Ended {
        let ran = self.state() == State::Running;
        let ended = self.target().end(grace);
        if ran && self.state() == State::Lost {
            // KILL took the wrapper too, so that nobody wrote it down.
            status::write(&self.status_file(), State::Killed(Signal::KILL.as_raw()));
        }
        ended
    }

    /// When it was seen to have ended; `None` while it runs.
    fn ended(&self) -> Option<Millis> {
        let state = self.state();
        if state == State::Running {
            return None;
        }
        let path = self.status_file();
        if state == State::Lost && status::read(&path) == State::Running {
            status::write(&path, State::Lost);
        }
        let stamp = fs::metadata(&path).and_then(|found| found.modified()).ok()?;
        let since_epoch = stamp.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)))
    }

    fn forget(&self) {
        let _ = fs::remove_dir_all(&self.folder);
        // Only an empty session folder goes.
        if let Some(session) = self.folder.parent() {
            let _ = fs::remove_dir(session);
        }
    }

    fn status_file(&self) -> PathBuf {
        self.folder.join("status")
    }

    fn leader(&self) -> Option<Identity> {
        let leader = self.meta.leader.as_ref().filter(|leader| leader.boot == group::boot())?;
        Some(Identity { pid: leader.pid, start: leader.start })
    }

    /// Whether the wrapper lives, or has ended and `watch` is about to write down how. Without a known leader the marker
    /// decides.
    fn leads(&self) -> bool {
        match (&self.meta.leader, self.leader()) {
            (None, _) => !self.target().living().is_empty(),
            (Some(_), leader) => leader.is_some_and(|leader| leader.is_alive() || leader.awaits_us()),
        }
    }

    fn target(&self) -> Target {
        Target::new(self.leader(), &self.marker())
    }

    fn marker(&self) -> Marker {
        Marker::process(self.meta.session.as_str(), &self.meta.id)
    }

    /// Starts the wrapper. Everything the entry needs is on disk before, and its pid right after.
    fn spawn(&mut self, start: &Start<'_>) -> io::Result<tokio::process::Child> {
        status::write_new(&self.status_file(), State::Running)?;
        mkfifoat(CWD, self.input(), Mode::RUSR | Mode::WUSR)?;
        let out = OpenOptions::new().append(true).create_new(true).mode(0o600).open(self.output())?;
        // Opened for both, so that it neither waits for a writer nor ever reads an end.
        let input = OpenOptions::new().read(true).write(true).open(self.input())?;
        self.write_meta()?;
        let mut process = self.wrapper(start)?;
        process.stdin(input).stdout(out.try_clone()?).stderr(out);
        self.marker().mark(&mut process);
        let child = tokio::process::Command::from(process).spawn()?;
        self.meta.leader = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Identity::of).map(|id| Leader {
            pid: id.pid,
            start: id.start,
            boot: group::boot(),
        });
        // A failure is harmless: the marker finds the process too.
        let _ = self.write_meta();
        Ok(child)
    }

    fn wrapper(&self, start: &Start<'_>) -> io::Result<Command> {
        let sh = group::find_program("sh").unwrap_or_else(|| start.shell.to_owned());
        let mut process = group::command(&sh, start.cwd);
        process.args(["-c", WRAPPER, "sh"]).arg(self.status_file()).arg(start.shell);
        if start.command.len() <= super::bash::ARGUMENT_BYTES_MAX {
            process.args(["-c", "--", start.command]);
        } else {
            let script = self.folder.join("command.sh");
            fs::write(&script, start.command)?;
            process.arg(script);
        }
        Ok(process)
    }

    fn write_meta(&self) -> io::Result<()> {
        let (new, path) = (self.folder.join("meta.json.new"), self.folder.join("meta.json"));
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&self.meta)?)?;
        fs::rename(new, path)
    }
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests;
