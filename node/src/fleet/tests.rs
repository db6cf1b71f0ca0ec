//! Devices over a real mesh on the loopback interface: what a session's node says is the same over it, a device that goes
//! away ends the wait in words, and a door's call goes all the way.

use std::{
    net::SocketAddr,
    sync::{Mutex, OnceLock},
};

use chappie_mesh::{
    Duplicate, Handler, Identity, Incarnation, JoinReply, JoinRequest, Member, Mesh, MeshConfig, NodeId, Remembered,
    Roster, Stream, StreamKind,
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    directory::Fleet,
    feed::{Announcer, Announces, Follow},
    line::{Line, Opener},
    remote::RemoteNode,
    serve::Incoming,
    testing::{Device, NoDoors},
    *,
};
use crate::{
    sessions::{
        Sessions,
        history::Range,
        testing::{World, chat, until, work, world},
    },
    storage::blobs::Blobs,
    tools::{
        Caller, Content, Request, Surface, Toolbox,
        forward::{Doors, Forwarding},
    },
};

/// Long enough for two cores with other work; what is awaited comes in milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// The mesh as a device's parts use it, and the device as its mesh does.
#[derive(Default)]
struct Ends {
    mesh: OnceLock<Mesh>,
    incoming: OnceLock<Arc<Incoming>>,
    /// Streams that the device opened.
    opened: Mutex<Vec<StreamKind>>,
}

struct Way(Arc<Ends>);

impl Opener for Way {
    fn open(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> BoxFuture<'_, Result<Stream, String>> {
        self.0.opened.lock().unwrap().push(kind);
        Box::pin(async move {
            let mesh = self.0.mesh.get().ok_or("not started")?;
            mesh.open(peer, kind, wait).await.map_err(|error| error.to_string())
        })
    }
}

impl Handler for Ends {
    fn stream(&self, peer: NodeId, kind: StreamKind, stream: Stream) {
        if let Some(incoming) = self.incoming.get() {
            incoming.stream(peer, kind, stream);
        }
    }

    fn admit(&self, _: NodeId, _: JoinRequest, _: [u8; 32]) -> BoxFuture<'static, JoinReply> {
        Box::pin(async { JoinReply::Refused("not here".into()) })
    }

    fn raft(&self, _: NodeId, _: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        Box::pin(async { Vec::new() })
    }

    fn remember(&self, _: NodeId, _: Remembered) {}

    fn forgotten(&self, _: NodeId) {}

    fn duplicate(&self, _: Duplicate) {}
}

/// A device on the mesh, before it serves anything.
struct Machine {
    ends: Arc<Ends>,
    identity: Arc<Identity>,
    name: &'static str,
    device: Device,
    rosters: watch::Receiver<Arc<Roster>>,
    _home: tempfile::TempDir,
}

impl Machine {
    /// Joins, knowing where `others` are.
    async fn start(&self, incoming: Arc<Incoming>, others: &[&Self]) {
        let _ = self.ends.incoming.set(incoming);
        let config = MeshConfig {
            identity: self.identity.clone(),
            name: self.name.into(),
            build: "test".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            connect: Vec::new(),
            mdns: false,
            incarnation: Incarnation::first([self.name.as_bytes()[0]; 16]),
            remembered: Vec::new(),
            sockets: None,
        };
        let mesh = Mesh::start(config, self.rosters.clone(), self.ends.clone()).await.unwrap();
        mesh.learn(others.iter().map(|other| (other.id(), vec![other.mesh().local_addr()])).collect());
        let _ = self.ends.mesh.set(mesh);
    }

    fn id(&self) -> NodeId {
        self.identity.node_id()
    }

    fn mesh(&self) -> &Mesh {
        self.ends.mesh.get().unwrap()
    }

    /// Streams that it opened since this was asked last.
    fn opened(&self) -> Vec<StreamKind> {
        std::mem::take(&mut self.ends.opened.lock().unwrap())
    }
}

