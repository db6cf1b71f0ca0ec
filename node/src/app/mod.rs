//! Composition root: builds everything in order, stops it in reverse. The only place that constructs and stops things.

mod commands;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chappie_mesh::{Identity, IdentityError};
use serde::Serialize;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{self, Broker},
    config::Config,
    control::{Commands, Server, SessionRow, SocketError},
    doors::http::{self, HttpDoor},
    fleet::{LocalNode, Tenure},
    host::native::{group, host::NativeHosts, stage},
    sessions::{DirectoryError, HostFactory, ReconcileError, Record, Sessions},
    storage::{
        blobs::Blobs,
        node::{NodeStore, StoreError},
        pair::{self, PairError},
    },
    tools::{Surface, Toolbox},
};

/// How long a selection waits for a session to come online (the guide).
const OFFLINE_WAIT: Duration = Duration::from_secs(5);
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
    /// The broker could not be told what it must know.
    #[error(transparent)]
    Reconcile(ReconcileError),
    /// A session of the command line.
    #[error(transparent)]
    Session(#[from] DirectoryError),
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
    /// Where the mesh listens; `None` until the mesh exists.
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
    store: NodeStore,
}

/// What commands act on.
pub(crate) struct Node {
    config: Config,
    identity: Identity,
    broker: Broker,
    sessions: Arc<Sessions>,
    blobs: Blobs,
    toolbox: Arc<Toolbox>,
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
        let unusable = |cause| StartError::Home { path: home.clone(), cause };
        let identity = Identity::load_or_create(&home)?;
        let control = match doors {
            Doors::All | Doors::Control => Some(Server::bind(&home).await?),
            Doors::None => None,
        };
        pair::check(&home)?;
        let store = NodeStore::open(&home)?;
        let settings = broker::Settings { cooldown: config.cooldown, offline_wait: OFFLINE_WAIT };
        let broker = Broker::open(&home, settings)?;
        let blobs = Blobs::open(&home.join("blobs")).map_err(unusable)?;
        sweep(&home).await;
        let stopping = CancellationToken::new();
        let sessions =
            Sessions::open(&home, store.clone(), Arc::new(broker.clone()), factory(&home, &blobs), stopping.clone())
                .await?;
        sessions.reconcile().await.map_err(StartError::Reconcile)?;
        for spec in &config.sessions {
            sessions.create(&spec.dir, spec.name.clone()).await?;
        }
        let toolbox = Arc::new(Toolbox::new(
            broker.clone(),
            LocalNode::new(Arc::clone(&sessions), blobs.clone(), config.name.clone()),
            watch::Sender::new(Tenure { epoch: 1, term: 1 }).subscribe(),
            config.call_budget,
            config.cooldown,
        ));
        let address = config.mcp;
        let node = Arc::new(Node { config, identity, broker, sessions, blobs, toolbox, stopping: stopping.clone() });
        let mut app = Self { node, stopping, http: None, control: None, store };
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
            app.control = Some(tokio::spawn(server.serve(commands, app.stopping.child_token())));
        }
        Ok(app)
    }

    /// What the command line can ask of this node.
    #[must_use]
    pub fn commands(&self) -> Arc<dyn Commands> {
        self.node.clone()
    }

    /// The tools, for a door in this process.
    #[must_use]
    pub fn surface(&self) -> Arc<dyn Surface> {
        self.node.toolbox.clone()
    }

    /// What `up` prints.
    #[must_use]
    pub fn ready(&self) -> ReadyLine {
        ReadyLine {
            ready: true,
            node: self.node.identity.node_id().to_string(),
            mcp: self.http.as_ref().map(|door| format!("http://{}/mcp", door.address)),
            quic: None,
            sessions: self.node.session_rows(),
        }
    }

    /// Resolves when something asks the node to stop.
    pub async fn stopped(&self) {
        self.stopping.cancelled().await;
    }

    /// Stops in reverse order: doors, sessions, stores. Running operations are cancelled and their outcomes written.
    pub async fn stop(self) {
        self.stopping.cancel();
        if let Some(control) = self.control {
            let _ = control.await;
        }
        self.node.sessions.stop().await;
        if let Some(door) = self.http {
            door.closed().await;
        }
        self.node.broker.close().await;
        if let Err(error) = self.store.stop().await {
            tracing::error!(%error, "the node's store did not close cleanly");
        }
    }
}

/// Ends what a killed node left running, and removes what it left half written.
async fn sweep(home: &Path) {
    let home = home.to_owned();
    let swept = tokio::task::spawn_blocking(move || {
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
