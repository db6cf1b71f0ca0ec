//! One task for each member: it keeps a connection while one is wanted, and closes one that nobody uses. And one for
//! the places that the owner named, where it is not known who is there.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{sync::Notify, time::Instant};

use super::{
    backoff,
    core::{Core, chance},
    greet::{self, Refusal, greet_dialled},
};
use crate::{
    api::PeerState,
    discovery::HostPort,
    identity::{Admission, NodeId},
    transport::{Connection, Ended, Protocol},
    wire::CloseCode,
};

/// Between the starts of two dials to the same device: the better address has the time to answer on a LAN.
const STAGGER: Duration = Duration::from_millis(150);
/// An address that is being dialled is dialled once more when there is news of the device, but not sooner than this.
const DIALLED_AGAIN: Duration = Duration::from_millis(300);
/// Dials to one device at a time: all of its addresses, and some of them twice.
const DIALS_MAX: usize = 32;
/// A connection that nobody uses and nobody has to keep is closed after this.
const UNUSED_MAX: Duration = Duration::from_secs(60);
/// A connection that lasted this long was one; a shorter one counts as a dial in vain.
const SETTLED: Duration = Duration::from_secs(5);
/// A name is resolved within this, or another time.
const RESOLVED_WITHIN: Duration = Duration::from_secs(5);
/// Addresses of one name that are dialled.
const RESOLVED_MAX: usize = 8;

/// Starts a task for every member that has none.
pub(super) fn tend_members(core: &Arc<Core>) {
    for peer in core.roster().members.keys().copied().filter(|peer| *peer != core.node) {
        if core.table.take_care(peer) {
            crate::runtime::spawn(tend(Arc::clone(core), peer));
        }
    }
}

async fn tend(core: Arc<Core>, peer: NodeId) {
    let wake = core.table.wake(peer);
    let mut failures = 0;
    while core.admission(&peer) == Admission::Member && !core.stopping.is_cancelled() {
        if core.table.usable(peer).is_some() {
            let linked = Instant::now();
            while core.table.usable(peer).is_some() && !core.stopping.is_cancelled() {
                watch(&core, peer, &wake).await;
            }
            if linked.elapsed() >= SETTLED {
                failures = 0;
                continue;
            }
            // It let us in and closed at once, and may do so again: dialled without a pause this would go round and round.
            failures += 1;
            let trouble = core.table.trouble(peer).unwrap_or_default();
            rest(&core, peer, &wake, failures, trouble, Woken::ByItsDial).await;
        } else if !core.is_kept(&peer) && !core.table.is_demanded(peer) {
            core.table.set_state(peer, PeerState::Idle, None);
            wake.notified().await;
        } else {
            match reach(&core, peer, &wake).await {
                Outcome::Linked => {}
                Outcome::NoAddress => {
                    core.table.set_state(peer, PeerState::Unknown, None);
                    wake.notified().await;
                }
                Outcome::Failed(trouble) => {
                    failures += 1;
                    tracing::debug!(peer = %core.label(&peer), %trouble, failures, "dialled in vain");
                    if rest(&core, peer, &wake, failures, trouble, Woken::ByAnything).await {
                        failures = 0;
                    }
                }
            }
        }
    }
    core.table.leave(peer);
}

/// What ends a rest between two dials early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// A new address, a caller, or the peer's own dial: reasons to begin again at once.
    ByAnything,
    /// The peer's own dial only.
    ByItsDial,
}

/// Rests before the next dial; gives whether it was woken.
async fn rest(core: &Arc<Core>, peer: NodeId, wake: &Notify, failures: u32, trouble: String, by: Woken) -> bool {
    let wait = backoff::delay(failures, chance());
    let until = tokio::time::Instant::now() + wait;
    let retry_in_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    core.table.set_state(peer, PeerState::Waiting { retry_in_ms }, Some(trouble));
    loop {
        if tokio::time::timeout_at(until, wake.notified()).await.is_err() {
            return false;
        }
        let gone = || core.admission(&peer) != Admission::Member || core.stopping.is_cancelled();
        if by == Woken::ByAnything || core.table.usable(peer).is_some() || gone() {
            return true;
        }
    }
}

