//! The UDP socket of this device and the QUIC endpoint on it: dials, and says who knocks. Everything here runs on the
//! mesh's own thread, because QUIC's tasks start on the runtime of whoever dials or accepts.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use quinn::{
    AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, EndpointConfig, Runtime as _, ServerConfig, TransportConfig,
    VarInt, congestion::CubicConfig,
};
use ring::hmac;
use sha2::{Digest as _, Sha256};
use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};

use super::{
    Connection, Ended, Protocol, SetupError,
    congestion::Closable,
    seam::{Seam, WallClock},
    tls::{Credentials, node_id},
};
use crate::{
    identity::{Identity, NodeId},
    runtime,
    wire::CloseCode,
};

/// Where packets go: the system's network, or one in memory.
pub trait Sockets: fmt::Debug + Send + Sync + 'static {
    /// A socket at `listen`, with a port of its own when that one is 0.
    ///
    /// # Errors
    /// When the address is taken or not this device's.
    fn bind(&self, listen: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>>;
}

/// A quiet peer's sign of life, from the side that dialled: it keeps the other side's timer back too.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Nothing at all for this long: the peer is gone. The time starts anew with a sign of life that is sent after the last
/// word (RFC 9000 section 10.1), so that a dead peer is noticed after 10 to 15 s.
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// The largest packet that is tried. Above 6,550 bytes a batch of ten passes what the kernel segments (64 KiB) and
/// transfers stall.
const PACKET_BYTES_MAX: u16 = 6500;
/// Asked of the kernel, which may give less: a burst of a fast peer waits here instead of being dropped.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Bytes in flight to us before a stream's reader takes them: what a LAN needs, and what one slow reader can cost.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Bytes that may be under way before the network is known: 32 packets of the smallest size, as large sites do. quinn's
/// own 12,000 is less than two of the largest packets here, and a connection that is closed while one of them is under
/// way (a probe of the packet size) would be closed without a word.
const FIRST_WINDOW_BYTES: u64 = 32 * 1200;
const _: () = assert!(FIRST_WINDOW_BYTES > 4 * PACKET_BYTES_MAX as u64);
/// What all streams of one connection may hold of ours, sent and not acknowledged.
const SEND_WINDOW_BYTES: u64 = 8 * 1024 * 1024;
/// The same before a device is admitted: its hello or its request, no more.
pub(super) const STRANGER_WINDOW_BYTES: u32 = 64 * 1024;
/// What the round trip is taken for until it is measured. A lost first packet is sent again after three times this: with
/// RFC 9002's own 333 ms (section 6.2.2) a device that starts a moment later would be reached a second later. On a slower
/// way a few packets go out twice.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// Streams that a device may open before it is admitted.
const STRANGER_STREAMS: u32 = 1;
/// Between two answers that a connection is not known any more. A restarted device is asked on several old connections at
/// once, and each waits until it is told; such an answer is smaller than what it answers.
const RESET_INTERVAL: Duration = Duration::from_millis(1);
/// Handshakes that wait for us to look at them, with at most this much of what they sent.
const INCOMING_MAX: usize = 512;
const INCOMING_BYTES_MAX: u64 = 16 * 1024;
/// Bytes that all of them may hold.
const INCOMING_BYTES_TOTAL: u64 = 4 * 1024 * 1024;
/// A handshake takes one round trip and a lost packet a second more.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The endpoint of this device. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    quinn: quinn::Endpoint,
    credentials: Credentials,
    reach: Reach,
    address: SocketAddr,
}

/// Which families the socket can send to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    V4,
    V6,
    Both,
}

