//! Where each conversation's last call went, as a door remembers it to propose the same again (failure rule F1). Losing one
//! costs a round trip. Pure.

use std::collections::BTreeMap;

use crate::ids::{Conversation, SessionId};

/// Conversations that are remembered; the one unused for longest goes first. About 1 MiB in all.
const PINS_MAX: usize = 4_096;

/// The last pins.
#[derive(Debug, Default)]
pub(super) struct Pins {
    uses: u64,
    pins: BTreeMap<Conversation, (SessionId, u64)>,
    /// The same by last use.
    order: BTreeMap<u64, Conversation>,
}

impl Pins {
    /// Notes where a call of `conversation` goes.
    pub(super) fn note(&mut self, conversation: &Conversation, session: SessionId) {
        self.uses += 1;
        if let Some((_, used)) = self.pins.insert(conversation.clone(), (session, self.uses)) {
            self.order.remove(&used);
        }
        self.order.insert(self.uses, conversation.clone());
        if self.pins.len() > PINS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.pins.remove(&oldest);
        }
    }

    /// Where its last call went.
    pub(super) fn last(&self, conversation: &Conversation) -> Option<SessionId> {
        self.pins.get(conversation).map(|(session, _)| session.clone())
    }

    /// A connection ended.
    pub(super) fn forget(&mut self, conversation: &Conversation) {
        if let Some((_, used)) = self.pins.remove(conversation) {
            self.order.remove(&used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(number: usize) -> Conversation {
        Conversation::Chat(number.to_string())
    }

    #[test]
    fn the_least_used_conversation_is_forgotten_first() {
        let mut pins = Pins::default();
        for number in 0..PINS_MAX {
            pins.note(&chat(number), "a".into());
        }
        pins.note(&chat(0), "b".into());
        pins.note(&chat(PINS_MAX), "c".into());
        assert_eq!(pins.last(&chat(0)), Some("b".into()));
        assert_eq!(pins.last(&chat(1)), None);
        assert_eq!(pins.last(&chat(PINS_MAX)), Some("c".into()));
        pins.forget(&chat(0));
        assert_eq!((pins.last(&chat(0)), pins.pins.len(), pins.order.len()), (None, PINS_MAX - 1, PINS_MAX - 1));
    }
}
