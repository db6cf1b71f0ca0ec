//! Composition root: builds everything in order, stops it in reverse. The only place that constructs and stops things.

mod belonging;
mod build;
mod commands;
mod desk;
mod gate;
mod mesh;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use chappie_mesh::{
    Duplicate, Identity, IdentityError, Incarnation, MeshError, NodeId, Sockets, consensus::Standing, runtime as seam,
};
use serde::Serialize;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    broker::{self, Broker},
    config::Config,
    control::{Commands, Server, SessionRow, SocketError},
    doors::http::{self, HttpDoor},
    fleet::{
        directory::Fleet, line::Line, membership::Membership, office::FleetOffice, reannounce, seat::Seat,
        serve::Incoming,
    },
    sessions::{DirectoryError, HostFactory, Sessions},
    storage::{
        blobs::Blobs,
        medium::Medium,
        node::{NodeStore, StoreError},
        pair::{self, PairError},
    },
    tools::Surface,
};

/// How long a selection waits for a session to come online. The guide says 5 s, which is when the caller shall have its
/// answer: what it takes to bring it there is left over.
const OFFLINE_WAIT: Duration = Duration::from_millis(4_800);
/// Threads of the runtime. One handles the doors while the other runs a host; more only add wake-ups between cores.
const WORKERS: usize = 2;

/// Which ways in are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doors {
    /// MCP over HTTP and the control socket.
    All,
    /// The control socket only: one client brings its own pair of pipes, and other commands find the node.
    Control,
    /// Neither: a command works in this process and leaves.
    None,
}

/// Why a node did not start. Nothing of it runs then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The home folder cannot be used.
    #[error("cannot use {path} as CHAPPIE_HOME: {cause}")]
    Home {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The node's key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The node's store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One of the two stores is lost.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// The broker's store.
    #[error(transparent)]
    Broker(#[from] broker::OpenError),
    /// This start could not be written down.
    #[error("this start could not be recorded: {0}")]
    Run(broker::ProposeError),
    /// A session of the command line.
    #[error(transparent)]
    Session(#[from] DirectoryError),
    /// The mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The MCP address.
    #[error("cannot listen on {address} for MCP: {cause}; choose another address with --mcp, port 0 takes a free one")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
}

/// The line that `up` prints once the node serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadyLine {
    /// Always true.
    pub ready: bool,
    /// The node's id in full.
    pub node: String,
    /// Where MCP is served.
    pub mcp: Option<String>,
    /// Where the mesh listens, over UDP; `None` when it does not run.
    pub quic: Option<String>,
    /// The sessions.
    pub sessions: Vec<SessionRow>,
}

/// A running node.
pub struct App {
    node: Arc<Node>,
    stopping: CancellationToken,
    http: Option<HttpDoor>,
    control: Option<JoinHandle<()>>,
    /// What is done in the background for the mesh.
    tasks: TaskTracker,
}

/// What a node stands on: a machine's own, or a simulated one's.
pub struct Outside {
    /// Its key.
    pub identity: Arc<Identity>,
    /// Where its stores are.
    pub medium: Medium,
    /// The network; `None`: the system's.
    pub sockets: Option<Arc<dyn Sockets>>,
    /// What runs its tools; `None`: native hosts.
    pub hosts: Option<HostFactory>,
}

/// What commands act on.
pub(crate) struct Node {
    config: Config,
    identity: Arc<Identity>,
    sockets: Option<Arc<dyn Sockets>>,
    store: NodeStore,
    broker: Broker,
    sessions: Arc<Sessions>,
    /// The broker, wherever it is, as the sessions know it.
    office: Arc<FleetOffice>,
    blobs: Blobs,
    membership: Arc<Membership>,
    seat: Seat,
    /// Which run of this device this is.
    run: Incarnation,
    mesh: mesh::Slot,
    line: Line,
    /// Who is connected, as the parts know it that were built before the mesh ran.
    connected: watch::Sender<mesh::Nodes>,
    fleet: Arc<Fleet>,
    incoming: Arc<Incoming>,
    /// The tools as this device's own doors offer them.
    gate: Arc<gate::Gate>,
    /// What the broker said last of members, until it is taken over.
    news: watch::Sender<Option<mesh::News>>,
    /// Questions of members that are answered at one time.
    desks: Semaphore,
    /// Second devices with one identity, and when each was last noticed.
    duplicates: Mutex<BTreeMap<NodeId, (Instant, Duplicate)>>,
    stopping: CancellationToken,
}

/// The runtime that `main` runs everything on.
///
/// # Errors
/// What the system says when it gives no threads.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()
}

