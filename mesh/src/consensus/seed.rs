//! What a store begins with, and all that it knows. Pure.

use std::collections::{BTreeMap, BTreeSet};

use openraft::EntryPayload;

use super::{
    api::{MemberId, Persisted, Write},
    types::{Entry, LogId, Members, Meta, Place, StoredMembership, Term, keep, kept},
};
use crate::identity::NodeId;

/// Where every group begins: before its first entry, in no term.
fn origin() -> LogId {
    LogId::new(Term::new(0), 0)
}

/// Makes a store a group of one voter, `own` on `node`, whose machine has `state`: for a new mesh, an older format and
/// `mesh recover`. What the store had is to be replaced.
#[must_use]
pub fn seed(own: MemberId, node: NodeId, state: Vec<u8>) -> Vec<Write> {
    let places = BTreeMap::from([(own, Place { node })]);
    let members = Members::new(vec![BTreeSet::from([own])], places).unwrap_or_default();
    let membership = StoredMembership::new(Some(origin()), members);
    let meta = Meta { last_log_id: Some(origin()), last_membership: membership };
    // Nothing in these values can fail to be written.
    let (meta, last) = (kept(&meta).unwrap_or_default(), kept(&origin()).unwrap_or_default());
    vec![Write::Snapshot { meta, data: state }, Write::Purge { through: 0, last: last.clone() }, Write::Committed(last)]
}

/// The snapshot, where there is one, and the commands after it.
pub type Contents = (Option<Vec<u8>>, Vec<Vec<u8>>);

/// All that a store knows, also what is not known to be committed (failure rule F16).
///
/// # Errors
/// In words, when the bytes are no log that this program knows.
pub fn contents(persisted: &Persisted) -> Result<Contents, String> {
    let mut after = None;
    let mut state = None;
    if let Some((meta, data)) = &persisted.snapshot {
        let meta: Meta = keep(meta).map_err(|error| format!("the snapshot's head: {error}"))?;
        after = meta.last_log_id.map(|id| id.index);
        state = Some(data.clone());
    }
    let mut commands = Vec::new();
    for (index, bytes) in &persisted.log {
        let entry: Entry = keep(bytes).map_err(|error| format!("entry {index} of the log: {error}"))?;
        if after.is_some_and(|after| *index <= after) {
            continue;
        }
        if let EntryPayload::Normal(command) = entry.payload {
            commands.push(command.0.to_vec());
        }
    }
    Ok((state, commands))
}
