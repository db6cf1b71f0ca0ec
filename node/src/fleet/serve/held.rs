//! Operations whose outcome went out on a stream that was lost before its word: was the answer written? They are kept for
//! a moment, so that the word can come on another stream (failure rule F7).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chappie_mesh::runtime::Spawner;
use tokio::sync::oneshot;

use crate::{fleet::Run, ids::CallId};

/// How long the word is waited for: a reconnection takes a few seconds. After that nobody knows, and what was carried is
/// offered again.
pub(super) const HELD_MAX: Duration = Duration::from_secs(20);
/// The most at a time, a device's operations in flight; beyond them nobody knows at once.
const RUNS_MAX: usize = 256;

struct Kept {
    number: u64,
    run: Box<dyn Run>,
}

/// A run that is followed on a stream.
pub(super) struct Following {
    runs: Arc<Mutex<Runs>>,
    call_id: CallId,
    number: u64,
    /// Whether its answer was written, when that is said elsewhere.
    pub(super) word: oneshot::Receiver<bool>,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut runs = lock(&self.runs);
        if runs.followed.get(&self.call_id).is_some_and(|(number, _)| *number == self.number) {
            runs.followed.remove(&self.call_id);
        }
    }
}

#[derive(Default)]
struct Runs {
    next: u64,
    kept: BTreeMap<CallId, Kept>,
    /// The latest that are still followed, and the way to tell them a word that came elsewhere.
    followed: BTreeMap<CallId, (u64, oneshot::Sender<bool>)>,
}

/// Keeps them.
pub(super) struct Held {
    runs: Arc<Mutex<Runs>>,
    runtime: Spawner,
}

fn lock(runs: &Mutex<Runs>) -> MutexGuard<'_, Runs> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Held {
    pub(super) fn new(runtime: Spawner) -> Self {
        Self { runs: Arc::default(), runtime }
    }

    /// Notes that a run is followed on a stream; see [`Self::tell`].
    pub(super) fn follow(&self, call_id: &CallId) -> Following {
        let mut runs = lock(&self.runs);
        runs.next += 1;
        let number = runs.next;
        let (told, word) = oneshot::channel();
        runs.followed.insert(call_id.clone(), (number, told));
        Following { runs: Arc::clone(&self.runs), call_id: call_id.clone(), number, word }
    }

    /// Tells the run that is followed on a stream, which may hang, whether its answer was written. False: none is.
    pub(super) fn tell(&self, call_id: &CallId, written: bool) -> bool {
        let followed = lock(&self.runs).followed.remove(call_id);
        followed.is_some_and(|(_, told)| told.send(written).is_ok())
    }

    /// Keeps a run for a while.
    pub(super) fn keep(&self, call_id: CallId, run: Box<dyn Run>) {
        let mut runs = lock(&self.runs);
        if runs.kept.len() >= RUNS_MAX {
            return;
        }
        runs.next += 1;
        let number = runs.next;
        runs.kept.insert(call_id.clone(), Kept { number, run });
        drop(runs);
        let runs = Arc::clone(&self.runs);
        self.runtime.spawn(async move {
            tokio::time::sleep(HELD_MAX).await;
            let mut runs = lock(&runs);
            // Another one of the same name may stand there by now.
            if runs.kept.get(&call_id).is_some_and(|kept| kept.number == number) {
                runs.kept.remove(&call_id);
            }
        });
    }

    /// Gives a run back that is kept.
    pub(super) fn take(&self, call_id: &CallId) -> Option<Box<dyn Run>> {
        lock(&self.runs).kept.remove(call_id).map(|kept| kept.run)
    }
}
