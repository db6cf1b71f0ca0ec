//! What happened in a world, in order: a line an event with its virtual time. Every event goes into a running hash, so
//! that two runs of a seed are compared without their lines; the lines are kept in memory only when they are asked for.

use std::{
    fmt::{self, Write as _},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;

use super::clock::since;

/// A trace of a seed that is being looked at has up to some million packets; beyond this, memory would be what fails.
const LINES_MAX: usize = 8_000_000;

/// Which lines are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// None; only the hash.
    #[default]
    Hash,
    /// What happened to nodes, without the packets.
    Events,
    /// Everything.
    Packets,
}

/// The trace of one world.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    keep: Keep,
    hash: u64,
    events: u64,
    lines: Vec<String>,
    text: String,
}

impl Trace {
    /// A trace that begins now.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        let hash = 0xcbf2_9ce4_8422_2325;
        let inner = Inner { start: Instant::now(), keep, hash, events: 0, lines: Vec::new(), text: String::new() };
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Something happened to `who`.
    pub fn event(&self, who: &str, what: fmt::Arguments<'_>) {
        self.with(|inner| {
            let mut text = std::mem::take(&mut inner.text);
            text.clear();
            let at = since(inner.start);
            let written = write!(text, "{:>10.6} {who}: {what}", at.as_secs_f64());
            debug_assert!(written.is_ok(), "a string takes every text");
            inner.hash(text.as_bytes());
            inner.events += 1;
            inner.keep(Keep::Events, &text);
            inner.text = text;
        });
    }

    /// A datagram of `length` bytes was sent. What is in it is encrypted and differs from run to run; its size does not.
    pub fn packet(&self, from: SocketAddr, to: SocketAddr, length: usize, fate: &str) {
        self.with(|inner| {
            let at = since(inner.start);
            inner.hash(&at.as_nanos().to_le_bytes());
            for end in [from, to] {
                inner.hash(&end.port().to_le_bytes());
                match end.ip() {
                    std::net::IpAddr::V4(ip) => inner.hash(&ip.octets()),
                    std::net::IpAddr::V6(ip) => inner.hash(&ip.octets()),
                }
            }
            inner.hash(&length.to_le_bytes());
            inner.hash(fate.as_bytes());
            inner.events += 1;
            if inner.keep == Keep::Packets {
                let line = format!("{:>10.6} {from} > {to} {length} {fate}", at.as_secs_f64());
                inner.keep(Keep::Packets, &line);
            }
        });
    }

    /// The hash of everything so far, and how many events that were.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        self.with(|inner| (inner.hash, inner.events))
    }

    /// The lines that were kept.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.with(|inner| inner.lines.clone())
    }

    fn with<T>(&self, run: impl FnOnce(&mut Inner) -> T) -> T {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    fn hash(&mut self, bytes: &[u8]) {
        self.hash = bytes.iter().fold(self.hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn keep(&mut self, from: Keep, line: &str) {
        let wanted = match self.keep {
            Keep::Hash => false,
            Keep::Events => from == Keep::Events,
            Keep::Packets => true,
        };
        if wanted && self.lines.len() < LINES_MAX {
            self.lines.push(line.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(keep: Keep, what: &str) -> Trace {
        let trace = Trace::new(keep);
        trace.event("n1", format_args!("{what}"));
        let end = |port| SocketAddr::from(([10, 0, 0, 1], port));
        trace.packet(end(1), end(2), 1200, "sent");
        trace
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_events_give_the_same_hash_whatever_is_kept() {
        let [bare, whole] = [Keep::Hash, Keep::Packets].map(|keep| told(keep, "starts"));
        assert_eq!(bare.digest(), whole.digest());
        assert_ne!(bare.digest(), told(Keep::Hash, "stops").digest());
        assert_eq!((bare.lines().len(), told(Keep::Events, "x").lines().len(), whole.lines().len()), (0, 1, 2));
        assert!(whole.lines()[0].ends_with("0.000000 n1: starts"), "{:?}", whole.lines());
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_at_another_time_is_another_trace() {
        let early = told(Keep::Hash, "x");
        let late = Trace::new(Keep::Hash);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        late.event("n1", format_args!("x"));
        assert_ne!(early.digest(), late.digest());
    }
}
