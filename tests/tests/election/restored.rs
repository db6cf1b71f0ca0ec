//! A home that was put back from a copy, and one that was copied (failure rule F15): the device is never counted by what
//! it promised before, comes back by itself, and repeats no work that its older journal does not know (F3).

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use chappie_tests::{
    answer::excerpt,
    client::InFlight,
    election::{Scene, Watch, voters_of},
    wait::{eventually, within},
};
use serde_json::json;

/// How soon a device whose home was put back is in step again.
const IN_STEP: Duration = Duration::from_secs(30);

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success(), "cp -a {} {}", from.display(), to.display());
}

fn backup(scene: &Scene) -> PathBuf {
    scene.cluster[scene.station].world.root().join("backup")
}

/// Copies the station's home as it is.
fn back_up(scene: &Scene) {
    copy(&scene.cluster[scene.station].world.state(), &backup(scene));
}

/// Ends the station and puts its home back.
fn put_back(scene: &mut Scene) {
    let station = scene.station;
    scene.cluster[station].kill();
    let home = scene.cluster[station].world.state();
    std::fs::remove_dir_all(&home).unwrap();
    copy(&backup(scene), &home);
}

/// The same, each file over what is there.
fn put_back_over(scene: &mut Scene) {
    let station = scene.station;
    scene.cluster[station].kill();
    copy(&backup(scene).join("."), &scene.cluster[station].world.state());
}

/// What runs at the station after the copy was made: an operation that ended, and one that runs.
async fn works(scene: &Scene) -> InFlight {
    let chat = scene.chat("v1/after").await;
    chat.call("bash", json!({"command": scene.ledger.append("ended"), "operationId": "op-ended"})).await.ok();
    let call = chat.begin("bash", json!({"command": scene.held("runs"), "operationId": "op-runs"}));
    scene.begun("runs").await;
    call
}

/// The station is back by itself, in step and a voter, and says and does nothing twice.
async fn comes_back(mut scene: Scene, watch: Watch, call: InFlight) {
    let (station, start) = (scene.station, Instant::now());
    let id = scene.cluster[station].id().to_owned();
    scene.cluster[station].start_again().await;
    assert_eq!(scene.cluster[station].id(), id, "its identity is kept");
    scene.cluster.settled(voters_of(3)).await;
    println!("in step {:?} after its start", start.elapsed());
    assert!(start.elapsed() < IN_STEP, "{:?}", start.elapsed());

    // An error, or the receipt when the broker has judged it already.
    let told = call.answer().await.text();
    assert!(told.contains("not known"), "{}", excerpt(&told));
    let chat = scene.chat("v1/after").await;
    let ended = chat.call("bash", json!({"command": scene.ledger.append("ended"), "operationId": "op-ended"})).await;
    assert_eq!(ended.header()["replay"]["status"], "completed", "{}", excerpt(&ended.text()));
    let runs = within(Duration::from_secs(20), "a word on the lost operation", async || {
        let answer = chat.call("bash", json!({"command": scene.held("runs"), "operationId": "op-runs"})).await;
        answer.text().contains("uncertain").then_some(answer)
    })
    .await;
    assert!(runs.text().contains("may have run"), "{}", excerpt(&runs.text()));
    chat.call("bash", json!({"command": scene.ledger.append("later"), "operationId": "op-later"})).await.ok();
    let counts = ["ended", "runs-begin", "later"].map(|mark| scene.ledger.count(mark));
    assert_eq!(counts, [1, 1, 1], "{:?}", scene.ledger.counts());
    watch.holds().await;

    assert!(scene.cluster[station].log().contains("put back from a backup"), "its own owner is told");
    for other in scene.cluster.besides(&[station]) {
        eventually("a line at the others'", async || {
            scene.cluster[other].log().contains("another member from now on").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn f15_a_home_put_back_to_an_earlier_start_comes_back_by_itself_and_repeats_nothing() {
    earlier_start(put_back).await;
}

#[tokio::test]
async fn f15_a_home_overwritten_by_one_of_an_earlier_start_comes_back_by_itself_and_repeats_nothing() {
    earlier_start(put_back_over).await;
}

async fn earlier_start(put_back: impl Fn(&mut Scene)) {
    let mut scene = Scene::new().await;
    let station = scene.station;
    scene.cluster[station].stop().await;
    back_up(&scene);
    scene.back(station).await;
    let watch = Watch::over(&scene.cluster);
    let call = works(&scene).await;
    put_back(&mut scene);
    comes_back(scene, watch, call).await;
}

#[tokio::test]
async fn f15_a_home_put_back_to_a_moment_of_its_last_start_is_another_member_and_repeats_nothing() {
    let mut scene = Scene::new().await;
    scene.cluster[scene.station].pause();
    back_up(&scene);
    scene.cluster[scene.station].resume();
    scene.cluster.settled(voters_of(3)).await;
    let watch = Watch::over(&scene.cluster);
    let call = works(&scene).await;
    put_back(&mut scene);
    comes_back(scene, watch, call).await;
}
