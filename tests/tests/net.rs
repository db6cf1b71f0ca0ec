//! The tests' own networks do what they say: without that, nothing measured over them means anything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::Command,
    time::{Duration, Instant},
};

use chappie_tests::{
    eventually,
    net::{Capture, Device, Lan, Line, Namespace, Wan},
};

const PORT: u16 = 9;

/// Echoes what comes, until the process ends.
fn echo(at: &Namespace, address: SocketAddr) {
    let socket = at.inside(|| UdpSocket::bind(address)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

fn client(at: &Namespace, server: SocketAddr) -> UdpSocket {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = at.inside(|| UdpSocket::bind(any)).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// One datagram there and back; none when it is lost.
fn round_trip(socket: &UdpSocket, bytes: &[u8]) -> Option<Duration> {
    let start = Instant::now();
    socket.send(bytes).unwrap();
    match socket.recv(&mut [0; 2048]) {
        Ok(length) => {
            assert_eq!(length, bytes.len());
            Some(start.elapsed())
        }
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::ConnectionRefused].contains(&error.kind()) => None,
        Err(error) => panic!("{error}"),
    }
}

fn names() -> String {
    String::from_utf8(Command::new("ip").args(["netns", "list"]).output().unwrap().stdout).unwrap()
}

#[test]
fn a_line_has_the_round_trip_it_is_given() {
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let server = SocketAddr::new(Wan::B, PORT);
    let wan = Wan::between(&a, &b, Line::round_trip(Duration::ZERO));
    echo(&b, server);
    echo(&b, SocketAddr::new(Wan::B6, PORT));
    for (wanted, server) in [(20, server), (100, server), (20, SocketAddr::new(Wan::B6, PORT))] {
        let wanted = Duration::from_millis(wanted);
        wan.shape(Line::round_trip(wanted));
        let socket = client(&a, server);
        let taken: Vec<Duration> = (0..20).filter_map(|_| round_trip(&socket, b"there and back")).collect();
        // The fastest one: a busy machine delays packets, and never speeds one up.
        let fastest = taken.iter().min().unwrap();
        assert!((wanted..=wanted.mul_f64(1.1)).contains(fastest), "{wanted:?}: {taken:?}");
    }
}

#[test]
fn a_line_loses_what_it_is_told_to_and_drops_oversized_packets() {
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let server = SocketAddr::new(Wan::B, PORT);
    let _wan = Wan::between(&a, &b, Line::round_trip(Duration::ZERO).losing(10).mtu(1280));
    echo(&b, server);
    let socket = client(&a, server);
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut lost = 0;
    for _ in 0..40 {
        (0..50).for_each(|_| drop(socket.send(b"x")));
        lost += 50 - (0..50).take_while(|_| socket.recv(&mut [0; 8]).is_ok()).count();
    }
    // Each way loses 1 %, so 40 are expected; 18 to 68 is beyond four standard deviations.
    assert!((18..=68).contains(&lost), "{lost} of 2000 lost");
    let too_large = [0; 1253];
    assert!(socket.send(&too_large).is_ok(), "fragmented, for IPv4");
    let probe = a.command("ping").args(["-c1", "-W1", "-M", "do", "-s", "1260", &Wan::B.to_string()]).output().unwrap();
    let said = String::from_utf8_lossy(&probe.stderr) + String::from_utf8_lossy(&probe.stdout);
    assert!(!probe.status.success() && said.contains("mtu=1280"), "{said}");
}

#[test]
fn a_cut_line_carries_nothing_and_a_dropped_one_leaves_nothing() {
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let server = SocketAddr::new(Wan::B, PORT);
    let wan = Wan::between(&a, &b, Line::round_trip(Duration::ZERO));
    echo(&b, server);
    let socket = client(&a, server);
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(round_trip(&socket, b"x").is_some());
    wan.cut();
    assert_eq!(round_trip(&socket, b"x"), None);
    assert!(a.ip("link show").contains("wan0"));
    drop(wan);
    assert!(!a.ip("link show").contains("wan0") && !b.ip("link show").contains("wan0"));
    let name = a.name().to_owned();
    assert!(names().contains(&name));
    drop(a);
    assert!(!names().contains(&name));
}

#[test]
fn a_panicking_test_leaves_no_namespace() {
    let panicked = std::thread::spawn(|| {
        let lan = Lan::new();
        let device = lan.device("doomed", &["10.77.0.1/24"]);
        std::panic::panic_any(device.namespace.name().to_owned());
    });
    let name = *panicked.join().unwrap_err().downcast::<String>().unwrap();
    assert!(!names().contains(&name));
}

#[test]
fn what_a_killed_test_left_is_swept() {
    // No process has the number 4194305: the kernel's limit is 2^22.
    let left = "checks-4194305-0-left";
    assert!(Command::new("ip").args(["netns", "add", left]).status().unwrap().success());
    Namespace::sweep();
    assert!(!names().contains(left));
}

/// Whether one of a few datagrams comes back: the first ones after a fault may go to wake up the neighbour tables.
fn reached(socket: &UdpSocket) -> bool {
    (0..10).any(|_| round_trip(socket, b"x").is_some())
}

#[test]
fn a_lan_connects_and_its_faults_work() {
    type Fault = fn(&Device);
    let lan = Lan::new();
    let a = lan.device("a", &["10.77.0.1/24", "fd77::1/64"]);
    let b = lan.device("b", &["10.77.0.2/24", "fd77::2/64"]);
    for address in ["10.77.0.2", "fd77::2"] {
        let server = SocketAddr::new(address.parse().unwrap(), PORT);
        echo(&b.namespace, server);
        let socket = client(&a.namespace, server);
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(reached(&socket), "{address}");
        let faults: [(Fault, Fault); 2] = [(Device::link_down, Device::link_up), (Device::unplug, Device::plug)];
        for (fault, mend) in faults {
            fault(&b);
            assert_eq!(round_trip(&socket, b"x"), None, "{address}");
            mend(&b);
            b.readdress(&["10.77.0.2/24", "fd77::2/64"]);
            assert!(reached(&socket), "{address} after the cable is back");
        }
        lan.lose(1000);
        assert_eq!(round_trip(&socket, b"x"), None, "{address}");
        lan.lose(0);
        assert!(reached(&socket), "{address}");
    }
    b.mtu(1280);
    assert!(b.namespace.ip("link show eth0").contains("mtu 1280"));
}

/// Whether the group member at `b` hears what `a` says to the group of mDNS.
fn hears(a: &Device, b: &Device) -> bool {
    let group = Ipv4Addr::new(224, 0, 0, 251);
    let listener = b.namespace.inside(|| UdpSocket::bind((group, 5353))).unwrap();
    listener.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, 2)).unwrap();
    listener.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let speaker = a.namespace.inside(|| UdpSocket::bind((Ipv4Addr::new(10, 77, 0, 1), 0))).unwrap();
    speaker.send_to(b"anybody there?", (group, 5353)).unwrap();
    listener.recv(&mut [0; 64]).is_ok()
}

