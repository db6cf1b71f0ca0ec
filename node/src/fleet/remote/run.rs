//! One operation on another device: a task that keeps its stream, finds it again after a loss, and says what became of the
//! answer (failure rules F3, F4, F6, F23).

use std::{sync::Arc, time::Duration};

use chappie_mesh::{Stream, StreamError, StreamKind};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{
    super::{
        Dispatch, Ran, Run, SessionNode,
        line::{ASK_WAIT, was_silent},
        protocol::{
            ANSWER_MAX,
            ask::{Ask, Reply, SessionAsk},
            run::{Dispatched, News, Order},
        },
    },
    RemoteNode,
};
use crate::{
    host::BoxFuture,
    ids::{CallId, Conversation},
    sessions::Work,
};

/// How long a node may take to say that it has an operation (F23).
const ACCEPT_WAIT: Duration = Duration::from_secs(3);
/// What a slow line is given on top: bytes of arguments a second.
const SLOW_LINE: usize = 256 << 10;
/// How long a lost operation is asked about, from its loss on (F23).
const LOOK_MAX: Duration = Duration::from_secs(5);
/// The same for a device that was silent for four seconds before that: the caller waits no more than five in all.
const LOOK_SILENT: Duration = Duration::from_millis(500);
/// Between two questions about a lost operation.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How long [`Run::cancel`] waits for the node to take the order on the operation's own stream, and in all.
const CANCEL_WAIT: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Orders to end one operation that may wait. One is enough; more are the same again.
const CANCELS_MAX: usize = 4;
/// Tools that only read, by name: what they gave may be asked for again.
const READERS: [&str; 4] = ["read", "grep", "find", "ls"];

/// How far it is.
#[derive(Clone)]
enum Course {
    Handed,
    Taken,
    Running,
    Ended(Ran),
}

/// The broker's end of an operation on another device.
pub(super) struct RemoteRun {
    node: Arc<RemoteNode>,
    call_id: CallId,
    course: watch::Receiver<Course>,
    cancels: mpsc::Sender<String>,
    taken: watch::Receiver<bool>,
    settled: Option<oneshot::Sender<bool>>,
}

impl RemoteRun {
    /// Hands it over.
    pub(super) fn begin(node: Arc<RemoteNode>, dispatch: &Dispatch) -> Self {
        let (course, watched) = watch::channel(Course::Handed);
        let (cancels, cancelled) = mpsc::channel(CANCELS_MAX);
        let (taken, taking) = watch::channel(false);
        let (settled, settling) = oneshot::channel();
        let call_id = dispatch.operation.call_id.clone();
        match Dispatched::of(dispatch) {
            Ok(order) => {
                let conductor = Conductor {
                    node: Arc::clone(&node),
                    call_id: call_id.clone(),
                    reads: reads(&dispatch.operation.work),
                    conversation: dispatch.operation.conversation.clone(),
                    sent: dispatch.resent,
                    until: Instant::now() + dispatch.wait,
                    accepted: false,
                    dropped: false,
                    course,
                    cancelled,
                    taken,
                    settling,
                };
                node.line.runtime().spawn(conductor.conduct(order));
            }
            Err(error) => drop(course.send_replace(Course::Ended(Ran::NeverRan(format!("nothing was done: {error}"))))),
        }
        Self { node, call_id, course: watched, cancels, taken: taking, settled: Some(settled) }
    }
}

/// Whether all of the work only reads.
fn reads(work: &Work) -> bool {
    match work {
        Work::Chat(_) => false,
        Work::Call(calls) => calls.iter().all(|call| READERS.contains(&call.name.as_str())),
    }
}

