//! Dialling for the consensus engine. An election is over in a second, and so a device that does not answer is dialled
//! again and again while somebody asks, beside a patient dial for slow ways.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    super::{Core, Refusal, backoff, core::chance, greet, table::Noted, tend, verdict},
    Dialled, Peer,
};
use crate::{
    discovery::Source,
    identity::{Admission, Incarnation, NodeId},
    transport::{Connection, Ended, Protocol},
    wire::{CloseCode, Hello},
};

/// Between two short dials: a device that has just started again is there this much later at the most.
const EAGER_MIN: Duration = Duration::from_millis(150);
/// A short dial's time on a slow way, in round trips: a handshake takes one and its packets may wait in a queue.
const EAGER_ROUND_TRIPS: u32 = 3;
/// The most that one takes; the patient dial has more.
const EAGER_MAX: Duration = Duration::from_secs(2);
/// A device that refuses is asked again after this, at the most: rosters travel (failure rule F20).
const REFUSED_REST_MAX: Duration = Duration::from_secs(1);
/// How long it is dialled after the last question was given up: the engine asks again at once, and its question should
/// find what the last one began.
const WANTED: Duration = Duration::from_secs(2);
/// A connection that nothing was asked on for this long is closed.
const UNUSED_MAX: Duration = Duration::from_secs(60);

/// Has the device dialled, unless a task does that already.
pub(super) fn begin(core: &Arc<Core>, node: NodeId, peer: &Arc<Peer>) {
    if !std::mem::replace(&mut peer.state().dialling, true) {
        core.spawner.spawn(dial(Arc::clone(core), node, Arc::clone(peer)));
    }
}

async fn dial(core: Arc<Core>, node: NodeId, peer: Arc<Peer>) {
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let reached = tokio::select! {
            biased;
            () = core.stopping.cancelled() => return,
            () = unwanted(&peer) => {
                let mut state = peer.state();
                if state.waiting > 0 {
                    continue;
                }
                state.dialling = false;
                return;
            }
            () = peer.wake.notified() => continue,
            reached = reach(&core, node) => reached,
        };
        match reached {
            Ok(dialled) => return put(&core, node, &peer, dialled),
            Err(trouble) => {
                tracing::debug!(peer = %core.label(&node), %trouble, "not reached for the consensus engine");
                peer.state().trouble = Some(trouble);
            }
        }
        failures += 1;
        let again = started + backoff::delay(failures, chance()).min(REFUSED_REST_MAX);
        tokio::select! {
            biased;
            () = core.stopping.cancelled() => return,
            () = peer.wake.notified() => failures = 0,
            () = tokio::time::sleep_until(again) => {}
        }
    }
}

/// Until nobody has asked for a while.
async fn unwanted(peer: &Peer) {
    loop {
        let until = {
            let state = peer.state();
            let now = Instant::now();
            let until = state.asked.map_or(now, |asked| asked + WANTED);
            if state.waiting == 0 && until <= now {
                return;
            }
            until.max(now + EAGER_MIN)
        };
        tokio::time::sleep_until(until).await;
    }
}

async fn reach(core: &Arc<Core>, node: NodeId) -> Result<Arc<Dialled>, String> {
    let story = |refusal: &Refusal| format!("{} {}", core.label(&node), refusal.story());
    let candidates = core.elsewhere(&node);
    let Some(best) = candidates.first().copied() else {
        return Err(format!("no address of {} is known", core.label(&node)));
    };
    let connection = tokio::select! {
        biased;
        connection = eager(core, node, best) => connection,
        raced = tend::race(core, Protocol::Raft, Some(node), candidates, None) => raced.map_err(|failures| {
            let why = failures.into_iter().next().map_or(Refusal::Needless, |(_, ended)| Refusal::Theirs(ended));
            heed(core, node, &why);
            story(&why)
        })?,
    };
    let greeted = async {
        let (_, hello) = greet::introduce(core, &connection).await?;
        settle(core, &connection, &hello)?;
        Ok(Arc::new(Dialled::new(connection.clone(), hello.incarnation)))
    };
    greeted.await.map_err(|refusal| {
        heed(core, node, &refusal);
        story(&refusal)
    })
}

