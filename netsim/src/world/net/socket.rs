//! A socket of the network, as quinn wants one. It can always be written to: what a network does not take, it loses.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};

use super::Net;

/// A socket. Dropping it frees its address.
#[derive(Debug)]
pub struct Socket {
    net: Net,
    address: SocketAddr,
    serial: u64,
}

impl Socket {
    pub(super) const fn new(net: Net, address: SocketAddr, serial: u64) -> Self {
        Self { net, address, serial }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.net.lock();
        if state.ports.get(&self.address).is_some_and(|port| port.serial == self.serial) {
            state.ports.remove(&self.address);
        }
    }
}

#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let length = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for datagram in transmit.contents.chunks(length) {
            self.net.send(self.serial, self.address, transmit.destination, datagram);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.net.lock();
        let Some(port) = state.ports.get_mut(&self.address).filter(|port| port.serial == self.serial) else {
            // Unplugged: its device is off, and it is about to be dropped.
            return Poll::Pending;
        };
        let mut taken = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some((from, bytes)) = port.queue.pop_front() else {
                break;
            };
            port.bytes -= bytes.len();
            // A datagram longer than the buffer is cut, as a system cuts it.
            let length = bytes.len().min(buffer.len());
            buffer[..length].copy_from_slice(&bytes[..length]);
            *meta = RecvMeta { addr: from, len: length, stride: length, ecn: None, dst_ip: None };
            taken += 1;
        }
        if taken > 0 {
            return Poll::Ready(Ok(taken));
        }
        port.reader = Some(context.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
