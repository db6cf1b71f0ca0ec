//! Which office of the broker this node obeys: the highest it has seen, over restarts (failure rule F11).

use std::sync::{Mutex, PoisonError};

use chappie_mesh::runtime;
use serde::{Deserialize, Serialize};

use super::Sessions;
use crate::storage::node::{Change, Key, NodeStore, StoreError};

/// The office that a command was given in; a session node refuses one that is older than what it has seen (F11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tenure {
    /// The mesh's epoch.
    pub epoch: u64,
    /// The broker's term in it.
    pub term: u64,
}

impl std::fmt::Display for Tenure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {}, term {}", self.epoch, self.term)
    }
}

/// A command of an office that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not run: it was sent by an earlier broker ({given}), and this device obeys a later one ({seen}); nothing was done, send it again"
)]
pub struct Fenced {
    /// The command's.
    pub given: Tenure,
    /// The highest seen.
    pub seen: Tenure,
}

/// The highest office seen.
#[derive(Debug)]
pub(super) struct Seen(Mutex<Tenure>);

impl Seen {
    pub(super) fn load(store: &NodeStore) -> Result<Self, StoreError> {
        Ok(Self(Mutex::new(store.read(&Key::tenure())?.unwrap_or_default())))
    }
}

impl Sessions {
    /// Checks the office that a command was given in. A higher one than ever is kept: on disk before any work that comes
    /// after it is.
    ///
    /// # Errors
    /// [`Fenced`]: the office is over, and the command must not be obeyed.
    pub fn obey(&self, given: Tenure) -> Result<(), Fenced> {
        let mut seen = self.tenure.0.lock().unwrap_or_else(PoisonError::into_inner);
        if given < *seen && !runtime::is_broken("fencing") {
            return Err(Fenced { given, seen: *seen });
        }
        runtime::obeys(given.epoch, given.term);
        if given > *seen {
            *seen = given;
            // Commits go in order: this one is on disk no later than the first row of what the command starts.
            self.store.lazy(vec![Change::set(Key::tenure(), &given)]);
        }
        Ok(())
    }

    /// The highest office seen.
    #[must_use]
    pub fn tenure(&self) -> Tenure {
        *self.tenure.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This device belongs to another mesh now, whose offices are counted anew.
    ///
    /// # Errors
    /// The store's; the old mesh's offices are then known again after a restart.
    pub async fn forget_tenure(&self) -> Result<(), StoreError> {
        *self.tenure.0.lock().unwrap_or_else(PoisonError::into_inner) = Tenure::default();
        self.store.durable(vec![Change::remove(Key::tenure())]).await
    }
}
