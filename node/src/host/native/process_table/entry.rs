//! One process and its folder: how it is started, asked and ended.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::Signal,
};
use serde::{Deserialize, Serialize};

use super::{Start, State, status};
use crate::{
    clock,
    host::native::{
        bash::ARGUMENT_BYTES_MAX,
        group::{self, Ended, Identity, Marker, Target},
    },
    ids::{Millis, SessionId},
};

/// Reads nothing, prints nothing: runs its arguments, writes the exit code over the status file. Signals for the group
/// only interrupt its wait (a trap, unlike ignoring, is not inherited). The file is written in place, which needs no
/// room on a full disk. `$1` is the status file.
const WRAPPER: &str = "trap : TERM INT HUP QUIT USR1 USR2 ALRM\n\
    s=$1; shift\n\
    \"$@\"\n\
    printf '%-11s\\n' \"exit $?\" 1<>\"$s\"\n";

/// What is known of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::host::native) struct Meta {
    /// Unique on this node.
    pub(in crate::host::native) id: String,
    /// What the caller called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host::native) name: Option<String>,
    /// Its beginning, [`COMMAND_CHARS_MAX`] characters.
    pub(in crate::host::native) command: String,
    /// Where it was started.
    pub(super) cwd: String,
    /// Lives on when its session ends.
    pub(in crate::host::native) keep: bool,
    /// Whose it is.
    pub(super) session: SessionId,
    pub(in crate::host::native) started: Millis,
    /// The process of [`WRAPPER`], which leads the group; missing when the node died while it started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) leader: Option<Leader>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leader {
    pub(super) pid: i32,
    pub(super) start: u64,
    pub(super) boot: String,
}

/// A command is kept to recognise it, not to run it again.
pub(super) const COMMAND_CHARS_MAX: usize = 2_000;

/// One process and its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::host::native) struct Entry {
    pub(in crate::host::native) meta: Meta,
    pub(super) folder: PathBuf,
}

/// An entry without a leader that is younger than this is being started at this moment, perhaps by another session's
/// call. Starting takes milliseconds; the rest is for a machine that is out of breath.
const STARTING_MS: u64 = 10_000;

impl Entry {
    pub(super) fn read(folder: PathBuf) -> Option<Self> {
        let meta = serde_json::from_slice(&fs::read(folder.join("meta.json")).ok()?).ok()?;
        Some(Self { meta, folder })
    }

    /// The file of everything it printed.
    pub(in crate::host::native) fn output(&self) -> PathBuf {
        self.folder.join("out")
    }

    /// The FIFO it reads.
    pub(in crate::host::native) fn input(&self) -> PathBuf {
        self.folder.join("in")
    }

    /// Whether it runs, or how it ended.
    pub(in crate::host::native) fn state(&self) -> State {
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
    pub(in crate::host::native) fn pid(&self) -> Option<i32> {
        self.meta.leader.as_ref().map(|leader| leader.pid)
    }

    /// Sends `signal` to all of its processes; gives how many there were.
    pub(in crate::host::native) fn signal(&self, signal: Signal) -> usize {
        self.target().signal(signal)
    }

    /// Ends all of its processes.
    pub(in crate::host::native) fn end(&self, grace: Duration) -> Ended {
        let ran = self.state() == State::Running;
        let ended = self.target().end(grace);
        if ran && self.state() == State::Lost {
            // KILL took the wrapper too, so that nobody wrote it down.
            status::write(&self.status_file(), State::Killed(Signal::KILL.as_raw()));
        }
        ended
    }

    /// When it was seen to have ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<Millis> {
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

    pub(super) fn forget(&self) {
        let _ = fs::remove_dir_all(&self.folder);
        // Only an empty session folder goes.
        if let Some(session) = self.folder.parent() {
            let _ = fs::remove_dir(session);
        }
    }

    pub(super) fn status_file(&self) -> PathBuf {
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
            (None, _) => clock::now().since(self.meta.started) < STARTING_MS || !self.target().living().is_empty(),
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
    pub(super) fn spawn(&mut self, start: &Start<'_>) -> io::Result<tokio::process::Child> {
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
            boot: group::boot().to_owned(),
        });
        // A failure is harmless: the marker finds the process too.
        let _ = self.write_meta();
        Ok(child)
    }

    fn wrapper(&self, start: &Start<'_>) -> io::Result<Command> {
        let sh = group::find_program("sh").unwrap_or_else(|| start.shell.to_owned());
        let mut process = group::command(&sh, start.cwd);
        process.args(["-c", WRAPPER, "sh"]).arg(self.status_file()).arg(start.shell);
        if start.command.len() <= ARGUMENT_BYTES_MAX {
            process.args(["-c", "--", start.command]);
        } else {
            let script = self.folder.join("command.sh");
            fs::write(&script, start.command)?;
            process.arg(script);
        }
        Ok(process)
    }

    pub(super) fn write_meta(&self) -> io::Result<()> {
        let (new, path) = (self.folder.join("meta.json.new"), self.folder.join("meta.json"));
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(&self.meta)?)?;
        fs::rename(new, path)
    }
}
