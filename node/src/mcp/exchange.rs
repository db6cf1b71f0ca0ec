//! One request and its answer, seen from the transport: who it comes from, how it is cancelled, and the [`Ticket`] on its
//! way from the handler to the bytes. It travels inside rmcp's request extensions, which rmcp carries without looking.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

use http::{HeaderMap, request::Parts};
use rmcp::model::{Extensions, RequestMetaObject};
use tokio_util::sync::CancellationToken;

use super::{body::Room, caller, inflight::Registration, sessions::Session};
use crate::{
    ids::Conversation,
    tools::{Caller, Ticket},
};

/// One request being served. Lives until both the answer is out and the call has ended, whichever comes last.
#[derive(Default)]
pub(super) struct Exchange {
    /// The chat a header names.
    pub(super) header_chat: Option<String>,
    /// The host's request id a header names.
    pub(super) header_request: Option<String>,
    /// The conversation when no chat is named.
    pub(super) connection: Option<Conversation>,
    /// Held so that the session counts as in use while the call runs.
    pub(super) session: Option<Arc<Session>>,
    /// What its body takes up, until it is decoded.
    pub(super) room: Mutex<Option<Room>>,
    /// Fires for the client's own cancellation only (F4).
    pub(super) cancelled: CancellationToken,
    /// Fires when nobody is left to answer, so that a handler need not wait for its call.
    pub(super) unanswerable: CancellationToken,
    /// Whether it was an `initialize` that succeeded.
    pub(super) shook_hands: AtomicBool,
    /// Keeps the call where a cancellation finds it.
    pub(super) registration: Option<Registration>,
    /// What the handler left for the transport.
    pub(super) ticket: Mutex<Option<Ticket>>,
}

impl Exchange {
    /// What the headers of an HTTP request say about who asks.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        Self {
            header_chat: caller::chat_in_headers(headers),
            header_request: caller::request_in_headers(headers),
            ..Self::default()
        }
    }

    /// The exchange that a transport put into the request, directly (lines) or beside the headers (HTTP).
    pub(super) fn of(extensions: &Extensions) -> Arc<Self> {
        let direct = extensions.get::<Arc<Self>>();
        let found = direct.or_else(|| extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Arc<Self>>()));
        found.cloned().unwrap_or_default()
    }

    /// Who asks.
    pub(super) fn caller(&self, meta: &RequestMetaObject) -> Caller {
        let chat = caller::chat_in_meta(meta).or_else(|| self.header_chat.clone());
        Caller {
            conversation: chat.map(Conversation::Chat).or_else(|| self.connection.clone()),
            request_id: caller::request_in_meta(meta).or_else(|| self.header_request.clone()),
            preferred: None,
        }
    }

    /// The request is decoded: its body's room is free.
    pub(super) fn decoded(&self) {
        drop(self.room.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Leaves the ticket for the transport. A client that cancelled ignores the answer, so it counts as not received.
    pub(super) fn leave_ticket(&self, ticket: Ticket) {
        if !self.cancelled.is_cancelled() {
            *self.ticket.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
        }
    }

    /// Takes the ticket that the handler left, unless the client cancelled meanwhile.
    pub(super) fn take_ticket(&self) -> Option<Ticket> {
        let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (!self.cancelled.is_cancelled()).then_some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use serde_json::json;

    use super::*;

    fn meta(value: serde_json::Value) -> RequestMetaObject {
        RequestMetaObject::from(value.as_object().cloned().unwrap())
    }

    #[test]
    fn the_chat_in_meta_wins_over_the_header_and_the_connection() {
        let exchange = Exchange {
            header_chat: Some("header".to_owned()),
            header_request: Some("wfr_header".to_owned()),
            connection: Some(Conversation::Connection("mcp:s".to_owned())),
            ..Exchange::default()
        };
        let named = exchange.caller(&meta(json!({"openai/session": "meta", "otunnel/requestId": "wfr_meta"})));
        assert_eq!(named.conversation, Some(Conversation::Chat("meta".to_owned())));
        assert_eq!(named.request_id.as_deref(), Some("wfr_meta"));
        let unnamed = exchange.caller(&meta(json!({"openai/session": ""})));
        assert_eq!(unnamed.conversation, Some(Conversation::Chat("header".to_owned())));
        assert_eq!(unnamed.request_id.as_deref(), Some("wfr_header"));
    }

    #[test]
    fn without_a_chat_the_connection_is_the_conversation_and_without_that_there_is_none() {
        let connection = Some(Conversation::Connection("mcp:s".to_owned()));
        let exchange = Exchange { connection: connection.clone(), ..Exchange::default() };
        assert_eq!(exchange.caller(&meta(json!({}))).conversation, connection);
        assert_eq!(Exchange::default().caller(&meta(json!({}))), Caller::default());
    }

    #[test]
    fn f7_the_ticket_of_a_cancelled_request_is_never_written() {
        for cancel_first in [true, false] {
            let (tx, rx) = mpsc::channel();
            let exchange = Exchange::default();
            if cancel_first {
                exchange.cancelled.cancel();
            }
            exchange.leave_ticket(Ticket::new(move |written| tx.send(written).unwrap()));
            exchange.cancelled.cancel();
            assert!(exchange.take_ticket().is_none());
            assert_eq!(rx.try_recv(), Ok(false));
        }
    }
}
