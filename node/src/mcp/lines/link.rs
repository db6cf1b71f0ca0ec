//! What the reading and the writing half of a line connection share: its open requests and its fault.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rmcp::model::ServerJsonRpcMessage;
use serde_json::Value;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::LinesError;
use crate::mcp::{
    exchange::Exchange,
    inflight::{Inflight, Scope},
    refusal::Refusal,
};

/// Requests of one connection in flight at once. A client that does not read its answers stops here.
const REQUESTS_MAX: usize = 512;

/// One connection.
pub(super) struct Link {
    connection: Scope,
    inflight: Arc<Inflight>,
    /// Requests read and not yet answered, by the JSON of their id.
    open: Mutex<HashMap<String, Open>>,
    /// Counts requests until their answer is flushed.
    pub(super) unanswered: TaskTracker,
    /// Fires when no more answers can or need be written.
    pub(super) unanswerable: CancellationToken,
    fault: Mutex<Option<LinesError>>,
}

/// A request that is not answered yet.
pub(super) struct Open {
    pub(super) exchange: Arc<Exchange>,
    pub(super) token: TaskTrackerToken,
}

impl Link {
    pub(super) fn new(connection: Scope) -> Self {
        let unanswered = TaskTracker::new();
        unanswered.close();
        Self {
            connection,
            inflight: Arc::default(),
            open: Mutex::default(),
            unanswered,
            unanswerable: CancellationToken::new(),
            fault: Mutex::default(),
        }
    }

    /// Takes a request in, or says why not.
    pub(super) fn admit(&self, id: &Value) -> Result<Arc<Exchange>, Refusal> {
        let mut open = self.open();
        if open.contains_key(&id.to_string()) {
            return Err(Refusal::invalid_message("its id is in use by a request that is not answered yet", id.clone()));
        }
        if open.len() >= REQUESTS_MAX {
            let detail = format!("{REQUESTS_MAX} requests are in flight; wait for an answer first");
            return Err(Refusal::invalid_message(&detail, id.clone()));
        }
        let cancelled = CancellationToken::new();
        let exchange = Arc::new(Exchange {
            connection: Some(self.connection.clone()),
            registration: Some(self.inflight.register(vec![self.connection.clone()], id, cancelled.clone())),
            cancelled,
            unanswerable: self.unanswerable.clone(),
            ..Exchange::default()
        });
        open.insert(id.to_string(), Open { exchange: exchange.clone(), token: self.unanswered.token() });
        Ok(exchange)
    }

    /// Cancels a request. rmcp drops the answer of a cancelled request, so nothing waits for it either.
    pub(super) fn cancel(&self, id: &Value) {
        if self.inflight.cancel(&self.connection, id) {
            let closed = self.open().remove(&id.to_string());
            drop(closed);
        }
    }

    /// The request that `message` answers, if it does and the request is still open.
    pub(super) fn close(&self, message: &ServerJsonRpcMessage) -> Option<Open> {
        let id = match message {
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => None,
        };
        let key = id?.clone().into_json_value().to_string();
        self.open().remove(&key)
    }

    /// Records the first fault and ends the connection. A client that closed its end is no fault.
    pub(super) fn fail(&self, error: LinesError) {
        let (LinesError::Read(io) | LinesError::Write(io)) = &error else {
            return;
        };
        if !matches!(io.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        self.unanswerable.cancel();
    }

    pub(super) fn fault(&self) -> Option<LinesError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
