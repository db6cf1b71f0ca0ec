//! A long line between two machines: a TUN device `wan0` in each namespace, and two threads of the test that carry the
//! packets, late, thinned out and slowly. This kernel has no netem, and a user's router is no better than ours.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::{Line, Namespace, line::Direction};
use crate::random::Random;

/// The name of the device at each end.
const CARD: &str = "wan0";

/// No Ethernet frame holds more.
const PACKET_MAX: usize = 9216;

/// How many packets are taken before those that have arrived are let go.
const BATCH: usize = 64;

/// A line. Dropping it takes both devices away.
#[derive(Debug)]
pub struct Wan {
    line: Arc<Mutex<Line>>,
    stop: Option<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Wan {
    /// The address of the first machine.
    pub const A: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
    /// The address of the second machine.
    pub const B: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
    /// The IPv6 address of the first machine.
    pub const A6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 1));
    /// The IPv6 address of the second machine.
    pub const B6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 2));

    /// Lays a line between two machines. The first gets [`Wan::A`] and [`Wan::A6`], the second [`Wan::B`] and [`Wan::B6`].
    ///
    /// # Panics
    /// When the kernel has no TUN.
    #[must_use]
    pub fn between(a: &Namespace, b: &Namespace, line: Line) -> Self {
        let ends = [end(a, line.mtu, Self::A, Self::A6), end(b, line.mtu, Self::B, Self::B6)];
        let shared = Arc::new(Mutex::new(line));
        // No node that is started meanwhile may hold the end whose closing ends the threads.
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).expect("a process may have two more files");
        let stopped = Arc::new(stopped);
        let directions = [(0, 1, 0x57a7), (1, 0, 0x57a8)];
        let threads = directions.map(|(from, to, seed)| {
            let (from, to) = (Arc::clone(&ends[from]), Arc::clone(&ends[to]));
            let (line, stopped) = (Arc::clone(&shared), Arc::clone(&stopped));
            std::thread::spawn(move || carry(&from, &to, &line, &stopped, Random::new(seed)))
        });
        Self { line: shared, stop: Some(stop), threads: threads.into() }
    }

    /// Changes what the line does to packets that enter from now on; the MTU stays.
    pub fn shape(&self, line: Line) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// Nothing enters the line any more; nobody is told.
    pub fn cut(&self) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).loss = 1000;
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        // Both threads see the other end of the pipe close.
        self.stop = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn end(namespace: &Namespace, mtu: u16, v4: IpAddr, v6: IpAddr) -> Arc<SyncDevice> {
    let make = || DeviceBuilder::new().name(CARD).enable(false).build_sync();
    let device = namespace.inside(make).unwrap_or_else(|error| panic!("a TUN device in a namespace: {error}"));
    device.set_nonblocking(true).expect("a TUN device can be polled");
    namespace.ip(&format!("link set {CARD} mtu {mtu} txqueuelen 2000 up"));
    namespace.ip(&format!("addr add {v4}/30 dev {CARD}"));
    namespace.ip(&format!("addr add {v6}/64 dev {CARD} nodad"));
    Arc::new(device)
}

fn carry(from: &SyncDevice, to: &SyncDevice, line: &Mutex<Line>, stopped: &OwnedFd, mut random: Random) {
    let start = Instant::now();
    let mut direction = Direction::default();
    let mut buffer = vec![0; PACKET_MAX];
    loop {
        let now = start.elapsed();
        while let Some(packet) = direction.leave(now) {
            // A machine whose card is down takes nothing: lost, as on any wire.
            let _ = to.send(&packet);
        }
        let patience = direction.next().map(|next| timespec(next.saturating_sub(start.elapsed())));
        let mut ready = [PollFd::new(from, PollFlags::IN), PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
        let _ = poll(&mut ready, patience.as_ref());
        if !ready[1].revents().is_empty() {
            return;
        }
        let shape = *line.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..BATCH {
            let Ok(length) = from.recv(&mut buffer) else { break };
            let dice = [random.below(1000), random.below(1000)];
            direction.enter(&shape, start.elapsed(), &buffer[..length], dice);
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}
