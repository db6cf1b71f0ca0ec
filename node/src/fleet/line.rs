//! [`Line`]: streams to other devices, one question and its answer, and questions that are repeated until they arrive.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use chappie_mesh::{NodeId, Roster, Stream, StreamError, StreamKind, runtime::Spawner};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    protocol::{
        ANSWER_MAX,
        ask::{Ask, Reply},
    },
    seat::{Holder, Seat},
};
use crate::host::BoxFuture;

/// How long a question may take that nobody waits on for long (failure rule F23).
pub(crate) const ASK_WAIT: Duration = Duration::from_secs(3);
/// How long a word is repeated that has not arrived: longer than a sleep of the network, shorter than a person's memory.
const INSIST_MAX: Duration = Duration::from_secs(600);
/// Pauses between repeats: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// Words that wait to be repeated; beyond them the newest is given up. A word is a few hundred bytes.
const INSISTING_MAX: usize = 1_024;
/// What the mesh says of a device that was silent for so long that more waiting would be too long (failure rule F23).
const SILENT: &str = "did not answer for";

/// Opens streams to other devices: [`chappie_mesh`], or a double in tests.
pub trait Opener: Send + Sync + 'static {
    /// A stream to a member; a member that is not connected is dialled for at most `wait`. The error says why, naming
    /// the device.
    fn open(&self, peer: NodeId, kind: StreamKind, wait: Duration) -> BoxFuture<'_, Result<Stream, String>>;
}

/// The way to other devices. Cheap to clone.
#[derive(Clone)]
pub struct Line {
    opener: Arc<dyn Opener>,
    rosters: watch::Receiver<Arc<Roster>>,
    insisting: Arc<AtomicUsize>,
    /// Words are said wherever an answer is dropped, which need not be inside the runtime.
    runtime: Spawner,
    stopping: CancellationToken,
}

impl Line {
    /// Streams of `opener` to members of the roster. Inside a tokio runtime; `stopping` ends what is being repeated.
    #[must_use]
    pub fn new(opener: Arc<dyn Opener>, rosters: watch::Receiver<Arc<Roster>>, stopping: CancellationToken) -> Self {
        Self { opener, rosters, insisting: Arc::default(), runtime: Spawner::current(), stopping }
    }

    /// What people call a device.
    #[must_use]
    pub fn label(&self, node: &NodeId) -> String {
        self.rosters.borrow().label(node)
    }

