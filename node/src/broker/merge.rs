//! A mesh of one joins another (F18): what it brings along, and what becomes of each row there. Pure.
//!
//! Existing keys win. A receipt that both meshes know, and that is not plainly the same run, becomes uncertain: nobody
//! can tell whether the operation ran once. The same rows again change nothing.

use serde::{Deserialize, Serialize};

use super::{
    apply::{prune, room_for_binding},
    command::{Reply, Stamped},
    limits::{BINDING_IDLE_MS, DELIVERED_MAX, IMPORT_BATCH, REASON_BYTES_MAX, RECEIPTS_MAX},
    receipts::{Receipt, ReceiptStatus, clip_end},
    state::{Binding, Delivered, State},
};
use crate::ids::{Millis, SessionId};

/// Begins the reason of a receipt that both meshes had; by it a repeated merge is known.
const BOTH: &str = "both of the joined meshes had this operation";

/// What a broker brings along when its mesh of one joins another. Expired rows are left out. Written to the log and sent
/// to other devices: fields are append-only, and a new one needs a new command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belongings {
    /// The mesh time these rows are counted in. The other mesh has another one, so only ages are taken over (F14).
    pub at: Millis,
    /// Default sessions of chats.
    pub bindings: Vec<BroughtBinding>,
    /// Receipts. Those that run go on running in their sessions.
    pub receipts: Vec<Receipt>,
    /// Late results that were delivered.
    pub delivered: Vec<BroughtDelivery>,
}

/// A binding of the joining mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BroughtBinding {
    /// Chat id.
    pub chat: String,
    /// Its session.
    pub session: SessionId,
    /// Last use, also when only memory knew it.
    pub last_used: Millis,
    /// From when its idle time counts.
    pub idle_from: Millis,
}

/// A delivered late result of the joining mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BroughtDelivery {
    /// Its id.
    pub id: String,
    /// Key of the conversation that had it.
    pub conversation: String,
    /// When.
    pub at: Millis,
}

/// How a merge went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MergeReport {
    /// Bindings taken over.
    pub bindings_added: usize,
    /// Chats that had a default here already.
    pub bindings_kept: usize,
    /// Bindings idle for more than 30 days.
    pub bindings_expired: usize,
    /// Receipts taken over.
    pub receipts_added: usize,
    /// Receipts that stood here already.
    pub receipts_kept: usize,
    /// Receipts that both meshes had: uncertain now.
    pub receipts_uncertain: usize,
    /// Receipts settled more than 24 h ago.
    pub receipts_expired: usize,
    /// Delivered late results taken over.
    pub delivered_added: usize,
    /// Delivered late results known here already.
    pub delivered_kept: usize,
    /// Rows for which a table was full. Not zero: something would be lost, so do not give up the old store.
    pub no_room: usize,
}

impl MergeReport {
    pub(super) fn add(&mut self, more: Self) {
        self.bindings_added += more.bindings_added;
        self.bindings_kept += more.bindings_kept;
        self.bindings_expired += more.bindings_expired;
        self.receipts_added += more.receipts_added;
        self.receipts_kept += more.receipts_kept;
        self.receipts_uncertain += more.receipts_uncertain;
        self.receipts_expired += more.receipts_expired;
        self.delivered_added += more.delivered_added;
        self.delivered_kept += more.delivered_kept;
        self.no_room += more.no_room;
    }
}

impl Belongings {
    /// The same rows in pieces of at most [`IMPORT_BATCH`], each good for a message or a log entry of about 200 KiB.
    #[must_use]
    pub fn pieces(self) -> Vec<Self> {
        let Self { at, bindings, receipts, delivered } = self;
        let empty = || Self { at, ..Self::default() };
        let bindings = bindings.chunks(IMPORT_BATCH).map(|rows| Self { bindings: rows.to_vec(), ..empty() });
        let receipts = receipts.chunks(IMPORT_BATCH).map(|rows| Self { receipts: rows.to_vec(), ..empty() });
        let delivered = delivered.chunks(IMPORT_BATCH).map(|rows| Self { delivered: rows.to_vec(), ..empty() });
        bindings.chain(receipts).chain(delivered).collect()
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bindings.len() + self.receipts.len() + self.delivered.len()
    }
}