impl Run for RemoteRun {
    fn done(&mut self) -> BoxFuture<'_, Ran> {
        Box::pin(async move {
            match self.course.wait_for(|course| matches!(course, Course::Ended(_))).await.as_deref() {
                Ok(Course::Ended(ran)) => ran.clone(),
                // The node stops, and its tasks with it.
                _ => Ran::Unknown("the broker is stopping; look into history before you repeat it".to_owned()),
            }
        })
    }

    fn is_running(&self) -> bool {
        matches!(*self.course.borrow(), Course::Running)
    }

    fn is_taken(&self) -> bool {
        !matches!(*self.course.borrow(), Course::Handed)
    }

    fn cancel(&mut self, reason: String) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let [on_stream, in_all] = CANCEL_WAIT;
            let until = Instant::now() + in_all;
            // Full: the same order waits there already.
            let _ = self.cancels.try_send(reason.clone());
            let taken = timeout(on_stream, self.taken.wait_for(|taken| *taken)).await.is_ok_and(|taken| taken.is_ok());
            if taken {
                return;
            }
            // Asked twice is asked once (F4): the order on the stream and this one may both arrive.
            let (node, call_id) = (Arc::clone(&self.node), self.call_id.clone());
            let asking = self.node.line.runtime().spawn(async move {
                if let Err(cause) = SessionNode::revoke(&*node, call_id.clone(), reason.clone()).await {
                    tracing::info!(cause, "an order to end an operation is repeated until it arrives");
                    node.insist_on_end(SessionAsk::Revoke { call_id, reason });
                }
            });
            let _ = timeout_at(until, asking).await;
        })
    }

    fn settle(mut self: Box<Self>, written: bool) {
        if let Some(settled) = self.settled.take() {
            let _ = settled.send(written);
        }
    }
}

/// How one attempt to follow the operation ended.
enum Attempt {
    /// No stream: nothing was sent by it.
    Unsent(String),
    /// The stream is gone.
    Lost(String),
    /// The outcome, and the stream that brought it.
    Ended(Box<(Ran, Stream)>),
    /// Nobody waits any more, and the node has it.
    Detached,
}

/// What the node says of an operation that was lost from sight.
enum Looked {
    Never(String),
    Held,
    /// It obeys another broker.
    Fenced(String),
    Nothing(String),
}

struct Conductor {
    node: Arc<RemoteNode>,
    call_id: CallId,
    conversation: Option<Conversation>,
    reads: bool,
    /// Whether the node may have it.
    sent: bool,
    /// When the caller's wait is over.
    until: Instant,
    accepted: bool,
    /// Whether nobody waits any more.
    dropped: bool,
    course: watch::Sender<Course>,
    cancelled: mpsc::Receiver<String>,
    taken: watch::Sender<bool>,
    settling: oneshot::Receiver<bool>,
}

impl Conductor {
    async fn conduct(mut self, mut order: Dispatched) {
        let weight = order.weight();
        let mut message = Order::Dispatch(Box::new(order.clone()));
        loop {
            let lost = match self.attempt(&message, weight).await {
                Attempt::Detached => return,
                Attempt::Ended(ended) => {
                    let (ran, stream) = *ended;
                    self.course.send_replace(Course::Ended(ran));
                    return self.settle(stream).await;
                }
                Attempt::Unsent(cause) if !self.sent => {
                    return self.end(Ran::NeverRan(format!("nothing was done: {cause}")));
                }
                Attempt::Unsent(cause) | Attempt::Lost(cause) => cause,
            };
            if self.accepted && self.dropped {
                return;
            }
            match self.look(&lost).await {
                Looked::Never(reason) => return self.end(Ran::NeverRan(reason)),
                Looked::Fenced(cause) => return self.end(Ran::Fenced(cause)),
                Looked::Nothing(cause) => return self.end(Ran::Unknown(self.unknown(&cause))),
                Looked::Held if self.dropped => return,
                Looked::Held => {
                    order.again(self.until.saturating_duration_since(Instant::now()));
                    message = Order::Dispatch(Box::new(order.clone()));
                }
            }
        }
    }

    fn end(&self, ran: Ran) {
        if self.dropped
            && let Ran::NeverRan(reason) | Ran::Unknown(reason) = &ran
        {
            tracing::warn!(call_id = %self.call_id, reason, "an operation was answered as running, and was lost then");
        }
        self.course.send_replace(Course::Ended(ran));
    }

    fn unknown(&self, cause: &str) -> String {
        if self.reads {
            return format!("{cause}. The work only reads: simply repeat it once the device is back (see `sessions`)");
        }
        let word = match &self.conversation {
            Some(_) => "If it ran, its outcome arrives as a late result of this conversation once the device is back",
            None => "If it ran, its outcome stands in the session's history once the device is back",
        };
        format!(
            "{cause}. It is not known how far this operation came. {word}; what history does not show by then did not run. \
             Do not repeat it before"
        )
    }

