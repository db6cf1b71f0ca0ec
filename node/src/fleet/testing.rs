//! Doubles for tests: a session node that does what it is told, and wires between devices that can be cut.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use chappie_mesh::{
    Member, NodeId, Roster, Stream, StreamKind,
    consensus::{Epoch, Group, MemberId, Office, Standing},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, duplex, split},
    sync::watch,
    time::sleep,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    Board, Cancel, Directory, Dispatch, HistoryAsk, Known, Parcel, Picture, Placed, Ran, Run, SessionNode, Tenure,
    feed::{Addresses, Receiver},
    line::{Line, Opener},
    protocol::ask::{DoorAsk, Reply},
    roll::{Keep, Roll},
    seat::Seat,
    serve::{Doorway, Incoming},
};
use crate::{
    broker::{Broker, Settings, testing},
    budget::TextBudget,
    content::{Part, ToolCall},
    host::{BoxFuture, HostKind, Inspection},
    ids::{CallId, Conversation, Millis, SessionId},
    sessions::{Ended, Operation, SessionInfo, Work, entry::Event},
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn node(byte: u8) -> NodeId {
    NodeId::from([byte; 32])
}

/// A mesh of devices 1, 2, 3, called one, two and three, with device 1 as broker.
pub(crate) fn roster() -> Roster {
    let mut roster = Roster::alone([7; 16].into(), node(1), "one".into());
    for (byte, name) in [(2, "two"), (3, "three")] {
        roster.members.insert(node(byte), Member { name: name.into() });
    }
    roster
}

/// How the group of devices 1, 2 and 3, all of them voters, stands as device `own` sees it: who leads, and the term of its
/// own office when it has one.
pub(crate) fn standing(own: u8, leader: Option<u8>, office: Option<u64>) -> Standing {
    let group = Group { mesh: [7; 16].into(), epoch: Epoch { count: 1, id: [1; 16] } };
    Standing {
        term: office.unwrap_or(1),
        leader: leader.map(node),
        office: office.map(|term| Office { term }),
        voters: [1, 2, 3].map(node).into(),
        applied: 1,
        ..Standing::before(group, MemberId::of(&node(own), &[own; 16]))
    }
}

pub(crate) fn text(words: &str) -> Parcel {
    Parcel { content: vec![Part::Text(words.into())], failed: false, error: None }
}

pub(crate) fn info(id: &str, created: u64) -> SessionInfo {
    SessionInfo {
        id: id.into(),
        name: None,
        host: HostKind::Native,
        agent_dir: "/home".into(),
        cwd: "/tmp".into(),
        created: Millis(created),
        executing: false,
    }
}

/// A dispatch of one tool call.
pub(crate) fn dispatch(call_id: &str, tool: &str) -> Dispatch {
    let arguments = serde_json::json!({"b": 1, "a": [null, 2.5, "ü"]}).as_object().unwrap().clone();
    let call = ToolCall { id: "m".into(), name: tool.into(), arguments };
    Dispatch {
        session: "s".into(),
        operation: Operation {
            call_id: call_id.into(),
            conversation: Some(Conversation::Chat("v1/c".into())),
            request_id: None,
            request_key: None,
            receipt: None,
            work: Work::Call(vec![call]),
            budget: TextBudget { bytes: 100, tokens: 10 },
        },
        wait: Duration::from_secs(45),
        tenure: Tenure { epoch: 1, term: 1 },
        resent: false,
    }
}

#[derive(Default)]
struct Told {
    log: Vec<String>,
    outcomes: BTreeMap<CallId, watch::Sender<Option<Ran>>>,
    sealed: BTreeSet<CallId>,
    /// The highest office seen.
    obeyed: Tenure,
}

/// A session node that does what it is told, and writes down what it is asked.
pub(crate) struct Scripted {
    told: Mutex<Told>,
    version: watch::Sender<u64>,
}

impl Scripted {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { told: Mutex::default(), version: watch::Sender::new(0) })
    }

    fn note(&self, line: String) {
        lock(&self.told).log.push(line);
        self.version.send_modify(|version| *version += 1);
    }

    pub(crate) fn log(&self) -> Vec<String> {
        lock(&self.told).log.clone()
    }

    /// Resolves once `line` is in the log.
    pub(crate) async fn saw(&self, line: &str) {
        let mut version = self.version.subscribe();
        version.wait_for(|_| self.log().iter().any(|noted| noted == line)).await.unwrap();
    }

    /// Gives an operation its outcome.
    pub(crate) fn end(&self, call_id: &str, ran: Ran) {
        lock(&self.told).outcomes[&CallId::from(call_id)].send_replace(Some(ran));
    }
}

