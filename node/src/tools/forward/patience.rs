//! How long and how often a door tries to bring one call to a broker. It is given the time and reads no clock.

use std::time::Duration;

use tokio::time::Instant;

/// How long there may be no broker before the client is told. It is told within 5 s, and up to one of them may pass before
/// the loss of a broker is noticed.
pub(super) const AWAY_MAX: Duration = Duration::from_secs(4);
/// The same for a broker that was silent for four seconds before that.
const AWAY_SILENT: Duration = Duration::from_millis(500);
/// What a broker that just took the seat gets at least: it may have been chosen at the end of a long election.
const SETTLE: Duration = Duration::from_millis(1_500);
/// What a device gets that is said to be the broker and is not yet, from the first time that it does not take the call: one
/// that cannot get a quorum never takes it.
const TAKING: Duration = Duration::from_secs(3);
/// Between two sendings to one device: the first time, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(200)];
/// How often one call is sent. More losses and elections within one budget are a fault that repeating does not mend.
const SENDINGS_MAX: u32 = 24;

/// The patience of one call.
#[derive(Debug)]
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
    sendings: u32,
    /// Whether a device did not take the call since it was last with a broker.
    refused: bool,
}

impl Patience {
    pub(super) fn new(now: Instant) -> Self {
        Self { until: now + AWAY_MAX, pause: PAUSES[0], sendings: 0, refused: false }
    }

    /// Until when there may be no broker.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// A sending was lost, or the broker could not say what becomes of it. `through`: it had reached a broker. `silent`: which was
    /// silent for four seconds. The pause before the next; `None`: it is given up.
    pub(super) fn lost(&mut self, now: Instant, through: bool, silent: bool) -> Option<Duration> {
        if through {
            // The broker was there: this is a new loss. Pauses grow all the same.
            self.until = self.until.max(now + AWAY_MAX);
            self.refused = false;
        }
        if silent {
            self.until = self.until.min(now + AWAY_SILENT);
        }
        self.later(now)
    }

    /// A sending came to a device that is not the broker, and nothing was done with it.
    pub(super) fn refused(&mut self, now: Instant) -> Option<Duration> {
        if !std::mem::replace(&mut self.refused, true) {
            self.until = self.until.max(now + TAKING);
        }
        self.later(now)
    }

    /// The seat moved, to somebody or to nobody. `through`: the call had reached whoever had it.
    pub(super) fn moved(&mut self, now: Instant, through: bool, somebody: bool) -> Option<Duration> {
        if through {
            self.until = now + AWAY_MAX;
            self.refused = false;
        }
        if somebody {
            self.until = self.until.max(now + SETTLE);
        }
        self.pause = PAUSES[0];
        self.next(now, Duration::ZERO)
    }

    fn later(&mut self, now: Instant) -> Option<Duration> {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSES[1]);
        self.next(now, pause)
    }

    fn next(&mut self, now: Instant, pause: Duration) -> Option<Duration> {
        self.sendings += 1;
        (now + pause < self.until && self.sendings < SENDINGS_MAX).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_broker_a_call_is_given_up_within_five_seconds_of_the_loss() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        // It ran for long at a broker that then was lost, which was noticed as a move to nobody.
        let lost = start + Duration::from_secs(30);
        assert_eq!(patience.moved(lost, true, false), Some(Duration::ZERO));
        assert!(patience.until() <= lost + Duration::from_millis(4_000));
        assert_eq!(patience.lost(patience.until(), false, false), None);
    }

    #[test]
    fn a_new_holder_gets_its_time_and_a_silent_one_little_more() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        let late = start + Duration::from_millis(3_900);
        assert_eq!(patience.moved(late, false, true), Some(Duration::ZERO));
        assert_eq!(patience.until(), late + SETTLE);
        assert_eq!(patience.lost(late, true, true), Some(PAUSES[0]));
        assert_eq!(patience.until(), late + AWAY_SILENT);
        assert_eq!(patience.lost(late, false, false), Some(PAUSES[0] * 2), "pauses grow");
    }

    #[test]
    fn a_device_that_never_takes_the_call_ends_it_within_six_seconds() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        // It answers after a second each time, as one that was chosen and has no quorum.
        let mut now = start + Duration::from_secs(1);
        while let Some(pause) = patience.refused(now) {
            now += pause + Duration::from_secs(1);
        }
        assert!(now <= start + Duration::from_secs(6), "{:?}", now - start);
        // After a broker was lost late it gets its time anew.
        let lost = start + Duration::from_secs(30);
        assert_eq!(patience.moved(lost, true, false), Some(Duration::ZERO));
        let late = lost + Duration::from_millis(3_500);
        assert!(patience.refused(late).is_some());
        assert_eq!(patience.until(), late + TAKING);
    }

    #[test]
    fn sendings_end() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        let sent = (0..1_000).take_while(|_| patience.moved(start, true, true).is_some()).count();
        assert_eq!(sent as u32 + 1, SENDINGS_MAX);
    }
}
