//! What a device does when it hears of another epoch of its mesh: at its start, or when a device of it asks this one's consensus
//! engine something (failure rule F16). Pure.

use chappie_mesh::consensus::{Group, Said};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Nothing: another mesh, or an older epoch, which follows by itself when nobody acts in it.
    Stay,
    /// Both epochs may act and neither is to give way by guess: a person decides with `chappie mesh follow`.
    Split,
    /// Nobody acts in this device's epoch any more: archive it and become a member of the other one.
    Follow,
}

/// Decides it: `own` is this device's group, in which somebody `acting` is the broker as far as is known here; `theirs` is
/// that of who asks, and `leads` whether it leads there, or believes so: other members may only be trying to elect one.
#[must_use]
pub fn meet(own: Group, acting: bool, theirs: Group, leads: bool) -> Meeting {
    if own.mesh != theirs.mesh || own.epoch == theirs.epoch || !leads {
        return Meeting::Stay;
    }
    match (theirs.epoch.count.cmp(&own.epoch.count), acting) {
        (std::cmp::Ordering::Greater, false) => Meeting::Follow,
        (std::cmp::Ordering::Less, false) => Meeting::Stay,
        // The same count twice: two devices recovered, each without the other.
        (std::cmp::Ordering::Equal, _) | (_, true) => Meeting::Split,
    }
}

/// What a member that has just started does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Stands for election.
    Stand,
    /// Becomes a member of a later epoch, in which somebody acts.
    Follow(Group),
    /// Asks again.
    Ask,
}

/// Decides it by what the other members of the mesh `said` of their groups: all of them, when `all`; `over`: it has asked for
/// long enough. Old voters that come back together must not bring an epoch to life that a person has ended (F16).
#[must_use]
pub fn start(own: Group, said: &[Said], all: bool, over: bool) -> Start {
    let later = said.iter().filter_map(|said| match said {
        Said::Other { group, acts } if group.mesh == own.mesh && group.epoch.count > own.epoch.count => {
            Some((*group, *acts))
        }
        _ => None,
    });
    let later: Vec<(Group, bool)> = later.collect();
    let latest = later.iter().map(|(group, _)| group.epoch.count).max();
    let mut acting = later.iter().filter(|(group, acts)| *acts && Some(group.epoch.count) == latest);
    match (latest, acting.next()) {
        (None, _) if all || over => Start::Stand,
        (None, _) => Start::Ask,
        // Two that were begun at the same time: a person decides first which one counts.
        (Some(_), Some((group, _))) if acting.all(|(other, _)| other == group) => Start::Follow(*group),
        // Its broker is to be elected yet, or it is not known which one counts.
        (Some(_), _) => Start::Ask,
    }
}

#[cfg(test)]
mod tests {
    use chappie_mesh::consensus::Epoch;

    use super::*;

    #[test]
    fn f16_a_member_that_starts_follows_a_later_epoch_and_stands_only_when_there_is_none() {
        use Start::{Ask, Follow, Stand};
        let own = group(1, 2, 1);
        let other = |mesh, count, id, acts| Said::Other { group: group(mesh, count, id), acts };
        for (said, all, over, expected) in [
            (&[][..], false, false, Ask),
            (&[], false, true, Stand),
            (&[], true, false, Stand),
            (&[Said::Same], false, false, Ask),
            (&[Said::Same, Said::Same], true, false, Stand),
            (&[Said::Same, other(1, 3, 2, true)], true, true, Follow(group(1, 3, 2))),
            (&[other(1, 3, 2, true)], false, false, Follow(group(1, 3, 2))),
            (&[other(1, 3, 2, false)], true, true, Ask),
            (&[other(1, 3, 2, false), other(1, 3, 2, true)], true, false, Follow(group(1, 3, 2))),
            (&[other(1, 3, 2, true), other(1, 4, 3, true)], true, true, Follow(group(1, 4, 3))),
            (&[other(1, 3, 2, true), other(1, 4, 3, false)], true, true, Ask),
            (&[other(1, 3, 2, true), other(1, 3, 3, true)], true, true, Ask),
            (&[other(1, 1, 2, true)], true, false, Stand),
            (&[other(1, 2, 2, true)], true, false, Stand),
            (&[other(2, 9, 2, true)], true, false, Stand),
        ] {
            assert_eq!(start(own, said, all, over), expected, "{said:?}, all {all}, over {over}");
        }
    }

    fn group(mesh: u8, count: u64, id: u8) -> Group {
        Group { mesh: [mesh; 16].into(), epoch: Epoch { count, id: [id; 16] } }
    }

    #[test]
    fn f16_only_an_older_epoch_without_an_acting_broker_follows() {
        use Meeting::{Follow, Split, Stay};
        let own = group(1, 3, 1);
        for (theirs, acting, expected) in [
            (group(1, 4, 2), false, Follow),
            (group(1, 4, 2), true, Split),
            (group(1, 2, 2), false, Stay),
            (group(1, 2, 2), true, Split),
            (group(1, 3, 2), false, Split),
            (group(1, 3, 2), true, Split),
            (own, true, Stay),
            (own, false, Stay),
            (group(2, 9, 2), false, Stay),
            (group(2, 9, 2), true, Stay),
        ] {
            assert_eq!(meet(own, acting, theirs, true), expected, "{theirs:?}, acting {acting}");
            assert_eq!(meet(own, acting, theirs, false), Stay, "{theirs:?}, not of a leader");
        }
    }
}
