//! The policy, as tables.

use super::*;

fn node(n: u8) -> NodeId {
    NodeId::from([n; 32])
}

/// Device `n` with its `store`th store.
fn member(n: u8, store: u64) -> MemberId {
    MemberId(u64::from(n) * 10 + store)
}

/// Devices 1 to `devices`, of which 1 leads; those up to `members` belong to the group and those up to `voters` vote. All
/// of them are well.
fn mesh(devices: u8, members: u8, voters: u8) -> View {
    let present = |n| (node(n), Present { member: member(n, 0), voting: Voting::Auto });
    let well = |n| (member(n, 0), Health { lag: 0, silent: Duration::ZERO });
    View {
        own: member(1, 0),
        roster: (1..=devices).map(node).collect(),
        places: (1..=members).map(|n| (member(n, 0), node(n))).collect(),
        voters: (1..=voters).map(|n| member(n, 0)).collect(),
        joint: false,
        health: (2..=members).map(well).collect(),
        present: (1..=devices).map(present).collect(),
    }
}

fn set(members: &[u8]) -> BTreeSet<MemberId> {
    members.iter().map(|n| member(*n, 0)).collect()
}

fn silent(view: &mut View, n: u8, seconds: u64) {
    view.health.insert(member(n, 0), Health { lag: 0, silent: Duration::from_secs(seconds) });
}

fn voting(view: &mut View, n: u8, voting: Voting) {
    view.present.insert(node(n), Present { member: member(n, 0), voting });
}

/// Device `n` has a new store.
fn wipe(view: &mut View, n: u8) {
    view.present.insert(node(n), Present { member: member(n, 1), voting: Voting::Auto });
    silent(view, n, 1);
}

#[test]
fn one_or_two_devices_have_one_voter_three_or_four_have_three_and_more_have_five() {
    for (devices, voters) in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)] {
        let all: Vec<u8> = (1..=voters).collect();
        let grown = mesh(devices, devices, 1);
        let step = (voters > 1).then(|| Step::Voters(set(&all)));
        assert_eq!(next(&grown), step, "{devices} devices, one votes");
        assert_eq!(next(&mesh(devices, devices, voters)), None, "{devices} devices, {voters} vote");
    }
}

#[test]
fn devices_that_are_not_in_the_group_follow_first() {
    let coming = BTreeMap::from([(member(2, 0), node(2)), (member(3, 0), node(3))]);
    assert_eq!(next(&mesh(3, 1, 1)), Some(Step::Learn(coming)));
}

#[test]
fn devices_that_have_not_said_who_they_are_are_waited_for() {
    let mut view = mesh(3, 1, 1);
    view.present = BTreeMap::from([(node(1), Present { member: member(1, 0), voting: Voting::Auto })]);
    assert_eq!(next(&view), None);
}

#[test]
fn a_change_that_is_half_done_is_finished_first() {
    assert_eq!(next(&View { joint: true, ..mesh(3, 1, 1) }), Some(Step::Finish));
}

#[test]
fn learners_vote_only_when_they_have_caught_up_and_are_there() {
    for (lag, seconds, voters) in [(64, 4, Some(&[1, 2, 3][..])), (65, 0, None), (0, 5, None)] {
        let mut view = mesh(3, 3, 1);
        view.health.insert(member(3, 0), Health { lag, silent: Duration::from_secs(seconds) });
        // Two voters are no better than one.
        assert_eq!(next(&view), voters.map(|voters| Step::Voters(set(voters))), "lag {lag}, silent {seconds} s");
    }
}

#[test]
fn a_smaller_mesh_has_fewer_voters_and_the_leader_is_one_of_them() {
    let mut view = mesh(5, 5, 5);
    view.own = member(5, 0);
    view.roster.remove(&node(1));
    view.health.insert(member(1, 0), Health { lag: 0, silent: Duration::ZERO });
    view.health.remove(&member(5, 0));
    assert_eq!(next(&view), Some(Step::Voters(set(&[2, 3, 5]))));
    let two = View { roster: [1, 2].map(node).into(), ..mesh(3, 3, 3) };
    assert_eq!(next(&two), Some(Step::Voters(set(&[1]))));
}

#[test]
fn f21_a_forgotten_device_gives_its_vote_to_one_that_has_caught_up_and_then_leaves() {
    let mut view = mesh(4, 4, 3);
    view.roster.remove(&node(2));
    view.present.remove(&node(2));
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 3, 4]))));
    view.voters = set(&[1, 3, 4]);
    assert_eq!(next(&view), Some(Step::Remove(set(&[2]))));
    view.places.remove(&member(2, 0));
    assert_eq!(next(&view), None);
}

