//! Several nodes that are one mesh: founding, joining, waiting until every door shows every session. What a test asks of
//! a mesh is asked through a door or the command line, as a person would.

use std::{
    net::UdpSocket,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    Client, Node, World,
    net::{Device, Namespace},
    node::Setup,
    wait::within,
};

/// How long a new or returned device may take until its sessions are listed; the promise is 30 s, the usual time far
/// below a second.
const LISTED: Duration = Duration::from_secs(30);

/// A setup for a device called `name`: one session of that name, in a folder of that name, when `session` says so. It listens
/// on loopback, at a port that it may find again.
#[must_use]
pub fn named(world: &World, name: &str, session: bool) -> Setup {
    let listen = format!("127.0.0.1:{}", free_port());
    let setup = Setup::new().argument("--name").argument(name).env("CHAPPIE_LISTEN", listen);
    if session { setup.session(&world.folder(name), name) } else { setup }
}

/// Starts a node called `name` with one session of that name, in a world of its own: a mesh of one.
pub async fn alone(name: &str) -> Node {
    let world = Arc::new(World::new());
    let setup = named(&world, name, true);
    Node::start(world, setup).await
}

/// A setup for a machine on a network: listening on all its addresses at the usual port, finding others by mDNS when
/// `mdns` says so.
#[must_use]
pub fn on_network(setup: Setup, mdns: bool) -> Setup {
    setup.argument("--listen").argument("[::]:24274").env("CHAPPIE_NO_MDNS", !mdns)
}

/// Starts a node on a machine of its own, called as its session.
pub async fn on(machine: &Arc<Namespace>, name: &str, mdns: bool) -> Node {
    on_with(machine, name, mdns, |setup| setup).await
}

/// The same, started as `change` says.
pub async fn on_with(machine: &Arc<Namespace>, name: &str, mdns: bool, change: impl FnOnce(Setup) -> Setup) -> Node {
    let world = Arc::new(World::on(machine));
    let setup = change(on_network(named(&world, name, true), mdns));
    Node::start(world, setup).await
}

/// Two machines of a LAN: the mesh's first device, and a second one that joined it.
pub async fn pair_on(first: &Device, second: &Device, mdns: bool) -> (Node, Node) {
    let broker = on(&first.namespace, "broker", mdns).await;
    let station = on(&second.namespace, "station", mdns).await;
    station.join(&broker.invite()).await;
    list_each_other(&[&broker, &station]).await;
    (broker, station)
}

/// The ports that are given out: below those that the system takes by itself, so that a port is still free when its device
/// was ended for a while and starts again.
const PORTS: Range<u16> = 10_000..32_000;

/// A UDP port of loopback that is free now, and stays so but for other calls of this.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    // Each test is a process; they begin at different ports.
    let first = usize::try_from(std::process::id()).unwrap_or(0).wrapping_mul(997);
    let next = || first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
    let mut ports = std::iter::repeat_with(|| PORTS.start + u16::try_from(next()).unwrap_or(0)).take(PORTS.len());
    ports.find(|port| UdpSocket::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
}

/// The rows of `sessions` that a door shows.
pub async fn listed(client: &Client) -> Vec<Value> {
    let header = client.call("sessions", json!({})).await.ok().header();
    header["sessions"].as_array().cloned().unwrap_or_default()
}

