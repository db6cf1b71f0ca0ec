//! QUIC and TLS: the only place that names quinn and rustls. Whom to connect to and why is not decided here.

mod frames;
mod stream;

pub use stream::{Stream, StreamError, StreamReceiver, StreamSender};
