//! The rows about time: reads, calls, joins, discovery, wake-ups.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{
    Node, World,
    mesh::{Trio, alone, list_each_other, named, on, pair_on},
    net::{Lan, Line, Namespace, Wan},
};
use serde_json::{Value, json};

use super::{
    Row,
    client::{Caller, median, rate, times},
};

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

fn put_file(node: &Node) -> Value {
    node.world.put(&node.folder().join("f4k.txt"), "0123456789abcde\n".repeat(256));
    json!({"path": "f4k.txt"})
}

fn at(session: &str, mut arguments: Value) -> Value {
    arguments["sessionId"] = json!(session);
    arguments
}

/// Two machines with a line of this round trip between them.
async fn over(round_trip: Duration) -> (Node, Node, Wan) {
    let (a, b) = (Namespace::new("one"), Namespace::new("two"));
    let wan = Wan::between(&a, &b, Line::round_trip(round_trip));
    let (broker, station) = (on(&a, "broker", false).await, on(&b, "station", false).await);
    station.join(&broker.invite()).await;
    list_each_other(&[&broker, &station]).await;
    (broker, station, wan)
}

/// `read` of 4 KiB at the device itself and from the other one.
pub(crate) async fn read() -> Vec<Row> {
    let mut rows = Vec::new();
    let (broker, station) = (alone("broker").await, alone("station").await);
    station.join(&broker.invite()).await;
    list_each_other(&[&broker, &station]).await;
    rows.push(read_row("loopback", Duration::ZERO, &broker, &station, 2000));
    drop((broker, station));
    for (name, round_trip) in [("1 ms", 1), ("20 ms", 20)] {
        let round_trip = Duration::from_millis(round_trip);
        let (broker, station, _wan) = over(round_trip).await;
        rows.push(read_row(name, round_trip, &broker, &station, 200));
    }
    rows
}

fn read_row(name: &str, round_trip: Duration, broker: &Node, station: &Node, count: usize) -> Row {
    let session = station.session("station");
    let here = put_file(broker);
    let there = at(&session, put_file(station));
    let here = at(&broker.session("broker"), here);
    let local = median(&times(broker, "read", &here, count));
    let remote = median(&times(broker, "read", &there, count));
    let added = remote.saturating_sub(local);
    let limit = round_trip.mul_f64(1.1) + Duration::from_millis(1);
    let verdict = if added <= limit { "kept" } else { "MISSED" };
    let measured = format!("local {}, remote {}, added {} ({verdict})", ms(local), ms(remote), ms(added));
    Row::new(format!("`read` of 4 KiB, p50, {name}"), measured, "added ≤ 1.1 RTT + 1 ms")
}

/// Calls through broker and one QUIC hop on loopback.
pub(crate) async fn hop() -> Vec<Row> {
    let trio = Trio::new().await;
    let read = at(&trio.session, put_file(&trio.station));
    let mut rows = Vec::new();
    for (what, door, tool, arguments) in [
        ("`sessions` through a member's door", &trio.door, "sessions", json!({"sessionId": trio.session})),
        ("`read` of a member's session through the broker's door", &trio.broker, "read", read.clone()),
        ("`read`, door, broker and session apart (two hops)", &trio.door, "read", read),
    ] {
        let times = times(door, tool, &arguments, 3000);
        let calls = rate(door, tool, &arguments, 32, 16_000);
        let p99 = times[times.len() * 99 / 100];
        let measured = format!("p50 {}, p99 {}, {calls:.0} calls/s at 32", ms(median(&times)), ms(p99));
        rows.push(Row::new(what, measured, "p50 ≤ 0.35 ms, ≥ 3,000 calls/s at 32"));
    }
    rows
}

/// From `chappie join` to the first call at the other device.
pub(crate) async fn join() -> Vec<Row> {
    let mut all = Vec::new();
    for _ in 0..10 {
        let (broker, station) = (alone("broker").await, alone("station").await);
        let (code, session) = (broker.invite(), station.session("station"));
        let arguments = at(&session, json!({"command": "true"}));
        let start = Instant::now();
        station.join(&code).await;
        let mut caller = Caller::of(&broker, "v1/bench");
        while caller.tries("bash", &arguments).is_none() {
            assert!(start.elapsed() < Duration::from_secs(30), "no call after a join");
        }
        all.push(start.elapsed());
    }
    all.sort();
    let measured = format!("median {}, slowest {}", ms(median(&all)), ms(all[all.len() - 1]));
    vec![Row::new("`chappie join` started → first remote call done (10 runs)", measured, "< 2 s")]
}

