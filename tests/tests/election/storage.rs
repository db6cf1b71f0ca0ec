//! The election's store and its disk: full, failing, slow, cut short, far behind (failure rules F24 to F26).

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{
    Node, World,
    answer::excerpt,
    disk::Disk,
    election::{Cluster, ELECTED, NAMES, Scene, Watch, done, voters_of},
    mesh::{list_each_other, named},
    wait::within,
};
use futures_util::{StreamExt, stream};
use serde_json::json;

fn store(node: &Node) -> PathBuf {
    node.world.state().join("consensus.redb")
}

/// Three devices, the first of which has its state folder on a disk of 160 MiB in a mount namespace of its own.
async fn with_a_small_disk() -> (Cluster, PathBuf) {
    let world = Arc::new(World::privileged());
    let state = world.state();
    let mount = format!("mount -t tmpfs -o size=160m,mode=700 tmpfs '{}'", state.display());
    // The command line cannot see into the namespace: it is let in, and its invite comes from another device.
    let mut nodes = Vec::new();
    for name in [NAMES[1], NAMES[2]] {
        let world = Arc::new(World::new());
        let setup = named(&world, name, true);
        nodes.push(Node::start(Arc::clone(&world), setup).await);
    }
    let code = nodes[0].invite_with(&["--uses", "2"]);
    let setup = named(&world, NAMES[0], true).env("CHAPPIE_JOIN", &code).in_mount_namespace(&mount);
    let small = Node::start(world, setup).await;
    nodes[1].join(&code).await;
    list_each_other(&[&nodes[0], &nodes[1], &small]).await;
    let inside = PathBuf::from(format!("/proc/{}/root{}", small.pid(), state.display()));
    nodes.push(small);
    (Cluster { nodes }, inside)
}

/// F25: a broker without room steps down before it has none at all; the others go on, and it is back when there is
/// room.
#[tokio::test]
async fn f25_a_broker_whose_disk_is_full_steps_down_and_is_back_when_there_is_room() {
    let (mut cluster, inside) = with_a_small_disk().await;
    let (small, seen) = (2, [0, 1]);
    cluster.settled_among(3, &seen).await;
    let id = cluster[small].id().to_owned();
    cluster.lead_with(small).await;
    let session = cluster[0].session(NAMES[1]);
    let ledger = chappie_tests::ledger::Ledger::at(&cluster[0].folder().join("ledger"));
    let chat = cluster[1].chat("v1/full");
    let held = format!("{}; while [ ! -e go ]; do sleep 0.05; done; echo DONE-one-$((6 * 7))", ledger.append("one"));
    let call = chat.begin("bash", json!({"command": held, "sessionId": session}));
    chappie_tests::eventually("the command", async || (ledger.count("one") == 1).then_some(())).await;
    let fill = inside.join("fill");
    fill_up(&fill);
    // Nothing is written, and it notices all the same.
    within(ELECTED, "another broker", async || (broker_seen(&cluster, &seen).await != id).then_some(())).await;
    cluster[0].world.put(&cluster[0].folder().join("go"), "");
    done(call.answer().await, "one");
    for number in 0..30 {
        let mark = format!("m{number}");
        let arguments = json!({"command": ledger.append(&mark), "sessionId": session, "operationId": mark});
        chat.call("bash", arguments).await.ok();
        assert_eq!(ledger.count(&mark), 1);
    }
    assert_ne!(broker_seen(&cluster, &seen).await, id, "the device with the full disk");
    std::fs::remove_file(&fill).unwrap();
    cluster.settled_among(3, &seen).await;
    let own = chappie_tests::mesh::session_at(&cluster[0], NAMES[0]).await;
    within(Duration::from_secs(30), "work at the device that has room again", async || {
        let arguments = json!({"command": "echo room", "sessionId": own});
        (!cluster[0].chat("v1/room").call("bash", arguments).await.is_error).then_some(())
    })
    .await;
    assert_eq!(ledger.count("one"), 1);
}

/// Fills a disk to the last byte.
fn fill_up(path: &std::path::Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    let block = vec![0_u8; 1 << 16];
    while file.write_all(&block).is_ok() {}
}

