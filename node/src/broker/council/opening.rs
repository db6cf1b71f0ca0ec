//! Opens this device's store and makes it what the device begins with; what that is, is decided in [`super::super::begin`].

use std::io;

use chappie_mesh::consensus::{Group, MemberId, Persisted, Write, contents, seed};

use super::{
    super::{
        begin::{self, Begin, Beginner, Found, upgraded},
        errors::OpenError,
        machine::replay,
        state::State,
    },
    Place,
};
use crate::{
    clock,
    ids::Millis,
    storage::{
        bond::{Bond, bond},
        log::{ConsensusStore, Head, Opened},
    },
};

/// What a store says, and whose it is.
pub(super) struct Taken {
    pub(super) store: ConsensusStore,
    pub(super) head: Head,
    pub(super) persisted: Persisted,
    /// What it stands for, also what is not known to be committed.
    pub(super) state: State,
}

/// Opens the store and makes it what this device begins with. Blocking.
pub(super) fn take(place: &Place, now: Millis) -> Result<Taken, OpenError> {
    let (mut store, mut opened) = ConsensusStore::open(place.medium.clone(), place.node)?;
    let found = found(place, &mut opened, now)?;
    let who = Beginner {
        node: place.node,
        name: &place.name,
        member_of: place.member_of,
        mesh: clock::random::<16>().into(),
        epoch: clock::random(),
        now,
    };
    let (group, state, archive) = match (begin::begin(found, who), opened.head) {
        (Begin::Keep(state), Some(head)) => {
            let head = Head { run: place.run, ..head };
            store.set_run(place.run).map_err(|error| unusable(place, &error))?;
            return Ok(Taken { store, head, persisted: opened.persisted, state: *state });
        }
        // Only a log with a head is kept.
        (Begin::Keep(_), None) => return Err(damaged(place, "it has no head".into())),
        (Begin::Seed { group, state, archive }, _) => (group, Some(state), archive),
        (Begin::Empty { group, archive }, _) => (group, None, archive),
    };
    if let Some(what_for) = archive {
        let copy = store.archive(what_for).map_err(|error| unusable(place, &error))?;
        tracing::warn!(copy = %copy.display(), what_for, "this device begins anew; what its store held was copied");
    }
    let (head, writes) = anew(place, group, state.as_deref());
    store.reset(head, writes).map_err(|error| unusable(place, &error))?;
    let persisted = store.reopen()?.persisted;
    Ok(Taken { store, head, persisted, state: state.map(|state| *state).unwrap_or_default() })
}

fn found(place: &Place, opened: &mut Opened, now: Millis) -> Result<Found, OpenError> {
    if let Some(older) = opened.older.take() {
        return upgraded(older, now).map(|state| Found::Older(Box::new(state))).map_err(|cause| damaged(place, cause));
    }
    let Some(head) = &opened.head else { return Ok(Found::Nothing) };
    let state = all_of(&opened.persisted).map_err(|cause| damaged(place, cause))?;
    let bond = bond(&place.run, &head.run, opened.settled);
    let restored = bond == Bond::Restored || opened.copied;
    if restored {
        tracing::warn!("the broker's store was put back from a copy, or is not of one past with the node's store");
    }
    let foreign = restored || opened.maker.is_some_and(|maker| maker != place.node);
    Ok(Found::Log { group: head.group, state: Box::new(state), foreign })
}

/// All that a store says.
pub(super) fn all_of(persisted: &Persisted) -> Result<State, String> {
    let (snapshot, commands) = contents(persisted)?;
    replay(snapshot.as_deref(), &commands)
}

/// A new store's head, and what it begins with.
pub(super) fn anew(place: &Place, group: Group, state: Option<&State>) -> (Head, Vec<Write>) {
    let head = Head { group, store: clock::random(), run: place.run };
    let own = MemberId::of(&place.node, &head.store);
    (head, state.map_or_else(Vec::new, |state| seed(own, place.node, state.encode())))
}

pub(super) fn damaged(place: &Place, cause: String) -> OpenError {
    OpenError::Damaged { path: place.medium.path("consensus.redb"), cause }
}

pub(super) fn unusable(place: &Place, error: &io::Error) -> OpenError {
    OpenError::Io { path: place.medium.path("consensus.redb"), cause: error.to_string() }
}
