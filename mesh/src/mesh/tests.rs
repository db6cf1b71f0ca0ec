//! Devices talk to each other over loopback, and to others that they must not talk to.

use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use super::{Mesh, fixture::*};
use crate::{
    api::{JoinError, MeshConfig},
    router::join,
    wire::StreamKind,
};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_on_this_machine_is_told_where_the_others_on_it_are() {
    let (mut desk, mut broker) = (Plan::new("desk"), Plan::new("broker"));
    let roster = roster_of(&[(&broker.identity, "broker"), (&desk.identity, "desk")]);
    (desk.roster, broker.roster) = (Some(roster.clone()), Some(roster));
    let broker = broker.start().await;
    desk.remembered = vec![(broker.node, at(broker.mesh.local_addr()))];
    let desk = desk.start().await;
    until("the two are connected", || desk.sees(&broker)).await;
    let me = fresh_identity();
    let welcome = join(&me, "me", "test", &desk.invite()).await.unwrap();
    let told = |node| welcome.addresses.iter().find(|(told, _)| *told == node).map(|(_, at)| at.clone());
    assert_eq!(told(broker.node), Some(vec![broker.mesh.local_addr()]));
    assert_eq!(told(desk.node), Some(vec![desk.mesh.local_addr()]));
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_at_once_all_get_their_answer() {
    let (desk, laptop) = pair().await;
    // Streams that ended must not be missing later.
    for _ in 0..100 {
        laptop.echo(&desk, b"before").await;
    }
    let mut held = Vec::new();
    for _ in 0..1000 {
        let mut stream = laptop.mesh.open(desk.node, StreamKind::History, Duration::ZERO).await.unwrap();
        stream.send.message(&vec![1_u8]).await.unwrap();
        held.push(stream);
    }
    drop(held);
    let before = desk.told.taken.load(SeqCst);
    let started = Instant::now();
    let echoes = (0..1000_u32).map(|number| {
        let (desk, laptop) = (&desk, &laptop);
        async move { laptop.echo(desk, &number.to_be_bytes().repeat(64)).await }
    });
    futures_util::future::join_all(echoes).await;
    println!("1,000 streams took {:?}", started.elapsed());
    until("all arrived", || desk.told.taken.load(SeqCst) >= 2100).await;
    assert!(before <= 1100, "{before}");
    until("none is left", || {
        !laptop.mesh.core().table.usable(desk.node).unwrap().is_used()
            && !desk.mesh.core().table.usable(laptop.node).unwrap().is_used()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_megabyte_goes_through_one_message_both_ways() {
    let (desk, laptop) = pair().await;
    for length in [0, 1, 1200, 70_000, 1_000_000] {
        laptop.echo(&desk, &vec![9; length]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_loopback_works_and_a_socket_for_both_families_takes_both() {
    let (mut desk, mut laptop, mut tower) = (Plan::new("desk"), Plan::new("laptop"), Plan::new("tower"));
    let ids = [&desk.identity, &laptop.identity, &tower.identity].map(std::sync::Arc::clone);
    let roster = roster_of(&[(&ids[0], "desk"), (&ids[1], "laptop"), (&ids[2], "tower")]);
    desk.listen = "[::]:0".parse().unwrap();
    laptop.listen = "[::1]:0".parse().unwrap();
    for plan in [&mut desk, &mut laptop, &mut tower] {
        plan.roster = Some(roster.clone());
    }
    let desk = desk.start().await;
    let port = desk.mesh.local_addr().port();
    laptop.connect = vec![format!("[::1]:{port}")];
    tower.connect = vec![format!("localhost:{port}"), format!("127.0.0.1:{port}")];
    let (laptop, tower) = (laptop.start().await, tower.start().await);
    laptop.echo(&desk, b"six").await;
    tower.echo(&desk, b"four").await;
    let address = |of: &Device| {
        let peer = desk.mesh.peers().into_iter().find(|peer| peer.node == of.node);
        peer.unwrap().addresses[0]
    };
    assert_eq!(address(&laptop), laptop.mesh.local_addr());
    assert_eq!(address(&tower), tower.mesh.local_addr(), "an IPv4 address is shown as one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_met_at_a_place_the_owner_named_is_remembered_and_one_s_own_place_is_no_trouble() {
    let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
    let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    (desk.roster, laptop.roster) = (Some(roster.clone()), Some(roster));
    // A port that is free now: the device is told its own address, as by a list that all devices share.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    laptop.listen = socket.local_addr().unwrap();
    drop(socket);
    let desk = desk.start().await;
    laptop.connect = vec![laptop.listen.to_string(), "not a place".to_owned(), desk.mesh.local_addr().to_string()];
    let laptop = laptop.start().await;
    until("they are connected", || laptop.sees(&desk) && desk.sees(&laptop)).await;
    assert!(laptop.told.duplicates.lock().unwrap().is_empty());
    let remembered = laptop.told.remembered.lock().unwrap().clone();
    assert!(remembered.iter().all(|(peer, kept)| *peer == desk.node && kept.addresses[0] == desk.mesh.local_addr()));
    assert_eq!(remembered[0].1.incarnation, Some(desk.run));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_address_is_an_error_that_names_it() {
    let desk = Plan::new("desk").start().await;
    let (roster, rosters) = tokio::sync::watch::channel(desk.roster.borrow().clone());
    let config = MeshConfig {
        identity: fresh_identity(),
        name: "other".to_owned(),
        build: "test".to_owned(),
        listen: desk.mesh.local_addr(),
        connect: Vec::new(),
        mdns: false,
        incarnation: desk.run,
        remembered: Vec::new(),
        sockets: None,
    };
    let handler = std::sync::Arc::clone(&desk.told) as std::sync::Arc<dyn crate::api::Handler>;
    let error = Mesh::start(config, rosters, handler).await.unwrap_err();
    assert!(error.to_string().contains(&desk.mesh.local_addr().to_string()), "{error}");
    drop(roster);
}
