//! Who may come in, as tables; limits; names.

use chappie_mesh::fresh_invite;

use super::*;
use crate::broker::limits::INVITE_USES_MAX;

const MINUTE: u64 = 60_000;
const START: Millis = Millis(1_790_000_000_000);

fn node(n: usize) -> NodeId {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    NodeId::from(bytes)
}

fn id(n: usize) -> InviteId {
    InviteId::from((n as u64).to_be_bytes())
}

fn key(n: u8) -> InviteKey {
    fresh_invite([n; 24]).1.key()
}

fn alone() -> Membership {
    Membership::alone([1; 16].into(), node(0), "first", START)
}

/// A mesh with invite 1 for `uses` devices and ten minutes.
fn inviting(uses: u32) -> Membership {
    let mut mesh = alone();
    assert_eq!(mesh.invite(id(1), key(1), uses, 10 * MINUTE, START), Reply::Done(true));
    mesh
}

fn admitted(mesh: &mut Membership, who: usize, at: Millis) -> Verdict {
    match mesh.admit(node(who), &format!("n{who}"), id(1), at) {
        Reply::Admission(verdict) => verdict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn f19_an_invite_lets_in_until_it_is_used_up_or_expired_and_answers_its_users_ten_minutes_longer() {
    use Denial::{Expired, Spent};
    let end = START.plus(10 * MINUTE);
    let table = [
        ("its user again at once", 1, START, Verdict::Known),
        ("its user again at its end", 1, end, Verdict::Known),
        ("its user in the tenth minute after", 1, end.plus(10 * MINUTE), Verdict::Known),
        ("its user after that", 1, end.plus(10 * MINUTE + 1), Verdict::Deny(Expired)),
        ("another device", 2, START, Verdict::Deny(Spent)),
        ("another device at the last moment", 2, Millis(end.0 - 1), Verdict::Deny(Spent)),
        ("another device too late", 2, end, Verdict::Deny(Expired)),
        ("the founder, who needs none", 0, START, Verdict::Known),
    ];
    for (what, who, at, expected) in table {
        let mut mesh = inviting(1);
        assert_eq!(admitted(&mut mesh, 1, START), Verdict::Admit);
        let before = mesh.clone();
        assert_eq!(admitted(&mut mesh, who, at), expected, "{what}");
        assert_eq!(mesh, before, "{what}: nothing may change");
    }
    assert_eq!(inviting(1).verdict(&node(1), &id(1), Millis(end.0 - 1)), Verdict::Admit);
    assert_eq!(inviting(1).verdict(&node(1), &id(1), end), Verdict::Deny(Expired));
    assert_eq!(inviting(1).verdict(&node(1), &id(2), START), Verdict::Deny(Denial::Gone));
}

#[test]
fn f19_each_use_is_recorded_with_its_device_and_a_member_spends_none() {
    let mut mesh = inviting(2);
    for (who, expected) in [(1, Verdict::Admit), (1, Verdict::Known), (0, Verdict::Known), (2, Verdict::Admit)] {
        assert_eq!(admitted(&mut mesh, who, START.plus(5)), expected, "{who}");
    }
    assert_eq!(admitted(&mut mesh, 3, START), Verdict::Deny(Denial::Spent));
    let invite = &mesh.invites[&id(1)];
    let spent: Vec<_> = invite.spent.iter().map(|spent| (spent.node, spent.at)).collect();
    assert_eq!((invite.uses_left, spent), (0, vec![(node(1), START.plus(5)), (node(2), START.plus(5))]));
    assert_eq!(mesh.members[&node(2)], Joined { name: "n2".into(), at: START.plus(5), invite: Some(id(1)) });
}

#[test]
fn f21_a_forgotten_device_needs_a_new_invite_and_is_a_member_again_with_it() {
    let mut mesh = inviting(5);
    admitted(&mut mesh, 1, START);
    assert!(mesh.remove(&node(1)) && !mesh.remove(&node(1)));
    assert!(mesh.roster().removed.contains(&node(1)));
    assert_eq!(admitted(&mut mesh, 1, START), Verdict::Deny(Denial::Forgotten));
    mesh.invite(id(2), key(2), 1, 10 * MINUTE, START);
    assert_eq!(mesh.admit(node(1), "again", id(2), START), Reply::Admission(Verdict::Admit));
    let roster = mesh.roster();
    assert_eq!((roster.members[&node(1)].name.as_str(), roster.removed.len()), ("again", 0));
}

#[test]
fn the_roster_grows_with_every_change_of_members_and_with_nothing_else() {
    let mut mesh = alone();
    let mut versions = vec![mesh.roster().version];
    mesh.invite(id(1), key(1), 3, 10 * MINUTE, START);
    versions.push(mesh.roster().version);
    admitted(&mut mesh, 1, START);
    versions.push(mesh.roster().version);
    mesh.rename(&node(1), "other");
    versions.push(mesh.roster().version);
    for name in ["other", "other"] {
        assert_eq!(mesh.rename(&node(1), name), Reply::Done(false));
    }
    assert_eq!(mesh.rename(&node(9), "nobody"), Reply::Done(false));
    versions.push(mesh.roster().version);
    mesh.remove(&node(1));
    mesh.remove(&node(9));
    versions.push(mesh.roster().version);
    assert_eq!(versions, [1, 1, 2, 3, 3, 4]);
}

#[test]
fn f12_the_same_invite_again_changes_nothing_and_its_id_is_never_given_to_another_secret() {
    let mut mesh = inviting(1);
    admitted(&mut mesh, 1, START);
    let before = mesh.clone();
    assert_eq!(mesh.invite(id(1), key(1), 9, MINUTE, START), Reply::Done(false));
    assert_eq!(mesh.invite(id(1), key(2), 9, MINUTE, START), Reply::Taken);
    assert_eq!(mesh, before);
}

#[test]
fn f26_open_invites_kept_invites_and_their_uses_are_bounded_and_leave_with_time() {
    let full = |reply: &Reply| matches!(reply, Reply::Full { .. });
    let mut mesh = alone();
    for n in 0..INVITES_OPEN_MAX {
        assert_eq!(mesh.invite(id(n), key(1), 1, 10 * MINUTE, START), Reply::Done(true));
    }
    assert!(full(&mesh.invite(id(9_999), key(1), 1, MINUTE, START)));
    // Used ones are not open, but kept.
    let mut mesh = alone();
    for n in 0..INVITES_MAX {
        assert_eq!(mesh.invite(id(n), key(1), 1, 10 * MINUTE, START), Reply::Done(true), "{n}");
        mesh.members.remove(&node(1));
        mesh.invites.get_mut(&id(n)).unwrap().uses_left = 0;
    }
    assert!(full(&mesh.invite(id(9_999), key(1), 1, MINUTE, START.plus(20 * MINUTE))));
    assert_eq!(mesh.invite(id(9_999), key(1), 1, MINUTE, START.plus(20 * MINUTE + 1)), Reply::Done(true));
    assert_eq!(mesh.invites.len(), 1);

    let mut mesh = alone();
    for n in 0..2 {
        assert_eq!(mesh.invite(id(n), key(1), INVITE_USES_MAX, 10 * MINUTE, START), Reply::Done(true));
    }
    assert!(full(&mesh.invite(id(2), key(1), 1, MINUTE, START)));
    assert_eq!(
        mesh.invite(id(2), key(1), 1, MINUTE, START.plus(10 * MINUTE)),
        Reply::Done(true),
        "expired uses count no more"
    );
}

#[test]
fn f26_members_and_the_list_of_forgotten_ones_are_bounded() {
    let mut mesh = inviting(1_000);
    for n in 1..MEMBERS_MAX {
        assert_eq!(admitted(&mut mesh, n, START), Verdict::Admit);
    }
    assert_eq!(admitted(&mut mesh, MEMBERS_MAX, START), Verdict::Deny(Denial::Full));
    assert_eq!(admitted(&mut mesh, 5, START), Verdict::Known);
    for n in 1..=REMOVED_MAX + 1 {
        mesh.members.insert(node(n), Joined { name: String::new(), at: START, invite: None });
        mesh.remove(&node(n));
    }
    let removed = mesh.roster().removed;
    assert_eq!(removed.len(), REMOVED_MAX);
    assert!(!removed.contains(&node(1)) && removed.contains(&node(2)) && removed.contains(&node(REMOVED_MAX + 1)));
}

#[test]
fn f14_a_jump_gives_an_open_invite_its_whole_time_once_and_revives_none() {
    let hour = 60 * MINUTE;
    let mut mesh = inviting(3);
    // Suspended in its fifth minute, for two hours.
    let woken = START.plus(5 * MINUTE + 2 * hour);
    mesh.jump(woken, 2 * hour);
    assert_eq!(mesh.verdict(&node(1), &id(1), woken.plus(10 * MINUTE - 1)), Verdict::Admit);
    assert_eq!(mesh.verdict(&node(1), &id(1), woken.plus(10 * MINUTE)), Verdict::Deny(Denial::Expired));
    let again = woken.plus(MINUTE + 2 * hour);
    mesh.jump(again, 2 * hour);
    assert_eq!(mesh.verdict(&node(1), &id(1), again), Verdict::Deny(Denial::Expired));

    let mut mesh = inviting(3);
    let late = START.plus(10 * MINUTE + 2 * hour);
    mesh.jump(late, 2 * hour);
    assert_eq!(mesh.verdict(&node(1), &id(1), late), Verdict::Deny(Denial::Expired));
}

#[test]
fn names_are_one_harmless_line_and_told_apart() {
    let long = "ü".repeat(200);
    let table = [
        ("box", "box"),
        ("  my box \n", "my box"),
        ("a\u{1b}[31mb\u{202e}c", "a[31mbc"),
        ("\u{7}\n", ""),
        ("", ""),
        (&long, &long[..NAME_BYTES_MAX]),
    ];
    for (given, expected) in table {
        let expected = if expected.is_empty() { node(1).short() } else { expected.to_owned() };
        assert_eq!(label(given, &node(1)), expected, "{given:?}");
    }
    let mut mesh = alone();
    mesh.members.insert(node(1), Joined { name: "first".into(), at: START, invite: None });
    for who in [0, 1, 2] {
        assert_eq!(mesh.name_of(&node(who)), mesh.roster().label(&node(who)));
    }
}
