//! How a seed is run, and what is kept of it.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

use crate::world::trace::{Keep, Trace};

/// A mistake that is built in on purpose, to see that the checkers find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Orders of an earlier broker are taken.
    Fencing,
    /// What is to be on disk is not.
    Fsync,
    /// A receipt is reserved only after its operation was sent.
    ReceiptAfterDispatch,
    /// A vote is given and not written down.
    Vote,
    /// An answer counts as delivered before it was written.
    AckBeforeWrite,
}

impl Broken {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("fencing", Self::Fencing),
        ("fsync", Self::Fsync),
        ("receipt-after-dispatch", Self::ReceiptAfterDispatch),
        ("vote", Self::Vote),
        ("ack-before-write", Self::AckBeforeWrite),
    ];
}

impl FromStr for Broken {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, broken)| *broken);
        known.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("`{word}` is none of {}", names.join(", "))
        })
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, broken)| broken == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// How a seed is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which lines of its trace are kept.
    pub keep: Keep,
    /// What is broken on purpose.
    pub broken: Option<Broken>,
    /// Where its trace is left.
    pub took: Took,
}

impl Options {
    /// Whether disks say "durable" and lie.
    pub(super) fn lies(&self) -> bool {
        self.broken == Some(Broken::Fsync)
    }
}

/// The trace of a seed, once it has run; also when it failed.
#[derive(Clone, Debug, Default)]
pub struct Took(Arc<Mutex<Option<Trace>>>);

impl Took {
    pub(super) fn note(&self, trace: &Trace) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace.clone());
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> Option<Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
