//! The writer of `node.redb`: group commit, and recovery from a disk that refused (failure rule F25).

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use redb::{Database, Durability};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use super::{Change, Done, FILE, Job, LAZY_MAX, ROWS, Shared, StoreError, open_database};
use crate::storage::{disk::Reserve, medium::Medium};

/// Jobs taken into one transaction. Under load the batch grows by itself while a commit runs; 256 keeps one commit
/// within a few milliseconds.
const BATCH_MAX: usize = 256;
/// Lazy changes kept for a retry while the disk refuses. Beyond it the oldest go first: they may be lost by contract.
const LAZY_KEPT_MAX: usize = 65_536;
/// Kept for outcomes and cancels when the disk is full (F25): each of 256 sessions runs one operation at a time, and an outcome
/// takes at most a page of 64 KiB, since its text is held to the 24 KiB of an answer and pictures are files. The pages above
/// it, written anew at each commit, are used again two commits later.
const RESERVE_BYTES: u64 = 256 * (64 << 10);
/// First and longest pause between attempts to reopen the database after an I/O error. A task does not pause: it is driven by
/// what it is asked for, and at most every [`LAZY_MAX`] by itself.
const REOPEN_FIRST: Duration = Duration::from_millis(50);
const REOPEN_LAST: Duration = Duration::from_secs(5);
/// How long readers may hold the old database while it is being reopened.
const READERS_MAX: Duration = Duration::from_secs(2);

pub(super) struct Writer {
    medium: Medium,
    database: Shared,
    /// Whether this is a task, which may not block.
    task: bool,
    reserve: Option<Reserve>,
    lazy: Vec<Change>,
    lazy_since: Option<Instant>,
    reopen_pause: Duration,
}