/// Waits while there is a connection, and gives it up when nobody uses it.
async fn watch(core: &Arc<Core>, peer: NodeId, wake: &Notify) {
    if core.is_kept(&peer) || core.table.is_demanded(peer) {
        wake.notified().await;
        return;
    }
    // Looked at twice in the time: what was unused both times, and in between as far as anybody saw, is not needed.
    let half = || tokio::time::timeout(UNUSED_MAX / 2, wake.notified());
    let unused = || core.table.usable(peer).filter(|link| !link.is_used());
    if half().await.is_err()
        && unused().is_some()
        && half().await.is_err()
        && let Some(link) = unused().filter(|_| !core.is_kept(&peer))
    {
        link.retire(CloseCode::Done);
        wake.notified().await;
    }
}

enum Outcome {
    Linked,
    NoAddress,
    Failed(String),
}

/// Dials every address of `peer` until one of them is it, or it has dialled us.
async fn reach(core: &Arc<Core>, peer: NodeId, wake: &Notify) -> Outcome {
    let candidates = core.elsewhere(&peer);
    if candidates.is_empty() {
        return Outcome::NoAddress;
    }
    core.table.set_state(peer, PeerState::Connecting, None);
    let mut connected = core.table.connected();
    let linked = async {
        if core.table.current(peer).is_some() {
            // It is given up, and a new one is wanted.
            return std::future::pending().await;
        }
        // An error means that the table is gone, and then nobody asks.
        drop(connected.wait_for(|connected| connected.contains(&peer)).await);
    };
    // Given up when the peer's own dial came first, but not once hello was said: the other side may count on it then, and
    // if both sides gave theirs up there would be none.
    let raced = tokio::select! {
        biased;
        raced = race(core, Protocol::Mesh, Some(peer), candidates, Some(wake)) => raced,
        () = linked => return Outcome::Linked,
    };
    let result = match raced {
        Ok(connection) => greet_dialled(core, connection).await,
        Err(failures) => {
            let first = failures.into_iter().next();
            Err(first.map_or(Refusal::Needless, |(_, ended)| Refusal::Theirs(ended)))
        }
    };
    match result {
        Ok(_) | Err(Refusal::Needless) => Outcome::Linked,
        Err(refusal) => {
            if let Refusal::Theirs(ended) = &refusal {
                greet::heed(core, peer, ended);
            }
            Outcome::Failed(format!("{} {}", core.label(&peer), refusal.story()))
        }
    }
}

