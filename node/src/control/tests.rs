//! Server and client over a real socket, with scripted commands behind.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chappie_mesh::{InviteCode, fresh_invite};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::Notify,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    client::Remote,
    frame::{CONNECTIONS_MAX, FRAME_BYTES_MAX},
    server::Server,
    socket, *,
};
use crate::host::HostKind;

/// Far more than anything here takes, so that a hang fails instead of blocking.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq)]
struct Said {
    session: Option<String>,
    text: String,
    images: Vec<PathBuf>,
}

#[derive(Default)]
struct Scripted {
    said: Mutex<Vec<Said>>,
    waiting: AtomicUsize,
    changed: Notify,
    entries: Mutex<Vec<LogEntry>>,
}

struct CountWhile<'a>(&'a Scripted);

impl Drop for CountWhile<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

fn session() -> SessionRow {
    SessionRow {
        id: "0197".into(),
        name: Some("web".into()),
        host: HostKind::Native,
        agent_dir: "/h".into(),
        device: "box".into(),
        cwd: "/src".into(),
        status: SessionStatus::Idle,
        binding_count: 2,
    }
}

fn peer() -> PeerRow {
    PeerRow {
        node: "P".into(),
        name: "laptop".into(),
        state: "waiting".into(),
        addresses: vec!["[fe80::1%2]:24274".into()],
        voter: true,
        lag: Some(3),
        rtt_ms: Some(0.25),
        trouble: Some("away".into()),
    }
}

fn receipt(number: usize) -> ReceiptRow {
    ReceiptRow {
        id: format!("{number:064}"),
        operation_id: format!("op-{number}"),
        kind: "bash".into(),
        conversation: "abcd".into(),
        session_id: "0197".into(),
        cwd: "/src".into(),
        status: "completed".into(),
        updated_at: "2026-01-01T00:00:00.000Z".into(),
    }
}

fn entry(id: &str, text: &str) -> LogEntry {
    LogEntry {
        id: id.into(),
        timestamp: "2026-01-01T00:00:00.000Z".into(),
        kind: "user".into(),
        text: text.into(),
        raw: json!({"type": "message"}),
    }
}

fn refuse<T: Send + 'static>(why: String) -> Reply<'static, T> {
    Box::pin(async move { Err(CommandError::new(why)) })
}

