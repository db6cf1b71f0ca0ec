//! Who votes: voters grow and shrink with the mesh, owners have a word, and forgetting a device never takes the mesh's
//! decisions away (failure rules F15, F18 and F21; the voter policy's table has tests of its own).

use std::time::Duration;

use chappie_tests::{
    Node,
    answer::excerpt,
    election::{Cluster, NAMES, Scene, Traffic, Watch, done},
    mesh::alone,
    wait::within,
};
use serde_json::{Value, json};

/// The names of the other devices that a node calls voters.
fn voters_seen(node: &Node) -> Vec<String> {
    let status = node.status();
    let peers = status["peers"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = peers
        .iter()
        .filter(|peer| peer["voter"] == true)
        .filter_map(|peer| peer["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names
}

/// Starts `chappie COMMAND` beside the test's own work.
async fn aside(node: &Node, words: &[&str]) -> String {
    let (world, words) = (std::sync::Arc::clone(&node.world), words.iter().map(|word| (*word).to_owned()));
    let words: Vec<String> = words.collect();
    let run = move || world.run_ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

#[tokio::test]
async fn voters_grow_from_one_to_three_to_five_as_devices_join() {
    let mut cluster = Cluster { nodes: vec![alone(NAMES[0]).await] };
    let chat = cluster[0].chat("v1/growing");
    let session = cluster[0].session(NAMES[0]);
    for (devices, voters) in [(2, 1), (3, 3), (4, 3), (5, 5)] {
        let next = alone(NAMES[devices - 1]).await;
        next.join(&cluster[0].invite()).await;
        cluster.nodes.push(next);
        cluster.settled(voters).await;
        let broker = cluster.broker().await;
        assert_eq!(voters_seen(&cluster[broker]).len() as u64, voters - 1, "{}", cluster[broker].status());
        let pwd = chat.call("bash", json!({"command": "pwd", "sessionId": session})).await.ok();
        assert!(pwd.output().contains(NAMES[0]), "{}", excerpt(&pwd.text()));
    }
    // Five voters stand the loss of two.
    for at in [3, 4] {
        cluster[at].kill();
    }
    cluster.broker_among(&[0, 1, 2]).await;
    chat.call("bash", json!({"command": "true", "sessionId": session})).await.ok();
}

#[tokio::test]
async fn a_device_whose_owner_says_never_is_no_voter_and_never_the_broker() {
    // Of five devices two may not vote: three voters are left.
    let cluster = Cluster::unsettled(5, |at, setup| {
        setup.env("CHAPPIE_VOTER", if at == 1 || at == 4 { "never" } else { "auto" })
    })
    .await;
    cluster.settled(3).await;
    let mut cluster = cluster;
    let broker = cluster.broker().await;
    let seen = voters_seen(&cluster[broker]);
    assert!(!seen.iter().any(|name| name == NAMES[1] || name == NAMES[4]), "{seen:?}");
    // Its broker is lost: one of the voters acts, never one of these.
    cluster[broker].kill();
    let left = cluster.besides(&[broker]);
    let next = cluster.broker_among(&left).await;
    assert!(next != 1 && next != 4, "device {next}");
}

#[tokio::test]
async fn a_device_whose_owner_says_always_votes_before_one_that_does_not_say() {
    let cluster =
        Cluster::unsettled(4, |at, setup| setup.env("CHAPPIE_VOTER", if at == 3 { "always" } else { "auto" })).await;
    cluster.settled(3).await;
    within(Duration::from_secs(60), "its vote", async || {
        let broker = cluster.broker().await;
        let votes = broker == 3 || voters_seen(&cluster[broker]).iter().any(|name| name == NAMES[3]);
        votes.then_some(())
    })
    .await;
    cluster.settled(3).await;
}

/// A flag counts like the variable, and a wrong word is refused before anything starts.
#[tokio::test]
async fn the_voter_setting_has_a_flag_and_three_words() {
    let cluster =
        Cluster::unsettled(3, |at, setup| if at == 2 { setup.argument("--voter").argument("never") } else { setup })
            .await;
    let broker = cluster.broker().await;
    let id = cluster[2].id().to_owned();
    within(Duration::from_secs(20), "its row", async || (cluster[broker].peer(&id)["voter"] == false).then_some(()))
        .await;
    let world = std::sync::Arc::new(chappie_tests::World::new());
    let setup = chappie_tests::node::Setup::new().argument("--voter").argument("sometimes");
    let log = Node::try_start(world, setup).await.unwrap_err();
    assert!(log.contains("always") && log.contains("never") && log.contains("sometimes"), "{log}");
}

#[tokio::test]
async fn f21_forgetting_the_broker_moves_leadership_first_and_no_call_notices() {
    let scene = Scene::with(4, |_, setup| setup).await;
    let (lost, chat) = (scene.broker, scene.chat("v1/forget").await);
    let id = scene.cluster[lost].id().to_owned();
    let watch = Watch::over(&scene.cluster);
    let call = chat.begin("bash", json!({"command": scene.held("one"), "operationId": "op-1"}));
    scene.begun("one").await;
    // Its own session is taken by `one`: the traffic works at the door's.
    let near = scene.cluster[scene.door].session(NAMES[scene.door]);
    let steady = scene.cluster[scene.door].chat("v1/steady");
    let traffic = Traffic::start(&steady, &near, &scene.ledger, Duration::from_millis(100));
    let ledger = scene.ledger.clone();
    chappie_tests::eventually("some calls", async || (ledger.counts().len() >= 5).then_some(())).await;
    aside(&scene.cluster[scene.station], &["forget", "--yes", NAMES[lost]]).await;
    let left = scene.cluster.besides(&[lost]);
    scene.cluster.settled_among(3, &left).await;
    assert!(scene.cluster[scene.door].peer(&id).is_null());
    scene.release("one");
    done(call.answer().await, "one");
    traffic.all_ran_once(&scene.ledger).await;
    scene.ran_once("one");
    // The forgotten one is a mesh of one in a new epoch, and works.
    within(Duration::from_secs(30), "a mesh of one", async || {
        let status = scene.cluster[lost].status();
        (status["peers"] == json!([]) && status["broker"]["self"] == true && status["quorum"]["voters"] == 1)
            .then_some(())
    })
    .await;
    let own = scene.cluster[lost].chat("v1/own").call("bash", json!({"command": "echo alone"})).await.ok();
    assert!(own.output().contains("alone"));
    drop(watch);
}

#[tokio::test]
async fn f21_a_forgotten_voter_is_replaced_by_a_device_that_had_no_vote() {
    let cluster = Cluster::of(4).await;
    let broker = cluster.broker().await;
    let (voters, id) = (voters_seen(&cluster[broker]), cluster[broker].id().to_owned());
    let voter = cluster.besides(&[broker]).into_iter().find(|at| voters.contains(&NAMES[*at].to_owned())).unwrap();
    aside(&cluster[broker], &["forget", "--yes", NAMES[voter]]).await;
    let left = cluster.besides(&[voter]);
    cluster.settled_among(3, &left).await;
    assert_eq!(cluster[cluster.broker_among(&left).await].id(), id, "leadership stays where it is");
    cluster.list_each_other(&left).await;
}

#[tokio::test]
async fn f21_forgetting_a_voter_that_is_away_leaves_a_mesh_that_decides() {
    let mut cluster = Cluster::of(3).await;
    let broker = cluster.broker().await;
    let away = cluster.besides(&[broker])[0];
    cluster[away].kill();
    let left = cluster.besides(&[away]);
    cluster.broker_among(&left).await;
    for at in &left {
        let output = cluster[*at].world.run(&["forget", "--yes", NAMES[*at]]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("this is the device itself"), "{said}");
    }
    assert_eq!(cluster.broker_among(&left).await, broker, "nothing was moved");
    aside(&cluster[broker], &["forget", "--yes", NAMES[away]]).await;
    cluster.settled_among(1, &left).await;
    // Of the two that are left one votes: it goes on when the other is gone too.
    let broker = cluster.broker_among(&left).await;
    let other = cluster.besides(&[away, broker])[0];
    cluster[other].kill();
    let own = cluster[broker].session(NAMES[broker]);
    let chat = cluster[broker].chat("v1/last");
    chat.call("bash", json!({"command": "true", "sessionId": own, "operationId": "op-1"})).await.ok();
}

#[tokio::test]
async fn f21_forgetting_the_only_voter_while_it_is_away_is_refused_and_names_mesh_recover() {
    let mut cluster = Cluster::of(2).await;
    let broker = cluster.broker().await;
    cluster[broker].kill();
    let other = 1 - broker;
    cluster.leaderless(other).await;
    let output = cluster[other].world.run(&["forget", "--yes", NAMES[broker]]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("mesh recover"), "{said}");
    assert_ne!(cluster[other].peer(cluster[broker].id()), Value::Null, "nothing changed");
    cluster[broker].start_again().await;
    cluster.settled(1).await;
}

/// A device that was a voter of the mesh and was forgotten comes back by an invite, as a new member.
#[tokio::test]
async fn a_forgotten_voter_joins_again_and_votes() {
    let cluster = Cluster::of(3).await;
    let broker = cluster.broker().await;
    let voter = cluster.besides(&[broker])[0];
    aside(&cluster[broker], &["forget", "--yes", NAMES[voter]]).await;
    cluster.settled_among(1, &cluster.besides(&[voter])).await;
    within(Duration::from_secs(30), "a mesh of one", async || {
        let status = cluster[voter].status();
        (status["peers"] == json!([]) && status["broker"]["self"] == true).then_some(())
    })
    .await;
    cluster[voter].join(&cluster[broker].invite()).await;
    cluster.settled(3).await;
    cluster.list_each_other(&cluster.all()).await;
}