impl Writer {
    pub(super) fn new(medium: Medium, database: Shared, task: bool) -> Self {
        let reserve = medium.reserve("reserve", RESERVE_BYTES);
        Self { medium, database, task, reserve, lazy: Vec::new(), lazy_since: None, reopen_pause: REOPEN_FIRST }
    }

    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let first = match self.lazy_since {
                None => match queue.recv() {
                    Ok(job) => Some(job),
                    Err(_) => return,
                },
                Some(since) => match queue.recv_timeout(LAZY_MAX.saturating_sub(since.elapsed())) {
                    Ok(job) => Some(job),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => {
                        self.commit(Vec::new());
                        return;
                    }
                },
            };
            if self.turn(first, || queue.try_recv().ok()) {
                return;
            }
        }
    }

    /// The same as a task.
    pub(super) async fn serve(mut self, mut queue: mpsc::Receiver<Job>) {
        loop {
            let first = match self.lazy_since {
                None => match queue.recv().await {
                    Some(job) => Some(job),
                    None => return,
                },
                Some(since) => match timeout_at(since + LAZY_MAX, queue.recv()).await {
                    Ok(Some(job)) => Some(job),
                    Err(_) => None,
                    Ok(None) => {
                        self.commit(Vec::new());
                        return;
                    }
                },
            };
            if self.turn(first, || queue.try_recv().ok()) {
                return;
            }
        }
    }

    /// Handles one batch; `true` ends the writer.
    fn turn(&mut self, first: Option<Job>, mut more: impl FnMut() -> Option<Job>) -> bool {
        let due = first.is_none();
        let mut durable: Vec<(Vec<Change>, Done)> = Vec::new();
        let mut stop = None;
        let mut next = first;
        while let Some(job) = next {
            match job {
                Job::Durable(changes, done) => durable.push((changes, done)),
                Job::Flush(done) => durable.push((Vec::new(), done)),
                Job::Stop(done) => {
                    let (committed, outcome) = oneshot::channel();
                    durable.push((Vec::new(), committed));
                    stop = Some((done, outcome));
                }
                Job::Lazy(changes) => self.keep_lazy(changes),
            }
            next = if stop.is_some() || durable.len() >= BATCH_MAX { None } else { more() };
        }
        if due || !durable.is_empty() {
            self.commit(durable);
        }
        let Some((done, mut outcome)) = stop else { return false };
        // Answered only when the file is closed: whoever waits may open it again at once.
        if let Some(database) = self.database.write().ok().and_then(|mut guard| guard.take()) {
            self.wait_for_readers(database);
        }
        let _ = done.send(outcome.try_recv().unwrap_or(Err(StoreError::Stopped)));
        true
    }

    fn keep_lazy(&mut self, changes: Vec<Change>) {
        self.lazy.extend(changes);
        let over = self.lazy.len().saturating_sub(LAZY_KEPT_MAX);
        if over > 0 {
            self.lazy.drain(..over);
            tracing::warn!(dropped = over, "lazy writes were dropped because the disk refuses");
        }
        self.lazy_since.get_or_insert_with(Instant::now);
    }

    fn commit(&mut self, durable: Vec<(Vec<Change>, Done)>) {
        let lazy = std::mem::take(&mut self.lazy);
        self.lazy_since = None;
        if lazy.is_empty() && durable.iter().all(|(changes, _)| changes.is_empty()) {
            // Nothing to write; every earlier batch was committed durably.
            for (_, done) in durable {
                let _ = done.send(Ok(()));
            }
            return;
        }
        let result = self.attempt(&lazy, &durable).or_else(|error| {
            tracing::error!(%error, "the node's store refused a commit; reopening it");
            // The one retry, with the reserve given up: outcomes must find room (F25). Changes set and remove rows, so that
            // it does not matter whether the first attempt was kept.
            let _ = self.reserve.as_ref().is_some_and(Reserve::release);
            self.reopen()?;
            self.attempt(&lazy, &durable)
        });
        if result.is_err() {
            self.keep_lazy(lazy);
        } else {
            self.reopen_pause = REOPEN_FIRST;
            if let Some(reserve) = &self.reserve {
                reserve.refill();
            }
        }
        for (_, done) in durable {
            let _ = done.send(result.clone());
        }
    }

    fn attempt(&self, lazy: &[Change], durable: &[(Vec<Change>, Done)]) -> Result<(), StoreError> {
        let fail = |error: String| StoreError::Write(error);
        let database = self.database.read().ok().and_then(|guard| guard.clone());
        let database = database.ok_or_else(|| fail("the store is closed after a disk error".into()))?;
        let mut transaction = database.begin_write().map_err(|error| fail(error.to_string()))?;
        transaction.set_durability(Durability::Immediate).map_err(|error| fail(error.to_string()))?;
        {
            let mut table = transaction.open_table(ROWS).map_err(|error| fail(error.to_string()))?;
            for change in lazy.iter().chain(durable.iter().flat_map(|(changes, _)| changes)) {
                let key = change.key.as_bytes();
                match &change.value {
                    Some(value) => table.insert(key, value.as_slice()).map(drop),
                    None => table.remove(key).map(drop),
                }
                .map_err(|error| fail(error.to_string()))?;
            }
        }
        transaction.commit().map_err(|error| fail(error.to_string()))
    }

    /// Closes and opens the database again: after an I/O error redb refuses further writes until then.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let old = self.database.write().ok().and_then(|mut guard| guard.take());
        if let Some(old) = old {
            self.wait_for_readers(old);
        }
        if !self.task {
            std::thread::sleep(self.reopen_pause);
            self.reopen_pause = (self.reopen_pause * 2).min(REOPEN_LAST);
        }
        self.medium.forget_cached(FILE);
        let database = open_database(&self.medium)?;
        if let Ok(mut guard) = self.database.write() {
            *guard = Some(Arc::new(database));
        }
        Ok(())
    }

    /// Readers hold a clone only for the length of one read; the file can be opened again once they let go. Beside a task
    /// nobody reads.
    fn wait_for_readers(&self, mut old: Arc<Database>) {
        let started = Instant::now();
        while let Err(shared) = Arc::try_unwrap(old) {
            if self.task || started.elapsed() > READERS_MAX {
                return;
            }
            old = shared;
            std::thread::yield_now();
        }
    }
}
