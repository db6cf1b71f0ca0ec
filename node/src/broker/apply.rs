//! `apply`: one command on the state. Pure and total: it never fails, never reads a clock, and the same commands from an
//! empty state give the same state, byte for byte. All time comes from the stamp.

use chappie_mesh::NodeId;

use super::{
    command::{Command, ImportCounts, ImportRow, Reply, Reservation, Resolve, Settlement, Stamped},
    limits::{BINDINGS_MAX, DELIVERED_MAX, PRUNE_EVERY_MS, RECEIPTS_MAX},
    reannounce,
    receipts::{Receipt, ReceiptKey, ReceiptStatus, original_key},
    state::{Binding, Delivered, State},
};
use crate::ids::{Conversation, Millis, SessionId};

/// Applies `entry` and says what it did.
pub fn apply(state: &mut State, entry: &Stamped) -> Reply {
    let at = entry.at;
    state.applied = entry.index;
    state.at = at;
    let reply = match &entry.command {
        Command::Bind { chat, session, expected } => bind(state, entry, chat, session, *expected),
        Command::Touch { chat, revision } => touch(state, at, chat, *revision),
        Command::Restore { chat, revision, previous } => restore(state, entry, chat, *revision, previous.as_ref()),
        Command::Reserve(reservation) => reserve(state, at, reservation),
        Command::Settle { key, attempt, outcome, left_out } => settle(state, at, key, *attempt, outcome, *left_out),
        Command::Resolve { key, how } => resolve(state, at, key, *how),
        Command::Deliver { conversation, ids } => deliver(state, at, conversation, ids),
        Command::Forget { ids } => forget(state, ids),
        Command::Jump { gap_ms } => jump(state, at, *gap_ms),
        Command::SourceRead { conversation, uri } => source_read(state, at, conversation, uri),
        Command::Import { bindings, receipts } => import(state, entry, bindings, receipts),
        Command::Reannounce { node, rows, last } => reannounce::reannounce(state, at, node, rows, *last),
        Command::AcceptLoss => Reply::Done(!std::mem::take(&mut state.recovering).is_empty()),
        Command::Found { .. }
        | Command::Invite { .. }
        | Command::Admit { .. }
        | Command::Rename { .. }
        | Command::Remove { .. }
        | Command::Merge { .. }
        | Command::StartOver { .. } => members::apply(state, entry),
    };
    if at.since(state.pruned) >= PRUNE_EVERY_MS {
        prune(state, at);
    }
    reply
}

/// Drops what expired: settled receipts after 24 h, bindings after 30 days and the day a touch may be late, invites ten
/// minutes after their end.
pub(super) fn prune(state: &mut State, at: Millis) {
    state.receipts.retain(|_, receipt| !receipt.expired(at));
    state.bindings.retain(|binding| !binding.prunable(at));
    if let Some(membership) = &mut state.membership {
        membership.prune(at);
    }
    state.pruned = at;
}

fn bind(state: &mut State, entry: &Stamped, chat: &str, session: &SessionId, expected: Option<u64>) -> Reply {
    let at = entry.at;
    if state.bindings.get(chat).map(|binding| binding.revision) != expected {
        return Reply::Stale;
    }
    if !state.bindings.contains_key(chat) && !room_for_binding(state, at) {
        return Reply::full("saved conversations", BINDINGS_MAX);
    }
    let binding = Binding { session: session.clone(), last_used: at, idle_from: at, revision: entry.index };
    let previous = state.bindings.insert(chat.to_owned(), binding).filter(|old| !old.prunable(at));
    Reply::Bound { revision: entry.index, previous }
}

pub(super) fn room_for_binding(state: &mut State, at: Millis) -> bool {
    if state.bindings.len() >= BINDINGS_MAX {
        prune(state, at);
    }
    state.bindings.len() < BINDINGS_MAX
}

fn touch(state: &mut State, at: Millis, chat: &str, revision: u64) -> Reply {
    if state.bindings.get(chat).is_none_or(|binding| binding.revision != revision) {
        return Reply::Done(false);
    }
    state.bindings.change(chat, |binding| {
        binding.last_used = at;
        binding.idle_from = at;
    });
    Reply::Done(true)
}

fn restore(state: &mut State, entry: &Stamped, chat: &str, revision: u64, previous: Option<&Binding>) -> Reply {
    if state.bindings.get(chat).is_none_or(|binding| binding.revision != revision) {
        return Reply::Done(false);
    }
    match previous {
        // A new revision, so that whoever saw the old one before the failed change notices.
        Some(old) => {
            state.bindings.insert(chat.to_owned(), Binding { revision: entry.index, ..old.clone() });
        }
        None => {
            state.bindings.remove(chat);
        }
    }
    Reply::Done(true)
}

