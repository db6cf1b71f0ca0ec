//! Builds a node's parts in order, from the stores up. Nothing listens yet when it is built.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use chappie_mesh::{Incarnation, consensus::Pace};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Node, OFFLINE_WAIT, Outside, StartError,
    desk::DESKS_MAX,
    gate::Gate,
    mesh::{Kept, MeshOpener, RaftCarrier, Slot, Whereabouts},
};
use crate::{
    broker::{self, Broker, Place},
    clock,
    config::Config,
    fleet::{
        LocalNode,
        directory::Fleet,
        feed::Receiver,
        line::Line,
        membership::{Membership, Remembered},
        office::FleetOffice,
        roll::Roll,
        seat::Seat,
        serve::Incoming,
    },
    host::native::{group, host::NativeHosts, stage},
    sessions::{HostFactory, Record, Sessions},
    storage::{
        blobs::Blobs,
        footing::Footing,
        medium::Medium,
        node::{Change, Key, NodeStore, StoreError},
    },
    tools::{
        Toolbox,
        forward::{Doors, Forwarding},
    },
};

/// What stands below the tools: stores, membership, sessions, and the way to other devices.
struct Ground {
    store: NodeStore,
    broker: Broker,
    blobs: Blobs,
    membership: Arc<Membership>,
    seat: Seat,
    run: Incarnation,
    mesh: Slot,
    line: Line,
    roll: Arc<Roll>,
    office: Arc<FleetOffice>,
    sessions: Arc<Sessions>,
}

async fn ground(
    config: &Config,
    outside: &Outside,
    with_mesh: bool,
    stopping: &CancellationToken,
) -> Result<Ground, StartError> {
    let (home, own) = (&config.home, outside.identity.node_id());
    let store = NodeStore::open_on(&outside.medium)?;
    let remembered = Remembered::read(&store, &own).await?;
    let Beginning { run, footing, rows } = begins(&store, &outside.medium)?;
    let mesh = Slot::default();
    let settings = broker::Settings { cooldown: config.cooldown, offline_wait: OFFLINE_WAIT };
    let place = Place {
        medium: outside.medium.clone(),
        node: own,
        name: config.name.clone(),
        run,
        voting: config.voter,
        sounds: with_mesh,
        member_of: remembered.member_of(),
        carrier: Arc::new(RaftCarrier(Arc::clone(&mesh))),
        pace: Pace::LAN,
    };
    let broker = open_broker(place, settings).await?;
    // Written down before anybody hears of it (F15); in both stores, so that one that is put back alone is noticed.
    store.durable(rows).await?;
    footing.settle(&outside.medium);
    broker.settle_run().await.map_err(StartError::Run)?;
    let blobs = Blobs::open(&home.join("blobs")).map_err(|cause| StartError::Home { path: home.clone(), cause })?;
    if let Medium::Folder(home) = &outside.medium {
        sweep(home).await;
    }
    let membership = Membership::open(own, &config.name, store.clone(), broker.clone(), remembered).await?;
    let seat = Seat::new(own, broker.standing(), membership.rosters());
    let line = Line::new(Arc::new(MeshOpener(Arc::clone(&mesh))), membership.rosters(), stopping.clone());
    let roll = Roll::new(own, broker.clone(), Arc::new(Kept(store.clone())));
    roll.recall(membership.roster().members.keys());
    let office = Arc::new(FleetOffice::new(seat.clone(), broker.clone(), Arc::clone(&roll), line.clone()));
    let factory = outside.hosts.clone().unwrap_or_else(|| factory(home, &blobs));
    let sessions = Sessions::open(home, store.clone(), office.clone(), factory, stopping.clone()).await?;
    Ok(Ground { store, broker, blobs, membership, seat, run, mesh, line, roll, office, sessions })
}

/// The parts of a node, its sessions open. `with_mesh`: the mesh is started with it.
pub(super) async fn node(
    config: Config,
    outside: Outside,
    with_mesh: bool,
    stopping: CancellationToken,
) -> Result<Arc<Node>, StartError> {
    let Ground { store, broker, blobs, membership, seat, run, mesh, line, roll, office, sessions } =
        ground(&config, &outside, with_mesh, &stopping).await?;
    let local = LocalNode::new(Arc::clone(&sessions), blobs.clone(), config.name.clone());
    let connected = watch::Sender::default();
    let fleet = Fleet::new(Arc::clone(&roll), local.clone(), line.clone(), seat.clone(), connected.subscribe());
    let (budget, cooldown) = (config.call_budget, config.cooldown);
    let toolbox = Arc::new(Toolbox::new(broker.clone(), fleet.clone(), Arc::new(broker.clone()), budget, cooldown));
    let forwarding =
        Forwarding::new(seat.clone(), toolbox.clone(), Arc::clone(&fleet), broker.clone(), line.clone(), budget);
    let doors = Doors::new(toolbox, Arc::clone(&fleet), broker.clone(), seat.clone(), line.clone());
    let whereabouts = Arc::new(Whereabouts(Arc::clone(&mesh)));
    let feeds = Receiver::new(roll, membership.rosters(), connected.subscribe(), whereabouts, line.clone());
    let incoming = Incoming::new(local, broker.clone(), Arc::new(doors), feeds, seat.clone(), line.clone());
    let gate = Arc::new(Gate::new(forwarding, Arc::clone(&membership)));
    let node = Arc::new(Node {
        config,
        identity: outside.identity,
        sockets: outside.sockets,
        store,
        broker,
        sessions,
        office,
        blobs,
        membership,
        seat,
        run,
        mesh,
        line,
        connected,
        fleet,
        incoming,
        gate,
        duplicates: Mutex::new(BTreeMap::new()),
        news: watch::Sender::default(),
        desks: Semaphore::new(DESKS_MAX),
        stopping,
    });
    for spec in &node.config.sessions {
        node.sessions.create(&spec.dir, spec.name.clone()).await?;
    }
    Ok(node)
}

