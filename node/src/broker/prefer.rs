//! Which voter should be the broker: the one whose door is used most, because a call that enters at the broker's own door
//! is spared a way over the network (design section 6). Pure; a move costs a moment, so it must be worth it and rare.

use std::collections::{BTreeMap, BTreeSet};

use chappie_mesh::NodeId;

/// How often doors are looked at, in milliseconds. Long against a burst of calls, short against a working session.
pub const PREFER_EVERY_MS: u64 = 30_000;
/// Calls, the recent ones counted in full, below which nothing is moved: a few calls gain nothing by it.
pub const PREFER_CALLS_MIN: u64 = 32;
/// A broker that took over less than this many looks ago stays: two busy doors must not pass the office to and fro.
pub const PREFER_LOOKS_MIN: u32 = 10;
/// Devices whose calls are counted; a mesh has no more.
const DEVICES_MAX: usize = super::limits::MEMBERS_MAX;

/// Counts of calls by the device at whose door they entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doors {
    calls: BTreeMap<NodeId, u64>,
    looks: u32,
}

impl Doors {
    /// A call entered at the door of `device`.
    pub fn used(&mut self, device: NodeId) {
        if self.calls.len() < DEVICES_MAX || self.calls.contains_key(&device) {
            let calls = self.calls.entry(device).or_default();
            *calls = calls.saturating_add(1);
        }
    }

    /// The calls that count now, by device.
    #[cfg(test)]
    pub(super) const fn counts(&self) -> &BTreeMap<NodeId, u64> {
        &self.calls
    }

    /// This device has just become the broker.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// Looks at the counts once a period, and lets what was counted fade to its half. Gives the voter that should be the
    /// broker instead of `own`: one whose door at least two thirds of the calls entered at. `ready` are the voters that are
    /// in step.
    #[must_use]
    pub fn look(&mut self, own: &NodeId, ready: &BTreeSet<NodeId>) -> Option<NodeId> {
        self.looks = self.looks.saturating_add(1);
        let all: u64 = self.calls.values().fold(0, |sum, calls| sum.saturating_add(*calls));
        let best = self.calls.iter().max_by_key(|(_, calls)| **calls).map(|(device, calls)| (*device, *calls));
        self.calls.retain(|_, calls| {
            *calls /= 2;
            *calls > 0
        });
        let (device, calls) = best?;
        let worth = all >= PREFER_CALLS_MIN && calls >= all - all / 3 && self.looks >= PREFER_LOOKS_MIN;
        (worth && device != *own && ready.contains(&device)).then_some(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    fn ready(nodes: &[u8]) -> BTreeSet<NodeId> {
        nodes.iter().map(|byte| node(*byte)).collect()
    }

    /// What the last of `looks` looks gave, each after so many calls by device.
    fn after(looks: u32, calls: &[(u8, u64)], voters: &[u8]) -> Option<NodeId> {
        let mut doors = Doors::default();
        let mut found = None;
        for _ in 0..looks {
            for (device, count) in calls {
                (0..*count).for_each(|_| doors.used(node(*device)));
            }
            found = doors.look(&node(1), &ready(voters));
        }
        found
    }

    #[test]
    fn the_voter_whose_door_is_used_most_is_preferred_after_a_while() {
        let busy = [(1, 5), (2, 60)];
        assert_eq!(after(PREFER_LOOKS_MIN, &busy, &[1, 2, 3]), Some(node(2)));
        assert_eq!(after(PREFER_LOOKS_MIN - 1, &busy, &[1, 2, 3]), None, "it has just taken over");
        assert_eq!(after(PREFER_LOOKS_MIN, &busy, &[1, 3]), None, "it is no voter in step");
    }

    #[test]
    fn nothing_moves_without_a_clear_majority_or_for_a_few_calls_or_when_it_is_right_already() {
        for calls in [&[(1, 40), (2, 60)][..], &[(2, 10)], &[(1, 60), (2, 5)], &[], &[(2, 50), (3, 50)]] {
            assert_eq!(after(PREFER_LOOKS_MIN, calls, &[1, 2, 3]), None, "{calls:?}");
        }
    }

    #[test]
    fn what_was_counted_fades_and_a_new_broker_begins_at_nothing() {
        let mut doors = Doors::default();
        (0..1_000).for_each(|_| doors.used(node(2)));
        let found: Vec<_> = (0..PREFER_LOOKS_MIN).map(|_| doors.look(&node(1), &ready(&[1, 2]))).collect();
        assert_eq!(found, vec![None; PREFER_LOOKS_MIN as usize], "1000 calls are forgotten after ten looks");
        assert!(doors.calls.is_empty());
        (0..1_000).for_each(|_| doors.used(node(2)));
        assert_eq!(doors.look(&node(1), &ready(&[1, 2])), Some(node(2)));
        doors.used(node(2));
        doors.begin();
        assert_eq!(doors, Doors::default());
    }
}
