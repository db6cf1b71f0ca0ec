//! The one task through which this device's commands go: it drains those that wait, stamps them, proposes them to the log
//! under the office it holds, and answers. What nobody waits for any more is taken back. Not a place for decisions: those
//! are in the pure files. The log itself, and what becomes of it when its store fails, is the council's.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use chappie_mesh::consensus::{CommitError, Consensus, Office};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout_at},
};

use super::{
    command::{Command, Entry, Reply},
    errors::ProposeError,
    limits::{BATCH_MAX, OFFICE_WAIT_MS},
    shared::{Open, Shared, Undo},
};
use crate::ids::Conversation;

/// A session reserved for a selection in progress; dropping it lets the next waiter have it.
pub(super) struct Hold {
    pub(super) shared: Arc<Shared>,
    pub(super) conversation: Conversation,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.memory().volatile.release(&self.conversation);
        self.shared.wake();
    }
}

/// Where a reply goes.
pub(super) type Answer = oneshot::Sender<Result<Reply, ProposeError>>;

/// A proposed command.
pub(super) struct Job {
    pub(super) command: Command,
    /// `None`: nobody waits for it.
    pub(super) answer: Option<Answer>,
    /// The conversation's last use when this was proposed.
    pub(super) seq: u64,
    /// Kept until the command is settled.
    pub(super) hold: Option<Hold>,
    /// The same, for a reservation.
    pub(super) open: Option<Arc<Open>>,
}

impl Job {
    fn abandoned(&self) -> bool {
        self.command.revocable() && self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Whether `other` is the same call once more. Then it must see what became of this one: it may be taken back.
    fn precedes(&self, other: &Self) -> bool {
        match (&self.command, &other.command) {
            (Command::Reserve(one), Command::Reserve(two)) => (&one.key, &one.call_id) == (&two.key, &two.call_id),
            _ => false,
        }
    }
}

/// Work for the task.
pub(super) enum Message {
    Propose(Box<Job>),
    /// Look at the undo list.
    Wake,
    /// Take nothing more.
    Stop(oneshot::Sender<()>),
}

/// What a holder of the office proposes to.
#[derive(Clone)]
pub(super) struct Acting {
    pub(super) consensus: Consensus,
    pub(super) office: Office,
}

/// What the writer knows of the office.
#[derive(Clone, Default)]
pub(super) struct Seat {
    /// The office, while this device holds it.
    pub(super) acting: Option<Acting>,
    /// Whether it comes back by itself: this device is the only voter.
    pub(super) alone: bool,
}

/// The task's own state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Message>,
    seat: watch::Receiver<Seat>,
    /// Taken from the queue, and to be done after the batch.
    next: VecDeque<Message>,
}

impl Writer {
    pub(super) const fn new(shared: Arc<Shared>, queue: mpsc::Receiver<Message>, seat: watch::Receiver<Seat>) -> Self {
        Self { shared, queue, seat, next: VecDeque::new() }
    }

    /// Works until it is stopped or every handle is gone.
    pub(super) async fn run(mut self) {
        while let Some(first) = self.message().await {
            let batch = self.drain(first);
            self.work(batch).await;
            if let Some(Message::Stop(_)) = self.next.front() {
                self.queue.close();
                if let Some(Message::Stop(done)) = self.next.pop_front() {
                    let _ = done.send(());
                }
                return;
            }
        }
    }

    /// What to do next; a change of the office is a reason to look at what must be taken back.
    async fn message(&mut self) -> Option<Message> {
        if let Some(message) = self.next.pop_front() {
            return Some(message);
        }
        tokio::select! {
            biased;
            message = self.queue.recv() => message,
            Ok(()) = self.seat.changed() => Some(Message::Wake),
        }
    }

