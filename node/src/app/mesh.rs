//! What the node does when the mesh has something for it, and what it does for the mesh in the background: announce,
//! reconcile, hand over, follow.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, OnceLock, PoisonError, Weak},
    time::Duration,
};

use chappie_mesh::{
    Duplicate, Handler, JoinReply, JoinRequest, Mesh, MeshConfig, MeshError, NodeId, Remembered, Roster, Stream,
    StreamKind,
    consensus::{Carrier, Unreached},
    runtime::Spawner,
};
use tokio::sync::watch;

use super::Node;
use crate::{
    clock,
    fleet::{
        Tenure,
        feed::{Addresses, Announcer, Announces, Follow},
        line::Opener,
        roll::Keep,
        seat::Holder,
    },
    host::BoxFuture,
    ids::{Conversation, SessionId},
    sessions::{SessionInfo, Sessions},
    storage::node::{Change, Key, NodeStore, StoreError},
};

/// Between two tries to hand over, to reconcile, or to say a name: a connection that breaks at once must not spin.
const RETRY: Duration = Duration::from_secs(1);
/// How long a new device's name for a duplicate stays in `status` after it was last seen.
pub(super) const DUPLICATE_SHOWN: Duration = Duration::from_secs(60);

/// The mesh, once it runs.
pub(super) type Slot = Arc<OnceLock<Mesh>>;

/// A set of devices.
pub(super) type Nodes = Arc<BTreeSet<NodeId>>;

/// Opens streams on the mesh, once it runs.
pub(super) struct MeshOpener(pub(super) Slot);

impl Opener for MeshOpener {
    fn open(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> BoxFuture<'_, Result<Stream, String>> {
        Box::pin(async move {
            let mesh = self.0.get().ok_or("this process has no connection to other devices")?;
            mesh.open(peer, kind, wait).await.map_err(|error| error.to_string())
        })
    }
}

/// Carries the consensus engine's questions, once the mesh runs.
pub(super) struct RaftCarrier(pub(super) Slot);

impl Carrier for RaftCarrier {
    fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>> {
        let mesh = self.0.get().cloned();
        Box::pin(async move {
            let mesh = mesh.ok_or_else(|| Unreached("this process has no connection to other devices".into()))?;
            mesh.ask_raft(node, question, within).await.map_err(|error| Unreached(error.to_string()))
        })
    }
}

/// Where members are, as far as this device's mesh knows.
pub(super) struct Whereabouts(pub(super) Slot);

impl Addresses for Whereabouts {
    fn addresses(&self, to: NodeId) -> Vec<(NodeId, Vec<SocketAddr>)> {
        self.0.get().map(|mesh| mesh.known_addresses(Some(to))).unwrap_or_default()
    }
}

/// What this device announces.
struct Announced(Arc<Sessions>);

impl Announces for Announced {
    fn sessions(&self) -> Vec<SessionInfo> {
        self.0.infos()
    }

    fn late(&self) -> Vec<Conversation> {
        self.0.late_conversations().into_iter().collect()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The broker's word on who is a member and where.
#[derive(Clone)]
pub(super) struct News {
    from: NodeId,
    roster: Roster,
    addresses: Vec<(NodeId, Vec<SocketAddr>)>,
}

/// What this device does with the broker's word on who is a member and where.
struct Followed(Weak<Node>);

impl Follow for Followed {
    fn news(&self, from: NodeId, roster: Roster, addresses: Vec<(NodeId, Vec<SocketAddr>)>) {
        let Some(node) = self.0.upgrade() else { return };
        node.news.send_replace(Some(News { from, roster, addresses }));
    }
}

/// Keeps members' last announcements in the node's store.
pub(super) struct Kept(pub(super) NodeStore);

impl Keep for Kept {
    fn keep(&self, node: NodeId, sessions: Vec<SessionId>) {
        // A member that is not forgotten announces again: what a crash loses comes back.
        self.0.lazy(vec![Change::set(Key::announced(&node), &sessions)]);
    }

    fn kept(&self, node: &NodeId) -> Vec<SessionId> {
        self.0.read(&Key::announced(node)).ok().flatten().unwrap_or_default()
    }
}

/// The node as the mesh sees it.
pub(super) struct Wires {
    pub(super) node: Weak<Node>,
    /// The node's runtime: the mesh calls on a thread of its own.
    pub(super) runtime: Spawner,
}

impl Handler for Wires {
    fn stream(&self, peer: NodeId, kind: StreamKind, stream: Stream) {
        let Some(node) = self.node.upgrade() else { return };
        match kind {
            StreamKind::Desk => {
                self.runtime.spawn(node.serve_desk(peer, stream));
            }
            StreamKind::Ask | StreamKind::Door | StreamKind::Feed | StreamKind::Run | StreamKind::History => {
                node.incoming.stream(peer, kind, stream);
            }
        }
    }

    fn admit(&self, node: NodeId, request: JoinRequest, binding: [u8; 32]) -> BoxFuture<'static, JoinReply> {
        let this = self.node.upgrade();
        Box::pin(async move {
            match this {
                Some(this) => this.admit(node, request, binding).await,
                None => JoinReply::Refused("the device is stopping".into()),
            }
        })
    }

    fn raft(&self, peer: NodeId, question: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        match self.node.upgrade() {
            Some(node) => node.broker.answer_raft(peer, question),
            // An answer that is none: the asker takes it for a lost one.
            None => Box::pin(std::future::ready(Vec::new())),
        }
    }

    fn remember(&self, peer: NodeId, remembered: Remembered) {
        if let Some(node) = self.node.upgrade() {
            node.store.lazy(vec![Change::set(Key::peer(&peer), &remembered)]);
        }
    }

    fn news(&self, from: NodeId, roster: Roster, addresses: Vec<(NodeId, Vec<SocketAddr>)>) {
        let Some(node) = self.node.upgrade() else { return };
        node.news.send_replace(Some(News { from, roster, addresses }));
    }

    fn forgotten(&self, by: NodeId) {
        let Some(node) = self.node.upgrade() else { return };
        self.runtime.spawn(async move {
            let label = node.membership.roster().label(&by);
            match node.membership.forgotten(by).await {
                Ok(true) => {
                    tracing::warn!(by = label, "this device was forgotten and is on its own now");
                    node.forget_tenure().await;
                }
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "that this device was forgotten could not be recorded"),
            }
        });
    }

