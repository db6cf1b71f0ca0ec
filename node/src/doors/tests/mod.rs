//! The doors over real sockets, with a scripted [`Surface`] behind them and a client that writes its own bytes in front.

mod cancel;
mod delivery;
mod era;
mod limits;
mod lines;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::http::{HttpDoor, serve};
use crate::{
    content::JsonObject,
    host::BoxFuture,
    tools::{
        Annotations, Answer, Caller, Content, Request, ResourceError, ResourceRead, Surface, Ticket, ToolSpec,
        UnknownTool,
    },
};

/// Longest wait for what must happen; only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same where time is paused: beyond every limit of a door.
const EVER: Duration = Duration::from_secs(600);

/// What the scripted tools report.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    /// A held call began.
    Started(String),
    /// Its cancellation arrived.
    Cancelled(String),
    /// It was let go and ended by itself.
    Released(String),
    /// Its answer was written, or was not.
    Settled(String, bool),
}

/// The scripted surface: `echo` answers at once with what it was told; `hold` answers when the test lets it, or at its
/// cancellation; `big` answers with `bytes` bytes; `boom` panics.
struct Script {
    specs: Vec<ToolSpec>,
    events: mpsc::UnboundedSender<Event>,
    gates: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Script {
    fn new() -> (Arc<Self>, Events) {
        let (events, received) = mpsc::unbounded_channel();
        let specs = ["echo", "hold", "big", "boom"].map(spec).to_vec();
        (Arc::new(Self { specs, events, gates: Mutex::default() }), Events(received))
    }

    /// Lets the held call `tag` end.
    fn release(&self, tag: &str) {
        self.gate(tag).add_permits(1);
    }

    fn gate(&self, tag: &str) -> Arc<Semaphore> {
        self.gates.lock().unwrap().entry(tag.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(0))).clone()
    }

    fn tell(&self, event: Event) {
        // The test may have ended and dropped its end.
        let _ = self.events.send(event);
    }

    fn answer(&self, tag: &str, text: String, structured: Value, is_error: bool) -> Answer {
        let (events, tag) = (self.events.clone(), tag.to_owned());
        Answer {
            content: vec![Content::Text(text)],
            structured: structured.as_object().cloned().unwrap(),
            is_error,
            ticket: Ticket::new(move |written| {
                let _ = events.send(Event::Settled(tag, written));
            }),
        }
    }
}

fn spec(name: &'static str) -> ToolSpec {
    ToolSpec {
        name,
        title: "Scripted",
        description: format!("Does {name}."),
        input_schema: json!({"type": "object"}),
        output_schema: json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}),
        annotations: Annotations { read_only: true, destructive: false, idempotent: true, open_world: false },
        meta: None,
    }
}

impl Surface for Script {
    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    fn instructions(&self) -> &str {
        "Scripted instructions."
    }

    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        Box::pin(async move {
            let tag = request.arguments.get("tag").and_then(Value::as_str).unwrap_or("call").to_owned();
            match request.tool.as_str() {
                "echo" => Ok(self.answer(&tag, "echoed".to_owned(), echoed(&request), false)),
                "hold" => {
                    self.tell(Event::Started(tag.clone()));
                    let gate = self.gate(&tag);
                    tokio::select! {
                        biased;
                        () = request.cancelled.cancelled() => {
                            self.tell(Event::Cancelled(tag.clone()));
                            Ok(self.answer(&tag, "cancelled".to_owned(), json!({"text": "cancelled"}), true))
                        }
                        permit = gate.acquire() => {
                            permit.unwrap().forget();
                            self.tell(Event::Released(tag.clone()));
                            Ok(self.answer(&tag, "held".to_owned(), json!({"text": "held"}), false))
                        }
                    }
                }
                "big" => {
                    let bytes = request.arguments["bytes"].as_u64().unwrap();
                    let text = "x".repeat(usize::try_from(bytes).unwrap());
                    Ok(self.answer(&tag, text, json!({"text": ""}), false))
                }
                "boom" => panic!("boom"),
                _ => Err(UnknownTool),
            }
        })
    }

    fn disconnected(&self, _conversation: &crate::ids::Conversation) {}

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        vec![("chappie://session/{sessionId}".to_owned(), "file".to_owned(), "A file.".to_owned())]
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        _caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        Box::pin(async move {
            match uri.as_str() {
                "chappie://there" => Ok(ResourceRead { mime: "text/plain".to_owned(), bytes: b"hi".to_vec() }),
                "chappie://broken" => Err(ResourceError::Unreadable("the disk failed".to_owned())),
                _ => Err(ResourceError::NotFound(format!("{uri} is not registered"))),
            }
        })
    }
}

fn echoed(request: &Request) -> Value {
    json!({
        "text": "echoed",
        "arguments": Value::Object(JsonObject::clone(&request.arguments)),
        "conversation": request.caller.conversation.as_ref().map(crate::ids::Conversation::key),
        "requestId": request.caller.request_id,
    })
}

/// The script's reports, in order.
struct Events(mpsc::UnboundedReceiver<Event>);

impl Events {
    /// The next report.
    async fn next(&mut self) -> Event {
        tokio::time::timeout(PATIENCE, self.0.recv()).await.expect("an event in time").expect("the script lives")
    }

    /// The next report within ten minutes of paused time.
    async fn next_ever(&mut self) -> Event {
        tokio::time::timeout(EVER, self.0.recv()).await.expect("an event at all").expect("the script lives")
    }

    /// Whether a report is there now.
    fn is_quiet(&mut self) -> bool {
        self.0.is_empty()
    }
}

/// A door with its script.
struct Stand {
    script: Arc<Script>,
    events: Events,
    door: HttpDoor,
    shutdown: CancellationToken,
    _stop: DropGuard,
}

impl Stand {
    async fn open() -> Self {
        let (script, events) = Script::new();
        let shutdown = CancellationToken::new();
        let bind = "127.0.0.1:0".parse().unwrap();
        let door = serve(script.clone(), bind, shutdown.clone()).await.unwrap();
        Self { script, events, door, _stop: shutdown.clone().drop_guard(), shutdown }
    }

    async fn client(&self) -> wire::Client {
        wire::Client::connect(self.door.address).await
    }

    /// A client after its 2025-11-25 handshake.
    async fn initialized(&self) -> wire::Client {
        let mut client = self.client().await;
        client.initialize().await;
        client
    }

    fn into_door(self) -> HttpDoor {
        self.door
    }

    /// Waits until the door noticed that clients left: `count` connections remain.
    async fn connections(&self, count: usize) {
        let reached = async {
            while self.door.connections() != count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the door notices in time");
    }
}
