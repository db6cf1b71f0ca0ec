//! How long to wait before a peer is dialled again. Pure: the random number is an argument.

use std::time::Duration;

/// After the first failure: a device that is just starting is there by then.
const FIRST: Duration = Duration::from_millis(200);
/// The most: with it a network that comes back is used again within half a minute.
const LONGEST: Duration = Duration::from_secs(15);

/// The wait after `failures` failures in a row; `random` is from 0 to 1 and spreads devices that failed together over
/// the upper half.
pub(super) fn delay(failures: u32, random: f64) -> Duration {
    let doubled = FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(16)));
    doubled.min(LONGEST).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_quarter_of_a_minute() {
        let longest: Vec<u128> = (1..=9).map(|failures| delay(failures, 1.0).as_millis()).collect();
        assert_eq!(longest, [200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000]);
        assert_eq!(delay(u32::MAX, 1.0), LONGEST);
        assert_eq!(delay(0, 1.0), FIRST);
    }

    #[test]
    fn chance_takes_at_most_half() {
        for failures in 1..20 {
            assert_eq!(delay(failures, 0.0), delay(failures, 1.0) / 2);
            assert!(delay(failures, 7.0) <= LONGEST && delay(failures, -7.0) >= FIRST / 2);
        }
    }
}
