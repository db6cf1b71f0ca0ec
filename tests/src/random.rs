//! Seeded randomness for tests: the same seed, the same choices. SplitMix64 (Steele, Lea and Flood 2014), which is enough
//! for delays and picks and keeps the tests free of a crate whose sequence may change between versions.

use std::time::Duration;

/// A sequence of choices.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of the environment variable `CHECKS_SEED`, else `default`; printed, so that a failure can be repeated.
    ///
    /// # Panics
    /// When the variable is no number.
    #[must_use]
    pub fn from_environment(default: u64) -> Self {
        let seed = std::env::var("CHECKS_SEED").map_or(default, |text| text.parse().expect("CHECKS_SEED is a number"));
        println!("seed {seed} (repeat with CHECKS_SEED={seed})");
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is above zero.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Whether an event of `percent` in a hundred happens.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A duration below `ms` milliseconds, in microseconds.
    pub const fn up_to_ms(&mut self, ms: u64) -> Duration {
        Duration::from_micros(self.below(ms * 1000))
    }

    /// Lets a time of the seed's choosing pass, below `ms` milliseconds: not a wait for anything, but a moment.
    pub async fn moment(&mut self, ms: u64) {
        let _ = tokio::time::timeout(self.up_to_ms(ms), std::future::pending::<()>()).await;
    }

    /// One of `choices`, which are not empty.
    pub const fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
