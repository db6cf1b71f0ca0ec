//! What the broker keeps in memory only (design section 5): online sessions, selections in progress, participation
//! windows, the defaults of connections, and uses too recent to be written. Pure: time is an argument. Lost with the
//! broker, and rebuilt from announcements.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{
    limits::{BINDINGS_MAX, CONNECTIONS_MAX, SESSIONS_MAX, TOUCH_EVERY_MS, TOUCH_RETRY_MS, WINDOWS_MAX},
    prefer::Doors,
    state::Binding,
};
use crate::ids::{Conversation, Millis, SessionId};

/// A session that is online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Its id.
    pub session: SessionId,
    /// When it was made; automatic selection goes by this and the id (F13), so every broker picks the same.
    pub created: Millis,
    /// Its folder.
    pub cwd: PathBuf,
}

/// How an assistant should take part (behaviour 10). Advice: an observer's calls are not blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Does the work.
    Executor,
    /// Another execution of the same conversation started within the window: follow it.
    Observer,
}

/// The default of a connection: in memory, for as long as the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The session.
    pub session: SessionId,
    /// Changes with every change.
    revision: u64,
}

/// What a selection changed, for its rollback. Use it at most once.
#[derive(Debug, PartialEq, Eq)]
pub struct Bound {
    pub(super) conversation: Conversation,
    pub(super) session: SessionId,
    pub(super) change: Option<Change>,
    /// The conversation's use that this selection was; a later one keeps the change.
    pub(super) seq: u64,
    /// End of the window it opened.
    pub(super) window: Option<Millis>,
}

impl Bound {
    /// The default that the conversation left for this one: `None` when nothing changed, `Some(None)` when it had none.
    #[must_use]
    pub fn left(&self) -> Option<Option<&SessionId>> {
        self.change.as_ref().map(|change| match change {
            Change::Saved { previous, .. } => previous.as_ref().map(|binding| &binding.session),
            Change::Held { previous, .. } => previous.as_ref(),
        })
    }
}

/// The changed default and what it was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Of a chat.
    Saved { revision: u64, previous: Option<Binding> },
    /// Of a connection.
    Held { revision: u64, previous: Option<SessionId> },
}

#[derive(Debug)]
struct Selecting {
    session: SessionId,
    holders: usize,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Millis,
    seq: u64,
    touch_asked: Option<Millis>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Volatile {
    sessions: BTreeSet<SessionId>,
    /// In selection order.
    order: Vec<Announced>,
    selecting: BTreeMap<Conversation, Selecting>,
    undoing: BTreeSet<Conversation>,
    windows: BTreeMap<(Conversation, SessionId), Millis>,
    connections: BTreeMap<String, Held>,
    seen: BTreeMap<Conversation, Seen>,
    seq: u64,
    /// Where calls enter.
    pub(super) doors: Doors,
}

impl Volatile {
    /// Replaces the list of online sessions; the first [`SESSIONS_MAX`] in selection order are taken. `false`: it is the
    /// list that was there.
    pub fn announce(&mut self, sessions: Vec<Announced>) -> bool {
        let mut sessions = sessions;
        sessions.sort_by(|a, b| (a.created, &a.session).cmp(&(b.created, &b.session)));
        sessions.truncate(SESSIONS_MAX);
        if sessions == self.order {
            return false;
        }
        self.sessions = sessions.iter().map(|known| known.session.clone()).collect();
        self.order = sessions;
        true
    }

    /// Whether a session is online.
    #[must_use]
    pub fn online(&self, session: &SessionId) -> bool {
        self.sessions.contains(session)
    }

    /// Sessions online.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.order.len()
    }

    /// Online sessions in selection order.
    pub fn in_order(&self) -> impl Iterator<Item = &SessionId> {
        self.order.iter().map(|known| &known.session)
    }

    /// The session that a selection of `conversation` in progress has reserved.
    #[must_use]
    pub fn reserved_by(&self, conversation: &Conversation) -> Option<&SessionId> {
        self.selecting.get(conversation).map(|selecting| &selecting.session)
    }

    /// Sessions reserved by other conversations than `conversation`.
    #[must_use]
    pub fn reserved_by_others(&self, conversation: &Conversation) -> BTreeSet<&SessionId> {
        self.selecting.iter().filter(|(whose, _)| *whose != conversation).map(|(_, held)| &held.session).collect()
    }

    /// Reserves `session` until [`Volatile::release`]. Parallel selections of one conversation share its reservation;
    /// `false`: it has another session reserved, and nothing was changed.
    pub fn reserve(&mut self, conversation: &Conversation, session: &SessionId) -> bool {
        let held = self
            .selecting
            .entry(conversation.clone())
            .or_insert_with(|| Selecting { session: session.clone(), holders: 0 });
        if held.session != *session {
            return false;
        }
        held.holders += 1;
        true
    }

    /// Gives one hold back; the last frees the session.
    pub fn release(&mut self, conversation: &Conversation) {
        if let Some(held) = self.selecting.get_mut(conversation) {
            held.holders -= 1;
            if held.holders == 0 {
                self.selecting.remove(conversation);
            }
        }
    }

    /// A bind of `conversation` is being taken back: its default is about to change.
    pub fn start_undo(&mut self, conversation: Conversation) {
        self.undoing.insert(conversation);
    }

    /// It was taken back.
    pub fn end_undo(&mut self, conversation: &Conversation) {
        self.undoing.remove(conversation);
    }

    /// Whether a bind of `conversation` is being taken back.
    #[must_use]
    pub fn undoing(&self, conversation: &Conversation) -> bool {
        self.undoing.contains(conversation)
    }

