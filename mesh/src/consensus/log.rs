//! The log as the engine sees it: all of it that is not purged is kept in memory, and written behind.

use std::{
    collections::VecDeque,
    fmt, io,
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use openraft::{
    LogState, OptionalSend, RaftLogReader,
    entry::RaftEntry as _,
    storage::{IOFlushed, RaftLogStorage},
};

use super::{
    api::{Persisted, Write},
    types::{Entry, LogId, Types, Vote, keep, kept, weight},
    writer::{Done, Writer},
};
use crate::wire::CodecError;

/// What one message to a follower takes along, in bytes: a quarter of what a question may weigh, so that the last entry
/// may be large and the envelope has room.
const READ_BYTES: u64 = 2 << 20;

/// All that is not purged. The engine purges behind its snapshots, which bounds it.
#[derive(Debug, Default)]
struct Cache {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// Without a gap, after `purged`.
    entries: VecDeque<Entry>,
    /// Weight of `entries`.
    bytes: u64,
}

impl Cache {
    fn read(persisted: &Persisted) -> Result<Self, CodecError> {
        let mut cache = Self {
            vote: persisted.vote.as_deref().map(keep).transpose()?,
            committed: persisted.committed.as_deref().map(keep).transpose()?,
            purged: persisted.purged.as_deref().map(keep).transpose()?,
            ..Self::default()
        };
        let mut due = persisted.log.first().map(|(index, _)| *index);
        if let (Some(purged), Some(first)) = (&cache.purged, due)
            && first != purged.index + 1
        {
            return Err(gap(purged.index + 1, first));
        }
        for (index, bytes) in &persisted.log {
            let entry: Entry = keep(bytes)?;
            if due != Some(*index) || entry.log_id.index != *index {
                return Err(gap(due.unwrap_or_default(), *index));
            }
            due = index.checked_add(1);
            cache.push(entry);
        }
        Ok(cache)
    }

    fn push(&mut self, entry: Entry) {
        self.bytes += weight(&entry);
        self.entries.push_back(entry);
    }

    fn first(&self) -> u64 {
        self.entries.front().map_or(0, |entry| entry.log_id.index)
    }

    fn last(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.log_id).or(self.purged)
    }

    fn truncate_from(&mut self, index: u64) {
        while self.entries.back().is_some_and(|entry| entry.log_id.index >= index) {
            self.bytes -= self.entries.pop_back().as_ref().map_or(0, weight);
        }
    }

    fn purge(&mut self, through: LogId) {
        while self.entries.front().is_some_and(|entry| entry.log_id.index <= through.index) {
            self.bytes -= self.entries.pop_front().as_ref().map_or(0, weight);
        }
        self.purged = Some(through);
    }

    /// Entries from `start` to before `end`, as many as weigh `bytes` together, and at least one.
    fn range(&self, start: u64, end: u64, bytes: u64) -> Vec<Entry> {
        let skip = usize::try_from(start.saturating_sub(self.first())).unwrap_or(usize::MAX);
        let mut room = bytes;
        let mut out = Vec::new();
        for entry in self.entries.iter().skip(skip).take_while(|entry| entry.log_id.index < end) {
            let weight = weight(entry);
            if weight > room && !out.is_empty() {
                break;
            }
            room = room.saturating_sub(weight);
            out.push(entry.clone());
        }
        out
    }
}

fn gap(due: u64, found: u64) -> CodecError {
    CodecError::Malformed { length: 0, cause: format!("the log goes on with entry {found} where {due} is due") }
}

/// The log of one member. Clones are the same log.
#[derive(Clone)]
pub(crate) struct Log {
    cache: Arc<Mutex<Cache>>,
    writer: Writer,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log({} bytes)", self.bytes())
    }
}

impl Log {
    /// The log that `persisted` has; `writer` writes what changes.
    ///
    /// # Errors
    /// When the bytes are no log that this program knows.
    pub(super) fn open(persisted: &Persisted, writer: Writer) -> Result<Self, CodecError> {
        Ok(Self { cache: Arc::new(Mutex::new(Cache::read(persisted)?)), writer })
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the log weighs in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.cache().bytes
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.cache().range(start, end, u64::MAX))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.cache().vote)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        Ok(self.cache().range(start, end, READ_BYTES))
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let cache = self.cache();
        Ok(LogState { last_purged_log_id: cache.purged, last_log_id: cache.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.cache().vote = Some(*vote);
        if crate::runtime::is_broken("vote") {
            return Ok(());
        }
        self.writer.written(vec![Write::Vote(kept(vote).map_err(io::Error::other)?)]).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        let Some(committed) = committed else { return Ok(()) };
        self.cache().committed = Some(committed);
        self.writer.committed(kept(&committed).map_err(io::Error::other)?).await
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.cache().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut rows = Vec::new();
        {
            let mut cache = self.cache();
            for entry in entries {
                rows.push((entry.index(), kept(&entry).map_err(io::Error::other)?));
                cache.truncate_from(entry.index());
                cache.push(entry);
            }
        }
        self.writer.write(vec![Write::Append(rows)], Done::Engine(flushed)).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |last| last.index + 1);
        self.cache().truncate_from(from);
        self.writer.written(vec![Write::TruncateFrom(from)]).await
    }

    async fn purge(&mut self, through: LogId) -> Result<(), io::Error> {
        self.cache().purge(through);
        let last = kept(&through).map_err(io::Error::other)?;
        // Nobody waits for it: a log that is longer than it need be is no worse.
        self.writer.write(vec![Write::Purge { through: through.index, last }], Done::Nobody).await
    }
}
