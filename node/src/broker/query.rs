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
    let count = |session: &SessionId| live(state, volatile, session, now).count();
    let sessions = state.bindings.by_session().map(|(session, _)| (session.clone(), count(session)));
    sessions.filter(|(_, count)| *count > 0).collect()
}

/// Whether any chat has `session` saved, without idle ones. Looks at that session's rows only.
#[must_use]
pub fn bound(state: &State, volatile: &Volatile, session: &SessionId, now: Millis) -> bool {
    live(state, volatile, session, now).next().is_some()
}

fn live<'a>(
    state: &'a State,
    volatile: &'a Volatile,
    session: &SessionId,
    now: Millis,
) -> impl Iterator<Item = &'a Binding> {
    let live = move |chat: &'a String| {
        let binding = state.bindings.get(chat)?;
        // Memory is only asked for the few rows that its word could save.
        let live = !binding.expired(None, now) || saved(state, volatile, chat, now).is_some();
        live.then_some(binding)
    };
    state.bindings.chats_of(session).filter_map(live)
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
