//! Which run of a device this is, and whether two runs can both be true (failure rule F15). Pure: the nonce is an
//! argument, keeping it over a restart is the caller's work.
//!
//! The starts of a device are a chain. A home that was copied, or put back from a copy, begins another chain: what it holds
//! may be older than what it once promised, so it promises everything anew, and both chains are told apart.

use std::fmt;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

/// Starts of one chain that are counted before the next chain; one start a second for 136 years.
const CHAIN: u64 = 1 << 32;

/// One start of a device. Each start draws a nonce and names the nonce of the start before, so that the starts of one
/// device are a chain; a copied disk or a restored backup makes the chain branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// How many starts there were, this one among them; 1 at the first. The upper half is the number of the chain.
    pub generation: u64,
    /// Drawn at this start.
    pub nonce: [u8; 16],
    /// The nonce of the start before; zeros at the first.
    pub previous: [u8; 16],
}

impl Incarnation {
    /// The first start of a device.
    #[must_use]
    pub const fn first(nonce: [u8; 16]) -> Self {
        Self { generation: 1, nonce, previous: [0; 16] }
    }

    /// The start after this one.
    #[must_use]
    pub const fn next(&self, nonce: [u8; 16]) -> Self {
        Self { generation: self.generation.saturating_add(1), nonce, previous: self.nonce }
    }

    /// The first start of another chain, whose number is drawn with `nonce`: the device's home is a copy, and nothing that
    /// was promised under this chain holds for it.
    #[must_use]
    pub const fn anew(&self, nonce: [u8; 16]) -> Self {
        let chain = u32::from_be_bytes([nonce[0], nonce[1], nonce[2], nonce[3]]) as u64;
        // The first chain has the number 0.
        let chain = if chain == 0 { 1 } else { chain };
        Self { generation: chain * CHAIN + 1, nonce, previous: self.nonce }
    }

    /// Which chain of the device's starts this one belongs to; 0 is the first.
    #[must_use]
    pub const fn chain(&self) -> u64 {
        self.generation / CHAIN
    }

    /// Whether it is the first start of a copied home.
    #[must_use]
    pub const fn is_anew(&self) -> bool {
        self.chain() > 0 && self.generation % CHAIN == 1
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({} {})", self.generation, HEXLOWER.encode(&self.nonce[..4]))
    }
}

/// What a device's run is to the run we remember of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// The very run that we remember.
    SameRun,
    /// A later run, or the first that we see.
    Restarted,
    /// Not a later run of what we remember: another device has the same identity, or an old state was put back.
    Duplicate,
}

/// Whether `seen` can follow `remembered`, the last one of its chain that was seen. Starts in between that nobody here saw
/// are believed.
#[must_use]
pub fn lineage(remembered: Option<&Incarnation>, seen: &Incarnation) -> Lineage {
    let Some(remembered) = remembered else { return Lineage::Restarted };
    match seen.generation.checked_sub(remembered.generation) {
        Some(0) if seen.nonce == remembered.nonce => Lineage::SameRun,
        Some(1) if seen.previous == remembered.nonce => Lineage::Restarted,
        Some(0 | 1) | None => Lineage::Duplicate,
        Some(_) => Lineage::Restarted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 16] = [0xa; 16];
    const B: [u8; 16] = [0xb; 16];
    const C: [u8; 16] = [0xc; 16];

    #[test]
    fn a_device_that_nobody_remembers_and_its_next_starts_are_restarts() {
        let first = Incarnation::first(A);
        let second = first.next(B);
        let third = second.next(C);
        assert_eq!((first.generation, second.generation, third.generation), (1, 2, 3));
        for (remembered, seen) in [(None, &first), (None, &third), (Some(&first), &second), (Some(&second), &third)] {
            assert_eq!(lineage(remembered, seen), Lineage::Restarted, "{remembered:?} {seen:?}");
        }
        assert_eq!(lineage(Some(&first), &third), Lineage::Restarted, "a start was missed");
    }

    #[test]
    fn a_run_seen_again_is_the_same_run() {
        let run = Incarnation::first(A).next(B);
        assert_eq!(lineage(Some(&run), &run), Lineage::SameRun);
    }

    #[test]
    fn a_branch_and_a_step_back_are_duplicates() {
        let old = Incarnation::first(A);
        let here = old.next(B);
        let there = old.next(C);
        assert_eq!(lineage(Some(&here), &there), Lineage::Duplicate, "same count, other run");
        assert_eq!(lineage(Some(&there), &here), Lineage::Duplicate);
        assert_eq!(lineage(Some(&here), &there.next(A)), Lineage::Duplicate, "follows another run");
        assert_eq!(lineage(Some(&here), &old), Lineage::Duplicate, "an old state was put back");
        assert_eq!(lineage(Some(&here), &Incarnation::first(C)), Lineage::Duplicate);
    }

    #[test]
    fn a_copied_home_begins_a_chain_of_its_own() {
        let old = Incarnation::first(A);
        let (here, there) = (old.anew(B), old.anew(C));
        assert_eq!((old.chain(), old.next(B).chain(), here.chain()), (0, 0, 0x0b0b_0b0b));
        assert_eq!(here.next(C).chain(), here.chain());
        assert_ne!(here.chain(), there.chain(), "two copies of one home");
        assert_eq!(old.anew([0; 16]).chain(), 1);
        assert!(here.is_anew() && !here.next(C).is_anew() && !old.is_anew());
        assert_eq!(lineage(Some(&here), &here.next(C)), Lineage::Restarted);
        assert_eq!(here.previous, A);
    }

    #[test]
    fn counts_at_the_end_of_their_range_are_no_panic() {
        let last = Incarnation { generation: u64::MAX, nonce: A, previous: B };
        assert_eq!(lineage(Some(&last), &last.next(B)), Lineage::Duplicate);
        assert_eq!(lineage(Some(&Incarnation::first(A)), &last), Lineage::Restarted);
        assert_eq!(lineage(Some(&last), &Incarnation { generation: 0, ..last }), Lineage::Duplicate);
        assert!(last.anew([0xff; 16]).generation > last.anew(C).generation);
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let run = Incarnation { generation: 300, nonce: A, previous: B };
        let bytes = crate::wire::encode(&run).unwrap();
        assert_eq!(bytes, [&[0xac, 0x02][..], &A, &B].concat());
        assert_eq!(crate::wire::decode::<Incarnation>(&bytes), Ok(run));
    }
}