struct ScriptedRun {
    node: Arc<Scripted>,
    call_id: CallId,
    outcome: watch::Receiver<Option<Ran>>,
    open: bool,
}

impl Run for ScriptedRun {
    fn done(&mut self) -> BoxFuture<'_, Ran> {
        Box::pin(async move { self.outcome.wait_for(Option::is_some).await.unwrap().clone().unwrap() })
    }

    fn is_taken(&self) -> bool {
        true
    }

    fn is_running(&self) -> bool {
        true
    }

    fn cancel(&mut self, reason: String) -> BoxFuture<'_, ()> {
        self.node.note(format!("cancel {} on its stream: {reason}", self.call_id));
        Box::pin(std::future::ready(()))
    }

    fn settle(mut self: Box<Self>, written: bool) {
        self.open = false;
        self.node.note(format!("run {} settled {written}", self.call_id));
    }
}

impl Drop for ScriptedRun {
    fn drop(&mut self) {
        if self.open {
            self.node.note(format!("run {} dropped", self.call_id));
        }
    }
}

impl SessionNode for Scripted {
    fn inspect(&self, session: SessionId) -> BoxFuture<'_, Result<Inspection, String>> {
        let known = session.as_str() == "s";
        let inspection = Inspection { global_agents: Some("/AGENTS.md".into()), ..Inspection::default() };
        Box::pin(std::future::ready(if known { Ok(inspection) } else { Err(format!("no session {session}")) }))
    }

    fn run(self: Arc<Self>, dispatch: Dispatch) -> Box<dyn Run> {
        let call_id = dispatch.operation.call_id.clone();
        let mut told = lock(&self.told);
        let fenced = dispatch.tenure < told.obeyed;
        told.obeyed = told.obeyed.max(dispatch.tenure);
        let outcome = if fenced {
            watch::channel(Some(Ran::Fenced("an office that is over".into()))).1
        } else if told.sealed.contains(&call_id) {
            watch::channel(Some(Ran::NeverRan("sealed".into()))).1
        } else if let Some(outcome) = told.outcomes.get(&call_id) {
            outcome.subscribe()
        } else {
            let (outcome, watched) = watch::channel(None);
            told.outcomes.insert(call_id.clone(), outcome);
            told.log.push(format!("executed {call_id}"));
            watched
        };
        drop(told);
        self.note(format!("run {call_id} begun, resent {}", dispatch.resent));
        Box::new(ScriptedRun { node: self, call_id, outcome, open: true })
    }

    fn known(&self, call_id: CallId) -> BoxFuture<'_, Result<Known, String>> {
        let mut told = lock(&self.told);
        let known = if told.outcomes.contains_key(&call_id) {
            Known::Held
        } else {
            told.sealed.insert(call_id);
            Known::Never("it was not there, and is sealed".into())
        };
        Box::pin(std::future::ready(Ok(known)))
    }

    fn board(&self, board: Board) -> BoxFuture<'_, Parcel> {
        Box::pin(std::future::ready(text(&format!("{board:?}"))))
    }

    fn settle(&self, by: CallId, written: bool) {
        self.note(format!("board {by} settled {written}"));
    }

    fn lapse(&self, by: CallId) {
        self.note(format!("board {by} lapsed"));
    }

    fn revoke(&self, call_id: CallId, reason: String) -> BoxFuture<'_, Result<(), String>> {
        self.note(format!("revoke {call_id}: {reason}"));
        Box::pin(std::future::ready(Ok(())))
    }

    fn history(&self, ask: HistoryAsk) -> BoxFuture<'_, Result<Parcel, String>> {
        Box::pin(async move {
            self.note(format!("history {}", ask.session));
            if ask.session.as_str() == "none" {
                return Err("no session none".to_owned());
            }
            sleep(ask.wait).await;
            Ok(text(&format!("{ask:?}")))
        })
    }

    fn notice(&self, session: SessionId, event: Event, message: String) {
        self.note(format!("notice {session} {event:?} {message}"));
    }

    fn cancel(&self, cancel: Cancel) -> BoxFuture<'_, bool> {
        self.note(format!("cancel {} by asking: {}", cancel.call_id, cancel.reason));
        Box::pin(std::future::ready(cancel.call_id.as_str() == "c"))
    }

    fn ended(&self, receipt: String) -> BoxFuture<'_, Option<Ended>> {
        Box::pin(std::future::ready((receipt == "r").then_some(Ended::Failed)))
    }

    fn image(&self, session: SessionId, sha256: String) -> BoxFuture<'_, Result<Option<Picture>, String>> {
        let picture = Picture { mime: "image/png".into(), bytes: vec![7; 100_000] };
        Box::pin(std::future::ready(match (session.as_str(), sha256.as_str()) {
            ("s", "ab") => Ok(Some(picture)),
            ("s", _) => Ok(None),
            _ => Err(format!("no session {session}")),
        }))
    }
}

