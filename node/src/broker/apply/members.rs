//! `apply` for the commands about membership: founding, invites, joining, forgetting. Pure. What may happen is decided in
//! [`super::super::membership`] and [`super::super::merge`].

use std::collections::BTreeSet;

use chappie_mesh::{MeshId, NodeId};

use super::super::{
    command::{Command, Kept, Reply, Stamped},
    membership::Membership,
    merge,
    receipts::ReceiptStatus,
    state::State,
};
use crate::ids::{Millis, SessionId};

/// Applies one of them; any other command changes nothing.
pub(super) fn apply(state: &mut State, entry: &Stamped) -> Reply {
    let at = entry.at;
    match &entry.command {
        Command::Found { mesh, node, name } => found(state, at, *mesh, *node, name),
        Command::StartOver { mesh, node, name } => start_over(state, entry, *mesh, *node, name),
        command => {
            let Some(membership) = &mut state.membership else { return Reply::NoMesh };
            match command {
                Command::Invite { id, key, uses, ttl_ms } => membership.invite(*id, key.clone(), *uses, *ttl_ms, at),
                Command::Admit { node, name, invite } => membership.admit(*node, name, *invite, at),
                Command::Rename { node, name } => membership.rename(node, name),
                Command::Remove { node, sessions } => remove(state, at, node, sessions),
                Command::Merge { from, brought } => {
                    let from = membership.name_of(from);
                    merge::merge(state, entry, &from, brought)
                }
                _ => Reply::Done(false),
            }
        }
    }
}

/// A store that came with another device's identity (a cloned disk, a reset key) is no longer that device's mesh: its
/// members and invites are not this one's.
fn found(state: &mut State, at: Millis, mesh: MeshId, node: NodeId, name: &str) -> Reply {
    if let Some(membership) = state.membership.as_mut().filter(|membership| membership.broker == node) {
        return membership.rename(&node, name);
    }
    state.membership = Some(Membership::alone(mesh, node, name, at));
    Reply::Done(true)
}

fn start_over(state: &mut State, entry: &Stamped, mesh: MeshId, node: NodeId, name: &str) -> Reply {
    if state.membership.as_ref().is_some_and(|membership| membership.mesh == mesh) {
        return Reply::Done(false);
    }
    let membership = Some(Membership::alone(mesh, node, name, entry.at));
    *state = State { applied: entry.index, at: entry.at, pruned: entry.at, membership, ..State::default() };
    Reply::Done(true)
}

fn remove(state: &mut State, at: Millis, node: &NodeId, sessions: &[SessionId]) -> Reply {
    let Some(membership) = &mut state.membership else { return Reply::NoMesh };
    if membership.members.len() == 1 && membership.members.contains_key(node) {
        return Reply::Kept(Kept::Last);
    }
    let name = membership.name_of(node);
    let removed = membership.remove(node);
    // Asked again, because it was not known whether it was recorded (F12): done, and its sessions may be known by now.
    if !removed && !membership.removed.contains_key(node) {
        return Reply::Kept(Kept::Unknown);
    }
    if membership.broker == *node {
        // Only says who founded the mesh; see `Membership::broker`.
        membership.broker = membership.members.keys().next().copied().unwrap_or(membership.broker);
    }
    let mut changed = removed | state.recovering.remove(node);
    for session in sessions {
        changed |= state.bindings.remove_session(session) > 0;
    }
    let gone: BTreeSet<&SessionId> = sessions.iter().collect();
    let reason = format!("its device {name} was forgotten while it ran");
    let running =
        |receipt: &&mut super::Receipt| receipt.status == ReceiptStatus::Running && gone.contains(&receipt.session);
    for receipt in state.receipts.values_mut().filter(running) {
        receipt.change(ReceiptStatus::Uncertain, Some(&reason), at);
        changed = true;
    }
    Reply::Done(changed)
}
