//! What a door holds of a run: a wait, and the duty to say what became of the response.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Operations, Progress};
use crate::ids::CallId;

/// The door's end of one operation. Dropping it detaches: the work goes on and its outcome becomes a late result.
pub struct RunHandle {
    operations: Arc<Operations>,
    call_id: CallId,
    holder: u64,
    progress: watch::Receiver<Progress>,
    open: bool,
    /// Whether the outcome was handed out: a response may carry it.
    handed_out: bool,
}

impl RunHandle {
    pub(super) const fn new(
        operations: Arc<Operations>,
        call_id: CallId,
        holder: u64,
        progress: watch::Receiver<Progress>,
    ) -> Self {
        Self { operations, call_id, holder, progress, open: true, handed_out: false }
    }

    /// The operation.
    #[must_use]
    pub const fn call_id(&self) -> &CallId {
        &self.call_id
    }

    /// Waits until it finished or will never run. Cancel-safe.
    pub async fn done(&mut self) -> Progress {
        let ended = |progress: &Progress| matches!(progress, Progress::Finished(_) | Progress::NeverRan(_));
        let ended = match self.progress.wait_for(ended).await {
            Ok(progress) => progress.clone(),
            Err(_) => Progress::NeverRan("the node is stopping".into()),
        };
        self.handed_out |= matches!(ended, Progress::Finished(_));
        ended
    }

    /// How far it is now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Asks for its end; see [`Operations::cancel`].
    pub fn cancel(&self, reason: &str) {
        self.operations.cancel(&self.call_id, reason);
    }

    /// The response that carried the outcome was written.
    pub fn delivered(mut self) {
        self.open = false;
        self.operations.delivered(&self.call_id);
    }

    /// It is not known whether the response that carried the outcome was written: it comes again, and says so (F7).
    pub fn lapse(mut self) {
        self.open = false;
        self.operations.detach(&self.call_id, self.holder, self.handed_out, true);
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if self.open {
            self.operations.detach(&self.call_id, self.holder, self.handed_out, false);
        }
    }
}

impl std::fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunHandle").field("call_id", &self.call_id).finish_non_exhaustive()
    }
}
