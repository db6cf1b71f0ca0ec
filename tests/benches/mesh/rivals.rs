//! etcd and NATS JetStream, three processes each on loopback with their data on the same disk: kill -9 of the leader,
//! the time to the next write through a survivor, as shared figures were taken. A new attempt begins each 20 ms, five
//! times as often as at our door. One that is not installed is said to be missing; this is a bench and no test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use base64::Engine;
use chappie_tests::mesh::free_port;
use serde_json::{Value, json};

use super::{Row, client::median};

const KILLS: usize = 10;
const WRITES: usize = 500;
/// Between two attempts.
const ATTEMPT: Duration = Duration::from_millis(20);
/// How long a cluster may take to have a leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three processes of a rival.
struct Trio<R> {
    rival: R,
    children: Vec<Child>,
}

/// What a bench needs of a rival. Each method speaks to the process of that number.
trait Rival: Clone + Send + Sync + 'static {
    fn command(&self, at: usize) -> Command;
    /// Makes what is written to, once a leader is there.
    fn prepare(&self) -> Option<()>;
    /// The leader, when all three are there and in step.
    fn leader(&self) -> Option<usize>;
    /// A write that is acknowledged.
    fn write(&self, at: usize, within: Duration) -> Option<()>;
}

impl<R> Drop for Trio<R> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl<R: Rival> Trio<R> {
    fn start(rival: R) -> Self {
        let children = (0..3).map(|at| spawn(&rival, at)).collect();
        let trio = Self { rival, children };
        awaited(|| trio.rival.prepare());
        trio
    }

    fn leader(&self) -> usize {
        awaited(|| self.rival.leader())
    }

    /// From the kill of the leader to the first acknowledged write.
    fn lose_leader(&mut self) -> Duration {
        let lost = self.leader();
        let quiet = Instant::now();
        while quiet.elapsed() < Duration::from_secs(1) {
            let _ = self.rival.write(lost, Duration::from_secs(1));
        }
        let _ = self.children[lost].kill();
        let killed = Instant::now();
        let (done, won) = mpsc::channel();
        let survivors = [(lost + 1) % 3, (lost + 2) % 3];
        let mut attempt = 0;
        let first = loop {
            let (rival, at, done) = (self.rival.clone(), survivors[attempt % 2], done.clone());
            std::thread::spawn(move || {
                if rival.write(at, Duration::from_secs(3)).is_some() {
                    let _ = done.send(Instant::now());
                }
            });
            attempt += 1;
            match won.recv_timeout(ATTEMPT) {
                Ok(at) => break at,
                Err(_) => assert!(killed.elapsed() < PATIENCE, "no write after the loss of a leader"),
            }
        };
        let _ = self.children[lost].wait();
        self.children[lost] = spawn(&self.rival, lost);
        first - killed
    }

    fn row(mut self, name: &str) -> Row {
        let leader = self.leader();
        let mut writes: Vec<Duration> = (0..WRITES)
            .map(|_| {
                let start = Instant::now();
                self.rival.write(leader, Duration::from_secs(5)).expect("a write in quiet times");
                start.elapsed()
            })
            .collect();
        writes.sort();
        let mut gaps: Vec<Duration> = (0..KILLS).map(|_| self.lose_leader()).collect();
        gaps.sort();
        let secs = |duration: Duration| format!("{:.2} s", duration.as_secs_f64());
        let millis = |duration: Duration| format!("{:.2} ms", duration.as_secs_f64() * 1000.0);
        let measured = format!(
            "median {}, worst {} ({KILLS} runs); a write in quiet times p50 {}, p99 {}",
            secs(median(&gaps)),
            secs(gaps[gaps.len() - 1]),
            millis(median(&writes)),
            millis(writes[writes.len() * 99 / 100])
        );
        Row::new(format!("{name}: kill -9 of the leader of three → next write"), measured, "")
    }
}

fn spawn(rival: &impl Rival, at: usize) -> Child {
    let mut command = rival.command(at);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it is installed, seen before")
}

fn awaited<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "a rival did not come up");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The rows of those that are installed; what is not says so.
pub(crate) fn rows() -> Vec<Row> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = |name: &str| Row::new(format!("{name}: kill -9 of the leader of three"), "not installed", "");
    let installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let mut rows = Vec::new();
    for (name, arguments) in [
        ("etcd, defaults", &[][..]),
        ("etcd, 20/200 ms", &["--heartbeat-interval", "20", "--election-timeout", "200"][..]),
    ] {
        let home = folder.path().join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let ports = || [free_port(), free_port(), free_port()];
        rows.push(if installed("etcd") {
            let etcd = Etcd { clients: ports(), peers: ports(), folder: home.display().to_string(), arguments };
            Trio::start(etcd).row(name)
        } else {
            missing(name)
        });
    }
    let name = "NATS JetStream, R3, defaults";
    rows.push(if installed("nats-server") { Trio::start(Nats::new(folder.path())).row(name) } else { missing(name) });
    rows
}

#[derive(Clone)]
struct Etcd {
    clients: [u16; 3],
    peers: [u16; 3],
    folder: String,
    arguments: &'static [&'static str],
}

