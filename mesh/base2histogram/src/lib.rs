//! What openraft counts sizes and times with. It takes the place of the crate of this name (`[patch.crates-io]`), which fills
//! tables of 25 MiB for scales that nobody uses as soon as the first of its histograms is made. Only what openraft calls is
//! here; its reports, which are off in this program, are coarser than with the other one.

use std::{fmt, marker::PhantomData};

/// How often values came, by powers of two. It grows with the largest of them: to 65 counters at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    /// Of 0; of 1; of 2 and 3; of 4 to 7; and so on.
    counts: Vec<u64>,
    data: PhantomData<T>,
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Histogram<T> {
    /// One that has counted nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: Vec::new(), data: PhantomData }
    }

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value that came `count` times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(count);
    }

    /// The smallest value of the power of two in which the share `permille` of all values ends; 0 when there are none.
    fn percentile(&self, permille: u64) -> u64 {
        let total: u128 = self.counts.iter().map(|count| u128::from(*count)).sum();
        let rank = (total * u128::from(permille)).div_ceil(1000).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        });
        bucket.map_or(0, |bucket| if bucket == 0 { 0 } else { 1 << (bucket - 1) })
    }

    /// How the values are spread.
    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count)),
            p0_1: self.percentile(1),
            p1: self.percentile(10),
            p5: self.percentile(50),
            p10: self.percentile(100),
            p50: self.percentile(500),
            p90: self.percentile(900),
            p99: self.percentile(990),
            p99_9: self.percentile(999),
        }
    }
}

/// How values are spread: up to which value so many per cent of them go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PercentileStats {
    /// How many values there are.
    pub samples: u64,
    /// 0.1 %.
    pub p0_1: u64,
    /// 1 %.
    pub p1: u64,
    /// 5 %.
    pub p5: u64,
    /// 10 %.
    pub p10: u64,
    /// Half of them.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, p0_1, p1, p5, p10, p50, p90, p99, p99_9 } = self;
        write!(f, "{samples} values: 0.1 % to {p0_1}, 1 % to {p1}, 5 % to {p5}, 10 % to {p10}, ")?;
        write!(f, "50 % to {p50}, 90 % to {p90}, 99 % to {p99}, 99.9 % to {p99_9}")
    }
}

/// Several histograms, one line each.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart(Vec<(String, Histogram)>);

impl AsciiChart {
    /// One without lines.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// One with another line.
    #[must_use]
    pub fn add(mut self, name: impl Into<String>, histogram: Histogram) -> Self {
        self.0.push((name.into(), histogram));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, histogram)| writeln!(f, "{name}: {}", histogram.percentile_stats()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_powers_of_two() {
        let mut histogram = Histogram::<()>::new();
        assert_eq!(histogram.percentile_stats().p50, 0);
        histogram.record_n(0, 10);
        histogram.record_n(5, 80);
        histogram.record_n(1000, 9);
        histogram.record(u64::MAX);
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, stats.p5, stats.p50, stats.p90), (100, 0, 4, 4));
        assert_eq!((stats.p99, stats.p99_9), (512, 1 << 63));
        histogram.record_n(3, u64::MAX);
        assert_eq!(histogram.percentile_stats().p50, 2);
    }

    #[test]
    fn a_chart_has_a_line_for_each() {
        let mut histogram = Histogram::new();
        histogram.record(7);
        let text = AsciiChart::new().add("one", histogram.clone()).add("two", histogram).to_string();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("one: 1 values: "), "{text}");
    }
}
