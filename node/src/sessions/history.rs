//! A native session's branch: appends in order, reads pages by cursor (behaviour 9). The one owner of the next place.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::entry::{Body, Entry, entry_id, place};
use crate::{
    clock,
    ids::{EntryId, SessionId},
    storage::node::{Change, Key, NodeStore, StoreError, Written},
};

/// The most entries one page holds (design 12).
pub const LIMIT_MAX: usize = 200;

/// Which part of the branch is wanted. The named entries are outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// At most so many entries, 1 to [`LIMIT_MAX`].
    pub limit: usize,
    /// Only entries before this one.
    pub before: Option<EntryId>,
    /// Only entries after this one.
    pub after: Option<EntryId>,
}

/// Entries in branch order.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// Oldest first.
    pub entries: Vec<Entry>,
    /// Whether more readable entries lie in the direction that was read.
    pub has_more: bool,
}

/// Why no page came.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The cursor names nothing here.
    #[error(
        "entry {0} is not on the current branch of this session; call history without before and after to see the latest entries"
    )]
    Unknown(EntryId),
    /// The range is inside out.
    #[error("after ({after}) must come before before ({before}) on the branch")]
    Reversed {
        /// The given `after`.
        after: EntryId,
        /// The given `before`.
        before: EntryId,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The head of the branch.
struct Head {
    next: u64,
    last: Option<EntryId>,
}

/// One session's history.
pub struct History {
    session: SessionId,
    store: NodeStore,
    head: Mutex<Head>,
    version: watch::Sender<u64>,
}

impl History {
    /// Continues the branch that the store holds.
    ///
    /// # Errors
    /// [`StoreError::Read`].
    pub fn open(session: SessionId, store: NodeStore) -> Result<Self, StoreError> {
        let mut head = Head { next: 0, last: None };
        store.scan::<Entry>(&Key::history(&session, 0), &Key::history(&session, u64::MAX), true, |key, entry| {
            head = Head { next: key.number().unwrap_or(0) + 1, last: Some(entry.id) };
            false
        })?;
        Ok(Self { session, store, head: Mutex::new(head), version: watch::Sender::new(0) })
    }

    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends `bodies` together with `changes` in one durable write. Their place is fixed before this returns; the
    /// future resolves once they are on disk.
    pub fn append(&self, bodies: Vec<Body>, changes: Vec<Change>) -> (Vec<Entry>, Written) {
        self.append_with(bodies, |_| changes)
    }

    /// The same, for changes that name the new entries.
    pub fn append_with(&self, bodies: Vec<Body>, more: impl FnOnce(&[Entry]) -> Vec<Change>) -> (Vec<Entry>, Written) {
        // Under the lock, so that entries reach the store in the order of their places: a reader never sees a gap.
        let mut head = self.head();
        let mut changes = Vec::new();
        let entries = self.place(&mut head, bodies, &mut changes);
        changes.extend(more(&entries));
        let written = self.store.durable(changes);
        drop(head);
        self.announce(&entries);
        (entries, written)
    }

    /// Appends `bodies` and `changes` lazily: for what may be lost with the process.
    pub fn append_lazily(&self, bodies: Vec<Body>, mut changes: Vec<Change>) -> Vec<Entry> {
        let mut head = self.head();
        let entries = self.place(&mut head, bodies, &mut changes);
        self.store.lazy(changes);
        drop(head);
        self.announce(&entries);
        entries
    }

    fn place(&self, head: &mut Head, bodies: Vec<Body>, changes: &mut Vec<Change>) -> Vec<Entry> {
        let at = clock::now();
        let salt = clock::token();
        bodies
            .into_iter()
            .map(|body| {
                let seq = head.next;
                let entry = Entry { id: entry_id(seq, &salt), parent_id: head.last.take(), at, body };
                head.next += 1;
                head.last = Some(entry.id.clone());
                changes.push(Change::set(Key::history(&self.session, seq), &entry));
                // Only images that this session showed can be read through its references.
                changes.extend(
                    entry.body.images().map(|image| Change::set(Key::image(&self.session, &image.sha256), image)),
                );
                entry
            })
            .collect()
    }

    fn announce(&self, entries: &[Entry]) {
        if entries.iter().any(|entry| entry.body.is_readable()) {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Changes whenever a readable entry was appended.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Wakes every waiting reader, so that it sees that the session ended.
    pub fn wake(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// One page. Everything appended before the call is in it, and is on disk before it is shown: a cursor that was
    /// handed out stays valid after a crash.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub async fn page(&self, range: &Range) -> Result<Page, HistoryError> {
        self.store.flush().await?;
        let after = range.after.as_ref().map(|id| self.locate(id)).transpose()?;
        let before = range.before.as_ref().map(|id| self.locate(id)).transpose()?;
        if let (Some(a), Some(b)) = (after, before)
            && a >= b
        {
            let (after, before) = (range.after.clone(), range.before.clone());
            let unnamed = || EntryId(String::new());
            return Err(HistoryError::Reversed {
                after: after.unwrap_or_else(unnamed),
                before: before.unwrap_or_else(unnamed),
            });
        }
        let from = Key::history(&self.session, after.map_or(0, |seq| seq + 1));
        let to = Key::history(&self.session, before.unwrap_or(u64::MAX));
        let backwards = after.is_none();
        let limit = range.limit.clamp(1, LIMIT_MAX);
        let mut entries = Vec::new();
        let mut has_more = false;
        self.store.scan::<Entry>(&from, &to, backwards, |_, entry| {
            if !entry.body.is_readable() {
                return true;
            }
            if entries.len() == limit {
                has_more = true;
                return false;
            }
            entries.push(entry);
            true
        })?;
        if backwards {
            entries.reverse();
        }
        Ok(Page { entries, has_more })
    }

    fn locate(&self, id: &EntryId) -> Result<u64, HistoryError> {
        let unknown = || HistoryError::Unknown(id.clone());
        let seq = place(id).ok_or_else(unknown)?;
        let entry: Option<Entry> = self.store.read(&Key::history(&self.session, seq))?;
        if entry.is_some_and(|entry| entry.id == *id) { Ok(seq) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{content::Block, sessions::entry::Event};

    fn user(text: &str) -> Body {
        Body::User { content: vec![Block::text(text)] }
    }

    fn texts(page: &Page) -> Vec<String> {
        page.entries
            .iter()
            .map(|entry| match &entry.body {
                Body::User { content } => match &content[0] {
                    Block::Text { text } => text.clone(),
                    Block::Image(_) => unreachable!(),
                },
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn range(limit: usize) -> Range {
        Range { limit, before: None, after: None }
    }

    async fn five() -> (tempfile::TempDir, History, Vec<Entry>) {
        let home = tempfile::tempdir().unwrap();
        let store = NodeStore::open(home.path()).unwrap();
        let history = History::open(SessionId::from("s"), store).unwrap();
        let (entries, written) = history.append(["a", "b", "c", "d", "e"].map(user).to_vec(), Vec::new());
        written.await.unwrap();
        (home, history, entries)
    }

    #[tokio::test]
    async fn without_a_cursor_the_latest_entries_come_in_branch_order() {
        let (_home, history, _) = five().await;
        let page = history.page(&range(2)).await.unwrap();
        assert_eq!((texts(&page), page.has_more), (vec!["d".into(), "e".into()], true));
        let page = history.page(&range(5)).await.unwrap();
        assert_eq!((page.entries.len(), page.has_more), (5, false));
    }

    #[tokio::test]
    async fn before_reads_backwards_and_after_reads_forwards() {
        let (_home, history, entries) = five().await;
        let before = Range { before: Some(entries[3].id.clone()), ..range(2) };
        let page = history.page(&before).await.unwrap();
        assert_eq!((texts(&page), page.has_more), (vec!["b".into(), "c".into()], true));
        let after = Range { after: Some(entries[0].id.clone()), ..range(2) };
        let page = history.page(&after).await.unwrap();
        assert_eq!((texts(&page), page.has_more), (vec!["b".into(), "c".into()], true));
        let both = Range { before: Some(entries[3].id.clone()), after: Some(entries[0].id.clone()), limit: 9 };
        let page = history.page(&both).await.unwrap();
        assert_eq!((texts(&page), page.has_more), (vec!["b".into(), "c".into()], false));
        let end = Range { after: Some(entries[4].id.clone()), ..range(9) };
        assert_eq!(history.page(&end).await.unwrap(), Page { entries: vec![], has_more: false });
    }

    #[tokio::test]
    async fn an_unknown_or_reversed_cursor_is_an_error_that_names_it() {
        let (_home, history, entries) = five().await;
        let (rest, last) = entries[1].id.as_str().split_at(entries[1].id.as_str().len() - 1);
        let forged = EntryId(format!("{rest}{}", if last == "0" { "1" } else { "0" }));
        for id in [EntryId::from("nonsense"), EntryId::from("0000ff-aaaaaa"), forged] {
            let error = history.page(&Range { after: Some(id.clone()), ..range(1) }).await.unwrap_err();
            assert!(error.to_string().contains(id.as_str()) || id == entries[1].id, "{error}");
        }
        let reversed = Range { before: Some(entries[0].id.clone()), after: Some(entries[3].id.clone()), limit: 1 };
        assert!(matches!(history.page(&reversed).await, Err(HistoryError::Reversed { .. })));
    }

    #[tokio::test]
    async fn the_notice_of_a_reader_is_neither_shown_nor_counted_nor_a_reason_to_wake() {
        let (_home, history, _) = five().await;
        let seen = *history.subscribe().borrow();
        history.append_lazily(vec![Body::Notice { event: Event::History, message: "read".into() }], Vec::new());
        assert_eq!(*history.subscribe().borrow(), seen);
        let page = history.page(&range(5)).await.unwrap();
        assert_eq!((page.entries.len(), page.has_more), (5, false));
    }

    #[tokio::test]
    async fn a_reopened_branch_goes_on_where_it_ended() {
        let (_home, history, entries) = five().await;
        let reopened = History::open(SessionId::from("s"), history.store.clone()).unwrap();
        let (more, written) = reopened.append(vec![user("f")], Vec::new());
        written.await.unwrap();
        assert_eq!(more[0].parent_id.as_ref(), Some(&entries[4].id));
        let other = History::open(SessionId::from("s2"), history.store.clone()).unwrap();
        assert_eq!(other.page(&range(1)).await.unwrap().entries, []);
    }
}
