//! ChatGPT's part: chats that send work through any door, read answers or lose them, and ask again when a door dies.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use chappie::{
    content::Part,
    ids::Conversation,
    tools::{Answer, Caller, Request},
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    device::Inside,
    host::{LOOK, WORK},
    ledger::Ledger,
    node::Node,
    options::Broken,
};
use crate::world::{
    seed::{PerMille, Rng},
    trace::Trace,
};

/// How long a client waits for a door: its budget of 4 s, and what F23 may take beyond it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an operation is sent again when its door died or has nothing to say.
const TRIES: u64 = 6;

/// A door that can be asked now.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) name: String,
    pub(super) node: Node,
    pub(super) inside: Arc<Inside>,
}

/// Doors and sessions as clients see them.
#[derive(Clone, Default)]
pub(super) struct Street(Arc<Mutex<Shown>>);

#[derive(Clone, Default)]
struct Shown {
    doors: Vec<Door>,
    /// Each device's session, also of one that is off; by the device's number.
    sessions: Vec<Option<String>>,
}

impl Street {
    pub(super) fn show(&self, doors: Vec<Door>, sessions: Vec<Option<String>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Shown { doors, sessions };
    }

    fn look(&self) -> Shown {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn doors(&self) -> Vec<Door> {
        self.look().doors
    }
}

/// What all chats of a world share.
#[derive(Clone)]
pub(super) struct Office {
    pub(super) street: Street,
    pub(super) ledger: Ledger,
    pub(super) trace: Trace,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) sent: Arc<AtomicU64>,
    pub(super) broken: Option<Broken>,
}

/// What became of an answer on its way to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// It arrived.
    Read,
    /// It could not be written.
    Failed,
    /// It was written, and nobody was there any more.
    Unread,
}

/// One chat.
pub(super) struct Chat {
    pub(super) number: u64,
    pub(super) rng: Rng,
    pub(super) office: Office,
}

/// What a client got.
pub(super) enum Got {
    /// The door died, or said nothing.
    Nothing,
    /// An answer, and whether it was read.
    Answer { text: String, is_error: bool, read: bool },
}

impl Chat {
    /// Sends one piece of work after the other until it is told to stop.
    pub(super) async fn run(mut self) {
        while !self.office.stop.load(Ordering::SeqCst) {
            sleep(self.rng.time(50..=400)).await;
            let shown = self.office.street.look();
            let known: Vec<(usize, String)> =
                shown.sessions.into_iter().enumerate().filter_map(|(at, session)| Some((at, session?))).collect();
            let Some((device, session)) = self.rng.pick(&known).cloned() else { continue };
            if self.rng.hits(PerMille(250)) {
                self.ask("call", json!({"sessionId": session, "calls": [{"name": LOOK, "arguments": {}}]})).await;
                continue;
            }
            self.work(device, &session).await;
        }
    }

    async fn work(&mut self, device: usize, session: &str) {
        let operation = self.rng.hits(PerMille(600));
        let piece = self.office.ledger.send(device, self.number);
        // Few that outlast a call, because all of a session wait behind one: what a seed does in its time is what it tests.
        let ms = match self.rng.below(16) {
            0 => self.rng.within(4_000..=6_000),
            1..=5 => self.rng.within(50..=800),
            _ => 0,
        };
        let mut arguments =
            json!({"sessionId": session, "calls": [{"name": WORK, "arguments": {"piece": piece, "ms": ms}}]});
        if operation {
            arguments["operationId"] = Value::String(format!("operation-{piece}"));
        }
        let tries = if operation { TRIES } else { 1 };
        for _ in 0..tries {
            match self.ask("call", arguments.clone()).await {
                Got::Answer { text, is_error, read: true } => {
                    if is_error && denies(&text) && tries == 1 {
                        self.office.ledger.deny(piece, &text);
                    }
                    if !is_error && ended(&text) {
                        self.office.ledger.told(piece);
                    }
                    if !is_error || tries == 1 {
                        return;
                    }
                }
                Got::Answer { .. } | Got::Nothing => {}
            }
            sleep(self.rng.time(100..=1_000)).await;
        }
    }

