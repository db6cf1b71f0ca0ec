//! Who is no member, and members that break the rules: bounded, told why, and nothing else suffers.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use super::fixture::*;
use crate::{
    identity::{Identity, Incarnation, Member, Roster},
    router::join,
    transport::{Connection, Ended, Endpoint, Line, Protocol, Stream, StreamError},
    wire::{CloseCode, Hello, StreamKind, encode_frame},
};

/// A program that speaks QUIC and TLS and otherwise does what it likes.
struct Raw {
    endpoint: Endpoint,
    identity: Arc<Identity>,
}

struct Nobody;

impl Line for Nobody {
    fn label(&self) -> &str {
        "it"
    }

    fn lost(&self, how: &Ended) -> String {
        format!("it {how}")
    }
}

impl Raw {
    fn new(answers: bool) -> Self {
        let identity = fresh_identity();
        let endpoint = Endpoint::bind(&identity, "127.0.0.1:0".parse().unwrap(), answers, None).unwrap();
        Self { endpoint, identity }
    }

    /// One that is on the roster of `device`.
    fn member_of(device: &Device, answers: bool) -> Self {
        let raw = Self::new(answers);
        let node = raw.identity.node_id();
        device.change_roster(|roster| {
            roster.members.insert(node, Member { name: "raw".to_owned() });
        });
        raw
    }

    async fn dial(&self, device: &Device, protocol: Protocol) -> Connection {
        self.endpoint.dial(device.mesh.local_addr(), protocol, Some(device.node)).await.unwrap()
    }

    /// A member's hello to `device`.
    fn hello(&self, roster: &Roster) -> Hello {
        Hello {
            protocol: 1,
            protocol_min: 1,
            features: 0,
            build: "raw".to_owned(),
            name: "raw".to_owned(),
            mesh: roster.mesh,
            epoch: roster.epoch,
            roster_version: roster.version,
            incarnation: Incarnation::first([1; 16]),
            addresses: Vec::new(),
            ext: Vec::new(),
        }
    }

    /// A connection on which both said hello, and the mesh's own stream of it.
    async fn greeted(&self, device: &Device) -> (Connection, Stream) {
        let connection = self.dial(device, Protocol::Mesh).await;
        let mut own = connection.open(0, Arc::new(Nobody)).await.unwrap();
        let hello = self.hello(&device.roster.borrow());
        own.send.message(&hello).await.unwrap();
        own.recv.message::<Hello>(1 << 16).await.unwrap().unwrap();
        (connection, own)
    }
}

async fn end(connection: &Connection) -> (CloseCode, String) {
    match tokio::time::timeout(PATIENCE, connection.ended()).await.expect("it is closed") {
        Ended::Closed { code: Some(code), reason } => (code, reason),
        other => panic!("{other}"),
    }
}

