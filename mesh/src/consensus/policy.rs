//! Who votes and who follows (design section 6; failure rules F15 and F21). Pure: one step from what is to what should be.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::api::{MemberId, Voting};
use crate::identity::NodeId;

/// A voter that was silent for so long gives its place to a member that answers.
pub(super) const SILENT: Duration = Duration::from_secs(300);

/// A learner that answered this recently is there; several signs of life even at the slowest pace.
const THERE: Duration = Duration::from_secs(5);

/// Entries that a learner may lack when it begins to vote: they arrive with the next message.
pub(super) const LAG_MAX: u64 = 64;

/// How a member of the group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Health {
    /// Entries that it lacks.
    pub(super) lag: u64,
    /// Since when it does not answer.
    pub(super) silent: Duration,
}

/// Which member a device is, as it said itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) member: MemberId,
    pub(super) voting: Voting,
}

/// What the leader knows.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The leader itself.
    pub(super) own: MemberId,
    /// Devices of the mesh.
    pub(super) roster: BTreeSet<NodeId>,
    /// Who belongs to the group, and on which device.
    pub(super) places: BTreeMap<MemberId, NodeId>,
    /// Who of them votes.
    pub(super) voters: BTreeSet<MemberId>,
    /// A change of voters is half done.
    pub(super) joint: bool,
    /// How they do; the leader itself need not be there.
    pub(super) health: BTreeMap<MemberId, Health>,
    /// Devices that said who they are.
    pub(super) present: BTreeMap<NodeId, Present>,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Finish the change of voters that is half done.
    Finish,
    /// Members that follow from now on.
    Learn(BTreeMap<MemberId, NodeId>),
    /// Who votes from now on; others follow.
    Voters(BTreeSet<MemberId>),
    /// Members that belong to the group no more.
    Remove(BTreeSet<MemberId>),
    /// The leader may not vote, and this one can lead.
    HandOver(MemberId),
}

/// How many of so many devices vote.
const fn seats(devices: usize) -> usize {
    match devices {
        0..=2 => 1,
        3 | 4 => 3,
        _ => 5,
    }
}

/// An even number of voters survives no more losses than one less, and needs more answers.
const fn odd(count: usize) -> usize {
    if count.is_multiple_of(2) { count.saturating_sub(1) } else { count }
}

impl View {
    /// A leader whose device leaves the mesh may not vote: another one leads first (failure rule F21).
    fn voting(&self, member: MemberId) -> Voting {
        if self.places.get(&member).is_some_and(|node| !self.roster.contains(node)) {
            return Voting::Never;
        }
        let present = self.places.get(&member).and_then(|node| self.present.get(node));
        present.filter(|present| present.member == member).map_or(Voting::Auto, |present| present.voting)
    }

    /// The device's store was made anew: this member will not come back.
    fn is_gone(&self, member: MemberId) -> bool {
        let present = self.places.get(&member).and_then(|node| self.present.get(node));
        present.is_some_and(|present| present.member != member)
    }

    fn is_forgotten(&self, member: MemberId) -> bool {
        member != self.own && self.places.get(&member).is_none_or(|node| !self.roster.contains(node))
    }

    fn has_caught_up(&self, member: MemberId) -> bool {
        let place = self.places.get(&member).and_then(|node| self.present.get(node));
        let said = place.is_some_and(|present| present.member == member);
        said && self.health.get(&member).is_some_and(|health| health.lag <= LAG_MAX && health.silent < THERE)
    }

    /// Whether a voter will not be missed by anybody who can take its place.
    fn is_lost(&self, member: MemberId) -> bool {
        member != self.own
            && (self.is_gone(member) || self.health.get(&member).is_some_and(|health| health.silent >= SILENT))
    }

    /// Who is to vote.
    fn wanted(&self) -> BTreeSet<MemberId> {
        let candidate = |member: &MemberId| {
            *member != self.own
                && !self.is_forgotten(*member)
                && self.voting(*member) != Voting::Never
                && (self.voters.contains(member) || self.has_caught_up(*member))
        };
        let mut others: Vec<MemberId> = self.places.keys().copied().filter(candidate).collect();
        // Lost ones last, then those whose owners want it, then those that vote already: no change without a reason.
        others.sort_by_key(|member| {
            let voter = self.voters.contains(member);
            (self.is_lost(*member), self.voting(*member) != Voting::Always, !voter, *member)
        });
        // The leader stays a voter. When its owner forbids that, it keeps the place only until another one leads.
        let own = usize::from(self.voting(self.own) != Voting::Never);
        let seats = odd(seats(self.roster.len()).min(own + others.len()));
        let others = others.into_iter().take(seats - own.min(seats));
        std::iter::once(self.own).chain(others).collect()
    }
}

/// What is to be done next; `None` when all is as it should be.
pub(super) fn next(view: &View) -> Option<Step> {
    if view.joint {
        return Some(Step::Finish);
    }
    let wanted = view.wanted();
    let away =
        |member: &MemberId| !view.voters.contains(member) && (view.is_forgotten(*member) || view.is_gone(*member));
    let leaving: BTreeSet<MemberId> = view.places.keys().copied().filter(away).collect();
    if !leaving.is_empty() {
        return Some(Step::Remove(leaving));
    }
    let new = |(node, present): (&NodeId, &Present)| {
        (view.roster.contains(node) && !view.places.contains_key(&present.member)).then_some((present.member, *node))
    };
    let coming: BTreeMap<MemberId, NodeId> = view.present.iter().filter_map(new).collect();
    if !coming.is_empty() {
        return Some(Step::Learn(coming));
    }
    if wanted != view.voters {
        return Some(Step::Voters(wanted));
    }
    if view.voting(view.own) == Voting::Never {
        let heir = |member: &&MemberId| **member != view.own && view.has_caught_up(**member);
        return view.voters.iter().find(heir).map(|heir| Step::HandOver(*heir));
    }
    None
}

#[cfg(test)]
mod tests;
