//! Carries selections out: asks [`super::select`], reserves, waits for a change, binds, and takes back what failed.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;

use super::{
    command::{Command, Reply},
    errors::{ProposeError, SelectError},
    handle::{Broker, Pending},
    limits::BIND_ROUNDS_MAX,
    select::{self, Decision, How, Missing, OnDefault, Purpose, Wish},
    shared::Undo,
    volatile::{Bound, Change, Mode},
    writer::{Hold, Job, Message},
};
use crate::ids::{Conversation, SessionId};

/// A request for a session.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Whose request; `None` for a stateless caller.
    pub conversation: Option<&'a Conversation>,
    /// The session the caller named.
    pub session: Option<SessionId>,
    /// What for.
    pub purpose: Purpose,
}

/// A chosen session.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    /// The session, online when chosen.
    pub session: SessionId,
    /// How it was found.
    pub how: How,
    /// What this selection changed (the default, or a participation window), for [`Broker::rollback`] when the `init`
    /// that asked fails.
    pub bound: Option<Bound>,
    /// Advice on taking part: for `init`, and when an operation made the conversation's first default.
    pub mode: Option<Mode>,
}

impl Broker {
    /// Chooses the session for a request (behaviour 6.1), waiting up to [`super::Settings::offline_wait`]; binds it where the
    /// rules say so. Dropping the future releases what it reserved and takes an unfinished bind back.
    ///
    /// # Errors
    /// [`SelectError`]; nothing is bound then.
    pub async fn select(&self, ask: Ask<'_>) -> Result<Selection, SelectError> {
        let deadline = tokio::time::Instant::now() + self.settings.offline_wait;
        let mut changed = self.shared.changed.subscribe();
        let mut rounds = 0;
        loop {
            changed.borrow_and_update();
            match self.step(&ask)? {
                Step::Chosen(selection) => return Ok(selection),
                Step::Wait(missing) => {
                    if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                        return Err(missing.into_error(self.settings.offline_wait));
                    }
                }
                Step::Bind { chat, pending, session, how } => match pending.wait().await? {
                    Reply::Bound { revision, previous } => {
                        let change = Change::Saved { revision, previous };
                        return Ok(self.finish(&Conversation::Chat(chat), session, how, Some(change), true));
                    }
                    Reply::Full { what, limit } => return Err(ProposeError::Full { what, limit }.into()),
                    _ if rounds >= BIND_ROUNDS_MAX => return Err(SelectError::Contended),
                    _ => rounds += 1,
                },
            }
        }
    }

    /// Takes back what a selection changed, unless the default was used or changed since. Returns once that is on disk,
    /// or after [`super::Settings::offline_wait`] when the store does not take it; it is then done later.
    pub async fn rollback(&self, bound: Bound) {
        let conversation = bound.conversation;
        let mut changed = self.shared.changed.subscribe();
        {
            let volatile = &mut self.shared.memory().volatile;
            if let Some(end) = bound.window {
                volatile.close_window(&conversation, &bound.session, end);
            }
            if volatile.last_use(&conversation) != bound.seq {
                return;
            }
            if let (Conversation::Connection(id), Some(Change::Held { revision, previous })) =
                (&conversation, &bound.change)
            {
                volatile.unhold(id, *revision, previous.clone());
            }
        }
        self.shared.wake();
        let (Conversation::Chat(chat), Some(Change::Saved { revision, previous })) = (&conversation, bound.change)
        else {
            return;
        };
        let command = Command::Restore { chat: chat.clone(), revision, previous };
        self.shared.push_undo(Undo { command, conversation: Some(conversation.clone()), open: None });
        // A full queue needs no wake-up: the writer looks at the list with every batch.
        if let Err(TrySendError::Closed(_)) = self.jobs.try_send(Message::Wake) {
            return;
        }
        let undone = async {
            while self.shared.memory().volatile.undoing(&conversation) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(self.settings.offline_wait, undone).await;
    }

    /// The session for `history`: the named one or the default, online within [`super::Settings::offline_wait`]. Never binds.
    ///
    /// # Errors
    /// [`SelectError`].
    pub async fn target(
        &self,
        conversation: Option<&Conversation>,
        session: Option<SessionId>,
    ) -> Result<SessionId, SelectError> {
        let deadline = tokio::time::Instant::now() + self.settings.offline_wait;
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let decision = {
                let (state, memory) = (self.shared.state(), self.shared.memory());
                let now = self.shared.now(&memory);
                select::decide_target(&state, &memory.volatile, conversation, session.as_ref(), now)
            };
            match decision {
                Decision::Use { session, .. } => return Ok(session),
                Decision::Refuse(refusal) => return Err(refusal.into()),
                Decision::Wait(missing) => {
                    if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                        return Err(missing.into_error(self.settings.offline_wait));
                    }
                }
            }
        }
    }
}