fn heed(core: &Core, node: NodeId, refusal: &Refusal) {
    if let Refusal::Theirs(ended) = refusal {
        greet::heed(core, node, ended);
    }
}

/// Dials the best address again and again, without waiting long; the first of these dials is the patient one.
async fn eager(core: &Core, node: NodeId, address: SocketAddr) -> Connection {
    let rtt = core.table.current(node).map_or(Duration::ZERO, |link| link.connection.rtt());
    let wait = (rtt * EAGER_ROUND_TRIPS).clamp(EAGER_MIN, EAGER_MAX);
    let mut again = Instant::now() + wait;
    loop {
        tokio::time::sleep_until(again).await;
        again = Instant::now() + wait;
        let dialled = core.endpoint.dial(address, Protocol::Raft, Some(node));
        if let Ok(Ok(connection)) = tokio::time::timeout_at(again, dialled).await {
            return connection;
        }
    }
}

/// Lets in a device that said hello, and gives its run.
pub(super) fn settle(core: &Core, connection: &Connection, theirs: &Hello) -> Result<Incarnation, Refusal> {
    let (peer, run) = (connection.peer(), theirs.incarnation);
    // The roster may have changed while they talked.
    verdict::enter(core.admission(&peer), false).map_err(greet::close(connection))?;
    let noted = core.table.note(peer, run);
    if noted == Noted::Duplicate {
        return Err(greet::turn_away(core, connection, connection.address()));
    }
    connection.admit_questions();
    let mut book = core.book();
    book.learned(peer, Source::Hello, &theirs.addresses);
    book.succeeded(peer, connection.address(), core.now());
    drop(book);
    if noted == Noted::Later {
        core.remember(peer, run);
        greet::warn_anew(&core.label(&peer), run);
    }
    Ok(run)
}

/// Has questions asked on the connection from now on.
fn put(core: &Arc<Core>, node: NodeId, peer: &Arc<Peer>, dialled: Arc<Dialled>) {
    let before = {
        let mut state = peer.state();
        (state.dialling, state.trouble) = (false, None);
        peer.ready.send_replace(Some(Arc::clone(&dialled)))
    };
    if let Some(before) = before {
        before.connection.close(CloseCode::Redundant, "dialled anew");
    }
    crate::runtime::spawn(keep(Arc::clone(core), node, Arc::clone(peer), Arc::clone(&dialled)));
    // Whoever is forgotten after this look finds the connection in its place.
    if core.admission(&node) != Admission::Member {
        dialled.connection.close(CloseCode::NotMember, "not a member any more");
    }
}

/// Sees the connection's end, or ends it when it is not used.
async fn keep(core: Arc<Core>, node: NodeId, peer: Arc<Peer>, dialled: Arc<Dialled>) {
    let ended = loop {
        let until = {
            let state = peer.state();
            let now = Instant::now();
            if state.waiting > 0 { now + UNUSED_MAX } else { state.asked.unwrap_or(now) + UNUSED_MAX }
        };
        tokio::select! {
            biased;
            ended = dialled.connection.ended() => break ended,
            () = tokio::time::sleep_until(until) => {
                let state = peer.state();
                if state.waiting == 0 && state.asked.is_none_or(|asked| asked.elapsed() >= UNUSED_MAX) {
                    drop(state);
                    dialled.connection.close(CloseCode::Done, "the connection is not needed");
                }
            }
        }
    };
    peer.lost(&dialled, format!("{} {ended}", core.label(&node)));
    if ended != Ended::Here {
        tracing::debug!(peer = %core.label(&node), %ended, "a connection of the consensus engine ended");
    }
    greet::heed(&core, node, &ended);
}
