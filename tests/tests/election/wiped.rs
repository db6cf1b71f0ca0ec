//! A device whose election store is lost or is an old one, and that comes back (DEV-22; failure rule F15): it is
//! never counted by what its lost store promised, and catches up by itself.
//!
//! DEV-22 speaks of a transfer `op-22`. A `bash` with that `operationId` stands in its place: receipts are the same
//! for both.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use chappie_tests::{
    answer::excerpt,
    election::{Cluster, NAMES, Scene, Watch, voters_of},
    wait::within,
};
use serde_json::{Value, json};

/// How long DEV-22 looks.
const LOOKED_AT: Duration = Duration::from_secs(60);
/// How soon the wiped device is in step.
const IN_STEP: Duration = Duration::from_secs(30);

fn store(scene: &Scene, at: usize) -> PathBuf {
    scene.cluster[at].world.state().join("consensus.redb")
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success(), "cp -a {} {}", from.display(), to.display());
}

/// The operation of DEV-22.
fn op_22(scene: &Scene) -> Value {
    json!({"command": scene.ledger.append("op-22"), "operationId": "op-22"})
}

/// Sends `op-22` again through every door of `doors`: it is a receipt, and nothing ran again.
async fn replays(scene: &Scene, doors: &[usize]) {
    for door in doors {
        let chat = scene.cluster[*door].chat("v1/dev-22");
        let replay = within(Duration::from_secs(20), "an answer", async || {
            let answer = chat.call("bash", op_22(scene)).await;
            (!answer.is_error).then_some(answer)
        })
        .await;
        assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    }
    assert_eq!(scene.ledger.count("op-22"), 1);
}

/// Three devices with the operation done; the station is none that is wiped, so that the ledger's device stays.
async fn begun() -> Scene {
    let scene = Scene::new().await;
    scene.chat("v1/dev-22").await.call("bash", op_22(&scene)).await.ok();
    scene
}

async fn in_step(scene: &Scene, since: Instant) {
    scene.cluster.settled(voters_of(3)).await;
    println!("in step {:?} after its start", since.elapsed());
    assert!(since.elapsed() < IN_STEP, "{:?}", since.elapsed());
}

