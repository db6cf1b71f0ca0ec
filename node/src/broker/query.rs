//! Look-ups over the state and what memory adds to it. Pure.

use std::collections::BTreeMap;

use super::{
    receipts::Receipt,
    state::{Binding, State},
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
    let mut counts = BTreeMap::new();
    for (chat, binding) in &state.bindings {
        // Memory is only asked for the few rows that its word could save.
        let live = !binding.expired(None, now) || saved(state, volatile, chat, now).is_some();
        if live {
            *counts.entry(binding.session.clone()).or_default() += 1;
        }
    }
    counts
}

/// All receipts, the newest first; expired ones are left out.
#[must_use]
pub fn receipts(state: &State, now: Millis) -> Vec<Receipt> {
    let mut found: Vec<&Receipt> = state.receipts.values().filter(|receipt| !receipt.expired(now)).collect();
    found.sort_by(|a, b| (b.created, &b.key).cmp(&(a.created, &a.key)));
    found.into_iter().cloned().collect()
}

/// Those of `ids` that were not yet delivered to `conversation`, in their order.
#[must_use]
pub fn undelivered(state: &State, conversation: &Conversation, ids: &[String]) -> Vec<String> {
    let key = conversation.key();
    let open = |id: &&String| state.delivered.get(*id).is_none_or(|delivered| delivered.conversation != key);
    ids.iter().filter(open).cloned().collect()
}
