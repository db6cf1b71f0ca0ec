//! What sessions need of the broker, wherever it is: outcomes are reported there, and it knows which late results were
//! delivered (failure rule F9).

use serde::{Deserialize, Serialize};

use crate::{
    broker::{Broker, ProposeError, ReceiptKey, ReceiptStatus, Settlement},
    host::{BoxFuture, HostKind},
    ids::{CallId, Conversation, Millis, SessionId},
};

/// A session as its node announces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// The name a person gave it.
    pub name: Option<String>,
    /// What runs its tools.
    pub host: HostKind,
    /// The folder with the host's own files, on its device.
    pub agent_dir: String,
    /// Its working folder, on its device; bytes that are no UTF-8 are shown as U+FFFD.
    pub cwd: String,
    /// When it was opened; orders automatic selection.
    pub created: Millis,
    /// Whether an operation is at the host.
    pub executing: bool,
}

/// A receipt that the broker believes to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningReceipt {
    /// Its key.
    pub key: ReceiptKey,
    /// Which attempt.
    pub attempt: u32,
    /// The operation that carries it.
    pub call_id: CallId,
}

/// The broker as a session node sees it. An error says that the word did not arrive, or that it is unknown whether it
/// did: repeat it.
pub trait Office: Send + Sync + 'static {
    /// Reports the outcome of an attempt; see [`Broker::settle`].
    fn settle(&self, key: ReceiptKey, attempt: u32, settlement: Settlement) -> BoxFuture<'_, Result<(), ProposeError>>;
    /// Those of `ids` that the conversation has not had yet.
    fn undelivered(
        &self,
        conversation: Conversation,
        ids: Vec<String>,
    ) -> BoxFuture<'_, Result<Vec<String>, ProposeError>>;
    /// Late results were written to their conversation.
    fn delivered(&self, conversation: Conversation, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>>;
    /// Their owner has deleted these late results.
    fn forget_delivered(&self, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>>;
    /// The receipts of these sessions that are believed to run.
    fn running(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<Vec<RunningReceipt>, ProposeError>>;
    /// The list of this node's sessions changed; does not block.
    fn announce(&self, sessions: Vec<SessionInfo>);
}

impl Office for Broker {
    fn settle(&self, key: ReceiptKey, attempt: u32, settlement: Settlement) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(Self::settle(self, key, attempt, settlement))
    }

    fn undelivered(
        &self,
        conversation: Conversation,
        ids: Vec<String>,
    ) -> BoxFuture<'_, Result<Vec<String>, ProposeError>> {
        let open = Self::undelivered(self, &conversation, &ids);
        Box::pin(std::future::ready(Ok(open)))
    }

    fn delivered(&self, conversation: Conversation, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(async move { Self::delivered(self, &conversation, ids).await })
    }

    fn forget_delivered(&self, ids: Vec<String>) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(Self::forget_delivered(self, ids))
    }

    fn running(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<Vec<RunningReceipt>, ProposeError>> {
        let running = self
            .receipts()
            .into_iter()
            .filter(|receipt| receipt.status == ReceiptStatus::Running && sessions.contains(&receipt.session))
            .map(|receipt| RunningReceipt { key: receipt.key, attempt: receipt.attempt, call_id: receipt.call_id })
            .collect();
        Box::pin(std::future::ready(Ok(running)))
    }

    fn announce(&self, sessions: Vec<SessionInfo>) {
        let announced = sessions.into_iter().map(|info| crate::broker::Announced {
            session: info.id,
            created: info.created,
            cwd: info.cwd.into(),
        });
        Self::announce(self, announced.collect());
    }
}