/// What one look at the state led to.
enum Step {
    Chosen(Selection),
    Wait(Missing),
    Bind { chat: String, pending: Box<Pending>, session: SessionId, how: How },
}

/// What a bind carries: the session it holds, and the conversation's last use before it.
struct Reservation {
    seq: u64,
    hold: Option<Hold>,
}

impl Broker {
    fn step(&self, ask: &Ask<'_>) -> Result<Step, SelectError> {
        let (decision, reservation) = self.decide(ask);
        let (session, how, default) = match decision {
            Decision::Wait(missing) => return Ok(Step::Wait(missing)),
            Decision::Refuse(refusal) => return Err(refusal.into()),
            Decision::Use { session, how, default } => (session, how, default),
        };
        match (ask.conversation, default) {
            (None, _) | (_, OnDefault::Leave) => Ok(Step::Chosen(Selection { session, how, bound: None, mode: None })),
            (Some(conversation), OnDefault::Use) => {
                self.touch_when_due(conversation);
                let init = ask.purpose == Purpose::Init;
                Ok(Step::Chosen(self.finish(conversation, session, how, None, init)))
            }
            (Some(conversation @ Conversation::Connection(id)), OnDefault::Make { .. }) => {
                let change = self.shared.memory().volatile.hold(id, &session);
                Ok(Step::Chosen(self.finish(conversation, session, how, Some(change), true)))
            }
            (Some(Conversation::Chat(chat)), OnDefault::Make { expected }) => {
                let command = Command::Bind { chat: chat.clone(), session: session.clone(), expected };
                let pending = Box::new(self.submit(command, reservation.seq, reservation.hold)?);
                Ok(Step::Bind { chat: chat.clone(), pending, session, how })
            }
        }
    }

    /// Decides, and reserves a session that is to be bound before anything is awaited.
    fn decide(&self, ask: &Ask<'_>) -> (Decision, Reservation) {
        let wish = Wish { conversation: ask.conversation, session: ask.session.as_ref(), purpose: ask.purpose };
        let (state, mut memory) = (self.shared.state(), self.shared.memory());
        let now = self.shared.now(&memory);
        let decision = select::decide(&state, &memory.volatile, wish, now);
        let mut reservation = Reservation { seq: 0, hold: None };
        if let Decision::Use { session, default: OnDefault::Make { .. }, .. } = &decision
            && let Some(conversation @ Conversation::Chat(_)) = ask.conversation
        {
            reservation.seq = memory.volatile.last_use(conversation);
            // `false`: the conversation has reserved another session already; an explicit choice needs none.
            if memory.volatile.reserve(conversation, session) {
                let shared = Arc::clone(&self.shared);
                reservation.hold = Some(Hold { shared, conversation: conversation.clone() });
            }
        }
        (decision, reservation)
    }

    /// Ends a selection: counts the use of the default and, when `advise`, takes part.
    fn finish(
        &self,
        conversation: &Conversation,
        session: SessionId,
        how: How,
        change: Option<Change>,
        advise: bool,
    ) -> Selection {
        let mut memory = self.shared.memory();
        let now = self.shared.now(&memory);
        let seq = memory.volatile.note_use(conversation, now);
        let mut mode = None;
        let mut window = None;
        if advise {
            let (found, opened) = memory.volatile.participate(conversation, &session, now, self.cooldown_ms());
            (mode, window) = (Some(found), opened);
        }
        let changed = change.is_some() || window.is_some();
        let bound = changed.then(|| Bound {
            conversation: conversation.clone(),
            session: session.clone(),
            change,
            seq,
            window,
        });
        Selection { session, how, bound, mode }
    }

    /// Writes the use of a saved default once a day, without waiting: a full disk must not stop a reading tool.
    fn touch_when_due(&self, conversation: &Conversation) {
        let Conversation::Chat(chat) = conversation else { return };
        let touch = {
            let (state, mut memory) = (self.shared.state(), self.shared.memory());
            let now = self.shared.now(&memory);
            state.bindings.get(chat).and_then(|binding| {
                memory
                    .volatile
                    .wants_touch(conversation, binding.last_used, now)
                    .then(|| Command::Touch { chat: chat.clone(), revision: binding.revision })
            })
        };
        if let Some(command) = touch {
            let _ = self.jobs.try_send(Message::Propose(Box::new(Job {
                command,
                answer: None,
                seq: 0,
                hold: None,
                open: None,
            })));
        }
    }
}
