//! One member alone, and a group of three, through what may happen to them.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    fixture::{Mesh, lab, node, pass},
    *,
};

const SOON: Duration = Duration::from_millis(50);

#[test]
fn a_single_voter_holds_the_office_at_once() {
    lab(1, async {
        let began = Instant::now();
        let mut mesh = Mesh::new(1);
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        assert_eq!(mesh.device(1).propose(office, "a").await, Ok(b"1".to_vec()));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        let now = mesh.device(1).standing();
        assert_eq!((now.leader, now.term), (Some(node(1)), office.term));
        assert_eq!(mesh.device(1).on().assure().await, Ok(office));
        mesh.stop().await;
    });
}

/// With the writer's thread and the real clock.
#[tokio::test]
async fn a_single_voter_keeps_everything_over_a_restart() {
    let mut mesh = Mesh::new(1);
    for round in 1..=3_u64 {
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        assert_eq!(office.term, round);
        let commands: Vec<_> = (0..100_u32).map(|n| format!("{round}.{n}").into_bytes()).collect();
        let replies = mesh.device(1).on().propose(office, commands).await;
        let counts: Vec<_> = (0..100).map(|n| Ok(((round - 1) * 100 + n + 1).to_string().into_bytes())).collect();
        assert_eq!(replies, counts);
        mesh.kill(1).await;
        assert!(!mesh.device(1).disk.is_open());
    }
    mesh.start(1).await;
    mesh.device(1).office().await;
    let told = mesh.device(1).told();
    assert_eq!(told.len(), 300);
    assert_eq!((told[0].as_str(), told[299].as_str()), ("1.0", "3.99"));
    mesh.stop().await;
}

#[test]
fn f10_the_office_of_another_term_is_refused_and_nothing_is_written() {
    lab(2, async {
        let mut mesh = Mesh::new(1);
        mesh.start(1).await;
        let office = mesh.device(1).office().await;
        for term in [0, office.term - 1, office.term + 1] {
            assert_eq!(mesh.device(1).propose(Office { term }, "a").await, Err(CommitError::NotActing));
        }
        assert_eq!(mesh.device(1).told(), [""; 0]);
        mesh.stop().await;
    });
}

#[test]
fn f10_whoever_is_elected_and_reaches_nobody_takes_no_office() {
    for seed in 0..2 {
        lab(seed, async {
            let mut mesh = Mesh::settled(3).await;
            mesh.device(1).office().await;
            mesh.kill(1).await;
            let leads = |n: &u8| mesh.device(*n).on().shared.metrics().state == openraft::ServerState::Leader;
            let elected = loop {
                match [2, 3].into_iter().find(leads) {
                    Some(elected) => break elected,
                    None => pass(Duration::from_millis(1)).await,
                }
            };
            // The votes came; nothing of its own term is confirmed, and will not be.
            mesh.net.isolate(elected);
            for _ in 0..10 {
                assert_eq!(mesh.device(elected).standing().office, None);
                assert!(mesh.device(elected).on().assure().await.is_err());
                pass(SOON).await;
            }
            mesh.net.heal();
            mesh.elected(1).await;
            mesh.stop().await;
        });
    }
}

#[test]
fn three_members_elect_another_when_the_leader_is_gone_and_lose_nothing() {
    for seed in 0..8 {
        lab(seed, async {
            let mut mesh = Mesh::settled(3).await;
            let office = mesh.device(1).office().await;
            for n in 0..20 {
                mesh.device(1).propose(office, &n.to_string()).await.unwrap();
            }
            let began = Instant::now();
            mesh.kill(1).await;
            let next = mesh.elected(1).await;
            let took = began.elapsed();
            assert!(took <= Duration::from_millis(1500), "{took:?}");
            let acting = mesh.device(next);
            assert_eq!(acting.told().len(), 20);
            let office = acting.office().await;
            assert_eq!(acting.propose(office, "more").await, Ok(b"21".to_vec()));
            mesh.start(1).await;
            mesh.device(1).until_told(21).await;
            assert_eq!(mesh.acting(), Some(next));
            mesh.stop().await;
        });
    }
}

#[test]
fn who_hears_no_leader_knows_which_voters_answer() {
    lab(3, async {
        let mut mesh = Mesh::settled(3).await;
        assert_eq!(mesh.device(3).standing().answering, None, "somebody leads");
        mesh.kill(1).await;
        mesh.kill(2).await;
        let began = Instant::now();
        mesh.device(3).until("asks", |now| now.answering.as_ref().is_some_and(|there| there.is_empty())).await;
        let took = began.elapsed();
        assert!(took <= Pace::LAN.silence() + presence::WAIT + SOON, "{took:?}");
        // A device that is back without its store is another member, and does not count.
        mesh.devices[1].wipe();
        mesh.start(2).await;
        pass(presence::WAIT * 3).await;
        assert_eq!(mesh.device(3).standing().answering, Some([].into()));
        mesh.start(1).await;
        mesh.device(3).until("leads or follows", |now| now.leader.is_some() && now.answering.is_none()).await;
        mesh.stop().await;
    });
}

