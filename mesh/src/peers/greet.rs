//! The first words on a connection between members: both sides say hello and judge each other, before any stream
//! counts. Who dialled and why is not asked here; the consensus engine's connections begin in the same way.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{
    core::Core,
    link::Link,
    serve,
    verdict::{self, Run},
};
use crate::{
    api::Duplicate,
    discovery::Source,
    identity::{Incarnation, NodeId},
    transport::{Connection, Ended, Line, Stream, StreamError},
    wire::{CloseCode, CodecError, HELLO_BYTES_MAX, Hello, meet},
};

/// The first byte of the mesh's own stream: the first one of a connection, opened by the side that dialled.
pub(super) const OWN_STREAM: u8 = 0;
/// A hello is one packet, and a lost one comes again after a second.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// How long an older run's connection is asked whether it lives. A restarted device answers for its old run at once
/// that it is gone; one that was switched off does not.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// Why a device is no peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// We closed the connection with this code and these words.
    Ours(CloseCode, String),
    /// The other side did, or the connection broke.
    Theirs(Ended),
    /// A connection was agreed on in the meantime, or it is ourselves: nothing to tell anybody.
    Needless,
}

impl Refusal {
    /// A sentence without its subject, which is the other device.
    pub(crate) fn story(&self) -> String {
        match self {
            Self::Ours(code, reason) => format!("was turned away ({code:?}): {reason}"),
            Self::Theirs(ended) => ended.to_string(),
            Self::Needless => "is connected already".to_owned(),
        }
    }
}

/// Says hello to a device that this one dialled.
pub(crate) async fn greet_dialled(core: &Arc<Core>, connection: Connection) -> Result<Arc<Link>, Refusal> {
    let peer = connection.peer();
    if core.table.usable(peer).is_some() {
        connection.close(CloseCode::Redundant, "connected already");
        return Err(Refusal::Needless);
    }
    let (stream, theirs) = introduce(core, &connection).await?;
    settle(core, connection, stream, &theirs, true)
}

/// Takes the hello of a device that dialled this one, and answers it.
pub(crate) async fn greet_caller(core: &Arc<Core>, connection: Connection) -> Result<Arc<Link>, Refusal> {
    let (stream, theirs) = receive(core, &connection).await?;
    settle(core, connection, stream, &theirs, false)
}

/// Both hellos on a connection that this device dialled; the other one is judged.
pub(super) async fn introduce(core: &Arc<Core>, connection: &Connection) -> Result<(Stream, Hello), Refusal> {
    let peer = connection.peer();
    let hello = async {
        verdict::enter(core.admission(&peer), peer == core.node).map_err(close(connection))?;
        let line: Arc<dyn Line> = Arc::new(Greeted(core.label(&peer)));
        let mut stream = connection.open(OWN_STREAM, line).await.map_err(Refusal::Theirs)?;
        let sent = stream.send.message(&core.hello()).await;
        sent.map_err(|error| broken(connection, &error))?;
        let theirs = read_hello(connection, &mut stream).await?;
        judge(core, connection, &theirs).await?;
        Ok((stream, theirs))
    };
    within(connection, hello).await
}

/// Both hellos on a connection that the other device dialled; it is judged before it is answered.
pub(super) async fn receive(core: &Arc<Core>, connection: &Connection) -> Result<(Stream, Hello), Refusal> {
    let peer = connection.peer();
    let hello = async {
        let entered = verdict::enter(core.admission(&peer), peer == core.node);
        if matches!(entered, Err((CloseCode::NotMember, _))) {
            // It may be on a later roster.
            core.doubt.notify_one();
        }
        entered.map_err(close(connection))?;
        let arrival = connection.accept().await.map_err(Refusal::Theirs)?;
        let label = core.label(&peer);
        let Some((OWN_STREAM, mut stream)) = arrival.first(|_| Arc::new(Greeted(label))).await else {
            return Err(close(connection)((CloseCode::Malformed, "no hello came first".to_owned())));
        };
        let theirs = read_hello(connection, &mut stream).await?;
        judge(core, connection, &theirs).await?;
        let sent = stream.send.message(&core.hello()).await;
        sent.map_err(|error| broken(connection, &error))?;
        Ok((stream, theirs))
    };
    within(connection, hello).await
}

async fn within<T>(connection: &Connection, hello: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    match tokio::time::timeout(HELLO_WITHIN + ASKED_FOR, hello).await {
        Ok(result) => result,
        Err(_) => Err(close(connection)((CloseCode::Silent, "no hello came".to_owned()))),
    }
}

async fn read_hello(connection: &Connection, stream: &mut Stream) -> Result<Hello, Refusal> {
    let frame = match tokio::time::timeout(HELLO_WITHIN, stream.recv.frame(HELLO_BYTES_MAX)).await {
        Err(_) => {
            let words = format!("no hello came within {} s", HELLO_WITHIN.as_secs());
            return Err(close(connection)((CloseCode::Silent, words)));
        }
        Ok(Ok(Some(frame))) => frame,
        Ok(Ok(None)) => return Err(close(connection)((CloseCode::Malformed, "no hello came".to_owned()))),
        Ok(Err(error)) => return Err(broken(connection, &error)),
    };
    Hello::decode(&frame).map_err(|error| {
        let code = if matches!(error, CodecError::Version(_)) { CloseCode::Version } else { CloseCode::Malformed };
        close(connection)((code, error.to_string()))
    })
}

