//! Drives `chappie mcp`: MCP as lines on a pair of pipes.

use std::{
    collections::HashMap,
    path::Path,
    process::Stdio as Pipe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin},
    sync::oneshot,
};

use crate::{
    answer::Answer,
    client::{Revision, stateless_meta, with_meta},
    world::World,
};

/// As for HTTP: longer than any call of a test may take.
const CALL_LIMIT: Duration = Duration::from_secs(150);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A running `chappie mcp`.
#[derive(Debug)]
pub struct Stdio {
    /// The process.
    pub child: Child,
    input: Option<ChildStdin>,
    waiting: Waiting,
    next_id: AtomicU64,
    revision: Revision,
    chat: Option<String>,
    stray: Arc<Mutex<Vec<String>>>,
}

impl Stdio {
    /// Starts `chappie mcp` in the root folder of `world` and, for 2025-11-25, shakes hands.
    ///
    /// # Panics
    /// When it does not start or refuses.
    pub async fn start(world: &World, revision: Revision) -> Self {
        Self::start_in(world.root(), world, revision).await
    }

    /// The same in a folder of choice.
    ///
    /// # Panics
    /// When it does not start or refuses.
    pub async fn start_in(folder: &Path, world: &World, revision: Revision) -> Self {
        let mut stdio = Self::spawn(folder, world, revision);
        if revision == Revision::Handshake {
            let params = json!({
                "protocolVersion": revision.date(),
                "capabilities": {},
                "clientInfo": {"name": "chappie-tests", "version": "1"},
            });
            let result = stdio.request("initialize", params).await;
            assert_eq!(result["result"]["protocolVersion"], revision.date(), "{result}");
            stdio.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        }
        stdio
    }

    /// The same without a handshake.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn spawn(folder: &Path, world: &World, revision: Revision) -> Self {
        let mut command = tokio::process::Command::from(world.chappie());
        command
            .arg("mcp")
            .current_dir(folder)
            .stdin(Pipe::piped())
            .stdout(Pipe::piped())
            .stderr(Pipe::inherit())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("the program starts");
        let waiting = Waiting::default();
        let stray = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stdout.take().expect("piped above")).lines();
        tokio::spawn(deliver(lines, Arc::clone(&waiting), Arc::clone(&stray)));
        let input = child.stdin.take();
        Self { child, input, waiting, next_id: AtomicU64::new(1), revision, chat: None, stray }
    }

    /// Makes what follows part of the ChatGPT conversation `chat`.
    #[must_use]
    pub fn chat(mut self, chat: &str) -> Self {
        self.chat = Some(chat.to_owned());
        self
    }

    /// Sends a request and waits for the whole response message.
    ///
    /// # Panics
    /// When none comes.
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let (_, response) = self.begin(method, params).await;
        let response = tokio::time::timeout(CALL_LIMIT, response).await.expect("an answer in time");
        response.unwrap_or_else(|_| panic!("{method}: the program ended without an answer"))
    }

    /// Sends a request and gives its id and where its response will come.
    ///
    /// # Panics
    /// When the pipe is closed.
    pub async fn begin(&mut self, method: &str, params: Value) -> (u64, oneshot::Receiver<Value>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().expect("no holder panics").insert(id, sender);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": self.dressed(params)});
        self.write(&body).await;
        (id, receiver)
    }

    /// Calls a tool.
    ///
    /// # Panics
    /// When there is no answer or a protocol error.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Answer {
        let message = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(message.get("error").is_none(), "{tool} {arguments}: {message}");
        Answer::of(&message["result"])
    }

    /// Writes one message.
    ///
    /// # Panics
    /// When the pipe is closed.
    pub async fn write(&mut self, message: &Value) {
        self.write_line(&message.to_string()).await;
    }

    /// Writes one line as it is.
    ///
    /// # Panics
    /// When the pipe is closed.
    pub async fn write_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("not closed before");
        input.write_all(format!("{line}\n").as_bytes()).await.expect("the program reads");
        input.flush().await.expect("the program reads");
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Lines on its standard output that are not JSON-RPC: there must never be any.
    #[must_use]
    pub fn stray_lines(&self) -> Vec<String> {
        self.stray.lock().map(|lines| lines.clone()).unwrap_or_default()
    }

    fn dressed(&self, params: Value) -> Value {
        let mut meta = serde_json::Map::new();
        if self.revision == Revision::Stateless {
            meta = stateless_meta("chappie-tests", "1");
        }
        if let Some(chat) = &self.chat {
            meta.insert("openai/session".to_owned(), json!(chat));
        }
        with_meta(params, meta)
    }
}

async fn deliver(
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    waiting: Waiting,
    stray: Arc<Mutex<Vec<String>>>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            stray.lock().expect("no holder panics").push(line);
            continue;
        };
        let sender = message["id"].as_u64().and_then(|id| waiting.lock().expect("no holder panics").remove(&id));
        if let Some(sender) = sender {
            let _ = sender.send(message);
        }
    }
    // Whoever still waits learns that nothing will come.
    waiting.lock().expect("no holder panics").clear();
}
