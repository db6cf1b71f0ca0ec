//! Commands in process groups of their own, and how all of a call's processes are ended. How they are started without a
//! terminal is `launch`; which processes are a call's is `members`; what they print is `bash` and `process`.
//!
//! **Ending.** TERM to the group, its descendants and everything with the call's marker in its environment; after
//! [`TERM_GRACE`] KILL to what is left, looked up afresh each round. What escapes: a process that left the group, whose
//! ancestors in the call are all dead, *and* that was started with a wiped environment (`env -i setsid …` twice over).

mod exit;
mod launch;
mod members;
mod record;

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

pub use self::{
    exit::{Exit, signal_named},
    launch::{SESSION_ARGUMENT, become_session, command, find_program},
    members::{Identity, boot},
    record::{SweptGroup, file_name, sweep},
};
use crate::ids::CallId;

/// The environment entry that names the work a process belongs to; descendants inherit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    key: &'static str,
    value: String,
}

impl Marker {
    /// A member of a call: ended with it.
    #[must_use]
    pub fn call(call: &CallId, member: &str) -> Self {
        Self { key: "CHAPPIE_CALL", value: format!("{call}/{member}") }
    }

    /// A `process` entry: outlives the call that started it.
    #[must_use]
    pub fn process(session: &str, id: &str) -> Self {
        Self { key: "CHAPPIE_PROCESS", value: format!("{session}/{id}") }
    }

    /// Puts the entry into the environment of `command`.
    pub fn mark(&self, command: &mut Command) {
        command.env(self.key, &self.value);
    }

    /// The entry as it stands in an environment.
    fn entry(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

/// What to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    leader: Option<Identity>,
    marker: String,
}

/// What ending came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many processes were told to end.
    pub ended: usize,
    /// Those that did not within [`KILL_WAIT`].
    pub left: Vec<i32>,
}

/// How long a call's processes have to end themselves after TERM; a cancelled call has one second in all (F4).
pub const TERM_GRACE: Duration = Duration::from_millis(500);

/// How long KILL may take: only processes asleep in the kernel or forking without end need more than moments.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// Pause between two looks at processes that are ending.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Target {
    /// The processes of `marker`, and the group that `leader` leads when it is still known.
    #[must_use]
    pub fn new(leader: Option<Identity>, marker: &Marker) -> Self {
        Self { leader, marker: marker.entry() }
    }

    /// How many of the processes live.
    #[must_use]
    pub fn living(&self) -> Vec<Identity> {
        let found = members::members(self.leader, &self.marker);
        found.iter().filter(|p| !p.ended).map(|p| p.id).collect()
    }

    /// Sends `signal` to all of them, once; gives how many there were.
    #[must_use]
    pub fn signal(&self, signal: Signal) -> usize {
        let living = self.living();
        self.signal_group(signal);
        let escaped = living.iter().filter(|p| !self.in_group(**p));
        escaped.for_each(|p| p.signal(signal));
        living.len()
    }

    /// Ends all of them: TERM, after `grace` KILL. Blocks for at most `grace` + [`KILL_WAIT`].
    #[must_use]
    pub fn end(&self, grace: Duration) -> Ended {
        let mut known = self.living();
        let ended = known.len();
        if known.is_empty() && !self.group_exists() {
            return Ended::default();
        }
        self.signal_group(Signal::TERM);
        known.iter().filter(|p| !self.in_group(**p)).for_each(|p| p.signal(Signal::TERM));
        let grace = Instant::now() + grace;
        while (known.iter().any(|p| p.is_alive()) || self.group_exists()) && Instant::now() < grace {
            std::thread::sleep(LOOK_AGAIN);
        }
        let deadline = Instant::now() + KILL_WAIT;
        loop {
            // Those known from before may have lost every link to the call by now; those found now may be new.
            known.retain(|p| p.is_alive());
            known.extend(self.living());
            known.sort_unstable();
            known.dedup();
            if (known.is_empty() && !self.group_exists()) || Instant::now() >= deadline {
                return Ended { ended, left: known.iter().map(|p| p.pid).collect() };
            }
            self.signal_group(Signal::KILL);
            known.iter().for_each(|p| p.signal(Signal::KILL));
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// The leader, while nobody else can have its number: alive, or dead and not yet asked for.
    fn group(&self) -> Option<Pid> {
        self.leader.filter(|l| Identity::of(l.pid) == Some(*l)).and_then(|l| Pid::from_raw(l.pid))
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group() {
            // No such group: it has not been made yet (then the leader is signalled by itself) or it is empty.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    fn in_group(&self, process: Identity) -> bool {
        let group = self.group();
        group.is_some() && rustix::process::getpgid(Pid::from_raw(process.pid)).ok() == group
    }

    /// Asks the system for the group where there is no `/proc` to list its members.
    fn group_exists(&self) -> bool {
        !cfg!(target_os = "linux") && self.group().is_some_and(|g| rustix::process::test_kill_process_group(g).is_ok())
    }
}

/// A running command of a call. Dropped before its end was awaited, all of it is killed.
#[derive(Debug)]
pub struct Group {
    /// The command's own process.
    pub child: tokio::process::Child,
    target: Target,
    over: bool,
    _record: record::Record,
}

impl Group {
    /// Starts `command` (made by [`command`]) and records it under `home`. Must run inside a tokio runtime; blocks for
    /// the moment that starting takes.
    ///
    /// # Errors
    /// What the system said, also when the record cannot be written: an unrecorded process would outlive a crash.
    pub fn start(home: &Path, marker: &Marker, mut command: Command) -> Result<Self, StartError> {
        let mut record = record::Record::create(home, marker)
            .map_err(|cause| StartError::Record { path: home.join("groups"), cause })?;
        marker.mark(&mut command);
        let child = tokio::process::Command::from(command).spawn().map_err(StartError::Spawn)?;
        let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Identity::of);
        if let Some(leader) = leader {
            record.started(leader);
        }
        Ok(Self { child, target: Target::new(leader, marker), over: false, _record: record })
    }

    /// Waits for the command's own process; its background children do not count.
    ///
    /// # Errors
    /// What the system said.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.over = status.is_ok();
        status
    }

    /// Ends the command and all of its processes; the status is then there at once.
    pub async fn end(&mut self) -> Ended {
        let target = self.target.clone();
        tokio::task::spawn_blocking(move || target.end(TERM_GRACE)).await.unwrap_or_default()
    }

    /// Processes of the command that live on after it.
    pub async fn remaining(&self) -> Vec<Identity> {
        let target = self.target.clone();
        tokio::task::spawn_blocking(move || target.living()).await.unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.target.signal(Signal::KILL);
        }
    }
}

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The record of running groups cannot be written.
    #[error("cannot note the command in {path}: {cause}; nothing was started. Free some space or mend the folder")]
    Record {
        /// The folder of records.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The system did not start it.
    #[error("{0}")]
    Spawn(io::Error),
}

#[cfg(test)]
mod tests;