/// The node id of the broker that these devices name; they may take a moment to name the same.
async fn broker_seen(cluster: &Cluster, among: &[usize]) -> String {
    within(Duration::from_secs(30), "a broker", async || {
        let mut named: Vec<String> = among
            .iter()
            .map(|at| cluster[*at].status()["broker"]["node"].as_str().unwrap_or_default().to_owned())
            .collect();
        named.dedup();
        (named.len() == 1 && !named[0].is_empty()).then(|| named.remove(0))
    })
    .await
}

/// Three devices, each with a disk that can be told to fail.
async fn with_disks() -> (Scene, Vec<Disk>) {
    let start = |name: &'static str| async move {
        let world = Arc::new(World::new());
        let (disk, setup) = Disk::of(&world, named(&world, name, true));
        (disk, Node::start(world, setup).await)
    };
    let started = futures_util::future::join_all([start(NAMES[0]), start(NAMES[1]), start(NAMES[2])]).await;
    let (disks, nodes): (Vec<Disk>, Vec<Node>) = started.into_iter().unzip();
    let code = nodes[0].invite_with(&["--uses", "2"]);
    nodes[1].join(&code).await;
    nodes[2].join(&code).await;
    let cluster = Cluster { nodes };
    cluster.settled(voters_of(3)).await;
    cluster.list_each_other(&[0, 1, 2]).await;
    (Scene::of(cluster).await, disks)
}

/// F25: the store of the broker gives an I/O error: another acts, and the device is back in step without a restart.
#[tokio::test]
async fn f25_a_broker_whose_disk_fails_is_replaced_and_back_in_step_without_a_restart() {
    let (mut scene, disks) = with_disks().await;
    let chat = scene.chat("v1/failing").await;
    let watch = Watch::over(&scene.cluster);
    let call = chat.begin("bash", json!({"command": scene.held("one"), "operationId": "op-1"}));
    scene.begun("one").await;
    let sick = scene.broker;
    disks[sick].fail(&scene.cluster[sick].world);
    // The next write finds out.
    let next = chat.begin("bash", json!({"command": "true", "operationId": "op-2"}));
    scene.broker_besides(sick).await;
    scene.release("one");
    done(call.answer().await, "one");
    next.answer().await.ok();
    scene.ran_once("one");
    assert!(scene.cluster[sick].is_running(), "the node lives on");
    disks[sick].heal();
    scene.cluster.settled(3).await;
    assert!(scene.cluster[sick].is_running());
    chat.call("bash", json!({"command": "true", "operationId": "op-3"})).await.ok();
    watch.holds().await;
}

/// Slow disks make slow calls and nothing else: no election, no error.
#[tokio::test]
async fn slow_syncs_cause_no_election_and_no_error() {
    let (scene, disks) = with_disks().await;
    let chat = scene.chat("v1/slow").await;
    let watch = Watch::over(&scene.cluster);
    let term = scene.cluster.term(scene.broker).await;
    for (round, sick) in [vec![scene.broker], vec![scene.station], vec![0, 1, 2]].into_iter().enumerate() {
        for at in &sick {
            disks[*at].slow(&scene.cluster[*at].world, Duration::from_millis(300));
        }
        for number in 0..5 {
            let mark = format!("r{round}-{number}");
            let start = Instant::now();
            chat.call("bash", json!({"command": scene.ledger.append(&mark), "operationId": mark})).await.ok();
            println!("slow {sick:?}: {:?}", start.elapsed());
            assert_eq!(scene.ledger.count(&mark), 1);
        }
        disks.iter().for_each(Disk::heal);
    }
    scene.cluster.settled(3).await;
    assert_eq!(scene.cluster.term(scene.broker).await, term, "no election");
    watch.holds().await;
}

