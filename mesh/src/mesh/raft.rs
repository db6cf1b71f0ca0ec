//! The consensus engine's own connections: questions and answers over loopback, and who may not ask.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use super::fixture::*;
use crate::{
    api::OpenError,
    identity::{Identity, Incarnation, Roster},
    transport::QUESTION_BYTES_MAX,
};

/// What an engine gives a heartbeat's answer.
const HEARTBEAT_WITHIN: Duration = Duration::from_millis(200);
/// Between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(60);

/// Devices of one mesh that know each other's addresses.
async fn devices(names: &[&'static str]) -> Vec<Device> {
    let mut plans: Vec<Plan> = names.iter().map(|name| Plan::new(name)).collect();
    let identities: Vec<Arc<Identity>> = plans.iter().map(|plan| Arc::clone(&plan.identity)).collect();
    let members: Vec<(&Identity, &str)> = identities.iter().map(AsRef::as_ref).zip(names.iter().copied()).collect();
    let roster = roster_of(&members);
    let mut devices: Vec<Device> = Vec::new();
    for mut plan in plans.drain(..) {
        plan.roster = Some(roster.clone());
        let device = plan.start().await;
        for other in &devices {
            device.mesh.learn(vec![(other.node, vec![other.mesh.local_addr()])]);
            other.mesh.learn(vec![(device.node, vec![device.mesh.local_addr()])]);
        }
        devices.push(device);
    }
    devices
}

async fn ask(from: &Device, to: &Device, question: &[u8]) -> Result<Vec<u8>, OpenError> {
    from.mesh.ask_raft(to.node, question.to_vec(), PATIENCE).await
}

/// Asks as often as an engine does, until there is an answer.
async fn beat(from: &Device, to: &Device) {
    until_asked(from, to, HEARTBEAT_WITHIN).await;
}

async fn until_asked(from: &Device, to: &Device, within: Duration) {
    let started = Instant::now();
    while from.mesh.ask_raft(to.node, b"beat".to_vec(), within).await.is_err() {
        assert!(started.elapsed() < PATIENCE, "no answer came");
        tokio::time::sleep(HEARTBEAT).await;
    }
}

/// Kills `device` and lets go of its address; gives how it starts again there.
async fn kill(device: Device) -> Plan {
    device.mesh.kill().await;
    let mut again = Plan::new("again");
    again.listen = device.mesh.local_addr();
    again.identity = Arc::clone(&device.identity);
    again.run = device.run.next(random());
    again.roster = Some(Roster::clone(&device.roster.borrow()));
    again.remembered = device.told.remembered.lock().unwrap().clone();
    let told = Arc::clone(&device.told);
    drop(device);
    until("the killed one let go", || Arc::strong_count(&told) == 1).await;
    again
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_are_answered_both_ways_up_to_their_limits() {
    let devices = devices(&["desk", "laptop"]).await;
    let (desk, laptop) = (&devices[0], &devices[1]);
    assert_eq!(ask(desk, laptop, b"abc").await, Ok(b"cba".to_vec()));
    assert_eq!(ask(laptop, desk, b"").await, Ok(Vec::new()));
    let longest = vec![7; QUESTION_BYTES_MAX];
    assert_eq!(ask(laptop, desk, &longest).await, Ok(vec![7; 64]));
    assert_eq!(desk.told.asked.lock().unwrap().last(), Some(&(laptop.node, longest)));
    let longer = ask(laptop, desk, &vec![7; QUESTION_BYTES_MAX + 1]).await.unwrap_err();
    assert!(matches!(&longer, OpenError::Unanswered { trouble, .. } if trouble.contains("8388608")), "{longer}");
    let long = [&b"long"[..], &[0; 64 * 1024 - 4]].concat();
    assert_eq!(ask(laptop, desk, &long).await, Ok(long.clone()));
    let too_long = ask(laptop, desk, &[long, vec![0]].concat()).await.unwrap_err();
    assert!(matches!(&too_long, OpenError::Unanswered { label, .. } if label == "desk"), "{too_long}");
    assert_eq!(ask(laptop, desk, b"still").await, Ok(b"llits".to_vec()), "the connection stays");
    assert_eq!(desk.told.taken.load(SeqCst), 0, "no stream of the mesh was opened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_question_and_ones_that_were_given_up_delay_no_other() {
    let devices = devices(&["desk", "laptop"]).await;
    let (desk, laptop) = (&devices[0], &devices[1]);
    let slow = ask(laptop, desk, b"slow");
    let quick = async {
        for _ in 0..20 {
            ask(laptop, desk, b"quick").await.unwrap();
        }
        // More than a connection takes at a time: each gives its place back.
        for _ in 0..1_100 {
            let given_up = laptop.mesh.ask_raft(desk.node, b"slow too".to_vec(), Duration::from_millis(1)).await;
            assert!(given_up.is_err());
        }
        ask(laptop, desk, b"quick").await.unwrap();
        desk.told.slow.notify_waiters();
    };
    let (slow, ()) = tokio::join!(slow, quick);
    assert_eq!(slow, Ok(b"wols".to_vec()));
    let given_up = laptop.mesh.ask_raft(desk.node, b"slow".to_vec(), Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(given_up, OpenError::Unanswered { .. }), "{given_up}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_device_delays_no_question_to_others_and_is_asked_again_soon_after_it_is_back() {
    let mut devices = devices(&["desk", "laptop", "tower"]).await;
    let (tower, laptop, desk) = (devices.pop().unwrap(), devices.pop().unwrap(), devices.pop().unwrap());
    beat(&desk, &laptop).await;
    beat(&desk, &tower).await;
    let node = laptop.node;
    let again = kill(laptop).await;
    // For longer than QUIC doubles its first wait to, and than it keeps a dead connection.
    let mut slowest = Duration::ZERO;
    for _ in 0..60 {
        let started = Instant::now();
        let dead = desk.mesh.ask_raft(node, b"beat".to_vec(), HEARTBEAT_WITHIN);
        let other = async {
            let answer = ask(&desk, &tower, b"beat").await;
            (answer, started.elapsed())
        };
        let (dead, (other, took)) = tokio::join!(dead, other);
        assert!(dead.is_err());
        assert_eq!(other, Ok(b"taeb".to_vec()));
        slowest = slowest.max(took);
    }
    let started = Instant::now();
    let again = again.start().await;
    beat(&desk, &again).await;
    let back = started.elapsed();
    let started = Instant::now();
    beat(&again, &desk).await;
    println!("the others' slowest: {slowest:?}; asked again after {back:?}, asks after {:?}", started.elapsed());
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(back < Duration::from_secs(2), "{back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_restarted_at_once_is_asked_again_at_once() {
    let mut devices = devices(&["desk", "laptop"]).await;
    let (mut laptop, desk) = (devices.pop().unwrap(), devices.pop().unwrap());
    let mut times = Vec::new();
    for _ in 0..5 {
        beat(&desk, &laptop).await;
        let again = kill(laptop).await;
        let beating = async {
            let until = Instant::now() + HEARTBEAT * 4;
            while Instant::now() < until {
                drop(desk.mesh.ask_raft(again.identity.node_id(), b"beat".to_vec(), HEARTBEAT).await);
            }
        };
        beating.await;
        let started = Instant::now();
        laptop = again.start().await;
        beat(&desk, &laptop).await;
        times.push(started.elapsed());
    }
    times.sort();
    println!("asked again after a restart: {times:?}");
    assert!(times[2] < Duration::from_secs(1), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_device_is_asked_no_more_and_asks_in_vain() {
    let mut devices = devices(&["desk", "laptop"]).await;
    let (laptop, desk) = (devices.pop().unwrap(), devices.pop().unwrap());
    beat(&desk, &laptop).await;
    beat(&laptop, &desk).await;
    desk.change_roster(|roster| {
        roster.members.remove(&laptop.node);
        roster.removed.insert(laptop.node);
    });
    assert!(matches!(ask(&desk, &laptop, b"hi").await, Err(OpenError::NotMember(_))));
    until("it was told", || laptop.told.forgotten.lock().unwrap().contains(&desk.node)).await;
    let asked = desk.told.asked.lock().unwrap().len();
    let error = laptop.mesh.ask_raft(desk.node, b"hi".to_vec(), Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("forgotten"), "{error}");
    assert_eq!(desk.told.asked.lock().unwrap().len(), asked, "nothing came through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_word_of_a_voter_that_this_device_was_forgotten_counts_and_another_member_s_does_not() {
    for voter in [true, false] {
        let devices = devices(&["desk", "laptop", "tower"]).await;
        let (laptop, tower) = (&devices[1], &devices[2]);
        laptop.change_roster(|roster| {
            if voter {
                roster.voters.insert(tower.node);
            }
        });
        beat(laptop, tower).await;
        tower.change_roster(|roster| {
            roster.members.remove(&laptop.node);
            roster.removed.insert(laptop.node);
        });
        let error = laptop.mesh.ask_raft(tower.node, b"hi".to_vec(), Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("forgotten"), "{error}");
        assert_eq!(laptop.told.forgotten.lock().unwrap().contains(&tower.node), voter);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_run_neither_asks_nor_answers_and_both_owners_hear_of_it() {
    let (mut desk, mut old) = (Plan::new("desk"), Plan::new("laptop"));
    let mut roster = roster_of(&[(&desk.identity, "desk"), (&old.identity, "laptop")]);
    // Neither keeps a connection: nothing but the questions brings them together.
    roster.broker = fresh_identity().node_id();
    roster.voters.clear();
    let seen = Incarnation::first(random()).next(random());
    let at = at("127.0.0.1:9".parse().unwrap());
    desk.remembered = vec![(old.identity.node_id(), crate::api::Remembered { incarnation: Some(seen), ..at })];
    (desk.roster, old.roster) = (Some(roster.clone()), Some(roster));
    let (desk, old) = (desk.start().await, old.start().await);
    desk.mesh.learn(vec![(old.node, vec![old.mesh.local_addr()])]);
    old.mesh.learn(vec![(desk.node, vec![desk.mesh.local_addr()])]);
    let asks = old.mesh.ask_raft(desk.node, b"vote".to_vec(), Duration::from_secs(1)).await.unwrap_err();
    assert!(asks.to_string().contains("reset-identity"), "{asks}");
    assert!(desk.told.asked.lock().unwrap().is_empty(), "its votes are not counted");
    let answers = desk.mesh.ask_raft(old.node, b"vote".to_vec(), Duration::from_secs(1)).await.unwrap_err();
    assert!(answers.to_string().contains("was turned away"), "{answers}");
    assert!(old.told.asked.lock().unwrap().is_empty());
    for (device, own) in [(&desk, false), (&old, true)] {
        let told = device.told.duplicates.lock().unwrap();
        assert!(told.iter().any(|duplicate| duplicate.node == old.node && duplicate.own == own), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_run_s_connection_is_of_no_use_once_a_later_run_was_let_in() {
    let mut devices = devices(&["desk", "laptop"]).await;
    let (laptop, desk) = (devices.pop().unwrap(), devices.pop().unwrap());
    beat(&laptop, &desk).await;
    beat(&desk, &laptop).await;
    // The laptop's disk was put into another machine, and the first one is cut off from the mesh but for this.
    let core = desk.mesh.core();
    core.table.links().iter().for_each(|link| {
        link.close(crate::wire::CloseCode::Redundant, "cut".to_owned(), "cut");
    });
    let mut later = Plan::new("laptop");
    (later.identity, later.run) = (Arc::clone(&laptop.identity), laptop.run.next(random()));
    later.roster = Some(Roster::clone(&laptop.roster.borrow()));
    laptop.change_roster(|roster| roster.voters.clear());
    let later = later.start().await;
    later.mesh.learn(vec![(desk.node, vec![desk.mesh.local_addr()])]);
    beat(&later, &desk).await;
    let asked = desk.told.asked.lock().unwrap().len();
    let error = laptop.mesh.ask_raft(desk.node, b"vote".to_vec(), Duration::from_secs(1)).await.unwrap_err();
    assert!(!error.to_string().is_empty());
    assert_eq!(desk.told.asked.lock().unwrap().len(), asked, "its votes are not counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_not_asked_and_a_device_that_stops_says_so() {
    let devices = devices(&["desk", "laptop"]).await;
    let (desk, laptop) = (&devices[0], &devices[1]);
    let stranger = fresh_identity().node_id();
    for node in [stranger, desk.node] {
        let error = desk.mesh.ask_raft(node, Vec::new(), PATIENCE).await.unwrap_err();
        assert!(matches!(error, OpenError::NotMember(_)), "{error}");
    }
    let (slow, ()) = tokio::join!(ask(desk, laptop, b"slow"), async {
        until("it was asked", || !laptop.told.asked.lock().unwrap().is_empty()).await;
        desk.mesh.stop().await;
    });
    assert_eq!(slow, Err(OpenError::Stopped));
}