    /// Sends the operation and follows it until it ended, the stream is lost, or nobody waits any more.
    async fn attempt(&mut self, message: &Order, weight: usize) -> Attempt {
        let line = self.node.line.clone();
        let mut stream = match line.open(self.node.node, StreamKind::Run, ASK_WAIT).await {
            Ok(stream) => stream,
            Err(cause) => return Attempt::Unsent(cause),
        };
        let device = self.node.node;
        self.sent = true;
        match stream.send.message(message).await {
            Ok(()) => {}
            Err(error @ StreamError::TooLong { .. }) => {
                self.sent = false;
                return Attempt::Unsent(line.trouble(&device, &error));
            }
            Err(error) => return Attempt::Lost(line.trouble(&device, &error)),
        }
        let mut accepted = false;
        let accept_until = Instant::now() + ACCEPT_WAIT + Duration::from_secs((weight / SLOW_LINE) as u64);
        loop {
            if accepted && self.dropped {
                return Attempt::Detached;
            }
            tokio::select! {
                biased;
                Some(reason) = self.cancelled.recv() => {
                    if let Err(error) = stream.send.message(&Order::Cancel(reason)).await {
                        return Attempt::Lost(line.trouble(&device, &error));
                    }
                }
                news = stream.recv.message::<News>(ANSWER_MAX) => match news {
                    Ok(Some(News::Accepted)) => {
                        accepted = true;
                        self.course.send_if_modified(|course| {
                            let first = matches!(course, Course::Handed);
                            if first {
                                *course = Course::Taken;
                            }
                            first
                        });
                    }
                    Ok(Some(News::Running)) => {
                        accepted = true;
                        self.course.send_replace(Course::Running);
                    }
                    Ok(Some(News::CancelTaken)) => drop(self.taken.send_replace(true)),
                    Ok(Some(news)) => if let Some(ran) = news.outcome() { return Attempt::Ended(Box::new((ran, stream))) },
                    Ok(None) => {
                        let label = line.label(&device);
                        return Attempt::Lost(format!("device {label} ended the stream before the outcome"));
                    }
                    Err(error) => return Attempt::Lost(line.trouble(&device, &error)),
                },
                () = sleep_until(accept_until), if !accepted => {
                    let label = line.label(&device);
                    return Attempt::Lost(format!("device {label} did not take the operation in time"));
                }
                _ = &mut self.settling, if !self.dropped => self.dropped = true,
            }
            self.accepted |= accepted;
        }
    }

    /// Asks what became of it. The node seals what it does not know, so that it cannot run later (F3).
    async fn look(&mut self, lost: &str) -> Looked {
        let mut cause = lost.to_owned();
        let mut until = Instant::now() + if was_silent(lost) { LOOK_SILENT } else { LOOK_MAX };
        let ask = Ask::Session(SessionAsk::Known(self.call_id.clone()));
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (self.accepted && self.dropped) {
                return Looked::Nothing(cause);
            }
            match self.node.line.ask(self.node.node, &ask, left).await {
                Ok(Reply::Never(reason)) => return Looked::Never(reason),
                Ok(Reply::Held) => return Looked::Held,
                Ok(Reply::Refused(word)) => return Looked::Fenced(word),
                Ok(Reply::Unsupported(word) | Reply::Failed(word)) => cause = word,
                Ok(_) => cause = self.node.odd(),
                Err(word) => {
                    if was_silent(&word) {
                        until = until.min(Instant::now() + LOOK_SILENT);
                        cause = word;
                    }
                }
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// Says whether the answer was written: on the stream, and when that is gone on others until it arrives. Nothing is
    /// said for a run that was dropped.
    async fn settle(self, mut stream: Stream) {
        if self.dropped {
            return;
        }
        let Ok(written) = self.settling.await else { return };
        let saying = async {
            stream.send.message(&Order::Written(written)).await.ok()?;
            loop {
                if let News::Settled = stream.recv.message::<News>(ANSWER_MAX).await.ok()?? {
                    return Some(());
                }
            }
        };
        if timeout(ASK_WAIT, saying).await.ok().flatten().is_none() {
            RemoteNode::settle(&self.node, &self.call_id, written);
        }
    }
}