/// Takes rows over that the mesh of `from` brought.
pub(super) fn merge(state: &mut State, entry: &Stamped, from: &str, brought: &Belongings) -> Reply {
    let at = entry.at;
    // Ages count; the stamps themselves are of another clock.
    let here = |theirs: Millis| Millis(at.0.saturating_sub(brought.at.since(theirs)));
    let mut report = MergeReport::default();
    for row in &brought.bindings {
        let binding = Binding {
            session: row.session.clone(),
            last_used: here(row.last_used),
            idle_from: here(row.idle_from),
            revision: entry.index,
        };
        merge_binding(state, at, &row.chat, binding, &mut report);
    }
    for receipt in &brought.receipts {
        let mut receipt = receipt.clone();
        for stamp in [&mut receipt.created, &mut receipt.updated, &mut receipt.keep_from] {
            *stamp = here(*stamp);
        }
        for resource in &mut receipt.resources {
            resource.source_read_at = resource.source_read_at.map(here);
        }
        receipt.reason = receipt.reason.map(|reason| clip_end(&reason, REASON_BYTES_MAX));
        receipt.fit();
        merge_receipt(state, at, from, receipt, &mut report);
    }
    for row in &brought.delivered {
        if state.delivered.contains_key(&row.id) {
            report.delivered_kept += 1;
        } else if state.delivered.len() >= DELIVERED_MAX {
            report.no_room += 1;
        } else {
            let delivered = Delivered { conversation: row.conversation.clone(), at: here(row.at) };
            state.delivered.insert(row.id.clone(), delivered);
            report.delivered_added += 1;
        }
    }
    Reply::Merged(report)
}

fn merge_binding(state: &mut State, at: Millis, chat: &str, binding: Binding, report: &mut MergeReport) {
    if at.since(binding.idle_from) > BINDING_IDLE_MS {
        report.bindings_expired += 1;
    } else if state.bindings.get(chat).is_some_and(|ours| !ours.expired(None, at)) {
        report.bindings_kept += 1;
    } else if state.bindings.contains_key(chat) || room_for_binding(state, at) {
        state.bindings.insert(chat.to_owned(), binding);
        report.bindings_added += 1;
    } else {
        report.no_room += 1;
    }
}

fn merge_receipt(state: &mut State, at: Millis, from: &str, theirs: Receipt, report: &mut MergeReport) {
    if theirs.expired(at) {
        report.receipts_expired += 1;
        return;
    }
    let Some(ours) = state.receipts.get_mut(&theirs.key).filter(|ours| !ours.expired(at)) else {
        if !state.receipts.contains_key(&theirs.key) && state.receipts.len() >= RECEIPTS_MAX {
            prune(state, at);
        }
        if !state.receipts.contains_key(&theirs.key) && state.receipts.len() >= RECEIPTS_MAX {
            report.no_room += 1;
        } else {
            state.receipts.insert(theirs.key.clone(), theirs);
            report.receipts_added += 1;
        }
        return;
    };
    match meet(ours, &theirs) {
        Met::Keep => report.receipts_kept += 1,
        Met::Replace => {
            *ours = theirs;
            report.receipts_added += 1;
        }
        Met::Conflict(what) => {
            // Another attempt than either had: what a session node reports of its run does not speak for the other.
            ours.attempt = ours.attempt.max(theirs.attempt).saturating_add(1);
            ours.change(ReceiptStatus::Uncertain, Some(&format!("{BOTH}: {what} {from}")), at);
            report.receipts_uncertain += 1;
        }
    }
}

/// What becomes of a receipt that both meshes have.
enum Met {
    /// Ours stands.
    Keep,
    /// Theirs does: ours says that nothing ran.
    Replace,
    /// Nobody can tell.
    Conflict(&'static str),
}

fn meet(ours: &Receipt, theirs: &Receipt) -> Met {
    use ReceiptStatus::{Completed, NeverRun, Uncertain};
    let merged_before = ours.status == Uncertain && ours.reason.as_ref().is_some_and(|why| why.starts_with(BOTH));
    let same_run = (&ours.call_id, ours.attempt, &ours.session) == (&theirs.call_id, theirs.attempt, &theirs.session);
    // An imported receipt that nobody asked for yet does not know its arguments.
    let unknown = ours.signature.is_empty() || theirs.signature.is_empty();
    let same_arguments = unknown || ours.signature == theirs.signature;
    match (ours.status, theirs.status) {
        _ if merged_before => Met::Keep,
        _ if !same_arguments => Met::Conflict("with other arguments in that of"),
        _ if same_run => Met::Keep,
        (_, NeverRun) | (Completed, _) => Met::Keep,
        (NeverRun, _) => Met::Replace,
        _ => Met::Conflict("it may have run in that of"),
    }
}

#[cfg(test)]
mod tests;
