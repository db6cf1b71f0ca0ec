//! What a device begins with: whose log its store has, and what becomes of a store that is new, of an older format, of
//! another device, or put back from a copy (failure rules F15, F18). Pure; ids and stamps are arguments.

use std::collections::BTreeSet;

use chappie_mesh::{
    MeshId, NodeId,
    consensus::{Epoch, Group},
};

use super::{
    machine::replay_older,
    membership::{Membership, label},
    state::State,
};
use crate::{ids::Millis, storage::log::Older};

/// What a store was found to hold.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing: it is new.
    Nothing,
    /// A log of an older format, which one device wrote for itself.
    Older(Box<State>),
    /// The log of a group, which stands for this state.
    Log {
        /// Whose.
        group: Group,
        /// All that it says, also what is not known to be committed.
        state: Box<State>,
        /// Whether it, or the node's own store beside it, is a copy that was put back, or came from another device.
        foreign: bool,
    },
}

/// Who begins, and with what if it must begin anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginner<'a> {
    pub(super) node: NodeId,
    pub(super) name: &'a str,
    /// The group of the bigger mesh that this device belongs to, as its own store says.
    pub(super) member_of: Option<Group>,
    /// For a new mesh.
    pub(super) mesh: MeshId,
    /// For a new epoch.
    pub(super) epoch: [u8; 16],
    pub(super) now: Millis,
}

/// What to do with the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// Go on with it; what it stands for.
    Keep(Box<State>),
    /// Make it that of a group of one.
    Seed { group: Group, state: Box<State>, archive: Option<&'static str> },
    /// Make it that of a member which has heard nothing yet.
    Empty { group: Group, archive: Option<&'static str> },
}

impl Beginner<'_> {
    fn fresh(&self) -> Group {
        Group { mesh: self.mesh, epoch: Epoch { count: 1, id: self.epoch } }
    }

    /// A new mesh of one that has the rows of `state`.
    fn found(&self, state: State, archive: Option<&'static str>) -> Begin {
        let name = label(self.name, &self.node);
        let at = state.at.max(self.now);
        let membership = Some(Membership::alone(self.mesh, self.node, &name, at));
        // What was under way in the former mesh is none of this one's.
        let state = State { membership, recovering: BTreeSet::new(), ..state };
        let state = if state.applied == 0 { State { at, pruned: state.pruned.max(at), ..state } } else { state };
        Begin::Seed { group: self.fresh(), state: Box::new(state), archive }
    }
}

/// Decides it.
pub(super) fn begin(found: Found, who: Beginner<'_>) -> Begin {
    match found {
        Found::Nothing => match who.member_of {
            Some(group) => Begin::Empty { group, archive: None },
            None => who.found(State::default(), None),
        },
        Found::Older(state) => older(*state, who),
        Found::Log { group, state, foreign } => log(group, *state, foreign, who),
    }
}

/// How many other members a state knows; `None` when this device is not among them.
fn others(state: &State, node: &NodeId) -> Option<usize> {
    state.membership.as_ref().filter(|mesh| mesh.members.contains_key(node)).map(|mesh| mesh.members.len() - 1)
}

fn older(state: State, who: Beginner<'_>) -> Begin {
    // A member of another mesh had an unused one of its own.
    if let Some(group) =
        who.member_of.filter(|group| state.membership.as_ref().is_none_or(|own| own.mesh != group.mesh))
    {
        return Begin::Empty { group, archive: Some("before-join") };
    }
    match &state.membership {
        Some(mesh) if mesh.members.contains_key(&who.node) => {
            // All members of such a mesh take the same id for its epoch.
            let group = Group { mesh: mesh.mesh, epoch: Epoch { count: mesh.epoch, id: [0; 16] } };
            Begin::Seed { group, state: Box::new(state), archive: None }
        }
        _ => stranger(state, who),
    }
}

/// The state is not one that this device is a member in.
fn stranger(state: State, who: Beginner<'_>) -> Begin {
    let shared =
        state.membership.as_ref().is_some_and(|mesh| mesh.members.len() > 1 || mesh.removed.contains_key(&who.node));
    if shared {
        // What others share is theirs.
        return who.found(State::default(), Some("other-mesh"));
    }
    // It was this device's own under another identity.
    who.found(state, None)
}

fn log(group: Group, state: State, foreign: bool, who: Beginner<'_>) -> Begin {
    let belongs = who.member_of.is_some_and(|member| member.mesh == group.mesh);
    let empty = |group| Begin::Empty { group, archive: Some("restored") };
    match others(&state, &who.node) {
        // It votes no more under what it may have promised since the copy was made.
        Some(1..) if foreign => empty(group),
        // Nobody else had its votes, as far as this state knows. If it is of before others came in, they act in the epoch
        // that it had, and it must not.
        Some(_) if foreign => {
            let epoch = Epoch { count: group.epoch.count.saturating_add(1), id: who.epoch };
            Begin::Seed { group: Group { epoch, ..group }, state: Box::new(in_epoch(state, epoch)), archive: None }
        }
        Some(_) => Begin::Keep(Box::new(state)),
        // It has not heard all yet.
        None if belongs || state.membership.is_none() => {
            if foreign {
                empty(who.member_of.filter(|_| belongs).unwrap_or(group))
            } else {
                Begin::Keep(Box::new(state))
            }
        }
        None => stranger(state, who),
    }
}

/// The state that a store of an older format stands for.
///
/// # Errors
/// In words, when something in it is not of such a program.
pub(super) fn upgraded(older: Older, now: Millis) -> Result<State, String> {
    match older {
        Older::Format1 { bindings } => Ok(State::from_plain_bindings(bindings, now)),
        Older::Log { snapshot, entries } => {
            let entries: Vec<Vec<u8>> = entries.into_iter().map(|(_, bytes)| bytes).collect();
            replay_older(snapshot.as_ref().map(|(_, bytes)| bytes.as_slice()), &entries)
        }
    }
}