fn reserve(state: &mut State, at: Millis, reservation: &Reservation) -> Reply {
    adopt(state, at, reservation);
    if let Some(known) = known_receipt(state, at, reservation) {
        return known;
    }
    if let Some(refused) = recovering(state) {
        return refused;
    }
    let key = &reservation.key;
    if let Some(receipt) = state.receipts.get_mut(key) {
        // Sealed, or its 24 h are over: the next attempt, which a session node tells from the old one.
        let (attempt, created) = (receipt.attempt.saturating_add(1), receipt.created);
        let created = if receipt.expired(at) { at } else { created };
        *receipt = new_receipt(reservation, attempt, created, at);
        return Reply::Fresh { attempt };
    }
    if state.receipts.len() >= RECEIPTS_MAX {
        prune(state, at);
    }
    if state.receipts.len() >= RECEIPTS_MAX {
        return full_receipts();
    }
    state.receipts.insert(key.clone(), new_receipt(reservation, 1, at, at));
    Reply::Fresh { attempt: 1 }
}

/// An imported receipt of this operation stands under the original's key: it moves under ours, once the operation is
/// known by name.
fn adopt(state: &mut State, at: Millis, reservation: &Reservation) {
    let Reservation { conversation, session, kind, operation_id, .. } = reservation;
    let Some(theirs) = original_key(conversation.as_ref(), session, *kind, operation_id) else { return };
    if state.receipts.contains_key(&reservation.key) || !state.receipts.get(&theirs).is_some_and(|known| known.imported)
    {
        return;
    }
    if let Some(mut receipt) = state.receipts.remove(&theirs).filter(|receipt| !receipt.expired(at)) {
        receipt.key = reservation.key.clone();
        receipt.operation_id = operation_id.clone();
        receipt.signature = reservation.signature.clone();
        receipt.fit();
        state.receipts.insert(receipt.key.clone(), receipt);
    }
}

/// The answer for any operation that is not known while members have yet to re-announce (failure rule F17): one of them may
/// have run it. Needs no command.
#[must_use]
pub fn recovering(state: &State) -> Option<Reply> {
    if state.recovering.is_empty() {
        return None;
    }
    let name = |node| state.membership.as_ref().map_or_else(|| NodeId::short(node), |known| known.name_of(node));
    Some(Reply::Recovering(state.recovering.iter().map(name).collect()))
}

/// The answer for an operation that must not run: it is known, or its id is taken by other arguments. Needs no command.
#[must_use]
pub fn known_receipt(state: &State, now: Millis, reservation: &Reservation) -> Option<Reply> {
    let receipt = state.receipts.get(&reservation.key).filter(|receipt| !receipt.expired(now))?;
    // An imported receipt that nobody asked for yet does not know its arguments.
    if !receipt.signature.is_empty() && receipt.signature != reservation.signature {
        return Some(Reply::Conflict(Box::new(receipt.clone())));
    }
    (receipt.status != ReceiptStatus::NeverRun).then(|| Reply::Replay(Box::new(receipt.clone())))
}

/// Whether `reservation` would be refused because the table is full, even after every expired receipt was dropped. Needs no
/// command.
#[must_use]
pub fn receipts_full(state: &State, now: Millis, reservation: &Reservation) -> bool {
    let Reservation { key, conversation, session, kind, operation_id, .. } = reservation;
    state.receipts.len() >= RECEIPTS_MAX
        && !state.receipts.contains_key(key)
        && original_key(conversation.as_ref(), session, *kind, operation_id)
            .is_none_or(|theirs| !state.receipts.contains_key(&theirs))
        && state.receipts.values().filter(|receipt| !receipt.expired(now)).count() >= RECEIPTS_MAX
}

pub(super) const fn full_receipts() -> Reply {
    Reply::full("operation receipts", RECEIPTS_MAX)
}

fn new_receipt(reservation: &Reservation, attempt: u32, created: Millis, at: Millis) -> Receipt {
    let mut receipt = Receipt {
        key: reservation.key.clone(),
        signature: reservation.signature.clone(),
        operation_id: reservation.operation_id.clone(),
        conversation: reservation.conversation.clone(),
        session: reservation.session.clone(),
        cwd: reservation.cwd.clone(),
        kind: reservation.kind,
        call_id: reservation.call_id.clone(),
        attempt,
        status: ReceiptStatus::Running,
        reason: None,
        created,
        updated: at,
        keep_from: at,
        resources: Vec::new(),
        resources_left_out: 0,
        imported: false,
    };
    receipt.fit();
    receipt
}

pub(super) fn settle(
    state: &mut State,
    at: Millis,
    key: &ReceiptKey,
    attempt: u32,
    outcome: &Settlement,
    left_out: u32,
) -> Reply {
    use ReceiptStatus::{Completed, NeverRun, Running, Uncertain};
    let Some(receipt) = state.receipts.get_mut(key).filter(|receipt| receipt.attempt == attempt) else {
        return Reply::Done(false);
    };
    match (outcome, receipt.status) {
        // Completed is final; the same report again changes nothing.
        (_, Completed) | (Settlement::Uncertain { .. }, NeverRun | Uncertain) | (Settlement::NeverRun, NeverRun) => {
            return Reply::Done(false);
        }
        // What ran has run, whatever was believed before.
        (Settlement::Completed { resources }, Running | Uncertain | NeverRun) => {
            receipt.change(Completed, None, at);
            receipt.add_resources(resources, left_out);
        }
        (Settlement::Uncertain { reason }, Running) => receipt.change(Uncertain, Some(reason), at),
        (Settlement::NeverRun, Running | Uncertain) => receipt.change(NeverRun, None, at),
    }
    Reply::Done(true)
}

