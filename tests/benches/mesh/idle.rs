//! The rows about what the mesh takes when nothing is asked of it: memory, processor, packets.

use std::time::{Duration, Instant};

use chappie_tests::{
    Node,
    mesh::{alone, list_each_other, pair_on},
    net::{Capture, Lan},
    process,
};
use serde_json::json;

use super::{Row, client::Caller, rows::member};

/// How long a node is watched.
const WATCHED: Duration = Duration::from_secs(20);
const WAITERS: usize = 1000;

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1048576.0)
}

/// What share of one processor a node takes, in percent.
async fn load(node: &Node, time: Duration) -> f64 {
    let before = process::cpu_ticks(node.pid()).expect("the node runs");
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
    let ticks = process::cpu_ticks(node.pid()).expect("the node runs") - before;
    ticks as f64 / time.as_secs_f64()
}

/// A thousand history waits that end nowhere near.
pub(crate) async fn waiters() -> Vec<Row> {
    let (broker, station) = (alone("broker").await, alone("station").await);
    station.join(&broker.invite()).await;
    list_each_other(&[&broker, &station]).await;
    let session = station.session("station");
    let mut first = Caller::of(&broker, "v1/first");
    first.call("bash", &json!({"command": "echo x", "sessionId": session}));
    let page = first.tries("history", &json!({"sessionId": session, "limit": 1})).expect("a page");
    let id = page.rsplit("\\\"id\\\":\\\"").next().and_then(|rest| rest.split("\\\"").next()).expect("an entry");
    let before = [broker.resident(), station.resident()];
    let start = Instant::now();
    let mut waiting: Vec<Caller> = (0..WAITERS).map(|number| Caller::of(&broker, &format!("v1/w{number}"))).collect();
    for waiter in &mut waiting {
        waiter.send("history", &json!({"sessionId": session, "after": id, "wait": true, "observer": true}));
    }
    // Served among them: then they have all been taken.
    first.call("tools", &json!({"names": ["ls"], "sessionId": session}));
    let _ = tokio::time::timeout(Duration::from_secs(3), std::future::pending::<()>()).await;
    let grown = [broker.resident().saturating_sub(before[0]), station.resident().saturating_sub(before[1])];
    let took = start.elapsed();
    let measured = format!("door and broker +{}, session's node +{} (after {took:.1?})", mib(grown[0]), mib(grown[1]));
    vec![Row::new(format!("{WAITERS} history waits at another device's session"), measured, "≤ 20 MB more")]
}

/// A node alone.
pub(crate) async fn alone_rows() -> Vec<Row> {
    let node = alone("alone").await;
    let load = load(&node, WATCHED).await;
    let measured = format!("{}, {load:.2} % of a core", mib(node.resident()));
    vec![Row::new("idle, alone", measured, "≤ 16 MB, < 1 %")]
}

/// Two nodes on a LAN: what goes over the wire when nothing is asked.
pub(crate) async fn lan() -> Vec<Row> {
    let lan = Lan::new();
    let (one, two) = (lan.device("one", &["10.77.0.1/24"]), lan.device("two", &["10.77.0.2/24"]));
    let (broker, _station) = pair_on(&one, &two, true).await;
    // The questions of mDNS after the start grow rare.
    let _ = tokio::time::timeout(WATCHED, std::future::pending::<()>()).await;
    let quic = Capture::filtered(&one.namespace, "eth0", "udp port 24274");
    let mdns = Capture::filtered(&one.namespace, "eth0", "udp port 5353");
    let time = 3 * WATCHED;
    let load = load(&broker, time).await;
    let (packets, bytes, questions) = (quic.packets(), quic.bytes().len(), mdns.packets());
    let measured = format!(
        "{packets} QUIC packets ({bytes} bytes) and {questions} of mDNS in {} s, {load:.2} % of a core",
        time.as_secs()
    );
    vec![Row::new("idle, two devices on a LAN", measured, "one small packet per keep-alive (5 s) and its answer")]
}

/// Twenty peers.
pub(crate) async fn peers() -> Vec<Row> {
    let broker = alone("broker").await;
    let code = broker.invite_with(&["--uses", "100"]);
    let mut members = Vec::new();
    for number in 0..20 {
        members.push(member(&code, number).await);
    }
    let mut all: Vec<&Node> = members.iter().collect();
    all.push(&broker);
    list_each_other(&all).await;
    let (of_broker, of_member) = (load(&broker, WATCHED).await, load(&members[0], WATCHED).await);
    let measured = format!(
        "broker {}, {of_broker:.2} % of a core; member {}, {of_member:.2} %",
        mib(broker.resident()),
        mib(members[0].resident())
    );
    vec![Row::new("idle, with 20 peers", measured, "≤ 40 MB, < 1 %")]
}