    /// The roster of this moment.
    #[must_use]
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.rosters.borrow())
    }

    /// The runtime that background work belongs to.
    pub(crate) const fn runtime(&self) -> &Spawner {
        &self.runtime
    }

    /// Fires when the node stops.
    pub(crate) const fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// A stream to `node`.
    ///
    /// # Errors
    /// Why there is none, naming the device.
    pub async fn open(&self, node: NodeId, kind: StreamKind, wait: Duration) -> Result<Stream, String> {
        self.opener.open(node, kind, wait).await
    }

    /// Asks `node`, within `wait` in all.
    ///
    /// # Errors
    /// Why there is no answer, naming the device. Whether the question arrived is not known then.
    pub async fn ask(&self, node: NodeId, ask: &Ask, wait: Duration) -> Result<Reply, String> {
        let (reply, mut stream) = self.converse(node, ask, wait).await?;
        stream.send.finish();
        Ok(reply)
    }

    /// The same with the stream, for a question that goes on after its answer.
    pub(crate) async fn converse(&self, node: NodeId, ask: &Ask, wait: Duration) -> Result<(Reply, Stream), String> {
        let asking = async {
            let mut stream = self.open(node, StreamKind::Ask, wait).await?;
            stream.send.message(ask).await.map_err(|error| self.trouble(&node, &error))?;
            match stream.recv.message::<Reply>(ANSWER_MAX).await {
                Ok(Some(reply)) => Ok((reply, stream)),
                Ok(None) => Err(format!("device {} ended the stream without an answer", self.label(&node))),
                Err(error) => Err(self.trouble(&node, &error)),
            }
        };
        let late = |_| Err(format!("device {} did not answer within {wait:?}", self.label(&node)));
        timeout_at(Instant::now() + wait, asking).await.unwrap_or_else(late)
    }

    /// Why a stream to `node` is gone, in words that name the device.
    pub(crate) fn trouble(&self, node: &NodeId, error: &StreamError) -> String {
        let label = self.label(node);
        let cause = error.to_string();
        match cause.strip_prefix(&label) {
            Some(rest) => format!("device {label}{rest}"),
            None => format!("device {label}: {cause}"),
        }
    }

    /// Asks `node` again and again in the background, until an answer comes, the device is no member any more, or ten
    /// minutes are over. `what` names it in the log. Does not block.
    pub fn insist(&self, node: NodeId, ask: Ask, what: &'static str) {
        let line = self.clone();
        self.in_the_background(what, async move { line.repeat(node, &ask, what).await });
    }

    /// The same to whoever has the broker's seat, wherever it moves meanwhile. `here` hears it for this device's own
    /// broker, and says whether it was heard.
    pub fn insist_on_seat<F, H>(&self, seat: Seat, here: H, ask: Ask, what: &'static str)
    where
        F: Future<Output = bool> + Send + 'static,
        H: Fn() -> F + Send + Sync + 'static,
    {
        let line = self.clone();
        self.in_the_background(what, async move { line.repeat_to_seat(seat, here, &ask, what).await });
    }

    fn in_the_background(&self, what: &'static str, repeating: impl Future<Output = bool> + Send + 'static) {
        if self.insisting.fetch_add(1, Ordering::Relaxed) >= INSISTING_MAX {
            self.insisting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(what, "given up: {INSISTING_MAX} words wait already");
            return;
        }
        let line = self.clone();
        self.runtime.spawn(async move {
            line.stopping.run_until_cancelled(repeating).await;
            line.insisting.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Resolves true once `ask` was answered by whoever has the seat; see [`Self::insist_on_seat`].
    async fn repeat_to_seat<F: Future<Output = bool>>(
        &self,
        mut seat: Seat,
        here: impl Fn() -> F,
        ask: &Ask,
        what: &str,
    ) -> bool {
        let until = Instant::now() + INSIST_MAX;
        let [first, longest] = PAUSES;
        let mut pause = first;
        while Instant::now() < until {
            let holder = seat.holder();
            let asking = async {
                match holder {
                    Holder::Here => here().await,
                    Holder::There(node) => match self.ask(node, ask, ASK_WAIT).await {
                        // It is not the broker, not yet or not any more.
                        Ok(Reply::Refused(_) | Reply::Failed(_)) | Err(_) => false,
                        Ok(_) => true,
                    },
                    Holder::Nobody => false,
                }
            };
            let said = tokio::select! {
                biased;
                said = asking => said,
                () = seat.left(holder) => false,
            };
            if said {
                return true;
            }
            tokio::select! {
                biased;
                () = seat.left(holder) => pause = first,
                () = sleep(pause) => pause = (pause * 2).min(longest),
            }
        }
        tracing::warn!(what, "given up: no broker could be told");
        false
    }

    /// Resolves true once `ask` was answered; see [`Self::insist`].
    async fn repeat(&self, node: NodeId, ask: &Ask, what: &str) -> bool {
        let until = Instant::now() + INSIST_MAX;
        let [mut pause, longest] = PAUSES;
        loop {
            let cause = match self.ask(node, ask, ASK_WAIT).await {
                Ok(Reply::Refused(cause) | Reply::Unsupported(cause)) => {
                    tracing::warn!(device = self.label(&node), what, cause, "the device does not take this word");
                    return false;
                }
                Ok(Reply::Failed(cause)) | Err(cause) => cause,
                Ok(_) => return true,
            };
            let member = self.roster().members.contains_key(&node);
            if !member || Instant::now() + pause >= until {
                tracing::warn!(what, cause, "given up: the device could not be told");
                return false;
            }
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }
}

/// Whether a stream ended because the device was silent for all the time that it is given.
pub(crate) fn was_silent(trouble: &str) -> bool {
    trouble.contains(SILENT)
}
