//! A file that is open, as redb's backend. After a crash of the device or the end of its process every use is an error.

use std::{io, time::Duration};

use redb::StorageBackend;

use super::{Disk, State};

/// An open file.
#[derive(Debug)]
pub struct Open {
    disk: Disk,
    name: String,
    handle: u64,
    era: u64,
}

impl Open {
    pub(super) fn new(disk: Disk, name: &str, handle: u64, era: u64) -> Self {
        Self { disk, name: name.to_owned(), handle, era }
    }

    fn with<T>(&self, run: impl FnOnce(&mut super::File) -> T) -> io::Result<T> {
        self.disk.lock().opened(&self.name, self.handle, self.era).map(run)
    }

    /// Makes room for a file that ends at `end`.
    fn grow(&self, state: &mut State, end: usize) -> io::Result<()> {
        let length = state.opened(&self.name, self.handle, self.era)?.content.seen().len();
        state.room_for(end.saturating_sub(length) as u64)
    }

    /// Counts down to a power cut; what was opened before an earlier one does not count.
    fn step(&self) -> io::Result<()> {
        self.with(|_| ())?;
        self.disk.step()
    }

    fn release(&self) {
        if let Ok(file) = self.disk.lock().opened(&self.name, self.handle, self.era) {
            file.handle = None;
        }
    }
}

fn position(at: u64) -> io::Result<usize> {
    usize::try_from(at).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl StorageBackend for Open {
    fn len(&self) -> io::Result<u64> {
        self.with(|file| file.content.seen().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = position(offset)?;
        self.with(|file| {
            let bytes = file.content.seen().get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })?
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let length = position(len)?;
        self.step()?;
        let mut state = self.disk.lock();
        self.grow(&mut state, length)?;
        state.opened(&self.name, self.handle, self.era)?.content.resize(length);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.step()?;
        let mut state = self.disk.lock();
        state.opened(&self.name, self.handle, self.era)?;
        let State { rng, wear, owed, counts, .. } = &mut *state;
        let (lost, slow) = (rng.hits(wear.lost_syncs), rng.hits(wear.slow_syncs));
        if slow {
            counts.slow_syncs += 1;
            *owed += Duration::from_millis(rng.within(1..=wear.slow_ms.max(1)));
        }
        if lost {
            counts.lost_syncs += 1;
        } else {
            counts.syncs += 1;
        }
        let lies = wear.lies;
        let file = state.opened(&self.name, self.handle, self.era)?;
        match (lost, lies) {
            (true, _) => file.content.fall_back(),
            (false, true) => {}
            (false, false) => file.content.sync(),
        }
        drop(state);
        if lost {
            self.disk.0.trace.event(&self.disk.0.name, format_args!("lost a sync of {}", self.name));
            return Err(io::Error::other("the disk did not take what was written"));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = position(offset)?;
        self.step()?;
        let mut state = self.disk.lock();
        self.grow(&mut state, at + data.len())?;
        state.opened(&self.name, self.handle, self.era)?.content.write(at, data);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.release();
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.release();
    }
}