#[test]
fn f11_the_lease_lapses_before_another_is_elected() {
    for seed in 0..8 {
        lab(seed, async {
            let mesh = Mesh::settled(3).await;
            let office = mesh.device(1).office().await;
            let began = Instant::now();
            mesh.net.isolate(1);
            mesh.device(1).until("lapses", |now| now.office.is_none()).await;
            let lapsed = began.elapsed();
            assert!(lapsed <= Duration::from_millis(Pace::LAN.patience_min_ms), "{lapsed:?}");
            // It asserts all the time that not two of them hold it.
            let next = mesh.elected(1).await;
            assert!(began.elapsed() > lapsed);
            assert!(mesh.device(1).on().assure().await.is_err());
            // What it is told now is not carried out: it knows better, or says that it does not know.
            let refused = mesh.device(1).propose(office, "late").await;
            assert!(matches!(refused, Err(CommitError::NotActing | CommitError::Unknown(_))), "{refused:?}");
            mesh.device(next).until("leads", |now| now.leader == Some(node(next))).await;
            mesh.net.heal();
            let follows = move |now: &Standing| now.leader == Some(node(next)) && now.office.is_none();
            mesh.device(1).until("follows", follows).await;
            assert_eq!(mesh.device(1).propose(office, "later").await, Err(CommitError::NotActing));
            mesh.stop().await;
        });
    }
}

#[test]
fn f12_what_was_written_and_not_confirmed_is_unknown() {
    lab(3, async {
        let mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.net.isolate(1);
        // The lease is still fresh: it is written here, and nobody confirms it.
        let unknown = mesh.device(1).propose(office, "lost").await;
        assert!(matches!(unknown, Err(CommitError::Unknown(_))), "{unknown:?}");
        let next = mesh.elected(1).await;
        let office = mesh.device(next).office().await;
        mesh.device(next).propose(office, "kept").await.unwrap();
        mesh.net.heal();
        mesh.device(1).until_told(1).await;
        assert_eq!(mesh.device(1).told(), ["kept"]);
        mesh.stop().await;
    });
}

#[test]
fn f12_without_a_quorum_nothing_hangs() {
    lab(4, async {
        let mut mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.kill(2).await;
        mesh.kill(3).await;
        let began = Instant::now();
        let answer = mesh.device(1).propose(office, "a").await;
        assert!(matches!(answer, Err(CommitError::NotActing | CommitError::Unknown(_))), "{answer:?}");
        assert!(mesh.device(1).on().assure().await.is_err());
        assert!(!mesh.device(1).on().hand_over(None).await);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let now = mesh.device(1).until("lapses", |now| now.office.is_none()).await;
        assert_eq!(now.voters.len(), 3);
        // The office is back with the quorum.
        mesh.start(2).await;
        mesh.elected(0).await;
        mesh.stop().await;
    });
}

#[test]
fn a_hand_over_takes_milliseconds() {
    lab(5, async {
        let mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.device(1).propose(office, "a").await.unwrap();
        let began = Instant::now();
        assert!(mesh.device(1).on().hand_over(Some(node(3))).await);
        let office = mesh.device(3).office().await;
        assert!(began.elapsed() < Duration::from_millis(60), "{:?}", began.elapsed());
        assert_eq!(mesh.device(3).propose(office, "b").await, Ok(b"2".to_vec()));
        assert!(mesh.device(3).on().hand_over(None).await);
        assert_ne!(mesh.elected(3).await, 3);
        mesh.stop().await;
    });
}

#[test]
fn a_hand_over_to_nobody_changes_nothing() {
    lab(6, async {
        let mesh = Mesh::settled(2).await;
        let office = mesh.device(1).office().await;
        assert!(!mesh.device(1).on().hand_over(None).await, "a learner cannot lead");
        assert!(!mesh.device(1).on().hand_over(Some(node(9))).await, "nobody is there");
        assert!(!mesh.device(2).on().hand_over(None).await, "who does not lead hands nothing over");
        assert_eq!(mesh.device(1).standing().office, Some(office));
        mesh.stop().await;
    });
}

#[test]
fn a_member_that_was_away_does_not_disturb() {
    lab(7, async {
        let mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.net.isolate(3);
        let alone = |now: &Standing| now.leader.is_none();
        mesh.device(3).until("hears nobody", alone).await;
        pass(Duration::from_secs(20)).await;
        mesh.net.heal();
        mesh.device(3).until("follows", |now| now.leader == Some(node(1))).await;
        pass(Duration::from_secs(5)).await;
        assert_eq!(mesh.device(1).standing().office, Some(office));
        mesh.stop().await;
    });
}

