//! What QUIC takes from outside the program: tasks through the seam of [`crate::runtime`], time from tokio and from the
//! wall clock. In a real process it is what quinn would take anyway.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TimeSource, TokioRuntime};

use crate::runtime;

/// quinn's runtime.
#[derive(Debug)]
pub(super) struct Seam;

impl Runtime for Seam {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(runtime::spawn(future));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// The clock that address tokens are dated by.
pub(super) struct WallClock;

impl TimeSource for WallClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(runtime::wall_ms())
    }
}