/// A voter's store that lost its last bytes while it was stopped: either its device mends it, or it says so and starts when
/// the file was moved away. It is back in step either way, and nothing was forgotten.
#[tokio::test]
async fn a_store_cut_short_by_a_few_bytes_is_noticed_and_its_device_comes_back_in_step() {
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/short").await;
    let arguments = json!({"command": scene.ledger.append("kept"), "operationId": "op-1"});
    chat.call("bash", arguments.clone()).await.ok();
    let watch = Watch::over(&scene.cluster);
    for (killed, bytes) in [(false, 7), (true, 4096 + 3)] {
        let broker = scene.cluster.broker().await;
        let cut = scene.cluster.besides(&[broker, scene.station])[0];
        if killed {
            scene.cluster[cut].kill()
        } else {
            scene.cluster[cut].stop().await
        }
        let path = store(&scene.cluster[cut]);
        let length = std::fs::metadata(&path).unwrap().len();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - bytes).unwrap();
        if let Err(said) = scene.cluster[cut].try_again().await {
            assert!(said.contains("consensus.redb"), "{said}");
            std::fs::rename(&path, path.with_extension("damaged")).unwrap();
            scene.cluster[cut].start_again().await;
        }
        let start = Instant::now();
        scene.cluster.settled(voters_of(3)).await;
        println!("{bytes} bytes less: in step after {:?}", start.elapsed());
        let replay = scene.cluster[cut].chat("v1/short").call("bash", arguments.clone()).await.ok();
        assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    }
    assert_eq!(scene.ledger.count("kept"), 1);
    watch.holds().await;
}

/// A device that was away while more was written than the log keeps: it gets a snapshot, and knows everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_a_device_that_missed_more_than_the_log_keeps_catches_up_by_a_snapshot() {
    /// Beyond what stays in the log (the issue: more than 2,000 commands).
    const MISSED: usize = 2_400;
    let mut scene = Scene::new().await;
    let chat = scene.chat("v1/behind").await;
    let arguments = json!({"command": scene.ledger.append("kept"), "operationId": "op-1"});
    chat.call("bash", arguments.clone()).await.ok();
    let broker = scene.cluster.broker().await;
    let away = scene.cluster.besides(&[broker, scene.station])[0];
    scene.cluster[away].stop().await;
    let left = scene.cluster.besides(&[away]);
    let door = scene.cluster.broker_among(&left).await;
    // Each new conversation that takes a session is a command.
    let start = Instant::now();
    let bind = |number: usize| {
        let client = scene.cluster[door].chat(&format!("v1/many-{number}"));
        let session = scene.session.clone();
        async move { client.call("init", json!({"sessionId": session})).await.ok() }
    };
    stream::iter(0..MISSED).map(bind).buffer_unordered(16).for_each(async |_| ()).await;
    println!("{MISSED} bindings in {:?}", start.elapsed());
    let start = Instant::now();
    scene.back(away).await;
    println!("in step {:?} after its start", start.elapsed());
    // It knows all of it: as the broker it answers from its own state.
    scene.cluster.lead_with(away).await;
    let folder = scene.cluster[scene.station].folder().display().to_string();
    for number in [0, MISSED / 2, MISSED - 1] {
        let pwd = scene.cluster[away].chat(&format!("v1/many-{number}")).call("bash", json!({"command": "pwd"})).await;
        assert!(pwd.output().contains(&folder), "{}", excerpt(&pwd.text()));
    }
    let replay = scene.cluster[away].chat("v1/behind").call("bash", arguments).await.ok();
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    assert_eq!(scene.ledger.count("kept"), 1);
}

/// An original state file with many rows is committed through the log and is there at every device after a failover.
#[tokio::test]
async fn an_imported_state_file_is_replicated_before_it_is_said_to_be_taken() {
    let mut scene = Scene::new().await;
    let other = scene.cluster[scene.door].session(NAMES[scene.door]);
    let bindings: serde_json::Map<String, serde_json::Value> =
        (0..3_000).map(|number| (format!("v1/old-{number}"), json!(other))).collect();
    let file = scene.cluster[scene.broker].world.root().join("chappie.state.json");
    scene.cluster[scene.broker].world.put(&file, json!({"bindings": bindings}).to_string());
    // Twice is as good as once, and a busy machine may be between two brokers.
    within(Duration::from_secs(30), "the import", async || {
        let words = ["import-state", &file.display().to_string(), "--json"];
        scene.cluster[scene.broker].world.run(&words).status.success().then_some(())
    })
    .await;
    scene.lose_broker().await;
    let folder = scene.cluster[scene.door].folder().display().to_string();
    for number in [0, 1_499, 2_999] {
        let chat = scene.cluster[scene.station].chat(&format!("v1/old-{number}"));
        let pwd = chat.call("bash", json!({"command": "pwd"})).await.ok();
        assert!(pwd.output().contains(&folder), "{}", excerpt(&pwd.text()));
    }
}
