//! A device's disk, as redb writes to it: what was written since the last sync is kept apart, and a crash keeps any part
//! of it. Whole writes survive or not, each for itself, in no order; a write over several sectors may survive in part, cut
//! at sector boundaries; so may a change of the length. One sector is written whole or not at all, which redb relies on
//! for its header.
//!
//! A lost sync is one that fails and takes what it was to make durable with it, so that the file is as it was at the sync
//! before. A disk that says "durable" and lies is not a fault here: with it no promise of any member holds, and a majority
//! of one lying and one honest member loses what it acknowledged. The broken build `fsync` has it.
//!
//! A slow sync cannot take virtual time, because redb's interface blocks. The time it would have taken is handed out by
//! [`Disk::owed`]; the world then holds the process for so long, and what it sends too.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    seed::{PerMille, Rng, Seed},
    trace::Trace,
};

mod content;
mod open;

use content::Content;
pub use open::Open;

/// What a disk does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Syncs that fail.
    pub lost_syncs: PerMille,
    /// Syncs that take long.
    pub slow_syncs: PerMille,
    /// How long those take at most, in milliseconds.
    pub slow_ms: u64,
    /// Syncs that say they are done and did nothing: no fault a mesh can stand, but what broken code does.
    pub lies: bool,
    /// How many bytes all files may have together; `None`: no end.
    pub room: Option<u64>,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Syncs that were done.
    pub syncs: u64,
    /// Syncs that failed.
    pub lost_syncs: u64,
    /// Syncs that took long.
    pub slow_syncs: u64,
    /// Writes that a crash took.
    pub lost_writes: u64,
    /// Writes that a crash cut.
    pub torn_writes: u64,
    /// Writes for which there was no room.
    pub refused: u64,
}

/// All files of a disk as they would be found after a clean stop: a backup, or what a clone is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image(BTreeMap<String, Vec<u8>>);

/// One disk. It outlives the processes that use it.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Shared>);

struct Shared {
    name: String,
    state: Mutex<State>,
    trace: Trace,
    cut: Mutex<Option<Cut>>,
}

/// What happens to the device at the moment its disk loses its power.
type Cut = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Draws the marks of files.
    marks: Rng,
    /// Counts crashes: what was opened before one is worth nothing after it.
    era: u64,
    handles: u64,
    wear: Wear,
    owed: Duration,
    /// After that many more steps the power goes.
    fuse: Option<u64>,
    files: BTreeMap<String, File>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct File {
    content: Content,
    /// Which file it is: a copy has another one.
    mark: [u8; 16],
    /// Who has it open.
    handle: Option<u64>,
}