    /// Takes what waits, up to the size of a batch. A message that cannot be in it ends the batch and is kept for after it.
    fn drain(&mut self, first: Message) -> Vec<Job> {
        let mut batch: Vec<Job> = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Propose(job) if batch.iter().any(|before| before.precedes(&job)) => {
                    self.next.push_back(Message::Propose(job));
                    break;
                }
                Message::Propose(job) => batch.push(*job),
                Message::Wake => {}
                Message::Stop(done) => {
                    self.next.push_back(Message::Stop(done));
                    break;
                }
            }
            next = if batch.len() < BATCH_MAX { self.queue.try_recv().ok() } else { None };
        }
        batch
    }

    /// Commits a batch and whatever must be taken back.
    async fn work(&mut self, batch: Vec<Job>) {
        let mut jobs: Vec<Job> = batch.into_iter().filter(|job| !job.abandoned()).collect();
        loop {
            let undo = std::mem::take(&mut self.shared.memory().undo);
            if jobs.is_empty() && undo.is_empty() {
                return;
            }
            let acting = match self.acting(!jobs.is_empty()).await {
                Ok(acting) => acting,
                Err(error) => {
                    self.shared.memory().undo.splice(0..0, undo);
                    jobs.into_iter().for_each(|job| answer(&self.shared, job, Err(error.clone())));
                    return;
                }
            };
            if !self.commit(&acting, std::mem::take(&mut jobs), undo).await {
                return;
            }
        }
    }

    /// The office. A sole voter that does not hold it gets it again by itself, so it is waited for, when `patient`.
    async fn acting(&mut self, patient: bool) -> Result<Acting, ProposeError> {
        let deadline = Instant::now() + Duration::from_millis(OFFICE_WAIT_MS);
        loop {
            let seat = self.seat.borrow_and_update().clone();
            if let Some(acting) = seat.acting {
                return Ok(acting);
            }
            if let Some(trouble) = self.shared.memory().trouble.clone() {
                return Err(ProposeError::NotWritten(trouble));
            }
            if !patient || !seat.alone || timeout_at(deadline, self.seat.changed()).await.is_err() {
                return Err(ProposeError::NotBroker);
            }
        }
    }

    /// Whether the log takes more.
    async fn commit(&self, acting: &Acting, jobs: Vec<Job>, undo: Vec<Undo>) -> bool {
        jobs.iter().for_each(|job| self.shared.decided(&job.command));
        let entries = self.stamp(&jobs, &undo);
        let count = entries.len();
        let mut results = acting.consensus.propose(acting.office, entries).await;
        // One result for each command is the engine's promise; one that is missing is not known.
        results.resize(count, Err(CommitError::Unknown("there was no answer".into())));
        let mut results = results.into_iter().map(outcome);
        // A jump and what was taken back have nobody waiting.
        results.by_ref().take(count - jobs.len() - undo.len()).for_each(drop);
        let mut goes_on = true;
        let mut again = Vec::new();
        for (undo, result) in undo.into_iter().zip(results.by_ref()) {
            if result.is_ok() {
                self.done(&undo);
            } else {
                again.push(undo);
            }
        }
        let mut unknown = Vec::new();
        for (job, result) in jobs.into_iter().zip(results) {
            goes_on &= result.is_ok();
            if matches!(result, Err(ProposeError::Unknown(_))) {
                unknown.push(job.command.clone());
            }
            answer(&self.shared, job, result);
        }
        if self.seat.borrow().alone {
            self.shared.doubt(unknown);
        }
        goes_on &= again.is_empty();
        self.shared.memory().undo.splice(0..0, again);
        goes_on
    }

    fn done(&self, undo: &Undo) {
        if let Some(conversation) = &undo.conversation {
            self.shared.memory().volatile.end_undo(conversation);
            self.shared.wake();
        }
    }

    /// Gives each command the time; a jump of the clock goes before them. The new time counts once they are applied, or a
    /// jump could be lost with them.
    fn stamp(&self, jobs: &[Job], undo: &[Undo]) -> Vec<Vec<u8>> {
        let mut time = self.shared.memory().time;
        let stamp = time.stamp(self.shared.reading());
        let jump = stamp.jumped.map(|gap_ms| Command::Jump { gap_ms });
        let undo = undo.iter().map(|undo| &undo.command);
        let commands = jump.iter().chain(undo).chain(jobs.iter().map(|job| &job.command));
        commands.map(|command| Entry { at: stamp.at, command: command.clone() }.encode()).collect()
    }
}

fn outcome(result: Result<Vec<u8>, CommitError>) -> Result<Reply, ProposeError> {
    match result {
        Ok(bytes) => Reply::decode(&bytes).map_err(|error| ProposeError::Unknown(error.to_string())),
        Err(CommitError::NotActing) => Err(ProposeError::NotBroker),
        Err(CommitError::Unknown(cause) | CommitError::Stopped(cause)) => Err(ProposeError::Unknown(cause)),
    }
}

/// Ends the reservation and sends the reply; what nobody receives any more is taken back. A bind is in the state by now, so
/// that no waiter takes its session for free in between.
fn answer(shared: &Shared, job: Job, result: Result<Reply, ProposeError>) {
    let Job { command, answer, seq, hold, open } = job;
    drop(hold);
    if let Some(Err(Ok(reply))) = answer.map(|answer| answer.send(result)) {
        shared.abandon(&command, seq, &reply, open);
    }
}