/// Devices of one mesh; the first is the broker.
fn machines<const N: usize>(names: [&'static str; N]) -> [Machine; N] {
    let homes = names.map(|_| tempfile::tempdir().unwrap());
    let identities = homes.each_ref().map(|home| Arc::new(Identity::load_or_create(home.path()).unwrap()));
    let mut roster = Roster::alone([7; 16].into(), identities[0].node_id(), names[0].into());
    for (identity, name) in identities.iter().zip(names) {
        roster.members.insert(identity.node_id(), Member { name: name.into() });
    }
    let rosters = watch::channel(Arc::new(roster)).1;
    let mut parts = homes.into_iter().zip(identities).zip(names);
    std::array::from_fn(|_| {
        let ((home, identity), name) = parts.next().unwrap();
        let ends = Arc::new(Ends::default());
        let line = Line::new(Arc::new(Way(ends.clone())), rosters.clone(), CancellationToken::new());
        let device = Device::on(line, identity.node_id(), rosters.clone());
        Machine { ends, identity, name, device, rosters: rosters.clone(), _home: home }
    })
}

/// A device's directory, before anybody is connected.
fn directory(of: &Machine, own: Arc<dyn Directory>) -> Arc<Fleet> {
    let Device { roll, line, seat, .. } = &of.device;
    Fleet::new(roll.clone(), own, line.clone(), seat.clone(), watch::channel(Arc::default()).1)
}

fn local(world: &World) -> Arc<LocalNode> {
    let blobs = Blobs::open(&world.home.path().join("blobs")).unwrap();
    LocalNode::new(Arc::clone(&world.sessions), blobs, "laptop".into())
}

fn sent(session: &SessionId, name: &str, id: &str) -> Dispatch {
    let tenure = Tenure { epoch: 1, term: 1 };
    Dispatch { session: session.clone(), operation: work(name, id), wait: PATIENCE, tenure, resent: false }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_says_the_same_over_the_mesh_and_to_itself() {
    let (world, session) = world().await;
    let id = session.record().id.clone();
    let [desk, laptop] = machines(["desk", "laptop"]);
    let near = local(&world);
    let nothing = desk.device.incoming(near.clone(), Arc::new(NoDoors));
    desk.start(nothing, &[]).await;
    laptop.start(laptop.device.incoming(near.clone(), Arc::new(NoDoors)), &[&desk]).await;
    let far = RemoteNode::new(laptop.id(), desk.device.line.clone());
    until("they are connected", || desk.mesh().connected().borrow().contains(&laptop.id())).await;

    assert_eq!(far.inspect(id.clone()).await, near.inspect(id.clone()).await);
    assert_eq!(far.inspect("none".into()).await, near.inspect("none".into()).await);
    let mut run = SessionNode::run(far.clone(), sent(&id, "note", "1"));
    let ran = timeout(PATIENCE, run.done()).await.unwrap();
    assert!(matches!(&ran, Ran::Finished(parcel) if !parcel.content.is_empty()), "{ran:?}");
    let mut again = SessionNode::run(near.clone(), sent(&id, "note", "1"));
    assert_eq!(again.done().await, ran, "attached");
    again.settle(true);
    run.settle(true);
    assert_eq!(*world.script.ran.lock().unwrap(), ["chappie-1"]);
    let range = Range { limit: 10, before: None, after: None };
    let ask = HistoryAsk { session: id.clone(), range, wait: Duration::ZERO, reader: None };
    let page = far.history(ask.clone()).await;
    assert!(page.as_ref().is_ok_and(|page| !page.content.is_empty()));
    assert_eq!(page, near.history(ask).await);
    assert_eq!(far.known("never".into()).await, near.known("never".into()).await);
    assert_eq!(far.image(id.clone(), "ab".into()).await, near.image(id.clone(), "ab".into()).await);
    let never = SessionNode::run(far, sent(&id, "note", "never")).done().await;
    assert!(matches!(never, Ran::NeverRan(_)), "it was sealed when it was asked about: {never:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_a_device_that_stops_ends_the_wait_within_five_seconds() {
    let (world, session) = world().await;
    let id = session.record().id.clone();
    let [desk, laptop] = machines(["desk", "laptop"]);
    let near = local(&world);
    desk.start(desk.device.incoming(near.clone(), Arc::new(NoDoors)), &[]).await;
    laptop.start(laptop.device.incoming(near, Arc::new(NoDoors)), &[&desk]).await;
    let far = RemoteNode::new(laptop.id(), desk.device.line.clone());
    let mut run = SessionNode::run(far, sent(&id, "hang", "1"));
    until("it runs", || run.is_running()).await;
    laptop.mesh().stop().await;
    let begun = Instant::now();
    let ran = timeout(PATIENCE, run.done()).await.unwrap();
    assert!(matches!(&ran, Ran::Unknown(reason) if reason.contains("laptop")), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(8), "five, and a busy machine: {:?}", begun.elapsed());
}

struct Source(Arc<Sessions>);

impl Announces for Source {
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

struct NoFollow;

impl Follow for NoFollow {
    fn news(&self, _: NodeId, _: Roster, _: Vec<(NodeId, Vec<SocketAddr>)>) {}
}

/// Announces the sessions of a device to the broker, and waits until it has heard of them.
async fn announce(of: &Machine, world: &World, broker: &Machine) {
    let (seat, line) = (of.device.seat.clone(), of.device.line.clone());
    let source = Arc::new(Source(Arc::clone(&world.sessions)));
    let announcer = Announcer::new(seat, line, of.mesh().connected(), source, Arc::new(NoFollow), [2; 16]);
    tokio::spawn(announcer.run());
    let all = || world.sessions.infos().iter().all(|info| broker.device.roll.holder(&info.id) == Some(of.id()));
    until("it is announced", all).await;
}

/// A call for a session that it names.
fn named(session: &SessionId, conversation: &Conversation) -> Request {
    let arguments = json!({"calls": [{"name": "note", "arguments": {}}], "sessionId": session});
    let caller = Caller { conversation: Some(conversation.clone()), ..Caller::default() };
    let (arguments, cancelled) = (arguments.as_object().unwrap().clone(), CancellationToken::new());
    Request { tool: "call".into(), arguments, caller, cancelled, sent: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_two_conversations_at_one_session_costs_one_stream_a_call() {
    let (world, session) = world().await;
    let (empty, unused) = crate::sessions::testing::world().await;
    empty.sessions.end(&unused).await.unwrap();
    let [desk, laptop] = machines(["desk", "laptop"]);
    let tenure = Arc::new(Tenure { epoch: 1, term: 1 });
    let fleet = directory(&desk, local(&empty));
    let toolbox = Arc::new(Toolbox::new(desk.device.broker.clone(), fleet, tenure, PATIENCE, PATIENCE));
    desk.start(desk.device.incoming(local(&empty), Arc::new(NoDoors)), &[]).await;
    laptop.start(laptop.device.incoming(local(&world), Arc::new(NoDoors)), &[&desk]).await;
    announce(&laptop, &world, &desk).await;

    let conversations = ["v1/one", "v1/other"].map(|name| Conversation::Chat(name.into()));
    for round in 0..5 {
        for conversation in &conversations {
            let request = named(&session.record().id, conversation);
            let answer = timeout(PATIENCE, toolbox.clone().call(request)).await.unwrap().unwrap();
            assert!(!answer.is_error, "{:?}", answer.structured);
            if round == 0 {
                // It joins, and the session is told beside the call.
                let mut opened = Vec::new();
                until("the session is told", || {
                    opened.extend(desk.opened());
                    opened.len() >= 2
                })
                .await;
            } else {
                assert_eq!(desk.opened(), [StreamKind::Run], "round {round} of {conversation:?}");
            }
            // Said on the same stream, after the answer.
            answer.ticket.written();
        }
    }
    until("all is settled", || !conversations.iter().any(|chat| world.sessions.operations().has_late(chat))).await;
    assert_eq!(desk.opened(), [], "and none when all is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doors_call_goes_to_the_broker_and_on_to_the_session_of_a_third_device() {
    let (world, session) = world().await;
    let (empty, unused) = crate::sessions::testing::world().await;
    empty.sessions.end(&unused).await.unwrap();
    let [desk, laptop, phone] = machines(["desk", "laptop", "phone"]);
    let tenure = Arc::new(Tenure { epoch: 1, term: 1 });
    let tools = |machine: &Machine| {
        let own: Arc<dyn Directory> = local(&empty);
        let fleet = directory(machine, own);
        let broker = machine.device.broker.clone();
        (Arc::new(Toolbox::new(broker, fleet.clone(), tenure.clone(), PATIENCE, PATIENCE)), fleet)
    };
    let ((toolbox, fleet), Device { broker, seat, line, .. }) = (tools(&desk), &desk.device);
    let doors = Doors::new(toolbox, fleet, broker.clone(), seat.clone(), line.clone());
    desk.start(desk.device.incoming(local(&empty), Arc::new(doors)), &[]).await;
    laptop.start(laptop.device.incoming(local(&world), Arc::new(NoDoors)), &[&desk]).await;
    phone.start(phone.device.incoming(local(&empty), Arc::new(NoDoors)), &[&desk]).await;
    announce(&laptop, &world, &desk).await;

    let ((toolbox, fleet), Device { broker, seat, line, .. }) = (tools(&phone), &phone.device);
    let door = Forwarding::new(seat.clone(), toolbox, fleet, broker.clone(), line.clone(), PATIENCE);
    for number in 1..=3 {
        let arguments = json!({"calls": [{"name": "note", "arguments": {}}]}).as_object().unwrap().clone();
        let caller = Caller { conversation: Some(chat()), ..Caller::default() };
        let cancelled = CancellationToken::new();
        let request = Request { tool: "call".into(), arguments, caller, cancelled, sent: None };
        let answer = timeout(PATIENCE, door.clone().call(request)).await.unwrap().unwrap();
        let words = answer.structured["text"].as_str().unwrap().to_owned();
        assert!(!answer.is_error && words.contains("done"), "{words}");
        assert!(matches!(&answer.content[..], [Content::Text(_), ..]));
        answer.ticket.written();
        assert_eq!(world.script.ran.lock().unwrap().len(), number, "{words}");
    }
    assert_eq!(desk.device.broker.binding(&chat()), Some(session.record().id.clone()), "the broker chose it once");
    assert!(!world.sessions.operations().has_late(&chat()), "every word on an answer arrived or is on its way");
}