fn resolve(state: &mut State, at: Millis, key: &ReceiptKey, how: Resolve) -> Reply {
    let Some(receipt) = state.receipts.get_mut(key) else { return Reply::Unresolvable(None) };
    let (status, reason) = match how {
        Resolve::Completed => (ReceiptStatus::Completed, "a person found that it was done"),
        Resolve::NotDone => (ReceiptStatus::NeverRun, "a person found that it was not done"),
    };
    if receipt.status == status {
        return Reply::Done(false);
    }
    if receipt.status != ReceiptStatus::Uncertain {
        return Reply::Unresolvable(Some(receipt.status));
    }
    receipt.change(status, Some(reason), at);
    Reply::Done(true)
}

fn deliver(state: &mut State, at: Millis, conversation: &str, ids: &[String]) -> Reply {
    let new: Vec<&String> = ids.iter().filter(|id| !state.delivered.contains_key(*id)).collect();
    if state.delivered.len() + new.len() > DELIVERED_MAX {
        return Reply::full("delivered late results", DELIVERED_MAX);
    }
    let changed = !new.is_empty();
    for id in new.into_iter().cloned().collect::<Vec<_>>() {
        state.delivered.insert(id, Delivered { conversation: conversation.to_owned(), at });
    }
    Reply::Done(changed)
}

fn forget(state: &mut State, ids: &[String]) -> Reply {
    let before = state.delivered.len();
    for id in ids {
        state.delivered.remove(id);
    }
    Reply::Done(state.delivered.len() < before)
}

/// A row used before the jump and not since starts a full period at the first jump after its use (F14); a later jump
/// only adds the time it skipped, or a machine that is off every night would keep every row for ever.
fn jump(state: &mut State, at: Millis, gap_ms: u64) -> Reply {
    let moved = |used: Millis, from: Millis| if from > used { from.plus(gap_ms).min(at) } else { at };
    state.bindings.change_all(|binding| binding.idle_from = moved(binding.last_used, binding.idle_from));
    for receipt in state.receipts.values_mut() {
        receipt.keep_from = moved(receipt.updated, receipt.keep_from);
    }
    if let Some(membership) = &mut state.membership {
        membership.jump(at, gap_ms);
    }
    Reply::Done(true)
}

fn source_read(state: &mut State, at: Millis, conversation: &Conversation, uri: &str) -> Reply {
    let mut changed = false;
    let receipts = state.receipts.values_mut().filter(|receipt| receipt.conversation.as_ref() == Some(conversation));
    for resource in receipts.flat_map(|receipt| &mut receipt.resources) {
        if resource.uri == uri && resource.source_read_at.is_none() {
            resource.source_read_at = Some(at);
            changed = true;
        }
    }
    Reply::Done(changed)
}

fn import(state: &mut State, entry: &Stamped, bindings: &[ImportRow], receipts: &[Receipt]) -> Reply {
    let at = entry.at;
    let mut counts = ImportCounts::default();
    for row in bindings {
        import_binding(state, entry, row, &mut counts);
    }
    for receipt in receipts {
        if receipt.expired(at) {
            counts.receipts_expired += 1;
        } else if state.receipts.contains_key(&receipt.key) {
            counts.receipts_kept += 1;
        } else if state.receipts.len() >= RECEIPTS_MAX {
            counts.no_room += 1;
        } else {
            let mut receipt = receipt.clone();
            receipt.fit();
            state.receipts.insert(receipt.key.clone(), receipt);
            counts.receipts_added += 1;
        }
    }
    Reply::Imported(counts)
}

fn import_binding(state: &mut State, entry: &Stamped, row: &ImportRow, counts: &mut ImportCounts) {
    let at = entry.at;
    // A stamp from the future says nothing. Such a row and the plain form count as used now, as the original counted them
    // when it loaded them, and yield to any binding we have, so that importing twice changes nothing.
    let used = row.last_used.filter(|used| *used <= at);
    let last_used = used.unwrap_or(at);
    let binding = Binding { session: row.session.clone(), last_used, idle_from: last_used, revision: entry.index };
    if binding.expired(None, at) {
        counts.bindings_expired += 1;
        return;
    }
    let ours = state.bindings.get(&row.chat).filter(|ours| !ours.expired(None, at)).map(|ours| ours.last_used);
    let newer = |ours: Millis| used.is_some_and(|used| used > ours);
    let counted = match ours {
        Some(ours) if newer(ours) => &mut counts.bindings_replaced,
        Some(_) => {
            counts.bindings_kept += 1;
            return;
        }
        None if state.bindings.contains_key(&row.chat) || room_for_binding(state, at) => &mut counts.bindings_added,
        None => {
            counts.no_room += 1;
            return;
        }
    };
    *counted += 1;
    state.bindings.insert(row.chat.clone(), binding);
}

mod members;
#[cfg(test)]
mod tests;
