//! A ledger outside the product: a file to which each operation appends its own id by a shell command, and which the
//! product never reads. What stands in it twice ran twice.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The file and how to append to it.
#[derive(Clone, Debug)]
pub struct Ledger {
    path: PathBuf,
}

impl Ledger {
    /// A ledger at `path`, which the world's user must be able to write.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// A shell command that appends `id`. One short `O_APPEND` write is atomic.
    #[must_use]
    pub fn append(&self, id: &str) -> String {
        format!("echo {id} >> '{}'", self.path.display())
    }

    /// How often each id stands in it.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(&self.path).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }

    /// How often `id` stands in it.
    #[must_use]
    pub fn count(&self, id: &str) -> usize {
        self.counts().get(id).copied().unwrap_or(0)
    }
}