impl Etcd {
    fn ask(&self, at: usize, path: &str, body: &Value, within: Duration) -> Option<Value> {
        let address = format!("127.0.0.1:{}", self.clients[at]);
        let mut socket = TcpStream::connect(&address).ok()?;
        socket.set_nodelay(true).ok()?;
        socket.set_read_timeout(Some(within)).ok()?;
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        // Chunked or not, the object stands alone in it.
        let object = &body[body.find('{')?..=body.rfind('}')?];
        if head.starts_with("HTTP/1.1 200") { serde_json::from_str(object).ok() } else { None }
    }
}

impl Rival for Etcd {
    fn command(&self, at: usize) -> Command {
        let mut command = Command::new("etcd");
        let cluster: Vec<String> = (0..3).map(|n| format!("n{n}=http://127.0.0.1:{}", self.peers[n])).collect();
        let (client, peer) = (self.clients[at], self.peers[at]);
        let data = format!("{}/n{at}", self.folder);
        let state = if Path::new(&data).exists() { "existing" } else { "new" };
        command.args(["--name", &format!("n{at}"), "--data-dir", &data, "--log-level", "error"]);
        for flag in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([flag, &format!("http://127.0.0.1:{client}")]);
        }
        for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([flag, &format!("http://127.0.0.1:{peer}")]);
        }
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", state]);
        command.args(self.arguments);
        command
    }

    fn prepare(&self) -> Option<()> {
        self.leader().map(|_| ())
    }

    fn leader(&self) -> Option<usize> {
        let status = |at| self.ask(at, "/v3/maintenance/status", &json!({}), Duration::from_secs(1));
        let said = [status(0)?, status(1)?, status(2)?];
        let leader = said[0]["leader"].as_str()?.to_owned();
        if leader == "0" || said.iter().any(|status| status["leader"] != leader.as_str()) {
            return None;
        }
        said.iter().position(|status| status["header"]["member_id"] == leader.as_str())
    }

    fn write(&self, at: usize, within: Duration) -> Option<()> {
        let text = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let body = json!({"key": text("k"), "value": text("value")});
        self.ask(at, "/v3/kv/put", &body, within).map(|_| ())
    }
}

#[derive(Clone)]
struct Nats {
    clients: [u16; 3],
    routes: [u16; 3],
    folder: String,
}

impl Nats {
    fn new(folder: &Path) -> Self {
        let ports = || [free_port(), free_port(), free_port()];
        Self { clients: ports(), routes: ports(), folder: folder.join("nats").display().to_string() }
    }

    /// One request on a connection of its own.
    fn ask(&self, at: usize, subject: &str, payload: &str, within: Duration) -> Option<Value> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.clients[at])).ok()?;
        socket.set_nodelay(true).ok()?;
        socket.set_read_timeout(Some(within)).ok()?;
        let length = payload.len();
        let request = format!(
            "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB reply 1\r\nPUB {subject} reply {length}\r\n\
             {payload}\r\n"
        );
        socket.write_all(request.as_bytes()).ok()?;
        let mut lines = BufReader::new(socket.try_clone().ok()?);
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line.starts_with("PING") {
                socket.write_all(b"PONG\r\n").ok()?;
            } else if line.starts_with("MSG ") {
                let length: usize = line.trim().rsplit(' ').next()?.parse().ok()?;
                let mut body = vec![0; length];
                lines.read_exact(&mut body).ok()?;
                return serde_json::from_slice(&body).ok();
            }
        }
    }
}

impl Rival for Nats {
    fn command(&self, at: usize) -> Command {
        let mut command = Command::new("nats-server");
        let others = (0..3).filter(|other| *other != at);
        let routes: Vec<String> = others.map(|other| format!("nats://127.0.0.1:{}", self.routes[other])).collect();
        command.args(["-n", &format!("s{at}"), "-js", "-sd", &format!("{}/s{at}", self.folder)]);
        command.args(["-a", "127.0.0.1", "-p", &self.clients[at].to_string(), "--cluster_name", "c"]);
        command.args(["--cluster", &format!("nats://127.0.0.1:{}", self.routes[at]), "--routes", &routes.join(",")]);
        command
    }

    fn prepare(&self) -> Option<()> {
        let stream = json!({"name": "S", "subjects": ["s"], "num_replicas": 3, "retention": "limits",
            "storage": "file", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "discard": "old"});
        let made = self.ask(0, "$JS.API.STREAM.CREATE.S", &stream.to_string(), Duration::from_secs(5))?;
        made["error"].is_null().then_some(())
    }

    fn leader(&self) -> Option<usize> {
        let info = (0..3).find_map(|at| self.ask(at, "$JS.API.STREAM.INFO.S", "", Duration::from_secs(2)))?;
        let cluster = &info["cluster"];
        let replicas = cluster["replicas"].as_array()?;
        let current = replicas.len() == 2 && replicas.iter().all(|replica| replica["current"] == true);
        let leader: usize = cluster["leader"].as_str()?.strip_prefix('s')?.parse().ok()?;
        current.then_some(leader)
    }

    fn write(&self, at: usize, within: Duration) -> Option<()> {
        let acknowledged = self.ask(at, "s", "value", within)?;
        acknowledged["seq"].is_number().then_some(())
    }
}
