//! Devices join by an invite, once, and nothing else lets them in (failure rules F18 to F20).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{
    Node, World, eventually,
    ledger::Ledger,
    mesh::{alone, list_each_other, listed_names, lists, named},
    node::Setup,
    wait::within,
};
use serde_json::{Value, json};

/// Runs `chappie join CODE`, which must fail, and gives what it said.
fn refused(node: &Node, code: &str) -> String {
    let output = node.world.run(&["join", code]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "joined with it: {}", String::from_utf8_lossy(&output.stdout));
    assert!(!said.trim().is_empty(), "a refusal without a word");
    assert!(!said.contains(code) && !node.log().contains(code), "the code is a secret: {said}");
    said
}

fn is_alone(node: &Node) -> bool {
    node.status()["peers"].as_array().is_some_and(Vec::is_empty)
}

#[tokio::test]
async fn two_devices_join_by_a_code_while_both_run_and_list_each_other() {
    let (a, b) = (alone("a").await, alone("b").await);
    assert!(is_alone(&a) && is_alone(&b));
    let start = Instant::now();
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    let session = a.session("a");
    let answer = b.chat("v1/first").call("bash", json!({"command": "pwd", "sessionId": session})).await.ok();
    println!("join to first remote call: {:?}", start.elapsed());
    assert!(answer.output().contains(&a.folder().display().to_string()), "{}", answer.output());
    let session = b.session("b");
    let answer = a.chat("v1/second").call("bash", json!({"command": "pwd", "sessionId": session})).await.ok();
    assert!(answer.output().contains(&b.folder().display().to_string()), "{}", answer.output());
}

#[tokio::test]
async fn a_device_joins_before_its_first_start_and_by_its_environment() {
    let a = alone("a").await;
    let code = a.invite_with(&["--uses", "2"]);
    let early = Arc::new(World::new());
    early.run_ok(&["join", &code]);
    let b = Node::start(Arc::clone(&early), named(&early, "b", true)).await;
    lists(&a, &["a", "b"]).await;
    let headless = Arc::new(World::new());
    let setup = named(&headless, "c", true).env("CHAPPIE_JOIN", &code);
    let mut c = Node::start(Arc::clone(&headless), setup).await;
    list_each_other(&[&a, &b, &c]).await;
    // The setting stays where it is, and the invite is spent: a restart needs it no more.
    c.restart().await;
    list_each_other(&[&a, &b, &c]).await;
}

#[tokio::test]
async fn members_find_the_broker_again_after_any_of_them_was_restarted() {
    let (mut a, mut b) = (alone("a").await, alone("b").await);
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    // The port may change: the broker learns where the member is, the member dials where the broker was.
    b.restart().await;
    list_each_other(&[&a, &b]).await;
    let port = a.quic().to_owned();
    a.change(|setup| setup.argument("--listen").argument(&port));
    a.restart().await;
    list_each_other(&[&a, &b]).await;
    a.stop().await;
    lists_nothing_of(&b, "a").await;
    a.start_again().await;
    list_each_other(&[&a, &b]).await;
}

