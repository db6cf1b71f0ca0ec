//! A network in memory for tests under tokio's paused clock: packets are late and get lost as a seed says. What the
//! devices on it do is not its business.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;

use super::Sockets;

/// On the way, and up to as much again.
const LATENCY: Duration = Duration::from_millis(3);
/// Packets that get lost.
const LOSS: f64 = 0.03;

/// When a packet was sent, from where, to where, and how long it was: what is in it is encrypted with keys that differ.
pub(crate) type Sent = (Duration, SocketAddr, SocketAddr, usize);

#[derive(Default)]
struct Port {
    arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    reader: Option<Waker>,
}

struct Wires {
    chance: StdRng,
    ports: BTreeMap<SocketAddr, Port>,
    trace: Vec<Sent>,
}

/// A network in memory.
pub(crate) struct Net {
    started: Instant,
    wires: Mutex<Wires>,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let wires = Wires { chance: StdRng::seed_from_u64(seed), ports: BTreeMap::new(), trace: Vec::new() };
        Arc::new(Self { started: Instant::now(), wires: Mutex::new(wires) })
    }

    /// How long it has been there.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Nothing comes from or to this address until it is bound again.
    pub(crate) fn unplug(&self, address: SocketAddr) {
        self.wires.lock().unwrap().ports.remove(&address);
    }

    /// What was sent so far, lost packets too.
    pub(crate) fn trace(&self) -> Vec<Sent> {
        self.wires.lock().unwrap().trace.clone()
    }

    fn send(self: &Arc<Self>, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let mut wires = self.wires.lock().unwrap();
        wires.trace.push((self.started.elapsed(), from, to, bytes.len()));
        let (lost, late) = (wires.chance.random_bool(LOSS), wires.chance.random::<f64>());
        if lost || !wires.ports.contains_key(&from) {
            return;
        }
        let (net, bytes, at) = (Arc::clone(self), bytes.to_vec(), Instant::now() + LATENCY.mul_f64(1.0 + late));
        tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let mut wires = net.wires.lock().unwrap();
            let Some(port) = wires.ports.get_mut(&to) else { return };
            port.arrived.push_back((from, bytes));
            if let Some(reader) = port.reader.take() {
                reader.wake();
            }
        });
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Net")
    }
}

/// A device's way into it.
#[derive(Debug)]
pub(crate) struct Plug(pub(crate) Arc<Net>);

impl Sockets for Plug {
    fn bind(&self, listen: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.0.wires.lock().unwrap().ports.insert(listen, Port::default());
        Ok(Arc::new(Socket { net: Arc::clone(&self.0), address: listen }))
    }
}

#[derive(Debug)]
struct Socket {
    net: Arc<Net>,
    address: SocketAddr,
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        for packet in transmit.contents.chunks(transmit.segment_size.unwrap_or(transmit.contents.len())) {
            self.net.send(self.address, transmit.destination, packet);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut wires = self.net.wires.lock().unwrap();
        let Some(port) = wires.ports.get_mut(&self.address) else { return Poll::Pending };
        let Some((from, bytes)) = port.arrived.pop_front() else {
            port.reader = Some(context.waker().clone());
            return Poll::Pending;
        };
        buffers[0][..bytes.len()].copy_from_slice(&bytes);
        metas[0] = RecvMeta { addr: from, len: bytes.len(), stride: bytes.len(), ..RecvMeta::default() };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
