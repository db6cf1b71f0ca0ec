//! What a device does when a device of another epoch of its mesh asks its consensus engine something (failure rule F16).
//! Pure.

use chappie_mesh::consensus::Group;

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

#[cfg(test)]
mod tests {
    use chappie_mesh::consensus::Epoch;

    use super::*;

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
