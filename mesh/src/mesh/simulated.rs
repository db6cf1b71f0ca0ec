//! Whole meshes in one paused runtime, over a network in memory: one seed gives one run. Network, clock and randomness
//! follow from it; the rest is what runs in a real process.

use std::{
    fmt,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use data_encoding::BASE64;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{runtime::RngSeed, task::AbortHandle, time::Instant};

use super::fixture::*;
use crate::{
    identity::{Identity, Incarnation, NodeId},
    runtime::{World, inhabit},
    transport::memory::{Net, Plug, Sent},
};

/// What stands before the 32 secret bytes of an Ed25519 key (RFC 8410 section 7).
const ED25519_PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// One device's outside.
struct Outside {
    chance: Mutex<StdRng>,
    tasks: Mutex<Vec<AbortHandle>>,
    started: Instant,
}

impl Outside {
    fn new(seed: u64) -> Arc<Self> {
        let chance = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { chance, tasks: Mutex::default(), started: Instant::now() })
    }
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outside")
    }
}

impl World for Outside {
    fn wall_ms(&self) -> u64 {
        1_750_000_000_000 + u64::try_from(self.started.elapsed().as_millis()).unwrap()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.chance.lock().unwrap().fill_bytes(bytes);
    }

    fn began(&self, task: AbortHandle) {
        self.tasks.lock().unwrap().push(task);
    }
}

fn identity(number: u8) -> Arc<Identity> {
    let home = tempfile::tempdir().unwrap();
    let key = BASE64.encode(&[&ED25519_PKCS8[..], &[number; 32]].concat());
    let path = home.path().join("key.pem");
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    writeln!(file, "-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----").unwrap();
    Arc::new(Identity::load_or_create(home.path()).unwrap())
}

fn address(number: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, number), 24_274).into()
}

const NAMES: [&str; 3] = ["desk", "laptop", "tower"];

/// Starts the device with this number, counted from 1.
async fn start(net: &Arc<Net>, number: u8, run: Incarnation, outside: Arc<Outside>) -> Device {
    let identities: Vec<Arc<Identity>> = (1..=3).map(identity).collect();
    let members: Vec<(&Identity, &str)> = identities.iter().map(AsRef::as_ref).zip(NAMES).collect();
    inhabit(outside, async {
        let mut plan = Plan::new(NAMES[usize::from(number) - 1]);
        let mut roster = roster_of(&members);
        roster.mesh = [7; 16].into();
        roster.voters = members.iter().map(|(identity, _)| identity.node_id()).collect();
        let others = (1..=3).filter(|other| *other != number);
        plan.remembered = others.map(|other| (node(other), at(address(other)))).collect();
        (plan.identity, plan.listen, plan.run) = (identity(number), address(number), run);
        plan.roster = Some(roster);
        plan.sockets = Some(Arc::new(Plug(Arc::clone(net))));
        plan.start().await
    })
    .await
}

fn node(number: u8) -> NodeId {
    identity(number).node_id()
}

/// Three devices meet, talk and ask; one is killed and comes back.
async fn story(seed: u64) -> Vec<Sent> {
    let net = Net::new(seed);
    let outsides: Vec<Arc<Outside>> = (1..=3).map(|number| Outside::new(seed * 10 + number)).collect();
    let runs: Vec<Incarnation> = (1..=3).map(|number| Incarnation::first([number; 16])).collect();
    let mut devices = Vec::new();
    for number in 1..=3_u8 {
        let at = usize::from(number) - 1;
        devices.push(start(&net, number, runs[at], Arc::clone(&outsides[at])).await);
    }
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        until("they are connected", || devices[one].sees(&devices[other]) && devices[other].sees(&devices[one])).await;
        devices[one].echo(&devices[other], &vec![7; 20_000]).await;
        for (from, to) in [(one, other), (other, one)] {
            let answer = devices[from].mesh.ask_raft(devices[to].node, b"abc".to_vec(), PATIENCE).await;
            assert_eq!(answer, Ok(b"cba".to_vec()));
        }
    }
    // Switched off: nothing of it runs or sends on.
    net.unplug(address(2));
    outsides[1].tasks.lock().unwrap().drain(..).for_each(|task| task.abort());
    devices.remove(1);
    let beat = |from: &Device| {
        let mesh = from.mesh.clone();
        async move { mesh.ask_raft(node(2), b"beat".to_vec(), Duration::from_millis(100)).await }
    };
    for _ in 0..20 {
        assert!(beat(&devices[0]).await.is_err());
    }
    let off = Instant::now();
    let back = start(&net, 2, runs[1].next([9; 16]), Outside::new(seed * 10 + 9)).await;
    while beat(&devices[0]).await.is_err() {
        assert!(off.elapsed() < PATIENCE);
    }
    until("it is connected again", || devices.iter().all(|device| device.sees(&back))).await;
    println!("seed {seed}: {:?} simulated", net.age());
    devices.push(back);
    for device in &devices {
        device.mesh.stop().await;
    }
    net.trace()
}

/// On a thread of its own, where nothing is left from another run.
fn run(seed: u64) -> Vec<Sent> {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(RngSeed::from_bytes(&seed.to_be_bytes()))
            .build()
            .unwrap();
        runtime.block_on(story(seed))
    });
    thread.join().unwrap()
}

#[test]
fn one_seed_gives_one_run() {
    let mut traces = Vec::new();
    for seed in 1..=3 {
        let (once, again) = (run(seed), run(seed));
        assert!(once.len() > 200, "{}", once.len());
        let parted = once.iter().zip(&again).position(|(one, other)| one != other);
        assert_eq!(
            (parted, once.len()),
            (None, again.len()),
            "seed {seed}: {:?}",
            parted.map(|at| (once[at], again[at]))
        );
        traces.push(once);
    }
    assert!(traces[0] != traces[1] && traces[1] != traces[2], "a seed changes the run");
}

/// Simulated time goes on only while nobody has anything to do.
async fn change_and_rest() {
    let desk = start(&Net::new(1), 1, Incarnation::first([1; 16]), Outside::new(1)).await;
    for name in ["desktop", "tabletop"] {
        let node = desk.node;
        desk.change_roster(|roster| {
            roster.members.insert(node, crate::identity::Member { name: name.to_owned() });
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn a_device_whose_roster_changed_rests() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(change_and_rest());
        done.send(()).unwrap();
    });
    // Of real time: a device that turns without a rest never ends.
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
}
