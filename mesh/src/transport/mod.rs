//! QUIC and TLS: the only place that names quinn and rustls. Whom to connect to and why is not decided here.

mod congestion;
mod connection;
mod endpoint;
mod exchange;
#[cfg(test)]
pub(crate) mod memory;
mod seam;
mod stream;
mod tls;

use std::{io, net::SocketAddr};

pub(crate) use connection::{Connection, Ended};
pub use endpoint::Sockets;
pub(crate) use endpoint::{Endpoint, Knock};
pub(crate) use exchange::{QUESTION_BYTES_MAX, QUESTIONS_LONG, Question, Unanswered};
pub(crate) use stream::{Line, ROOM_BYTES};
pub use stream::{Stream, StreamError, StreamReceiver, StreamSender};
pub(crate) use tls::Protocol;

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// The system refused the address.
    #[error("cannot listen on {address} (UDP): {cause}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
    /// The key file holds a key that cannot sign.
    #[error("cannot sign with this device's key: {0}")]
    Key(String),
    /// The system gave no randomness.
    #[error("the system gives no random numbers")]
    Random,
    /// TLS or QUIC refuse their settings.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}
