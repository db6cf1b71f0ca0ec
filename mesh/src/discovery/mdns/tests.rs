//! mDNS between two devices that are network namespaces with a cable between them. Needs root, as only root may make
//! them; without it a test fails and says so.

use std::{
    fs::File,
    net::Ipv4Addr,
    os::fd::AsFd as _,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;

const HERE: [u8; 16] = [7; 16];
const ELSEWHERE: [u8; 16] = [8; 16];
/// Far longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn node(byte: u8) -> NodeId {
    NodeId::from([byte; 32])
}

/// Two namespaces and the cable between them, gone with this.
struct Cable {
    ends: [String; 2],
}

impl Cable {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let uid = rustix::process::geteuid();
        assert!(uid.is_root(), "this test makes network namespaces, which needs root: run it as root (CI does)");
        // The first namespace on a machine mounts a folder, which two at a time cannot.
        let lock = File::create(std::env::temp_dir().join("checks-netns.lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ends = ["a", "b"].map(|end| format!("mdns-{}-{number}-{end}", std::process::id()));
        let cable = Self { ends };
        for end in &cable.ends {
            ip(&format!("netns add {end}"));
        }
        let [a, b] = &cable.ends;
        // By its name an interface of a container; it counts because nothing else is there.
        ip(&format!("link add veth0 netns {a} type veth peer name veth0 netns {b}"));
        for (end, last) in cable.ends.iter().zip([1, 2]) {
            ip(&format!("-n {end} link set lo up"));
            ip(&format!("-n {end} link set veth0 address 02:00:00:00:00:0{last}"));
            ip(&format!("-n {end} addr add 10.77.0.{last}/24 dev veth0"));
            ip(&format!("-n {end} link set veth0 up"));
        }
        cable
    }

    /// Starts mDNS in a namespace; its threads stay there.
    fn start(&self, end: usize, node: NodeId, mesh: [u8; 16]) -> (Mdns, mpsc::Receiver<Sighting>) {
        let (sender, receiver) = mpsc::channel(16);
        let mdns = self.inside(end, || Mdns::start(node, mesh.into(), 7000 + u16::from(node.as_bytes()[0]), sender));
        (mdns.unwrap(), receiver)
    }

    fn inside<T: Send>(&self, end: usize, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.ends[end])).unwrap();
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = Command::new("ip").args(["netns", "delete", end]).output();
        }
    }
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Takes sightings until one fits.
fn wait_for(receiver: &mut mpsc::Receiver<Sighting>, what: &str, fits: impl Fn(&Sighting) -> bool) -> Vec<Sighting> {
    let mut seen = Vec::new();
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match receiver.try_recv() {
            Ok(sighting) => {
                let found = fits(&sighting);
                seen.push(sighting);
                if found {
                    return seen;
                }
            }
            Err(mpsc::error::TryRecvError::Empty) => thread::sleep(Duration::from_millis(10)),
            Err(mpsc::error::TryRecvError::Disconnected) => panic!("{what}: the driver ended after {seen:?}"),
        }
    }
    panic!("{what} did not come within {PATIENCE:?}, only {seen:?}");
}

fn is_at(sighting: &Sighting, who: NodeId, address: &str) -> bool {
    let address = address.parse().unwrap();
    matches!(sighting, Sighting::Seen { node, addresses } if *node == who && addresses.contains(&address))
}

#[test]
fn two_devices_on_a_link_find_each_other_and_hear_a_goodbye() {
    let cable = Cable::new();
    let (first, mut to_first) = cable.start(0, node(1), HERE);
    let (second, mut to_second) = cable.start(1, node(2), HERE);
    let seen = wait_for(&mut to_first, "the second", |sighting| is_at(sighting, node(2), "10.77.0.2:7002"));
    assert!(seen.iter().all(|sighting| sighting.node() == node(2)), "never itself: {seen:?}");
    wait_for(&mut to_second, "the first", |sighting| is_at(sighting, node(1), "10.77.0.1:7001"));
    // Its link-local address, with the number of the interface here.
    let is_scoped = |sighting: &Sighting| {
        let Sighting::Seen { addresses, .. } = sighting else { return false };
        addresses.iter().any(|address| matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0))
    };
    if !seen.iter().any(is_scoped) {
        wait_for(&mut to_first, "the link-local address", is_scoped);
    }
    second.stop();
    wait_for(&mut to_first, "the goodbye", |sighting| *sighting == Sighting::Lost { node: node(2) });
    first.stop();
    assert_eq!(to_first.try_recv(), Err(mpsc::error::TryRecvError::Disconnected), "its thread is gone");
}

