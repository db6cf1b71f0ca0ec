//! A real store and broker around a scripted host, for the tests of sessions and of tools.

use std::{
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chappie_mesh::NodeId;
use tokio_util::sync::CancellationToken;

use super::{HostFactory, Office, Operation, Session, Sessions, Work};
use crate::{
    broker::{Broker, Settings, testing},
    budget::TextBudget,
    content::{Block, JsonObject, ToolCall, ToolResult},
    host::{BoxFuture, CallContext, Host, HostError, HostKind, Inspection},
    ids::{CallId, Conversation},
    storage::node::NodeStore,
};

/// Runs `note` (at once), `read` (at once, reads only) and `hang` (until cancelled).
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) ran: StdMutex<Vec<String>>,
    pub(crate) running: AtomicUsize,
}

struct ScriptHost(Arc<Script>);

impl Host for ScriptHost {
    fn kind(&self) -> HostKind {
        HostKind::Native
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, HostError>> {
        Box::pin(async { Ok(Inspection::default()) })
    }

    fn call(self: Arc<Self>, calls: Vec<ToolCall>, context: CallContext) -> BoxFuture<'static, Vec<ToolResult>> {
        Box::pin(async move {
            let mut results = Vec::new();
            for call in calls {
                self.0.ran.lock().unwrap().push(call.id.clone());
                self.0.running.fetch_add(1, Ordering::SeqCst);
                if call.name == "hang" {
                    context.cancel.cancelled().await;
                }
                results.push(ToolResult {
                    id: call.id,
                    name: call.name,
                    is_error: context.cancel.is_cancelled(),
                    content: vec![Block::text("done")],
                    details: None,
                });
            }
            results
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn reads_only(&self, calls: &[ToolCall]) -> bool {
        calls.iter().all(|call| call.name == "read")
    }
}

pub(crate) struct World {
    pub(crate) home: tempfile::TempDir,
    pub(crate) script: Arc<Script>,
    pub(crate) store: NodeStore,
    pub(crate) broker: Broker,
    pub(crate) sessions: Arc<Sessions>,
}

pub(crate) const CHAT: &str = "v1/chat";

pub(crate) fn chat() -> Conversation {
    Conversation::Chat(CHAT.into())
}

pub(crate) async fn open(home: tempfile::TempDir) -> World {
    let world = open_with(home, |broker| Arc::new(broker)).await;
    world.sessions.reconcile().await.unwrap();
    world
}

/// A world whose sessions know the broker as `office` shows it, and have not met it yet.
pub(crate) async fn open_with(home: tempfile::TempDir, office: impl FnOnce(Broker) -> Arc<dyn Office>) -> World {
    let script = Arc::new(Script::default());
    let settings = Settings { cooldown: Duration::from_secs(20), offline_wait: Duration::from_secs(5) };
    let (store, broker) = loop {
        // The threads of a world that was just dropped may still hold the files.
        match (NodeStore::open(home.path()), testing::alone(home.path(), NodeId::from([1; 32]), settings).await) {
            (Ok(store), Ok(broker)) => break (store, broker),
            _ => tokio::task::yield_now().await,
        }
    };
    let host = Arc::clone(&script);
    let factory: HostFactory = Arc::new(move |_| Arc::new(ScriptHost(Arc::clone(&host))));
    let office = office(broker.clone());
    let sessions = Sessions::open(home.path(), store.clone(), office, factory, CancellationToken::new()).await.unwrap();
    World { home, script, store, broker, sessions }
}

pub(crate) async fn world() -> (World, Arc<Session>) {
    let world = open(tempfile::tempdir().unwrap()).await;
    let session = world.sessions.create(world.home.path(), None).await.unwrap();
    (world, session)
}

/// Ends the world as kill -9 does: nothing is stopped, only what is on disk counts.
pub(crate) async fn crash(world: World) -> World {
    world.store.flush().await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    for file in ["node.redb", "consensus.redb"] {
        std::fs::copy(world.home.path().join(file), copy.path().join(file)).unwrap();
    }
    open(copy).await
}

pub(crate) fn work(name: &str, id: &str) -> Operation {
    let call = ToolCall { id: format!("chappie-{id}"), name: name.into(), arguments: JsonObject::new() };
    Operation {
        call_id: CallId::from(id),
        conversation: Some(chat()),
        request_id: None,
        request_key: None,
        receipt: None,
        work: Work::Call(vec![call]),
        budget: TextBudget::WHOLE,
    }
}

/// Waits until `holds`; a fault in a test shows as a panic that names what never came.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
