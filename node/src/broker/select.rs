//! Which session a request goes to (behaviour 6.1, design section 12). A pure decision over the state and memory; the
//! handle carries it out, waits, and asks again.

use serde::{Deserialize, Serialize};

use super::{query, state::State, volatile::Volatile};
use crate::ids::{Conversation, Millis, SessionId};

/// What the session is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `init`: an explicit session becomes the default.
    Init,
    /// Any other tool: an explicit session is for this operation, and becomes the default only when there is none.
    Operate,
}

/// How the session was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// The caller named it.
    Explicit,
    /// It is the conversation's default.
    Existing,
    /// It was free.
    Automatic,
}

/// A request for a session.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Whose request.
    pub conversation: Option<&'a Conversation>,
    /// The session the caller named.
    pub session: Option<&'a SessionId>,
    /// What for.
    pub purpose: Purpose,
}

/// What to do about the conversation's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDefault {
    /// Nothing: another one stands, or there is no conversation.
    Leave,
    /// It is this session: that is a use.
    Use,
    /// Make this session the default, if the saved row still has this revision (`None`: there is no row).
    Make {
        /// Revision seen.
        expected: Option<u64>,
    },
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go there.
    Use {
        /// The session, online now.
        session: SessionId,
        /// How it was found.
        how: How,
        /// What to do about the default.
        default: OnDefault,
    },
    /// Wait for a change, up to the limit.
    Wait(Missing),
    /// No waiting helps.
    Refuse(Refusal),
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The named session is not online.
    Named(SessionId),
    /// The saved default is not online; it is never replaced.
    SavedDefault(SessionId),
    /// No session is free.
    Free {
        /// Sessions online.
        online: usize,
    },
    /// A failed selection of this conversation is being taken back.
    Undo,
}

/// Why no session can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `init` without a conversation to bind.
    InitWithoutConversation,
    /// Neither a session nor a conversation was named.
    NoTarget,
    /// The conversation has no default, and no session is named.
    NoDefault,
}

/// Decides where a request goes. Selection order is (creation stamp, id) of the session (F13).
#[must_use]
pub fn decide(state: &State, volatile: &Volatile, wish: Wish<'_>, now: Millis) -> Decision {
    let Some(conversation) = wish.conversation else { return decide_stateless(volatile, wish) };
    if volatile.undoing(conversation) {
        return Decision::Wait(Missing::Undo);
    }
    let current = query::default_of(state, volatile, conversation, now);
    let make = OnDefault::Make { expected: row_revision(state, conversation) };
    match (wish.session, current) {
        (Some(named), current) => {
            if !volatile.online(named) {
                return Decision::Wait(Missing::Named(named.clone()));
            }
            let default = match current {
                Some(current) if current == *named => OnDefault::Use,
                Some(_) if wish.purpose == Purpose::Operate => OnDefault::Leave,
                _ => make,
            };
            Decision::Use { session: named.clone(), how: How::Explicit, default }
        }
        (None, Some(current)) if volatile.online(&current) => {
            Decision::Use { session: current, how: How::Existing, default: OnDefault::Use }
        }
        (None, Some(current)) => Decision::Wait(Missing::SavedDefault(current)),
        (None, None) => match free(state, volatile, conversation, now) {
            Some(session) => Decision::Use { session, how: How::Automatic, default: make },
            None => Decision::Wait(Missing::Free { online: volatile.count() }),
        },
    }
}

/// Decides for `history`: the named session or the default, never a free one, and nothing is bound.
#[must_use]
pub fn decide_target(
    state: &State,
    volatile: &Volatile,
    conversation: Option<&Conversation>,
    session: Option<&SessionId>,
    now: Millis,
) -> Decision {
    let default = || conversation.and_then(|whose| query::default_of(state, volatile, whose, now));
    let (target, how) = match session {
        Some(named) => (named.clone(), How::Explicit),
        None => match default() {
            Some(current) => (current, How::Existing),
            None if conversation.is_none() => return Decision::Refuse(Refusal::NoTarget),
            None => return Decision::Refuse(Refusal::NoDefault),
        },
    };
    match (volatile.online(&target), how) {
        (true, how) => Decision::Use { session: target, how, default: OnDefault::Leave },
        (false, How::Explicit) => Decision::Wait(Missing::Named(target)),
        (false, _) => Decision::Wait(Missing::SavedDefault(target)),
    }
}

fn decide_stateless(volatile: &Volatile, wish: Wish<'_>) -> Decision {
    match (wish.session, wish.purpose) {
        (_, Purpose::Init) => Decision::Refuse(Refusal::InitWithoutConversation),
        (None, Purpose::Operate) => Decision::Refuse(Refusal::NoTarget),
        (Some(named), Purpose::Operate) if volatile.online(named) => {
            Decision::Use { session: named.clone(), how: How::Explicit, default: OnDefault::Leave }
        }
        (Some(named), Purpose::Operate) => Decision::Wait(Missing::Named(named.clone())),
    }
}

fn row_revision(state: &State, conversation: &Conversation) -> Option<u64> {
    match conversation {
        Conversation::Chat(chat) => state.bindings.get(chat).map(|binding| binding.revision),
        Conversation::Connection(_) => None,
    }
}

/// The first online session that no chat has saved and no other conversation's selection has reserved; the one this
/// conversation reserved already, if any. One that is only a connection's default is taken when nothing else is free: a
/// connection may be gone without having said so.
fn free(state: &State, volatile: &Volatile, conversation: &Conversation, now: Millis) -> Option<SessionId> {
    if let Some(reserved) = volatile.reserved_by(conversation).filter(|session| volatile.online(session)) {
        return Some(reserved.clone());
    }
    let taken = volatile.reserved_by_others(conversation);
    let held = volatile.held_by_connections(conversation);
    // Each session is looked at once, and none after the first that is free in every way.
    let mut second = None;
    for session in volatile.in_order() {
        if taken.contains(session) || query::bound(state, volatile, session, now) {
            continue;
        }
        if !held.contains(session) {
            return Some(session.clone());
        }
        second = second.or(Some(session));
    }
    second.cloned()
}
