//! Builds a node's parts in order, from the stores up. Nothing listens yet when it is built.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use chappie_mesh::{
    Identity, Incarnation, NodeId,
    consensus::{Carrier, Pace, Unreached, Voting},
};
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Node, OFFLINE_WAIT, StartError,
    desk::DESKS_MAX,
    gate::Gate,
    mesh::{Kept, MeshOpener, Slot, Whereabouts, keep_run, next_run},
};
use crate::{
    broker::{self, Broker, Place},
    config::Config,
    fleet::{
        LocalNode,
        directory::Fleet,
        feed::Receiver,
        line::Line,
        membership::{Membership, OpenFailure},
        office::FleetOffice,
        roll::Roll,
        seat::Seat,
        serve::Incoming,
    },
    host::native::{group, host::NativeHosts, stage},
    sessions::{HostFactory, Record, Sessions},
    storage::{blobs::Blobs, medium::Medium, node::NodeStore},
    tools::{
        Toolbox,
        forward::{Doors, Forwarding},
    },
};

/// Patience on a local network.
const PACE: Pace = Pace { heartbeat_ms: 60, patience_min_ms: 200, patience_max_ms: 400 };

/// Each device's group is its own: it has nobody to ask.
struct Nowhere;

impl Carrier for Nowhere {
    fn ask(&self, _: NodeId, _: Vec<u8>, _: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>> {
        Box::pin(async { Err(Unreached("there is nobody else".into())) })
    }
}

/// What stands below the tools: stores, membership, sessions, and the way to other devices.
struct Ground {
    store: NodeStore,
    run: Incarnation,
    broker: Broker,
    blobs: Blobs,
    membership: Arc<Membership>,
    seat: Seat,
    mesh: Slot,
    line: Line,
    roll: Arc<Roll>,
    sessions: Arc<Sessions>,
}

async fn ground(config: &Config, own: NodeId, stopping: &CancellationToken) -> Result<Ground, StartError> {
    let home = &config.home;
    let store = NodeStore::open(home)?;
    let settings = broker::Settings { cooldown: config.cooldown, offline_wait: OFFLINE_WAIT };
    let run = next_run(&store)?;
    let place = Place {
        medium: Medium::Folder(home.clone()),
        node: own,
        name: config.name.clone(),
        run,
        voting: Voting::Auto,
        carrier: Arc::new(Nowhere),
        pace: PACE,
        member_of: None,
    };
    let broker = Broker::open(place, settings).await?;
    keep_run(&store, run).await?;
    broker.settle_run().await.map_err(OpenFailure::Broker)?;
    let blobs = Blobs::open(&home.join("blobs")).map_err(|cause| StartError::Home { path: home.clone(), cause })?;
    sweep(home).await;
    let membership = Membership::open(own, &config.name, store.clone(), broker.clone()).await?;
    let seat = Seat::fixed(own, membership.seated());
    let mesh = Slot::default();
    let line = Line::new(Arc::new(MeshOpener(Arc::clone(&mesh))), membership.rosters(), stopping.clone());
    let roll = Roll::new(own, broker.clone(), Arc::new(Kept(store.clone())));
    roll.recall(membership.roster().members.keys());
    let office = FleetOffice::new(seat.clone(), broker.clone(), Arc::clone(&roll), line.clone());
    let factory = factory(home, &blobs);
    let sessions = Sessions::open(home, store.clone(), Arc::new(office), factory, stopping.clone()).await?;
    Ok(Ground { store, run, broker, blobs, membership, seat, mesh, line, roll, sessions })
}

/// The parts of a node, its sessions open.
pub(super) async fn node(
    config: Config,
    identity: Arc<Identity>,
    stopping: CancellationToken,
) -> Result<Arc<Node>, StartError> {
    let own = identity.node_id();
    let Ground { store, run, broker, blobs, membership, seat, mesh, line, roll, sessions } =
        ground(&config, own, &stopping).await?;
    let local = LocalNode::new(Arc::clone(&sessions), blobs.clone(), config.name.clone());
    let connected = watch::Sender::default();
    let fleet = Fleet::new(Arc::clone(&roll), local.clone(), line.clone(), seat.clone(), connected.subscribe());
    let (budget, cooldown) = (config.call_budget, config.cooldown);
    let office = Arc::new(seat.clone());
    let toolbox = Arc::new(Toolbox::new(broker.clone(), fleet.clone(), office, budget, cooldown));
    let forwarding =
        Forwarding::new(seat.clone(), toolbox.clone(), Arc::clone(&fleet), broker.clone(), line.clone(), budget);
    let doors = Doors::new(toolbox, Arc::clone(&fleet), broker.clone(), seat.clone(), line.clone());
    let whereabouts = Arc::new(Whereabouts(Arc::clone(&mesh)));
    let feeds = Receiver::new(roll, membership.rosters(), connected.subscribe(), whereabouts, line.clone());
    let incoming = Incoming::new(local, broker.clone(), Arc::new(doors), feeds, seat.clone(), line.clone());
    let gate = Arc::new(Gate::new(forwarding, Arc::clone(&membership)));
    let node = Arc::new(Node {
        config,
        identity,
        store,
        run,
        broker,
        sessions,
        blobs,
        membership,
        seat,
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
    if node.is_broker() {
        node.sessions.reconcile().await.map_err(StartError::Reconcile)?;
    }
    Ok(node)
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
