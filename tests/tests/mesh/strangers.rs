//! Bytes and devices that do not belong: refused with a close code and one line in the log, at no cost in memory or time
//! (issue 3, bad input). The clients are made by hand (`tests/src/stranger.rs`).

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use chappie_mesh::{CloseCode, Hello, InviteCode, JoinReply, JoinRequest, MeshId};
use chappie_tests::{
    Node, eventually,
    mesh::{alone, list_each_other, lists},
    process,
    random::Random,
    stranger::{HELLO_STREAM, JOIN, MEMBERS, Stranger, closed, first_words, framed, hello},
    wait::within,
};
use serde_json::{Value, json};

/// A node that a flood meets may take this much more memory: buffers with limits of their own.
const FLOOD_MEMORY: u64 = 32 * 1024 * 1024;

fn code_of(node: &Node) -> InviteCode {
    node.invite().parse().unwrap()
}

/// A node, and a device that joined it and was switched off: its key is in the wrong hands.
async fn with_stolen_key() -> (Node, Node, MeshId) {
    let (a, mut b) = (alone("a").await, alone("b").await);
    let code = a.invite();
    b.join(&code).await;
    list_each_other(&[&a, &b]).await;
    b.stop().await;
    lists(&a, &["a"]).await;
    let mesh = code.parse::<InviteCode>().unwrap().mesh;
    (a, b, mesh)
}

/// The log lines of a node that name an address.
fn lines(node: &Node, address: &str) -> Vec<String> {
    node.log().lines().filter(|line| line.contains(address)).map(str::to_owned).collect()
}

/// One line in the log, and it says why.
async fn logged(node: &Node, stranger: &Stranger) {
    let address = stranger.address();
    eventually("a line about the stranger", async || (!lines(node, &address).is_empty()).then_some(())).await;
    let lines = lines(node, &address);
    assert_eq!(lines.len(), 1, "{lines:?}");
}