/// The mark of a new file.
fn draw(marks: &mut Rng) -> [u8; 16] {
    let mut mark = [0; 16];
    marks.fill(&mut mark);
    mark
}

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new(name: &str, seed: Seed, trace: Trace) -> Self {
        let state = State {
            rng: seed.rng(),
            marks: seed.fork("marks").rng(),
            era: 0,
            handles: 0,
            wear: Wear::default(),
            owed: Duration::ZERO,
            fuse: None,
            files: BTreeMap::new(),
            counts: Counts::default(),
        };
        Self(Arc::new(Shared { name: name.to_owned(), state: Mutex::new(state), trace, cut: Mutex::new(None) }))
    }

    /// Opens a file, and makes it when it is not there.
    ///
    /// # Errors
    /// When it is open already.
    pub fn open(&self, name: &str) -> io::Result<Open> {
        let mut state = self.lock();
        state.handles += 1;
        let (handle, era) = (state.handles, state.era);
        let State { files, marks, .. } = &mut *state;
        let made = || File { mark: draw(marks), ..File::default() };
        let file = files.entry(name.to_owned()).or_insert_with(made);
        if file.handle.is_some() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{name} is open already")));
        }
        file.handle = Some(handle);
        drop(state);
        Ok(Open::new(self.clone(), name, handle, era))
    }

    /// Whether the file is there.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.lock().files.contains_key(name)
    }

    /// Names of all files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().files.keys().cloned().collect()
    }

    /// Copies a file as it is seen now, and syncs the copy.
    ///
    /// # Errors
    /// When it is not there, or there is no room.
    pub fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let bytes = state.files.get(from).ok_or(io::ErrorKind::NotFound)?.content.seen().to_vec();
        state.room_for(bytes.len() as u64)?;
        let mark = draw(&mut state.marks);
        state.files.insert(to.to_owned(), File { content: Content::durable(bytes), mark, handle: None });
        Ok(())
    }

    /// Which file `name` is: what stays with it whatever is written, and no copy of it has.
    #[must_use]
    pub fn mark(&self, name: &str) -> Option<[u8; 16]> {
        self.lock().files.get(name).map(|file| file.mark)
    }

    /// Gives a file another name, at once and for good; what has that name is replaced.
    ///
    /// # Errors
    /// When it is not there.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    /// Removes a file; one that is not there is no error.
    pub fn remove(&self, name: &str) {
        self.lock().files.remove(name);
    }

    /// The power goes: of what was not synced any part is lost, and nothing that is open can be used any more.
    pub fn crash(&self) {
        let mut state = self.lock();
        let State { rng, files, counts, era, owed, fuse, .. } = &mut *state;
        *era += 1;
        *owed = Duration::ZERO;
        *fuse = None;
        let before = *counts;
        for file in files.values_mut() {
            file.handle = None;
            let losses = file.content.crash(rng);
            counts.lost_writes += losses.lost;
            counts.torn_writes += losses.torn;
        }
        let (lost, torn) = (counts.lost_writes - before.lost_writes, counts.torn_writes - before.torn_writes);
        drop(state);
        self.0.trace.event(&self.0.name, format_args!("power cut, {lost} writes lost, {torn} torn"));
    }

    /// The power goes in the middle of what is written next: after `steps` more writes, syncs and changes of a length,
    /// whatever file they are of. `cut` is called at that moment, before the step returns, and must see to it that
    /// nothing of the device is seen any more.
    pub fn crash_after(&self, steps: u64, cut: impl Fn() + Send + Sync + 'static) {
        self.lock().fuse = Some(steps);
        *self.0.cut.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(cut));
    }

    /// One step is about to be taken; an error when the power went before it.
    fn step(&self) -> io::Result<()> {
        let mut state = self.lock();
        match &mut state.fuse {
            None => return Ok(()),
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                return Ok(());
            }
        }
        drop(state);
        self.crash();
        let cut = self.0.cut.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(cut) = cut {
            cut();
        }
        Err(io::Error::new(io::ErrorKind::NotConnected, "the power went"))
    }

    /// The process is gone and the device is not: the system keeps what was written, and nothing is open any more.
    pub fn left(&self) {
        let mut state = self.lock();
        state.era += 1;
        state.owed = Duration::ZERO;
        state.fuse = None;
        for file in state.files.values_mut() {
            file.handle = None;
        }
    }

    /// All that is on it, as it is seen now.
    #[must_use]
    pub fn image(&self) -> Image {
        let state = self.lock();
        Image(state.files.iter().map(|(name, file)| (name.clone(), file.content.seen().to_vec())).collect())
    }

    /// Replaces all that is on it. What is open can be used no more.
    pub fn put_back(&self, image: &Image) {
        let mut state = self.lock();
        state.era += 1;
        let State { files, marks, .. } = &mut *state;
        files.clear();
        for (name, bytes) in &image.0 {
            let content = Content::durable(bytes.clone());
            files.insert(name.clone(), File { content, mark: draw(marks), handle: None });
        }
    }

    /// Removes all that is on it.
    pub fn wipe(&self) {
        self.put_back(&Image::default());
    }

    /// What it does wrong from now on.
    pub fn wear(&self, wear: Wear) {
        self.lock().wear = wear;
    }

    /// What it does wrong now.
    #[must_use]
    pub fn worn(&self) -> Wear {
        self.lock().wear
    }

    /// Takes a [`Disk::crash_after`] back.
    pub fn defuse(&self) {
        self.lock().fuse = None;
    }

    /// How long slow syncs took since this was asked last; the process must be held for so long.
    #[must_use]
    pub fn owed(&self) -> Duration {
        std::mem::take(&mut self.lock().owed)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.lock().size()
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn size(&self) -> u64 {
        self.files.values().map(|file| file.content.seen().len() as u64).sum()
    }

    /// Whether `more` bytes fit.
    fn room_for(&mut self, more: u64) -> io::Result<()> {
        if more > 0 && self.wear.room.is_some_and(|room| self.size() + more > room) {
            self.counts.refused += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// The file, when `handle` has it open and nothing came between.
    fn opened(&mut self, name: &str, handle: u64, era: u64) -> io::Result<&mut File> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the device was switched off meanwhile");
        if self.era != era {
            return Err(gone());
        }
        self.files.get_mut(name).filter(|file| file.handle == Some(handle)).ok_or_else(gone)
    }
}

#[cfg(test)]
mod tests;