impl Commands for Scripted {
    fn status(&self) -> Reply<'_, StatusReport> {
        let broker = Some(BrokerRow { node: "N".into(), name: "box".into(), term: 1, is_self: true });
        let quorum = QuorumRow { voters: 1, reachable: 1, ok: true };
        let (node, name, version) = ("N".into(), "box".into(), "0".into());
        let sessions = vec![session()];
        Box::pin(async move {
            let trouble = Some("twice".into());
            Ok(StatusReport {
                node,
                name,
                mesh: None,
                broker,
                quorum,
                peers: vec![peer()],
                sessions,
                version,
                trouble,
                quic: None,
            })
        })
    }

    fn sessions(&self) -> Reply<'_, Vec<SessionRow>> {
        Box::pin(async { Ok(vec![session()]) })
    }

    fn session_new(&self, request: SessionNew) -> Reply<'_, SessionRow> {
        let cwd = request.dir.display().to_string();
        Box::pin(async move { Ok(SessionRow { cwd, name: request.name, ..session() }) })
    }

    fn session_end(&self, session: String) -> Reply<'_, ()> {
        refuse(format!("no session {session}"))
    }

    fn say(&self, session: Option<String>, text: String, images: Vec<PathBuf>) -> Reply<'_, String> {
        self.said.lock().unwrap().push(Said { session, text, images });
        Box::pin(async { Ok("entry-1".into()) })
    }

    fn log(&self, query: LogQuery) -> Reply<'_, LogPage> {
        Box::pin(async move {
            let page = |entries: Vec<LogEntry>| LogPage { session: "0197".into(), entries, has_more: false };
            if !query.wait {
                return Ok(page(self.entries.lock().unwrap().clone()));
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _counted = CountWhile(self);
            self.changed.notify_waiters();
            std::future::pending().await
        })
    }

    fn receipts(&self) -> Reply<'_, Vec<ReceiptRow>> {
        Box::pin(async { Ok((0..16_384).map(receipt).collect()) })
    }

    fn receipt(&self, id: String) -> Reply<'_, ReceiptReport> {
        let details = json!({"signature": id}).as_object().cloned().unwrap_or_default();
        Box::pin(async { Ok(ReceiptReport { row: receipt(1), details }) })
    }

    fn resolve(&self, id: String, how: Resolution) -> Reply<'_, ()> {
        refuse(format!("{id} is not uncertain but {how:?}"))
    }

    fn import_state(&self, path: PathBuf) -> Reply<'_, ImportRow> {
        let backup = Some(path.display().to_string());
        Box::pin(async { Ok(ImportRow { backup, imported: 1, unchanged: 2, expired: 3 }) })
    }

    fn doctor(&self) -> Reply<'_, Vec<Finding>> {
        Box::pin(async {
            Ok(vec![Finding { name: "store".into(), ok: true, detail: "fine".into(), advice: String::new() }])
        })
    }

    fn invite(&self, uses: u32, ttl_ms: u64) -> Reply<'_, InviteRow> {
        Box::pin(async move { Ok(InviteRow { code: "chappie-x".into(), expires_at: format!("{uses} {ttl_ms}") }) })
    }

    fn join(&self, code: JoinCode) -> Reply<'_, JoinRow> {
        if code.invite().addresses.is_empty() {
            return Box::pin(async { Err(CommandError::temporary("nobody answers")) });
        }
        let device = code.invite().addresses.join(" ");
        Box::pin(async { Ok(JoinRow { mesh: "M".into(), device, members: 2, already: true }) })
    }

    fn peers(&self) -> Reply<'_, Vec<PeerRow>> {
        Box::pin(async { Ok(vec![peer(), PeerRow { rtt_ms: None, trouble: None, ..peer() }]) })
    }

    fn forget(&self, device: String) -> Reply<'_, ForgetRow> {
        Box::pin(async { Ok(ForgetRow { node: "P".into(), name: device, sessions: vec![session()] }) })
    }

    fn recover(&self, accept_loss: bool) -> Reply<'_, RecoverRow> {
        let missing = if accept_loss { Vec::new() } else { vec!["tower".to_owned()] };
        Box::pin(async { Ok(RecoverRow { mesh: "M".into(), epoch: 2, missing, loss_only: false }) })
    }

    fn follow(&self, device: String) -> Reply<'_, FollowRow> {
        Box::pin(async { Ok(FollowRow { device, archived: "/h/b".into() }) })
    }

    /// Echoes until the end, so that a test sees whose bytes arrive.
    fn serve_mcp(self: Arc<Self>, mut stream: UnixStream, _session: Option<String>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
        })
    }
}

struct Running {
    home: TempDir,
    commands: Arc<Scripted>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let commands = Arc::new(Scripted::default());
        let stop = CancellationToken::new();
        let server = Server::bind(home.path()).await.unwrap();
        let task = tokio::spawn(server.serve(Arc::clone(&commands) as Arc<dyn Commands>, stop.clone()));
        Self { home, commands, stop, task }
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    async fn remote(&self) -> Remote {
        Remote::find(self.path()).await.unwrap().expect("a node runs")
    }

    async fn stopped(self) {
        self.stop.cancel();
        timeout(LIMIT, self.task).await.unwrap().unwrap();
        assert!(!self.home.path().join(socket::FILE).exists());
    }

