//! Tests of the broker through its handle: a real log and store, a disk and clocks that tests control.

use std::{
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use chappie_mesh::{NodeId, consensus::Group};

use super::{meshtime::Reading, testing::place, *};
use crate::{
    ids::{CallId, Conversation, Millis, SessionId},
    storage::faulty::FaultyDisks,
};

mod group;
mod mesh;
mod replay;
mod rows;
mod selection;
mod store;
mod windows;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// 2026-09-21, where the tests' clocks start.
const START: u64 = 1_790_000_000_000;

/// Both clocks of a broker, set by the test.
#[derive(Clone, Debug)]
struct TestClock {
    wall: Arc<AtomicU64>,
    steady: Arc<AtomicU64>,
}

impl TestClock {
    fn new() -> Self {
        Self { wall: Arc::new(AtomicU64::new(START)), steady: Arc::new(AtomicU64::new(0)) }
    }

    /// Time goes by.
    fn advance(&self, ms: u64) {
        self.wall.fetch_add(ms, Ordering::SeqCst);
        self.steady.fetch_add(ms, Ordering::SeqCst);
    }

    /// Only the wall clock moves.
    fn jump(&self, ms: u64) {
        self.wall.fetch_add(ms, Ordering::SeqCst);
    }

    fn reading(&self) -> Reading {
        Reading { wall: Millis(self.wall.load(Ordering::SeqCst)), steady_ms: self.steady.load(Ordering::SeqCst) }
    }
}

/// A broker with its disk and clocks.
struct Rig {
    broker: Broker,
    disk: FaultyDisks,
    clock: TestClock,
}

impl Rig {
    async fn new(settings: Settings) -> Self {
        Self::on(FaultyDisks::default(), TestClock::new(), settings).await
    }

    async fn on(disk: FaultyDisks, clock: TestClock, settings: Settings) -> Self {
        Self::open(disk, clock, settings).await.unwrap()
    }

    /// The broker of device 1, called first.
    async fn open(disk: FaultyDisks, clock: TestClock, settings: Settings) -> Result<Self, OpenError> {
        let place = place(disk.medium(), node(1));
        Self::at(place, disk, clock, settings).await
    }

    async fn at(place: Place, disk: FaultyDisks, clock: TestClock, settings: Settings) -> Result<Self, OpenError> {
        let clocks = clock.clone();
        let broker = Broker::start(place, settings, Box::new(move || clocks.reading())).await?;
        Ok(Self { broker, disk, clock })
    }

    /// The broker of another device, called `name`, on a disk of its own.
    async fn device(who: u8, name: &str, member_of: Option<Group>) -> Self {
        let disk = FaultyDisks::default();
        let place = Place { name: name.into(), member_of, ..place(disk.medium(), node(who)) };
        Self::at(place, disk, TestClock::new(), quick()).await.unwrap()
    }

    /// Ends the broker in order and starts another on the same disk.
    async fn restart(self) -> Self {
        self.broker.close().await;
        Self::on(self.disk, self.clock, self.broker.settings).await
    }

    /// The broker that a power cut would leave.
    async fn after_power_cut(&self) -> Self {
        Self::on(self.disk.after_power_cut(), self.clock.clone(), self.broker.settings).await
    }

    fn applied(&self) -> u64 {
        *self.broker.subscribe().borrow()
    }

    fn state(&self) -> Vec<u8> {
        self.broker.shared.state().encode()
    }

    async fn session_of(&self, ask: Ask<'_>) -> String {
        self.broker.select(ask).await.unwrap().session.0
    }
}

fn node(byte: u8) -> NodeId {
    NodeId::from([byte; 32])
}

fn chat(id: &str) -> Conversation {
    Conversation::Chat(id.into())
}

fn connection(id: &str) -> Conversation {
    Conversation::Connection(id.into())
}

fn session(id: &str) -> SessionId {
    SessionId::from(id)
}

fn online(ids: &[&str]) -> Vec<Announced> {
    let announced =
        |(n, id): (u64, &&str)| Announced { session: session(id), created: Millis(n), cwd: PathBuf::from("/w") };
    (1..).zip(ids).map(announced).collect()
}

/// Selections that cannot succeed end soon.
fn quick() -> Settings {
    Settings { cooldown: Duration::from_secs(20), offline_wait: Duration::from_millis(60) }
}

/// Selections that must succeed wait long enough for any machine.
fn patient() -> Settings {
    Settings { offline_wait: Duration::from_secs(60), ..quick() }
}

fn operate(conversation: &Conversation) -> Ask<'_> {
    Ask { conversation: Some(conversation), session: None, purpose: Purpose::Operate }
}

fn operate_on<'a>(conversation: &'a Conversation, named: &str) -> Ask<'a> {
    Ask { conversation: Some(conversation), session: Some(session(named)), purpose: Purpose::Operate }
}

fn init<'a>(conversation: &'a Conversation, named: Option<&str>) -> Ask<'a> {
    Ask { conversation: Some(conversation), session: named.map(SessionId::from), purpose: Purpose::Init }
}

fn reserve(conversation: &Conversation, operation: &str, arguments: &str) -> Reserve {
    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
    Reserve {
        key: receipt_key(ReceiptScope::Conversation(conversation), ReceiptKind::Call, operation),
        signature: signature(ReceiptKind::Call, &arguments),
        operation_id: operation.into(),
        conversation: Some(conversation.clone()),
        session: session("s1"),
        cwd: PathBuf::from("/w"),
        kind: ReceiptKind::Call,
        call_id: CallId::from("call"),
    }
}

/// Waits for a condition that other threads bring about.
async fn until(condition: impl Fn() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("the condition never came");
}

/// Polls a future once; it must not be ready.
fn start<F: Future>(future: Pin<&mut F>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}