/// What becomes of one stream.
#[derive(Clone, Default)]
struct Fate {
    cut: CancellationToken,
    /// Nothing comes through, and nobody is told.
    hung: Arc<AtomicBool>,
}

/// A pipe's end that fails once it is cut, as a stream whose connection is lost.
struct Cuttable<T> {
    half: T,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    fate: Fate,
}

impl<T> Cuttable<T> {
    fn new(half: T, fate: &Fate) -> Self {
        Self { half, cut: Box::pin(fate.cut.clone().cancelled_owned()), fate: fate.clone() }
    }

    fn lost(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        let lost = self.fate.cut.is_cancelled() || self.cut.as_mut().poll(cx).is_ready();
        lost.then(|| io::Error::new(io::ErrorKind::ConnectionReset, "did not answer for 4 s"))
    }

    fn is_hung(&self) -> bool {
        self.fate.hung.load(Ordering::Relaxed)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Cuttable<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.lost(cx) {
            Some(error) => Poll::Ready(Err(error)),
            None if self.is_hung() => Poll::Pending,
            None => Pin::new(&mut self.half).poll_read(cx, into),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Cuttable<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.lost(cx) {
            Some(error) => Poll::Ready(Err(error)),
            None if self.is_hung() => Poll::Pending,
            None => Pin::new(&mut self.half).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.lost(cx) {
            Some(error) => Poll::Ready(Err(error)),
            None if self.is_hung() => Poll::Pending,
            None => Pin::new(&mut self.half).poll_shutdown(cx),
        }
    }
}

/// Wires between devices of one test.
#[derive(Default)]
pub(crate) struct Wires {
    devices: Mutex<BTreeMap<NodeId, Arc<Incoming>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streams: Vec<([NodeId; 2], Fate)>,
    down: bool,
    /// Devices that stand still.
    hung: BTreeSet<NodeId>,
    /// Streams of these kinds are opened and nobody serves them.
    deaf: BTreeSet<StreamKind>,
    kept: Vec<Stream>,
    opened: BTreeMap<StreamKind, usize>,
}

impl Wires {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn attach(&self, node: NodeId, incoming: Arc<Incoming>) {
        lock(&self.devices).insert(node, incoming);
    }

    pub(crate) fn device(&self, node: NodeId) -> Arc<Incoming> {
        lock(&self.devices)[&node].clone()
    }

    /// Every stream of this moment is lost; new ones can be opened.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut lock(&self.state).streams).iter().for_each(|(_, fate)| fate.cut.cancel());
    }

    /// A device stands still, as after SIGSTOP or a kill that nobody has noticed: its streams are there, new ones can be
    /// opened, and nothing comes through.
    pub(crate) fn hang(&self, node: NodeId) {
        let mut state = lock(&self.state);
        state.hung.insert(node);
        let of_it = state.streams.iter().filter(|(ends, _)| ends.contains(&node));
        of_it.for_each(|(_, fate)| fate.hung.store(true, Ordering::Relaxed));
    }

    /// It goes on; the streams that it had are lost.
    pub(crate) fn wake(&self, node: NodeId) {
        let mut state = lock(&self.state);
        state.hung.remove(&node);
        state.streams.retain(|(ends, fate)| {
            let its_own = ends.contains(&node);
            if its_own {
                fate.cut.cancel();
            }
            !its_own
        });
    }

    /// Every stream is lost, and none can be opened until [`Self::up`].
    pub(crate) fn down(&self) {
        lock(&self.state).down = true;
        self.cut();
    }

    pub(crate) fn up(&self) {
        lock(&self.state).down = false;
    }

    /// Whether streams of `kind` are opened without being served.
    pub(crate) fn deafen(&self, kind: StreamKind, deaf: bool) {
        let mut state = lock(&self.state);
        if deaf {
            state.deaf.insert(kind)
        } else {
            state.deaf.remove(&kind)
        };
    }

    /// How many streams of `kind` were opened.
    pub(crate) fn opened(&self, kind: StreamKind) -> usize {
        lock(&self.state).opened.get(&kind).copied().unwrap_or_default()
    }

    /// The wires as device `own` uses them.
    pub(crate) fn of(self: &Arc<Self>, own: NodeId) -> Arc<dyn Opener> {
        Arc::new(Wire { own, wires: Arc::clone(self) })
    }

    /// [`Line`] of device `own`.
    pub(crate) fn line(self: &Arc<Self>, own: NodeId, rosters: watch::Receiver<Arc<Roster>>) -> Line {
        Line::new(self.of(own), rosters, CancellationToken::new())
    }
}

struct Wire {
    own: NodeId,
    wires: Arc<Wires>,
}

impl Wire {
    /// Both ends, one of them served; `None` when there is no way to `peer`.
    fn join(&self, peer: NodeId, kind: StreamKind) -> Option<Stream> {
        let incoming = lock(&self.wires.devices).get(&peer).cloned();
        let mut state = lock(&self.wires.state);
        *state.opened.entry(kind).or_default() += 1;
        let incoming = incoming.filter(|_| !state.down)?;
        let (here, there) = duplex(64 * 1024);
        let (fate, ends) = (Fate::default(), [self.own, peer]);
        fate.hung.store(ends.iter().any(|end| state.hung.contains(end)), Ordering::Relaxed);
        state.streams.push((ends, fate.clone()));
        let pipe = |end, label: &str| {
            let (read, write) = split(end);
            Stream::over(Cuttable::new(read, &fate), Cuttable::new(write, &fate), label)
        };
        let (ours, theirs) = (pipe(here, "two"), pipe(there, "one"));
        if state.deaf.contains(&kind) {
            state.kept.push(theirs);
        } else {
            drop(state);
            incoming.stream(self.own, kind, theirs);
        }
        Some(ours)
    }
}

impl Opener for Wire {
    fn open(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> BoxFuture<'_, Result<Stream, String>> {
        Box::pin(async move {
            if let Some(stream) = self.join(peer, kind) {
                return Ok(stream);
            }
            sleep(wait).await;
            Err("two is not connected".to_owned())
        })
    }
}

/// Keeps nothing but the last word of each member.
#[derive(Default)]
pub(crate) struct Kept(Mutex<BTreeMap<NodeId, Vec<SessionId>>>);

impl Keep for Kept {
    fn keep(&self, node: NodeId, sessions: Vec<SessionId>) {
        lock(&self.0).insert(node, sessions);
    }

