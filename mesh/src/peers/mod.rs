//! Who is connected, and keeping it so: one task for each member. A device comes in through `greet`, lives as a `link`
//! in the `table`, and `tend` dials it when it is missing. Sockets are `transport`'s business, strangers are `router`'s.

mod backoff;
mod core;
mod greet;
mod link;
mod liveness;
mod raft;
mod refresh;
mod serve;
mod sight;
mod table;
mod tend;
mod verdict;

use std::{collections::BTreeSet, sync::Arc};

#[cfg(test)]
pub(crate) use self::greet::greet_dialled;
pub(crate) use self::{
    core::Core,
    greet::{Refusal, greet_caller},
    raft::{ask, take_asker},
    refresh::keep_fresh,
    sight::sight,
    table::Standing,
};
use crate::{identity::NodeId, wire::CloseCode};

/// Follows the roster: a task for each member, and the end for who is no member any more. Ends with the mesh.
pub(crate) async fn follow_roster(core: Arc<Core>) {
    let mut rosters = core.rosters();
    let mut known = BTreeSet::<NodeId>::new();
    let mut mesh = core.roster().mesh;
    crate::runtime::spawn(tend::tend_places(Arc::clone(&core)));
    loop {
        let roster = Arc::clone(&rosters.borrow_and_update());
        let moved = roster.mesh != mesh;
        mesh = roster.mesh;
        for peer in known.iter().filter(|peer| !roster.members.contains_key(*peer)) {
            let (code, told) = if moved {
                (CloseCode::OtherMesh, "the device went to another mesh")
            } else {
                (CloseCode::Forgotten, "this device was forgotten by its mesh")
            };
            for link in core.table.forget(*peer) {
                link.close(code, format!("{} is no member of this mesh any more", link.label), told);
            }
            core.raft.forget(peer, code, told);
        }
        core.book().retain(|peer| roster.members.contains_key(peer));
        known = roster.members.keys().copied().collect();
        tend::tend_members(&core);
        // Who is broker decides which connections are kept.
        core.table.poke_all();
        tokio::select! {
            biased;
            changed = rosters.changed() => if changed.is_err() { return },
            () = core.stopping.cancelled() => return,
        }
    }
}
