//! A congestion controller that steps aside when its connection is closed. quinn holds the closing packet back like data
//! while the window is full, and forgets the connection before there is room: the other side would not be told. How fast
//! data goes is the inner controller's business.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// Makes controllers of another kind closable.
pub(super) struct Closable<F>(pub(super) Arc<F>);

impl<F: ControllerFactory + Send + Sync + 'static> ControllerFactory for Closable<F> {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Gate { inner: Arc::clone(&self.0).build(now, current_mtu), open: Arc::new(AtomicBool::new(false)) })
    }
}

/// Opens the window of a connection that is about to be closed; `controller` is a copy of its own.
pub(super) fn let_through(controller: Box<dyn Controller>) {
    if let Ok(gate) = controller.into_any().downcast::<Gate>() {
        gate.open.store(true, Relaxed);
    }
}

struct Gate {
    inner: Box<dyn Controller>,
    /// Shared by all copies.
    open: Arc<AtomicBool>,
}

impl Controller for Gate {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // Above 4 GiB quinn does not pace either.
        if self.open.load(Relaxed) { u64::MAX } else { self.inner.window() }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), open: Arc::clone(&self.open) })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use quinn::congestion::CubicConfig;

    use super::*;

    #[test]
    fn a_copy_opens_the_window_of_the_connection_s_own() {
        let factory = Arc::new(Closable(Arc::new(CubicConfig::default())));
        let now = Instant::now();
        let (mut gate, other) = (Arc::clone(&factory).build(now, 1200), factory.build(now, 1200));
        gate.on_congestion_event(now, now, true, 1200);
        assert!(gate.window() <= 12_000, "the inner controller counts: {}", gate.window());
        let_through(gate.clone_box());
        assert_eq!(gate.window(), u64::MAX);
        assert!(other.window() <= 12_000, "and no other connection's");
    }
}