    fn duplicate(&self, duplicate: Duplicate) {
        let Some(node) = self.node.upgrade() else { return };
        let label = node.membership.roster().label(&duplicate.node);
        let mut seen = node.duplicates.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.insert(duplicate.node, (tokio::time::Instant::now(), duplicate.clone()));
        drop(seen);
        // Both devices go on dialling: it is said again only after it was over for a while, or when it changed.
        if before.is_none_or(|(at, before)| before != duplicate || at.elapsed() > DUPLICATE_SHOWN) {
            tracing::warn!("{}", duplicate_text(&label, &duplicate));
        }
    }
}

/// Two devices with one identity, in words: what was found and what to do.
pub(super) fn duplicate_text(label: &str, duplicate: &Duplicate) -> String {
    let there = duplicate.other.map(|address| format!(" at {address}")).unwrap_or_default();
    match (duplicate.own, duplicate.refused) {
        (true, true) => format!(
            "duplicate identity: another device{there} uses this device's identity, so this one is kept out of the mesh. If \
             this is the copy, stop this node, run `chappie reset-identity` here and join it anew"
        ),
        (true, false) => format!(
            "duplicate identity: another device{there} tries to use this device's identity and is kept out. If it is a \
             copy, stop its node, run `chappie reset-identity` there and join it anew"
        ),
        (false, _) => format!(
            "duplicate identity: a second device{there} uses the identity of {label} and is kept out. Run `chappie \
             reset-identity` on the copy and join it anew"
        ),
    }
}

/// What the store remembers of peers.
fn remembered(store: &NodeStore) -> Result<Vec<(NodeId, Remembered)>, StoreError> {
    let (from, to) = Key::peers();
    let mut peers = Vec::new();
    store.scan::<Remembered>(&from, &to, false, |key, remembered| {
        if let Some(node) = key.node() {
            peers.push((node, remembered));
        }
        true
    })?;
    Ok(peers)
}

/// Starts the mesh. When nothing says where to listen and the usual port is taken, a free one serves as well: others learn
/// it when they are told where this device is.
pub(super) async fn start(node: &Arc<Node>) -> Result<(), super::StartError> {
    let config = &node.config;
    if !config.connect.is_empty() && node.membership.roster().members.len() == 1 {
        tracing::warn!(
            "this device is in no mesh yet, so the addresses to connect to are not dialled; join one with `chappie join CODE`"
        );
    }
    let incarnation = node.run;
    let remembered = remembered(&node.store)?;
    let handler = Arc::new(Wires { node: Arc::downgrade(node), runtime: Spawner::current() });
    let addresses = match config.listen {
        Some(address) => vec![address],
        None => {
            let usual = [crate::config::LISTEN_DEFAULT, crate::config::LISTEN_DEFAULT_V4];
            usual.into_iter().chain(usual.map(|usual| SocketAddr::new(usual.ip(), 0))).collect()
        }
    };
    let mut first: Option<MeshError> = None;
    for listen in addresses {
        let settings = MeshConfig {
            identity: Arc::clone(&node.identity),
            name: config.name.clone(),
            build: env!("CARGO_PKG_VERSION").into(),
            listen,
            connect: config.connect.clone(),
            mdns: config.mdns,
            incarnation,
            remembered: remembered.clone(),
            sockets: node.sockets.clone(),
        };
        match Mesh::start(settings, node.membership.rosters(), handler.clone()).await {
            Ok(mesh) => {
                if let Some(error) = first {
                    tracing::warn!(%error, address = %mesh.local_addr(), "the mesh listens elsewhere");
                }
                mesh.learn(node.membership.addresses());
                let _ = node.mesh.set(mesh);
                return Ok(());
            }
            Err(error) => {
                first.get_or_insert(error);
            }
        }
    }
    Err(first.unwrap_or_else(|| MeshError::Start("no address to listen on".into())).into())
}

