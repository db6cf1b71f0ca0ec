//! The native sessions of this node: directory, queue, operation journal, inputs, history waits. The common machinery
//! around a [`Host`]; it knows the broker only as its [`Office`], and nothing of MCP.

pub mod entry;
pub mod history;
pub mod journal;
pub mod office;
pub mod operations;
mod oversize;
mod reannounce;
mod recovery;
pub mod riders;
pub mod session;
mod tenure;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    host::Host,
    ids::{Conversation, SessionId},
    storage::node::{Change, Key, NodeStore, StoreError},
};

pub use journal::{Ended, Outcome, ReceiptClaim};
pub use office::{Office, RunningReceipt, SessionInfo};
pub use operations::{
    Held, LateResult, Operation, Operations, PAYLOAD_GONE, Progress, Recalled, ReconcileError, RunHandle, Standing,
    Work,
};
pub use reannounce::OutcomePage;
pub use session::{Input, Record, Session, SessionError};
pub use tenure::{Fenced, Tenure};

/// Sessions a node serves. Each costs a task and its host; a person has a handful, a script gone wild is stopped here.
const SESSIONS_MAX: usize = 256;
/// The longest name of a session, bytes.
const NAME_MAX: usize = 128;
/// How long an ended session's rows stay, so that a mistaken `session end` loses nothing at once.
const ENDED_KEPT_MS: u64 = 30 * 24 * 3_600_000;

/// Makes the host of a session.
pub type HostFactory = Arc<dyn Fn(&Record) -> Arc<dyn Host> + Send + Sync>;