/// The first state of a new epoch that this device begins alone with all it has (failure rules F16, F17).
#[must_use]
pub(super) fn recovered(state: State, epoch: Epoch) -> State {
    let mut state = in_epoch(state, epoch);
    if let Some(membership) = &state.membership {
        state.recovering = membership.members.keys().copied().collect();
    }
    state
}

fn in_epoch(mut state: State, epoch: Epoch) -> State {
    if let Some(membership) = &mut state.membership {
        membership.epoch = epoch.count;
        membership.version += 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::membership::Joined;

    const NOW: Millis = Millis(1_790_000_000_000);

    fn node(n: u8) -> NodeId {
        NodeId::from([n; 32])
    }

    fn group(mesh: u8) -> Group {
        Group { mesh: [mesh; 16].into(), epoch: Epoch { count: 1, id: [mesh; 16] } }
    }

    fn who(n: u8, member_of: Option<Group>) -> Beginner<'static> {
        Beginner { node: node(n), name: "n", member_of, mesh: [9; 16].into(), epoch: [9; 16], now: NOW }
    }

    /// The state of mesh 1 with these members, after seven commands.
    fn state(members: &[u8]) -> State {
        let mut mesh = Membership::alone([1; 16].into(), node(members[0]), "first", NOW);
        for n in &members[1..] {
            mesh.members.insert(node(*n), Joined { name: "other".into(), at: NOW, invite: None });
        }
        State { applied: 7, at: NOW, membership: Some(mesh), ..State::default() }
    }

    fn log(state: State, foreign: bool) -> Found {
        Found::Log { group: group(1), state: Box::new(state), foreign }
    }

    /// What was decided, in words: how it begins, in which mesh, with how many commands behind it, and the copy.
    fn words(begin: Begin) -> (&'static str, u8, u64, Option<&'static str>) {
        let mesh = |group: Group| if group == self::group(1) { 1 } else { u8::from(group.mesh == [9; 16].into()) * 9 };
        match begin {
            Begin::Keep(state) => ("keep", 1, state.applied, None),
            Begin::Seed { group, state, archive } => ("seed", mesh(group), state.applied, archive),
            Begin::Empty { group, archive } => ("empty", mesh(group), 0, archive),
        }
    }

    #[test]
    fn a_new_store_founds_a_mesh_or_waits_for_the_one_it_belongs_to() {
        assert_eq!(words(begin(Found::Nothing, who(1, None))), ("seed", 9, 0, None));
        assert_eq!(words(begin(Found::Nothing, who(1, Some(group(1))))), ("empty", 1, 0, None));
        let Begin::Seed { state, .. } = begin(Found::Nothing, who(1, None)) else { unreachable!() };
        assert!(state.membership.is_some_and(|mesh| mesh.members.contains_key(&node(1))) && state.at == NOW);
    }

    #[test]
    fn f15_whose_log_it_is_and_whether_it_was_put_back_decides() {
        let mut forgotten = state(&[2]);
        forgotten.membership.as_mut().unwrap().removed.insert(node(1), 2);
        let unheard = State::default;
        for (found, member_of, expected, what) in [
            (log(state(&[1]), false), None, ("keep", 1, 7, None), "alone"),
            (log(state(&[1, 2]), false), None, ("keep", 1, 7, None), "a member"),
            (
                log(state(&[1]), true),
                None,
                ("seed", 0, 7, None),
                "alone and put back: others may act in its epoch since",
            ),
            (log(state(&[1, 2]), true), None, ("empty", 1, 0, Some("restored")), "a member that was put back"),
            (log(unheard(), false), Some(group(1)), ("keep", 1, 0, None), "a member that has heard nothing"),
            (log(unheard(), true), Some(group(1)), ("empty", 1, 0, Some("restored")), "the same, put back"),
            (log(state(&[2, 3]), false), Some(group(1)), ("keep", 1, 7, None), "it has not heard of itself yet"),
            (log(state(&[2]), true), None, ("seed", 9, 7, None), "its own under another identity"),
            (log(state(&[2, 3]), true), None, ("seed", 9, 0, Some("other-mesh")), "others' under another identity"),
            (log(forgotten, false), None, ("seed", 9, 0, Some("other-mesh")), "it was forgotten"),
        ] {
            assert_eq!(words(begin(found, who(1, member_of))), expected, "{what}");
        }
    }

    #[test]
    fn a_store_of_an_older_format_goes_on_unless_it_was_unused() {
        let zero = Group { epoch: Epoch { count: 1, id: [0; 16] }, ..group(1) };
        let kept = begin(Found::Older(Box::new(state(&[1, 2]))), who(1, None));
        assert!(matches!(kept, Begin::Seed { group, archive: None, .. } if group == zero));
        let plain = State { membership: None, ..state(&[1]) };
        assert_eq!(words(begin(Found::Older(Box::new(plain)), who(1, None))), ("seed", 9, 7, None));
        let unused = begin(Found::Older(Box::new(state(&[1]))), who(1, Some(group(2))));
        assert!(matches!(unused, Begin::Empty { group, archive: Some("before-join") } if group == self::group(2)));
    }

    #[test]
    fn f16_f17_a_recovered_state_keeps_its_members_and_waits_for_all_of_them() {
        let before = state(&[1, 2]);
        let after = recovered(before.clone(), Epoch { count: 4, id: [4; 16] });
        let (old, new) = (before.membership.unwrap(), after.membership.unwrap());
        assert_eq!((new.epoch, new.version, &new.members), (4, old.version + 1, &old.members));
        assert_eq!(after.recovering, [node(1), node(2)].into());
    }
}