/// The names of the sessions that a door shows, sorted; none while it cannot answer.
pub async fn listed_names(door: &Node) -> Vec<String> {
    let answer = door.stateless().call("sessions", json!({})).await;
    let header = if answer.is_error { Value::Null } else { answer.header() };
    let rows = header["sessions"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = rows.iter().filter_map(|row| row["name"].as_str()).map(str::to_owned).collect();
    names.sort();
    names
}

/// Waits until a door shows exactly the sessions of these names.
///
/// # Panics
/// When it does not within 30 s.
pub async fn lists(door: &Node, names: &[&str]) {
    let mut wanted: Vec<&str> = names.to_vec();
    wanted.sort_unstable();
    let start = Instant::now();
    loop {
        let last = listed_names(door).await;
        if last == wanted {
            return;
        }
        assert!(start.elapsed() < LISTED, "after {LISTED:?} the door shows {last:?} instead of {wanted:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until each of these nodes shows the sessions of all of them (as [`named`] names them) and nothing else.
pub async fn list_each_other(nodes: &[&Node]) {
    let names: Vec<String> = nodes.iter().flat_map(|node| node.own_sessions()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for node in nodes {
        lists(node, &names).await;
    }
}

/// The id of the session called `name`, once the door shows it.
pub async fn session_at(door: &Node, name: &str) -> String {
    within(LISTED, &format!("session {name}"), async || {
        let answer = door.stateless().call("sessions", json!({})).await;
        let rows = if answer.is_error { Value::Null } else { answer.header()["sessions"].clone() };
        let row = rows.as_array()?.iter().find(|row| row["name"] == name)?.clone();
        row["id"].as_str().map(str::to_owned)
    })
    .await
}

/// Door, broker and session on three devices: the least that a mesh has to make look like one.
#[derive(Debug)]
pub struct Trio {
    /// The mesh's first device. It has the session `broker`.
    pub broker: Node,
    /// A device without sessions, to whose door the client speaks.
    pub door: Node,
    /// The device with the session `station`.
    pub station: Node,
    /// The id of that session.
    pub session: String,
}

impl Trio {
    /// Three devices, started as `change` says.
    pub async fn with(change: impl Fn(Setup) -> Setup) -> Self {
        Self::each(|_, setup| change(setup)).await
    }

    /// Three devices, each started as `change` says, which is given its name.
    pub async fn each(change: impl Fn(&str, Setup) -> Setup) -> Self {
        let worlds = [(); 3].map(|()| Arc::new(World::new()));
        let [first, second, third] = &worlds;
        let broker = Node::start(Arc::clone(first), change("broker", named(first, "broker", true))).await;
        let code = broker.invite_with(&["--uses", "2"]);
        let door = Node::start(Arc::clone(second), change("door", named(second, "door", false))).await;
        let station = Node::start(Arc::clone(third), change("station", named(third, "station", true))).await;
        door.join(&code).await;
        station.join(&code).await;
        list_each_other(&[&broker, &door, &station]).await;
        let session = station.session("station");
        Self { broker, door, station, session }
    }

    /// Three devices as they are started without further settings.
    pub async fn new() -> Self {
        Self::with(|setup| setup).await
    }

    /// Three devices of which only the first may vote: it stays the broker whatever happens to it, and nobody takes over.
    pub async fn with_one_voter() -> Self {
        Self::each(|name, setup| if name == "broker" { setup } else { setup.env("CHAPPIE_VOTER", "never") }).await
    }

    /// The ChatGPT conversation `chat` at the door, with the session `station` as its default.
    pub async fn chat(&self, chat: &str) -> Client {
        let client = self.door.chat(chat);
        client.call("init", json!({"sessionId": self.session})).await.ok();
        client
    }
}

impl Node {
    /// Its node id, as the ready line gives it.
    ///
    /// # Panics
    /// When the line does not.
    #[must_use]
    pub fn id(&self) -> &str {
        self.ready()["node"].as_str().unwrap_or_else(|| panic!("no node in {}", self.ready()))
    }

    /// Where it listens for other devices, as the ready line gives it.
    ///
    /// # Panics
    /// When the line does not.
    #[must_use]
    pub fn quic(&self) -> &str {
        self.ready()["quic"].as_str().unwrap_or_else(|| panic!("no quic in {}", self.ready()))
    }

    /// An invite code for one device.
    #[must_use]
    pub fn invite(&self) -> String {
        self.invite_with(&[])
    }

    /// An invite code, made with further arguments.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn invite_with(&self, arguments: &[&str]) -> String {
        let mut all = vec!["invite", "--json"];
        all.extend(arguments);
        let printed: Value = serde_json::from_str(&self.world.run_ok(&all)).expect("JSON as promised");
        printed["code"].as_str().unwrap_or_else(|| panic!("no code in {printed}")).to_owned()
    }

    /// Joins the mesh of a code while it runs.
    ///
    /// # Panics
    /// When it does not.
    pub async fn join(&self, code: &str) {
        let (world, code) = (Arc::clone(&self.world), code.to_owned());
        let joined = tokio::task::spawn_blocking(move || world.run_ok(&["join", &code])).await;
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    }

    /// What `chappie status --json` prints.
    ///
    /// # Panics
    /// When it is no JSON.
    #[must_use]
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.world.run_ok(&["status", "--json"])).expect("JSON as promised")
    }

    /// The row of another device in `chappie status`; null when it is not in the mesh.
    #[must_use]
    pub fn peer(&self, other: &str) -> Value {
        let status = self.status();
        let rows = status["peers"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["node"] == other).unwrap_or(Value::Null)
    }

    /// Waits until it is connected with another device.
    pub async fn connected_with(&self, other: &str) {
        within(LISTED, "a connection", async || (self.peer(other)["state"] == "connected").then_some(())).await;
    }
}
