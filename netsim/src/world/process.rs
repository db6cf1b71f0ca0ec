//! One process of a world: its tasks, its clock, its randomness; it can be killed, and it can stand still. What wraps its
//! futures asks [`Process::held`] before each poll, as [`Process::run`] does.
//!
//! Standing still is what SIGSTOP does: nothing is polled, timers are seen late, all at once. A suspended device is the
//! same to its processes; the world drops what is sent to it meanwhile instead of queueing it. What this does not model is
//! a steady clock that stood still over the suspension: tokio's time is one for all nodes. So a lease that is kept by
//! that time is seen as CLOCK_BOOTTIME shows it, and timers fire earlier after a suspension than on a real device.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::task::{AbortHandle, JoinHandle};

use super::{
    clock::Wall,
    seed::{Rng, Seed},
};

/// Tasks that ended are forgotten when more than this many are listed, so that a long run does not keep all it ever had.
const TASKS_KEPT: usize = 256;

/// How a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It runs.
    Running,
    /// It stands still.
    Held,
    /// It was killed, and never runs again: its successor is another process.
    Dead,
}

/// One process, from its start to its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    wall: Arc<Wall>,
    rng: Mutex<Rng>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    mode: Mode,
    tasks: Vec<AbortHandle>,
    waiting: Vec<Waker>,
}

impl Process {
    /// A process that runs. The clock is the device's and outlives it.
    #[must_use]
    pub fn new(name: &str, seed: Seed, wall: Arc<Wall>) -> Arc<Self> {
        let inner = Inner { mode: Mode::Running, tasks: Vec::new(), waiting: Vec::new() };
        Arc::new(Self { name: name.to_owned(), wall, rng: Mutex::new(seed.rng()), inner: Mutex::new(inner) })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its device's clock.
    #[must_use]
    pub fn wall(&self) -> &Wall {
        &self.wall
    }

    /// Draws bytes from its own stream.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }

    /// How it stands.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.lock().mode
    }

    /// A task of it began; at a dead process it ends at once, before it was polled. Destructors of a killed process's
    /// tasks may begin such ones.
    pub fn began(&self, task: AbortHandle) {
        let mut inner = self.lock();
        if inner.mode == Mode::Dead {
            task.abort();
            return;
        }
        if inner.tasks.len() >= TASKS_KEPT {
            inner.tasks.retain(|task| !task.is_finished());
        }
        inner.tasks.push(task);
    }

    /// Whether a future of it must not be polled now; it is woken when it may be.
    #[must_use]
    pub fn held(&self, waker: &Waker) -> bool {
        let mut inner = self.lock();
        let held = inner.mode != Mode::Running;
        if inner.mode == Mode::Held && !inner.waiting.iter().any(|known| known.will_wake(waker)) {
            inner.waiting.push(waker.clone());
        }
        held
    }

    /// Stops it where it stands, as SIGSTOP does.
    pub fn hold(&self) {
        let mut inner = self.lock();
        if inner.mode == Mode::Running {
            inner.mode = Mode::Held;
        }
    }

    /// Lets it go on.
    pub fn release(&self) {
        let waiting = {
            let mut inner = self.lock();
            if inner.mode == Mode::Held {
                inner.mode = Mode::Running;
            }
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Kills it: none of its tasks is polled again.
    pub fn kill(&self) {
        let (tasks, waiting) = {
            let mut inner = self.lock();
            inner.mode = Mode::Dead;
            (std::mem::take(&mut inner.tasks), std::mem::take(&mut inner.waiting))
        };
        tasks.iter().for_each(AbortHandle::abort);
        drop(waiting);
    }

    /// Runs a task in it.
    pub fn run<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = tokio::spawn(Within { process: Arc::clone(self), future: Box::pin(future) });
        self.began(task.abort_handle());
        task
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future that is polled only while its process runs.
struct Within<F> {
    process: Arc<Process>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if self.process.held(context.waker()) {
            return Poll::Pending;
        }
        self.future.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };

    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    fn process() -> Arc<Process> {
        Process::new("n1", Seed::new(1), Arc::new(Wall::new(0)))
    }

    /// Counts every 10 ms.
    fn ticking(process: &Arc<Process>) -> (Arc<AtomicU64>, JoinHandle<()>) {
        let count = Arc::new(AtomicU64::new(0));
        let ticks = Arc::clone(&count);
        let task = process.run(async move {
            loop {
                tokio::time::sleep(TICK).await;
                ticks.fetch_add(1, Ordering::SeqCst);
            }
        });
        (count, task)
    }

    async fn pass(ticks: u32) {
        tokio::time::sleep(TICK * ticks + TICK / 2).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_process_does_nothing_and_then_goes_on() {
        let process = process();
        let (count, _task) = ticking(&process);
        pass(5).await;
        assert_eq!(count.load(Ordering::SeqCst), 5);
        process.hold();
        pass(100).await;
        assert_eq!((count.load(Ordering::SeqCst), process.mode()), (5, Mode::Held));
        process.release();
        pass(4).await;
        assert_eq!(count.load(Ordering::SeqCst), 5 + 5, "the timer that was due fires once, late; then it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_process_ends_with_all_its_tasks_and_begins_none() {
        let process = process();
        let (count, task) = ticking(&process);
        pass(2).await;
        process.kill();
        assert!(task.await.unwrap_err().is_cancelled());
        let late = process.run(async { 7 });
        assert!(late.await.unwrap_err().is_cancelled());
        process.release();
        pass(5).await;
        assert_eq!((count.load(Ordering::SeqCst), process.mode()), (2, Mode::Dead));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_can_be_killed_while_it_stands_still() {
        let process = process();
        let (_count, task) = ticking(&process);
        process.hold();
        pass(3).await;
        process.kill();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn ended_tasks_are_forgotten() {
        let process = process();
        for _ in 0..4 * TASKS_KEPT {
            process.run(async {}).await.unwrap();
        }
        assert!(process.lock().tasks.len() <= TASKS_KEPT);
    }
}
