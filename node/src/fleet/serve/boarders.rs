//! Who asked for what waits here to ride along with an answer. Its word about that answer holds when it is not the broker any
//! more, too; and when it lost the seat and says nothing, nobody knows (failure rule F7).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chappie_mesh::NodeId;
use tokio::time::{sleep, timeout};

use super::{
    super::seat::{Holder, Seat},
    held::HELD_MAX,
};
use crate::ids::CallId;

/// Answers that are remembered, about 100 bytes each: a few minutes of a busy mesh. Beyond it the oldest are forgotten, whose
/// claims end by themselves.
const ANSWERS_MAX: usize = 1_024;
/// How long an asker is watched: by then what was claimed for it is free again.
const WATCHED_MAX: Duration = Duration::from_secs(300);

/// Remembers them. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Boarders(Arc<Mutex<VecDeque<(CallId, NodeId)>>>);

impl Boarders {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(CallId, NodeId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `peer` asks for the answer `by`; whoever asked for it before has no say in it any more.
    pub(super) fn note(&self, by: &CallId, peer: NodeId) {
        let mut asked = self.lock();
        asked.retain(|(known, _)| known != by);
        if asked.len() >= ANSWERS_MAX {
            asked.pop_front();
        }
        asked.push_back((by.clone(), peer));
    }

    /// Whether it was `peer` that asked last for the answer `by`.
    pub(super) fn is_of(&self, by: &CallId, peer: &NodeId) -> bool {
        self.lock().iter().any(|(known, asker)| known == by && asker == peer)
    }

    /// Resolves true when `peer` lost the seat and did not say within some seconds what became of the answer `by`; false
    /// when somebody else asked for it, or so much time passed that nothing is claimed for it any more.
    pub(super) async fn left_without_a_word(&self, mut seat: Seat, by: &CallId, peer: NodeId) -> bool {
        let losing = async {
            while self.is_of(by, &peer) {
                seat.left(Holder::There(peer)).await;
                // Its door has the answer or sends the call to the next broker by then, and brings the word there.
                sleep(HELD_MAX).await;
                if seat.holder() != Holder::There(peer) {
                    return self.is_of(by, &peer);
                }
            }
            false
        };
        timeout(WATCHED_MAX, losing).await.unwrap_or(false)
    }
}
