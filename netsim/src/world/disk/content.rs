//! What is in a file: what is durable, what is seen, and the steps between the two. Pure but for the draws it is given.

use crate::world::seed::{PerMille, Rng};

/// A disk writes this many bytes whole or not at all.
pub(super) const SECTOR: usize = 512;

/// A file's content.
#[derive(Debug, Default)]
pub(super) struct Content {
    durable: Vec<u8>,
    seen: Vec<u8>,
    since: Vec<Step>,
}

/// A change since the last sync.
#[derive(Debug)]
enum Step {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

/// What a crash took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) lost: u64,
    pub(super) torn: u64,
}

impl Content {
    /// A file that is on disk as a whole.
    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        Self { seen: bytes.clone(), durable: bytes, since: Vec::new() }
    }

    /// What a reader sees.
    pub(super) fn seen(&self) -> &[u8] {
        &self.seen
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        put(&mut self.seen, at, bytes);
        self.since.push(Step::Write { at, bytes: bytes.to_vec() });
    }

    pub(super) fn resize(&mut self, length: usize) {
        self.seen.resize(length, 0);
        self.since.push(Step::Length(length));
    }

    /// Everything is durable.
    pub(super) fn sync(&mut self) {
        for step in std::mem::take(&mut self.since) {
            step.carry_out(&mut self.durable);
        }
    }

    /// A sync failed: the file is as it was at the one before.
    pub(super) fn fall_back(&mut self) {
        self.since.clear();
        self.seen.clone_from(&self.durable);
    }

    /// The power goes. How much survives is drawn for the crash as a whole, so that all and nothing happen too.
    pub(super) fn crash(&mut self, rng: &mut Rng) -> Losses {
        let survives = PerMille(*rng.pick(&[0, 300, 500, 900, 1000]).unwrap_or(&500));
        let tears = PerMille(*rng.pick(&[0, 200]).unwrap_or(&0));
        let mut losses = Losses::default();
        for step in std::mem::take(&mut self.since) {
            match step {
                Step::Write { at, bytes } if bytes.len() > SECTOR && rng.hits(tears) => {
                    losses.torn += 1;
                    tear(&mut self.durable, at, &bytes, rng);
                }
                step if rng.hits(survives) => step.carry_out(&mut self.durable),
                _ => losses.lost += 1,
            }
        }
        self.seen.clone_from(&self.durable);
        losses
    }
}

impl Step {
    fn carry_out(self, file: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => put(file, at, &bytes),
            Self::Length(length) => file.resize(length, 0),
        }
    }
}

fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(bytes);
}

/// Only some of the sectors are written.
fn tear(file: &mut Vec<u8>, at: usize, bytes: &[u8], rng: &mut Rng) {
    let mut from = 0;
    while from < bytes.len() {
        let sector_ends = ((at + from) / SECTOR + 1) * SECTOR - at;
        let end = sector_ends.min(bytes.len());
        if rng.hits(PerMille(500)) {
            put(file, at + from, &bytes[from..end]);
        }
        from = end;
    }
}
