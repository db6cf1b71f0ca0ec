//! A node's wall clock over tokio's paused time: it may be wrong from the start, jump, and run fast or slow. Steady time
//! is tokio's own and the same for all nodes.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Where wall clocks begin: the 1st of June 2026, in milliseconds since the Unix epoch.
const ORIGIN_MS: i64 = 1_780_272_000_000;

/// One wall clock.
#[derive(Debug)]
pub struct Wall(Mutex<Reading>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// What it showed then.
    shown_us: i64,
    at: Instant,
    /// How much faster than true it runs, in millionths; negative: slower.
    drift_ppm: i32,
}

impl Reading {
    fn now_us(&self, now: Instant) -> i64 {
        let elapsed = i128::try_from(now.saturating_duration_since(self.at).as_micros()).unwrap_or(i128::MAX);
        let drifted = elapsed + elapsed * i128::from(self.drift_ppm) / 1_000_000;
        self.shown_us.saturating_add(i64::try_from(drifted).unwrap_or(i64::MAX))
    }
}

impl Wall {
    /// A clock that is wrong by `skew_ms`.
    #[must_use]
    pub fn new(skew_ms: i64) -> Self {
        let shown_us = ORIGIN_MS.saturating_add(skew_ms).saturating_mul(1000);
        Self(Mutex::new(Reading { shown_us, at: Instant::now(), drift_ppm: 0 }))
    }

    /// Milliseconds since the Unix epoch, as it shows; zero when it stands before that.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let reading = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        u64::try_from(reading.now_us(Instant::now()) / 1000).unwrap_or(0)
    }

    /// Somebody set it by `by_ms`, forward or back.
    pub fn jump(&self, by_ms: i64) {
        self.change(|reading| reading.shown_us = reading.shown_us.saturating_add(by_ms.saturating_mul(1000)));
    }

    /// From now on it runs faster than true by that many millionths.
    pub fn drift(&self, ppm: i32) {
        self.change(|reading| reading.drift_ppm = ppm);
    }

    fn change(&self, change: impl FnOnce(&mut Reading)) {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        reading.shown_us = reading.now_us(now);
        reading.at = now;
        change(&mut reading);
    }
}

/// How long the world has been running, by tokio's time.
#[must_use]
pub fn since(start: Instant) -> Duration {
    Instant::now().saturating_duration_since(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_keeps_what_it_showed_over_jumps_and_drift() {
        let (true_clock, wrong) = (Wall::new(0), Wall::new(-5_000));
        assert_eq!(true_clock.now_ms() - wrong.now_ms(), 5_000);
        tokio::time::advance(Duration::from_secs(10)).await;
        wrong.drift(100_000);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(true_clock.now_ms() - wrong.now_ms(), 4_000, "a tenth faster for ten seconds");
        wrong.jump(3_600_000);
        wrong.drift(0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(wrong.now_ms() - true_clock.now_ms(), 3_596_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_before_the_epoch_shows_zero() {
        let wall = Wall::new(0);
        wall.jump(-2 * ORIGIN_MS);
        assert_eq!(wall.now_ms(), 0);
        wall.jump(i64::MAX);
        wall.jump(i64::MAX);
        assert!(wall.now_ms() > 0);
    }
}
