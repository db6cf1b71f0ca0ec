//! The rows about the elected broker: how long its loss is felt, what its orderly stop delays, what a replicated
//! write costs beside a sync of the same disk in the same run, how soon a node with many receipts starts.

use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{
    Client, Node, World,
    election::{Cluster, Scene},
    ledger::Ledger,
    mesh::{alone, named},
    random::Random,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    Row,
    client::{Caller, median, times},
};

/// Ten calls a second.
const PACE: Duration = Duration::from_millis(100);
const KILLS: usize = 20;
const STOPS: usize = 10;
const WRITES: usize = 2000;
/// The receipts that the issue speaks of.
const RECEIPTS: usize = 16_384;

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

fn percentile(sorted: &[Duration], of_100: usize) -> Duration {
    sorted[(sorted.len() * of_100 / 100).min(sorted.len() - 1)]
}

fn of(sorted: &[Duration]) -> String {
    format!("p50 {}, p99 {}", ms(median(sorted)), ms(percentile(sorted, 99)))
}

/// A call that was made: when it began, when it was answered, whether well.
struct Made {
    mark: String,
    began: Instant,
    answered: Instant,
    well: bool,
}

async fn one(chat: Client, mark: String, arguments: Value) -> Made {
    let began = Instant::now();
    let well = chat.try_call("bash", arguments).await.is_ok_and(|answer| !answer.is_error);
    Made { mark, began, answered: Instant::now(), well }
}

/// Makes calls at the pace until `until` says that it is enough; gives all of them, answered.
async fn calls(chat: &Client, ledger: &Ledger, round: usize, mut until: impl FnMut() -> bool) -> Vec<Made> {
    let mut pace = tokio::time::interval(PACE);
    let mut on_the_way: Vec<JoinHandle<Made>> = Vec::new();
    while !until() {
        pace.tick().await;
        let mark = format!("r{round}-{}", on_the_way.len());
        let arguments = json!({"command": ledger.append(&mark)});
        on_the_way.push(tokio::spawn(one(chat.clone(), mark, arguments)));
    }
    let mut made = Vec::new();
    for call in on_the_way {
        made.push(call.await.expect("a call ends"));
    }
    made
}

/// Counts the calls whose answer the ledger denies: said to be done and not run once, or run more than once.
fn untrue(made: &[Made], ledger: &Ledger) -> usize {
    made.iter().filter(|call| ledger.count(&call.mark) > 1 || (call.well && ledger.count(&call.mark) != 1)).count()
}

/// Kill -9 of the broker of three: door, broker and session on three devices.
pub(crate) async fn failover() -> Vec<Row> {
    let mut cluster = Cluster::of(3).await;
    let mut random = Random::from_environment(0xfa11);
    let (mut gaps, mut errors, mut lies, mut all) = (Vec::new(), 0, 0, 0);
    for round in 0..KILLS {
        let mut scene = Scene::of(cluster).await;
        let (chat, ledger, lost) = (scene.chat(&format!("v1/kill-{round}")).await, scene.ledger.clone(), scene.broker);
        let start = Instant::now();
        let at = Duration::from_secs(1) + random.up_to_ms(300);
        let mut killed = None;
        let node = &mut scene.cluster.nodes[lost];
        let made = calls(&chat, &ledger, round, || {
            if killed.is_none() && start.elapsed() >= at {
                node.kill();
                killed = Some(Instant::now());
            }
            killed.is_some_and(|killed: Instant| killed.elapsed() > Duration::from_secs(2))
        })
        .await;
        let killed = killed.expect("killed above");
        let next = made.iter().filter(|call| call.well && call.began >= killed).map(|call| call.answered).min();
        gaps.push(next.expect("a call succeeds").duration_since(killed));
        errors += made.iter().filter(|call| !call.well).count();
        lies += untrue(&made, &ledger);
        all += made.len();
        scene.cluster[lost].start_again().await;
        scene.cluster.settled(3).await;
        cluster = scene.cluster;
    }
    gaps.sort();
    let (middle, worst) = (median(&gaps), gaps[gaps.len() - 1]);
    let measured =
        format!("median {}, worst {}; {errors} of {all} calls failed, {lies} untrue answers", ms(middle), ms(worst));
    let what = format!("kill -9 of the broker of three → next successful call ({KILLS} runs, calls at 10/s)");
    vec![Row::new(what, measured, "median ≤ 0.8 s, worst ≤ 1.5 s, none failed")]
}

/// An orderly stop of the broker: how much longer a call takes than in quiet times.
pub(crate) async fn handover() -> Vec<Row> {
    let mut cluster = Cluster::of(3).await;
    let (mut delays, mut errors, mut calm, mut all) = (Vec::new(), 0, Vec::new(), 0);
    for round in 0..STOPS {
        let mut scene = Scene::of(cluster).await;
        let (chat, ledger, lost) = (scene.chat(&format!("v1/stop-{round}")).await, scene.ledger.clone(), scene.broker);
        let mut stopping = Box::pin(async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let begun = Instant::now();
            scene.cluster.nodes[lost].stop().await;
            begun
        });
        let start = Instant::now();
        let made = calls(&chat, &ledger, round, || start.elapsed() > Duration::from_secs(5));
        let (made, begun) = tokio::join!(made, &mut stopping);
        drop(stopping);
        let took = |call: &Made| call.answered - call.began;
        // The first call binds the conversation and warms everything up.
        let mut before: Vec<Duration> = made.iter().skip(1).filter(|call| call.answered < begun).map(took).collect();
        before.sort();
        let longest = made.iter().filter(|call| call.answered >= begun).map(took).max().unwrap_or_default();
        delays.push(longest.saturating_sub(median(&before)));
        calm.extend(before);
        errors += made.iter().filter(|call| !call.well).count() + untrue(&made, &ledger);
        all += made.len();
        scene.cluster[lost].start_again().await;
        scene.cluster.settled(3).await;
        cluster = scene.cluster;
    }
    delays.sort();
    calm.sort();
    let measured = format!(
        "longest delay of a call: median {}, worst {} (quiet calls: {}); {errors} of {all} failed",
        ms(median(&delays)),
        ms(delays[delays.len() - 1]),
        of(&calm)
    );
    vec![Row::new(format!("orderly stop of the broker of three ({STOPS} runs)"), measured, "≤ 50 ms, none failed")]
}

