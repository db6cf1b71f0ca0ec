//! The real program, `chappie up`, in a world of its own: started, its ready line read, killed without warning, started
//! again. Its whole process group is ended when it is dropped.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{client::Client, process, wait, world::World};

/// A node is ready in well under a second; a debug build on a busy machine needs more.
const READY: Duration = Duration::from_secs(60);
/// How long the last words of a node that ended may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How a node is started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    sessions: Vec<(PathBuf, String)>,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    prelude: Option<String>,
    clock: Option<String>,
}

impl Setup {
    /// A node without sessions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `--session folder=name`.
    #[must_use]
    pub fn session(mut self, folder: &Path, name: &str) -> Self {
        self.sessions.push((folder.to_owned(), name.to_owned()));
        self
    }

    /// Sets an environment variable of the node.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// The time a call may take before it is answered as running; 45 s unless set.
    #[must_use]
    pub fn call_budget(self, seconds: u64) -> Self {
        self.env("CHAPPIE_CALL_BUDGET", seconds)
    }

    /// The participation window in seconds; 20 s unless set.
    #[must_use]
    pub fn cooldown(self, seconds: f64) -> Self {
        self.env("CHAPPIE_COOLDOWN", seconds)
    }

    /// Adds an argument of `chappie up`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Runs shell commands in a mount namespace of the node's own before it starts, e.g. to mount a tiny disk.
    #[must_use]
    pub fn in_mount_namespace(mut self, script: &str) -> Self {
        self.prelude = Some(script.to_owned());
        self
    }

    /// Shows the node another time of day, e.g. `+365d`; time passes as ever.
    #[must_use]
    pub fn clock(mut self, offset: &str) -> Self {
        self.clock = Some(offset.to_owned());
        self
    }

    fn command(&self, world: &World) -> Command {
        let mut command = match &self.prelude {
            None if self.clock.is_some() => {
                let mut command = world.command("faketime");
                command.args(["--exclude-monotonic", "-f", self.clock.as_deref().unwrap_or_default()]);
                command.arg(world.program());
                command
            }
            None => world.chappie(),
            Some(script) => {
                let mut command = world.command("unshare");
                let program = crate::world::program(false);
                if !rustix::process::geteuid().is_root() {
                    command.arg("--map-root-user");
                }
                command.args(["--mount", "--propagation", "private", "bash", "-c"]);
                command.arg(format!("set -e\n{script}\nexec \"$0\" \"$@\"")).arg(program);
                command
            }
        };
        command.args(["up", "--json", "--mcp", "127.0.0.1:0"]);
        for (folder, name) in &self.sessions {
            let mut word = folder.as_os_str().to_owned();
            word.push(format!("={name}"));
            command.arg("--session").arg(word);
        }
        command.args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    setup: Setup,
    child: Child,
    ready: Value,
    log: Arc<Mutex<String>>,
    /// Its world. Dropped after the process.
    pub world: Arc<World>,
}

impl Node {
    /// A node with one session called `s`, in a new world; the session's folder is `T`.
    pub async fn single() -> Self {
        Self::single_with(Setup::new()).await
    }

    /// The same, started as `setup` says.
    pub async fn single_with(setup: Setup) -> Self {
        let world = Arc::new(World::new());
        let folder = world.folder("T");
        Self::start(world, setup.session(&folder, "s")).await
    }

    /// Starts a node and waits until it is ready.
    ///
    /// # Panics
    /// When it ends or stays silent instead; the message holds its log.
    pub async fn start(world: Arc<World>, setup: Setup) -> Self {
        match Self::try_start(world, setup).await {
            Ok(node) => node,
            Err(log) => panic!("the node did not become ready; its log:\n{log}"),
        }
    }

    /// Starts a node; gives its log when it does not become ready.
    ///
    /// # Errors
    /// The log, when the node ends or stays silent.
    ///
    /// # Panics
    /// When the program cannot be started at all.
    pub async fn try_start(world: Arc<World>, setup: Setup) -> Result<Self, String> {
        use std::os::unix::process::CommandExt;
        let mut command = setup.command(&world);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let read = keep_log(child.stderr.take().expect("piped above"), Arc::clone(&log));
        let lines = first_line(child.stdout.take().expect("piped above"));
        let ready = tokio::task::spawn_blocking(move || lines.recv_timeout(READY).ok()).await.ok().flatten();
        let ready = ready.and_then(|line| serde_json::from_str::<Value>(&line).ok()).filter(|value| value.is_object());
        let mut node = Self { setup, child, ready: Value::Null, log, world };
        match ready {
            Some(value) => {
                node.ready = value;
                Ok(node)
            }
            None => {
                node.kill();
                // All that it said, unless something that it started holds its standard error open.
                let _ = tokio::time::timeout(LAST_WORDS, read).await;
                Err(node.log())
            }
        }
    }

