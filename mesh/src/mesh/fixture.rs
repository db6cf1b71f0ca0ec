//! Devices for the tests of the mesh: real sockets on loopback, several in one process.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};

use super::Mesh;
use crate::{
    api::{Duplicate, Handler, MeshConfig, PeerState, Remembered},
    identity::{Identity, Incarnation, InviteCode, InviteId, InviteSecret, Member, NodeId, Roster, fresh_invite},
    runtime::{self, Spawner},
    transport::{Sockets, Stream},
    wire::{JoinReply, JoinRequest, StreamKind},
};

/// Longer than anything here takes on a machine that does other things too.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What a device's program was told.
pub(super) struct Told {
    node: NodeId,
    runtime: Spawner,
    /// What came besides echoes, when the device does not echo.
    pub(super) streams: mpsc::UnboundedSender<(NodeId, StreamKind, Stream)>,
    pub(super) echoes: bool,
    pub(super) taken: AtomicUsize,
    pub(super) remembered: Mutex<Vec<(NodeId, Remembered)>>,
    pub(super) forgotten: Mutex<Vec<NodeId>>,
    pub(super) duplicates: Mutex<Vec<Duplicate>>,
    pub(super) invite: Mutex<Option<(InviteId, InviteSecret)>>,
    /// Where members are, as a member said.
    pub(super) addresses: Mutex<Vec<(NodeId, Vec<SocketAddr>)>>,
    /// What was asked over the raft connection.
    pub(super) asked: Mutex<Vec<(NodeId, Vec<u8>)>>,
    /// Lets a question that begins with `slow` go on.
    pub(super) slow: Arc<tokio::sync::Notify>,
    roster: watch::Sender<Arc<Roster>>,
}

impl Handler for Told {
    fn stream(&self, peer: NodeId, kind: StreamKind, mut stream: Stream) {
        self.taken.fetch_add(1, SeqCst);
        if !self.echoes {
            self.streams.send((peer, kind, stream)).unwrap();
            return;
        }
        self.runtime.spawn(async move {
            while let Ok(Some(message)) = stream.recv.message::<Vec<u8>>(1 << 20).await {
                if stream.send.message(&message).await.is_err() {
                    return;
                }
            }
        });
    }

    fn admit(&self, node: NodeId, request: JoinRequest, binding: [u8; 32]) -> BoxFuture<'static, JoinReply> {
        let invite = self.invite.lock().unwrap();
        let reply = match &*invite {
            Some((id, secret)) if *id == request.invite && secret.key().proves(&binding, &request.proof) => {
                self.roster.send_modify(|roster| {
                    let mut next = Roster::clone(roster);
                    next.members.insert(node, Member { name: request.name.clone() });
                    next.version += 1;
                    *roster = Arc::new(next);
                });
                JoinReply::Welcome { roster: Roster::clone(&self.roster.borrow()), addresses: Vec::new() }
            }
            Some((id, _)) if *id == request.invite => JoinReply::Refused("the secret is wrong".to_owned()),
            _ => JoinReply::Refused("the invite is spent or expired".to_owned()),
        };
        Box::pin(async move { reply })
    }

    fn raft(&self, peer: NodeId, question: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        self.asked.lock().unwrap().push((peer, question.clone()));
        let slow = Arc::clone(&self.slow);
        Box::pin(async move {
            if question.starts_with(b"slow") {
                slow.notified().await;
            }
            if question.starts_with(b"long") {
                return question;
            }
            question.into_iter().take(64).rev().collect()
        })
    }

    fn remember(&self, peer: NodeId, remembered: Remembered) {
        assert_ne!(peer, self.node);
        self.remembered.lock().unwrap().push((peer, remembered));
    }

    fn news(&self, _: NodeId, roster: Roster, addresses: Vec<(NodeId, Vec<SocketAddr>)>) {
        self.roster.send_replace(Arc::new(roster));
        self.addresses.lock().unwrap().extend(addresses);
    }

    fn forgotten(&self, by: NodeId) {
        self.forgotten.lock().unwrap().push(by);
    }

    fn duplicate(&self, duplicate: Duplicate) {
        self.duplicates.lock().unwrap().push(duplicate);
    }
}

/// One device.
pub(super) struct Device {
    pub(super) identity: Arc<Identity>,
    pub(super) node: NodeId,
    pub(super) run: Incarnation,
    pub(super) mesh: Mesh,
    pub(super) roster: watch::Sender<Arc<Roster>>,
    pub(super) told: Arc<Told>,
    pub(super) streams: tokio::sync::Mutex<mpsc::UnboundedReceiver<(NodeId, StreamKind, Stream)>>,
}

/// How a device is made.
pub(super) struct Plan {
    pub(super) identity: Arc<Identity>,
    pub(super) name: &'static str,
    pub(super) listen: SocketAddr,
    pub(super) connect: Vec<String>,
    pub(super) run: Incarnation,
    pub(super) remembered: Vec<(NodeId, Remembered)>,
    pub(super) echoes: bool,
    pub(super) roster: Option<Roster>,
    pub(super) sockets: Option<Arc<dyn Sockets>>,
}

