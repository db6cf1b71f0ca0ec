//! A device with the whole node: what `chappie up` starts, on simulated disks and sockets, with scripted hosts.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use chappie::{
    app::{App, Outside},
    config::{Config, MCP_DEFAULT, SessionSpec},
    control::Commands,
    storage::medium::Medium,
    tools::Surface,
};
use chappie_mesh::consensus::{Standing, Voting};
use tokio::sync::{Mutex, watch};

use super::{bed::Runs, device::Device, host::factory, ledger::Ledger};

/// How long a call is held at its door: short, so that seeds have answers that come later.
const CALL_BUDGET: Duration = Duration::from_secs(4);

/// A node that runs.
#[derive(Clone)]
pub(super) struct Node {
    app: Arc<Mutex<Option<App>>>,
    pub(super) surface: Arc<dyn Surface>,
    pub(super) commands: Arc<dyn Commands>,
    /// The session of the device.
    pub(super) session: String,
    standing: watch::Receiver<Arc<Standing>>,
}

/// What one start of a node is made of.
pub(super) struct Start {
    config: Config,
    outside: Outside,
}

impl Start {
    /// `home` is a real folder, for what is in no database: nothing, as long as no image is made.
    pub(super) fn of(device: &Device, home: PathBuf, ledger: &Ledger) -> Self {
        let listen: SocketAddr = device.listens();
        let config = Config {
            home,
            name: device.name.clone(),
            sessions: vec![SessionSpec { dir: PathBuf::from("/"), name: Some(device.name.clone()) }],
            mcp: MCP_DEFAULT,
            listen: Some(listen),
            connect: Vec::new(),
            mdns: false,
            join: None,
            json: false,
            cooldown: Duration::ZERO,
            call_budget: CALL_BUDGET,
            log: None,
            voter: Voting::Auto,
        };
        let outside = Outside {
            identity: Arc::clone(&device.identity),
            medium: Medium::Simulated(device.medium()),
            sockets: Some(device.sockets()),
            hosts: Some(factory(&device.name, device.starts(), ledger)),
        };
        Self { config, outside }
    }
}

impl Node {
    /// Starts it. Runs inside the device.
    pub(super) async fn start(start: Start) -> Result<Self, String> {
        let app = App::start_on(start.config, start.outside).await.map_err(|error| error.to_string())?;
        let session = app.ready().sessions.first().map(|row| row.id.clone()).ok_or("no session")?;
        let (surface, commands, standing) = (app.surface(), app.commands(), app.standing());
        Ok(Self { app: Arc::new(Mutex::new(Some(app))), surface, commands, session: session.to_string(), standing })
    }

    /// Stops it in its order. Runs inside the device.
    pub(super) async fn stop(self) {
        let app = self.app.lock().await.take();
        if let Some(app) = app {
            app.stop().await;
        }
    }
}

impl Runs for Node {
    fn standing(&self) -> watch::Receiver<Arc<Standing>> {
        self.standing.clone()
    }
}