/// Dials the addresses one after the other, without waiting long for each; gives the first that answers, or what went
/// wrong with each, the first one's first. Whenever `news` comes, what is known of the device now is dialled as well.
pub(super) async fn race(
    core: &Arc<Core>,
    protocol: Protocol,
    expected: Option<NodeId>,
    addresses: Vec<SocketAddr>,
    news: Option<&Notify>,
) -> Result<Connection, Vec<(SocketAddr, Ended)>> {
    let mut waiting = VecDeque::from(addresses);
    let mut begun = BTreeMap::new();
    let mut dials = FuturesUnordered::new();
    let mut failures = Vec::new();
    let mut next = Instant::now();
    loop {
        let may_start = !waiting.is_empty();
        if dials.is_empty() && !may_start {
            return Err(failures);
        }
        let told = async {
            match news {
                Some(news) => news.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some((address, result)) = dials.next(), if !dials.is_empty() => match result {
                Ok(connection) => return Ok(connection),
                Err(ended) => {
                    if let Some(expected) = &expected {
                        core.book().failed(expected, &address, core.now());
                    }
                    // What refuses is there: the reason that counts.
                    let at = if matches!(ended, Ended::Closed { .. }) { 0 } else { failures.len() };
                    failures.insert(at, (address, ended));
                    next = Instant::now();
                }
            },
            () = told => {
                let known = expected.map(|expected| core.elsewhere(&expected)).unwrap_or_default();
                let due = |address: &SocketAddr| {
                    begun.get(address).is_none_or(|begun: &Instant| begun.elapsed() >= DIALLED_AGAIN)
                };
                // The first packet may have come before the device was there, and the next one is far off.
                let room = DIALS_MAX.saturating_sub(dials.len());
                waiting = known.into_iter().filter(due).take(room).collect();
                next = Instant::now();
            }
            () = tokio::time::sleep_until(next), if may_start => {
                if let Some(address) = waiting.pop_front() {
                    begun.insert(address, Instant::now());
                    dials.push(async move { (address, core.endpoint.dial(address, protocol, expected).await) });
                }
                next = Instant::now() + STAGGER;
            }
        }
    }
}

/// Dials the places that the owner named, whoever is there, as long as somebody who is wanted is not connected.
pub(super) async fn tend_places(core: Arc<Core>) {
    let mut connected = core.table.connected();
    // One receiver for all turns: a new one has not seen the changes so far, and would wait for none.
    let mut rosters = core.rosters();
    let mut failures = 0;
    while !core.stopping.is_cancelled() {
        rosters.mark_unchanged();
        let now = Arc::clone(&connected.borrow_and_update());
        let places = core.book().places(&now);
        if places.is_empty() || !is_lonely(&core, &now) {
            failures = 0;
            tokio::select! {
                biased;
                changed = connected.changed() => if changed.is_err() { return },
                changed = rosters.changed() => if changed.is_err() { return },
                () = core.stopping.cancelled() => return,
            }
            continue;
        }
        for place in places {
            if let Err(trouble) = visit(&core, &place).await {
                // Said once for each absence; the owner named the place and should know.
                if failures == 0 {
                    tracing::warn!(%place, %trouble, "nobody of this mesh was met at an address to connect to; it is tried again");
                } else {
                    tracing::debug!(%place, %trouble, failures, "nobody was met at an address to connect to");
                }
            }
        }
        failures += 1;
        tokio::select! {
            biased;
            () = tokio::time::sleep(backoff::delay(failures, chance())) => {}
            changed = connected.changed() => if changed.is_err() { return },
            () = core.stopping.cancelled() => return,
        }
    }
}

/// Whether somebody is missing to whom a connection is always kept.
fn is_lonely(core: &Core, connected: &std::collections::BTreeSet<NodeId>) -> bool {
    let roster = core.roster();
    roster.members.keys().any(|peer| *peer != core.node && core.is_kept(peer) && !connected.contains(peer))
}

async fn visit(core: &Arc<Core>, place: &HostPort) -> Result<(), String> {
    let lookup = tokio::net::lookup_host((place.host.clone(), place.port));
    let found = tokio::time::timeout(RESOLVED_WITHIN, lookup)
        .await
        .map_err(|_| "the name was not resolved in time".to_owned())?;
    let found = found.map_err(|error| error.to_string())?;
    let addresses: Vec<SocketAddr> =
        found.filter(|address| core.endpoint.reaches(*address)).take(RESOLVED_MAX).collect();
    let known =
        core.table.links().into_iter().find(|link| link.is_open() && addresses.contains(&link.connection.address()));
    if let Some(link) = known {
        core.book().met(place, link.peer(), link.connection.address(), core.now());
        return Ok(());
    }
    let first = |failures: Vec<(SocketAddr, Ended)>| {
        failures.first().map_or_else(|| "no address".to_owned(), |f| f.1.to_string())
    };
    let connection = race(core, Protocol::Mesh, None, addresses, None).await.map_err(first)?;
    let (peer, address) = (connection.peer(), connection.address());
    match greet_dialled(core, connection).await {
        Ok(_) | Err(Refusal::Needless) => {
            core.book().met(place, peer, address, core.now());
            Ok(())
        }
        Err(refusal) => {
            if let Refusal::Theirs(ended) = &refusal {
                greet::heed(core, peer, ended);
            }
            Err(format!("{} {}", peer.short(), refusal.story()))
        }
    }
}