#[test]
fn another_mesh_is_passed_over_until_this_device_joins_it() {
    let cable = Cable::new();
    let (first, mut to_first) = cable.start(0, node(1), HERE);
    let (_second, mut to_second) = cable.start(1, node(2), ELSEWHERE);
    // A third on the second's device is of the first's mesh: when it was heard, so was the second.
    let (_third, mut to_third) = cable.start(1, node(3), HERE);
    let seen = wait_for(&mut to_first, "the third", |sighting| is_at(sighting, node(3), "10.77.0.2:7003"));
    assert!(seen.iter().all(|sighting| sighting.node() == node(3)), "{seen:?}");
    wait_for(&mut to_third, "the first", |sighting| is_at(sighting, node(1), "10.77.0.1:7001"));
    first.retag(ELSEWHERE.into());
    wait_for(&mut to_first, "the second", |sighting| is_at(sighting, node(2), "10.77.0.2:7002"));
    let seen = wait_for(&mut to_second, "the first", |sighting| is_at(sighting, node(1), "10.77.0.1:7001"));
    assert!(seen.iter().all(|sighting| sighting.node() == node(1)), "the third is of the other mesh: {seen:?}");
    wait_for(&mut to_third, "that the first left", |sighting| *sighting == Sighting::Lost { node: node(1) });
}

#[test]
fn a_new_address_is_announced_and_a_cable_that_comes_back_is_noticed() {
    let cable = Cable::new();
    let (_first, mut to_first) = cable.start(0, node(1), HERE);
    let (_second, _to_second) = cable.start(1, node(2), HERE);
    wait_for(&mut to_first, "the second", |sighting| is_at(sighting, node(2), "10.77.0.2:7002"));
    ip(&format!("-n {} addr add 10.77.0.9/24 dev veth0", cable.ends[1]));
    wait_for(&mut to_first, "the new address", |sighting| is_at(sighting, node(2), "10.77.0.9:7002"));
    ip(&format!("-n {} link set veth0 down", cable.ends[0]));
    wait_for(&mut to_first, "the loss", |sighting| *sighting == Sighting::Lost { node: node(2) });
    ip(&format!("-n {} link set veth0 up", cable.ends[0]));
    wait_for(&mut to_first, "the second again", |sighting| is_at(sighting, node(2), "10.77.0.2:7002"));
}

#[test]
fn a_listener_that_does_not_listen_gets_the_latest_later() {
    let (sender, mut receiver) = mpsc::channel(1);
    let shared = Shared::new(node(1), HERE.into(), sender);
    let at = |last| SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), 7373));
    let says = |byte| Announcement { node: node(byte), tag: mesh_tag(HERE.into()) };
    let mut state = shared.lock();
    for last in 0..100 {
        for byte in 2..5 {
            let sightings = state.neighbours.resolved(&byte.to_string(), says(byte), [at(last)]);
            state.note(sightings);
            shared.hand_on(&mut state);
        }
    }
    assert!(state.pending.len() <= 3, "{}", state.pending.len());
    let mut latest = BTreeMap::new();
    while let Ok(sighting) = receiver.try_recv() {
        latest.insert(sighting.node(), sighting);
        shared.hand_on(&mut state);
    }
    for byte in 2..5 {
        assert_eq!(latest[&node(byte)], Sighting::Seen { node: node(byte), addresses: vec![at(99)] });
    }
}