    fn kept(&self, node: &NodeId) -> Vec<SessionId> {
        lock(&self.0).get(node).cloned().unwrap_or_default()
    }
}

/// Knows no addresses.
struct Nowhere;

impl Addresses for Nowhere {
    fn addresses(&self, _to: NodeId) -> Vec<(NodeId, Vec<SocketAddr>)> {
        Vec::new()
    }
}

/// A device without doors.
pub(crate) struct NoDoors;

impl Doorway for NoDoors {
    fn call(&self, _: NodeId, _: Stream) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn ask(&self, _: NodeId, _: DoorAsk) -> BoxFuture<'static, Reply> {
        Box::pin(std::future::ready(Reply::Done))
    }

    fn settle(&self, _: &CallId, _: bool) -> bool {
        false
    }
}

/// A device's own directory with one session at one node.
pub(crate) struct Only(pub(crate) Arc<Scripted>, pub(crate) SessionInfo);

impl Directory for Only {
    fn find(&self, session: &SessionId) -> Option<Placed> {
        self.list().into_iter().find(|placed| placed.info.id == *session)
    }

    fn list(&self) -> Vec<Placed> {
        vec![Placed { info: self.1.clone(), device: "own".into(), node: self.0.clone() }]
    }

    fn late(&self, _: &Conversation) -> Vec<Arc<dyn SessionNode>> {
        Vec::new()
    }