#[test]
fn a_voter_that_is_silent_for_five_minutes_is_replaced_when_somebody_can_take_its_place() {
    let mut view = mesh(4, 4, 3);
    silent(&mut view, 2, 299);
    assert_eq!(next(&view), None);
    silent(&mut view, 2, 300);
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 3, 4]))));
    silent(&mut view, 4, 10);
    assert_eq!(next(&view), None, "the learner is away too");
    let mut three = mesh(3, 3, 3);
    silent(&mut three, 2, 3000);
    assert_eq!(next(&three), None, "nobody is there to take its place");
}

#[test]
fn f15_a_wiped_member_votes_only_when_its_new_store_has_caught_up_and_its_old_id_leaves() {
    let mut view = mesh(3, 3, 3);
    wipe(&mut view, 3);
    let again = member(3, 1);
    assert_eq!(next(&view), Some(Step::Learn(BTreeMap::from([(again, node(3))]))));
    view.places.insert(again, node(3));
    view.health.insert(again, Health { lag: 1000, silent: Duration::ZERO });
    assert_eq!(next(&view), None, "its old id keeps the place until then");
    view.health.insert(again, Health { lag: 0, silent: Duration::ZERO });
    let voters: BTreeSet<_> = set(&[1, 2]).into_iter().chain([again]).collect();
    assert_eq!(next(&view), Some(Step::Voters(voters.clone())));
    view.voters = voters;
    assert_eq!(next(&view), Some(Step::Remove(set(&[3]))));
}

#[test]
fn f15_a_wiped_learner_is_replaced_by_its_new_self() {
    let mut view = mesh(2, 2, 1);
    wipe(&mut view, 2);
    assert_eq!(next(&view), Some(Step::Remove(set(&[2]))));
    view.places.remove(&member(2, 0));
    assert_eq!(next(&view), Some(Step::Learn(BTreeMap::from([(member(2, 1), node(2))]))));
}

#[test]
fn owners_say_who_votes() {
    let mut view = mesh(4, 4, 1);
    voting(&mut view, 2, Voting::Never);
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 3, 4]))));
    voting(&mut view, 3, Voting::Never);
    assert_eq!(next(&view), None, "two of two are no better than one");
    let mut view = mesh(4, 4, 3);
    voting(&mut view, 4, Voting::Always);
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 2, 4]))));
    let mut view = mesh(4, 4, 3);
    voting(&mut view, 3, Voting::Never);
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 2, 4]))));
}

#[test]
fn a_leader_that_may_not_vote_hands_over_as_soon_as_another_one_can_lead() {
    let mut view = mesh(2, 2, 1);
    voting(&mut view, 1, Voting::Never);
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 2]))));
    view.voters = set(&[1, 2]);
    assert_eq!(next(&view), Some(Step::HandOver(member(2, 0))));
    silent(&mut view, 2, 10);
    assert_eq!(next(&view), None, "it waits for the other one");
    view.own = member(2, 0);
    assert_eq!(next(&view), Some(Step::Voters(set(&[2]))));
    let mut alone = mesh(1, 1, 1);
    voting(&mut alone, 1, Voting::Never);
    assert_eq!(next(&alone), None, "there is nobody else");
}

#[test]
fn f21_a_leader_whose_device_leaves_the_mesh_hands_over_to_one_that_stays() {
    let mut view = mesh(2, 2, 1);
    view.roster.remove(&node(1));
    assert_eq!(next(&view), Some(Step::Voters(set(&[1, 2]))));
    view.voters = set(&[1, 2]);
    assert_eq!(next(&view), Some(Step::HandOver(member(2, 0))));
    let mut view = mesh(3, 3, 3);
    view.roster.remove(&node(1));
    while let Some(Step::Voters(voters)) = next(&view) {
        view.voters = voters;
    }
    assert!(matches!(next(&view), Some(Step::HandOver(heir)) if heir != member(1, 0)), "{view:?}");
}

/// From any state in which all members are well, steps end, and end in a state that the policy wants.
#[test]
fn steps_lead_to_an_end() {
    for devices in 1..=7 {
        for members in 1..=7 {
            for voters in 1..=members {
                let mut view = mesh(devices.max(1), members, voters);
                let mut steps = 0;
                while let Some(step) = next(&view) {
                    steps += 1;
                    assert!(steps < 6, "{devices} devices, {members} members, {voters} voters: {step:?}");
                    match step {
                        Step::Finish => view.joint = false,
                        Step::Learn(new) => {
                            view.health.extend(new.keys().map(|id| (*id, Health { lag: 0, silent: Duration::ZERO })));
                            view.places.extend(new);
                        }
                        Step::Voters(new) => view.voters = new,
                        Step::Remove(old) => view.places.retain(|id, _| !old.contains(id)),
                        Step::HandOver(_) => unreachable!("everybody may vote"),
                    }
                }
                assert_eq!(view.voters.len(), seats(usize::from(devices)));
                assert_eq!(view.places.len(), usize::from(devices));
            }
        }
    }
}
