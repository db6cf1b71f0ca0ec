//! Devices talk to each other over loopback, and to others that they must not talk to.

use std::time::{Duration, Instant};

use super::fixture::*;
use crate::{api::JoinError, router::join, wire::StreamKind};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_joins_with_a_code_and_is_connected() {
    let desk = Plan::new("desk").start().await;
    let laptop = Plan::new("laptop");
    let welcome = join(&laptop.identity, "laptop", "test", &desk.invite()).await.unwrap();
    assert_eq!(welcome.roster.broker, desk.node);
    let mut laptop = laptop;
    laptop.roster = Some(welcome.roster);
    laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let laptop = laptop.start().await;
    laptop.echo(&desk, b"hello").await;
    desk.echo(&laptop, b"and back").await;
    let peers = desk.mesh.peers();
    assert_eq!((peers.len(), peers[0].name.as_str(), peers[0].state.as_str()), (1, "laptop", "connected"));
    assert!(peers[0].rtt.is_some() && peers[0].trouble.is_none());
    assert_eq!(peers[0].addresses[0], laptop.mesh.local_addr());
}

#[tokio::test]
async fn a_wrong_secret_a_spent_invite_and_a_wrong_device_are_refused_with_the_reason() {
    let desk = Plan::new("desk").start().await;
    let good = desk.invite();
    let mut wrong = good.clone();
    wrong.secret = desk.invite().secret;
    *desk.told.invite.lock().unwrap() = Some((good.id, good.secret.clone()));
    let me = fresh_identity();
    let refused = |error: JoinError, expected: &str| {
        assert!(matches!(&error, JoinError::Refused(why) if why.contains(expected)), "{error:?}");
    };
    refused(join(&me, "me", "test", &wrong).await.unwrap_err(), "secret");
    *desk.told.invite.lock().unwrap() = None;
    refused(join(&me, "me", "test", &good).await.unwrap_err(), "spent");
    let mut elsewhere = good.clone();
    elsewhere.inviter = fresh_identity().node_id();
    let error = join(&me, "me", "test", &elsewhere).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherDevice(_)), "{error:?}");
    let mut nowhere = good;
    nowhere.addresses = vec!["127.0.0.1:1".to_owned(), "no-such-host.invalid:1".to_owned()];
    let error = join(&me, "me", "test", &nowhere).await.unwrap_err();
    assert!(matches!(error, JoinError::Unreachable(_)), "{error:?}");
    assert_eq!(desk.roster.borrow().members.len(), 1, "nobody was let in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_stream_is_quick() {
    let (desk, laptop) = pair().await;
    for _ in 0..50 {
        laptop.echo(&desk, &[7; 200]).await;
    }
    let mut times = Vec::new();
    for _ in 0..2000 {
        let started = Instant::now();
        laptop.echo(&desk, &[7; 200]).await;
        times.push(started.elapsed());
    }
    times.sort();
    println!("open, one message, one reply: p50 {:?}, p90 {:?}", times[1000], times[1800]);
    // Two orders beyond what it takes: this finds a wait, not a slow machine.
    assert!(times[1000] < Duration::from_millis(10), "{:?}", times[1000]);
    assert_eq!(StreamKind::Ask.byte(), 1);
}
