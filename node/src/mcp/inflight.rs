//! Calls that a later `notifications/cancelled` may name. JSON-RPC ids mean something only inside their connection, so a
//! call is filed under the scopes it can be named from: its MCP session, its stdio connection, its chat.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::ids::Conversation;

/// Where a cancellation comes from, and so which calls its request id can mean.
pub(super) type Scope = Conversation;

/// The calls of one door that can be cancelled. As many as there are calls running, which the doors bound.
#[derive(Default)]
pub(super) struct Inflight {
    calls: Mutex<HashMap<(Scope, String), Vec<CancellationToken>>>,
}

/// Keeps one call filed; dropping it takes the call off.
pub(super) struct Registration {
    inflight: Arc<Inflight>,
    keys: Vec<(Scope, String)>,
    token: CancellationToken,
}

impl Inflight {
    /// Files a call with JSON-RPC id `id` under `scopes`; `token` fires when it is cancelled.
    pub(super) fn register(self: &Arc<Self>, scopes: Vec<Scope>, id: &Value, token: CancellationToken) -> Registration {
        let keys: Vec<_> = scopes.into_iter().map(|scope| (scope, id.to_string())).collect();
        let mut calls = self.lock();
        for key in &keys {
            calls.entry(key.clone()).or_default().push(token.clone());
        }
        drop(calls);
        Registration { inflight: self.clone(), keys, token }
    }

    /// Cancels the call `id` of `scope`. In a chat, whose MCP sessions all count from the same number, an id that two
    /// calls share names neither. True when something was cancelled.
    pub(super) fn cancel(&self, scope: &Scope, id: &Value) -> bool {
        let calls = self.lock();
        let Some(tokens) = calls.get(&(scope.clone(), id.to_string())) else {
            return false;
        };
        if matches!(scope, Conversation::Chat(_)) && tokens.len() > 1 {
            tracing::debug!(calls = tokens.len(), "ambiguous cancellation ignored");
            return false;
        }
        let tokens = tokens.clone();
        drop(calls);
        tokens.iter().for_each(CancellationToken::cancel);
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Scope, String), Vec<CancellationToken>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut calls = self.inflight.lock();
        for key in &self.keys {
            if let Some(tokens) = calls.get_mut(key) {
                if let Some(at) = tokens.iter().position(|token| *token == self.token) {
                    tokens.swap_remove(at);
                }
                if tokens.is_empty() {
                    calls.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn connection(name: &str) -> Scope {
        Conversation::Connection(name.to_owned())
    }

    fn chat(name: &str) -> Scope {
        Conversation::Chat(name.to_owned())
    }

    #[test]
    fn f4_a_cancellation_reaches_the_call_of_its_own_connection_only() {
        let inflight = Arc::new(Inflight::default());
        let (a, b) = (CancellationToken::new(), CancellationToken::new());
        let _a = inflight.register(vec![connection("a")], &json!(1), a.clone());
        let _b = inflight.register(vec![connection("b")], &json!(1), b.clone());
        assert!(inflight.cancel(&connection("a"), &json!(1)));
        assert!(a.is_cancelled() && !b.is_cancelled());
    }

    #[test]
    fn the_number_1_and_the_string_1_are_two_ids() {
        let inflight = Arc::new(Inflight::default());
        let token = CancellationToken::new();
        let _call = inflight.register(vec![connection("a")], &json!("1"), token.clone());
        assert!(!inflight.cancel(&connection("a"), &json!(1)));
        assert!(!token.is_cancelled());
    }

    #[test]
    fn a_finished_call_is_off_the_list() {
        let inflight = Arc::new(Inflight::default());
        let call = inflight.register(vec![connection("a"), chat("c")], &json!(1), CancellationToken::new());
        drop(call);
        assert!(!inflight.cancel(&connection("a"), &json!(1)));
        assert!(inflight.lock().is_empty());
    }

    #[test]
    fn in_a_chat_an_id_shared_by_two_calls_names_neither_until_one_is_done() {
        let inflight = Arc::new(Inflight::default());
        let (a, b) = (CancellationToken::new(), CancellationToken::new());
        let first = inflight.register(vec![chat("c")], &json!(1), a.clone());
        let _second = inflight.register(vec![chat("c")], &json!(1), b.clone());
        assert!(!inflight.cancel(&chat("c"), &json!(1)));
        drop(first);
        assert!(inflight.cancel(&chat("c"), &json!(1)));
        assert!(!a.is_cancelled() && b.is_cancelled());
    }

    #[test]
    fn in_a_session_a_duplicate_delivery_is_cancelled_with_the_first() {
        let inflight = Arc::new(Inflight::default());
        let (a, b) = (CancellationToken::new(), CancellationToken::new());
        let _a = inflight.register(vec![connection("s")], &json!(1), a.clone());
        let _b = inflight.register(vec![connection("s")], &json!(1), b.clone());
        assert!(inflight.cancel(&connection("s"), &json!(1)));
        assert!(a.is_cancelled() && b.is_cancelled());
    }
}
