//! Meshes whose broker is elected: several devices of which any may be killed, paused, cut off or wiped while a call
//! runs, and a [`Watch`] that looks at all of them for what must never be seen. Which device plays which part is
//! asked of the mesh and never assumed, since leadership moves.

mod traffic;
mod watch;

use std::{
    collections::BTreeSet,
    ops::{Index, IndexMut},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::{Value, json};

pub use traffic::{Done, Traffic};
pub use watch::{Look, Watch, look};

use crate::{
    Answer, Client, Node, World, eventually,
    ledger::Ledger,
    mesh::{list_each_other, named, on_network, session_at},
    net::{Device, Lan},
    node::Setup,
    wait::within,
};

/// What the mesh promises for a new broker is about a second; a debug build on a busy machine is given more.
pub const ELECTED: Duration = Duration::from_secs(30);
/// How long voters may take until they are as many as the policy wants and all in step.
pub const SETTLED: Duration = Duration::from_secs(60);
/// What a door may take to say that nobody can decide (the 6 s), and what a busy test machine adds.
pub const MISSED: Duration = Duration::from_secs(6 + 3);

/// The names of the devices, and of the session that each has.
pub const NAMES: [&str; 5] = ["ada", "bea", "cyd", "dot", "eve"];

/// How many voters a mesh of so many devices has when all may vote (the policy).
#[must_use]
pub const fn voters_of(devices: usize) -> u64 {
    match devices {
        0..=2 => 1,
        3 | 4 => 3,
        _ => 5,
    }
}

/// Devices of one mesh, in the order in which they joined. Each stays at the address that it began with.
#[derive(Debug)]
pub struct Cluster {
    /// The devices. One may be dead or paused.
    pub nodes: Vec<Node>,
}

impl Index<usize> for Cluster {
    type Output = Node;
    fn index(&self, at: usize) -> &Node {
        &self.nodes[at]
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, at: usize) -> &mut Node {
        &mut self.nodes[at]
    }
}

impl Cluster {
    /// So many devices on loopback, settled.
    pub async fn of(devices: usize) -> Self {
        Self::with(devices, |_, setup| setup).await
    }

    /// The same, each started as `change` says, which is given its place; all of them may vote.
    pub async fn with(devices: usize, change: impl Fn(usize, Setup) -> Setup) -> Self {
        let cluster = Self::unsettled(devices, change).await;
        cluster.settled(voters_of(devices)).await;
        cluster
    }

    /// The same, not waiting until there are as many voters as there should be.
    pub async fn unsettled(devices: usize, change: impl Fn(usize, Setup) -> Setup) -> Self {
        let start = |at: usize| {
            let world = Arc::new(World::new());
            let setup = change(at, named(&world, NAMES[at], true));
            Node::start(world, setup)
        };
        let mut cluster = Self { nodes: join_all((0..devices).map(start)).await };
        for node in &mut cluster.nodes {
            let address = node.quic().to_owned();
            node.change(|setup| setup.argument("--listen").argument(&address));
        }
        cluster.join().await;
        cluster
    }

    /// So many machines of a LAN, settled, and their places on it.
    pub async fn on(lan: &Lan, devices: usize) -> (Self, Vec<Device>) {
        let machines: Vec<Device> =
            (0..devices).map(|at| lan.device(NAMES[at], &[&format!("10.77.0.{}/24", at + 1)])).collect();
        let start = |at: usize| {
            let world = Arc::new(World::on(&machines[at].namespace));
            let setup = on_network(named(&world, NAMES[at], true), false);
            Node::start(world, setup)
        };
        let cluster = Self { nodes: join_all((0..devices).map(start)).await };
        cluster.join().await;
        cluster.settled(voters_of(devices)).await;
        (cluster, machines)
    }

    async fn join(&self) {
        if let [first, others @ ..] = self.nodes.as_slice()
            && !others.is_empty()
        {
            let code = first.invite_with(&["--uses", &others.len().to_string()]);
            for other in others {
                other.join(&code).await;
            }
            list_each_other(&self.nodes.iter().collect::<Vec<_>>()).await;
        }
    }

    /// Waits until every device names the same broker, and sees `voters` voters, all of them in reach and in step.
    pub async fn settled(&self, voters: u64) {
        self.settled_among(voters, &self.all()).await;
    }

    /// The same of these devices, whatever the others do.
    ///
    /// # Panics
    /// When they do not in time; the message has what they said last.
    pub async fn settled_among(&self, voters: u64, among: &[usize]) {
        let start = std::time::Instant::now();
        loop {
            let said = self.statuses(among).await;
            if agreed(&said).is_some() && said.iter().all(|status| is_settled(status, voters)) {
                return;
            }
            assert!(start.elapsed() < SETTLED, "not {voters} voters in step after {SETTLED:?}: {}", brief(&said));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn statuses(&self, among: &[usize]) -> Vec<Value> {
        join_all(among.iter().map(|at| watch::status(&self[*at].world))).await
    }

    /// All places.
    #[must_use]
    pub fn all(&self) -> Vec<usize> {
        (0..self.nodes.len()).collect()
    }

    /// All places but these.
    #[must_use]
    pub fn besides(&self, left_out: &[usize]) -> Vec<usize> {
        self.all().into_iter().filter(|at| !left_out.contains(at)).collect()
    }

    /// The place of the broker that all devices name.
    pub async fn broker(&self) -> usize {
        self.broker_among(&self.all()).await
    }

    /// The place of the broker that these devices name, which is one of them.
    ///
    /// # Panics
    /// When they name none in time; the message has what they said last.
    pub async fn broker_among(&self, among: &[usize]) -> usize {
        let start = std::time::Instant::now();
        loop {
            let said = self.statuses(among).await;
            let named = agreed(&said).and_then(|id| among.iter().copied().find(|at| self[*at].id() == id));
            if let Some(at) = named {
                return at;
            }
            assert!(start.elapsed() < ELECTED, "no broker among {among:?} after {ELECTED:?}: {}", brief(&said));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Moves leadership to the device `to` of three, whose command line need not be in reach. No luck is in it: the third device
    /// is killed and misses a command, then the broker is killed and the third comes back, so that `to` alone has all of the
    /// log and nobody else can be elected.
    ///
    /// # Panics
    /// When it is not the broker in time.
    pub async fn lead_with(&mut self, to: usize) {
        let others = self.besides(&[to]);
        let id = self[to].id().to_owned();
        let named = self.named_by(&others).await;
        let Some(acting) = others.iter().copied().find(|at| self[*at].id() == named) else { return };
        let third = self.besides(&[to, acting])[0];
        self[third].kill();
        let name = self[to].own_sessions().remove(0);
        let session = session_at(&self[to], &name).await;
        let chat = self[to].chat(&format!("v1/lead-{}", self[acting].pid()));
        within(ELECTED, "a command that the third device misses", async || {
            let bound = chat.call("init", json!({"sessionId": session})).await;
            (!bound.is_error).then_some(())
        })
        .await;
        self[acting].kill();
        self[third].start_again().await;
        within(ELECTED, "leadership at the device", async || (self.named_by(&[third]).await == id).then_some(())).await;
        self[acting].start_again().await;
        self.settled_among(voters_of(self.nodes.len()), &others).await;
        assert_eq!(self.named_by(&others).await, id, "leadership stays where it is");
    }

    /// The node id of the broker that all these devices name.
    async fn named_by(&self, among: &[usize]) -> String {
        within(ELECTED, "a broker", async || agreed(&self.statuses(among).await)).await
    }

    /// Waits until this device knows of no broker.
    pub async fn leaderless(&self, at: usize) {
        within(ELECTED, "no broker", async || {
            let said = watch::status(&self[at].world).await;
            (said.is_object() && said["broker"].is_null()).then_some(())
        })
        .await;
    }

    /// Waits until this device knows that too few voters are in reach.
    pub async fn without_quorum(&self, at: usize) {
        within(ELECTED, "a quorum that is lost", async || {
            let said = watch::status(&self[at].world).await;
            (said["broker"].is_null() && said["quorum"]["ok"] == false).then_some(())
        })
        .await;
    }

    /// The term of the broker that this device names, once it names one.
    pub async fn term(&self, at: usize) -> u64 {
        within(ELECTED, "a term", async || watch::status(&self[at].world).await["broker"]["term"].as_u64()).await
    }

    /// Waits until these devices list the sessions of all of them and nothing else.
    pub async fn list_each_other(&self, among: &[usize]) {
        list_each_other(&among.iter().map(|at| &self[*at]).collect::<Vec<_>>()).await;
    }
}

/// The broker that all of these name, once it says so itself when it is one of them.
fn agreed(said: &[Value]) -> Option<String> {
    let named: BTreeSet<&str> =
        said.iter().map(|status| status["broker"]["node"].as_str().unwrap_or_default()).collect();
    let one = *named.first().filter(|id| named.len() == 1 && !id.is_empty())?;
    let silent = said.iter().any(|status| status["node"] == one && status["broker"]["self"] != true);
    (!silent).then(|| one.to_owned())
}

fn is_settled(status: &Value, voters: u64) -> bool {
    let quorum = &status["quorum"];
    let peers = status["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Only the broker knows how far the others are. Who is away is behind and not waited for.
    let behind = |peer: &Value| peer["state"] == "connected" && peer["lag"] != 0;
    let in_step = status["broker"]["self"] != true || !peers.iter().any(behind);
    quorum["voters"] == voters && quorum["reachable"] == voters && quorum["ok"] == true && in_step
}

fn brief(said: &[Value]) -> String {
    let one = |status: &Value| {
        let peers = status["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let peers: Vec<String> = peers
            .iter()
            .map(|peer| format!("{} {} voter {} lag {}", peer["name"], peer["state"], peer["voter"], peer["lag"]))
            .collect();
        let trouble = &status["trouble"];
        format!("{}: broker {}, quorum {}, {peers:?} {trouble}", status["name"], status["broker"], status["quorum"])
    };
    said.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// Door, broker and session on three devices of a mesh, and a ledger of what ran.
#[derive(Debug)]
pub struct Scene {
    /// The devices.
    pub cluster: Cluster,
    /// The place of the broker as it was at first.
    pub broker: usize,
    /// The place of the device to whose door the client speaks.
    pub door: usize,
    /// The place of the device whose session does the work.
    pub station: usize,
    /// The id of that session.
    pub session: String,
    /// What ran.
    pub ledger: Ledger,
}

impl Scene {
    /// Three devices, all of them voters.
    pub async fn new() -> Self {
        Self::with(3, |_, setup| setup).await
    }

    /// So many devices, each started as `change` says.
    pub async fn with(devices: usize, change: impl Fn(usize, Setup) -> Setup) -> Self {
        Self::of(Cluster::with(devices, change).await).await
    }

    /// A mesh that is there. The door is the device that joined last among those that are not the broker, and the
    /// session the first other one's.
    pub async fn of(cluster: Cluster) -> Self {
        let broker = cluster.broker().await;
        let others = cluster.besides(&[broker]);
        let (station, door) = (others[0], others[others.len() - 1]);
        let session = cluster[station].session(NAMES[station]);
        let ledger = Ledger::at(&cluster[station].folder().join("ledger"));
        Self { cluster, broker, door, station, session, ledger }
    }

    /// The conversation `chat` at the door, with the session as its default.
    pub async fn chat(&self, chat: &str) -> Client {
        let client = self.cluster[self.door].chat(chat);
        client.call("init", json!({"sessionId": self.session})).await.ok();
        client
    }

    /// A command that notes its begin and its end in the ledger and ends when [`Self::release`] says so.
    #[must_use]
    pub fn held(&self, mark: &str) -> String {
        format!(
            "{}; while [ ! -e go-{mark} ]; do sleep 0.05; done; {}; echo DONE-{mark}-$((6 * 7))",
            self.ledger.append(&format!("{mark}-begin")),
            self.ledger.append(&format!("{mark}-end"))
        )
    }

    /// Lets a held command end.
    pub fn release(&self, mark: &str) {
        let node = &self.cluster[self.station];
        node.world.put(&node.folder().join(format!("go-{mark}")), "");
    }

    /// Waits until a held command runs.
    pub async fn begun(&self, mark: &str) {
        let begun = format!("{mark}-begin");
        eventually("the command", async || (self.ledger.count(&begun) >= 1).then_some(())).await;
    }

    /// Waits until a held command has ended.
    pub async fn ended(&self, mark: &str) {
        let ended = format!("{mark}-end");
        eventually("its end", async || (self.ledger.count(&ended) >= 1).then_some(())).await;
    }

    /// Makes sure that a held command ran once, to its end.
    ///
    /// # Panics
    /// When it did not.
    pub fn ran_once(&self, mark: &str) {
        let counts = [format!("{mark}-begin"), format!("{mark}-end")].map(|id| self.ledger.count(&id));
        assert_eq!(counts, [1, 1], "{mark}: {:?}", self.ledger.counts());
    }

    /// Kills the broker and waits until the others have another; gives its place.
    pub async fn lose_broker(&mut self) -> usize {
        let lost = self.broker;
        self.cluster[lost].kill();
        self.broker_besides(lost).await
    }

    /// Waits until the devices other than `lost` have a broker among them; gives its place.
    pub async fn broker_besides(&self, lost: usize) -> usize {
        self.cluster.broker_among(&self.cluster.besides(&[lost])).await
    }

    /// Starts a device again and waits until all devices are settled.
    pub async fn back(&mut self, at: usize) {
        self.cluster[at].start_again().await;
        self.cluster.settled(voters_of(self.cluster.nodes.len())).await;
    }
}

/// The answer of a held command, once it is sure that it is that one.
///
/// # Panics
/// When it is not.
pub fn done(answer: Answer, mark: &str) -> Answer {
    let answer = answer.ok();
    assert!(answer.output().contains(&format!("DONE-{mark}-42")), "{}", crate::answer::excerpt(&answer.text()));
    answer
}

/// Makes sure that an answer is an error that came in time and has these words.
///
/// # Panics
/// When it is not.
pub fn told(answer: &Answer, start: std::time::Instant, words: &[&str]) {
    let took = start.elapsed();
    let text = answer.text();
    println!("answered after {took:?}: {}", crate::answer::excerpt(&text));
    assert!(answer.is_error, "expected an error: {}", crate::answer::excerpt(&text));
    assert!(took < MISSED, "{took:?}: {}", crate::answer::excerpt(&text));
    for word in words {
        assert!(text.contains(word), "it says {word:?}: {}", crate::answer::excerpt(&text));
    }
}
