//! Decisions about connections: whether a device may come in, and which of two connections stays. Pure.

use std::{net::SocketAddr, time::Duration};

use crate::{
    identity::{Admission, Incarnation, Lineage, NodeId, lineage},
    wire::CloseCode,
};

/// Two connections whose beginnings are closer than this were dialled by both sides at once. A peer dials only when it
/// has no connection: one that dials later has lost the old one.
const AT_ONCE: Duration = Duration::from_secs(3);

/// What a device is told whose connection is of an earlier run.
pub(super) const EARLIER_RUN: &str = "a later run of this device is known";

/// Whether a device that proved its key may speak at all; `Err` closes with that code and reason.
pub(super) fn enter(admission: Admission, own: bool) -> Result<(), (CloseCode, String)> {
    match admission {
        // One's own identity comes in far enough to find out who else has it.
        _ if own => Ok(()),
        Admission::Member => Ok(()),
        Admission::Removed => Err((CloseCode::Forgotten, "this device was forgotten by its mesh".to_owned())),
        Admission::Unknown => {
            Err((CloseCode::NotMember, "this device is not on the roster; join with an invite".to_owned()))
        }
    }
}

/// What a run of a device that introduced itself is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// The one we know, or a later one.
    Welcome,
    /// A later one, while a connection of the earlier one is still there: ask that one whether it lives. If it does,
    /// there are two devices.
    AskTheOther,
    /// Another device with the same identity.
    Duplicate,
    /// We talk to ourselves.
    Ourselves,
}

/// What is known of a device's runs when it introduces itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs<'a> {
    /// Our own, when the device has our id.
    pub(super) own: Option<&'a Incarnation>,
    /// The latest that was let in.
    pub(super) remembered: Option<&'a Incarnation>,
    /// That of a connection which is open.
    pub(super) open: Option<&'a Incarnation>,
}

/// Judges the run that a device says it is.
pub(super) fn judge(known: Runs<'_>, seen: &Incarnation) -> Run {
    if let Some(own) = known.own {
        return if own == seen { Run::Ourselves } else { Run::Duplicate };
    }
    match lineage(known.remembered, seen) {
        Lineage::Duplicate => Run::Duplicate,
        Lineage::SameRun | Lineage::Restarted => match known.open {
            Some(open) if open != seen => Run::AskTheOther,
            _ => Run::Welcome,
        },
    }
}

/// One of two connections to the same device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Whether this device dialled it.
    pub(super) dialled: bool,
    /// Whether streams that somebody waits for are open on it.
    pub(super) working: bool,
    /// Since its hello.
    pub(super) age: Duration,
    /// The other side's run.
    pub(super) run: Incarnation,
}

/// Which connection stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Both, until the other side decides: one of the two decides, so that they agree.
    Both,
    /// The old one; the new one is given up when nothing runs on it.
    Old,
    /// The new one; the old one is given up when nothing runs on it.
    New,
    /// The new one; the old one is dead and is closed at once.
    NewOnly,
}

/// Decides between `old` and `new`; `lower` is whether our id is the lower one of the two.
pub(super) fn keep(lower: bool, old: &Standing, new: &Standing) -> Keep {
    let simultaneous = old.age < AT_ONCE && old.dialled != new.dialled;
    if old.run != new.run || !simultaneous {
        return Keep::NewOnly;
    }
    if !lower {
        return Keep::Both;
    }
    // The lower id decides, and its own dial wins unless that would move work.
    if new.dialled && !old.working { Keep::New } else { Keep::Old }
}

/// What a device is told that has an identity which another one uses at `other`.
pub(super) fn duplicate_reason(other: Option<SocketAddr>) -> String {
    match other {
        Some(other) => {
            format!("another device uses the same identity; give one a new one (chappie reset-identity): {other}")
        }
        None => "another run of this identity was seen; give this device a new one (chappie reset-identity)".to_owned(),
    }
}

