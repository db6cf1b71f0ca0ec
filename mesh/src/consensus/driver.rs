//! Watches the engine and says how the group stands: who leads, and whether this member holds the office.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use openraft::ServerState;
use openraft_rt::WatchReceiver as _;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    api::Standing,
    office::View,
    shared::{Metrics, Shared},
    types::Raft,
};

/// What the log may weigh in memory, in bytes: beyond it a snapshot is taken although few entries have come. Half of what
/// the replicated state may weigh (failure rule F26).
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Between two snapshots that the log's weight asks for.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(5);

/// How late watchers may hear of what changes all the time: how far the log is, and how members keep up. The engine says
/// so at every command and every tick.
const MINOR_PAUSE: Duration = Duration::from_millis(100);

/// Runs until the engine ends.
pub(super) async fn drive(shared: Arc<Shared>) {
    let mut data = shared.raft.data_metrics();
    let mut server = shared.raft.server_metrics();
    let mut taking: Option<BoxFuture<'static, Option<u64>>> = None;
    let mut snapshot_at = Instant::now();
    loop {
        let metrics = shared.metrics();
        if metrics.running_state.is_err() {
            break;
        }
        shared.raft.runtime_config().tick(needs_tick(&shared, &metrics));
        let view = shared.view(&metrics);
        match view.leads {
            None => taking = None,
            Some(term) if view.taken != Some(term) && taking.is_none() => {
                taking = Some(Box::pin(take(Arc::clone(&shared))));
            }
            Some(_) => {}
        }
        let standing = shared.picture(&metrics);
        let hurry = view.leads.is_some() && standing.office.is_none();
        shared.standing.send_if_modified(|before| {
            let news = **before != standing;
            *before = Arc::new(standing);
            news
        });
        if shared.log.bytes() > LOG_BYTES_MAX && snapshot_at <= Instant::now() {
            snapshot_at = Instant::now() + SNAPSHOT_PAUSE;
            shrink(&shared.raft, &metrics).await;
        }
        let pause = if hurry { Duration::ZERO } else { MINOR_PAUSE };
        let minor = async {
            sleep(pause).await;
            data.changed().await
        };
        let wake = wake(&shared, &metrics, &view);
        tokio::select! {
            biased;
            changed = server.changed() => if changed.is_err() { break },
            () = shared.kick.notified() => {}
            term = async { match &mut taking { Some(take) => take.await, None => std::future::pending().await } } => {
                taking = None;
                if let Some(term) = term {
                    shared.taken(term);
                }
            }
            () = async { match wake { Some(wake) => sleep_until(wake).await, None => std::future::pending().await } } => {}
            changed = minor => if changed.is_err() { break },
        }
    }
    end(&shared);
}

/// Whether the engine needs its tick, eighty times a second: to notice that the leader is gone, or to give signs of life.
/// A device alone and one that does not vote need neither, and sleep.
fn needs_tick(shared: &Shared, metrics: &Metrics) -> bool {
    let members = &metrics.membership_config;
    let votes = |mut voters: Box<dyn Iterator<Item = _> + '_>| voters.any(|id| id == shared.own);
    let voter =
        votes(Box::new(members.voter_ids())) || votes(Box::new(metrics.committed_membership_config.voter_ids()));
    let leads_alone = metrics.state == ServerState::Leader && members.nodes().count() == 1;
    voter && !leads_alone
}

/// The last word: nothing is done here any more, and why.
fn end(shared: &Shared) {
    let metrics = shared.metrics();
    let trouble = shared.writer.failed().or_else(|| match &metrics.running_state {
        Err(openraft::errors::Fatal::Stopped) | Ok(()) => None,
        Err(fatal) => Some(fatal.to_string()),
    });
    let standing = Standing { leader: None, office: None, trouble, ..shared.picture(&metrics) };
    shared.standing.send_replace(Arc::new(standing));
}

/// Tries to take the office; the term when it succeeded.
async fn take(shared: Arc<Shared>) -> Option<u64> {
    match timeout(shared.pace.silence(), shared.read_index()).await {
        Ok(Ok(term)) => Some(term),
        Ok(Err(_)) | Err(_) => {
            tokio::time::sleep(shared.pace.heartbeat()).await;
            None
        }
    }
}

/// A snapshot now, and what the last one has is dropped. A failure ends the engine, which says so itself.
async fn shrink(raft: &Raft, metrics: &Metrics) {
    let _ = raft.trigger().snapshot().await;
    if let Some(snapshot) = &metrics.snapshot {
        let _ = raft.trigger().purge_log(snapshot.index).await;
    }
}

/// When time alone changes how the group stands.
fn wake(shared: &Shared, metrics: &Metrics, view: &View) -> Option<Instant> {
    let now = Instant::now();
    let lapse = view.lapses_in(shared.pace.lease()).map(|left| now + left);
    let silent = match view.leads {
        Some(_) => None,
        None => shared.heard_at().map(|at| at + shared.silence(metrics)),
    };
    // Not in the past: what has lapsed is said already.
    let silent = silent.filter(|at| *at >= now).map(|at| at + Duration::from_millis(1));
    [lapse, silent].into_iter().flatten().min()
}