    fn nodes(&self) -> Vec<Arc<dyn SessionNode>> {
        vec![self.0.clone()]
    }
}

/// What one device has of the fleet, whatever it serves.
pub(crate) struct Device {
    pub(crate) broker: Broker,
    pub(crate) roll: Arc<Roll>,
    pub(crate) line: Line,
    pub(crate) seat: Seat,
    own: NodeId,
    rosters: watch::Receiver<Arc<Roster>>,
    _home: tempfile::TempDir,
}

impl Device {
    pub(crate) fn new(wires: &Arc<Wires>, own: NodeId, rosters: watch::Receiver<Arc<Roster>>) -> Self {
        Self::on(wires.line(own, rosters.clone()), own, rosters)
    }

    /// A device that sees the seat as `standings` say.
    pub(crate) fn seated(
        wires: &Arc<Wires>,
        own: NodeId,
        rosters: watch::Receiver<Arc<Roster>>,
        standings: watch::Receiver<Arc<Standing>>,
    ) -> Self {
        let mut device = Self::new(wires, own, rosters.clone());
        device.seat = Seat::new(own, standings, rosters);
        device
    }

    /// A device whose streams go over `line`.
    pub(crate) fn on(line: Line, own: NodeId, rosters: watch::Receiver<Arc<Roster>>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let broker = testing::apart(home.path(), own, Settings::default());
        let roll = Roll::new(own, broker.clone(), Arc::new(Kept::default()));
        let seat = Seat::fixed(own, rosters.clone());
        Self { broker, roll, line, seat, own, rosters, _home: home }
    }

    /// Serves streams of other devices.
    pub(crate) fn serve(&self, wires: &Arc<Wires>, node: Arc<dyn SessionNode>, doorway: Arc<dyn Doorway>) {
        wires.attach(self.own, self.incoming(node, doorway));
    }

    /// What takes its streams.
    pub(crate) fn incoming(&self, node: Arc<dyn SessionNode>, doorway: Arc<dyn Doorway>) -> Arc<Incoming> {
        let connected = watch::channel(Arc::default()).1;
        let (roll, line) = (self.roll.clone(), self.line.clone());
        let feeds = Receiver::new(roll, self.rosters.clone(), connected, Arc::new(Nowhere), line.clone());
        Incoming::new(node, self.broker.clone(), doorway, feeds, self.seat.clone(), line)
    }
}
