//! When a member holds the office, and when it lapses (failure rules F10 and F11). Pure.

use std::time::Duration;

use super::api::Office;

/// What a leader knows of its quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quorum {
    /// It is the only voter.
    Alone,
    /// A quorum answered what was sent so long ago; by a clock that counts suspend.
    Answered(Duration),
    /// None has answered yet.
    Silent,
}

/// What a member knows of its leadership at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The term in which it leads.
    pub(super) leads: Option<u64>,
    /// The term of which an entry was applied, and a quorum confirmed that it still led then.
    pub(super) taken: Option<u64>,
    /// The term in which it is handing the office over.
    pub(super) yields: Option<u64>,
    pub(super) quorum: Quorum,
}

impl View {
    /// The office, when it is held now.
    pub(super) fn office(&self, lease: Duration) -> Option<Office> {
        let term = self.leads?;
        let fresh = match self.quorum {
            Quorum::Alone => true,
            Quorum::Answered(ago) => ago < lease,
            Quorum::Silent => false,
        };
        (self.taken == self.leads && self.yields != self.leads && fresh).then_some(Office { term })
    }

    /// In what time the office lapses when nothing is heard; `None` when time alone does not end it.
    pub(super) fn lapses_in(&self, lease: Duration) -> Option<Duration> {
        match (self.office(lease), self.quorum) {
            (Some(_), Quorum::Answered(ago)) => Some(lease.saturating_sub(ago)),
            _ => None,
        }
    }
}

/// Two readings of clocks may be this far apart although the device was awake in between.
const JITTER: Duration = Duration::from_millis(20);

/// Notices that the device slept: an answer from before it says nothing about now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Awake {
    /// How long the device has slept since it was started, when last looked at.
    slept: Duration,
    /// When sleep was last noticed; on the caller's clock, which stands still in sleep.
    since: Option<Duration>,
}

impl Awake {
    pub(super) const fn new(slept: Duration) -> Self {
        Self { slept, since: None }
    }

    /// What an answer to something sent at `sent` is worth at `now`, when the device has slept for `slept` in all.
    pub(super) fn judge(&mut self, slept: Duration, now: Duration, sent: Duration) -> Quorum {
        if slept > self.slept + JITTER {
            self.since = Some(now);
        }
        self.slept = slept.max(self.slept);
        if self.since.is_some_and(|since| sent < since) {
            return Quorum::Silent;
        }
        Quorum::Answered(now.saturating_sub(sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(200);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn view(leads: u64, taken: u64, quorum: Quorum) -> View {
        View { leads: Some(leads), taken: Some(taken), yields: None, quorum }
    }

    #[test]
    fn f10_the_office_is_held_only_in_the_term_that_was_confirmed() {
        assert_eq!(view(3, 3, Quorum::Alone).office(LEASE), Some(Office { term: 3 }));
        assert_eq!(view(4, 3, Quorum::Alone).office(LEASE), None);
        assert_eq!(View { taken: None, ..view(3, 3, Quorum::Alone) }.office(LEASE), None);
        assert_eq!(View { leads: None, ..view(3, 3, Quorum::Alone) }.office(LEASE), None);
        assert_eq!(View { yields: Some(3), ..view(3, 3, Quorum::Alone) }.office(LEASE), None);
        assert_eq!(View { yields: Some(2), ..view(3, 3, Quorum::Alone) }.office(LEASE), Some(Office { term: 3 }));
    }

    #[test]
    fn f11_the_office_lapses_when_the_quorum_is_silent_for_the_lease() {
        assert_eq!(view(3, 3, Quorum::Answered(ms(199))).office(LEASE), Some(Office { term: 3 }));
        assert_eq!(view(3, 3, Quorum::Answered(ms(200))).office(LEASE), None);
        assert_eq!(view(3, 3, Quorum::Silent).office(LEASE), None);
        assert_eq!(view(3, 3, Quorum::Answered(ms(150))).lapses_in(LEASE), Some(ms(50)));
        assert_eq!(view(3, 3, Quorum::Alone).lapses_in(LEASE), None);
        assert_eq!(view(3, 3, Quorum::Answered(ms(300))).lapses_in(LEASE), None);
    }

    #[test]
    fn f11_what_was_answered_before_a_sleep_is_worth_nothing_after_it() {
        let mut awake = Awake::new(ms(5000));
        assert_eq!(awake.judge(ms(5000), ms(100), ms(60)), Quorum::Answered(ms(40)));
        // Clocks are not read at one moment.
        assert_eq!(awake.judge(ms(5010), ms(110), ms(60)), Quorum::Answered(ms(50)));
        assert_eq!(awake.judge(ms(9000), ms(120), ms(60)), Quorum::Silent);
        assert_eq!(awake.judge(ms(9000), ms(130), ms(119)), Quorum::Silent);
        assert_eq!(awake.judge(ms(9000), ms(140), ms(125)), Quorum::Answered(ms(15)));
    }

    #[test]
    fn f11_sleep_in_small_pieces_adds_up() {
        let mut awake = Awake::new(ms(0));
        assert_eq!(awake.judge(ms(30), ms(100), ms(90)), Quorum::Silent);
        assert_eq!(awake.judge(ms(60), ms(200), ms(190)), Quorum::Silent);
    }
}
