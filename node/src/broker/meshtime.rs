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
    /// What the own wall clock lacks to be right, in milliseconds, as the voters' clocks said on taking office. `None`: that
    /// is not known yet, so only elapsed time counts.
    correction_ms: Option<i64>,
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
        Self { last: last.unwrap_or(now.wall), steady_ms: now.steady_ms, correction_ms: Some(0) }
    }

    /// An office begins, and the voters' clocks are being asked: until [`MeshTime::set`] only elapsed time counts.
    pub const fn take_office(&mut self) {
        self.correction_ms = None;
    }

    /// From here on it follows the median of the voters' clocks: `offsets_ms` says how far each other reachable voter's clock
    /// is before this one. Of an even number the smaller of the middle ones counts, so that half of the clocks cannot take
    /// time forward.
    pub fn set(&mut self, offsets_ms: &[i64]) {
        let mut offsets: Vec<i64> = offsets_ms.iter().copied().chain([0]).collect();
        offsets.sort_unstable();
        self.correction_ms = Some(offsets[(offsets.len() - 1) / 2]);
    }

    /// A stamp that another broker gave: time does not stand before it.
    pub fn heard(&mut self, at: Millis, now: Reading) {
        if at > self.expected(now) {
            *self = Self { last: at, steady_ms: now.steady_ms, ..*self };
        }
    }

    /// Mesh time for a look-up. A jump is not taken part in before it is recorded.
    #[must_use]
    pub fn peek(&self, now: Reading) -> Millis {
        let expected = self.expected(now);
        let wall = self.wall(now).unwrap_or(expected);
        if wall.since(expected) > JUMP_MS { expected } else { expected.max(wall) }
    }

    /// Mesh time for the next command.
    pub fn stamp(&mut self, now: Reading) -> Stamp {
        let expected = self.expected(now);
        let wall = self.wall(now).unwrap_or(expected);
        let gap = wall.since(expected);
        let jumped = (gap > JUMP_MS).then_some(gap);
        *self = Self { last: expected.max(wall), steady_ms: now.steady_ms, ..*self };
        Stamp { at: self.last, jumped }
    }

    fn wall(&self, now: Reading) -> Option<Millis> {
        self.correction_ms.map(|correction_ms| Millis(now.wall.0.saturating_add_signed(correction_ms)))
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

    fn office(last: u64, now: Reading, offsets_ms: &[i64]) -> MeshTime {
        let mut time = MeshTime::resume(Some(Millis(last)), now);
        time.take_office();
        assert_eq!((time.peek(now), time.stamp(now).jumped), (Millis(last), None), "no clock was asked yet");
        time.set(offsets_ms);
        time
    }

    #[test]
    fn f14_a_new_broker_follows_the_median_of_the_voters_clocks_and_never_goes_back() {
        let (day, last) = (24 * HOUR as i64, 100 * HOUR);
        // Its own clock is a day ahead of the two others'.
        let now = reading(124 * HOUR, 0);
        let mut time = office(last, now, &[-day, -day + 5]);
        assert_eq!(time.peek(now), Millis(last + 5));
        assert_eq!(time.stamp(now), Stamp { at: Millis(last + 5), jumped: None });
        // A day behind: it goes forward with the others, and says so.
        let now = reading(100 * HOUR, 0);
        let expected = Stamp { at: Millis(124 * HOUR), jumped: Some(day as u64) };
        assert_eq!(office(last, now, &[day, day + 5]).stamp(now), expected);
        // All clocks stand before the last stamp.
        let mut time = office(last, reading(7, 0), &[1, 2]);
        assert_eq!(time.stamp(reading(8, 1)), Stamp { at: Millis(last + 1), jumped: None });
    }

    #[test]
    fn f14_one_wrong_clock_of_two_does_not_take_time_forward() {
        let (last, year) = (100 * HOUR, 365 * 24 * HOUR);
        let now = reading(last, 0);
        assert_eq!(office(last, now, &[year as i64]).peek(now), Millis(last));
        let ahead = reading(last + year, 0);
        let still = Stamp { at: Millis(last), jumped: None };
        assert_eq!(office(last, ahead, &[-(year as i64)]).stamp(ahead), still);
        assert_eq!(office(last, ahead, &[]).stamp(ahead).jumped, Some(year), "it stands alone");
    }

    #[test]
    fn f14_stamps_of_another_broker_take_time_forward_only() {
        let mut time = MeshTime::resume(Some(Millis(1_000)), reading(1_000, 0));
        time.heard(Millis(9_000), reading(1_100, 100));
        assert_eq!(time.peek(reading(1_200, 200)), Millis(9_100));
        time.heard(Millis(5_000), reading(1_200, 200));
        assert_eq!(time.peek(reading(1_200, 200)), Millis(9_100));
    }
}