/// Waits until the door says that it cannot answer, or answers without that session.
async fn lists_nothing_of(door: &Node, name: &str) {
    within(Duration::from_secs(20), "the end of a session", async || {
        let answer = door.stateless().call("sessions", json!({})).await;
        (answer.is_error || !answer.text().contains(&format!("\"name\":\"{name}\""))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_mistyped_a_cut_off_and_a_forged_code_are_refused_with_a_reason() {
    let (a, b) = (alone("a").await, alone("b").await);
    let code = a.invite();
    let mut mistyped = code.clone();
    let last = if mistyped.ends_with('a') { "b" } else { "a" };
    mistyped.replace_range(code.len() - 1.., last);
    assert!(refused(&b, &mistyped).contains("mistyped"));
    assert!(refused(&b, &code[..code.len() / 2]).contains("cut off"));
    assert!(refused(&b, "hello").contains("chappie invite"));
    // Another secret, all else right: the device that invited decides.
    let mut forged: chappie_mesh::InviteCode = code.parse().unwrap();
    forged.secret = chappie_mesh::fresh_invite([7; 24]).1;
    let said = refused(&b, &forged.to_string());
    assert!(said.contains("invite"), "{said}");
    let mut unknown: chappie_mesh::InviteCode = code.parse().unwrap();
    unknown.id = chappie_mesh::fresh_invite([9; 24]).0;
    refused(&b, &unknown.to_string());
    assert!(is_alone(&a) && is_alone(&b), "nothing changed");
    eventually("one line in the inviter's log", async || a.log().contains("invite").then_some(())).await;
    // The invite itself is still good.
    b.join(&code).await;
    list_each_other(&[&a, &b]).await;
}

#[tokio::test]
async fn a_code_that_leads_to_another_device_is_refused_before_anything_is_shown() {
    let (a, impostor, b) = (alone("a").await, alone("impostor").await, alone("b").await);
    let mut code: chappie_mesh::InviteCode = a.invite().parse().unwrap();
    code.addresses = vec![impostor.quic().to_owned()];
    refused(&b, &code.to_string());
    assert!(is_alone(&impostor) && is_alone(&b) && is_alone(&a));
}

#[tokio::test]
async fn f19_a_spent_invite_lets_nobody_else_in_and_answers_its_own_device_again() {
    let (a, b, c) = (alone("a").await, alone("b").await, alone("c").await);
    let code = a.invite();
    b.join(&code).await;
    list_each_other(&[&a, &b]).await;
    let said = refused(&c, &code);
    assert!(said.contains("used") || said.contains("spent"), "{said}");
    assert!(is_alone(&c));
    assert_eq!(listed_names(&a).await, ["a", "b"]);
    b.join(&code).await;
    list_each_other(&[&a, &b]).await;
}

#[tokio::test]
async fn an_invite_for_two_lets_in_two() {
    let (a, b, c, d) = (alone("a").await, alone("b").await, alone("c").await, alone("d").await);
    let code = a.invite_with(&["--uses", "2"]);
    let (one, two) = tokio::join!(b.join(&code), c.join(&code));
    let ((), ()) = (one, two);
    list_each_other(&[&a, &b, &c]).await;
    refused(&d, &code);
    assert!(is_alone(&d));
}

#[tokio::test]
async fn an_expired_invite_is_refused() {
    let (a, b) = (alone("a").await, alone("b").await);
    let code = a.invite_with(&["--ttl", "10s"]);
    let probe = Instant::now();
    while probe.elapsed() < Duration::from_secs(11) {
        assert!(is_alone(&b));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let said = refused(&b, &code);
    assert!(said.contains("expired"), "{said}");
    assert!(is_alone(&a) && is_alone(&b));
}

#[tokio::test]
async fn guessing_codes_is_slowed_down_and_the_right_one_still_works() {
    let (a, b) = (alone("a").await, alone("b").await);
    let code = a.invite();
    let forged = |number: u8| {
        let mut forged: chappie_mesh::InviteCode = code.parse().unwrap();
        forged.secret = chappie_mesh::fresh_invite([number; 24]).1;
        forged.to_string()
    };
    for number in 0..30 {
        refused(&b, &forged(number));
    }
    assert!(is_alone(&a));
    within(Duration::from_secs(90), "the right code", async || {
        b.world.run(&["join", &code]).status.success().then_some(())
    })
    .await;
    list_each_other(&[&a, &b]).await;
}

#[tokio::test]
async fn only_a_device_that_stands_alone_joins_another_mesh() {
    let (a, b, c) = (alone("a").await, alone("b").await, alone("c").await);
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    for member in [&a, &b] {
        let said = refused(member, &c.invite());
        assert!(said.contains("mesh"), "{said}");
    }
    assert!(is_alone(&c));
    assert_eq!(listed_names(&a).await, ["a", "b"]);
}

#[tokio::test]
async fn f18_what_a_device_brings_along_counts_in_its_new_mesh() {
    let (a, b) = (alone("a").await, alone("b").await);
    let ledger = Ledger::at(&b.folder().join("ledger"));
    let arguments = json!({"command": ledger.append("ran"), "operationId": "op-1"});
    b.chat("v1/brought").call("bash", arguments.clone()).await.ok();
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    let replay = a.chat("v1/brought").call("bash", arguments).await;
    assert_eq!(replay.header()["replay"]["status"], "completed", "{}", replay.text());
    assert_eq!(ledger.count("ran"), 1, "a receipt of before the join");
    let pwd = a.chat("v1/brought").call("bash", json!({"command": "pwd"})).await.ok();
    assert!(pwd.output().contains(&b.folder().display().to_string()), "a binding of before the join");
}

#[tokio::test]
async fn f18_a_receipt_that_both_meshes_have_is_uncertain() {
    let (a, b) = (alone("a").await, alone("b").await);
    let (here, there) = (Ledger::at(&a.folder().join("ledger")), Ledger::at(&b.folder().join("ledger")));
    a.chat("v1/both").call("bash", json!({"command": here.append("ran"), "operationId": "op-1"})).await.ok();
    b.chat("v1/both").call("bash", json!({"command": there.append("ran"), "operationId": "op-1"})).await.ok();
    b.join(&a.invite()).await;
    list_each_other(&[&a, &b]).await;
    let listed: Value = serde_json::from_str(&a.world.run_ok(&["receipts", "--json"])).unwrap();
    assert!(listed.to_string().contains("uncertain"), "{listed}");
    assert_eq!((here.count("ran"), there.count("ran")), (1, 1));
}

#[tokio::test]
async fn a_broker_that_is_out_of_reach_is_said_to_be_so() {
    let (a, b) = (alone("a").await, alone("b").await);
    let code = a.invite();
    drop(a);
    let start = Instant::now();
    let said = refused(&b, &code);
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert!(said.contains("127.0.0.1"), "where it looked: {said}");
    assert!(is_alone(&b));
}

#[tokio::test]
async fn wrong_settings_of_the_mesh_are_refused_before_the_start() {
    let world = Arc::new(World::new());
    for (arguments, word) in [
        (["--listen", "somewhere"], "listen"),
        (["--listen", "127.0.0.1"], "PORT"),
        (["--connect", "host"], "PORT"),
        (["--connect", "host:99999"], "connect"),
    ] {
        let setup = Setup::new().argument(arguments[0]).argument(arguments[1]);
        let log = Node::try_start(Arc::clone(&world), setup).await.unwrap_err();
        assert!(log.contains(word), "{arguments:?}: {log}");
    }
}
