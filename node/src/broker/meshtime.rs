//! Mesh time (F14): the last stamp plus elapsed time, following the wall clock within an hour. Pure: both clocks are
//! arguments. It never goes back. A larger step forward (a suspended or stopped machine, a wrong clock) is a jump: it
//! enters the log as a command of its own, and what would expire by it waits a full period.

use super::limits::JUMP_MS;
use crate::ids::Millis;

/// The two clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock, which may be wrong or be set.
    pub wall: Millis,
    /// Milliseconds of a clock that only runs forward; its zero means nothing.
    pub steady_ms: u64,
}

/// Mesh time of one broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshTime {
    last: Millis,
    steady_ms: u64,
}

/// What a new stamp is, and the jump before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The stamp.
    pub at: Millis,
    /// Milliseconds that were skipped; record this jump before anything else gets a stamp.
    pub jumped: Option<u64>,
}

impl MeshTime {
    /// Mesh time after the last stamp of a log, or of an empty one (`None`), which starts at the wall clock.
    #[must_use]
    pub fn resume(last: Option<Millis>, now: Reading) -> Self {
        Self { last: last.unwrap_or(now.wall), steady_ms: now.steady_ms }
    }

    /// Mesh time for a look-up. A jump is not taken part in before it is recorded.
    #[must_use]
    pub fn peek(&self, now: Reading) -> Millis {
        let expected = self.expected(now);
        if now.wall.since(expected) > JUMP_MS { expected } else { expected.max(now.wall) }
    }

    /// Mesh time for the next command.
    pub fn stamp(&mut self, now: Reading) -> Stamp {
        let expected = self.expected(now);
        let gap = now.wall.since(expected);
        let jumped = (gap > JUMP_MS).then_some(gap);
        *self = Self { last: expected.max(now.wall), steady_ms: now.steady_ms };
        Stamp { at: self.last, jumped }
    }

    fn expected(&self, now: Reading) -> Millis {
        self.last.plus(now.steady_ms.saturating_sub(self.steady_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn reading(wall: u64, steady_ms: u64) -> Reading {
        Reading { wall: Millis(wall), steady_ms }
    }

    #[test]
    fn f14_time_follows_the_wall_clock_within_an_hour() {
        let mut time = MeshTime::resume(Some(Millis(1_000)), reading(1_000, 0));
        assert_eq!(time.peek(reading(1_500, 100)), Millis(1_500));
        assert_eq!(time.stamp(reading(1_000 + HOUR, 100)), Stamp { at: Millis(1_000 + HOUR), jumped: None });
    }

    #[test]
    fn f14_time_never_goes_back_when_the_clock_is_set_back() {
        let mut time = MeshTime::resume(Some(Millis(10 * HOUR)), reading(10 * HOUR, 0));
        assert_eq!(time.stamp(reading(HOUR, 250)), Stamp { at: Millis(10 * HOUR + 250), jumped: None });
        assert_eq!(time.peek(reading(0, 400)), Millis(10 * HOUR + 400));
    }

    #[test]
    fn f14_a_jump_is_named_once_and_look_ups_do_not_see_it_before() {
        let mut time = MeshTime::resume(Some(Millis(1_000)), reading(1_000, 0));
        let later = reading(2_000 + 5 * HOUR, 1_000);
        assert_eq!(time.peek(later), Millis(2_000));
        assert_eq!(time.stamp(later), Stamp { at: Millis(2_000 + 5 * HOUR), jumped: Some(5 * HOUR) });
        assert_eq!(time.stamp(later), Stamp { at: Millis(2_000 + 5 * HOUR), jumped: None });
    }

    #[test]
    fn f14_an_empty_log_starts_at_the_wall_clock_without_a_jump() {
        let now = reading(1_700_000_000_000, 7);
        assert_eq!(MeshTime::resume(None, now).stamp(now), Stamp { at: now.wall, jumped: None });
    }
}
