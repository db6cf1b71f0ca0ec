//! Items that ride along with a response: inputs and late results (failure rule F7). Each is claimed by one operation
//! at a time, until the door says that the response was written or that it was not. Pure.

use std::collections::BTreeMap;

use crate::ids::CallId;

/// Items in the order they are to be delivered.
#[derive(Debug)]
pub struct Riders<K, T> {
    items: BTreeMap<K, Rider<T>>,
}

/// One item.
#[derive(Debug)]
struct Rider<T> {
    item: T,
    claimed_by: Option<CallId>,
    offered: u32,
}

/// An item that was just claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed<K, T> {
    /// Its key.
    pub key: K,
    /// The item.
    pub item: T,
    /// How often it was offered, this time included. More than once means that an earlier response may have carried it:
    /// the answer then says `redelivered: true`.
    pub offered: u32,
}

impl<K, T> Default for Riders<K, T> {
    fn default() -> Self {
        Self { items: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, T: Clone> Riders<K, T> {
    /// Adds an item that was offered `offered` times before. An item that is there already stays as it is.
    pub fn insert(&mut self, key: K, item: T, offered: u32) {
        self.items.entry(key).or_insert(Rider { item, claimed_by: None, offered });
    }

    /// Claims up to `limit` unclaimed items that `wanted` accepts, oldest first.
    pub fn claim(&mut self, by: &CallId, limit: usize, wanted: impl Fn(&K, &T) -> bool) -> Vec<Claimed<K, T>> {
        let free = self.items.iter_mut().filter(|(key, rider)| rider.claimed_by.is_none() && wanted(key, &rider.item));
        free.take(limit)
            .map(|(key, rider)| {
                rider.claimed_by = Some(by.clone());
                rider.offered += 1;
                Claimed { key: key.clone(), item: rider.item.clone(), offered: rider.offered }
            })
            .collect()
    }

    /// Takes back the claim on one item that found no room in the response.
    pub fn put_back(&mut self, key: &K) {
        if let Some(rider) = self.items.get_mut(key) {
            rider.claimed_by = None;
            rider.offered = rider.offered.saturating_sub(1);
        }
    }

    /// The response of `by` was not written: its items are free again, and were not offered.
    pub fn release(&mut self, by: &CallId) -> Vec<K> {
        let mine: Vec<K> = self.claimed(by);
        for key in &mine {
            self.put_back(key);
        }
        mine
    }

    /// It is not known whether the response of `by` was written: its items are free again and stay offered, so that the
    /// repeat says so.
    pub fn lapse(&mut self, by: &CallId) {
        for key in self.claimed(by) {
            if let Some(rider) = self.items.get_mut(&key) {
                rider.claimed_by = None;
            }
        }
    }

    /// Changes an item, claimed or not.
    pub fn update(&mut self, key: &K, change: impl FnOnce(&mut T)) {
        if let Some(rider) = self.items.get_mut(key) {
            change(&mut rider.item);
        }
    }

    /// Whether an item of this key waits, claimed or not.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.items.contains_key(key)
    }

    /// What waits unclaimed.
    pub fn free(&self) -> impl Iterator<Item = &T> {
        self.items.values().filter(|rider| rider.claimed_by.is_none()).map(|rider| &rider.item)
    }

    /// The response of `by` was written: its items are gone, and named.
    pub fn confirm(&mut self, by: &CallId) -> Vec<(K, T)> {
        let mine = self.claimed(by);
        mine.into_iter().filter_map(|key| self.items.remove(&key).map(|rider| (key, rider.item))).collect()
    }

    fn claimed(&self, by: &CallId) -> Vec<K> {
        self.items
            .iter()
            .filter(|(_, rider)| rider.claimed_by.as_ref() == Some(by))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Removes the unclaimed item with the lowest `number`.
    pub fn pop_oldest(&mut self, number: impl Fn(&T) -> u64) -> Option<(K, T)> {
        let free = self.items.iter().filter(|(_, rider)| rider.claimed_by.is_none());
        let key = free.min_by_key(|(_, rider)| number(&rider.item))?.0.clone();
        self.items.remove(&key).map(|rider| (key, rider.item))
    }

    /// Removes an item whoever claimed it.
    pub fn remove(&mut self, key: &K) -> Option<T> {
        self.items.remove(key).map(|rider| rider.item)
    }

    /// How many wait, claimed ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether an unclaimed item that `wanted` accepts waits.
    pub fn any(&self, wanted: impl Fn(&T) -> bool) -> bool {
        self.items.values().any(|rider| rider.claimed_by.is_none() && wanted(&rider.item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn riders() -> Riders<u32, &'static str> {
        let mut riders = Riders::default();
        for (key, item) in [(2, "b"), (1, "a"), (3, "c")] {
            riders.insert(key, item, 0);
        }
        riders
    }

    fn items(claimed: &[Claimed<u32, &'static str>]) -> Vec<(&'static str, u32)> {
        claimed.iter().map(|claim| (claim.item, claim.offered)).collect()
    }

    #[test]
    fn f7_an_item_is_claimed_by_one_operation_at_a_time() {
        let (one, two) = (CallId::from("1"), CallId::from("2"));
        let mut riders = riders();
        assert_eq!(items(&riders.claim(&one, 2, |_, _| true)), [("a", 1), ("b", 1)]);
        assert_eq!(items(&riders.claim(&two, 9, |_, _| true)), [("c", 1)]);
        assert!(!riders.any(|_| true));
    }

    #[test]
    fn f7_written_items_are_gone_and_unwritten_ones_free_again_in_order() {
        let (one, two) = (CallId::from("1"), CallId::from("2"));
        let mut riders = riders();
        riders.claim(&one, 1, |_, _| true);
        riders.claim(&two, 1, |_, _| true);
        assert_eq!(riders.confirm(&two), [(2, "b")]);
        assert_eq!(riders.release(&one), [1]);
        assert_eq!(items(&riders.claim(&two, 9, |_, _| true)), [("a", 1), ("c", 1)]);
    }

    #[test]
    fn f7_an_item_whose_response_has_an_unknown_fate_is_free_and_was_offered() {
        let (one, two) = (CallId::from("1"), CallId::from("2"));
        let mut riders = riders();
        riders.claim(&one, 1, |_, _| true);
        riders.lapse(&one);
        assert_eq!(items(&riders.claim(&two, 2, |_, _| true)), [("a", 2), ("b", 1)]);
        riders.lapse(&one);
        assert_eq!(riders.free().count(), 1, "what another claimed is not touched");
    }

    #[test]
    fn f7_an_item_offered_before_a_crash_says_so() {
        let mut riders = Riders::default();
        riders.insert(1, "a", 1);
        assert_eq!(riders.claim(&CallId::from("1"), 1, |_, _| true)[0].offered, 2);
    }

    #[test]
    fn what_came_first_makes_room_whatever_its_key() {
        let mut riders = Riders::default();
        for (key, came) in [(5, 1), (1, 2), (3, 3)] {
            riders.insert(key, came, 0);
        }
        riders.claim(&CallId::from("1"), 1, |key, _| *key == 5);
        assert_eq!(riders.pop_oldest(|came| *came), Some((1, 2)), "one that is claimed is on its way");
        assert_eq!(riders.pop_oldest(|came| *came), Some((3, 3)));
        assert_eq!(riders.pop_oldest(|came| *came), None);
    }

    #[test]
    fn an_item_put_back_keeps_its_place() {
        let one = CallId::from("1");
        let mut riders = riders();
        riders.claim(&one, 3, |_, _| true);
        riders.put_back(&2);
        assert_eq!(riders.confirm(&one), [(1, "a"), (3, "c")]);
        assert_eq!(items(&riders.claim(&one, 3, |_, _| true)), [("b", 1)]);
    }
}