impl App {
    /// Starts a node: home, key, leftovers of a crash, stores, sessions, doors.
    ///
    /// # Errors
    /// [`StartError`]; what was started before is stopped again.
    pub async fn start(config: Config, doors: Doors) -> Result<Self, StartError> {
        let home = config.home.clone();
        let identity = Arc::new(Identity::load_or_create(&home)?);
        let control = match doors {
            Doors::All | Doors::Control => Some(Server::bind(&home).await?),
            Doors::None => None,
        };
        pair::check(&home)?;
        let address = config.mcp;
        let outside = Outside { identity, medium: Medium::Folder(home), sockets: None, hosts: None };
        let mut app = Self::assemble(config, outside, doors != Doors::None).await?;
        if doors == Doors::All {
            match http::serve(app.surface(), address, app.stopping.child_token()).await {
                Ok(door) => app.http = Some(door),
                Err(cause) => {
                    app.stop().await;
                    return Err(StartError::Listen { address, cause });
                }
            }
        }
        if let Some(server) = control {
            let commands = app.commands();
            app.control = Some(chappie_mesh::runtime::spawn(server.serve(commands, app.stopping.child_token())));
        }
        Ok(app)
    }

    /// Starts a node that stands on `outside`, with its mesh and without doors.
    ///
    /// # Errors
    /// [`StartError`]; what was started before is stopped again.
    pub async fn start_on(config: Config, outside: Outside) -> Result<Self, StartError> {
        Self::assemble(config, outside, true).await
    }

    async fn assemble(config: Config, outside: Outside, with_mesh: bool) -> Result<Self, StartError> {
        let stopping = CancellationToken::new();
        let node = build::node(config, outside, with_mesh, stopping.clone()).await?;
        let app = Self { node, stopping, http: None, control: None, tasks: TaskTracker::new() };
        if with_mesh && let Err(error) = app.start_mesh().await {
            app.stop().await;
            return Err(error);
        }
        Ok(app)
    }

    /// How this node's group stands, as it sees it.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Arc<Standing>> {
        self.node.broker.standing()
    }

    /// Starts the mesh and what is done for it in the background.
    async fn start_mesh(&self) -> Result<(), StartError> {
        mesh::start(&self.node).await?;
        let membership = Arc::clone(&self.node.membership);
        self.keep(membership.follow(self.stopping.clone()));
        let (fleet, rosters, stopping) =
            (Arc::clone(&self.node.fleet), self.node.membership.rosters(), self.stopping.clone());
        self.keep(async move {
            stopping.run_until_cancelled(fleet.follow(rosters)).await;
        });
        self.node.broker.tend().await;
        self.keep(Arc::clone(&self.node).attend());
        self.keep(Arc::clone(&self.node).forward_connected());
        self.keep(Arc::clone(&self.node).take_news());
        let (broker, sessions) = (self.node.broker.clone(), Arc::clone(&self.node.sessions));
        self.keep(reannounce::run(broker, Arc::clone(&self.node.office), sessions, self.stopping.clone()));
        self.keep(self.node.announcer().run());
        Ok(())
    }

    fn keep(&self, task: impl Future<Output = ()> + Send + 'static) {
        seam::spawn(self.tasks.track_future(task));
    }

    /// What the command line can ask of this node.
    #[must_use]
    pub fn commands(&self) -> Arc<dyn Commands> {
        self.node.clone()
    }

    /// The tools, for a door in this process.
    #[must_use]
    pub fn surface(&self) -> Arc<dyn Surface> {
        self.node.gate.clone()
    }

    /// What `up` prints.
    #[must_use]
    pub fn ready(&self) -> ReadyLine {
        ReadyLine {
            ready: true,
            node: self.node.identity.node_id().to_string(),
            mcp: self.http.as_ref().map(|door| format!("http://{}/mcp", door.address)),
            quic: self.node.mesh.get().map(|mesh| mesh.local_addr().to_string()),
            sessions: self.node.session_rows(),
        }
    }

    /// Resolves when something asks the node to stop.
    pub async fn stopped(&self) {
        self.stopping.cancelled().await;
    }

    /// Stops in reverse order: doors, sessions, stores. Running operations are cancelled and their outcomes written.
    pub async fn stop(self) {
        // First of all, so that calls at other doors go on elsewhere while this device puts its things in order.
        self.node.broker.hand_over(None).await;
        self.stopping.cancel();
        if let Some(control) = self.control {
            let _ = control.await;
        }
        self.tasks.close();
        self.tasks.wait().await;
        self.node.sessions.stop().await;
        if let Some(door) = self.http {
            door.closed().await;
        }
        // After the sessions: what they ended with is told to the broker's device first.
        if let Some(mesh) = self.node.mesh.get() {
            mesh.stop().await;
        }
        self.node.broker.close().await;
        if let Err(error) = self.node.store.stop().await {
            tracing::error!(%error, "the node's store did not close cleanly");
        }
    }
}
