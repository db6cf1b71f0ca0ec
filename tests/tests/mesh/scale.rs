//! A fleet of 100 devices with 10 sessions each, all of them real processes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{Node, World, mesh::named, node::Setup, process};
use futures_util::{StreamExt, future, stream};
use serde_json::{Value, json};

const DEVICES: usize = 100;
const SESSIONS: usize = 10;
/// Started at the same time; more only wait for the two processors.
const AT_ONCE: usize = 8;
/// How long the fleet may take to be whole after the last start. It is a moment on a machine with nothing else to do; how
/// long is printed here and measured in docs/BENCHMARKS_MESH.md. What never comes together is told from a busy machine.
const WHOLE: Duration = Duration::from_secs(120);

/// How many sessions a door shows: the rows, and those that it only counts. None while it has not found the broker.
async fn shown(door: &Node) -> u64 {
    let answer = door.stateless().call("sessions", json!({})).await;
    let header = if answer.is_error { Value::Null } else { answer.header() };
    let rows = header["sessions"].as_array().map_or(0, Vec::len);
    rows as u64 + header["omitted"].as_u64().unwrap_or(0)
}

fn setup(world: &World, number: usize, code: Option<&str>) -> Setup {
    let named = named(world, &format!("device-{number}"), false);
    let setup = code.map_or_else(|| named.clone(), |code| named.clone().env("CHAPPIE_JOIN", code));
    (0..SESSIONS).fold(setup, |setup, session| {
        let name = format!("s{number}-{session}");
        setup.session(&world.folder(&name), &name)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_of_100_devices_with_10_sessions_each_is_listed_at_every_door() {
    let world = Arc::new(World::new());
    let broker = Node::start(Arc::clone(&world), setup(&world, 0, None)).await;
    let code = broker.invite_with(&["--uses", "1000"]);
    let begin = Instant::now();
    let start = |number: usize| {
        let code = code.clone();
        async move {
            let world = Arc::new(World::new());
            let setup = setup(&world, number, Some(&code));
            Node::start(world, setup).await
        }
    };
    let mut fleet: Vec<Node> = stream::iter(1..DEVICES).map(start).buffer_unordered(AT_ONCE).collect().await;
    let last = Instant::now();
    println!("{DEVICES} devices started in {:?}", last - begin);
    let all = (DEVICES * SESSIONS) as u64;
    let mut doors: Vec<&Node> = vec![&broker];
    doors.extend(fleet.iter().step_by(9));
    loop {
        // At the same moment: asked one after the other, a busy machine would be measured and not the mesh.
        let seen = future::join_all(doors.iter().map(|door| shown(door))).await;
        if seen.iter().all(|seen| *seen == all) {
            break;
        }
        assert!(last.elapsed() < WHOLE, "{seen:?} of {all} sessions after {:?}", last.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("all doors looked at list {all} sessions {:?} after the last start", last.elapsed());

    let far = fleet.last().unwrap();
    let name = far.own_sessions().remove(0);
    let answer = fleet[0].chat("v1/far").call("bash", json!({"command": "pwd", "sessionId": far.session(&name)})).await;
    assert!(answer.ok().output().contains(&name));
    let mut memory: Vec<u64> = fleet.iter().filter_map(|node| process::resident(node.pid())).collect();
    memory.sort_unstable();
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    println!(
        "resident memory: broker {:.1} MiB; members {:.1} to {:.1} MiB, median {:.1}",
        mib(broker.resident()),
        mib(memory[0]),
        mib(memory[memory.len() - 1]),
        mib(memory[memory.len() / 2])
    );
    // A fifth of them is gone, none of them a voter: the rest of the directory stays.
    let gone = DEVICES / 5;
    let peers = broker.status()["peers"].as_array().cloned().unwrap_or_default();
    let votes = |node: &Node| peers.iter().any(|peer| peer["node"] == node.id() && peer["voter"] == true);
    fleet.sort_by_key(votes);
    fleet.drain(..gone).for_each(drop);
    let left = ((DEVICES - gone) * SESSIONS) as u64;
    let since = Instant::now();
    while shown(&fleet[0]).await != left {
        assert!(since.elapsed() < Duration::from_secs(30), "{} of {left}", shown(&fleet[0]).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{gone} killed devices are no longer listed after {:?}", since.elapsed());
    let status: Value = broker.status();
    assert_eq!(status["peers"].as_array().map(Vec::len), Some(DEVICES - 1));
}