impl Node {
    /// Whether the mesh has a connection to `peer`.
    pub(super) fn connected(&self, peer: &NodeId) -> bool {
        self.mesh.get().is_some_and(|mesh| mesh.connected().borrow().contains(peer))
    }

    /// What announces this device's sessions to the broker's device.
    pub(super) fn announcer(self: &Arc<Self>) -> Announcer {
        Announcer::new(
            self.seat.clone(),
            self.line.clone(),
            self.connected.subscribe(),
            Arc::new(Announced(Arc::clone(&self.sessions))),
            Arc::new(Followed(Arc::downgrade(self))),
            clock::random(),
        )
    }

    /// Tells the parts that were built before the mesh ran who is connected, for as long as the node runs.
    pub(super) async fn forward_connected(self: Arc<Self>) {
        let Some(mut connected) = self.mesh.get().map(Mesh::connected) else { return };
        loop {
            let now = Arc::clone(&connected.borrow_and_update());
            self.connected.send_replace(now);
            tokio::select! {
                () = self.stopping.cancelled() => return,
                changed = connected.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Takes over what the broker says of members, the latest word each time.
    pub(super) async fn take_news(self: Arc<Self>) {
        let mut news = self.news.subscribe();
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return,
                changed = news.changed() => if changed.is_err() { return },
            }
            let Some(News { from, roster, addresses }) = news.borrow_and_update().clone() else { continue };
            // Any member's word: only a later one of this mesh is taken (F20).
            if !self.membership.roster().members.contains_key(&from) {
                continue;
            }
            if let Some(mesh) = self.mesh.get() {
                mesh.learn(addresses.clone());
            }
            if let Err(error) = self.membership.adopt(roster, addresses).await {
                tracing::error!(%error, "the roster could not be recorded; it comes again with the next connection");
            }
        }
    }

    /// Another mesh counts its offices anew.
    async fn forget_tenure(&self) {
        if let Err(error) = self.sessions.forget_tenure().await {
            tracing::error!(%error, "the offices of the mesh that was left are known again after a restart");
        }
    }

    /// For as long as the node runs: whenever somebody takes the broker's seat, or there is a connection to its device again,
    /// says this device's name and settles what was left open (F3, F9, F17); and hands over what this device's own
    /// broker knew once it joined another mesh (F18).
    pub(super) async fn attend(self: Arc<Self>) {
        let Some(mut connected) = self.mesh.get().map(Mesh::connected) else { return };
        let (mut seat, mut owing) = (self.seat.clone(), self.membership.owing());
        let mut attended: Option<(Holder, Option<Tenure>)> = None;
        loop {
            let holder = seat.holder();
            let reached = match holder {
                Holder::Here => true,
                Holder::There(node) => connected.borrow_and_update().contains(&node),
                Holder::Nobody => false,
            };
            let due = reached.then(|| (holder, seat.tenure()));
            let done = if *owing.borrow_and_update() {
                attended = None;
                self.hand_over_belongings().await
            } else if let Some(due) = due {
                if attended == Some(due) {
                    true
                } else {
                    let done = self.attend_once().await;
                    attended = done.then_some(due);
                    done
                }
            } else {
                attended = None;
                true
            };
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                () = seat.left(holder) => {}
                changed = connected.changed() => if changed.is_err() { return },
                changed = owing.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY), if !done => {}
            }
        }
    }

    /// Hands over what this device's own broker knew to the broker of the mesh that it joined. Whoever is reached first
    /// names the broker, or is it.
    async fn hand_over_belongings(&self) -> bool {
        let roster = self.membership.roster();
        let others = roster.voters.iter().chain(roster.members.keys()).copied();
        let known = std::iter::once(roster.broker).chain(others).filter(|node| *node != self.own());
        let mut tried = BTreeSet::new();
        let known: Vec<NodeId> = known.filter(|node| tried.insert(*node)).collect();
        let Some(broker) = known.into_iter().find(|node| self.connected(node)) else { return false };
        self.gate.quiet().await;
        for piece in self.broker.export().pieces() {
            if let Err(error) = self.merge_into(broker, piece).await {
                tracing::warn!(%error, "the mesh's broker has not taken over what this device's own broker knew yet");
                return false;
            }
        }
        self.forget_tenure().await;
        if let Err(error) = self.membership.handed_over().await {
            tracing::error!(%error, "what this device's own broker knew could not be archived");
            return false;
        }
        true
    }

    async fn attend_once(&self) -> bool {
        if let Err(error) = self.tell_name().await {
            tracing::debug!(%error, "the broker has not heard this device's name yet");
            return false;
        }
        match self.sessions.reconcile().await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the broker has not heard yet what became of earlier operations");
                false
            }
        }
    }

    /// Whether this device's broker is its own.
    pub(super) fn is_broker(&self) -> bool {
        self.seat.holder() == Holder::Here
    }
}
