//! A broker whose disk gets full hands its office over before it cannot write any more (failure rule F25).

use std::time::Duration;

use chappie_mesh::runtime::{blocking, spawn};
use tokio::time::Instant;

use super::{
    super::limits::{ROOM_AGAIN_MS, ROOM_EVERY_MS, ROOM_MIN_BYTES},
    Council,
};
use crate::storage::{disk::free_bytes, medium::Medium};

/// When the free space is looked at, and how often the office was handed over for lack of it.
pub(super) struct Room {
    pub(super) next: Instant,
    /// The pause after the next time.
    pause: Duration,
}

impl Room {
    pub(super) fn new() -> Self {
        Self { next: Instant::now() + Duration::from_millis(ROOM_EVERY_MS), pause: first() }
    }

    /// Takes in how much is `free`, in bytes, where that is known; says whether the office is to be handed over.
    fn look(&mut self, now: Instant, free: Option<u64>) -> bool {
        let lacks = free.is_some_and(|free| free < ROOM_MIN_BYTES);
        if lacks {
            self.next = now + self.pause;
            self.pause = (self.pause * 2).min(Duration::from_millis(ROOM_AGAIN_MS.1));
        } else {
            *self = Self { next: now + Duration::from_millis(ROOM_EVERY_MS), pause: first() };
        }
        lacks
    }
}

const fn first() -> Duration {
    Duration::from_millis(ROOM_AGAIN_MS.0)
}

impl Council {
    /// Looks at the free space, if this device is the broker and another one could be.
    pub(super) async fn look_for_room(&mut self) {
        let standing = self.shared.standing.borrow().clone();
        let free = match &self.place.medium {
            Medium::Folder(home) if standing.office.is_some() && standing.voters.len() > 1 => {
                let home = home.clone();
                blocking(move || free_bytes(&home)).await.ok().and_then(Result::ok)
            }
            Medium::Folder(_) | Medium::Simulated(_) => None,
        };
        if self.room.look(Instant::now(), free)
            && let Ok(running) = &self.running
        {
            tracing::warn!(free, "the disk of this device is nearly full, so another one becomes the broker");
            let consensus = running.consensus.clone();
            spawn(async move { consensus.hand_over(None).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f25_the_office_is_handed_over_for_lack_of_room_and_less_and_less_often() {
        let start = Instant::now();
        let mut room = Room::new();
        let every = Duration::from_millis(ROOM_EVERY_MS);
        for free in [None, Some(ROOM_MIN_BYTES), Some(u64::MAX)] {
            assert!(!room.look(start, free), "{free:?}");
            assert_eq!(room.next, start + every);
        }
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(room.look(start, Some(ROOM_MIN_BYTES - 1)));
            pauses.push((room.next - start).as_secs());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert!(!room.look(start, Some(ROOM_MIN_BYTES)), "there is room again");
        assert!(room.look(start, Some(0)));
        assert_eq!(room.next, start + first());
    }
}
