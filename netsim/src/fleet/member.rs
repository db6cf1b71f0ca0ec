//! A device of which only the consensus engine runs: mesh, log store and member, with a machine that notes every command.
//! The smallest node that can lose what it acknowledged.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use chappie::storage::{
    log::{ConsensusStore, Head, Opened},
    medium::{Disks, Medium},
};
use chappie_mesh::{
    Duplicate, Handler, Identity, Incarnation, JoinReply, JoinRequest, Mesh, MeshConfig, NodeId, Remembered, Roster,
    Sockets, Stream, StreamKind,
    consensus::{
        Carrier, Consensus, Group, Machine, MemberId, Pace, Question, Settings, Standing, Unreached, Voting,
        other_group, seed,
    },
    runtime,
};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::{bed::Runs, device::Device};

/// What all members together have carried out: the one order that every one of them must follow.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    order: Vec<u64>,
    known: BTreeSet<u64>,
    wrong: Option<String>,
}

impl Truth {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody carries `command` out as number `at`.
    fn applied(&self, who: &str, at: usize, command: u64) {
        let mut told = self.lock();
        match told.order.get(at).copied() {
            Some(known) if known != command => {
                let wrong = format!("{who} carried out {command:x} as number {at}, others {known:x}");
                told.wrong.get_or_insert(wrong);
            }
            Some(_) => {}
            None if at > told.order.len() => {
                let wrong = format!("{who} carried out number {at} and nobody the one before");
                told.wrong.get_or_insert(wrong);
            }
            None => {
                told.order.push(command);
                if !told.known.insert(command) {
                    told.wrong.get_or_insert_with(|| format!("{command:x} was carried out twice"));
                }
            }
        }
    }

    /// What was found to be wrong first.
    pub(super) fn wrong(&self) -> Option<String> {
        self.lock().wrong.clone()
    }

    pub(super) fn has(&self, command: u64) -> bool {
        self.lock().known.contains(&command)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().order.len()
    }
}

/// The commands in their order.
#[derive(Debug)]
struct Notes {
    who: String,
    truth: Truth,
    own: Arc<Mutex<Vec<u64>>>,
}

impl Machine for Notes {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        let Ok(command) = <[u8; 8]>::try_from(command) else { return Vec::new() };
        let command = u64::from_le_bytes(command);
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        self.truth.applied(&self.who, own.len(), command);
        own.push(command);
        (own.len() as u64).to_le_bytes().to_vec()
    }

    fn snapshot(&self) -> Vec<u8> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.iter().flat_map(|command| command.to_le_bytes()).collect()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (commands, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err("half a command".into());
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.clear();
        for command in commands.iter().copied().map(u64::from_le_bytes) {
            self.truth.applied(&self.who, own.len(), command);
            own.push(command);
        }
        Ok(())
    }
}

/// What a member is started with.
pub(super) struct Start {
    name: String,
    identity: Arc<Identity>,
    disks: Arc<dyn Disks>,
    sockets: Arc<dyn Sockets>,
    config: MeshConfigParts,
    group: Group,
    founds: bool,
    roster: watch::Receiver<Arc<Roster>>,
    truth: Truth,
    run: Incarnation,
}

struct MeshConfigParts {
    listen: std::net::SocketAddr,
    others: Vec<(NodeId, Remembered)>,
}

impl Start {
    pub(super) fn of(
        device: &Device,
        others: Vec<(NodeId, Remembered)>,
        group: Group,
        founds: bool,
        roster: watch::Receiver<Arc<Roster>>,
        truth: Truth,
        run: Incarnation,
    ) -> Self {
        Self {
            name: device.name.clone(),
            identity: Arc::clone(&device.identity),
            disks: device.medium(),
            sockets: device.sockets(),
            config: MeshConfigParts { listen: device.listens(), others },
            group,
            founds,
            roster,
            truth,
            run,
        }
    }
}

/// A member that runs.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) consensus: Consensus,
    /// A mesh ends with its last handle.
    pub(super) mesh: Mesh,
    pub(super) state: Arc<Mutex<Vec<u64>>>,
}

