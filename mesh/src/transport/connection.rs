//! One QUIC connection to a device whose key is proven, and how connections end. Whether the device may do anything is
//! decided above.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use quinn::{ConnectionError, RecvStream, SendStream};

use super::{
    Line, Protocol, Question, Stream, Unanswered, congestion,
    endpoint::{IDLE, STRANGER_WINDOW_BYTES, canonical},
};
use crate::{identity::NodeId, wire::CloseCode};

/// Streams that a member may always have open at a time: a thousand waits and calls, and one that the mesh itself uses.
const MEMBER_STREAMS: u32 = 1_025;
/// quinn says that streams have ended when an eighth of them has: what may be open at the most.
const MEMBER_STREAMS_MAX: u32 = 1_172;
const _: () = assert!(MEMBER_STREAMS_MAX - MEMBER_STREAMS_MAX / 8 > MEMBER_STREAMS);
/// What all streams of a member may hold here before their readers take it.
const MEMBER_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
const _: () = assert!(STRANGER_WINDOW_BYTES < MEMBER_WINDOW_BYTES);
/// Questions of a member's consensus engine at a time: those that it gave up before the answer came count until it said so,
/// and a heartbeat comes many times a second.
const QUESTIONS_MAX: u32 = 1_024;
/// The first byte of a stream comes with the packet that opens it, or after one loss.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// What is read of a stream at first: its kind, and mostly its first message.
const FIRST_BYTES: usize = 64 * 1024;
/// RFC 8446 section 6: what TLS says when a key is not the expected one, and when no protocol fits.
const ACCESS_DENIED: u8 = 49;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// A connection after its handshake. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    quinn: quinn::Connection,
    peer: NodeId,
    protocol: Protocol,
}

impl Connection {
    pub(super) const fn new(quinn: quinn::Connection, peer: NodeId, protocol: Protocol) -> Self {
        Self { quinn, peer, protocol }
    }

    /// The device at the other end: it proved this.
    pub(crate) const fn peer(&self) -> NodeId {
        self.peer
    }

    /// Whether both are the same one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.quinn.stable_id() == other.quinn.stable_id()
    }

    /// What it came for.
    pub(crate) const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Where packets go now.
    pub(crate) fn address(&self) -> SocketAddr {
        canonical(self.quinn.remote_address())
    }

    /// The smoothed round trip.
    pub(crate) fn rtt(&self) -> Duration {
        self.quinn.rtt()
    }

    /// Packets received so far.
    pub(crate) fn packets_received(&self) -> u64 {
        self.quinn.stats().udp_rx.datagrams
    }

    /// Packets sent so far.
    #[cfg(test)]
    pub(crate) fn packets_sent(&self) -> u64 {
        self.quinn.stats().udp_tx.datagrams
    }

    /// Lets the device open streams and gives them room.
    pub(crate) fn admit(&self) {
        self.quinn.set_receive_window(MEMBER_WINDOW_BYTES.into());
        self.quinn.set_max_concurrent_bi_streams(MEMBER_STREAMS_MAX.into());
    }

    /// Lets the device ask questions ([`Connection::ask`]) and gives them room.
    pub(crate) fn admit_questions(&self) {
        self.quinn.set_receive_window(MEMBER_WINDOW_BYTES.into());
        self.quinn.set_max_concurrent_bi_streams(QUESTIONS_MAX.into());
    }

    /// A value that both ends of this connection have and nobody else (RFC 5705), for `context`.
    pub(crate) fn binding(&self, label: &[u8], context: &[u8]) -> Option<[u8; 32]> {
        let mut binding = [0; 32];
        self.quinn.export_keying_material(&mut binding, label, context).ok().map(|()| binding)
    }

    /// Opens a stream; waits while the other side has no room for one. `first` goes out with the first message.
    pub(crate) async fn open(&self, first: u8, line: Arc<dyn Line>) -> Result<Stream, Ended> {
        let halves = self.quinn.open_bi().await.map_err(|error| Ended::from(&error))?;
        Ok(Stream::quic(halves, vec![first], &[], line))
    }

    /// The next stream that the other side opens.
    pub(crate) async fn accept(&self) -> Result<Arrival, Ended> {
        let (send, recv) = self.quinn.accept_bi().await.map_err(|error| Ended::from(&error))?;
        Ok(Arrival { send, recv })
    }

    /// Asks on a stream of its own: bytes there, bytes back.
    pub(crate) async fn ask(&self, question: Bytes) -> Result<Vec<u8>, Unanswered> {
        let halves = self.quinn.open_bi().await.map_err(|error| Unanswered::Ended(Ended::from(&error)))?;
        super::exchange::ask(halves, question).await
    }

    /// The next question that the other side asks.
    pub(crate) async fn question(&self) -> Result<Question, Ended> {
        self.quinn.accept_bi().await.map(Question::new).map_err(|error| Ended::from(&error))
    }

    /// Closes it for good; what is not yet sent is lost.
    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        congestion::let_through(self.quinn.congestion_state());
        self.quinn.close(code.number().into(), reason.as_bytes());
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Ended {
        Ended::from(&self.quinn.closed().await)
    }

    /// How it ended; `None` while it lasts.
    pub(crate) fn end(&self) -> Option<Ended> {
        self.quinn.close_reason().map(|error| Ended::from(&error))
    }
}

