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

    /// After that long without a sign of life nobody leads, as far as a member can say. Members that can would have
    /// elected another one by then.
    pub(super) const fn silence(self) -> Duration {
        Duration::from_millis(self.patience_max_ms * 2)
    }
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
    fn f11_every_lease_ends_before_anybody_else_may_be_elected() {
        for class in CLASSES {
            let pace = class.pace;
            assert!(pace.patience_min_ms < pace.patience_max_ms);
            assert!(pace.patience_min_ms > 3 * pace.heartbeat_ms);
            assert!(pace.lease() < Duration::from_millis(pace.patience_max_ms));
            assert!(pace.silence() > pace.lease() * 2);
        }
    }
}