#[test]
fn f25_a_store_that_fails_ends_the_member_and_the_others_go_on() {
    lab(8, async {
        let mut mesh = Mesh::settled(3).await;
        let office = mesh.device(1).office().await;
        mesh.device(1).disk.fail();
        let answer = mesh.device(1).propose(office, "a").await;
        assert!(matches!(answer, Err(CommitError::Stopped(_) | CommitError::Unknown(_))), "{answer:?}");
        let now = mesh.device(1).until("says so", |now| now.trouble.is_some()).await;
        assert_eq!((now.trouble.as_deref(), now.office, now.leader), (Some("the disk is full"), None, None));
        let answer = mesh.device(1).propose(office, "b").await;
        assert_eq!(answer, Err(CommitError::Stopped("the disk is full".into())));
        assert!(mesh.device(1).on().assure().await.is_err());
        let next = mesh.elected(1).await;
        let office = mesh.device(next).office().await;
        mesh.device(next).propose(office, "c").await.unwrap();
        mesh.kill(1).await;
        assert!(!mesh.device(1).disk.is_open());
        mesh.device(1).disk.mend();
        mesh.start(1).await;
        mesh.device(1).until("follows", |now| now.leader == Some(node(next))).await;
        mesh.device(1).until_told(1).await;
        mesh.stop().await;
    });
}

/// With the writer's threads and the real clock; on a busy machine the office may change hands meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_on_threads_lose_nothing_either() {
    let mut mesh = Mesh::settled(3).await;
    let mut done = 0;
    while done < 50 {
        let acting = mesh.device(mesh.elected(0).await);
        let Some(office) = acting.standing().office else { continue };
        match acting.propose(office, &done.to_string()).await {
            Ok(_) => done += 1,
            Err(CommitError::NotActing | CommitError::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let acting = mesh.elected(0).await;
    mesh.kill(acting).await;
    let next = mesh.elected(acting).await;
    mesh.device(next).until_told(50).await;
    let told = mesh.device(next).told();
    assert!((0..50).all(|n| told.contains(&n.to_string())));
    mesh.stop().await;
}

#[test]
fn a_learner_is_seldom_given_a_sign_of_life_and_hears_at_once_what_is_committed() {
    lab(5, async {
        let mesh = Mesh::settled(4).await;
        let office = mesh.device(1).office().await;
        let learner = mesh.device(1).standing().learners.first().copied().unwrap();
        let learner = (2..=4).find(|n| node(*n) == learner).unwrap();
        let voter = (2..=4).find(|n| *n != learner).unwrap();
        let before = (mesh.net.asked(learner), mesh.net.asked(voter));
        pass(Duration::from_secs(12)).await;
        let (to_learner, to_voter) = (mesh.net.asked(learner) - before.0, mesh.net.asked(voter) - before.1);
        // One each 240 ms, which is a multiple of the engine's own; one each 60 ms.
        assert!((40..=60).contains(&to_learner), "{to_learner}");
        assert!(to_voter > 180, "{to_voter}");
        assert_eq!(mesh.device(learner).standing().leader, Some(node(1)));
        let answered = mesh.device(1).standing().followers[&node(learner)].answered_ms;
        assert!(answered.is_some_and(|ago| ago <= 300), "{answered:?}");

        for n in 1..=20 {
            pass(Duration::from_millis(7)).await;
            mesh.device(1).propose(office, &n.to_string()).await.unwrap();
            let began = Instant::now();
            while mesh.device(learner).told().len() < n {
                pass(Duration::from_millis(1)).await;
                assert!(began.elapsed() <= SOON, "{:?}", began.elapsed());
            }
        }

        let began = Instant::now();
        mesh.net.cut(1, learner);
        mesh.device(learner).until("misses the leader", |now| now.leader.is_none()).await;
        assert!(began.elapsed() <= Duration::from_millis(801), "{:?}", began.elapsed());
        mesh.net.heal();
        let began = Instant::now();
        mesh.device(learner).until("hears the leader", |now| now.leader == Some(node(1))).await;
        assert!(began.elapsed() <= Duration::from_millis(600), "{:?}", began.elapsed());
        mesh.stop().await;
    });
}

#[test]
fn a_learner_hears_of_another_leader_as_soon_as_it_is_elected() {
    for seed in 0..4 {
        lab(seed, async {
            let mut mesh = Mesh::settled(4).await;
            let learner = mesh.device(1).standing().learners.first().copied().unwrap();
            let learner = (2..=4).find(|n| node(*n) == learner).unwrap();
            mesh.kill(1).await;
            let next = mesh.elected(1).await;
            let began = Instant::now();
            mesh.device(learner).until("follows", |now| now.leader == Some(node(next))).await;
            assert!(began.elapsed() <= SOON, "{:?}", began.elapsed());
            mesh.stop().await;
        });
    }
}
