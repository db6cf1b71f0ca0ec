//! What each conversation last saw of a file, so that `write` can say when it overwrites something the conversation has
//! not read. In memory only: after a restart nothing counts as seen, and nothing is said.

use std::{
    collections::{BTreeMap, HashMap},
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Tells one state of a file from another without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl Fingerprint {
    /// From what the system says of the file. A program that writes the same number of bytes twice within the clock's
    /// grain (a few milliseconds on Linux) can leave both states with one fingerprint.
    #[must_use]
    pub fn of(found: &Metadata) -> Self {
        let nanos = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified_ns: nanos(found.mtime(), found.mtime_nsec()),
            changed_ns: nanos(found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Most files a node remembers over all conversations: at a path of 100 bytes about 1 MiB, and more files than a
/// conversation reads.
const REMEMBERED: usize = 4_096;

/// The node's memory of seen files. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SeenFiles(Arc<Mutex<Memory>>);

type Key = (String, PathBuf);

#[derive(Debug, Default)]
struct Memory {
    seen: HashMap<Key, (Fingerprint, u64)>,
    /// The same keys by time of use, oldest first.
    order: BTreeMap<u64, Key>,
    clock: u64,
}

impl SeenFiles {
    /// `reader` now knows the file at the real path `path` as `state`. Without a reader nothing is kept.
    pub fn note(&self, reader: Option<&str>, path: &Path, state: Fingerprint) {
        let Some(reader) = reader else { return };
        let key = (reader.to_owned(), path.to_owned());
        let mut memory = self.memory();
        memory.clock += 1;
        let now = memory.clock;
        if let Some((_, before)) = memory.seen.insert(key.clone(), (state, now)) {
            memory.order.remove(&before);
        }
        memory.order.insert(now, key);
        if memory.seen.len() > REMEMBERED
            && let Some((_, oldest)) = memory.order.pop_first()
        {
            memory.seen.remove(&oldest);
        }
    }

    /// What `reader` last saw at `path`.
    #[must_use]
    pub fn last(&self, reader: Option<&str>, path: &Path) -> Option<Fingerprint> {
        let key = (reader?.to_owned(), path.to_owned());
        self.memory().seen.get(&key).map(|(state, _)| *state)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn state(size: u64) -> Fingerprint {
        Fingerprint { device: 1, inode: 2, size, modified_ns: 3, changed_ns: 4 }
    }

    #[test]
    fn each_conversation_has_its_own_last_state() {
        let seen = SeenFiles::default();
        seen.note(Some("chat:a"), Path::new("/f"), state(1));
        seen.clone().note(Some("chat:a"), Path::new("/f"), state(2));
        seen.note(None, Path::new("/f"), state(9));
        assert_eq!(seen.last(Some("chat:a"), Path::new("/f")), Some(state(2)));
        assert_eq!(seen.last(Some("chat:b"), Path::new("/f")), None);
        assert_eq!(seen.last(Some("chat:a"), Path::new("/g")), None);
        assert_eq!(seen.last(None, Path::new("/f")), None);
    }

    #[test]
    fn the_oldest_goes_when_the_memory_is_full() {
        let seen = SeenFiles::default();
        let path = |n: usize| PathBuf::from(format!("/{n}"));
        for n in 0..REMEMBERED {
            seen.note(Some("c"), &path(n), state(1));
        }
        seen.note(Some("c"), &path(0), state(2));
        seen.note(Some("c"), &path(REMEMBERED), state(1));
        assert_eq!(seen.last(Some("c"), &path(1)), None, "the least recently noted");
        assert_eq!(seen.last(Some("c"), &path(0)), Some(state(2)));
        let memory = seen.memory();
        assert_eq!((memory.seen.len(), memory.order.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn a_fingerprint_tells_a_changed_file_from_an_unchanged_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = || Fingerprint::of(&std::fs::metadata(file.path()).unwrap());
        let before = of();
        assert_eq!(before, of());
        std::fs::write(file.path(), "more").unwrap();
        assert_ne!(before, of());
    }
}