    /// Asks through any door.
    pub(super) async fn ask(&mut self, tool: &str, arguments: Value) -> Got {
        let doors = self.office.street.doors();
        let Some(door) = self.rng.pick(&doors).cloned() else {
            sleep(Duration::from_millis(100)).await;
            return Got::Nothing;
        };
        self.ask_at(&door, tool, arguments).await
    }

    /// Asks through this door.
    pub(super) async fn ask_at(&mut self, door: &Door, tool: &str, arguments: Value) -> Got {
        let writing = match self.rng.below(12) {
            0 => Writing::Failed,
            1 => Writing::Unread,
            _ => Writing::Read,
        };
        self.ask_and_write(door, tool, arguments, writing).await
    }

    /// Asks through this door, and reads the answer.
    pub(super) async fn ask_and_read(&mut self, door: &Door, tool: &str, arguments: Value) -> Got {
        self.ask_and_write(door, tool, arguments, Writing::Read).await
    }

    async fn ask_and_write(&mut self, door: &Door, tool: &str, arguments: Value, writing: Writing) -> Got {
        self.office.sent.fetch_add(1, Ordering::SeqCst);
        let conversation = Some(Conversation::Chat(format!("v1/chat-{}", self.number)));
        let request = Request {
            tool: tool.to_owned(),
            arguments: arguments.as_object().cloned().unwrap_or_default(),
            caller: Caller { conversation, ..Caller::default() },
            cancelled: CancellationToken::new(),
            sent: None,
        };
        let surface = Arc::clone(&door.node.surface);
        let (ledger, broken) = (self.office.ledger.clone(), self.office.broken);
        // On the door's device: the answer is written there, and is lost with it.
        let asked = door.inside.spawn(async move {
            let answer = surface.call(request).await.ok()?;
            Some(write(&ledger, answer, writing, broken))
        });
        let got = match timeout(PATIENCE, asked).await {
            Ok(Ok(Some((text, is_error)))) => Got::Answer { text, is_error, read: writing == Writing::Read },
            _ => Got::Nothing,
        };
        let told = match &got {
            Got::Nothing => "nothing".to_owned(),
            Got::Answer { text, is_error, .. } => {
                let text: String = text.chars().take(1_200).collect();
                format!("{writing:?} {} {text:?}", if *is_error { "error" } else { "ok" })
            }
        };
        self.office
            .trace
            .event(&format!("chat {}", self.number), format_args!("{tool} {arguments} at {}: {told}", door.name));
        got
    }
}

/// Writes an answer as a door does: first the bytes, then the ticket.
fn write(ledger: &Ledger, answer: Answer, writing: Writing, broken: Option<Broken>) -> (String, bool) {
    let texts = answer.content.iter().map(|part| match part {
        Part::Text(text) => text.as_str(),
        _ => "",
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    let early = broken == Some(Broken::AckBeforeWrite);
    match writing {
        Writing::Read => ledger.read(&text, true),
        Writing::Unread => ledger.read(&text, false),
        Writing::Failed => {}
    }
    if writing != Writing::Failed || early {
        answer.ticket.written();
    }
    (text, answer.is_error)
}

/// Whether an answer that is no error says that its operation has ended, and not that it is under way.
fn ended(text: &str) -> bool {
    let under_way = text.contains("\"operation\":{");
    let replayed = text.contains("\"replay\":{");
    let uncertain = text.contains("uncertain");
    !under_way && !uncertain && (!replayed || text.contains("\"status\":\"completed\""))
}

/// Whether an answer promises that nothing ran and nothing will.
fn denies(text: &str) -> bool {
    let text = text.to_lowercase();
    ["nothing was done", "not run:", "was not run", "never ran"].iter().any(|words| text.contains(words))
}
