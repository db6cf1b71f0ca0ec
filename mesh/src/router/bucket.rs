//! Limits on what strangers can cause: attempts in a time, together and for each address. Pure: the time is an argument.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

/// Some at once, and then some in a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// At once.
    pub(super) burst: u32,
    /// One more after each of these.
    pub(super) every: Duration,
}

/// How much of a rate is used up: full at `until` in the future.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    until: Duration,
}

impl Used {
    fn take(&mut self, rate: Rate, now: Duration) -> bool {
        let begins = self.until.max(now);
        let allowed = begins - now <= rate.every * (rate.burst - 1);
        if allowed {
            self.until = begins + rate.every;
        }
        allowed
    }
}

/// A rate for all together.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: Rate,
    used: Used,
}

impl Bucket {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, used: Used::default() }
    }

    /// Whether one more may be now.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        self.used.take(self.rate, now)
    }
}

/// A rate for each address; IPv6 addresses of one /64 count as one, because a device can choose among them.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    addresses_max: usize,
    used: BTreeMap<IpAddr, Used>,
}

impl Buckets {
    /// At most `addresses_max` addresses are told apart; while that many are busy, new ones are turned away.
    pub(super) const fn new(rate: Rate, addresses_max: usize) -> Self {
        Self { rate, addresses_max, used: BTreeMap::new() }
    }

    /// Whether one more from `address` may be now.
    pub(super) fn take(&mut self, address: IpAddr, now: Duration) -> bool {
        let address = network(address);
        if self.used.len() >= self.addresses_max && !self.used.contains_key(&address) {
            self.used.retain(|_, used| used.until > now);
            if self.used.len() >= self.addresses_max {
                return false;
            }
        }
        self.used.entry(address).or_default().take(self.rate, now)
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, every: Duration::from_secs(2) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    #[test]
    fn a_burst_is_taken_and_then_one_in_each_time() {
        let mut bucket = Bucket::new(RATE);
        let taken = [0, 0, 0, 0, 1, 2, 2, 4, 6, 7].map(|second| bucket.take(at(second)));
        assert_eq!(taken, [true, true, true, false, false, true, false, true, true, false]);
        assert_eq!([100, 100, 100, 100].map(|second| bucket.take(at(second))), [true, true, true, false]);
    }

    #[test]
    fn addresses_do_not_use_up_each_other_s_rate_but_one_network_s() {
        let mut buckets = Buckets::new(RATE, 8);
        let addresses = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "fd00:0:0:1::1"].map(|a| a.parse().unwrap());
        for address in [addresses[0], addresses[1], addresses[2], addresses[4]] {
            assert_eq!([0; 4].map(|second| buckets.take(address, at(second))), [true, true, true, false], "{address}");
        }
        assert!(!buckets.take(addresses[3], at(0)), "the same /64");
        assert!(!buckets.take("::ffff:10.0.0.1".parse().unwrap(), at(0)), "the same address in other clothes");
    }

    #[test]
    fn the_table_of_addresses_is_bounded_and_room_comes_back() {
        let mut buckets = Buckets::new(RATE, 2);
        let [a, b, c] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|a| a.parse::<IpAddr>().unwrap());
        assert!(buckets.take(a, at(0)) && buckets.take(b, at(0)));
        assert!(!buckets.take(c, at(1)));
        assert!(buckets.take(c, at(2)), "the others are quiet again");
        assert!(buckets.used.len() <= 2);
    }
}
