//! What a seed reached. A swarm whose seeds never reach something proves nothing about it, and fails.

use std::{collections::BTreeMap, fmt};

use crate::world::fault::Kind;

/// What is counted beside the faults themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counters {
    /// What clients asked.
    Operations,
    /// Another device acts.
    LeaderChanges,
    /// Other devices vote.
    MembershipChanges,
    /// A snapshot was installed in a member whose own log ended before it.
    Snapshots,
    /// A snapshot was installed in a member that had nothing.
    FirstSnapshots,
    /// A sync failed and took along what it was to make durable.
    LostSyncs,
    /// A store failed and was opened anew.
    Reopened,
    /// A disk was replaced by an empty one.
    Wiped,
    /// An operation that waited for its turn in a process that was killed or lost its power: in no journal.
    CrashQueued,
    /// One that its journal had as running then.
    CrashRunning,
    /// One whose outcome its journal had, and nobody had been told.
    CrashDone,
}

/// What a swarm of whole nodes must reach, over all its seeds.
pub const REQUIRED: [&str; 15] = [
    "LeaderChanges",
    "MembershipChanges",
    "Snapshots",
    "FirstSnapshots",
    "LostSyncs",
    "CrashQueued",
    "CrashRunning",
    "CrashDone",
    "fault OneWay",
    "fault Suspend",
    "fault Restore",
    "fault Clone",
    "fault Recover",
    "fault Join",
    "fault Forget",
];

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    /// Counts.
    pub fn add(&mut self, what: Counters, count: u64) {
        if count > 0 {
            *self.0.entry(format!("{what:?}")).or_default() += count;
        }
    }

    /// Counts a fault.
    pub fn fault(&mut self, kind: Kind) {
        *self.0.entry(format!("fault {kind:?}")).or_default() += 1;
    }

    /// Adds what another seed reached.
    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    /// How often.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// What was not reached of `wanted`.
    #[must_use]
    pub fn missing(&self, wanted: &[&'static str]) -> Vec<&'static str> {
        wanted.iter().copied().filter(|what| self.of(what) == 0).collect()
    }

    /// How many faults.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.0.iter().filter(|(what, _)| what.starts_with("fault ")).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>10} {what}")?;
        }
        Ok(())
    }
}
