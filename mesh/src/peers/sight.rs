//! Takes what mDNS sees into the address book, and has it announce the mesh this device belongs to. Who is seen is not
//! trusted for it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::core::Core;
use crate::discovery::{Mdns, Sighting, Source};

/// Sightings that wait to be taken; mDNS keeps the rest.
const SIGHTINGS: usize = 64;

/// Runs mDNS until the mesh stops.
pub(crate) async fn sight(core: Arc<Core>) {
    let bound = core.endpoint.address();
    if bound.ip().is_loopback() {
        // Nobody on a link could dial it.
        return;
    }
    let (sightings, mut seen) = mpsc::channel(SIGHTINGS);
    let mut mesh = core.roster().mesh;
    let mdns = match Mdns::start(core.node, mesh, bound.port(), sightings) {
        Ok(mdns) => mdns,
        Err(error) => return tracing::warn!("{error}"),
    };
    let mut rosters = core.rosters();
    loop {
        tokio::select! {
            () = core.stopping.cancelled() => break,
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