impl Endpoint {
    /// Binds `listen` and answers whoever dials, when `answers`; otherwise it only dials. `sockets` is the network,
    /// `None` the system's.
    ///
    /// # Errors
    /// When the address is taken or not ours, or TLS cannot be set up.
    pub(crate) fn bind(
        identity: &Identity,
        listen: SocketAddr,
        answers: bool,
        sockets: Option<&dyn Sockets>,
    ) -> Result<Self, SetupError> {
        let credentials = Credentials::new(identity)?;
        let cannot = |cause| SetupError::Bind { address: listen, cause };
        let (socket, reach) = match sockets {
            None => {
                let (socket, reach) = socket(listen).map_err(cannot)?;
                (Seam.wrap_udp_socket(socket).map_err(cannot)?, reach)
            }
            Some(sockets) => {
                let reach = match listen {
                    SocketAddr::V4(_) => Reach::V4,
                    SocketAddr::V6(v6) if v6.ip().is_unspecified() => Reach::Both,
                    SocketAddr::V6(_) => Reach::V6,
                };
                (sockets.bind(listen).map_err(cannot)?, reach)
            }
        };
        let server = answers.then(|| credentials.server().map(server_config)).transpose()?;
        let quinn =
            quinn::Endpoint::new_with_abstract_socket(endpoint_config(identity)?, server, socket, Arc::new(Seam));
        let quinn = quinn.map_err(cannot)?;
        let address = quinn.local_addr().map_err(cannot)?;
        Ok(Self { quinn, credentials, reach, address })
    }

    /// Where it is bound.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether a packet can be sent there from this socket at all.
    pub(crate) fn reaches(&self, address: SocketAddr) -> bool {
        match self.reach {
            Reach::V4 => address.is_ipv4(),
            Reach::V6 => address.is_ipv6(),
            Reach::Both => true,
        }
    }

    /// Dials. `expected` is the only device that is taken; `None` takes any that proves a key. The other side may still
    /// refuse afterwards: only its first word says that it took us.
    pub(crate) async fn dial(
        &self,
        address: SocketAddr,
        protocol: Protocol,
        expected: Option<NodeId>,
    ) -> Result<Connection, Ended> {
        let broken = |cause: &dyn std::fmt::Display| Ended::Broken(cause.to_string());
        let tls = self.credentials.client(protocol, expected).map_err(|cause| broken(&cause))?;
        let mut config = quinn::ClientConfig::new(tls);
        config.transport_config(Arc::new(transport(Some(KEEP_ALIVE), 0)));
        // No name is sent; quinn wants one that could be.
        let connecting = self.quinn.connect_with(config, address, "chappie.invalid").map_err(|cause| broken(&cause))?;
        established(connecting).await
    }

    /// The next device that knocks; `None` when the endpoint is closed.
    pub(crate) async fn knock(&self) -> Option<Knock> {
        self.quinn.accept().await.map(Knock)
    }

    /// Closes every connection and takes no more.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        self.quinn.close(code.number().into(), reason.as_bytes());
    }

    /// Waits until the other sides know.
    pub(crate) async fn drained(&self) {
        self.quinn.wait_idle().await;
    }
}

/// A device that sent its first packet. Nothing of it is known but where it says it comes from.
#[derive(Debug)]
pub(crate) struct Knock(quinn::Incoming);

impl Knock {
    /// Where it says it comes from.
    pub(crate) fn address(&self) -> SocketAddr {
        canonical(self.0.remote_address())
    }

    /// Has it show first that packets sent there reach it (RFC 9000 section 8.1.2); costs it a round trip and us no
    /// memory. Gives it back when it has shown that already.
    pub(crate) fn prove_address(self) -> Option<Self> {
        if self.0.remote_address_validated() || !self.0.may_retry() {
            return Some(self);
        }
        // An error gives the knock back, and it was asked above whether there is a reason for one.
        drop(self.0.retry());
        None
    }

    /// Tells it that there is no room.
    pub(crate) fn refuse(self) {
        self.0.refuse();
    }

    /// Goes through the handshake: after it the device's key is proven.
    pub(crate) async fn handshake(self) -> Result<Connection, Ended> {
        let connecting = self.0.accept().map_err(|error| Ended::from(&error))?;
        established(connecting).await
    }
}

