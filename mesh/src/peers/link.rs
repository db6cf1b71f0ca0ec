//! [`Link`]: a connection to a member that both sides have agreed on, with what runs on it. Which link is used, and
//! when a new one is dialled, is the table's and the peer task's business.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    time::Instant,
};

use super::verdict::Standing;
use crate::{
    identity::{Incarnation, NodeId},
    transport::{Connection, Ended, Line, ROOM_BYTES, Stream},
    wire::{CloseCode, StreamKind},
};

/// Words of the mesh itself that wait to go out on a link: a ping, a retirement, a warning. More would mean that the
/// link does not move; they are dropped then, and liveness decides.
const OUTBOX: usize = 8;

/// What a link's own task is asked to say or do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Ask whether the peer is there.
    Ping,
    /// Give the link up, with this code, when nothing runs on it.
    Retire(CloseCode),
    /// Tell the peer that another device uses its identity.
    Duplicate(Option<SocketAddr>),
}

/// One agreed connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// What the peer is called.
    pub(crate) label: String,
    /// Whether this device dialled.
    pub(super) dialled: bool,
    /// The peer's run.
    pub(super) run: Incarnation,
    since: Instant,
    /// Why this device closed it, as a whole sentence.
    why: OnceLock<String>,
    /// Open streams that somebody waits for.
    work: AtomicUsize,
    /// All open streams.
    streams: AtomicUsize,
    /// No new stream is opened on it.
    retired: AtomicBool,
    ended: AtomicBool,
    /// Whether its task ticks; then it needs no waking for work.
    pub(super) ticking: AtomicBool,
    /// Wakes its task: work began or ended, or another link took over.
    pub(super) changed: Notify,
    /// How often the peer was heard on the mesh's own stream.
    pub(super) heard: watch::Sender<u64>,
    outbox: mpsc::Sender<Word>,
    /// What long messages share while they arrive.
    room: Arc<Semaphore>,
}

impl Link {
    pub(super) fn new(
        connection: Connection,
        label: String,
        dialled: bool,
        run: Incarnation,
    ) -> (Arc<Self>, mpsc::Receiver<Word>) {
        let (outbox, words) = mpsc::channel(OUTBOX);
        let link = Self {
            connection,
            label,
            dialled,
            run,
            since: Instant::now(),
            why: OnceLock::new(),
            work: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            ticking: AtomicBool::new(false),
            changed: Notify::new(),
            heard: watch::Sender::new(0),
            outbox,
            room: Arc::new(Semaphore::new(ROOM_BYTES)),
        };
        (Arc::new(link), words)
    }

    pub(crate) fn peer(&self) -> NodeId {
        self.connection.peer()
    }

    pub(super) fn standing(&self) -> Standing {
        Standing { dialled: self.dialled, working: self.is_working(), age: self.since.elapsed(), run: self.run }
    }

    pub(super) fn is_working(&self) -> bool {
        self.work.load(SeqCst) > 0
    }

    pub(crate) fn is_used(&self) -> bool {
        self.streams.load(SeqCst) > 0
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(SeqCst)
    }

    /// Whether its end was not noticed yet. Asked for every stream, and so without QUIC's lock.
    pub(crate) fn is_open(&self) -> bool {
        !self.ended.load(SeqCst)
    }

    /// Whether it lasts, as QUIC knows it now.
    pub(super) fn is_alive(&self) -> bool {
        self.connection.end().is_none()
    }

    /// Its end was noticed.
    pub(super) fn set_ended(&self) {
        self.ended.store(true, SeqCst);
    }

    /// Opens a stream. `Ok(None)`: the link is given up; look for another.
    pub(crate) async fn open(self: &Arc<Self>, kind: StreamKind) -> Result<Option<Stream>, Ended> {
        self.open_as(kind.byte(), kind.is_work()).await
    }

    /// The same for a kind that is the mesh's own.
    pub(super) async fn open_as(self: &Arc<Self>, first: u8, work: bool) -> Result<Option<Stream>, Ended> {
        let line = self.line(work);
        // Counted before it is asked: whoever retires the link sees the stream, or the stream sees the retirement.
        if self.is_retired() {
            return Ok(None);
        }
        self.connection.open(first, line).await.map(Some)
    }

    /// What a stream of this link holds on to.
    pub(super) fn line(self: &Arc<Self>, work: bool) -> Arc<dyn Line> {
        self.streams.fetch_add(1, SeqCst);
        if work && self.work.fetch_add(1, SeqCst) == 0 && !self.ticking.load(SeqCst) {
            self.changed.notify_one();
        }
        Arc::new(OnLink { link: Arc::clone(self), work })
    }

    /// Stops opening streams on it; it closes with `code` when nothing runs on it any more.
    pub(crate) fn retire(&self, code: CloseCode) {
        self.stop_opening();
        self.say(Word::Retire(code));
    }

    pub(super) fn stop_opening(&self) {
        self.retired.store(true, SeqCst);
    }

    /// Says `word` to the peer, unless too much waits already.
    pub(super) fn say(&self, word: Word) {
        if self.outbox.try_send(word).is_err() {
            tracing::debug!(peer = %self.label, ?word, "a connection does not move: not said");
        }
    }

    /// Closes it at once. Its streams end with `why`, a whole sentence; `told` is what the peer is told.
    pub(crate) fn close(&self, code: CloseCode, why: String, told: &str) {
        // The first reason is the true one.
        let _ = self.why.set(why);
        self.set_ended();
        self.connection.close(code, told);
    }

    /// Whether the peer answers within `wait`.
    pub(super) async fn answers(&self, wait: Duration) -> bool {
        let mut heard = self.heard.subscribe();
        self.say(Word::Ping);
        let ended = self.connection.ended();
        tokio::select! {
            biased;
            heard = tokio::time::timeout(wait, heard.changed()) => matches!(heard, Ok(Ok(()))),
            _ = ended => false,
        }
    }

    /// How it ended, as a whole sentence.
    pub(super) fn story(&self, how: &Ended) -> String {
        match (how, self.why.get()) {
            (Ended::Here, Some(why)) => why.clone(),
            _ => format!("{} {how}", self.label),
        }
    }
}

/// A stream's hold on its link.
struct OnLink {
    link: Arc<Link>,
    work: bool,
}

impl Line for OnLink {
    fn label(&self) -> &str {
        &self.link.label
    }

    fn lost(&self, how: &Ended) -> String {
        self.link.story(how)
    }

    fn room(&self) -> Option<&Arc<Semaphore>> {
        Some(&self.link.room)
    }
}

impl Drop for OnLink {
    fn drop(&mut self) {
        self.link.streams.fetch_sub(1, SeqCst);
        if self.work && self.link.work.fetch_sub(1, SeqCst) == 1 && self.link.is_retired() {
            self.link.changed.notify_one();
        }
    }
}
