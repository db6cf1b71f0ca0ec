//! Groups that grow, shrink, lose stores and take in newcomers.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::{
    fixture::{Device, Mesh, group, lab, node, pass, roster},
    wire::{Answer, Body},
    *,
};
use crate::{identity::NodeId, wire};

fn nodes(devices: &[u8]) -> BTreeSet<NodeId> {
    devices.iter().map(|n| node(*n)).collect()
}

#[test]
fn a_group_grows_with_its_mesh_and_shrinks_again() {
    lab(1, async {
        let mut mesh = Mesh::new(5);
        mesh.rosters.send_replace(roster(&[1]));
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        for n in 0..50 {
            mesh.device(1).propose(office, &n.to_string()).await.unwrap();
        }
        for (devices, voters) in [(&[1, 2][..], 1), (&[1, 2, 3], 3), (&[1, 2, 3, 4], 3), (&[1, 2, 3, 4, 5], 5)] {
            mesh.rosters.send_replace(roster(devices));
            mesh.start(*devices.last().unwrap()).await;
            mesh.settles(voters, devices.len() - voters).await;
        }
        assert_eq!(mesh.device(1).standing().office, Some(office), "nobody else was elected meanwhile");
        mesh.device(5).until_told(50).await;
        for (devices, voters) in [(&[1, 2, 3, 4][..], 3), (&[1, 2, 3], 3), (&[1, 2], 1), (&[1], 1)] {
            mesh.rosters.send_replace(roster(devices));
            mesh.kill(devices.last().unwrap() + 1).await;
            mesh.settles(voters, devices.len() - voters).await;
            assert_eq!(mesh.device(1).standing().office, Some(office));
        }
        assert_eq!(mesh.device(1).propose(office, "last").await, Ok(b"51".to_vec()));
        mesh.stop().await;
    });
}

#[test]
fn f21_a_forgotten_voter_leaves_at_once_though_it_is_away() {
    lab(2, async {
        let mut mesh = Mesh::settled(4).await;
        let voters = mesh.device(1).standing().voters.clone();
        let away = (2..=4).find(|n| voters.contains(&node(*n))).unwrap();
        mesh.kill(away).await;
        let left: Vec<u8> = (1..=4).filter(|n| *n != away).collect();
        let began = Instant::now();
        mesh.rosters.send_replace(roster(&left));
        mesh.settles(3, 0).await;
        assert_eq!(mesh.device(1).standing().voters, nodes(&left));
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        mesh.stop().await;
    });
}

#[test]
fn f15_a_wiped_voter_comes_back_as_another_member_and_votes_when_it_has_caught_up() {
    lab(3, async {
        let mut mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.device(1).propose(office, "a").await.unwrap();
        mesh.kill(3).await;
        mesh.devices[2].wipe();
        let began = Instant::now();
        mesh.start(3).await;
        let member = mesh.device(3).member();
        let metrics = || mesh.device(1).on().shared.metrics();
        while !metrics().membership_config.voter_ids().any(|id| id == member) {
            assert!(began.elapsed() < Duration::from_secs(30));
            pass(Duration::from_millis(5)).await;
        }
        assert_eq!(mesh.device(3).told(), ["a"], "it had caught up before");
        mesh.settles(3, 0).await;
        assert_eq!(metrics().membership_config.nodes().count(), 3, "its old id is gone");
        assert_eq!(mesh.device(1).standing().office, Some(office));
        mesh.stop().await;
    });
}

/// DEV-22, second run: a wiped voter while another one is away.
#[test]
fn f15_a_wiped_voter_is_not_counted_by_its_old_id() {
    lab(4, async {
        let mut mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.kill(2).await;
        mesh.kill(3).await;
        mesh.devices[2].wipe();
        mesh.start(3).await;
        for _ in 0..600 {
            pass(Duration::from_millis(50)).await;
            assert_eq!(mesh.device(3).standing().office, None);
            let acting = mesh.device(1).standing().office;
            assert!(acting.is_none() || acting == Some(office));
        }
        assert_eq!(mesh.acting(), None, "one of three is no quorum");
        assert!(mesh.device(1).propose(office, "lost").await.is_err());
        mesh.start(2).await;
        mesh.settles(3, 0).await;
        let acting = mesh.elected(0).await;
        assert!(mesh.device(acting).standing().term >= office.term, "a term never falls");
        mesh.stop().await;
    });
}