/// A stream that the other side opened, before its first byte.
#[derive(Debug)]
pub(crate) struct Arrival {
    send: SendStream,
    recv: RecvStream,
}

impl Arrival {
    /// Its first byte, and the stream behind it; `None` when it has none.
    pub(crate) async fn first(mut self, line: impl FnOnce(u8) -> Arc<dyn Line>) -> Option<(u8, Stream)> {
        let chunk = tokio::time::timeout(FIRST_BYTE, self.recv.read_chunk(FIRST_BYTES, true)).await;
        let bytes = chunk.ok()?.ok()??.bytes;
        let (first, rest) = bytes.split_first()?;
        Some((*first, Stream::quic((self.send, self.recv), Vec::new(), rest, line(*first))))
    }
}

/// How a connection ended, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The other side closed it; no code: one that a newer program made.
    Closed {
        /// Why, for programs.
        code: Option<CloseCode>,
        /// Why, for people.
        reason: String,
    },
    /// Nothing was heard for this long.
    Silent(Duration),
    /// Another device is there.
    OtherDevice,
    /// The device has no protocol of ours.
    NoProtocol,
    /// This side closed it.
    Here,
    /// The other side does not know the connection any more: it was restarted.
    Reset,
    /// Something else, in words.
    Broken(String),
}

impl Ended {
    /// The code that the other side closed with.
    pub(crate) fn code(&self) -> Option<CloseCode> {
        if let Self::Closed { code, .. } = self { *code } else { None }
    }
}

impl fmt::Display for Ended {
    /// A sentence without its subject, which is the other device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { code: Some(code), reason } if reason.is_empty() => {
                write!(f, "closed the connection ({code:?})")
            }
            Self::Closed { reason, .. } => write!(f, "closed the connection: {reason}"),
            Self::Silent(after) => write!(f, "did not answer for {} s", after.as_secs()),
            Self::OtherDevice => write!(f, "is not there: another device answered"),
            Self::NoProtocol => write!(f, "has no protocol version in common with this device; update the older one"),
            Self::Here => write!(f, "was disconnected by this device"),
            Self::Reset => write!(f, "was restarted"),
            Self::Broken(what) => write!(f, "could not be talked to: {what}"),
        }
    }
}

impl From<&ConnectionError> for Ended {
    fn from(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => Self::Closed {
                code: CloseCode::from_number(close.error_code.into_inner()),
                reason: said(&close.reason),
            },
            ConnectionError::TimedOut => Self::Silent(IDLE),
            ConnectionError::LocallyClosed => Self::Here,
            ConnectionError::Reset => Self::Reset,
            ConnectionError::TransportError(error) if error.code == alert(ACCESS_DENIED) => Self::OtherDevice,
            ConnectionError::VersionMismatch => Self::NoProtocol,
            ConnectionError::TransportError(error) if error.code == alert(NO_APPLICATION_PROTOCOL) => Self::NoProtocol,
            ConnectionError::ConnectionClosed(close) if close.error_code == alert(NO_APPLICATION_PROTOCOL) => {
                Self::NoProtocol
            }
            other => Self::Broken(other.to_string()),
        }
    }
}

fn alert(alert: u8) -> quinn::TransportErrorCode {
    quinn::TransportErrorCode::crypto(alert)
}

/// What another device says ends up in logs and in front of people: bounded, one line.
fn said(reason: &[u8]) -> String {
    const SAID_MAX: usize = 300;
    let text = String::from_utf8_lossy(reason);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SAID_MAX).collect()
}