#[test]
fn a_lan_blocks_multicast_and_nothing_else() {
    let lan = Lan::new();
    let (a, b) = (lan.device("a", &["10.77.0.1/24", "fd77::1/64"]), lan.device("b", &["10.77.0.2/24", "fd77::2/64"]));
    for device in [&a, &b] {
        device.namespace.ip("route add 224.0.0.0/4 dev eth0");
    }
    assert!(hears(&a, &b));
    lan.block_multicast();
    assert!(!hears(&a, &b));
    for address in ["10.77.0.2", "fd77::2"] {
        let server = SocketAddr::new(address.parse().unwrap(), PORT);
        echo(&b.namespace, server);
        assert!(reached(&client(&a.namespace, server)), "{address}");
    }
}

#[tokio::test]
async fn a_capture_shows_what_was_sent_and_how_much() {
    let lan = Lan::new();
    let (a, b) = (lan.device("a", &["10.77.0.1/24"]), lan.device("b", &["10.77.0.2/24"]));
    let server = SocketAddr::new("10.77.0.2".parse().unwrap(), PORT);
    echo(&b.namespace, server);
    let capture = Capture::of(&a.namespace, "eth0");
    assert!(round_trip(&client(&a.namespace, server), b"in plain sight").is_some());
    capture.seen(b"in plain sight").await;
    eventually("both datagrams", async || (capture.packets() >= 2).then_some(())).await;
    assert!(!capture.contains(b"never said"));
}
