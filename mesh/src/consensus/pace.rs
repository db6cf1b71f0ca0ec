//! How patient members are, by how far apart they are. Pure.

use std::time::Duration;

use super::api::Pace;

/// A pace and the round trip up to which it holds, in milliseconds. A sign of life must be answered before the next one
/// is due, with as much again for a busy disk; that gives the bound.
struct Class {
    rtt_max_ms: u64,
    pace: Pace,
}

const fn class(rtt_max_ms: u64, heartbeat_ms: u64, patience_min_ms: u64, patience_max_ms: u64) -> Class {
    Class { rtt_max_ms, pace: Pace { heartbeat_ms, patience_min_ms, patience_max_ms } }
}

/// From one building to satellites. Patience is at least three signs of life, so that two may be lost.
const CLASSES: [Class; 4] = [
    class(25, 60, 200, 400),
    class(70, 150, 500, 1000),
    class(200, 400, 1300, 2600),
    class(u64::MAX, 1000, 3200, 6400),
];

/// Signs of life for voters, of which a learner gets one while there are few learners: it still hears three within the
/// silence of a voter.
const LEARNER_HEARTBEATS: u32 = 4;

/// What each learner adds to the time between its signs of life: a hundred questions a second to all of them together are
/// some hundredths of a processor.
const LEARNER_SHARE: Duration = Duration::from_millis(10);

/// However many there are, a learner that is back is found within this time, and one that is gone missed within three.
const LEARNER_HEARTBEAT_MAX: Duration = Duration::from_secs(1);

/// What each learner adds to the time between two messages with entries to one of them: each of them costs every learner a
/// sync of its disk, and the log of a fleet that grows by a hundred devices has some hundreds of entries.
const LEARNER_REST_SHARE: Duration = Duration::from_millis(2);

/// However many there are: what is shown at a learner's own `status` is no older.
const LEARNER_REST_MAX: Duration = Duration::from_millis(250);

impl Pace {
    /// For devices in one building: another broker within 0.8 s of the last sign of life, as a rule.
    pub const LAN: Self = CLASSES[0].pace;

    /// The pace for members of which the slowest answers within `rtt`, where `self` is the present one. It becomes slower
    /// at once, and faster only when half the bound is kept, so that it does not waver.
    #[must_use]
    pub fn of_rtt(self, rtt: Duration) -> Self {
        let rtt = u64::try_from(rtt.as_millis()).unwrap_or(u64::MAX);
        let place = |rtt: u64| CLASSES.iter().position(|class| rtt <= class.rtt_max_ms).unwrap_or(CLASSES.len() - 1);
        let now = CLASSES.iter().position(|class| class.pace == self).unwrap_or_default();
        let (slower, faster) = (place(rtt), place(rtt.saturating_mul(2)));
        CLASSES[if slower > now { slower } else { now.min(faster) }].pace
    }

    /// The lease of the leader: the shortest patience (failure rule F11). Members wait for the longest patience before
    /// they ask anybody for a vote; the rest is for clocks that do not run alike.
    pub(super) const fn lease(self) -> Duration {
        Duration::from_millis(self.patience_min_ms)
    }