#[test]
fn f16_another_group_is_told_so_and_nothing_happens() {
    lab(5, async {
        let mesh = Mesh::settled(1).await;
        mesh.device(1).office().await;
        let other = Group { epoch: Epoch { count: 2, id: [9; 16] }, ..group() };
        let question = Question { group: other, from_store: [2; 16], to: None, body: Body::Greet };
        let answer = mesh.device(1).on().answer(node(2), &question).await;
        assert_eq!(answer, other_group(group(), true));
        assert_eq!(question.group(), other);
        mesh.stop().await;
    });
}

#[test]
fn f15_nobody_speaks_for_another_member() {
    lab(6, async {
        let mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        let ask = |from: u8, store: StoreId, to: Option<MemberId>, as_member: MemberId| {
            let vote = types::Vote::new(office.term + 9, as_member);
            let request = openraft::raft::VoteRequest::new(vote, None);
            let question = Question { group: group(), from_store: store, to, body: Body::Vote(request) };
            let device = mesh.device(1);
            async move {
                let answer = device.on().answer(node(from), &question).await;
                wire::decode::<Answer>(&answer).unwrap()
            }
        };
        let (own, second) = (mesh.device(1).member(), mesh.device(2));
        // Another device, another store, another member meant, and none at all.
        assert!(matches!(ask(3, second.store, Some(own), second.member()).await, Answer::Refused(_)));
        assert!(matches!(ask(2, [0; 16], Some(own), second.member()).await, Answer::Refused(_)));
        let meant = Some(MemberId(1));
        assert!(matches!(ask(2, second.store, meant, second.member()).await, Answer::NotMe(me) if me == own));
        assert!(matches!(ask(2, second.store, None, second.member()).await, Answer::NotMe(me) if me == own));
        assert_eq!(mesh.device(1).standing().office, Some(office));
        // And so the right one is heard.
        assert!(matches!(ask(2, second.store, Some(own), second.member()).await, Answer::Vote(_)));
        mesh.stop().await;
    });
}

#[test]
fn f26_a_newcomer_gets_the_snapshot_in_pieces_and_goes_on_where_it_stood() {
    lab(7, async {
        let mut mesh = Mesh::new(2);
        mesh.rosters.send_replace(roster(&[1]));
        // Three megabytes: twelve pieces.
        let state: Vec<Vec<u8>> = (0..3000_u32).map(|n| [&n.to_be_bytes()[..], &[0; 1020]].concat()).collect();
        let bytes = postcard::to_allocvec(&state).unwrap();
        mesh.devices[0].disk.write(seed(mesh.device(1).member(), node(1), bytes.clone()));
        mesh.start(1).await;
        mesh.device(1).office().await;
        mesh.rosters.send_replace(roster(&[1, 2]));
        mesh.start(2).await;
        let carried = |mesh: &Mesh| mesh.net.carried.load(Ordering::Relaxed);
        while carried(&mesh) < 1_500_000 {
            pass(Duration::from_millis(1)).await;
        }
        mesh.net.cut(1, 2);
        pass(Duration::from_secs(30)).await;
        assert!(mesh.device(2).tally.0.lock().unwrap().is_empty());
        mesh.net.heal();
        mesh.settles(1, 1).await;
        mesh.device(2).until_told(3000).await;
        assert_eq!(*mesh.device(2).tally.0.lock().unwrap(), state);
        // Besides the pieces: what was under way at the cut, signs of life, and attempts while it lasted.
        assert!(carried(&mesh) < bytes.len() as u64 + 1_500_000, "{}", carried(&mesh));
        assert!(mesh.device(2).disk.persisted().snapshot.is_some(), "it is on disk");
        mesh.stop().await;
    });
}

#[test]
fn sixteen_thousand_entries_are_kept_as_a_snapshot_and_a_short_log() {
    lab(8, async {
        let mut mesh = Mesh::new(1);
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        for round in 0..16_384 / 128 {
            let commands = (0..128).map(|n| format!("{}", round * 128 + n).into_bytes()).collect();
            let replies = mesh.device(1).on().propose(office, commands).await;
            assert!(replies.iter().all(Result::is_ok));
        }
        pass(Duration::from_secs(1)).await;
        let persisted = mesh.device(1).disk.persisted();
        assert!(persisted.log.len() < 4096 + 2 * 512 + 128, "{}", persisted.log.len());
        mesh.kill(1).await;
        mesh.start(1).await;
        mesh.device(1).office().await;
        let told = mesh.device(1).told();
        assert_eq!((told.len(), told.last().map(String::as_str)), (16_384, Some("16383")));
        mesh.stop().await;
    });
}