async fn answers(node: &Node) {
    let start = Instant::now();
    let answer = node.chat("v1/owner").call("bash", json!({"command": "echo here"})).await.ok();
    assert!(answer.output().contains("here") && start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn who_proves_no_key_or_speaks_another_protocol_does_not_get_through_the_handshake() {
    let a = alone("a").await;
    for (stranger, alpn) in [
        (Stranger::keyless(), MEMBERS),
        (Stranger::keyless(), JOIN),
        (Stranger::new(), &b"h3"[..]),
        (Stranger::new(), b"chappie/2"),
    ] {
        let ended = match stranger.dial(a.quic(), alpn).await {
            Err(error) => error,
            // A TLS 1.3 client is through before the server has looked at its key.
            Ok(connection) => within(Duration::from_secs(10), "the end", async || connection.close_reason()).await,
        };
        println!("{}: {ended}", String::from_utf8_lossy(alpn));
        assert!(!matches!(ended, quinn::ConnectionError::TimedOut), "told, not left to wait");
    }
    answers(&a).await;
}

#[tokio::test]
async fn a_key_that_is_not_on_the_roster_is_refused_with_its_code_and_one_line() {
    let a = alone("a").await;
    let (stranger, mesh) = (Stranger::new(), code_of(&a).mesh);
    let connection = stranger.dial(a.quic(), MEMBERS).await.unwrap();
    let _stream = Stranger::say(&connection, &first_words(&hello(mesh))).await;
    let (code, reason) = closed(&connection).await;
    assert_eq!(code, u64::from(CloseCode::NotMember.number()), "{reason}");
    logged(&a, &stranger).await;
    answers(&a).await;
}

/// What a device with a good key says first, and how it is refused.
fn wrong_hellos(mesh: MeshId) -> Vec<(&'static str, Vec<u8>, CloseCode, &'static str)> {
    let with = |change: fn(&mut Hello)| {
        let mut wrong = hello(mesh);
        change(&mut wrong);
        first_words(&wrong)
    };
    let mut random = Random::new(5);
    let mut garbage: Vec<u8> = (0..600).map(|_| random.bits().to_be_bytes()[0]).collect();
    // The protocol's numbers come first; other ones would be refused as such.
    garbage[..2].copy_from_slice(&[1, 1]);
    let whole = first_words(&hello(mesh));
    let behind = |bytes: Vec<u8>| [vec![HELLO_STREAM], bytes].concat();
    vec![
        ("nothing", Vec::new(), CloseCode::Silent, ""),
        ("half a frame", whole[..whole.len() / 2].to_vec(), CloseCode::Silent, ""),
        ("garbage", behind(framed(&garbage)), CloseCode::Malformed, ""),
        ("an empty message", behind(framed(&[])), CloseCode::Malformed, ""),
        ("a frame of 4 GiB", behind(vec![0xff; 4]), CloseCode::Malformed, ""),
        ("another stream first", [vec![3], whole[1..].to_vec()].concat(), CloseCode::Malformed, "hello"),
        ("a later protocol", with(|hello| (hello.protocol, hello.protocol_min) = (99, 98)), CloseCode::Version, "99"),
        ("another mesh", with(|hello| hello.mesh = [9; 16].into()), CloseCode::OtherMesh, "mesh"),
    ]
}

#[tokio::test]
async fn what_is_no_hello_closes_the_connection_with_its_code_and_one_line() {
    let (a, b, mesh) = with_stolen_key().await;
    for (what, bytes, wanted, word) in wrong_hellos(mesh) {
        let stranger = Stranger::as_device(&b.world.state());
        let connection = stranger.dial(a.quic(), MEMBERS).await.unwrap();
        let start = Instant::now();
        let _stream = if bytes.is_empty() { None } else { Stranger::say(&connection, &bytes).await };
        let (code, reason) = closed(&connection).await;
        println!("{what}: {code} {reason:?} after {:?}", start.elapsed());
        assert_eq!(code, u64::from(wanted.number()), "{what}: {reason}");
        assert!(reason.contains(word) && start.elapsed() < Duration::from_secs(10), "{what}: {reason}");
        logged(&a, &stranger).await;
    }
    answers(&a).await;
}

#[tokio::test]
async fn garbage_on_every_kind_of_stream_harms_nobody() {
    let (a, b, mesh) = with_stolen_key().await;
    let before = a.resident();
    let stranger = Stranger::as_device(&b.world.state());
    let mut random = Random::from_environment(0x57a);
    for round in 0..40_u8 {
        let connection = stranger.dial(a.quic(), MEMBERS).await.unwrap();
        let mut hello = hello(mesh);
        hello.incarnation.generation += u64::from(round);
        let Some(_first) = Stranger::say(&connection, &first_words(&hello)).await else { continue };
        let mut open = Vec::new();
        for kind in 0..=12 {
            let length = random.below(3_000);
            let garbage: Vec<u8> = (0..length).map(|_| random.bits().to_be_bytes()[0]).collect();
            let announced = [vec![kind], u32::MAX.to_be_bytes().to_vec(), garbage.clone()].concat();
            for bytes in [[vec![kind], garbage.clone()].concat(), [vec![kind], framed(&garbage)].concat(), announced] {
                let said = tokio::time::timeout(Duration::from_secs(2), Stranger::say(&connection, &bytes)).await;
                open.extend(said.ok().flatten());
            }
        }
        connection.close(0_u8.into(), b"enough");
    }
    answers(&a).await;
    let grown = a.resident().saturating_sub(before);
    assert!(grown < FLOOD_MEMORY, "{grown} bytes more");
    lists(&a, &["a"]).await;
}

/// Asks a node to let one in with this request, through a connection of its own.
async fn ask_in(stranger: &Stranger, node: &Node, request: impl Fn(&quinn::Connection) -> Vec<u8>) -> (u64, String) {
    let connection = stranger.dial(node.quic(), JOIN).await.unwrap();
    let bytes = request(&connection);
    let Some((mut send, mut recv)) = Stranger::say(&connection, &bytes).await else { return closed(&connection).await };
    let _ = send.finish();
    let reply = tokio::time::timeout(Duration::from_secs(10), recv.read_to_end(64 * 1024)).await;
    if let Ok(Ok(reply)) = reply
        && let Some(body) = reply.get(4..)
    {
        match JoinReply::decode(body) {
            Ok(JoinReply::Refused(reason)) => return (u64::MAX, reason),
            Ok(JoinReply::Welcome { .. }) => panic!("a stranger was let in"),
            Err(_) => {}
        }
    }
    closed(&connection).await
}

fn request(code: &InviteCode, proof: [u8; 32]) -> Vec<u8> {
    framed(
        &chappie_mesh::encode(&JoinRequest {
            protocol: chappie_mesh::PROTOCOL,
            protocol_min: chappie_mesh::PROTOCOL_MIN,
            invite: code.id,
            proof,
            name: "stranger".to_owned(),
            build: "stranger".to_owned(),
            addresses: Vec::new(),
            ext: Vec::new(),
        })
        .unwrap(),
    )
}

fn is_alone(node: &Node) -> bool {
    node.status()["peers"] == json!([])
}

#[tokio::test]
async fn f19_a_proof_that_was_made_for_another_connection_lets_nobody_in_and_spends_nothing() {
    let a = alone("a").await;
    let text = a.invite();
    let code: InviteCode = text.parse().unwrap();
    // What a device in between would have: the proof that the real one made for its own connection to it.
    let relayed = code.secret.key().prove(&[5; 32]);
    for proof in [relayed, [0; 32]] {
        let stranger = Stranger::new();
        let (number, reason) = ask_in(&stranger, &a, |_| request(&code, proof)).await;
        println!("refused: {number} {reason}");
        logged(&a, &stranger).await;
        assert!(is_alone(&a));
        assert!(!a.log().contains(&text));
    }
    let b = alone("b").await;
    b.join(&text).await;
    list_each_other(&[&a, &b]).await;
}

#[tokio::test]
async fn what_is_no_join_request_is_refused_and_nothing_else_is_reachable_by_that_way() {
    let a = alone("a").await;
    let code = code_of(&a);
    let whole = request(&code, [1; 32]);
    for bytes in [vec![0xff; 64], framed(&[0xff; 600]), vec![0xff; 4], whole[..whole.len() / 2].to_vec(), framed(&[])] {
        let stranger = Stranger::new();
        let (number, reason) = ask_in(&stranger, &a, |_| bytes.clone()).await;
        println!("{} bytes: {number} {reason}", bytes.len());
        logged(&a, &stranger).await;
    }
    // A second stream is not let through, whatever it is for.
    let stranger = Stranger::new();
    let connection = stranger.dial(a.quic(), JOIN).await.unwrap();
    let _first = Stranger::say(&connection, &[3]).await;
    let second = tokio::time::timeout(Duration::from_secs(10), connection.open_bi()).await;
    assert!(!matches!(second, Ok(Ok(_))), "a second stream");
    closed(&connection).await;
    assert!(is_alone(&a));
    answers(&a).await;
}

/// Processor time of a node over some seconds in which nobody asks it anything, in hundredths of a second.
async fn idle_ticks(node: &Node) -> u64 {
    let before = process::cpu_ticks(node.pid()).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    process::cpu_ticks(node.pid()).unwrap() - before
}

#[tokio::test]
async fn floods_of_packets_handshakes_and_join_requests_leave_memory_and_processor_flat() {
    let a = alone("a").await;
    answers(&a).await;
    let before = a.resident();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut random = Random::from_environment(0xf100d);
    for number in 0..40_000_u32 {
        let mut packet: Vec<u8> = (0..150).flat_map(|_| random.bits().to_be_bytes()).collect();
        if number % 2 == 0 {
            // The first packet of a connection, of version 1, with connection ids of 8 bytes and rubbish behind them.
            packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
            packet[14] = 8;
            packet[23] = 0;
        }
        let _ = socket.send_to(&packet, a.quic());
    }
    answers(&a).await;
    let strangers: Vec<Stranger> = (0..40).map(|_| Stranger::new()).collect();
    let mut held = Vec::new();
    for round in 0..10 {
        let alpn = if round % 2 == 0 { MEMBERS } else { JOIN };
        let dials = strangers.iter().map(|stranger| stranger.dial(a.quic(), alpn));
        held.extend(futures_util::future::join_all(dials).await.into_iter().flatten());
    }
    answers(&a).await;
    let grown = a.resident().saturating_sub(before);
    println!("{} connections held, {grown} bytes more", held.len());
    assert!(grown < FLOOD_MEMORY, "{grown} bytes more");
    drop(held);
    drop(strangers);
    within(Duration::from_secs(40), "a quiet processor", async || (idle_ticks(&a).await < 15).then_some(())).await;
    assert!(a.log().len() < 200_000, "the log is not flooded: {} bytes", a.log().len());
}

#[tokio::test]
async fn a_member_that_opens_a_flood_of_streams_is_bounded_and_leaves_nothing_behind() {
    let (a, b, mesh) = with_stolen_key().await;
    let stranger = Stranger::as_device(&b.world.state());
    // Each announces a message of 1 MiB and sends a part of it.
    let part = [vec![3], (1_u32 << 20).to_be_bytes().to_vec(), vec![7; 64 * 1024]].concat();
    let mut memory = Vec::new();
    for round in 0..4_u64 {
        let connection = stranger.dial(a.quic(), MEMBERS).await.unwrap();
        let mut hello = hello(mesh);
        hello.incarnation.generation += 2 * round;
        let _first = Stranger::say(&connection, &first_words(&hello)).await.unwrap();
        let mut open = Vec::new();
        while open.len() < 1_500 {
            match tokio::time::timeout(Duration::from_millis(300), Stranger::say(&connection, &part)).await {
                Ok(Some(stream)) => open.push(stream),
                _ => break,
            }
        }
        println!("{} streams open, {} bytes held", open.len(), a.resident());
        // What the wire allows; ended streams are announced late, so it is more than the 1,024 that a device uses.
        assert!(open.len() <= 1_172, "{} streams", open.len());
        answers(&a).await;
        memory.push(a.resident());
        connection.close(0_u8.into(), b"enough");
        lists(&a, &["a"]).await;
    }
    // What the first round took is there for the others: nothing of it is lost.
    assert!(memory[3] < memory[0] + FLOOD_MEMORY, "{memory:?}");
    answers(&a).await;
}

#[tokio::test]
async fn a_node_of_another_mesh_that_dials_lists_nothing_and_the_log_says_why() {
    let a = alone("a").await;
    // Its own mesh lacks somebody, so it dials whom it can.
    let (mut other, missing) = (alone("other").await, alone("missing").await);
    missing.join(&other.invite()).await;
    drop(missing);
    let quic = a.quic().to_owned();
    other.change(|setup| setup.argument("--connect").argument(&quic));
    other.restart().await;
    eventually("a line in the log", async || a.log().contains(other.quic()).then_some(())).await;
    lists(&a, &["a"]).await;
    lists(&other, &["other"]).await;
    let arguments = json!({"command": "true", "sessionId": a.session("a")});
    let refused = other.chat("v1/x").call("bash", arguments).await.refused();
    assert!(refused.text().contains("session"), "{}", refused.text());
    assert_eq!(other.peer(a.id()), Value::Null);
}