/// The address in a [`duplicate_reason`].
pub(super) fn duplicate_address(reason: &str) -> Option<SocketAddr> {
    reason.rsplit(' ').next().and_then(|last| last.parse().ok())
}

/// Whether our id is the lower one.
pub(super) fn is_lower(ours: NodeId, theirs: NodeId) -> bool {
    ours < theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Incarnation = Incarnation::first([1; 16]);

    #[test]
    fn members_come_in_and_others_are_told_why_not() {
        assert_eq!(enter(Admission::Member, false), Ok(()));
        assert_eq!(enter(Admission::Unknown, true), Ok(()));
        assert_eq!(enter(Admission::Removed, false).map_err(|refusal| refusal.0), Err(CloseCode::Forgotten));
        assert_eq!(enter(Admission::Unknown, false).map_err(|refusal| refusal.0), Err(CloseCode::NotMember));
    }

    #[test]
    fn runs_are_judged_by_what_is_known() {
        let (second, branch) = (FIRST.next([2; 16]), FIRST.next([3; 16]));
        let third = second.next([4; 16]);
        let table = [
            (None, None, None, second, Run::Welcome),
            (None, Some(FIRST), None, FIRST, Run::Welcome),
            (None, Some(FIRST), Some(FIRST), FIRST, Run::Welcome),
            (None, Some(FIRST), None, second, Run::Welcome),
            (None, Some(FIRST), Some(FIRST), second, Run::AskTheOther),
            (None, Some(FIRST), Some(FIRST), third, Run::AskTheOther),
            (None, Some(second), None, FIRST, Run::Duplicate),
            (None, Some(second), None, branch, Run::Duplicate),
            (None, Some(second), Some(second), branch, Run::Duplicate),
            (Some(FIRST), None, None, FIRST, Run::Ourselves),
            (Some(FIRST), None, None, second, Run::Duplicate),
        ];
        for (own, remembered, open, seen, expected) in table {
            let known = Runs { own: own.as_ref(), remembered: remembered.as_ref(), open: open.as_ref() };
            assert_eq!(judge(known, &seen), expected, "{known:?} {seen:?}");
        }
    }

    #[test]
    fn of_two_simultaneous_dials_that_of_the_lower_id_stays_unless_work_would_move() {
        let at = |dialled, working| Standing { dialled, working, age: Duration::from_millis(50), run: FIRST };
        let table = [
            (true, at(false, false), at(true, false), Keep::New),
            (true, at(true, false), at(false, false), Keep::Old),
            (true, at(false, true), at(true, false), Keep::Old),
            (true, at(true, true), at(false, false), Keep::Old),
            (false, at(true, false), at(false, false), Keep::Both),
            (false, at(false, true), at(true, false), Keep::Both),
        ];
        for (lower, old, new, expected) in table {
            assert_eq!(keep(lower, &old, &new), expected, "{lower} {old:?} {new:?}");
        }
    }

    #[test]
    fn a_later_run_and_a_peer_that_dials_again_replace_what_was_there() {
        let old = Standing { dialled: true, working: true, age: Duration::from_millis(50), run: FIRST };
        for lower in [true, false] {
            let restarted = Standing { dialled: false, run: FIRST.next([2; 16]), ..old };
            assert_eq!(keep(lower, &old, &restarted), Keep::NewOnly);
            let again = Standing { dialled: false, ..old };
            assert_eq!(keep(lower, &Standing { age: AT_ONCE, ..old }, &again), Keep::NewOnly);
            assert_eq!(keep(lower, &again, &again), Keep::NewOnly, "it dialled twice: the first is lost");
        }
    }

    #[test]
    fn the_other_device_s_address_is_read_back_from_the_reason() {
        for address in ["10.0.0.5:24274", "[fd00::5]:24274"].map(|text| text.parse().unwrap()) {
            assert_eq!(duplicate_address(&duplicate_reason(Some(address))), Some(address));
        }
        assert_eq!(duplicate_address(&duplicate_reason(None)), None);
        assert_eq!(duplicate_address(""), None);
    }
}
