//! Which faults a seed has, and how often: not all at once, since a world in which everything fails hides what a single
//! kind does. Whom a fault strikes and for how long is the scenario's business.

use std::{fmt, time::Duration};

use super::seed::{PerMille, Rng, Seed};

/// A kind of fault, or of change that a mesh must stand as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A device loses its power, and comes back.
    Crash,
    /// A process is killed, and its device is not; it comes back.
    Kill,
    /// A process stops in an orderly way, and comes back.
    Restart,
    /// A process stands still for a while.
    Pause,
    /// A device sleeps for a while.
    Suspend,
    /// Some devices cannot reach the others, both ways.
    Partition,
    /// One device cannot reach another, which can reach it.
    OneWay,
    /// The network loses, delays, doubles and reorders.
    BadNetwork,
    /// Syncs fail.
    LostSync,
    /// Syncs take long.
    SlowSync,
    /// There is no room on a disk.
    DiskFull,
    /// Somebody sets a clock.
    ClockJump,
    /// A clock runs wrong.
    ClockDrift,
    /// A backup of the whole disk is put back.
    Restore,
    /// A copy of the disk runs on a second device.
    Clone,
    /// A disk is replaced by an empty one.
    Wipe,
    /// A new device joins.
    Join,
    /// A device is forgotten.
    Forget,
    /// One device makes a new epoch of its own.
    Recover,
    /// Leadership moves on purpose.
    Move,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 20] = [
        Self::Crash,
        Self::Kill,
        Self::Restart,
        Self::Pause,
        Self::Suspend,
        Self::Partition,
        Self::OneWay,
        Self::BadNetwork,
        Self::LostSync,
        Self::SlowSync,
        Self::DiskFull,
        Self::ClockJump,
        Self::ClockDrift,
        Self::Restore,
        Self::Clone,
        Self::Wipe,
        Self::Join,
        Self::Forget,
        Self::Recover,
        Self::Move,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The faults of one seed.
#[derive(Clone, Debug)]
pub struct Plan {
    rng: Rng,
    kinds: Vec<(Kind, u64)>,
    /// Between two faults, in milliseconds, at most.
    pause_ms: u64,
}

impl Plan {
    /// Draws which of `possible` this seed has, at least one of them, and how often each comes.
    #[must_use]
    pub fn draw(seed: Seed, possible: &[Kind]) -> Self {
        let mut rng = seed.rng();
        // From a world with a few kinds to one with nearly all.
        let share = PerMille(*rng.pick(&[200, 400, 700, 900]).unwrap_or(&500));
        let mut kinds: Vec<Kind> = possible.iter().copied().filter(|_| rng.hits(share)).collect();
        if kinds.is_empty() {
            kinds.extend(rng.pick(possible));
        }
        let kinds = kinds.into_iter().map(|kind| (kind, rng.within(1..=8))).collect();
        let pause_ms = rng.within(600..=2_500);
        Self { rng, kinds, pause_ms }
    }

    /// The kinds this seed has.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        self.kinds.iter().map(|(kind, _)| *kind).collect()
    }

    /// Whether it has this kind.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds.iter().any(|(known, _)| *known == kind)
    }

    /// How long it is quiet, and what comes then; `None` when there is nothing that could.
    pub fn draw_next(&mut self) -> Option<(Duration, Kind)> {
        let wait = self.rng.time(100..=self.pause_ms);
        let all: u64 = self.kinds.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.below(all);
        for (kind, weight) in &self.kinds {
            if left < *weight {
                return Some((wait, *kind));
            }
            left -= weight;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_seed_has_kinds_of_its_own_and_all_kinds_come_up() {
        let plans: Vec<Vec<Kind>> = (0..50).map(|n| Plan::draw(Seed::new(n), &Kind::ALL).kinds()).collect();
        let all: BTreeSet<Kind> = plans.iter().flatten().copied().collect();
        assert_eq!(all.len(), Kind::ALL.len());
        assert!(plans.iter().collect::<BTreeSet<_>>().len() > 40 && plans.iter().all(|plan| !plan.is_empty()));
    }

    #[test]
    fn a_plan_gives_its_own_kinds_only_and_each_of_them() {
        for number in 0..20 {
            let mut plan = Plan::draw(Seed::new(number), &Kind::ALL);
            let had: BTreeSet<Kind> = plan.kinds().into_iter().collect();
            let given: BTreeSet<Kind> = (0..2_000).filter_map(|_| plan.draw_next()).map(|(_, kind)| kind).collect();
            assert_eq!(given, had);
        }
        assert_eq!(Plan::draw(Seed::new(1), &[]).draw_next(), None);
    }

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let drawn = |number| {
            let mut plan = Plan::draw(Seed::new(number), &Kind::ALL);
            (0..50).map(|_| plan.draw_next()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(9), drawn(9));
        assert_ne!(drawn(9), drawn(10));
    }
}
