//! Look-ups over the state and what memory adds to it. Pure.

use std::collections::BTreeMap;

use super::{
    merge::{Belongings, BroughtBinding, BroughtDelivery},
    receipts::Receipt,
    state::{Binding, Delivered, State},
    volatile::Volatile,
};
use crate::ids::{Conversation, Millis, SessionId};

/// The saved binding of a chat, unless idle for more than 30 days.
#[must_use]
pub fn saved<'a>(state: &'a State, volatile: &Volatile, chat: &str, now: Millis) -> Option<&'a Binding> {
    let seen = volatile.seen_at(&Conversation::Chat(chat.to_owned()));
    state.bindings.get(chat).filter(|binding| !binding.expired(seen, now))
}

/// The default session of a conversation: saved for a chat, in memory for a connection.
#[must_use]
pub fn default_of(state: &State, volatile: &Volatile, conversation: &Conversation, now: Millis) -> Option<SessionId> {
    match conversation {
        Conversation::Chat(chat) => saved(state, volatile, chat, now).map(|binding| binding.session.clone()),
        Conversation::Connection(id) => volatile.connection(id).map(|held| held.session.clone()),
    }
}

/// Saved bindings of each session that has any, without idle ones.
#[must_use]
pub fn counts(state: &State, volatile: &Volatile, now: Millis) -> BTreeMap<SessionId, usize> {
    let mut counts = BTreeMap::<&SessionId, usize>::new();
    for (_, binding) in state.bindings.iter().filter(|(chat, binding)| live(state, volatile, chat, binding, now)) {
        *counts.entry(&binding.session).or_default() += 1;
    }
    counts.into_iter().map(|(session, count)| (session.clone(), count)).collect()
}

/// Whether any chat has `session` saved, without idle ones. Looks at that session's rows only.
#[must_use]
pub fn bound(state: &State, volatile: &Volatile, session: &SessionId, now: Millis) -> bool {
    let live = |chat: &String| state.bindings.get(chat).is_some_and(|row| live(state, volatile, chat, row, now));
    state.bindings.chats_of(session).any(live)
}

/// Memory is only asked for the few rows that its word could save.
fn live(state: &State, volatile: &Volatile, chat: &str, binding: &Binding, now: Millis) -> bool {
    !binding.expired(None, now) || saved(state, volatile, chat, now).is_some()
}

/// All receipts, the newest first; expired ones are left out.
#[must_use]
pub fn receipts(state: &State, now: Millis) -> Vec<Receipt> {
    let mut found: Vec<&Receipt> = state.receipts.values().filter(|receipt| !receipt.expired(now)).collect();
    found.sort_by(|a, b| (b.created, &b.key).cmp(&(a.created, &a.key)));
    found.into_iter().cloned().collect()
}

/// What this mesh would bring along when it joins another one (F18), counted in mesh time `now`.
#[must_use]
pub fn belongings(state: &State, volatile: &Volatile, now: Millis) -> Belongings {
    let binding = |(chat, binding): (&String, &Binding)| {
        let seen = volatile.seen_at(&Conversation::Chat(chat.clone())).unwrap_or_default();
        (!binding.expired(Some(seen), now)).then(|| BroughtBinding {
            chat: chat.clone(),
            session: binding.session.clone(),
            last_used: binding.last_used.max(seen),
            idle_from: binding.idle_from.max(seen),
        })
    };
    let delivery = |(id, delivered): (&String, &Delivered)| BroughtDelivery {
        id: id.clone(),
        conversation: delivered.conversation.clone(),
        at: delivered.at,
    };
    Belongings {
        at: now,
        bindings: state.bindings.iter().filter_map(binding).collect(),
        receipts: state.receipts.values().filter(|receipt| !receipt.expired(now)).cloned().collect(),
        delivered: state.delivered.iter().map(delivery).collect(),
    }
}

/// Those of `ids` that were not yet delivered to `conversation`, in their order.
#[must_use]
pub fn undelivered(state: &State, conversation: &Conversation, ids: &[String]) -> Vec<String> {
    let key = conversation.key();
    let open = |id: &&String| state.delivered.get(*id).is_none_or(|delivered| delivered.conversation != key);
    ids.iter().filter(open).cloned().collect()
}