async fn established(connecting: quinn::Connecting) -> Result<Connection, Ended> {
    let connection = match tokio::time::timeout(HANDSHAKE, connecting).await {
        Ok(connected) => connected.map_err(|error| Ended::from(&error))?,
        Err(_) => return Err(Ended::Silent(HANDSHAKE)),
    };
    let handshake =
        connection.handshake_data().and_then(|data| data.downcast::<quinn::crypto::rustls::HandshakeData>().ok());
    let protocol = handshake.and_then(|data| Protocol::from_alpn(&data.protocol?));
    let keys = connection
        .peer_identity()
        .and_then(|keys| keys.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok());
    match (protocol, keys.and_then(|keys| node_id(&keys))) {
        (Some(protocol), Some(peer)) => Ok(Connection::new(connection, peer, protocol)),
        // TLS lets nobody through without both; kept for the day that it does.
        _ => {
            connection.close(CloseCode::Version.number().into(), b"no protocol or no key");
            Err(Ended::Broken("it named no protocol or proved no key".to_owned()))
        }
    }
}

fn socket(listen: SocketAddr) -> io::Result<(std::net::UdpSocket, Reach)> {
    let any_v6 = listen.is_ipv6() && listen.ip().is_unspecified();
    match open_socket(listen) {
        Ok(socket) if any_v6 => Ok((socket, Reach::Both)),
        Ok(socket) => Ok((socket, if listen.is_ipv4() { Reach::V4 } else { Reach::V6 })),
        // A kernel without IPv6 still has a network.
        Err(error) if any_v6 && no_such_family(&error) => {
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), listen.port());
            Ok((open_socket(v4)?, Reach::V4))
        }
        Err(error) => Err(error),
    }
}

fn no_such_family(error: &io::Error) -> bool {
    let codes = [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

fn open_socket(listen: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(SocketProtocol::UDP))?;
    if listen.is_ipv6() {
        socket.set_only_v6(!listen.ip().is_unspecified())?;
    }
    // Best effort: the system's own limit counts, and smaller buffers only cost speed.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    Ok(socket.into())
}

/// The key of the reset tokens follows from the device's key: restarted on the same address, the device can tell its
/// peers that their old connections are gone (RFC 9000 section 10.3), instead of leaving them to wait.
fn endpoint_config(identity: &Identity) -> Result<EndpointConfig, SetupError> {
    let key = identity.key_pair().serialize_der();
    let key: [u8; 32] = Sha256::new().chain_update(b"chappie stateless reset").chain_update(key).finalize().into();
    let seed = runtime::random().map_err(|_| SetupError::Random)?;
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &key)));
    config.min_reset_interval(RESET_INTERVAL);
    config.rng_seed(Some(runtime::random().map_err(|_| SetupError::Random)?));
    config.cid_generator(move || Box::new(ConnectionIds { seed, made: 0 }));
    config.max_udp_payload_size(PACKET_BYTES_MAX).map_err(|cause| SetupError::Tls(cause.to_string()))?;
    Ok(config)
}

/// Connection ids that nobody can tell from random ones. quinn's own generator disowns the ids of an earlier run, and
/// then nobody is told that their connections are gone.
struct ConnectionIds {
    seed: [u8; 32],
    made: u64,
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.made = self.made.wrapping_add(1);
        let hash = Sha256::new().chain_update(self.seed).chain_update(self.made.to_be_bytes()).finalize();
        ConnectionId::new(&hash[..self.cid_len()])
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn server_config(tls: Arc<quinn::crypto::rustls::QuicServerConfig>) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(tls);
    config
        .transport_config(Arc::new(transport(None, STRANGER_STREAMS)))
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL)
        .time_source(Arc::new(WallClock));
    config
}

fn transport(keep_alive: Option<Duration>, streams: u32) -> TransportConfig {
    let mut discovery = quinn::MtuDiscoveryConfig::default();
    discovery.upper_bound(PACKET_BYTES_MAX);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_WINDOW_BYTES);
    let mut config = TransportConfig::default();
    config
        .keep_alive_interval(keep_alive)
        .max_idle_timeout(IDLE.try_into().ok())
        .initial_rtt(FIRST_ROUND_TRIP)
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(STRANGER_WINDOW_BYTES.into())
        .send_window(SEND_WINDOW_BYTES)
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(Closable(Arc::new(congestion))));
    config
}

/// An IPv4 address that came through an IPv6 socket, as what it is.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), v6.port()),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}