impl Plan {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            identity: fresh_identity(),
            name,
            listen: "127.0.0.1:0".parse().unwrap(),
            connect: Vec::new(),
            run: Incarnation::first(random()),
            remembered: Vec::new(),
            echoes: true,
            roster: None,
            sockets: None,
        }
    }

    pub(super) async fn start(self) -> Device {
        let node = self.identity.node_id();
        let roster = self.roster.unwrap_or_else(|| Roster::alone(random().into(), node, self.name.to_owned()));
        let (roster, rosters) = watch::channel(Arc::new(roster));
        let (streams, taken) = mpsc::unbounded_channel();
        let told = Arc::new(Told {
            node,
            runtime: Spawner::current(),
            streams,
            echoes: self.echoes,
            taken: AtomicUsize::new(0),
            remembered: Mutex::default(),
            forgotten: Mutex::default(),
            duplicates: Mutex::default(),
            invite: Mutex::default(),
            addresses: Mutex::default(),
            asked: Mutex::default(),
            slow: Arc::default(),
            roster: roster.clone(),
        });
        let config = MeshConfig {
            identity: Arc::clone(&self.identity),
            name: self.name.to_owned(),
            build: "test".to_owned(),
            listen: self.listen,
            connect: self.connect,
            mdns: false,
            incarnation: self.run,
            remembered: self.remembered,
            sockets: self.sockets,
        };
        let mesh = Mesh::start(config, rosters, Arc::clone(&told) as Arc<dyn Handler>).await.unwrap();
        let streams = tokio::sync::Mutex::new(taken);
        Device { identity: self.identity, node, run: self.run, mesh, roster, told, streams }
    }
}

pub(super) fn fresh_identity() -> Arc<Identity> {
    let home = tempfile::tempdir().unwrap();
    Arc::new(Identity::load_or_create(home.path()).unwrap())
}

pub(super) fn random() -> [u8; 16] {
    runtime::random().unwrap()
}

/// A roster of these devices; the first is the broker.
pub(super) fn roster_of(devices: &[(&Identity, &str)]) -> Roster {
    let mut roster = Roster::alone(random().into(), devices[0].0.node_id(), devices[0].1.to_owned());
    for (identity, name) in &devices[1..] {
        roster.members.insert(identity.node_id(), Member { name: (*name).to_owned() });
    }
    roster
}

/// A broker `desk` and a member `laptop` that know each other's addresses; the one with the id that is asked for is the
/// broker.
pub(super) async fn pair() -> (Device, Device) {
    let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
    let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    (desk.roster, laptop.roster) = (Some(roster.clone()), Some(roster));
    let desk = desk.start().await;
    laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let laptop = laptop.start().await;
    until("the two are connected", || desk.sees(&laptop) && laptop.sees(&desk)).await;
    (desk, laptop)
}

pub(super) fn at(address: SocketAddr) -> Remembered {
    Remembered { addresses: vec![address], incarnation: None }
}

impl Device {
    /// Whether `other` is connected.
    pub(super) fn sees(&self, other: &Self) -> bool {
        self.mesh.connected().borrow().contains(&other.node)
    }

    pub(super) fn state_of(&self, other: &Self) -> PeerState {
        self.mesh.peers().into_iter().find(|peer| peer.node == other.node).unwrap().state
    }

    pub(super) fn trouble_with(&self, other: &Self) -> String {
        let peer = self.mesh.peers().into_iter().find(|peer| peer.node == other.node);
        peer.and_then(|peer| peer.trouble).unwrap_or_default()
    }

    pub(super) fn change_roster(&self, change: impl FnOnce(&mut Roster)) {
        self.roster.send_modify(|roster| {
            let mut next = Roster::clone(roster);
            change(&mut next);
            next.version += 1;
            *roster = Arc::new(next);
        });
    }

    /// Makes an invite that this device's program takes.
    pub(super) fn invite(&self) -> InviteCode {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&random());
        bytes[16..].copy_from_slice(&random()[..8]);
        let (id, secret) = fresh_invite(bytes);
        *self.told.invite.lock().unwrap() = Some((id, secret.clone()));
        let mesh = self.roster.borrow().mesh;
        let addresses = vec![self.mesh.local_addr().to_string()];
        InviteCode { mesh, inviter: self.node, addresses, id, secret }
    }

    /// Sends `message` to an echoing device and checks what comes back.
    pub(super) async fn echo(&self, other: &Self, message: &[u8]) {
        let mut stream = self.mesh.open(other.node, StreamKind::Ask, PATIENCE).await.unwrap();
        stream.send.message(message).await.unwrap();
        let back = stream.recv.message::<Vec<u8>>(1 << 20).await.unwrap().unwrap();
        assert_eq!(back, message);
    }

    /// The next stream that this device's program was given.
    pub(super) async fn taken(&self) -> (NodeId, StreamKind, Stream) {
        let mut streams = self.streams.lock().await;
        tokio::time::timeout(PATIENCE, streams.recv()).await.expect("a stream comes").unwrap()
    }
}

/// Waits until `holds`.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