    /// Sends raw bytes, closes the writing side, and gives every line that comes back.
    async fn exchange(&self, bytes: &[u8]) -> Vec<Value> {
        let mut stream = socket::connect(self.path()).await.unwrap().unwrap();
        // A refusal may come, and the end with it, before all is written.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut bytes = Vec::new();
        // Closed with bytes unread, the connection ends in a reset; what was answered before it is there.
        let _ = timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("an end within the limit");
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn until_waiting(&self, count: usize) {
        timeout(LIMIT, async {
            loop {
                let changed = self.commands.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.commands.waiting.load(Ordering::SeqCst) == count {
                    return;
                }
                changed.await;
            }
        })
        .await
        .expect("as many waits as expected");
    }
}

#[tokio::test]
async fn every_command_gives_through_the_socket_what_it_gives_here() {
    let node = Running::start().await;
    let (remote, local) = (node.remote().await, &node.commands);
    assert_eq!(remote.status().await, local.status().await);
    assert_eq!(remote.sessions().await, local.sessions().await);
    let new = SessionNew { dir: "/x".into(), name: Some("n".into()), host: HostKind::Native };
    assert_eq!(remote.session_new(new.clone()).await, local.session_new(new).await);
    assert_eq!(remote.session_end("s".into()).await, Err(CommandError::new("no session s")));
    assert_eq!(remote.receipt("r".into()).await, local.receipt("r".into()).await);
    let refused = remote.resolve("r".into(), Resolution::NotRun).await;
    assert_eq!(refused, local.resolve("r".into(), Resolution::NotRun).await);
    assert_eq!(remote.import_state("/f".into()).await, local.import_state("/f".into()).await);
    assert_eq!(remote.doctor().await, local.doctor().await);
    assert_eq!(remote.invite(3, 60_000).await, local.invite(3, 60_000).await);
    assert_eq!(remote.peers().await, local.peers().await);
    assert_eq!(remote.forget("laptop".into()).await, local.forget("laptop".into()).await);
    for addresses in [Vec::new(), vec!["10.0.0.2:24274".to_owned()]] {
        let (id, secret) = fresh_invite([5; 24]);
        let code = JoinCode::from(InviteCode { mesh: [7; 16].into(), inviter: [8; 32].into(), addresses, id, secret });
        assert_eq!(remote.join(code.clone()).await, local.join(code).await);
    }
    let (text, images) = ("two\nlines \u{0} ü".to_owned(), vec![PathBuf::from("/p.png")]);
    assert_eq!(remote.say(Some("s".into()), text.clone(), images.clone()).await, Ok("entry-1".into()));
    assert_eq!(*local.said.lock().unwrap(), [Said { session: Some("s".into()), text, images }]);
    node.stopped().await;
}

#[tokio::test]
async fn rows_that_together_exceed_a_frame_all_arrive() {
    let node = Running::start().await;
    let rows = node.remote().await.receipts().await.unwrap();
    assert_eq!(rows.len(), 16_384);
    assert_eq!(rows.last(), Some(&receipt(16_383)));
    let long = "x".repeat(FRAME_BYTES_MAX / 2);
    *node.commands.entries.lock().unwrap() =
        vec![entry("a", &long), entry("b", &long), entry("c", &long.repeat(3)), entry("d", "end")];
    let page = node.remote().await.log(LogQuery::default()).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(page.entries[1].text, long);
    assert!(page.entries[2].text.contains("[cut:"));
    node.stopped().await;
}

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_order() {
    let node = Running::start().await;
    let lines =
        b"{\"id\":1,\"method\":\"sessions\"}\n{\"id\":2,\"method\":\"session_end\",\"params\":{\"session\":\"q\"}}\n";
    let answers = node.exchange(lines).await;
    assert_eq!(answers.len(), 2);
    assert_eq!((&answers[0]["id"], &answers[0]["result"][0]["bindingCount"]), (&json!(1), &json!(2)));
    assert_eq!(answers[1], json!({"id": 2, "error": {"message": "no session q"}}));
    node.stopped().await;
}

#[tokio::test]
async fn bad_lines_are_answered_and_the_next_good_one_works() {
    let node = Running::start().await;
    let answers =
        node.exchange(b"nonsense\n\n{\"id\":3,\"method\":\"fly\"}\n\xff\xfe\n{\"id\":4,\"method\":\"doctor\"}\n").await;
    let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
    assert_eq!(ids, [&Value::Null, &Value::Null, &json!(3), &Value::Null, &json!(4)]);
    assert!(answers[2]["error"]["message"].as_str().unwrap().contains("fly"), "{}", answers[2]);
    assert!(answers[4]["result"].is_array());
    node.stopped().await;
}

#[tokio::test]
async fn a_line_over_the_limit_is_refused_and_the_node_goes_on() {
    let node = Running::start().await;
    let answers = node.exchange(&vec![b'x'; 2 * FRAME_BYTES_MAX]).await;
    assert!(answers[0]["error"]["message"].as_str().unwrap().contains("longer than"), "{answers:?}");
    let text = "y".repeat(FRAME_BYTES_MAX);
    let refused = node.remote().await.say(None, text, Vec::new()).await.unwrap_err();
    assert!(refused.message.contains("do not fit"), "{refused}");
    assert!(node.commands.said.lock().unwrap().is_empty());
    assert!(node.remote().await.sessions().await.is_ok());
    node.stopped().await;
}

#[tokio::test]
async fn a_connection_over_the_limit_is_turned_away_with_the_reason_and_places_come_free() {
    let node = Running::start().await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = socket::connect(node.path()).await.unwrap().unwrap();
        // An answer proves that this one has its place.
        stream.write_all(b"{\"id\":1,\"method\":\"doctor\"}\n").await.unwrap();
        timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap();
        held.push(stream);
    }
    let remote = Remote::find(node.path()).await.unwrap().unwrap();
    let error = remote.sessions().await.unwrap_err();
    assert!(error.message.contains("128 control connections"), "{error}");
    drop(held);
    timeout(LIMIT, async { while remote.sessions().await.is_err() {} }).await.unwrap();
    node.stopped().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_wait() {
    let node = Running::start().await;
    let mut stream = socket::connect(node.path()).await.unwrap().unwrap();
    stream.write_all(b"{\"id\":1,\"method\":\"log\",\"params\":{\"wait\":true}}\n").await.unwrap();
    node.until_waiting(1).await;
    drop(stream);
    node.until_waiting(0).await;
    node.stopped().await;
}

#[tokio::test]
async fn the_stop_ends_waits_and_mcp_streams_at_once_and_says_so() {
    let node = Running::start().await;
    let remote = node.remote().await;
    let mut mcp = remote.open_mcp(None).await.unwrap();
    let wait = tokio::spawn(async move { remote.log(LogQuery { wait: true, ..LogQuery::default() }).await });
    node.until_waiting(1).await;
    node.stopped().await;
    let error = timeout(LIMIT, wait).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.message, "the node stops");
    assert_eq!(timeout(LIMIT, mcp.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn after_the_answer_to_mcp_the_bytes_are_the_callback_s() {
    let node = Running::start().await;
    let mut stream = node.remote().await.open_mcp(None).await.unwrap();
    let sent = b"{\"jsonrpc\":\"2.0\"}\nnot a control frame\n";
    stream.write_all(sent).await.unwrap();
    let mut back = vec![0; sent.len()];
    timeout(LIMIT, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, sent);
    let early = node.exchange(b"{\"id\":1,\"method\":\"mcp\"}\n{\"jsonrpc\":\"2.0\"}\n").await;
    assert!(early[0]["error"]["message"].as_str().unwrap().contains("before its answer"), "{early:?}");
    node.stopped().await;
}

#[tokio::test]
async fn serving_mcp_through_another_process_carries_both_ways() {
    let node = Running::start().await;
    let (mut near, far) = UnixStream::pair().unwrap();
    let serving = tokio::spawn(Arc::new(node.remote().await).serve_mcp(far, None));
    near.write_all(b"ping").await.unwrap();
    near.shutdown().await.unwrap();
    let mut back = String::new();
    timeout(LIMIT, near.read_to_string(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, "ping");
    timeout(LIMIT, serving).await.unwrap().unwrap();
    node.stopped().await;
}

#[tokio::test]
async fn without_a_node_there_is_nothing_to_find_and_a_lost_one_is_named() {
    let home = tempfile::tempdir().unwrap();
    assert!(Remote::find(home.path()).await.unwrap().is_none());
    let node = Running::start().await;
    let remote = node.remote().await;
    node.stopped().await;
    let error = remote.status().await.unwrap_err();
    assert!(error.message.contains("no node runs") && error.message.contains("chappie up"), "{error}");
}
