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
    Older(State),
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
        Found::Older(state) => older(state, who),
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
    let mut state = state;
    if let Some(membership) = &mut state.membership {
        membership.epoch = epoch.count;
        membership.version += 1;
        state.recovering = membership.members.keys().copied().collect();
    }
    state
}
