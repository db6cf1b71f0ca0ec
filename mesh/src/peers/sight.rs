//! Takes what mDNS sees into the address book, and has it announce the mesh this device belongs to. Who is seen is not
//! trusted for it.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::MissedTickBehavior};

use super::core::Core;
use crate::discovery::{Mdns, Sighting, Source};

/// Sightings that wait to be taken; mDNS keeps the rest.
const SIGHTINGS: usize = 64;

/// How often this device's own addresses are looked at; a change is healed within 30 s (design section 6).
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Runs mDNS until the mesh stops. It begins anew when this device's addresses changed: an interface that loses its last
/// IPv4 address takes the system's memberships of its multicast groups with it, and a socket that joined before hears
/// nothing more and cannot join again (Linux, `ip_mc_destroy_dev`).
pub(crate) async fn sight(core: Arc<Core>) {
    let bound = core.endpoint.address();
    if bound.ip().is_loopback() {
        // Nobody on a link could dial it.
        return;
    }
    let (sightings, mut seen) = mpsc::channel(SIGHTINGS);
    let mut mesh = core.roster().mesh;
    let start = |mesh| match Mdns::start(core.node, mesh, bound.port(), sightings.clone()) {
        Ok(mdns) => Some(mdns),
        Err(error) => {
            tracing::warn!("{error}");
            None
        }
    };
    let Some(mut mdns) = start(mesh) else { return };
    let mut rosters = core.rosters();
    let mut addresses = core.own_addresses();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = core.stopping.cancelled() => break,
            _ = look.tick() => {
                let now = core.own_addresses();
                if now == addresses {
                    continue;
                }
                addresses = now;
                tracing::debug!(?addresses, "this device has other addresses now");
                let Some(anew) = start(mesh) else { continue };
                let old = std::mem::replace(&mut mdns, anew);
                // It waits for its goodbye, which belongs to a name of its own.
                drop(tokio::task::spawn_blocking(move || old.stop()));
            }
            changed = rosters.changed() => {
                if changed.is_err() {
                    break;
                }
                let now = core.roster().mesh;
                if now != mesh {
                    mesh = now;
                    mdns.retag(mesh);
                }
            }
            sighting = seen.recv() => match sighting {
                Some(Sighting::Seen { node, addresses }) => {
                    tracing::debug!(peer = %core.label(&node), ?addresses, "seen on the network");
                    core.learned(node, Source::Mdns, &addresses);
                    // It is there now, at whatever address: no reason to wait with the next dial.
                    if core.table.usable(node).is_none() {
                        core.table.poke(node);
                    }
                }
                Some(Sighting::Lost { node }) => core.book().lost(&node),
                None => break,
            },
        }
    }
    // It waits for its goodbye; an error means that the program ends anyway.
    drop(tokio::task::spawn_blocking(move || mdns.stop()).await);
}