/// Syncs of 4 KiB appended to a file in this folder, sorted.
fn syncs(folder: &std::path::Path, count: usize) -> Vec<Duration> {
    let file = File::create(folder.join("syncs")).expect("a folder of the bench");
    let mut all: Vec<Duration> = (0..count)
        .map(|number| {
            let start = Instant::now();
            file.write_all_at(&[7; 4096], number as u64 * 4096).expect("a local disk");
            file.sync_data().expect("a local disk");
            start.elapsed()
        })
        .collect();
    all.sort();
    all
}

/// `bash true` at the broker's own door and session, with a receipt and without, and the disk's own time.
pub(crate) async fn write() -> Vec<Row> {
    let cluster = Cluster::of(3).await;
    let node = &cluster[cluster.broker().await];
    let session = node.session(&node.own_sessions()[0]);
    let disk = syncs(&node.world.folder("bench"), WRITES);
    let plain = times(node, "bash", &json!({"command": "true", "sessionId": session}), WRITES);
    let mut caller = Caller::of(node, "v1/bench");
    let mut with = Vec::new();
    for number in 0..WRITES {
        let arguments = json!({"command": "true", "sessionId": session, "operationId": format!("op-{number}")});
        with.push(caller.call("bash", &arguments));
    }
    with.sort();
    let again = syncs(&node.world.folder("bench"), WRITES);
    let each = |of_100| percentile(&with, of_100).saturating_sub(percentile(&plain, of_100)) / 2;
    let bind = binds(node, &session);
    vec![
        Row::new("fdatasync of 4 KiB, same disk, before and after", format!("{}; {}", of(&disk), of(&again)), ""),
        Row::new("`bash true` at the broker of three, without a receipt", of(&plain), ""),
        Row::new("`bash true` at the broker of three, with a receipt (two replicated commits)", of(&with), ""),
        Row::new(
            "a replicated commit, as half of the difference",
            format!("p50 {}, p99 {}", ms(each(50)), ms(each(99))),
            "p50 ≤ 0.8 ms",
        ),
        Row::new("`init` of a new conversation (one replicated commit)", of(&bind), ""),
    ]
}

/// New conversations that are bound one after another, sorted.
fn binds(node: &Node, session: &str) -> Vec<Duration> {
    let mut all: Vec<Duration> = (0..WRITES / 4)
        .map(|number| {
            let mut caller = Caller::of(node, &format!("v1/bind-{number}"));
            caller.call("init", &json!({"sessionId": session}))
        })
        .collect();
    all.sort();
    all
}

/// A node with 16,384 receipts: its store's size and its start.
pub(crate) async fn receipts() -> Vec<Row> {
    let mut node = alone("receipts").await;
    let session = node.session("receipts");
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    let operation = |number: usize| {
        let id = format!("operation-{number:06}-with-a-name-of-usual-length");
        json!({"operationId": id, "chatId": format!("v1/chat-{}", number % 100), "sessionId": session, "kind": "call",
            "status": "completed", "updatedAt": now as u64, "cwd": "/home/somebody/projects/a-project-of-usual-length",
            "resources": []})
    };
    let state = json!({"operations": (0..RECEIPTS).map(operation).collect::<Vec<Value>>()});
    let path = node.world.root().join("chappie.state.json");
    node.world.put(&path, state.to_string());
    node.world.run_ok(&["import-state", &path.display().to_string(), "--json"]);
    let kept = node.world.run_ok(&["receipts", "--json"]);
    let kept: Value = serde_json::from_str(&kept).expect("JSON as promised");
    let count = kept["receipts"].as_array().or_else(|| kept.as_array()).map_or(0, Vec::len);
    let mut starts = Vec::new();
    for _ in 0..10 {
        node.stop().await;
        let start = Instant::now();
        node.start_again().await;
        starts.push(start.elapsed());
    }
    starts.sort();
    let size = std::fs::metadata(node.world.state().join("consensus.redb")).expect("the store is there").len();
    let fresh = {
        let world = Arc::new(World::new());
        let setup = named(&world, "fresh", true);
        let start = Instant::now();
        let _node = Node::start(Arc::clone(&world), setup).await;
        start.elapsed()
    };
    let _ = std::io::stdout().flush();
    vec![
        Row::new(format!("store with {count} receipts"), format!("{:.1} MiB", size as f64 / 1_048_576.0), "≤ 32 MiB"),
        Row::new(
            format!("start with {count} receipts → ready (10 runs)"),
            format!("median {}, worst {} (an empty node: {})", ms(median(&starts)), ms(starts[9]), ms(fresh)),
            "< 1 s",
        ),
    ]
}
