//! Too few voters: the door says who is missing and what to do, a person may begin anew with `chappie mesh recover`,
//! and who comes back later follows or is named (failure rules F16 and F17; design section 7).

use std::time::{Duration, Instant};

use chappie_tests::{
    Answer, Client, Node,
    answer::excerpt,
    election::{Cluster, NAMES, Scene, told, voters_of},
    wait::within,
};
use serde_json::{Value, json};

/// Runs `chappie mesh recover --yes --json` with further words; gives what it printed.
fn recover(node: &Node, words: &[&str]) -> Value {
    let mut all = vec!["mesh", "recover", "--yes", "--json"];
    all.extend(words);
    let printed = node.world.run_ok(&all);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// Starts devices that were left behind by a recovery, all at once: two of three would be enough to go on by themselves. Each
/// asks first, and follows.
async fn come_back(cluster: &mut Cluster, begun_anew: usize, left_behind: &[usize]) {
    let started = left_behind.iter().map(|at| cluster[*at].again());
    for (at, node) in left_behind.iter().zip(futures_util::future::join_all(started).await) {
        cluster[*at] = node;
    }
    assert_eq!(cluster.broker().await, begun_anew, "the others follow");
    cluster.list_each_other(&cluster.all()).await;
    cluster.settled(voters_of(cluster.nodes.len())).await;
}

/// Waits until a device has nothing to say against its place in the mesh.
async fn no_trouble(node: &Node) {
    let start = Instant::now();
    loop {
        let trouble = node.status()["trouble"].clone();
        if trouble.is_null() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{trouble}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn replay_status(answer: &Answer) -> Value {
    if answer.is_error { Value::Null } else { answer.header()["replay"]["status"].clone() }
}

/// Calls until there is no error, and gives that answer.
async fn accepted(chat: &Client, arguments: &Value) -> Answer {
    let start = Instant::now();
    loop {
        let answer = chat.call("bash", arguments.clone()).await;
        if !answer.is_error {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{arguments}: {}", excerpt(&answer.text()));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Three devices of which the station is left: it has a conversation, a finished operation `op-old`, and no quorum.
async fn survivor(chat: &str) -> (Scene, Value) {
    let mut scene = Scene::new().await;
    scene.door = scene.station;
    let client = scene.chat(chat).await;
    let old = json!({"command": scene.ledger.append("old"), "operationId": "op-old"});
    client.call("bash", old.clone()).await.ok();
    for at in scene.cluster.besides(&[scene.station]) {
        scene.cluster[at].kill();
    }
    scene.cluster.leaderless(scene.station).await;
    (scene, old)
}

/// Two of three die at once: the first call at the device that is left is told who is missing and what to do, although its
/// connections to them look well for some seconds, and so is the next one.
async fn names_who_is_missing(part: impl Fn(&Scene) -> usize) {
    let mut scene = Scene::new().await;
    let left = part(&scene);
    let gone = scene.cluster.besides(&[left]);
    let chat = scene.cluster[left].chat("v1/left");
    let own = scene.cluster[left].session(NAMES[left]);
    chat.call("init", json!({"sessionId": own})).await.ok();
    for at in &gone {
        scene.cluster[*at].kill();
    }
    if left == scene.broker {
        // For a moment it may act on, and answers.
        scene.cluster.leaderless(left).await;
    }
    for _ in 0..2 {
        let start = Instant::now();
        let words = [NAMES[gone[0]], NAMES[gone[1]], "chappie mesh recover"];
        told(&chat.call("bash", json!({"command": "true"})).await, start, &words);
    }
    let quorum = scene.cluster[left].status()["quorum"].clone();
    assert_eq!(quorum, json!({"voters": 3, "reachable": 1, "ok": false}));
}

#[tokio::test]
async fn a_survivor_of_three_names_who_is_missing_and_mesh_recover() {
    names_who_is_missing(|scene| scene.station).await;
}

#[tokio::test]
async fn a_broker_left_alone_of_three_names_who_is_missing_and_mesh_recover() {
    names_who_is_missing(|scene| scene.broker).await;
}

#[tokio::test]
async fn f17_after_mesh_recover_known_receipts_replay_and_new_ones_wait_for_the_missing() {
    let (mut scene, old) = survivor("v1/recovered").await;
    let (left, station) = (scene.cluster.besides(&[scene.station]), scene.station);
    let mesh = scene.cluster[station].status()["mesh"].clone();
    scene.cluster.without_quorum(station).await;
    let said = recover(&scene.cluster[station], &[]);
    assert_eq!(said["mesh"], mesh, "{said}");
    assert!(said["epoch"].to_string().contains('2'), "{said}");
    assert_eq!(scene.cluster[station].status()["broker"]["self"], true, "it acts when the command returns");
    let missing = said["missing"].to_string();
    assert!(!missing.contains(NAMES[station]), "it is there itself: {said}");
    assert!(left.iter().all(|at| missing.contains(NAMES[*at]) || missing.contains(scene.cluster[*at].id())), "{said}");
    let chat = scene.cluster[station].chat("v1/recovered");
    let pwd = accepted(&chat, &json!({"command": "pwd"})).await;
    assert!(pwd.output().contains(&format!("/{}", NAMES[station])), "the binding is kept: {}", pwd.output());
    let replay = chat.call("bash", old.clone()).await;
    assert_eq!(replay_status(&replay), "completed", "{}", excerpt(&replay.text()));
    let new = json!({"command": scene.ledger.append("new"), "operationId": "op-new"});
    let refused = chat.call("bash", new.clone()).await.refused();
    assert!(refused.text().contains("--accept-loss"), "{}", excerpt(&refused.text()));
    assert!(left.iter().all(|at| refused.text().contains(NAMES[*at])), "{}", excerpt(&refused.text()));
    assert_eq!(scene.ledger.count("new"), 0);
    // The others come back: their stores are of the old epoch, and they follow by themselves.
    come_back(&mut scene.cluster, station, &left).await;
    scene.cluster.list_each_other(&scene.cluster.all()).await;
    let first = accepted(&chat, &new).await;
    assert!(first.header()["replay"].is_null(), "it runs now: {}", excerpt(&first.text()));
    for door in 0..3 {
        let replay = scene.cluster[door].chat("v1/recovered").call("bash", old.clone()).await;
        assert_eq!(replay_status(&replay), "completed", "{}", excerpt(&replay.text()));
    }
    assert_eq!((scene.ledger.count("old"), scene.ledger.count("new")), (1, 1));
    for node in &scene.cluster.nodes {
        no_trouble(node).await;
        assert_eq!(node.status()["mesh"], mesh);
    }
    // It is a full mesh again: it survives its broker.
    let acting = scene.cluster.broker().await;
    scene.cluster[acting].kill();
    scene.broker_besides(acting).await;
}

#[tokio::test]
async fn f17_accept_loss_takes_new_receipts_at_once() {
    let (scene, old) = survivor("v1/loss").await;
    let station = scene.station;
    scene.cluster.without_quorum(station).await;
    recover(&scene.cluster[station], &["--accept-loss"]);
    let chat = scene.cluster[station].chat("v1/loss");
    let new = json!({"command": scene.ledger.append("new"), "operationId": "op-new"});
    accepted(&chat, &new).await;
    for arguments in [old, new] {
        let replay = chat.call("bash", arguments).await;
        assert_eq!(replay_status(&replay), "completed", "{}", excerpt(&replay.text()));
    }
    assert_eq!((scene.ledger.count("old"), scene.ledger.count("new")), (1, 1));
}

#[tokio::test]
async fn f17_the_loss_can_be_accepted_later() {
    let (mut scene, _) = survivor("v1/later").await;
    let station = scene.station;
    scene.cluster.without_quorum(station).await;
    recover(&scene.cluster[station], &[]);
    let chat = scene.cluster[station].chat("v1/later");
    accepted(&chat, &json!({"command": "true"})).await;
    let new = json!({"command": scene.ledger.append("new"), "operationId": "op-new"});
    chat.call("bash", new.clone()).await.refused();
    let lossy = ["mesh", "recover", "--accept-loss", "--yes"];
    // A device that follows says where.
    let back = scene.cluster.besides(&[station])[0];
    scene.cluster[back].start_again().await;
    scene.cluster.broker_among(&[station, back]).await;
    let output = scene.cluster[back].world.run(&lossy);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(NAMES[station]) && said.contains("there"), "{said}");
    let said = recover(&scene.cluster[station], &["--accept-loss"]);
    assert_eq!((&said["lossOnly"], &said["missing"]), (&json!(true), &json!([])), "{said}");
    // Once more there is nothing to accept.
    let output = scene.cluster[station].world.run(&lossy);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no device is waited for"), "{said}");
    accepted(&chat, &new).await;
    assert_eq!(scene.ledger.count("new"), 1);
}

/// F17: an operation that only a missing device's journal knows is settled by what that device says when it is back.
#[tokio::test]
async fn f17_an_operation_that_a_missing_device_ran_is_known_when_it_is_back() {
    let mut scene = Scene::new().await;
    let station = scene.station;
    let chat = scene.chat("v1/there").await;
    let old = json!({"command": scene.ledger.append("there"), "operationId": "op-there"});
    chat.call("bash", old.clone()).await.ok();
    // The survivor is the door's device; the station, whose journal has the operation, is away.
    let (door, broker) = (scene.door, scene.broker);
    scene.cluster[station].kill();
    scene.cluster[broker].kill();
    scene.cluster.without_quorum(door).await;
    recover(&scene.cluster[door], &[]);
    come_back(&mut scene.cluster, door, &[station, broker]).await;
    let replay = accepted(&scene.cluster[door].chat("v1/there"), &old).await;
    assert_eq!(replay_status(&replay), "completed", "{}", excerpt(&replay.text()));
    assert_eq!(scene.ledger.count("there"), 1);
}

#[tokio::test]
async fn f16_two_sides_that_both_recovered_name_the_split_and_mesh_follow_settles_it() {
    let mut cluster = Cluster::of(3).await;
    let (one, two, away) = (0, 1, 2);
    cluster[away].kill();
    cluster[two].kill();
    cluster.without_quorum(one).await;
    recover(&cluster[one], &["--accept-loss"]);
    cluster.broker_among(&[one]).await;
    cluster[one].kill();
    cluster[two].start_again().await;
    cluster.without_quorum(two).await;
    recover(&cluster[two], &["--accept-loss"]);
    cluster.broker_among(&[two]).await;
    cluster[one].start_again().await;
    // Both act, neither follows, and each owner is told, with the words that settle it.
    for (own, other) in [(one, two), (two, one)] {
        let told = within(Duration::from_secs(30), "a word on the split", async || {
            let trouble = cluster[own].status()["trouble"].as_str()?.to_owned();
            trouble.contains("mesh follow").then_some(trouble)
        })
        .await;
        assert!(told.contains(NAMES[other]) || told.contains(&cluster[other].id()[..7]), "{told}");
        assert_eq!(cluster.broker_among(&[own]).await, own, "it acts all the same");
    }
    let follow = |at: usize, whom: usize| cluster[at].world.run_ok(&["mesh", "follow", NAMES[whom], "--yes", "--json"]);
    let said: Value = serde_json::from_str(&follow(two, one)).unwrap();
    let archived = said["archived"].as_str().unwrap_or_else(|| panic!("no path in {said}"));
    assert!(std::path::Path::new(archived).exists(), "{said}");
    assert!(said["device"].to_string().contains(NAMES[one]), "{said}");
    cluster[away].start_again().await;
    cluster.settled(3).await;
    cluster.list_each_other(&cluster.all()).await;
    for node in &cluster.nodes {
        no_trouble(node).await;
    }
}

#[tokio::test]
async fn mesh_recover_is_refused_while_a_broker_acts_and_without_a_yes() {
    let cluster = Cluster::of(3).await;
    let broker = cluster.broker().await;
    for words in [&["mesh", "recover", "--yes", "--json"][..], &["mesh", "recover"][..]] {
        let output = cluster[cluster.besides(&[broker])[0]].world.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !said.trim().is_empty(), "{words:?}: {said}");
    }
    for (words, code) in [(&["mesh", "follow", "nobody", "--yes"][..], 1), (&["mesh", "follow", "nobody"], 2)] {
        let output = cluster[broker].world.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert_eq!(said.contains("--yes"), code == 2, "{words:?}: {said}");
    }
    cluster.settled(3).await;
}

/// Two devices have one voter (design section 7): the other one's loss is no loss, its own is named at the other's
/// door.
#[tokio::test]
async fn of_two_devices_one_votes_and_goes_on_alone() {
    let mut cluster = Cluster::of(2).await;
    let broker = cluster.broker().await;
    let other = 1 - broker;
    assert_eq!(cluster[broker].status()["quorum"], json!({"voters": 1, "reachable": 1, "ok": true}));
    cluster[other].kill();
    let chat = cluster[broker].chat("v1/two");
    let own = cluster[broker].session(NAMES[broker]);
    chat.call("bash", json!({"command": "echo kept", "sessionId": own, "operationId": "op-1"})).await.ok();
    cluster[other].start_again().await;
    cluster.list_each_other(&[0, 1]).await;
    cluster[broker].kill();
    let door = cluster[other].chat("v1/two");
    cluster.leaderless(other).await;
    let start = Instant::now();
    told(&door.call("bash", json!({"command": "true"})).await, start, &[NAMES[broker], "chappie mesh recover"]);
    cluster[broker].start_again().await;
    cluster.settled(1).await;
    assert_eq!(cluster.broker().await, broker);
    let replay = accepted(&door, &json!({"command": "echo kept", "sessionId": own, "operationId": "op-1"})).await;
    assert_eq!(replay_status(&replay), "completed", "{}", excerpt(&replay.text()));
}

/// The second device is what is left of two and takes over by a person's word; gives the place of the first, which was the
/// only voter and is off.
async fn taken_over() -> (Cluster, usize) {
    let mut cluster = Cluster::of(2).await;
    let lost = cluster.broker().await;
    let other = 1 - lost;
    cluster[lost].kill();
    cluster.without_quorum(other).await;
    recover(&cluster[other], &["--accept-loss"]);
    cluster.broker_among(&[other]).await;
    (cluster, lost)
}

/// The first asks the second when it starts, and follows (F16).
#[tokio::test]
async fn the_second_of_two_devices_recovers_and_the_first_follows_by_itself() {
    let (mut cluster, lost) = taken_over().await;
    cluster[lost].start_again().await;
    cluster.settled(1).await;
    assert_eq!(cluster.broker().await, 1 - lost);
    cluster.list_each_other(&[0, 1]).await;
    for node in &cluster.nodes {
        no_trouble(node).await;
    }
}

/// The first starts while the second is off, so that nobody tells it, and acts: that is a split, both owners are told, and
/// `mesh follow` settles it (F16).
#[tokio::test]
async fn the_second_of_two_devices_recovers_and_the_first_follows_by_a_persons_word() {
    let (mut cluster, lost) = taken_over().await;
    let other = 1 - lost;
    cluster[other].kill();
    cluster[lost].start_again().await;
    cluster.broker_among(&[lost]).await;
    cluster[other].start_again().await;
    for at in [lost, other] {
        within(Duration::from_secs(30), "a word on the split", async || {
            cluster[at].status()["trouble"].as_str().filter(|said| said.contains("mesh follow")).map(|_| ())
        })
        .await;
    }
    cluster[lost].world.run_ok(&["mesh", "follow", NAMES[other], "--yes", "--json"]);
    cluster.settled(1).await;
    assert_eq!(cluster.broker().await, other);
    cluster.list_each_other(&[0, 1]).await;
    for node in &cluster.nodes {
        no_trouble(node).await;
    }
}