#[test]
fn a_heavy_log_is_cut_short_although_it_has_few_entries() {
    lab(9, async {
        let mut mesh = Mesh::new(1);
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        for _ in 0..40 {
            let heavy = (0..4).map(|_| vec![0; 200_000]).collect();
            assert!(mesh.device(1).on().propose(office, heavy).await.iter().all(Result::is_ok));
            pass(Duration::from_millis(500)).await;
        }
        pass(Duration::from_secs(15)).await;
        let bytes: usize = mesh.device(1).disk.persisted().log.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 20_000_000, "{bytes}");
        mesh.stop().await;
    });
}

#[test]
fn f16_contents_are_all_that_was_written_and_a_seed_makes_a_group_of_them() {
    lab(10, async {
        let mut mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.device(1).propose(office, "a").await.unwrap();
        mesh.device(1).propose(office, "b").await.unwrap();
        mesh.net.isolate(1);
        // Nobody confirms it, and it is on this disk.
        assert!(mesh.device(1).propose(office, "c").await.is_err());
        mesh.kill(1).await;
        let (state, commands) = contents(&mesh.device(1).disk.persisted()).unwrap();
        assert_eq!(commands, [b"a", b"b", b"c"]);
        let mut machine = fixture::Tally::default();
        machine.restore(&state.unwrap()).unwrap();
        for command in &commands {
            machine.apply(command);
        }
        let mut again = Mesh::new(1);
        again.devices[0].disk = fixture::Disk::default();
        again.devices[0].disk.write(seed(again.device(1).member(), node(1), machine.snapshot()));
        let (_, after) = contents(&again.device(1).disk.persisted()).unwrap();
        assert_eq!(after, [b""; 0]);
        again.start(1).await;
        let office = again.device(1).office().await;
        assert_eq!(again.device(1).told(), ["a", "b", "c"]);
        assert_eq!(again.device(1).propose(office, "d").await, Ok(b"4".to_vec()));
        mesh.stop().await;
        again.stop().await;
    });
}

#[test]
fn a_damaged_log_is_refused_and_its_store_closed() {
    lab(11, async {
        let mut mesh = Mesh::new(1);
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        mesh.device(1).propose(office, "a").await.unwrap();
        mesh.kill(1).await;
        let good = mesh.device(1).disk.persisted();
        assert!(good.log.len() > 1);
        let mut gap = good.clone();
        gap.log.remove(0);
        let newer = Persisted { vote: Some(vec![2, 0]), ..good.clone() };
        let mut state = good;
        state.snapshot.as_mut().unwrap().1 = vec![9];
        for bad in [gap, newer, state] {
            let disk = fixture::Disk::default();
            let device: &Device = mesh.device(1);
            let (machine, carrier) = (Box::new(fixture::Tally::default()), mesh.carrier(1));
            let started = Consensus::start(device.settings(), bad, disk.open(), machine, carrier).await;
            assert!(matches!(started, Err(StartError::Unreadable(_))), "{started:?}");
            assert!(!disk.is_open());
        }
    });
}

#[test]
fn a_broker_whose_owner_forbids_it_to_vote_hands_over() {
    lab(12, async {
        let mut mesh = Mesh::new(2);
        mesh.devices[0].voting = Voting::Never;
        mesh.start(1).await;
        mesh.device(1).office().await;
        mesh.start(2).await;
        assert_eq!(mesh.elected(1).await, 2);
        mesh.settles(1, 1).await;
        assert_eq!(mesh.device(2).standing().voters, nodes(&[2]));
        mesh.stop().await;
    });
}

#[test]
fn f14_voters_say_what_time_it_is() {
    lab(13, async {
        let mut mesh = Mesh::settled(3).await;
        assert_eq!(mesh.device(1).on().clocks().await, [1_700_000_000_000; 3]);
        mesh.kill(2).await;
        assert_eq!(mesh.device(1).on().clocks().await.len(), 2);
        mesh.stop().await;
    });
}