    /// The ready line.
    #[must_use]
    pub const fn ready(&self) -> &Value {
        &self.ready
    }

    /// Where MCP is served.
    ///
    /// # Panics
    /// When the ready line does not say.
    #[must_use]
    pub fn url(&self) -> &str {
        self.ready["mcp"].as_str().unwrap_or_else(|| panic!("no mcp address in {}", self.ready))
    }

    /// A client of the 2025-11-25 revision.
    pub async fn client(&self) -> Client {
        self.stateless().shake_hands().await
    }

    /// A client of the 2026-07-28 revision.
    #[must_use]
    pub fn stateless(&self) -> Client {
        Client::stateless(self.url()).on(self.world.namespace())
    }

    /// A client inside the ChatGPT conversation `chat`.
    #[must_use]
    pub fn chat(&self, chat: &str) -> Client {
        self.stateless().chat(chat)
    }

    /// The folder of the first session.
    ///
    /// # Panics
    /// When the node was started without a session.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.setup.sessions.first().expect("started with a session").0
    }

    /// The names of the sessions it was started with.
    #[must_use]
    pub fn own_sessions(&self) -> Vec<String> {
        self.setup.sessions.iter().map(|(_, name)| name.clone()).collect()
    }

    /// Changes how it will be started the next time.
    pub fn change(&mut self, change: impl FnOnce(Setup) -> Setup) {
        self.setup = change(std::mem::take(&mut self.setup));
    }

    /// Stops its process as a closed lid would (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid()) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// The id of the session called `name`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn session(&self, name: &str) -> String {
        let listed: Value =
            serde_json::from_str(&self.world.run_ok(&["sessions", "--json"])).expect("JSON as promised");
        let rows = listed["sessions"].as_array().cloned().unwrap_or_default();
        let row =
            rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no session {name} in {listed}"));
        row["id"].as_str().expect("a session has an id").to_owned()
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("Linux process ids are small")
    }

    /// Resident memory in bytes.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn resident(&self) -> u64 {
        process::resident(self.pid()).expect("the node runs")
    }

    /// What it wrote to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().map(|log| log.clone()).unwrap_or_default()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the node's own process without warning (SIGKILL) and waits until it is gone. What it started lives on.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to stop (SIGTERM) and waits until it has.
    ///
    /// # Panics
    /// When it does not stop.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let child = &mut self.child;
        let mut ended = move || matches!(child.try_wait(), Ok(Some(_))).then_some(());
        wait::eventually("the node's end after SIGTERM", || std::future::ready(ended())).await;
    }

    /// Starts it again in the same world.
    pub async fn start_again(&mut self) {
        *self = self.again().await;
    }

    /// Starts it again, to be put in the place of this one: several can be started at once.
    pub async fn again(&self) -> Self {
        Self::start(Arc::clone(&self.world), self.setup.clone()).await
    }

    /// The same, when it may not become ready.
    ///
    /// # Errors
    /// Its log then.
    pub async fn try_again(&mut self) -> Result<(), String> {
        *self = Self::try_start(Arc::clone(&self.world), self.setup.clone()).await?;
        Ok(())
    }

    /// Kills it and starts it again.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Types `text` at the session.
    pub fn say(&self, session: &str, text: &str) {
        self.world.run_ok(&["say", session, text]);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The group's id may belong to somebody else once the node was waited for.
        if self.is_running()
            && let Some(group) = Pid::from_raw(self.pid())
        {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        self.kill();
        if std::thread::panicking() {
            println!("log of the node:\n{}", self.log());
        }
    }
}

/// Keeps what is said; the receiver hears when there is no more.
fn keep_log(mut stderr: impl Read + Send + 'static, log: Arc<Mutex<String>>) -> oneshot::Receiver<()> {
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stderr.read(&mut buffer) {
            if let Ok(mut log) = log.lock() {
                log.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        }
        let _ = end.send(());
    });
    ended
}

/// Gives the first line through the channel and reads the rest away, so that the node never blocks on a full pipe.
fn first_line(stdout: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}