    /// Records a use of the conversation's default and numbers it.
    pub fn note_use(&mut self, conversation: &Conversation, now: Millis) -> u64 {
        self.seq += 1;
        let seq = self.seq;
        let touch_asked = self.seen.get(conversation).and_then(|seen| seen.touch_asked);
        self.seen.insert(conversation.clone(), Seen { at: now, seq, touch_asked });
        if self.seen.len() > BINDINGS_MAX + CONNECTIONS_MAX {
            let oldest = self.seen.iter().min_by_key(|(_, seen)| seen.seq).map(|(whose, _)| whose.clone());
            if let Some(whose) = oldest {
                self.seen.remove(&whose);
            }
        }
        seq
    }

    /// When the conversation's default was last used, as far as memory knows.
    #[must_use]
    pub fn seen_at(&self, conversation: &Conversation) -> Option<Millis> {
        self.seen.get(conversation).map(|seen| seen.at)
    }

    /// The number of the conversation's last use; 0 before the first.
    #[must_use]
    pub fn last_use(&self, conversation: &Conversation) -> u64 {
        self.seen.get(conversation).map_or(0, |seen| seen.seq)
    }

    /// Whether this use must be written: the written one is a day old, and nobody asked for it a moment ago. Remembers
    /// that it was asked.
    pub fn wants_touch(&mut self, conversation: &Conversation, written: Millis, now: Millis) -> bool {
        let Some(seen) = self.seen.get_mut(conversation) else { return false };
        let asked_lately = seen.touch_asked.is_some_and(|asked| now.since(asked) < TOUCH_RETRY_MS);
        let due = now.since(written) >= TOUCH_EVERY_MS && !asked_lately;
        if due {
            seen.touch_asked = Some(now);
        }
        due
    }

    /// Takes part in the work of `session`: an observer while a window is open, else an executor who opens one of
    /// `cooldown_ms`. The second value is the end of a window opened here.
    pub fn participate(
        &mut self,
        conversation: &Conversation,
        session: &SessionId,
        now: Millis,
        cooldown_ms: u64,
    ) -> (Mode, Option<Millis>) {
        if self.windows.get(&(conversation.clone(), session.clone())).is_some_and(|end| now < *end) {
            return (Mode::Observer, None);
        }
        (Mode::Executor, self.open_window(conversation, session, now, cooldown_ms))
    }

    /// Opens or renews a window; returns its end. A `cooldown_ms` of 0 opens none.
    pub fn open_window(
        &mut self,
        conversation: &Conversation,
        session: &SessionId,
        now: Millis,
        cooldown_ms: u64,
    ) -> Option<Millis> {
        if cooldown_ms == 0 {
            return None;
        }
        let end = now.plus(cooldown_ms);
        self.windows.insert((conversation.clone(), session.clone()), end);
        if self.windows.len() > WINDOWS_MAX {
            self.windows.retain(|_, end| now < *end);
        }
        if self.windows.len() > WINDOWS_MAX {
            let first = self.windows.iter().min_by_key(|(_, end)| **end).map(|(key, _)| key.clone());
            if let Some(key) = first {
                self.windows.remove(&key);
            }
        }
        Some(end)
    }

    /// Closes a window that still ends at `end`: nobody renewed it.
    pub fn close_window(&mut self, conversation: &Conversation, session: &SessionId, end: Millis) {
        let key = (conversation.clone(), session.clone());
        if self.windows.get(&key) == Some(&end) {
            self.windows.remove(&key);
        }
    }

    /// The default of a connection.
    #[must_use]
    pub fn connection(&self, id: &str) -> Option<&Held> {
        self.connections.get(id)
    }

    /// Sessions that are some connection's default, except `id`'s.
    #[must_use]
    pub fn held_by_connections(&self, conversation: &Conversation) -> BTreeSet<&SessionId> {
        let own = if let Conversation::Connection(id) = conversation { Some(id) } else { None };
        self.connections.iter().filter(|(id, _)| Some(*id) != own).map(|(_, held)| &held.session).collect()
    }

    /// Makes `session` the default of a connection.
    pub(super) fn hold(&mut self, id: &str, session: &SessionId) -> Change {
        self.seq += 1;
        let revision = self.seq;
        let previous = self.connections.insert(id.to_owned(), Held { session: session.clone(), revision });
        if self.connections.len() > CONNECTIONS_MAX {
            let last_use = |id: &String| self.last_use(&Conversation::Connection(id.clone()));
            let idle =
                self.connections.keys().filter(|other| *other != id).min_by_key(|other| last_use(other)).cloned();
            if let Some(other) = idle {
                self.forget_connection(&other);
            }
        }
        Change::Held { revision, previous: previous.map(|held| held.session) }
    }

    /// Puts the previous default of a connection back, if it still has `revision`.
    pub(super) fn unhold(&mut self, id: &str, revision: u64, previous: Option<SessionId>) {
        if self.connections.get(id).is_none_or(|held| held.revision != revision) {
            return;
        }
        match previous {
            Some(session) => {
                self.hold(id, &session);
            }
            None => {
                self.connections.remove(id);
            }
        }
    }

    /// These sessions will not come back: no connection keeps them as its default, and their windows close.
    pub fn forget_sessions(&mut self, sessions: &[SessionId]) {
        let gone: BTreeSet<&SessionId> = sessions.iter().collect();
        self.connections.retain(|_, held| !gone.contains(&held.session));
        self.windows.retain(|(_, session), _| !gone.contains(session));
    }

    /// The connection ended: nothing of it is kept.
    pub fn forget_connection(&mut self, id: &str) {
        let conversation = Conversation::Connection(id.to_owned());
        self.connections.remove(id);
        self.seen.remove(&conversation);
        self.windows.retain(|(whose, _), _| *whose != conversation);
    }
}