/// Goes on looking until DEV-22's minute is over, making calls meanwhile.
async fn look_on(scene: &Scene, since: Instant) {
    let chat = scene.cluster[scene.station].chat("v1/dev-22");
    let mut number = 0;
    while since.elapsed() < LOOKED_AT {
        let mark = format!("meanwhile-{number}");
        chat.call("bash", json!({"command": scene.ledger.append(&mark), "operationId": mark})).await.ok();
        assert_eq!(scene.ledger.count(&mark), 1);
        number += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn dev_22_a_wiped_voter_is_in_step_within_30_s_and_never_makes_two_brokers() {
    let mut scene = begun().await;
    let (wiped, id) = (scene.door, scene.cluster[scene.door].id().to_owned());
    let watch = Watch::over(&scene.cluster);
    scene.cluster[wiped].kill();
    std::fs::remove_file(store(&scene, wiped)).unwrap();
    let start = Instant::now();
    scene.cluster[wiped].start_again().await;
    assert_eq!(scene.cluster[wiped].id(), id, "its identity is kept");
    in_step(&scene, start).await;
    look_on(&scene, start).await;
    replays(&scene, &[0, 1, 2]).await;
    watch.holds().await;
    assert_eq!(scene.cluster.broker().await, scene.broker, "the broker was not disturbed");
}

#[tokio::test]
async fn dev_22_a_wiped_voter_is_not_counted_by_its_old_promises_while_another_is_stopped() {
    not_counted(|scene, wiped| std::fs::remove_file(store(scene, wiped)).unwrap()).await;
}

#[tokio::test]
async fn dev_22_a_voter_with_an_older_election_store_is_not_counted_while_another_is_stopped() {
    not_counted(|scene, at| {
        let backup = scene.cluster[at].world.root().join("older.redb");
        std::fs::rename(backup, store(scene, at)).unwrap();
    })
    .await;
}

/// With one voter stopped and one whose store is lost, the third is alone: nobody acts until the stopped one is back.
async fn not_counted(lose: impl Fn(&Scene, usize)) {
    let mut scene = begun().await;
    let wiped = scene.door;
    // An older store, for the variant that restores it.
    scene.cluster[wiped].stop().await;
    copy(&store(&scene, wiped), &scene.cluster[wiped].world.root().join("older.redb"));
    scene.back(wiped).await;
    // The station or the broker; the store of neither is touched.
    let broker = scene.cluster.broker().await;
    let stopped = scene.cluster.besides(&[wiped, broker])[0];
    let keeper = scene.cluster.besides(&[wiped, stopped])[0];
    let watch = Watch::over(&scene.cluster);
    scene.cluster[stopped].stop().await;
    scene.cluster.broker_among(&[wiped, keeper]).await;
    scene.cluster[wiped].kill();
    lose(&scene, wiped);
    let start = Instant::now();
    scene.cluster[wiped].start_again().await;
    for at in [wiped, keeper] {
        scene.cluster.leaderless(at).await;
    }
    let alone = Instant::now();
    while start.elapsed() < LOOKED_AT {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let acted = watch.looks().into_iter().filter(|look| look.asked > alone && look.acts()).count();
    assert_eq!(acted, 0, "a broker acted with the vote of a lost store");
    let back = Instant::now();
    scene.cluster[stopped].start_again().await;
    in_step(&scene, back).await;
    replays(&scene, &[0, 1, 2]).await;
    watch.holds().await;
}

/// F15: the store of an earlier day, under the identity of today: it comes back as a new member by itself.
#[tokio::test]
async fn f15_a_voter_with_an_older_election_store_comes_back_as_a_new_member() {
    let mut scene = begun().await;
    let restored = scene.door;
    scene.cluster[restored].stop().await;
    copy(&store(&scene, restored), &scene.cluster[restored].world.root().join("older.redb"));
    scene.back(restored).await;
    let watch = Watch::over(&scene.cluster);
    let chat = scene.cluster[scene.station].chat("v1/dev-22");
    chat.call("bash", json!({"command": scene.ledger.append("later"), "operationId": "op-later"})).await.ok();
    scene.cluster[restored].kill();
    copy(&scene.cluster[restored].world.root().join("older.redb"), &store(&scene, restored));
    let start = Instant::now();
    scene.cluster[restored].start_again().await;
    in_step(&scene, start).await;
    look_on(&scene, start).await;
    replays(&scene, &[0, 1, 2]).await;
    watch.holds().await;
    // What it did not know it knows now: it answers when it is the broker.
    let door = scene.cluster[restored].chat("v1/dev-22");
    let later = json!({"command": scene.ledger.append("later"), "operationId": "op-later"});
    let replay = door.call("bash", later).await.ok();
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", excerpt(&replay.text()));
    assert_eq!(scene.ledger.count("later"), 1);
}

/// The broker itself is wiped: the others elect one, and it comes back as a member.
#[tokio::test]
async fn a_wiped_broker_is_replaced_and_comes_back_as_a_member() {
    let mut scene = begun().await;
    let wiped = scene.broker;
    let watch = Watch::over(&scene.cluster);
    scene.lose_broker().await;
    std::fs::remove_file(store(&scene, wiped)).unwrap();
    let start = Instant::now();
    scene.cluster[wiped].start_again().await;
    in_step(&scene, start).await;
    replays(&scene, &[0, 1, 2]).await;
    watch.holds().await;
}

/// The only voter of two is wiped: nobody knows what it knew, so nobody acts until a person says so (F15, F16).
#[tokio::test]
async fn a_wiped_only_voter_does_not_begin_anew_by_itself() {
    let mut cluster = Cluster::of(2).await;
    let wiped = cluster.broker().await;
    let other = 1 - wiped;
    let mesh = cluster[other].status()["mesh"].clone();
    cluster[wiped].kill();
    std::fs::remove_file(cluster[wiped].world.state().join("consensus.redb")).unwrap();
    cluster[wiped].start_again().await;
    for at in [wiped, other] {
        cluster.leaderless(at).await;
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        for node in &cluster.nodes {
            assert_eq!(node.status()["broker"], Value::Null, "{}", node.status());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    cluster[other].world.run_ok(&["mesh", "recover", "--accept-loss", "--yes", "--json"]);
    cluster.settled(1).await;
    assert_eq!(cluster.broker().await, other, "the one that has the mesh's state");
    assert_eq!(cluster[wiped].status()["mesh"], mesh);
    cluster.list_each_other(&[0, 1]).await;
    let session = cluster[wiped].session(NAMES[wiped]);
    let pwd = cluster[other].chat("v1/again").call("bash", json!({"command": "pwd", "sessionId": session})).await.ok();
    assert!(pwd.output().contains(NAMES[wiped]));
}