/// From the start of a member's process to its session in the broker's list, on a LAN.
pub(crate) async fn listed() -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, moves) in [("remembered addresses", false), ("the broker moved: mDNS alone", true)] {
        let lan = Lan::new();
        let (one, two) = (lan.device("one", &["10.77.0.1/24"]), lan.device("two", &["10.77.0.2/24"]));
        let (mut broker, mut station) = pair_on(&one, &two, true).await;
        let mut all = Vec::new();
        for round in 0..20 {
            station.stop().await;
            if moves {
                broker.stop().await;
                one.readdress(&[&format!("10.77.0.{}/24", 100 + round)]);
                broker.start_again().await;
            }
            let mut caller = Caller::of(&broker, "v1/bench");
            let start = Instant::now();
            let watch = tokio::task::spawn_blocking(move || {
                loop {
                    let seen = caller.tries("sessions", &json!({})).is_some_and(|text| text.contains("station"));
                    if seen {
                        return start.elapsed();
                    }
                    assert!(start.elapsed() < Duration::from_secs(60), "never listed");
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let (_, took) = tokio::join!(station.start_again(), watch);
            all.push(took.expect("the watch ends"));
        }
        all.sort();
        let measured = format!("median {}, slowest {}", ms(median(&all)), ms(all[all.len() - 1]));
        rows.push(Row::new(format!("member's start → session listed (20 runs, {what})"), measured, "median ≤ 0.6 s"));
    }
    rows
}

/// From an entry's append at one device to the end of a wait at another.
pub(crate) async fn wake() -> Vec<Row> {
    let mut rows = Vec::new();
    let (broker, station) = (alone("broker").await, alone("station").await);
    station.join(&broker.invite()).await;
    list_each_other(&[&broker, &station]).await;
    rows.push(wake_row("loopback", &broker, &station, "≤ 1 ms"));
    drop((broker, station));
    let (broker, station, _wan) = over(Duration::from_millis(20)).await;
    rows.push(wake_row("20 ms", &broker, &station, "≤ RTT/2 + 2 ms = 12 ms"));
    rows
}

fn wake_row(name: &str, broker: &Node, station: &Node, target: &'static str) -> Row {
    let session = station.session("station");
    let (mut waiter, mut writer) = (Caller::of(broker, "v1/waiter"), Caller::of(station, "v1/writer"));
    writer.call("init", &json!({"sessionId": session}));
    let mut all = Vec::new();
    let mut last: Option<String> = None;
    for round in 0..60 {
        writer.call("chat", &json!({"text": format!("round {round}"), "sessionId": session}));
        let page = waiter.tries("history", &json!({"sessionId": session, "limit": 1, "observer": true}));
        last = page.as_deref().and_then(last_id).or(last);
        let after = last.as_deref().expect("an entry is there");
        waiter.send("history", &json!({"sessionId": session, "after": after, "wait": true, "observer": true}));
        // The wait is on its way; the writer's own call takes longer than the way.
        writer.call("tools", &json!({"names": ["ls"], "sessionId": session}));
        let settle = Instant::now();
        while settle.elapsed() < Duration::from_millis(30) {
            std::thread::yield_now();
        }
        let woken = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                waiter.receive();
                Instant::now()
            });
            writer.call("chat", &json!({"text": "wake up", "sessionId": session}));
            let written = Instant::now();
            waiting.join().expect("the wait ends").saturating_duration_since(written)
        });
        all.push(woken);
    }
    all.sort();
    let measured =
        format!("p50 {}, p90 {} after the writer had its answer", ms(median(&all)), ms(all[all.len() * 9 / 10]));
    Row::new(format!("history wait wakes at the other device, {name}"), measured, target)
}

/// The id of the last entry of a page.
fn last_id(page: &str) -> Option<String> {
    let at = page.rfind("\\\"timestamp\\\"")?;
    let head = &page[..at];
    let id = &head[head.rfind("\\\"id\\\":\\\"")? + 9..];
    id.split("\\\"").next().map(str::to_owned)
}

/// A member of a mesh on loopback, without sessions, started with an invite.
pub(crate) async fn member(code: &str, number: usize) -> Node {
    let world = Arc::new(World::new());
    let setup = named(&world, &format!("member-{number}"), true).env("CHAPPIE_JOIN", code);
    Node::start(world, setup).await
}
