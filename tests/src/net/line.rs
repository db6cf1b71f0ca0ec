//! One direction of a long line, as arithmetic: when a packet that enters now comes out, if it does. Time and dice are
//! arguments; [`super::Wan`] moves the packets.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

/// What a line does to packets, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// How long a packet travels; the round trip is twice that.
    pub one_way: Duration,
    /// Megabits a second.
    pub rate: f64,
    /// Packets lost in a thousand.
    pub loss: u64,
    /// Packets in a thousand that take a detour and are overtaken by later ones.
    pub reorder: u64,
    /// Bytes that may wait for the line; more are dropped.
    pub queue: usize,
    /// The largest packet in bytes.
    pub mtu: u16,
}

impl Line {
    /// 1 Gbit/s and a queue of 1 MiB with this round trip, nothing lost, packets of 1,500 bytes.
    #[must_use]
    pub fn round_trip(round_trip: Duration) -> Self {
        Self { one_way: round_trip / 2, rate: 1000.0, loss: 0, reorder: 0, queue: 1 << 20, mtu: 1500 }
    }

    /// The same that loses packets.
    #[must_use]
    pub fn losing(self, per_mille: u64) -> Self {
        Self { loss: per_mille, ..self }
    }

    /// The same with a detour for some packets.
    #[must_use]
    pub fn reordering(self, per_mille: u64) -> Self {
        Self { reorder: per_mille, ..self }
    }

    /// The same with small packets.
    #[must_use]
    pub fn mtu(self, bytes: u16) -> Self {
        Self { mtu: bytes, ..self }
    }
}

/// A detour takes this much longer.
const DETOUR: Duration = Duration::from_millis(5);

/// No more packets are on their way than this; the memory of a test is not endless.
const IN_FLIGHT_MAX: usize = 65_536;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Travelling {
    arrives: Duration,
    number: u64,
    packet: Vec<u8>,
}

/// The packets in one direction. Times count from any fixed moment.
#[derive(Debug, Default)]
pub(super) struct Direction {
    travelling: BinaryHeap<Reverse<Travelling>>,
    /// When the line will have sent all that was put into it.
    free_at: Duration,
    number: u64,
}

impl Direction {
    /// A packet enters. `dice` are two random numbers below 1,000: for loss, for the detour.
    pub(super) fn enter(&mut self, line: &Line, now: Duration, packet: &[u8], dice: [u64; 2]) {
        let bytes = packet.len() as f64;
        let waiting = self.free_at.saturating_sub(now).as_secs_f64() * line.rate * 125_000.0;
        let full = waiting + bytes > line.queue as f64;
        if dice[0] < line.loss || full || self.travelling.len() >= IN_FLIGHT_MAX || packet.len() > line.mtu.into() {
            return;
        }
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(bytes / (line.rate * 125_000.0));
        let detour = if dice[1] < line.reorder { DETOUR } else { Duration::ZERO };
        let arrives = self.free_at + line.one_way + detour;
        self.number += 1;
        self.travelling.push(Reverse(Travelling { arrives, number: self.number, packet: packet.to_vec() }));
    }

    /// The next packet that has arrived.
    pub(super) fn leave(&mut self, now: Duration) -> Option<Vec<u8>> {
        self.next().filter(|next| *next <= now)?;
        self.travelling.pop().map(|Reverse(travelling)| travelling.packet)
    }

    /// When the next one arrives.
    pub(super) fn next(&self) -> Option<Duration> {
        self.travelling.peek().map(|Reverse(travelling)| travelling.arrives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NEVER: [u64; 2] = [999, 999];

    #[test]
    fn a_packet_arrives_after_its_own_length_and_the_way() {
        let mut direction = Direction::default();
        // 1,250 bytes at 10 Mbit/s take a millisecond.
        let line = Line { rate: 10.0, ..Line::round_trip(20 * MS) };
        direction.enter(&line, Duration::ZERO, &[7; 1250], NEVER);
        direction.enter(&line, Duration::ZERO, &[8; 1250], NEVER);
        assert_eq!(direction.next(), Some(11 * MS));
        assert_eq!(direction.leave(10 * MS), None);
        assert_eq!(direction.leave(11 * MS), Some(vec![7; 1250]));
        assert_eq!(direction.next(), Some(12 * MS));
    }

    #[test]
    fn loss_a_full_queue_and_an_oversized_packet_drop() {
        let mut direction = Direction::default();
        let line = Line { rate: 10.0, queue: 2000, ..Line::round_trip(2 * MS) }.losing(10);
        direction.enter(&line, Duration::ZERO, &[0; 100], [9, 999]);
        direction.enter(&line, Duration::ZERO, &[0; 1501], NEVER);
        assert_eq!(direction.next(), None);
        direction.enter(&line, Duration::ZERO, &[1; 1250], NEVER);
        direction.enter(&line, Duration::ZERO, &[2; 1250], NEVER);
        assert_eq!(direction.leave(100 * MS), Some(vec![1; 1250]));
        assert_eq!(direction.leave(100 * MS), None, "the queue was full");
    }

    #[test]
    fn a_detour_lets_others_overtake() {
        let mut direction = Direction::default();
        let line = Line::round_trip(2 * MS).reordering(10);
        direction.enter(&line, Duration::ZERO, b"first", [999, 0]);
        direction.enter(&line, Duration::ZERO, b"second", NEVER);
        assert_eq!(direction.leave(100 * MS).as_deref(), Some(&b"second"[..]));
        assert_eq!(direction.leave(100 * MS).as_deref(), Some(&b"first"[..]));
    }
}