    pub(super) const fn heartbeat(self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// After that long without a sign of life nobody leads, as far as a voter can say. Members that can would have
    /// elected another one by then.
    pub(super) const fn silence(self) -> Duration {
        Duration::from_millis(self.patience_max_ms * 2)
    }

    /// Between two signs of life for a member that does not vote, in a group with so many of them. It elects nobody, so
    /// that it only has to know in good time that nobody leads; news of the log do not wait for it. Together they cost
    /// the leader a hundred questions a second, up to a hundred learners.
    pub(super) fn learner_heartbeat(self, learners: usize) -> Duration {
        let share = LEARNER_SHARE.saturating_mul(u32::try_from(learners).unwrap_or(u32::MAX));
        let few = self.heartbeat() * LEARNER_HEARTBEATS;
        few.max(share).min(LEARNER_HEARTBEAT_MAX).max(self.heartbeat())
    }

    /// As [`Pace::silence`], for a member that does not vote: two of its signs of life may be lost.
    pub(super) fn learner_silence(self, learners: usize) -> Duration {
        self.silence().max(self.learner_heartbeat(learners) * 3 + self.heartbeat())
    }
}

/// Whether a member is to be given the sign of life that is due for voters, when the last one went to it `ago`. Without one a
/// voter would stand for election, and the lease counts its answers, so it gets each.
pub(super) fn is_sign_due(votes: bool, ago: Option<Duration>, learner_heartbeat: Duration) -> bool {
    votes || ago.is_none_or(|ago| ago >= learner_heartbeat)
}

/// Between two messages with entries to one learner of so many. The first one after a pause does not wait.
pub(super) fn learner_rest(learners: usize) -> Duration {
    LEARNER_REST_SHARE.saturating_mul(u32::try_from(learners).unwrap_or(u32::MAX)).min(LEARNER_REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f22_patience_follows_the_round_trip_and_does_not_waver() {
        let ms = Duration::from_millis;
        let [lan, metro, wan, far] = CLASSES.map(|class| class.pace);
        assert_eq!((Pace::LAN.heartbeat_ms, Pace::LAN.patience_min_ms, Pace::LAN.patience_max_ms), (60, 200, 400));
        for (from, rtt, to) in [
            (lan, 0, lan),
            (lan, 25, lan),
            (lan, 26, metro),
            (lan, 5000, far),
            (metro, 26, metro),
            (metro, 13, metro),
            (metro, 12, lan),
            (metro, 71, wan),
            (wan, 30, metro),
            (far, 1, lan),
            (far, 90, wan),
            (far, 101, far),
        ] {
            assert_eq!(from.of_rtt(ms(rtt)), to, "{from:?} at {rtt} ms");
        }
        assert_eq!(far.of_rtt(Duration::MAX), far);
    }

    #[test]
    fn voters_get_every_sign_of_life_and_learners_one_now_and_then() {
        let ms = Duration::from_millis;
        for ago in [None, Some(ms(0)), Some(ms(60)), Some(ms(5000))] {
            assert!(is_sign_due(true, ago, ms(240)), "a voter, {ago:?}");
        }
        for (ago, due) in [(None, true), (Some(ms(60)), false), (Some(ms(239)), false), (Some(ms(240)), true)] {
            assert_eq!(is_sign_due(false, ago, ms(240)), due, "a learner, {ago:?}");
        }
    }

    #[test]
    fn learners_are_told_the_more_rarely_the_more_there_are() {
        let ms = Duration::from_millis;
        for (learners, every) in [(0, 240), (1, 240), (24, 240), (50, 500), (95, 950), (100, 1000), (5000, 1000)] {
            assert_eq!(Pace::LAN.learner_heartbeat(learners), ms(every), "{learners} learners");
        }
        for class in CLASSES {
            for learners in [0, 1, 30, 100, usize::MAX] {
                let every = class.pace.learner_heartbeat(learners);
                assert!(every >= class.pace.heartbeat());
                assert!(class.pace.learner_silence(learners) > every * 3);
                assert!(class.pace.learner_silence(learners) >= class.pace.silence());
            }
        }
        let rests = [1, 10, 100, 5000, usize::MAX].map(|learners| learner_rest(learners).as_millis());
        assert_eq!(rests, [2, 20, 200, 250, 250]);
        // In a small fleet the loss of the leader shows at a learner as soon as at a voter.
        assert_eq!(Pace::LAN.learner_silence(20), Pace::LAN.silence());
    }

    #[test]
    fn f11_every_lease_ends_before_anybody_else_may_be_elected() {
        for class in CLASSES {
            let pace = class.pace;
            assert!(pace.patience_min_ms < pace.patience_max_ms);
            assert!(pace.patience_min_ms > 3 * pace.heartbeat_ms);
            // An answer that is as old as the lease counts no more (`office`), so it is always younger than the shortest patience.
            assert!(pace.lease() <= Duration::from_millis(pace.patience_min_ms));
            assert!(pace.silence() > pace.lease() * 2);
        }
    }
}
