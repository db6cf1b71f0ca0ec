//! The MCP sessions that `initialize` opened over HTTP: which ids are live. Pure; time and ids are arguments.
//! A session is a name and nothing more: no queue, no task, no cached answer, so a thousand of them cost next to nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

use crate::ids::Millis;

/// Most sessions kept, about 300 bytes each. A client needs one, ChatGPT one per chat and reconnect; past the limit the
/// one idle longest is ended, and its client is told to initialize again (404).
pub(super) const SESSIONS_MAX: usize = 1_024;

/// A session not used for this long is over: seven days, so that a chat resumed after a weekend still has its own.
pub(super) const IDLE_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    /// The `Mcp-Session-Id`.
    pub(super) id: String,
    /// Fires when the session is over; ends its listening streams.
    pub(super) ended: CancellationToken,
}

struct Entry {
    session: Arc<Session>,
    last_used: Millis,
}

/// All sessions of one door.
#[derive(Default)]
pub(super) struct Sessions {
    entries: Mutex<HashMap<String, Entry>>,
}

impl Sessions {
    /// Opens a session under `id`, ending expired ones and, when full, the one idle longest (one in use only if all are).
    pub(super) fn open(&self, id: String, now: Millis) {
        let mut entries = self.lock();
        entries.retain(|_, entry| entry.keep(now));
        if entries.len() >= SESSIONS_MAX {
            let victim = entries
                .values()
                .min_by_key(|entry| (Arc::strong_count(&entry.session) > 1, entry.last_used))
                .map(|entry| entry.session.id.clone());
            if let Some(entry) = victim.and_then(|id| entries.remove(&id)) {
                entry.session.ended.cancel();
            }
        }
        let session = Arc::new(Session { id: id.clone(), ended: CancellationToken::new() });
        entries.insert(id, Entry { session, last_used: now });
    }

    /// The live session `id`, marked as used now. While the result is held the session counts as in use.
    pub(super) fn touch(&self, id: &str, now: Millis) -> Option<Arc<Session>> {
        let mut entries = self.lock();
        let entry = entries.get_mut(id)?;
        if !entry.keep(now) {
            entries.remove(id);
            return None;
        }
        entry.last_used = now;
        Some(entry.session.clone())
    }

    /// Ends session `id`; false when there is none.
    pub(super) fn end(&self, id: &str) -> bool {
        let removed = self.lock().remove(id);
        removed.inspect(|entry| entry.session.ended.cancel()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Whether it may stay; one that expired is told so.
    fn keep(&self, now: Millis) -> bool {
        let live = now.since(self.last_used) < IDLE_MS_MAX || Arc::strong_count(&self.session) > 1;
        if !live {
            self.session.ended.cancel();
        }
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(sessions: &Sessions, id: &str, now: u64) {
        sessions.open(id.to_owned(), Millis(now));
    }

    #[test]
    fn a_session_lives_until_it_is_ended() {
        let sessions = Sessions::default();
        open(&sessions, "a", 0);
        let session = sessions.touch("a", Millis(1)).unwrap();
        assert_eq!(session.id, "a");
        assert!(sessions.touch("b", Millis(1)).is_none());
        assert!(sessions.end("a"));
        assert!(session.ended.is_cancelled());
        assert!(sessions.touch("a", Millis(1)).is_none());
        assert!(!sessions.end("a"));
    }

    #[test]
    fn a_session_expires_after_seven_idle_days_counted_from_its_last_use() {
        let sessions = Sessions::default();
        open(&sessions, "a", 0);
        assert!(sessions.touch("a", Millis(IDLE_MS_MAX - 1)).is_some());
        assert!(sessions.touch("a", Millis(2 * IDLE_MS_MAX - 2)).is_some());
        assert!(sessions.touch("a", Millis(3 * IDLE_MS_MAX)).is_none());
    }

    #[test]
    fn a_session_in_use_does_not_expire() {
        let sessions = Sessions::default();
        open(&sessions, "a", 0);
        let held = sessions.touch("a", Millis(0)).unwrap();
        assert!(sessions.touch("a", Millis(5 * IDLE_MS_MAX)).is_some());
        drop(held);
        assert!(sessions.touch("a", Millis(10 * IDLE_MS_MAX)).is_none());
    }

    #[test]
    fn past_the_limit_the_session_idle_longest_goes_and_one_in_use_stays() {
        let sessions = Sessions::default();
        for n in 0..SESSIONS_MAX as u64 {
            open(&sessions, &n.to_string(), n);
        }
        let held = sessions.touch("0", Millis(0)).unwrap();
        open(&sessions, "new", 5_000);
        assert!(sessions.touch("0", Millis(5_000)).is_some(), "in use");
        assert!(sessions.touch("1", Millis(5_000)).is_none(), "idle longest");
        assert!(sessions.touch("2", Millis(5_000)).is_some());
        assert!(sessions.touch("new", Millis(5_000)).is_some());
        assert!(!held.ended.is_cancelled());
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
    }
}
