//! Devices that stop, are killed, move, are forgotten, or are there twice.

use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use super::fixture::*;
use crate::{
    api::{OpenError, PeerState},
    peers::greet_dialled,
    transport::{Protocol, StreamError},
    wire::{CloseCode, StreamKind},
};

async fn strangers_to_each_other_s_addresses() -> (Device, Device) {
    let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
    let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    (desk.roster, laptop.roster) = (Some(roster.clone()), Some(roster));
    tokio::join!(desk.start(), laptop.start())
}

/// Many streams both ways at once: none may get lost.
async fn talk(desk: &Device, laptop: &Device) {
    let mut echoes = Vec::new();
    for message in 0..20_u8 {
        echoes.push(async move {
            let message = [message; 100];
            tokio::join!(desk.echo(laptop, &message), laptop.echo(desk, &message));
        });
    }
    futures_util::future::join_all(echoes).await;
    until("one connection is left on both sides", || {
        [desk, laptop].iter().all(|device| device.mesh.core().table.links().len() == 1)
    })
    .await;
    desk.echo(laptop, b"still").await;
    laptop.echo(desk, b"here").await;
    assert_eq!(desk.told.taken.load(SeqCst), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_dial_at_once_agree_on_one_connection_and_lose_no_stream() {
    for _ in 0..5 {
        let (desk, laptop) = strangers_to_each_other_s_addresses().await;
        desk.mesh.learn(vec![(laptop.node, vec![laptop.mesh.local_addr()])]);
        laptop.mesh.learn(vec![(desk.node, vec![desk.mesh.local_addr()])]);
        talk(&desk, &laptop).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hellos_that_cross_make_two_connections_of_which_one_stays_and_no_stream_is_lost() {
    let mut crossed = 0;
    for _ in 0..15 {
        let (desk, laptop) = strangers_to_each_other_s_addresses().await;
        let dial = |from: &Device, to: &Device| {
            let (core, to, address) = (std::sync::Arc::clone(from.mesh.core()), to.node, to.mesh.local_addr());
            async move {
                let connection = core.endpoint.dial(address, Protocol::Mesh, Some(to)).await.unwrap();
                (core, connection)
            }
        };
        let ((desk_core, to_laptop), (laptop_core, to_desk)) = tokio::join!(dial(&desk, &laptop), dial(&laptop, &desk));
        let (here, there) = tokio::join!(greet_dialled(&desk_core, to_laptop), greet_dialled(&laptop_core, to_desk));
        crossed += u32::from(here.is_ok() && there.is_ok());
        talk(&desk, &laptop).await;
    }
    assert!(crossed > 0, "no two hellos crossed: this test has seen nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_forgotten_while_connected_is_cut_off_and_told() {
    let (desk, laptop) = pair().await;
    let mut stream = laptop.mesh.open(desk.node, StreamKind::Door, PATIENCE).await.unwrap();
    stream.send.message(&vec![1_u8]).await.unwrap();
    stream.recv.message::<Vec<u8>>(10).await.unwrap().unwrap();
    desk.change_roster(|roster| {
        roster.members.remove(&laptop.node);
        roster.removed.insert(laptop.node);
    });
    let error = stream.recv.message::<Vec<u8>>(10).await.unwrap_err();
    assert!(matches!(&error, StreamError::Lost(why) if why.contains("desk") && why.contains("forgotten")), "{error}");
    until("the laptop knows", || !laptop.told.forgotten.lock().unwrap().is_empty()).await;
    assert_eq!(laptop.told.forgotten.lock().unwrap()[0], desk.node);
    assert!(desk.mesh.peers().is_empty());
    let error = desk.mesh.open(laptop.node, StreamKind::Ask, PATIENCE).await.unwrap_err();
    assert!(matches!(error, OpenError::NotMember(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_forgotten_while_it_was_off_is_told_when_it_comes() {
    let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
    let mut roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    laptop.roster = Some(roster.clone());
    roster.members.remove(&laptop.identity.node_id());
    roster.removed.insert(laptop.identity.node_id());
    desk.roster = Some(roster);
    let desk = desk.start().await;
    laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let laptop = laptop.start().await;
    until("the laptop knows", || !laptop.told.forgotten.lock().unwrap().is_empty()).await;
    assert!(!laptop.sees(&desk) && laptop.trouble_with(&desk).contains("forgotten"), "{}", laptop.trouble_with(&desk));
    assert_eq!(desk.told.taken.load(SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_roster_copy_is_late_gets_in_by_trying_again() {
    let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
    let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    laptop.roster = Some(roster.clone());
    let mut early = roster.clone();
    early.members.remove(&laptop.identity.node_id());
    desk.roster = Some(early);
    let desk = desk.start().await;
    laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let laptop = laptop.start().await;
    until("it was refused", || laptop.trouble_with(&desk).contains("not on the roster")).await;
    desk.change_roster(|late| *late = roster);
    until("they are connected", || laptop.sees(&desk) && desk.sees(&laptop)).await;
    assert_eq!(laptop.trouble_with(&desk), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_identity_is_refused_and_named_on_all_sides_while_the_first_one_lives() {
    let (desk, laptop) = pair().await;
    // The copy starts from the same disk: it counts one more start and is a branch only if the first one still lives.
    let mut copy = Plan::new("laptop");
    copy.identity = std::sync::Arc::clone(&laptop.identity);
    copy.run = laptop.run.next(random());
    copy.roster = Some(laptop.roster.borrow().as_ref().clone());
    copy.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let copy = copy.start().await;
    let any = |device: &Device| device.told.duplicates.lock().unwrap().first().cloned();
    until("all three know", || [&desk, &laptop, &copy].iter().all(|device| any(device).is_some())).await;
    let at_desk = any(&desk).unwrap();
    assert_eq!((at_desk.node, at_desk.own, at_desk.refused), (laptop.node, false, false));
    assert_eq!((at_desk.other, at_desk.told_by), (Some(copy.mesh.local_addr()), desk.node));
    let at_laptop = any(&laptop).unwrap();
    assert_eq!((at_laptop.node, at_laptop.own, at_laptop.refused), (laptop.node, true, false));
    assert_eq!((at_laptop.other, at_laptop.told_by), (Some(copy.mesh.local_addr()), desk.node));
    let at_copy = any(&copy).unwrap();
    assert_eq!((at_copy.node, at_copy.own, at_copy.refused), (laptop.node, true, true));
    assert_eq!((at_copy.other, at_copy.told_by), (Some(laptop.mesh.local_addr()), desk.node));
    assert!(copy.trouble_with(&desk).contains("reset-identity"), "{}", copy.trouble_with(&desk));
    laptop.echo(&desk, b"the first one works on").await;
    assert!(!copy.sees(&desk));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_state_that_was_put_back_is_refused() {
    let (desk, laptop) = pair().await;
    laptop.mesh.stop().await;
    let mut restored = Plan::new("laptop");
    restored.identity = std::sync::Arc::clone(&laptop.identity);
    restored.roster = Some(laptop.roster.borrow().as_ref().clone());
    restored.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let restored = restored.start().await;
    until("it knows", || !restored.told.duplicates.lock().unwrap().is_empty()).await;
    assert!(restored.told.duplicates.lock().unwrap()[0].refused);
    assert!(!desk.sees(&restored));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_killed_peer_end_within_five_seconds_and_say_so() {
    let (desk, laptop) = pair().await;
    let mut stream = laptop.mesh.open(desk.node, StreamKind::Door, PATIENCE).await.unwrap();
    stream.send.message(&vec![1_u8]).await.unwrap();
    stream.recv.message::<Vec<u8>>(10).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    desk.mesh.kill().await;
    let killed = Instant::now();
    let error = stream.recv.message::<Vec<u8>>(10).await.unwrap_err();
    let took = killed.elapsed();
    assert_eq!(error, StreamError::Lost("desk did not answer for 4 s".to_owned()));
    println!("a killed peer was noticed after {took:?}");
    assert!(took < Duration::from_millis(5500), "{took:?}");
    until("the table says so too", || !laptop.sees(&desk) && laptop.trouble_with(&desk).contains("did not answer"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_peer_that_was_killed_is_noticed_within_sixteen_seconds() {
    let (desk, laptop) = pair().await;
    desk.mesh.kill().await;
    let killed = Instant::now();
    until("it is noticed", || !laptop.sees(&desk)).await;
    println!("a quiet killed peer was noticed after {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_millis(16_500), "{:?}", killed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_learned_while_another_is_dialled_is_dialled_at_once() {
    let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
    let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    (desk.roster, laptop.roster) = (Some(roster.clone()), Some(roster));
    // Nothing answers there, and nobody says so.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    laptop.remembered = vec![(desk.identity.node_id(), at(silent.local_addr().unwrap()))];
    let (desk, laptop) = tokio::join!(desk.start(), laptop.start());
    until("the old address is dialled", || laptop.state_of(&desk) == PeerState::Connecting).await;
    let learned = Instant::now();
    laptop.mesh.learn(vec![(desk.node, vec![desk.mesh.local_addr()])]);
    until("they are connected", || laptop.sees(&desk)).await;
    println!("connected {:?} after the address was learned", learned.elapsed());
    assert!(
        learned.elapsed() < Duration::from_secs(3),
        "not after the old one's five seconds: {:?}",
        learned.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_broker_that_comes_back_on_another_port_is_found_again() {
    let (desk, laptop) = pair().await;
    desk.mesh.kill().await;
    let mut again = Plan::new("desk");
    again.identity = std::sync::Arc::clone(&desk.identity);
    again.run = desk.run.next(random());
    again.roster = Some(desk.roster.borrow().as_ref().clone());
    again.remembered = desk.told.remembered.lock().unwrap().clone();
    let started = Instant::now();
    let again = again.start().await;
    assert_ne!(again.mesh.local_addr(), desk.mesh.local_addr());
    until("they are connected again", || again.sees(&laptop)).await;
    println!("a restarted broker was connected again after {:?}", started.elapsed());
    laptop.echo(&again, b"hello again").await;
    until("one connection is left", || laptop.mesh.core().table.links().len() == 1).await;
    let told = laptop.told.remembered.lock().unwrap().clone();
    let (_, last) = told.last().unwrap();
    assert_eq!(last.incarnation, Some(again.run));
    assert_eq!(last.addresses[0], again.mesh.local_addr(), "what worked last comes first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_restarted_on_the_same_address_is_back_at_once() {
    let (desk, laptop) = pair().await;
    let address = laptop.mesh.local_addr();
    laptop.mesh.kill().await;
    let (identity, run) = (std::sync::Arc::clone(&laptop.identity), laptop.run.next(random()));
    let (roster, remembered) =
        (laptop.roster.borrow().as_ref().clone(), laptop.told.remembered.lock().unwrap().clone());
    let (node, told) = (laptop.node, std::sync::Arc::clone(&laptop.told));
    drop(laptop);
    until("the killed one let go", || std::sync::Arc::strong_count(&told) == 1).await;
    let mut again = Plan::new("laptop");
    (again.identity, again.run, again.roster, again.remembered) = (identity, run, Some(roster), remembered);
    again.listen = address;
    let started = Instant::now();
    let again = again.start().await;
    until("they are connected again", || again.sees(&desk)).await;
    let took = started.elapsed();
    println!("a member restarted on its address was connected again after {took:?}");
    desk.echo(&again, b"hello again").await;
    assert_eq!(again.node, node);
    assert!(desk.told.duplicates.lock().unwrap().is_empty(), "a restart is no copy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_stop_is_told_and_dialled_again() {
    let (desk, laptop) = pair().await;
    let mut stream = laptop.mesh.open(desk.node, StreamKind::Feed, PATIENCE).await.unwrap();
    stream.send.message(&vec![1_u8]).await.unwrap();
    stream.recv.message::<Vec<u8>>(10).await.unwrap().unwrap();
    let started = Instant::now();
    desk.mesh.stop().await;
    assert!(started.elapsed() < Duration::from_secs(3));
    let error = stream.recv.message::<Vec<u8>>(10).await.unwrap_err();
    assert!(matches!(&error, StreamError::Lost(why) if why.contains("stopping")), "{error}");
    until("the laptop dials again", || {
        matches!(laptop.state_of(&desk), PeerState::Waiting { .. } | PeerState::Connecting)
    })
    .await;
    let error = desk.mesh.open(laptop.node, StreamKind::Ask, Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, OpenError::Stopped | OpenError::NotConnected { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_given_up_waits_for_its_work_and_the_next_stream_dials_anew() {
    let (mut desk, mut laptop, mut tower) = (Plan::new("desk"), Plan::new("laptop"), Plan::new("tower"));
    let ids = [&desk.identity, &laptop.identity, &tower.identity].map(std::sync::Arc::clone);
    let roster = roster_of(&[(&ids[0], "desk"), (&ids[1], "laptop"), (&ids[2], "tower")]);
    for plan in [&mut desk, &mut laptop, &mut tower] {
        plan.roster = Some(roster.clone());
    }
    let desk = desk.start().await;
    let laptop = laptop.start().await;
    laptop.mesh.learn(vec![(desk.node, vec![desk.mesh.local_addr()])]);
    let tower = tower.start().await;
    assert_eq!(laptop.state_of(&tower), PeerState::Idle);
    let error = laptop.mesh.open(tower.node, StreamKind::Ask, Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, OpenError::NotConnected { .. }), "{error}");
    laptop.mesh.learn(vec![(tower.node, vec![tower.mesh.local_addr()])]);
    let mut stream = laptop.mesh.open(tower.node, StreamKind::Run, PATIENCE).await.unwrap();
    stream.send.message(&vec![1_u8]).await.unwrap();
    stream.recv.message::<Vec<u8>>(10).await.unwrap().unwrap();
    laptop.mesh.core().table.usable(tower.node).unwrap().retire(CloseCode::Done);
    for message in 0..20_u8 {
        stream.send.message(&vec![message]).await.unwrap();
        assert_eq!(stream.recv.message::<Vec<u8>>(10).await.unwrap(), Some(vec![message]));
    }
    laptop.echo(&tower, b"another").await;
    drop(stream);
    until("only the new one is left", || {
        [&laptop, &tower]
            .iter()
            .all(|device| device.mesh.core().table.links().iter().filter(|link| link.peer() != desk.node).count() == 1)
    })
    .await;
    laptop.mesh.core().table.usable(tower.node).unwrap().retire(CloseCode::Done);
    until("it is closed", || !laptop.sees(&tower) && !tower.sees(&laptop)).await;
    laptop.echo(&tower, b"anew").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_pair_says_one_word_in_five_seconds() {
    let (desk, laptop) = pair().await;
    desk.echo(&laptop, b"something").await;
    let sent = |from: &Device, to: &Device| from.mesh.core().table.current(to.node).unwrap().connection.packets_sent();
    // At first the size of packets is found out, and on a busy machine a word may be sent twice: one of a few looks counts.
    for look in 1.. {
        let before = (sent(&desk, &laptop), sent(&laptop, &desk));
        tokio::time::sleep(Duration::from_secs(10)).await;
        let after = (sent(&desk, &laptop) - before.0, sent(&laptop, &desk) - before.1);
        println!("in ten idle seconds the two sent {after:?} packets");
        if after.0 <= 3 && after.1 <= 3 {
            break;
        }
        assert!(look < 6, "{after:?}");
    }
    assert!(laptop.sees(&desk) && desk.sees(&laptop));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_lets_in_and_closes_at_once_is_dialled_with_pauses() {
    let (desk, laptop) = pair().await;
    let mut dials = 0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        if let Some(link) = desk.mesh.core().table.current(laptop.node) {
            link.close(CloseCode::Stopping, "closed by the test".to_owned(), "not now");
            until("it is gone", || !link.is_open()).await;
            dials += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("closed {dials} times in three seconds");
    assert!((2..=12).contains(&dials), "{dials}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_told_at_once_however_much_is_under_way() {
    for _ in 0..5 {
        let (mut desk, mut laptop) = (Plan::new("desk"), Plan::new("laptop"));
        let roster = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
        (desk.roster, laptop.roster) = (Some(roster.clone()), Some(roster));
        laptop.echoes = false;
        let desk = desk.start().await;
        laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
        let laptop = laptop.start().await;
        let mut readers = Vec::new();
        for _ in 0..4 {
            let mut stream = desk.mesh.open(laptop.node, StreamKind::Run, PATIENCE).await.unwrap();
            tokio::spawn(async move { while stream.send.message(&vec![7_u8; 300_000]).await.is_ok() {} });
            let (_, _, mut taken) = laptop.taken().await;
            readers.push(tokio::spawn(async move {
                loop {
                    if let Err(error) = taken.recv.message::<Vec<u8>>(1 << 20).await {
                        return error;
                    }
                }
            }));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let started = Instant::now();
        desk.mesh.stop().await;
        for reader in readers {
            let error = reader.await.unwrap();
            assert!(matches!(&error, StreamError::Lost(why) if why.contains("stopping")), "{error}");
        }
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_missed_a_change_of_everybody_who_could_be_broker_hears_of_it_from_any_member() {
    let (gone, mut station, mut laptop, mut desk) =
        (Plan::new("gone"), Plan::new("station"), Plan::new("laptop"), Plan::new("desk"));
    let old = roster_of(&[(&gone.identity, "gone"), (&station.identity, "station"), (&laptop.identity, "laptop")]);
    let mut new = old.clone();
    new.members.remove(&gone.identity.node_id());
    new.members.insert(desk.identity.node_id(), crate::identity::Member { name: "desk".to_owned() });
    (new.broker, new.version) = (desk.identity.node_id(), old.version + 1);
    new.voters = [new.broker].into();
    (station.roster, laptop.roster, desk.roster) = (Some(old), Some(new.clone()), Some(new.clone()));
    let desk = desk.start().await;
    laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let laptop = laptop.start().await;
    station.remembered = vec![(laptop.node, at(laptop.mesh.local_addr()))];
    let station = station.start().await;
    desk.mesh.learn(vec![(station.node, vec![station.mesh.local_addr()])]);
    until("it has the later roster", || **station.roster.borrow() == new).await;
    // All of them are on one machine, so that addresses of loopback count for them.
    let told = station.told.addresses.lock().unwrap().clone();
    for other in [&laptop, &desk] {
        assert!(told.contains(&(other.node, vec![other.mesh.local_addr()])), "{told:?}");
    }
    until("it is with the new broker", || station.sees(&desk) && desk.sees(&station)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_another_member_knows_is_let_in() {
    let (mut desk, mut laptop, mut tower) = (Plan::new("desk"), Plan::new("laptop"), Plan::new("tower"));
    let old = roster_of(&[(&desk.identity, "desk"), (&laptop.identity, "laptop")]);
    let mut new = old.clone();
    new.members.insert(tower.identity.node_id(), crate::identity::Member { name: "tower".to_owned() });
    new.version += 1;
    // The broker's word did not come to the laptop.
    (desk.roster, laptop.roster, tower.roster) = (Some(new.clone()), Some(old), Some(new.clone()));
    let desk = desk.start().await;
    laptop.remembered = vec![(desk.node, at(desk.mesh.local_addr()))];
    let laptop = laptop.start().await;
    until("the two are connected", || laptop.sees(&desk)).await;
    tower.remembered = vec![(laptop.node, at(laptop.mesh.local_addr()))];
    let tower = tower.start().await;
    tower.echo(&laptop, b"let me in").await;
    assert_eq!(**laptop.roster.borrow(), new);
}