/// Whether the other side can be worked with, by what it said.
async fn judge(core: &Arc<Core>, connection: &Connection, theirs: &Hello) -> Result<(), Refusal> {
    let (peer, address) = (connection.peer(), connection.address());
    meet(&core.hello(), theirs).map_err(close(connection))?;
    let own = (peer == core.node).then_some(&core.run);
    match core.table.judge(peer, own, &theirs.incarnation) {
        Run::Welcome => Ok(()),
        Run::Ourselves => {
            connection.close(CloseCode::Redundant, "this is the device itself");
            Err(Refusal::Needless)
        }
        Run::Duplicate => Err(turn_away(core, connection, address)),
        Run::AskTheOther => match core.table.current(peer) {
            Some(link) if link.run != theirs.incarnation && link.answers(ASKED_FOR).await => {
                Err(turn_away(core, connection, address))
            }
            _ => Ok(()),
        },
    }
}

/// Turns away a device whose identity another one uses, and says so on all sides.
pub(super) fn turn_away(core: &Core, connection: &Connection, address: SocketAddr) -> Refusal {
    let peer = connection.peer();
    let own = peer == core.node;
    let holder = core.table.current(peer).map(|link| link.connection.address());
    core.table.warn(peer, Some(address));
    core.handler.duplicate(Duplicate { node: peer, own, refused: false, other: Some(address), told_by: core.node });
    let words = verdict::duplicate_reason(if own { None } else { holder });
    close(connection)((CloseCode::DuplicateIdentity, words))
}

/// Makes a link of a connection on which both said hello.
fn settle(
    core: &Arc<Core>,
    connection: Connection,
    stream: Stream,
    theirs: &Hello,
    dialled: bool,
) -> Result<Arc<Link>, Refusal> {
    let (peer, address) = (connection.peer(), connection.address());
    // The roster may have changed while they talked.
    verdict::enter(core.admission(&peer), false).map_err(close(&connection))?;
    let before = core.table.run(peer);
    let (link, words) = Link::new(connection.clone(), core.label(&peer), dialled, theirs.incarnation);
    if !core.table.add(&link) {
        return Err(turn_away(core, &connection, address));
    }
    connection.admit();
    let mut book = core.book();
    book.learned(peer, Source::Hello, &theirs.addresses);
    book.succeeded(peer, address, core.now());
    drop(book);
    core.remember(peer, theirs.incarnation);
    if before != Some(theirs.incarnation) {
        warn_anew(&link.label, theirs.incarnation);
    }
    // It is there now, whatever became of earlier dials.
    core.raft.poke(&peer);
    tracing::info!(peer = %link.label, %address, build = %theirs.build, dialled, "connected");
    serve::start(core, &link, stream, words);
    Ok(link)
}

/// Says that a device whose run was let in for the first time begins a chain of its own (F15).
pub(super) fn warn_anew(label: &str, run: Incarnation) {
    if run.is_anew() {
        tracing::warn!(
            peer = %label,
            "the device's home was put back from a copy, or is one: it takes part as another member from now on"
        );
    }
}

/// Closes a connection that is refused.
pub(super) fn close(connection: &Connection) -> impl Fn((CloseCode, String)) -> Refusal {
    |(code, reason)| {
        connection.close(code, &reason);
        Refusal::Ours(code, reason)
    }
}

fn broken(connection: &Connection, error: &StreamError) -> Refusal {
    match (connection.end(), error) {
        (Some(ended), _) => Refusal::Theirs(ended),
        (None, StreamError::TooLong { .. } | StreamError::Malformed(_)) => {
            close(connection)((CloseCode::Malformed, format!("this is no hello: {error}")))
        }
        (None, _) => close(connection)((CloseCode::Malformed, "the hello broke off".to_owned())),
    }
}

/// What the mesh's own stream holds on to: nothing.
struct Greeted(String);

impl Line for Greeted {
    fn label(&self) -> &str {
        &self.0
    }

    fn lost(&self, how: &Ended) -> String {
        format!("{} {how}", self.0)
    }
}

/// What the other side's closing means for this device, whether or not there was a link.
pub(super) fn heed(core: &Core, peer: NodeId, ended: &Ended) {
    match ended {
        Ended::Closed { code: Some(CloseCode::Forgotten), .. } if core.roster().is_central(&peer) => {
            core.handler.forgotten(peer);
        }
        Ended::Closed { code: Some(CloseCode::DuplicateIdentity), reason } => {
            let other = verdict::duplicate_address(reason);
            core.handler.duplicate(Duplicate { node: core.node, own: true, refused: true, other, told_by: peer });
        }
        Ended::Closed { code: Some(CloseCode::NotMember), .. } => core.doubt.notify_one(),
        _ => {}
    }
}