/// Why a session was not opened or found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The folder is not there or is no folder.
    #[error("{path} is no usable working folder: {cause}; name an existing folder")]
    Folder {
        /// As given.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The name cannot be used.
    #[error("a session name has 1 to {NAME_MAX} bytes without control characters; found {0:?}")]
    Name(String),
    /// There are too many.
    #[error("this node serves {SESSIONS_MAX} sessions already; end one with `chappie session end` first")]
    Full,
    /// The word fits none.
    #[error("no session {word:?} on this node; there are: {known}")]
    Unknown {
        /// What was asked for.
        word: String,
        /// What there is.
        known: String,
    },
    /// The word fits several.
    #[error("{}several sessions fit: {known}; name one by its id, the start of its id, or its name", named(word))]
    Ambiguous {
        /// What was asked for.
        word: String,
        /// Those it fits.
        known: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Handle to the node's sessions.
pub struct Sessions {
    home: PathBuf,
    store: NodeStore,
    office: Arc<dyn Office>,
    operations: Arc<Operations>,
    factory: HostFactory,
    live: RwLock<BTreeMap<SessionId, Arc<Session>>>,
    tenure: tenure::Seen,
    /// One squaring with the broker at a time.
    reconciling: tokio::sync::Mutex<()>,
}

impl Sessions {
    /// Takes up every session that did not end, recovers the journal, and announces the sessions. It does not wait for
    /// the broker: what needs it is [`Sessions::reconcile`]'s.
    ///
    /// # Errors
    /// The store's.
    pub async fn open(
        home: &Path,
        store: NodeStore,
        office: Arc<dyn Office>,
        factory: HostFactory,
        stopping: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let operations = Operations::new(store.clone(), Arc::clone(&office), stopping);
        let sessions = Arc::new(Self {
            home: home.to_owned(),
            tenure: tenure::Seen::load(&store)?,
            store,
            office,
            operations,
            factory,
            live: RwLock::new(BTreeMap::new()),
            reconciling: tokio::sync::Mutex::default(),
        });
        let now = clock::now();
        let (from, to) = Key::sessions();
        let mut records: Vec<Record> = Vec::new();
        sessions.store.scan::<Record>(&from, &to, false, |_, record| {
            records.push(record);
            true
        })?;
        for record in records {
            match record.ended {
                None => sessions.adopt(record)?,
                Some(ended) if now.since(ended) > ENDED_KEPT_MS => sessions.forget(&record)?,
                Some(_) => continue,
            };
        }
        sessions.operations.exhume()?;
        sessions.recover().await?;
        sessions.announce();
        Ok(sessions)
    }

    fn adopt(&self, record: Record) -> Result<Option<Arc<Session>>, StoreError> {
        let host = (self.factory)(&record);
        let id = record.id.clone();
        let session = Session::open(record, &self.home, host, self.store.clone(), Arc::clone(&self.operations))?;
        self.live.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&session));
        Ok(Some(session))
    }

    /// Removes what is left of a session that ended long ago.
    fn forget(&self, record: &Record) -> Result<Option<Arc<Session>>, StoreError> {
        let mut gone = vec![Change::remove(Key::session(&record.id))];
        let (from, to) = (Key::history(&record.id, 0), Key::history(&record.id, u64::MAX));
        self.store.scan::<serde::de::IgnoredAny>(&from, &to, false, |key, _| {
            gone.push(Change::remove(key.clone()));
            true
        })?;
        let (from, to) = Key::inputs(&record.id);
        self.store.scan::<serde::de::IgnoredAny>(&from, &to, false, |key, _| {
            gone.push(Change::remove(key.clone()));
            true
        })?;
        self.store.lazy(gone);
        let outputs = self.outputs(&record.id);
        if let Err(error) = std::fs::remove_dir_all(&outputs)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %outputs.display(), "the output files of an ended session stay");
        }
        Ok(None)
    }

    fn announce(&self) {
        self.operations.changed();
        self.office.announce(self.infos());
    }

    /// The sessions as they are announced, oldest first.
    #[must_use]
    pub fn infos(&self) -> Vec<SessionInfo> {
        self.list().iter().map(|session| self.info(session)).collect()
    }

    /// One session as it is announced.
    #[must_use]
    pub fn info(&self, session: &Session) -> SessionInfo {
        let record = session.record();
        SessionInfo {
            id: record.id.clone(),
            name: record.name.clone(),
            host: session.host().kind(),
            agent_dir: self.home.display().to_string(),
            cwd: record.cwd.display().to_string(),
            created: record.created,
            executing: session.is_executing(),
        }
    }

    /// Counts up whenever the list of sessions, what they do, or the set of conversations with late results changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.operations.subscribe()
    }

    /// The conversations for which late results wait here.
    #[must_use]
    pub fn late_conversations(&self) -> BTreeSet<Conversation> {
        self.operations.late_conversations()
    }

    /// Where the full outputs of a session are.
    #[must_use]
    pub fn outputs(&self, session: &SessionId) -> PathBuf {
        self.home.join("outputs").join(session.as_str())
    }

    /// The sessions, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Session>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = live.values().cloned().collect();
        list.sort_by(|a, b| (a.record().created, &a.record().id).cmp(&(b.record().created, &b.record().id)));
        list
    }

    /// The session of this id.
    #[must_use]
    pub fn find(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The session that a person means: by id, by name, by a unique prefix of the id; without a word the only one.
    ///
    /// # Errors
    /// [`DirectoryError::Unknown`], [`DirectoryError::Ambiguous`].
    pub fn named(&self, word: Option<&str>) -> Result<Arc<Session>, DirectoryError> {
        let list = self.list();
        let describe = |sessions: &[Arc<Session>]| {
            let rows = sessions.iter().map(|session| {
                let record = session.record();
                let name = record.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                format!("{}{name} in {}", record.id, record.cwd.display())
            });
            let text = rows.collect::<Vec<_>>().join("; ");
            if text.is_empty() { "none, open one with `chappie session new DIR`".into() } else { text }
        };
        let exact = |session: &&Arc<Session>| {
            word.is_none_or(|word| {
                session.record().id.as_str() == word || session.record().name.as_deref() == Some(word)
            })
        };
        let mut fits: Vec<_> = list.iter().filter(exact).cloned().collect();
        if fits.is_empty()
            && let Some(word) = word.filter(|word| !word.is_empty())
        {
            fits = list.iter().filter(|session| session.record().id.as_str().starts_with(word)).cloned().collect();
        }
        let word = word.unwrap_or("").to_owned();
        match fits.len() {
            0 => Err(DirectoryError::Unknown { word, known: describe(&list) }),
            1 => Ok(fits.swap_remove(0)),
            _ => Err(DirectoryError::Ambiguous { word, known: describe(&fits) }),
        }
    }

    /// Opens a session in a folder; the same folder and name again gives the session that is there.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub async fn create(&self, dir: &Path, name: Option<String>) -> Result<Arc<Session>, DirectoryError> {
        if let Some(name) = &name
            && (name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control))
        {
            return Err(DirectoryError::Name(name.clone()));
        }
        let unusable = |cause: String| DirectoryError::Folder { path: dir.to_owned(), cause };
        let cwd = std::fs::canonicalize(dir).map_err(|error| unusable(error.to_string()))?;
        if !cwd.is_dir() {
            return Err(unusable("it is not a directory".into()));
        }
        let same = |session: &&Arc<Session>| session.record().cwd == cwd && session.record().name == name;
        let list = self.list();
        if let Some(session) = list.iter().find(same) {
            return Ok(Arc::clone(session));
        }
        if list.len() >= SESSIONS_MAX {
            return Err(DirectoryError::Full);
        }
        let record = Record { id: clock::session_id(), name, cwd, created: clock::now(), ended: None };
        self.store.durable(vec![Change::set(Key::session(&record.id), &record)]).await?;
        let id = record.id.clone();
        self.adopt(record)?;
        self.announce();
        self.find(&id).ok_or(DirectoryError::Store(StoreError::Stopped))
    }

    /// Ends a session: queued work is refused, running work cancelled. Its history stays on disk for 30 days.
    ///
    /// # Errors
    /// The store's; the session then goes on.
    pub async fn end(&self, session: &Session) -> Result<(), StoreError> {
        let mut record = session.record().clone();
        record.ended = Some(clock::now());
        self.store.durable(vec![Change::set(Key::session(&record.id), &record)]).await?;
        self.live.write().unwrap_or_else(PoisonError::into_inner).remove(&record.id);
        self.announce();
        self.operations.cancel_session(&record.id, "the session was ended");
        session.close().await;
        Ok(())
    }

    /// The node's operations.
    #[must_use]
    pub const fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// Stops for good: running work is cancelled and its outcome written; processes go on and are found again.
    pub async fn stop(&self) {
        for session in self.list() {
            self.operations.cancel_session(&session.record().id, "the node is stopping");
            session.halt().await;
        }
        self.operations.stopped().await;
    }
}

/// A word that was given, for the beginning of a sentence; nothing when there was none.
fn named(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!("{word:?}: ") }
}

/// The identity that a host's request id gives an operation, when it names one request and not only a workflow: the form
/// `wfr_<32 hex>/<suffix>` does. Parallel executions can share a workflow, so the work's signature is part of it.
#[must_use]
pub fn request_identity(conversation: Option<&Conversation>, request_id: &str, signature: &str) -> Option<String> {
    let (workflow, suffix) = request_id.split_once('/')?;
    let hex = workflow.strip_prefix("wfr_")?;
    if suffix.is_empty() || hex.len() != 32 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = Sha256::new();
    for part in [conversation.map(Conversation::key).as_deref().unwrap_or(""), request_id, signature] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
