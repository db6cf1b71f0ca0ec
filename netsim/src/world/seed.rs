//! One seed, forked by name: each part of a world draws from a stream of its own, so that one more draw in one part does
//! not move what the others draw. The generator is splitmix64, written out here: a seed that failed once must mean the
//! same world under the next version of every library. Not for secrets.

use std::{ops::RangeInclusive, time::Duration};

/// What a world is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed of this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The seed of the part called `name`.
    #[must_use]
    pub fn fork(self, name: &str) -> Self {
        // FNV-1a over the name, begun with the mixed seed: the same name of two seeds has nothing in common.
        let start = mix(self.0 ^ 0xcbf2_9ce4_8422_2325);
        let hash = name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(mix(hash))
    }

    /// The stream of this seed.
    #[must_use]
    pub const fn rng(self) -> Rng {
        Rng(self.0)
    }

    /// As bytes, for what takes a seed of its own.
    #[must_use]
    pub fn bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.rng().fill(&mut bytes);
        bytes
    }
}

/// How often something happens, of a thousand times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PerMille(pub u16);

/// A stream of draws.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; zero when `end` is zero. The bias of the remainder is below 2^-32 for what a world draws.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits().checked_rem(end).unwrap_or(0)
    }

    /// A number of the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below((range.end() - range.start()).saturating_add(1))
    }

    /// A time of the range, in whole milliseconds.
    pub fn time(&mut self, millis: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(millis))
    }

    /// Whether what happens that often happens now. Draws nothing when it never does.
    pub fn hits(&mut self, rate: PerMille) -> bool {
        rate.0 > 0 && self.below(1000) < u64::from(rate.0)
    }

    /// One of them; `None` of none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        let at = self.below(choices.len() as u64);
        choices.get(usize::try_from(at).unwrap_or(0))
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.bits().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}

const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_means_the_same_world_for_ever() {
        let mut rng = Seed::new(7).fork("net").rng();
        let drawn = [rng.bits(), rng.bits()];
        assert_eq!(drawn, [0xabfb_2a82_d410_a6d7, 0xa939_8d9e_abd5_18bd], "{drawn:#x?}");
    }

    #[test]
    fn parts_draw_apart() {
        let names = ["net", "disk", "disk ", "", "clock"];
        let firsts: BTreeSet<u64> =
            (0..100).flat_map(|seed| names.map(|name| Seed::new(seed).fork(name).rng().bits())).collect();
        assert_eq!(firsts.len(), 500);
    }

    #[test]
    fn draws_stay_in_their_range_and_reach_its_ends() {
        let mut rng = Seed::new(1).rng();
        let drawn: BTreeSet<u64> = (0..200).map(|_| rng.within(3..=5)).collect();
        assert_eq!(drawn, BTreeSet::from([3, 4, 5]));
        assert_eq!((rng.below(0), rng.pick::<u8>(&[])), (0, None));
        let hits = (0..10_000).filter(|_| rng.hits(PerMille(250))).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!((0..100).all(|_| !rng.hits(PerMille(0)) && rng.hits(PerMille(1000))));
    }

    #[test]
    fn bytes_are_filled_whole() {
        let mut bytes = [0; 11];
        Seed::new(3).rng().fill(&mut bytes);
        assert!(bytes.iter().filter(|byte| **byte == 0).count() < 3, "{bytes:?}");
        assert_ne!(Seed::new(3).bytes(), Seed::new(4).bytes());
    }
}