/// Opens the log. One that is damaged is put aside where other devices have the same: this one comes back without a vote and
/// takes everything over from them (F15).
async fn open_broker(place: Place, settings: broker::Settings) -> Result<Broker, StartError> {
    match Broker::open(place.clone(), settings).await {
        Err(broker::OpenError::Damaged { path, cause }) if place.member_of.is_some() => {
            let aside = aside(&path).map_err(|cause| StartError::Home { path: path.clone(), cause })?;
            tracing::warn!(cause, aside = %aside.display(), "this device's log is damaged: it takes it over from the others anew");
            Ok(Broker::open(place, settings).await?)
        }
        opened => Ok(opened?),
    }
}

/// Moves a damaged store to the first free name.
fn aside(path: &Path) -> std::io::Result<PathBuf> {
    let named = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{n}.bak"));
        PathBuf::from(name)
    };
    let free = (1..).map(named).find(|path| !path.exists()).ok_or(std::io::ErrorKind::AlreadyExists)?;
    std::fs::rename(path, &free)?;
    Ok(free)
}

/// Which run of this device begins, and what the node's store has to say of it before anybody hears of it (F15).
struct Beginning {
    run: Incarnation,
    footing: Footing,
    rows: Vec<Change>,
}

/// A home that is a copy, or was put back from one, may be older than what it promised and what it ran: it begins anew, as
/// another member of its group, and its journal does not say any more that what it does not know never ran.
fn begins(store: &NodeStore, medium: &Medium) -> Result<Beginning, StoreError> {
    let before: Option<Incarnation> = store.read(&Key::incarnation())?;
    let kept: Option<Footing> = store.read(&Key::footing())?;
    let copied = kept.is_some_and(|kept| kept.is_left(medium));
    let run = next_run(before.as_ref(), copied, clock::random());
    let footing = Footing::take(medium, &run.nonce);
    let mut rows = vec![Change::set(Key::incarnation(), &run), Change::set(Key::footing(), &footing)];
    if copied {
        tracing::warn!(
            "this home is a copy of another one, or was put back from a backup: the device begins anew as a member of its \
             mesh, and of work that was under way it does not say that it never ran. If the other home is still in use, \
             give this one an identity of its own with chappie reset-identity"
        );
        rows.push(Change::set(Key::journal_since(), &clock::now()));
    }
    Ok(Beginning { run, footing, rows })
}

fn next_run(before: Option<&Incarnation>, copied: bool, nonce: [u8; 16]) -> Incarnation {
    match before {
        None => Incarnation::first(nonce),
        Some(before) if copied => before.anew(nonce),
        Some(before) => before.next(nonce),
    }
}

/// Ends what a killed node left running, and removes what it left half written.
async fn sweep(home: &Path) {
    let home = home.to_owned();
    let swept = chappie_mesh::runtime::blocking(move || {
        for group in group::sweep(&home) {
            tracing::info!(?group, "ended what an interrupted call left running");
        }
        if let Err(error) = stage::sweep(&home) {
            tracing::warn!(%error, "half-written files of an earlier run may be left");
        }
    });
    if let Err(error) = swept.await {
        tracing::error!(%error, "leftovers of an earlier run could not be swept");
    }
}

/// Makes native hosts that share one set of path locks.
fn factory(home: &Path, blobs: &Blobs) -> HostFactory {
    let user_home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let hosts = NativeHosts::new(home, &user_home, blobs.clone());
    Arc::new(move |record: &Record| hosts.host(&record.id, &record.cwd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Millis;

    #[tokio::test]
    async fn f15_a_copied_home_begins_another_chain_of_starts_and_says_that_its_journal_may_have_gaps() {
        let home = tempfile::tempdir().unwrap();
        let medium = Medium::Folder(home.path().to_owned());
        let store = NodeStore::open(home.path()).unwrap();
        let since = || store.read::<Millis>(&Key::journal_since()).unwrap();
        let mut runs = Vec::new();
        for copied in [false, false, false, true, false] {
            if copied {
                let lost: Footing = store.read(&Key::footing()).unwrap().unwrap();
                Footing::default().settle(&medium);
                assert!(lost.is_left(&medium));
            }
            let Beginning { run, footing, rows } = begins(&store, &medium).unwrap();
            store.durable(rows).await.unwrap();
            footing.settle(&medium);
            runs.push((run.is_anew(), run.generation % (1 << 32), since().is_some()));
        }
        let whole = |generation| (false, generation, false);
        assert_eq!(runs, [whole(1), whole(2), whole(3), (true, 1, true), (false, 2, true)]);
    }
}
