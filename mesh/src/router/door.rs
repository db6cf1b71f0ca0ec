//! The door for devices that show an invite (ALPN `chappie-join/1`): one stream, one request, one answer. Whether an
//! invite counts is the program's business; nothing else can be reached through here.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::Semaphore;

use super::bucket::{Bucket, Buckets, Rate};
use crate::{
    peers::Core,
    transport::{Connection, Ended, Line, Stream},
    wire::{CloseCode, CodecError, JOIN_REQUEST_BYTES_MAX, JoinReply, JoinRequest},
};

/// The first byte of the one stream.
pub(super) const JOIN_STREAM: u8 = 0;
/// What the exporter of the TLS session is asked for; the context is the inviting device's id.
pub(super) const BINDING_LABEL: &[u8] = b"chappie join";
/// Devices that join at a time.
const JOINS_MAX: usize = 32;
/// From one address: a fleet behind one router may come at once, a guesser gets nowhere.
const PER_ADDRESS: Rate = Rate { burst: 32, every: Duration::from_millis(500) };
/// From everywhere.
const IN_ALL: Rate = Rate { burst: 128, every: Duration::from_millis(50) };
/// Addresses that are told apart.
const ADDRESSES_MAX: usize = 1024;
/// The request is there within this, or never.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// The program decides within this: it may have to ask the broker, which writes to disk.
const DECIDED_WITHIN: Duration = Duration::from_secs(15);
/// The device reads its answer within this, and closes.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// The door and its limits.
pub(super) struct Door {
    rates: Mutex<(Bucket, Buckets)>,
    places: Semaphore,
}

impl Default for Door {
    fn default() -> Self {
        let rates = (Bucket::new(IN_ALL), Buckets::new(PER_ADDRESS, ADDRESSES_MAX));
        Self { rates: Mutex::new(rates), places: Semaphore::new(JOINS_MAX) }
    }
}

impl Door {
    /// Takes one request and answers it.
    ///
    /// # Errors
    /// Why the device was refused: a sentence without its subject.
    pub(super) async fn open(&self, core: &Arc<Core>, connection: Connection) -> Result<(), String> {
        let Some(_place) = self.place(core, &connection) else {
            connection.close(CloseCode::Busy, "too many devices join; try again in a minute");
            return Err("tried to join while too many others did".to_owned());
        };
        let (mut stream, request) = match tokio::time::timeout(REQUEST_WITHIN, read(&connection)).await {
            Ok(Ok(read)) => read,
            Ok(Err((code, why))) => {
                connection.close(code, &why);
                return Err(format!("tried to join: {why}"));
            }
            Err(_) => {
                connection.close(CloseCode::Silent, "no request came");
                return Err("tried to join and said nothing".to_owned());
            }
        };
        let Some(binding) = connection.binding(BINDING_LABEL, core.node.as_bytes()) else {
            connection.close(CloseCode::Malformed, "TLS gives no binding");
            return Err("tried to join over a connection without a binding".to_owned());
        };
        let name = request.name.clone();
        let decision = core.handler.admit(connection.peer(), request, binding);
        let Ok(reply) = tokio::time::timeout(DECIDED_WITHIN, decision).await else {
            connection.close(CloseCode::Busy, "the broker did not decide in time; try again with the same code");
            return Err(format!("({name:?}) tried to join and the broker did not decide in time"));
        };
        let reply = nearer(core, &connection, reply);
        let said = stream.send.message(&reply).await;
        stream.send.finish();
        let closed = tokio::time::timeout(READ_WITHIN, connection.ended()).await;
        let (code, result) = match reply {
            JoinReply::Welcome { .. } if said.is_err() || closed.is_err() => {
                tracing::warn!(name, "a device was let in and did not read its answer; the same code gives it again");
                (CloseCode::Silent, Ok(()))
            }
            JoinReply::Welcome { .. } => {
                tracing::info!(name, node = %connection.peer(), address = %connection.address(), "a device joined");
                (CloseCode::Done, Ok(()))
            }
            JoinReply::Refused(why) => {
                (CloseCode::InviteRefused, Err(format!("({name:?}) showed an invite that does not count: {why}")))
            }
        };
        connection.close(code, "the join is over");
        result
    }

    fn place(&self, core: &Core, connection: &Connection) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let now = core.now();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        // An address that is over its own rate does not use up everybody's.
        let allowed = rates.1.take(connection.address().ip(), now) && rates.0.take(now);
        drop(rates);
        self.places.try_acquire().ok().filter(|_| allowed)
    }
}

/// The program above does not know where who joins is. On this machine it needs the loopback addresses of the others too: the
/// broker may be none that it has met.
fn nearer(core: &Core, connection: &Connection, reply: JoinReply) -> JoinReply {
    let address = connection.address();
    match reply {
        JoinReply::Welcome { roster, .. } if address.ip().is_loopback() => {
            JoinReply::Welcome { roster, addresses: core.addresses_for(Some(address)) }
        }
        reply => reply,
    }
}

async fn read(connection: &Connection) -> Result<(Stream, JoinRequest), (CloseCode, String)> {
    let gone = |ended: Ended| (CloseCode::Silent, format!("it {ended}"));
    let arrival = connection.accept().await.map_err(gone)?;
    let label = connection.peer().short();
    let Some((JOIN_STREAM, mut stream)) = arrival.first(|_| Arc::new(Joining(label))).await else {
        return Err((CloseCode::Malformed, "the stream is of another kind".to_owned()));
    };
    let frame =
        stream.recv.frame(JOIN_REQUEST_BYTES_MAX).await.map_err(|error| (CloseCode::Malformed, error.to_string()))?;
    let Some(frame) = frame else { return Err((CloseCode::Malformed, "the request is missing".to_owned())) };
    let request = JoinRequest::decode(&frame).map_err(|error| {
        let code = if matches!(error, CodecError::Version(_)) { CloseCode::Version } else { CloseCode::Malformed };
        (code, error.to_string())
    })?;
    Ok((stream, request))
}

/// What the one stream holds on to: nothing.
pub(super) struct Joining(pub(super) String);

impl Line for Joining {
    fn label(&self) -> &str {
        &self.0
    }

    fn lost(&self, how: &Ended) -> String {
        format!("{} {how}", self.0)
    }
}