/// Sends bytes as they are: a stream's first byte, and what follows.
async fn open_with(connection: &Connection, first: u8, bytes: &[u8]) -> Stream {
    let mut stream = connection.open(first, Arc::new(Nobody)).await.unwrap();
    stream.send.raw(bytes).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_gets_nothing_whatever_it_says() {
    let desk = Plan::new("desk").start().await;
    let stranger = Raw::new(false);
    let connection = stranger.dial(&desk, Protocol::Mesh).await;
    let (code, reason) = end(&connection).await;
    assert_eq!(code, CloseCode::NotMember);
    assert!(reason.contains("join with an invite"), "{reason}");
    // Through the other door it gets a request's worth of one stream.
    let connection = stranger.dial(&desk, Protocol::Join).await;
    let _ask = open_with(&connection, StreamKind::Ask.byte(), b"\0\0\0\x01x").await;
    let second = tokio::time::timeout(Duration::from_millis(300), connection.open(1, Arc::new(Nobody))).await;
    assert!(matches!(second, Err(_) | Ok(Err(_))), "a second stream");
    assert_eq!(end(&connection).await.0, CloseCode::Malformed);
    assert_eq!(desk.told.taken.load(SeqCst), 0, "no stream was accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_says_nothing_or_too_much_or_nonsense_is_closed() {
    let desk = Plan::new("desk").start().await;
    let stranger = Raw::new(false);
    let silent = stranger.dial(&desk, Protocol::Join).await;
    let half = stranger.dial(&desk, Protocol::Join).await;
    let _half = open_with(&half, 0, &[0, 0, 1, 0, 1, 1]).await;
    let long = stranger.dial(&desk, Protocol::Join).await;
    let _long = open_with(&long, 0, &[0xff; 40]).await;
    let nonsense = stranger.dial(&desk, Protocol::Join).await;
    let _nonsense = open_with(&nonsense, 0, &encode_frame(&[1; 100]).unwrap()).await;
    let newer = stranger.dial(&desk, Protocol::Join).await;
    let _newer = open_with(&newer, 0, &encode_frame(&[9, 8, 1, 2, 3]).unwrap()).await;
    assert_eq!(end(&long).await.0, CloseCode::Malformed);
    assert_eq!(end(&nonsense).await.0, CloseCode::Malformed);
    let (code, reason) = end(&newer).await;
    assert!(code == CloseCode::Version && reason.contains("8 to 9"), "{code:?} {reason}");
    assert_eq!(end(&silent).await.0, CloseCode::Silent);
    assert_eq!(end(&half).await.0, CloseCode::Silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_joins_from_one_address_is_told_to_wait() {
    let desk = Plan::new("desk").start().await;
    let mut code = desk.invite();
    *desk.told.invite.lock().unwrap() = None;
    let stranger = Raw::new(false);
    let mut busy = 0;
    for _ in 0..50 {
        let connection = stranger.dial(&desk, Protocol::Join).await;
        // It may be closed before the first word.
        let stream = connection.open(0, Arc::new(Nobody)).await;
        if let Ok(mut stream) = stream {
            let _ = stream.send.raw(&encode_frame(&[1; 100]).unwrap()).await;
        }
        busy += u32::from(end(&connection).await.0 == CloseCode::Busy);
    }
    assert!(busy >= 5, "{busy} of 50 were told that it is busy");
    // A person behind the same address gets through a little later.
    code.addresses = vec![desk.mesh.local_addr().to_string()];
    let error = join(&fresh_identity(), "late", "test", &code).await.unwrap_err();
    assert!(error.to_string().contains("spent"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_disturbs_nobody() {
    let (desk, laptop) = pair().await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for length in (1..1400).step_by(7).chain([1200; 300]) {
        let datagram: Vec<u8> = (0..length)
            .map(|at| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Every other one looks like the first packet of a connection.
                if at == 0 && length == 1200 { 0xc3 } else { seed.to_be_bytes()[0] }
            })
            .collect();
        socket.send_to(&datagram, desk.mesh.local_addr()).await.unwrap();
        if length % 50 == 0 {
            laptop.echo(&desk, b"still here").await;
        }
    }
    laptop.echo(&desk, &[3; 100_000]).await;
    assert_eq!(desk.mesh.core().table.links().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_is_late_too_long_nonsense_or_of_another_mesh_is_refused_by_its_code() {
    let desk = Plan::new("desk").start().await;
    let raw = Raw::member_of(&desk, false);
    let roster = desk.roster.borrow().clone();
    let silent = raw.dial(&desk, Protocol::Mesh).await;
    let half = raw.dial(&desk, Protocol::Mesh).await;
    let _half = open_with(&half, 0, &[0, 0, 0, 100, 1, 1]).await;
    let mut other_mesh = raw.hello(&roster);
    other_mesh.mesh = random().into();
    let hello = |hello: &Hello| encode_frame(&crate::wire::encode(hello).unwrap()).unwrap();
    let table = [
        (0, vec![0xff; 30], CloseCode::Malformed, "most"),
        (0, encode_frame(&[1; 60]).unwrap(), CloseCode::Malformed, "not the expected message"),
        (7, hello(&raw.hello(&roster)), CloseCode::Malformed, "no hello came first"),
        (0, encode_frame(&[9, 8, 1, 2]).unwrap(), CloseCode::Version, "protocols 8 to 9"),
        (0, hello(&other_mesh), CloseCode::OtherMesh, "not one mesh"),
    ];
    for (first, bytes, code, words) in table {
        let connection = raw.dial(&desk, Protocol::Mesh).await;
        let _stream = open_with(&connection, first, &bytes).await;
        let (found, reason) = end(&connection).await;
        assert!(found == code && reason.contains(words), "{found:?} {reason}");
    }
    assert_eq!(end(&silent).await.0, CloseCode::Silent);
    assert_eq!(end(&half).await.0, CloseCode::Silent);
    assert_eq!(desk.told.taken.load(SeqCst), 0);
    assert!(desk.mesh.core().table.links().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_another_version_is_named_by_the_side_that_dials() {
    let desk = Plan::new("desk").start().await;
    let raw = Raw::member_of(&desk, true);
    desk.mesh.learn(vec![(raw.identity.node_id(), vec![raw.endpoint.address()])]);
    let connection = raw.endpoint.knock().await.unwrap().handshake().await.unwrap();
    let arrival = connection.accept().await.unwrap();
    let (_, mut stream) = arrival.first(|_| Arc::new(Nobody)).await.unwrap();
    stream.recv.message::<Hello>(1 << 16).await.unwrap().unwrap();
    stream.send.raw(&encode_frame(&[4, 3, 0]).unwrap()).await.unwrap();
    let (code, reason) = end(&connection).await;
    assert!(code == CloseCode::Version && reason.contains("protocols 3 to 4"), "{code:?} {reason}");
    let trouble = || desk.mesh.peers()[0].trouble.clone().unwrap_or_default();
    until("the desk says it", || trouble().contains("speaks protocol 1 and the other protocols 3 to 4")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_answers_for_another_is_not_taken() {
    let desk = Plan::new("desk").start().await;
    let (raw, expected) = (Raw::new(true), fresh_identity().node_id());
    desk.change_roster(|roster| {
        roster.members.insert(expected, Member { name: "tower".to_owned() });
    });
    desk.mesh.learn(vec![(expected, vec![raw.endpoint.address()])]);
    let handshake = raw.endpoint.knock().await.unwrap().handshake().await;
    if let Ok(connection) = handshake {
        assert!(connection.accept().await.is_err(), "nothing is said to it");
    }
    let trouble = || desk.mesh.peers()[0].trouble.clone().unwrap_or_default();
    until("the desk says it", || trouble().contains("another device answered")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_breaks_the_protocol_is_cut_off_and_others_stay() {
    let (desk, laptop) = pair().await;
    let raw = Raw::member_of(&desk, false);
    for bytes in [vec![0, 0, 0, 1, 99], vec![0, 0, 5, 0, 0], vec![0, 0, 0, 2, 0, 0]] {
        let (connection, mut own) = raw.greeted(&desk).await;
        own.send.raw(&bytes).await.unwrap();
        assert_eq!(end(&connection).await.0, CloseCode::Malformed, "{bytes:?}");
    }
    let (connection, own) = raw.greeted(&desk).await;
    drop(own);
    assert_eq!(end(&connection).await.0, CloseCode::Malformed, "the mesh's own stream must stay");
    laptop.echo(&desk, b"still here").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_an_unknown_kind_is_turned_away_and_the_connection_stays() {
    let (desk, _laptop) = pair().await;
    let raw = Raw::member_of(&desk, false);
    let (connection, _own) = raw.greeted(&desk).await;
    let mut unknown = open_with(&connection, 200, b"\0\0\0\x01x").await;
    let error = unknown.recv.message::<u8>(10).await.unwrap_err();
    assert!(matches!(error, StreamError::Lost(_)), "{error}");
    let mut known = open_with(&connection, StreamKind::Ask.byte(), &encode_frame(&[1, 5]).unwrap()).await;
    assert_eq!(known.recv.message::<Vec<u8>>(10).await.unwrap(), Some(vec![5]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_streams_is_bounded_and_others_are_served() {
    let (desk, laptop) = {
        let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
        desk.echoes = false;
        let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
        (desk.roster, laptop.roster) = (Some(roster.clone()), Some(roster));
        let desk = desk.start().await;
        laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
        (desk, laptop.start().await)
    };
    let raw = Raw::member_of(&desk, false);
    let (connection, _own) = raw.greeted(&desk).await;
    let before = resident();
    let mut open = Vec::new();
    loop {
        // Each announces four gigabytes.
        let opening = connection.open(StreamKind::Ask.byte(), Arc::new(Nobody));
        let Ok(stream) = tokio::time::timeout(Duration::from_secs(2), opening).await else { break };
        let mut stream = stream.unwrap();
        stream.send.raw(&[0xff; 300]).await.unwrap();
        open.push(stream);
        assert!(open.len() <= 2000, "there is a limit");
    }
    assert!((1024..1172).contains(&open.len()), "{}", open.len());
    until("all arrived", || desk.told.taken.load(SeqCst) == open.len()).await;
    // The flooded device serves another one.
    let mut stream = laptop.mesh.open(desk.node, StreamKind::Ask, PATIENCE).await.unwrap();
    stream.send.message(&7_u8).await.unwrap();
    loop {
        let (peer, _, mut taken) = desk.taken().await;
        if peer == laptop.node {
            assert_eq!(taken.recv.message::<u8>(10).await.unwrap(), Some(7));
            break;
        }
        let refused = taken.recv.message::<Vec<u8>>(1 << 20).await;
        assert!(matches!(refused, Err(StreamError::TooLong { limit: 1_048_576, .. })), "{refused:?}");
    }
    let grown = resident().saturating_sub(before);
    println!(
        "{} streams that announce 4 GiB each took {} KiB, the other tests' share included",
        open.len(),
        grown / 1024
    );
    assert!(grown < 256 << 20, "{grown} bytes");
    drop(open);
    until("nothing is left of them", || !desk.mesh.core().table.usable(raw.identity.node_id()).unwrap().is_used())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_sends_without_end_to_a_reader_that_waits_is_stopped_by_the_window() {
    let mut plan = Plan::new("desk");
    plan.echoes = false;
    let desk = plan.start().await;
    let raw = Raw::member_of(&desk, false);
    let (connection, _own) = raw.greeted(&desk).await;
    let mut stream = open_with(&connection, StreamKind::Ask.byte(), &[]).await;
    let mut sent = 0;
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(1), stream.send.raw(&[0; 65536])).await {
        sent += 65536;
        assert!(sent < 64 << 20, "there is a limit");
    }
    println!("a reader that waits was sent {} KiB", sent / 1024);
    assert!(sent <= 16 << 20, "{sent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_the_reader_s_limit_ends_its_stream_and_no_other() {
    let (desk, laptop) = pair().await;
    let mut stream = laptop.mesh.open(desk.node, StreamKind::Ask, PATIENCE).await.unwrap();
    stream.send.message(&vec![0_u8; (1 << 20) + 1]).await.unwrap_or_default();
    let ended = tokio::time::timeout(PATIENCE, stream.recv.message::<Vec<u8>>(10)).await.unwrap();
    assert!(matches!(ended, Ok(None) | Err(_)), "{ended:?}");
    laptop.echo(&desk, b"still here").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_home_at_a_port_that_only_looks_like_ours() {
    // A program that reads and never answers.
    let mute = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = mute.local_addr().unwrap();
    let desk = Plan::new("desk").start().await;
    let mut code = desk.invite();
    code.addresses = vec![address.to_string(), desk.mesh.local_addr().to_string()];
    let started = Instant::now();
    join(&fresh_identity(), "laptop", "test", &code).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "the address that works is not waited for");
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
