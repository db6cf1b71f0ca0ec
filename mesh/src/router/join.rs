//! The other end of the door: a device shows its invite and is let in, or told why not. It needs no running node.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::door::{BINDING_LABEL, JOIN_STREAM, Joining};
use crate::{
    api::{JoinError, Welcome},
    identity::{Identity, InviteCode},
    transport::{Connection, Ended, Endpoint, Protocol, Sockets, StreamError},
    wire::{CloseCode, JOIN_REPLY_BYTES_MAX, JoinReply, JoinRequest, PROTOCOL, PROTOCOL_MIN},
};

/// Addresses of the invite that are dialled, names resolved.
const ADDRESSES_MAX: usize = 32;
/// A name is resolved within this.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);
/// Between the starts of two dials.
const STAGGER: Duration = Duration::from_millis(150);
/// The broker decides within 15 s, and the answer has to come.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// How often a busy door is tried again, and after how long.
const BUSY_TRIES: u32 = 3;
const BUSY_WAIT: Duration = Duration::from_secs(2);

/// Joins with an endpoint of its own; needs no running node. `name` and `build` are what the mesh will call the device.
///
/// # Errors
/// When nobody answers, the invite does not count, or the join broke off. The same code can be used again by the same
/// device.
pub async fn join(identity: &Identity, name: &str, build: &str, code: &InviteCode) -> Result<Welcome, JoinError> {
    join_over(identity, name, build, code, None).await
}

/// The same over another network than the system's.
///
/// # Errors
/// As [`join`].
pub async fn join_over(
    identity: &Identity,
    name: &str,
    build: &str,
    code: &InviteCode,
    sockets: Option<&dyn Sockets>,
) -> Result<Welcome, JoinError> {
    let endpoint = endpoint(identity, sockets)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let result = match dial(&endpoint, code).await {
            Ok(connection) => {
                let asked = tokio::time::timeout(ANSWERED_WITHIN, ask(&connection, name, build, code)).await;
                let result = asked.unwrap_or_else(|_| Err(JoinError::BrokenOff("no answer came".to_owned())));
                connection.close(CloseCode::Done, "");
                result
            }
            Err(error) => Err(error),
        };
        if matches!(result, Err(JoinError::Busy)) && tries < BUSY_TRIES {
            tokio::time::sleep(BUSY_WAIT).await;
            continue;
        }
        endpoint.close(CloseCode::Done, "");
        // Until the door knows that the answer was read; it is not waited for long, a person sits before it.
        let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.drained()).await;
        return result;
    }
}

fn endpoint(identity: &Identity, sockets: Option<&dyn Sockets>) -> Result<Endpoint, JoinError> {
    let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
    let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let bound = Endpoint::bind(identity, any, false, sockets).or_else(|_| Endpoint::bind(identity, v4, false, sockets));
    bound.map_err(|error| JoinError::Start(error.to_string()))
}

async fn dial(endpoint: &Endpoint, code: &InviteCode) -> Result<Connection, JoinError> {
    let addresses = resolve(endpoint, code).await?;
    let mut dials: FuturesUnordered<_> = addresses
        .into_iter()
        .zip(0_u32..)
        .map(|(address, place)| async move {
            tokio::time::sleep(STAGGER * place).await;
            (address, endpoint.dial(address, Protocol::Join, Some(code.inviter)).await)
        })
        .collect();
    let mut trouble = None;
    while let Some((address, result)) = dials.next().await {
        match result {
            Ok(connection) => return Ok(connection),
            Err(Ended::OtherDevice) => trouble = Some(JoinError::OtherDevice(address.to_string())),
            Err(Ended::NoProtocol) => trouble = Some(JoinError::Version(format!("{address} {}", Ended::NoProtocol))),
            Err(ended) => {
                trouble = trouble.or_else(|| Some(JoinError::Unreachable(format!("{address} {ended}"))));
            }
        }
    }
    Err(trouble.unwrap_or_else(|| JoinError::Unreachable("it has no address".to_owned())))
}

async fn resolve(endpoint: &Endpoint, code: &InviteCode) -> Result<Vec<SocketAddr>, JoinError> {
    let mut found = Vec::new();
    let mut trouble = None;
    for place in &code.addresses {
        match tokio::time::timeout(RESOLVED_WITHIN, tokio::net::lookup_host(place)).await {
            Ok(Ok(addresses)) => found.extend(addresses.filter(|address| endpoint.reaches(*address))),
            Ok(Err(error)) => trouble = Some(format!("{place}: {error}")),
            Err(_) => trouble = Some(format!("{place}: the name was not resolved in time")),
        }
    }
    found.truncate(ADDRESSES_MAX);
    match trouble {
        Some(trouble) if found.is_empty() => Err(JoinError::Unreachable(trouble)),
        _ => Ok(found),
    }
}

async fn ask(connection: &Connection, name: &str, build: &str, code: &InviteCode) -> Result<Welcome, JoinError> {
    let binding = connection
        .binding(BINDING_LABEL, code.inviter.as_bytes())
        .ok_or_else(|| JoinError::Start("TLS gives no binding".to_owned()))?;
    let request = JoinRequest {
        protocol: PROTOCOL,
        protocol_min: PROTOCOL_MIN,
        invite: code.id,
        proof: code.secret.key().prove(&binding),
        name: name.to_owned(),
        build: build.to_owned(),
        // This endpoint is gone when the join is over; where the node can be dialled it says itself.
        addresses: Vec::new(),
        ext: Vec::new(),
    };
    let line = Arc::new(Joining("the inviting device".to_owned()));
    let mut stream = connection.open(JOIN_STREAM, line).await.map_err(|ended| refused(&ended))?;
    let broken = |error: StreamError| match connection.end() {
        Some(ended) => refused(&ended),
        None => JoinError::BrokenOff(error.to_string()),
    };
    stream.send.message(&request).await.map_err(broken)?;
    stream.send.finish();
    let frame = stream.recv.frame(JOIN_REPLY_BYTES_MAX).await.map_err(broken)?;
    let frame = frame.ok_or_else(|| JoinError::BrokenOff("it ended without an answer".to_owned()))?;
    match JoinReply::decode(&frame) {
        Ok(JoinReply::Welcome { roster, addresses }) if roster.mesh == code.mesh => Ok(Welcome { roster, addresses }),
        Ok(JoinReply::Welcome { .. }) => Err(JoinError::Refused("the device is of another mesh by now".to_owned())),
        Ok(JoinReply::Refused(why)) => Err(JoinError::Refused(why)),
        Err(error) => Err(JoinError::Version(error.to_string())),
    }
}

/// What it means that the door closed the connection before an answer.
fn refused(ended: &Ended) -> JoinError {
    match (ended.code(), ended) {
        (Some(CloseCode::Busy), _) => JoinError::Busy,
        (Some(CloseCode::Version), Ended::Closed { reason, .. }) => JoinError::Version(reason.clone()),
        (Some(CloseCode::InviteRefused), Ended::Closed { reason, .. }) => JoinError::Refused(reason.clone()),
        _ => JoinError::BrokenOff(format!("the inviting device {ended}")),
    }
}
