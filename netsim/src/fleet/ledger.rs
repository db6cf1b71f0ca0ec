//! What happened outside the product: what clients sent, what ran, what they were told. No crash takes it away, and the
//! checkers believe nothing else.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

/// How a piece of work stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    /// Which device is to do it.
    pub(super) device: usize,
    /// In which chat it was sent.
    pub(super) chat: u64,
    /// How often it was begun, over all devices.
    pub(super) begun: u64,
    /// By which calls.
    pub(super) calls: Vec<String>,
    /// When it was done, and by which start of the device.
    pub(super) done: Option<(Instant, u64)>,
    /// A client read its outcome.
    pub(super) known: bool,
    /// A client was told that it did not and will not run.
    pub(super) denied: Option<String>,
    /// An answer with its outcome was written, and nobody read it.
    pub(super) unread: bool,
    /// Its device was switched off while it was under way, or soon after.
    pub(super) shaken: bool,
}

/// The ledger of a world.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) pieces: BTreeMap<u64, Piece>,
    pub(super) wrong: Option<String>,
    /// Calls that ran, and what they ran.
    calls: BTreeMap<String, u64>,
}

/// What the outcome of a piece of work says, for people and for [`Ledger::read`].
pub(super) fn outcome(piece: u64) -> String {
    format!("did-{piece}.")
}

impl Ledger {
    pub(super) fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client sends a piece of work.
    pub(super) fn send(&self, device: usize, chat: u64) -> u64 {
        let mut book = self.lock();
        let piece = book.pieces.len() as u64 + 1;
        book.pieces.insert(piece, Piece { device, chat, ..Piece::default() });
        piece
    }

    /// A host begins a piece of work.
    pub(super) fn begin(&self, piece: u64, call: &str, device: &str) {
        let mut book = self.lock();
        let Book { pieces, wrong, calls } = &mut *book;
        let Some(known) = pieces.get_mut(&piece) else {
            wrong.get_or_insert(format!("{device} began {piece}, which nobody sent"));
            return;
        };
        known.begun += 1;
        known.calls.push(call.to_owned());
        if known.begun > 1 {
            wrong.get_or_insert(format!(
                "{piece} ran {} times, for the calls {:?}, the last at {device}",
                known.begun, known.calls
            ));
        }
        if let Some(text) = &known.denied {
            wrong.get_or_insert(format!("{piece} ran at {device} after a client was told: {text}"));
        }
        if calls.insert(call.to_owned(), piece).is_some() {
            wrong.get_or_insert(format!("the call {call} ran twice, the last time at {device}"));
        }
    }

    /// A host is done with it.
    pub(super) fn done(&self, piece: u64, start: u64) {
        if let Some(known) = self.lock().pieces.get_mut(&piece) {
            known.done = Some((Instant::now(), start));
        }
    }

    /// A client was told that it ran, with its outcome or without.
    pub(super) fn told(&self, piece: u64) {
        let mut book = self.lock();
        let Book { pieces, wrong, .. } = &mut *book;
        if let Some(known) = pieces.get_mut(&piece) {
            known.known = true;
            if known.begun == 0 {
                wrong.get_or_insert(format!("a client was told that {piece} ran, and it never did"));
            }
        }
    }

    /// Its host was told to give it up: its device stops.
    pub(super) fn cancelled(&self, piece: u64) {
        if let Some(known) = self.lock().pieces.get_mut(&piece) {
            known.shaken = true;
        }
    }

    /// A client read an answer: whose outcomes are in it.
    pub(super) fn read(&self, text: &str, written: bool) {
        let mut book = self.lock();
        for part in text.split("did-").skip(1) {
            let number = part.split('.').next().and_then(|number| number.parse::<u64>().ok());
            let Book { pieces, wrong, .. } = &mut *book;
            let Some((number, piece)) = number.and_then(|number| Some((number, pieces.get_mut(&number)?))) else {
                continue;
            };
            if piece.begun == 0 {
                wrong.get_or_insert(format!("{number} has an outcome and never ran"));
            }
            if written {
                piece.known = true;
            } else {
                piece.unread = true;
            }
        }
    }

    /// A client is told that a piece of work did not run.
    pub(super) fn deny(&self, piece: u64, text: &str) {
        let mut book = self.lock();
        let Book { pieces, wrong, .. } = &mut *book;
        let Some(known) = pieces.get_mut(&piece) else { return };
        if known.begun > 0 {
            wrong.get_or_insert(format!("{piece} ran, and a client is told: {text}"));
        }
        known.denied.get_or_insert_with(|| text.to_owned());
    }

    /// A device is switched off: what was under way there, and what ended within the last two seconds, may be uncertain.
    pub(super) fn shake(&self, device: usize) {
        for piece in self.lock().pieces.values_mut().filter(|piece| piece.device == device && !piece.known) {
            if piece.done.is_none_or(|(at, _)| at.elapsed().as_secs() < 2) {
                piece.shaken = true;
            }
        }
    }

    /// A device's journal is gone, or is an older one: nothing that went there must be told any more.
    pub(super) fn shake_all(&self, device: usize) {
        for piece in self.lock().pieces.values_mut().filter(|piece| piece.device == device) {
            piece.shaken = true;
        }
    }

    pub(super) fn wrong(&self) -> Option<String> {
        self.lock().wrong.clone()
    }
}