impl Member {
    /// Opens the store and takes part. Runs inside the device.
    pub(super) async fn start(start: Start) -> Result<Self, String> {
        let node = start.identity.node_id();
        let (store, opened, head) = open(&start, node)?;
        let state: Arc<Mutex<Vec<u64>>> = Arc::default();
        let notes = Notes { who: start.name.clone(), truth: start.truth.clone(), own: Arc::clone(&state) };
        let settings = Settings {
            node,
            store: head.store,
            group: start.group,
            pace: Pace::LAN,
            voting: Voting::Auto,
            stands: true,
        };
        let slot = Slot::default();
        let consensus = Consensus::start(
            settings,
            opened.persisted,
            Box::new(store),
            Box::new(notes),
            Arc::new(Line(Arc::clone(&slot))),
        );
        let consensus = consensus.await.map_err(|error| error.to_string())?;
        let config = MeshConfig {
            identity: start.identity,
            name: start.name,
            build: "sim".into(),
            listen: start.config.listen,
            connect: Vec::new(),
            mdns: false,
            incarnation: head.run,
            remembered: start.config.others,
            sockets: Some(start.sockets),
        };
        let handler = Arc::new(Wires { consensus: consensus.clone(), group: start.group });
        let mesh = Mesh::start(config, start.roster.clone(), handler).await.map_err(|error| error.to_string())?;
        // Set once, here.
        let _new = slot.set(mesh.clone());
        consensus.tend(start.roster);
        Ok(Self { consensus, mesh, state })
    }

    pub(super) fn commands(&self) -> Vec<u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Runs for Member {
    fn standing(&self) -> watch::Receiver<Arc<Standing>> {
        self.consensus.standing()
    }
}

fn open(start: &Start, node: NodeId) -> Result<(ConsensusStore, Opened, Head), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let medium = Medium::Simulated(Arc::clone(&start.disks));
    let (mut store, mut opened) = ConsensusStore::open(medium, node).map_err(|error| told(&error))?;
    let head = match opened.head {
        Some(head) => Head { run: start.run, ..head },
        None => {
            let store = runtime::random().map_err(|error| told(&error))?;
            Head { group: start.group, store, run: start.run }
        }
    };
    if opened.head.is_none() {
        let own = MemberId::of(&node, &head.store);
        let writes = if start.founds { seed(own, node, Vec::new()) } else { Vec::new() };
        store.reset(head, writes).map_err(|error| told(&error))?;
        opened = store.reopen().map_err(|error| told(&error))?;
    } else {
        store.set_run(head.run).map_err(|error| told(&error))?;
        store.settle_run().map_err(|error| told(&error))?;
    }
    Ok((store, opened, head))
}

type Slot = Arc<OnceLock<Mesh>>;

struct Line(Slot);

impl Carrier for Line {
    fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>> {
        let mesh = self.0.get().cloned();
        Box::pin(async move {
            let mesh = mesh.ok_or_else(|| Unreached("the mesh does not run yet".into()))?;
            mesh.ask_raft(node, question, within).await.map_err(|error| Unreached(error.to_string()))
        })
    }
}

struct Wires {
    consensus: Consensus,
    group: Group,
}

impl Handler for Wires {
    fn stream(&self, _peer: NodeId, _kind: StreamKind, _stream: Stream) {}

    fn admit(&self, _node: NodeId, _request: JoinRequest, _binding: [u8; 32]) -> BoxFuture<'static, JoinReply> {
        Box::pin(std::future::ready(JoinReply::Refused("nobody joins here".into())))
    }

    fn raft(&self, peer: NodeId, question: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        let (consensus, group) = (self.consensus.clone(), self.group);
        Box::pin(async move {
            match Question::decode(&question) {
                Ok(question) if question.group() == group => consensus.answer(peer, &question).await,
                Ok(_) => other_group(group, false),
                Err(_) => Vec::new(),
            }
        })
    }

    fn remember(&self, _peer: NodeId, _remembered: Remembered) {}

    fn forgotten(&self, _by: NodeId) {}

    fn duplicate(&self, _duplicate: Duplicate) {}
}
