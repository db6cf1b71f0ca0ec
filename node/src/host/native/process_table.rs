//! The long-running processes of a session, as folders: `<CHAPPIE_HOME>/processes/<session>/<id>/` holds what is known
//! of one (`meta.json`), its output (`out`), its input (`in`, a FIFO) and how it ended (`status`). There is no other
//! state, so a node that was killed and started again finds all of them.
//!
//! A process reads and writes these files itself, never through the node. A shell that
//! leads its group starts it and writes its exit code down, so that the code is known although nobody was there to wait.
//!
//! Everything here blocks except [`Table::start`], which hands the wait for the process to a task.

mod entry;
mod status;
mod watch;

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use self::entry::{COMMAND_CHARS_MAX, Meta};
pub(super) use self::{entry::Entry, status::State};
use crate::{clock, ids::SessionId};

/// Processes of one session that may run at a time: each is a person's or a model's long work, not a job queue.
pub(super) const RUNNING_MAX: usize = 64;

/// How long an ended process stays listed, in milliseconds: one day.
const LISTED_MS: u64 = 24 * 60 * 60 * 1000;

/// How long `stop` waits between TERM and KILL: servers and databases close their files.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5);

/// The same when the session ends; closing a session may take five seconds in all.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// The processes one session sees.
#[derive(Clone, Debug)]
pub(super) struct Table {
    root: PathBuf,
    session: SessionId,
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

    /// Looks after the processes of the session that an earlier run of the node started, and forgets those that ended
    /// more than a day ago. Needs a tokio runtime.
    pub(super) fn adopt(&self) {
        self.prune();
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
        self.prune();
        let mut entries = self.entries();
        entries.sort_by(|a, b| (a.meta.started, &a.meta.id).cmp(&(b.meta.started, &b.meta.id)));
        entries
    }

    /// Forgets what ended more than a day ago, of all sessions: one that is over lists nothing any more.
    fn prune(&self) {
        let now = clock::now();
        let old = self.all().filter(|entry| entry.ended().is_some_and(|end| now.since(end) > LISTED_MS));
        old.for_each(|entry| entry.forget());
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
        self.all().filter(|entry| entry.meta.session == self.session || entry.meta.keep).collect()
    }

    /// The entries of all sessions of the node.
    fn all(&self) -> impl Iterator<Item = Entry> {
        folders(&self.root).into_iter().flat_map(|session| folders(&session)).filter_map(Entry::read)
    }
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests;
