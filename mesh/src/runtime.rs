//! What a node takes from outside the program: tasks, threads for blocking work, randomness, the wall clock. In a real
//! process they are the system's. A simulation gives each of its nodes a [`World`] of its own, in which everything follows
//! from a seed and ends when the node is switched off. Timers and steady time are tokio's everywhere, which the
//! simulation drives as well.
//!
//! Code that reaches for `tokio::spawn`, `std::time::Instant` or the system's random numbers past this file would
//! behave differently from one run of a seed to the next.

use std::{
    cell::RefCell,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{SystemTime, UNIX_EPOCH},
};

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::task::{AbortHandle, JoinHandle};

/// What a node reached, for a simulation that counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// A snapshot of the log was installed: in a member without a log, or in one whose log ended before the snapshot.
    Snapshot {
        /// Whether it had a log.
        behind: bool,
    },
    /// An operation waits for its turn; no journal has it.
    Queued,
    /// The journal has it as running.
    Running,
    /// The journal has its outcome, which nobody was told.
    Ended,
    /// Its outcome was told, or it needs no row in the journal.
    Over,
}

/// One simulated node's outside.
pub trait World: fmt::Debug + Send + Sync + 'static {
    /// Milliseconds since the Unix epoch by this node's clock, which may be wrong.
    fn wall_ms(&self) -> u64;
    /// Fills `bytes` from the node's seed.
    fn fill(&self, bytes: &mut [u8]);
    /// A task that ends with the node.
    fn began(&self, task: AbortHandle);
    /// Whether the node stands still now, as under SIGSTOP: none of its tasks may be polled, and `waker` is woken when it
    /// goes on.
    fn held(&self, _waker: &Waker) -> bool {
        false
    }
    /// Whether the simulation wants this mistake to be made, to see that it is found.
    #[cfg(feature = "broken")]
    fn is_broken(&self, _what: &str) -> bool {
        false
    }
    /// What the node obeys: an epoch and a term, for the simulation's checks.
    #[cfg(feature = "broken")]
    fn obeys(&self, _epoch: u64, _term: u64) {}
    /// What the node reached with the operation `of`, for the simulation's counts.
    #[cfg(feature = "broken")]
    fn reached(&self, _what: Reached, _of: &str) {}
    /// A limit that the simulation may set lower than it `usual`ly is, so that it is reached.
    #[cfg(feature = "broken")]
    fn limit(&self, _what: &str, usual: u64) -> u64 {
        usual
    }
}

thread_local! {
    static WORLD: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// The world of the simulated node whose code runs now; `None` in a real process.
#[must_use]
pub fn world() -> Option<Arc<dyn World>> {
    WORLD.with(|world| world.borrow().clone())
}

/// Whether this is a simulation: no thread may be started and nothing may block.
#[must_use]
pub fn is_simulated() -> bool {
    WORLD.with(|world| world.borrow().is_some())
}

/// A future that runs in a world.
#[derive(Debug)]
pub struct Inhabit<F> {
    world: Arc<dyn World>,
    /// Taken only when it is dropped.
    future: Option<Pin<Box<F>>>,
}

/// Runs `future` in `world`, and every task it begins.
pub fn inhabit<F: Future>(world: Arc<dyn World>, future: F) -> Inhabit<F> {
    Inhabit { world, future: Some(Box::pin(future)) }
}

impl<F> Inhabit<F> {
    fn within<T>(world: &Arc<dyn World>, run: impl FnOnce() -> T) -> T {
        /// Puts back what stood there, also when `run` panics.
        struct Before(Option<Arc<dyn World>>);
        impl Drop for Before {
            fn drop(&mut self) {
                WORLD.with(|world| world.replace(self.0.take()));
            }
        }
        let _before = Before(WORLD.with(|here| here.replace(Some(Arc::clone(world)))));
        run()
    }
}

impl<F: Future> Future for Inhabit<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let world = Arc::clone(&self.world);
        if world.held(context.waker()) {
            return Poll::Pending;
        }
        match &mut self.future {
            Some(future) => Self::within(&world, || future.as_mut().poll(context)),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Inhabit<F> {
    /// What the future holds ends in the world as well: a destructor may begin a task.
    fn drop(&mut self) {
        let future = self.future.take();
        Self::within(&self.world, || drop(future));
    }
}

/// Starts a task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match world() {
        None => tokio::spawn(future),
        Some(world) => {
            let task = tokio::spawn(inhabit(Arc::clone(&world), future));
            world.began(task.abort_handle());
            task
        }
    }
}

/// The runtime that a part was built on, to start tasks on it from threads of other runtimes.
#[derive(Clone, Debug)]
pub struct Spawner {
    handle: tokio::runtime::Handle,
    world: Option<Arc<dyn World>>,
}

impl Spawner {
    /// The runtime of the calling task.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn current() -> Self {
        Self { handle: tokio::runtime::Handle::current(), world: world() }
    }

    /// Starts a task there.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match &self.world {
            None => self.handle.spawn(future),
            Some(world) => {
                let task = self.handle.spawn(inhabit(Arc::clone(world), future));
                world.began(task.abort_handle());
                task
            }
        }
    }
}

/// Runs work that may block, on a thread for such work; in a simulation here and now.
///
/// # Errors
/// In words, when the work panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    if is_simulated() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}

/// Milliseconds since the Unix epoch; zero when the clock stands before it.
#[must_use]
pub fn wall_ms() -> u64 {
    if let Some(world) = world() {
        return world.wall_ms();
    }
    #[expect(clippy::disallowed_methods, reason = "this is the seam that the rule points to")]
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the simulation wants this mistake to be made here. Never in a build without the feature `broken`, which nothing
/// that is shipped has.
#[must_use]
pub fn is_broken(what: &str) -> bool {
    #[cfg(feature = "broken")]
    return world().is_some_and(|world| world.is_broken(what));
    #[cfg(not(feature = "broken"))]
    {
        let _ = what;
        false
    }
}

/// Shows a simulation which epoch and term are obeyed here. Nothing in a build without the feature `broken`.
pub fn obeys(epoch: u64, term: u64) {
    #[cfg(feature = "broken")]
    if let Some(world) = world() {
        world.obeys(epoch, term);
    }
    #[cfg(not(feature = "broken"))]
    let _ = (epoch, term);
}

/// Shows a simulation what was reached here with the operation `of`. Nothing in a build without the feature `broken`.
pub fn reached(what: Reached, of: &str) {
    #[cfg(feature = "broken")]
    if let Some(world) = world() {
        world.reached(what, of);
    }
    #[cfg(not(feature = "broken"))]
    let _ = (what, of);
}

/// A limit: `usual`, unless a simulation wants it to be reached early.
#[must_use]
pub fn limit(what: &str, usual: u64) -> u64 {
    #[cfg(feature = "broken")]
    return world().map_or(usual, |world| world.limit(what, usual));
    #[cfg(not(feature = "broken"))]
    {
        let _ = what;
        usual
    }
}

/// Random bytes from the system.
///
/// # Errors
/// When the system gives none.
pub fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    match world() {
        Some(world) => world.fill(&mut bytes),
        None => SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?,
    }
    Ok(bytes)
}

/// The system gives no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness;

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[derive(Debug, Default)]
    struct Still(Mutex<Vec<AbortHandle>>, AtomicBool);

    impl World for Still {
        fn wall_ms(&self) -> u64 {
            7
        }

        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(9);
        }

        fn began(&self, task: AbortHandle) {
            self.0.lock().unwrap().push(task);
        }

        fn held(&self, _waker: &Waker) -> bool {
            self.1.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_world_is_seen_by_its_tasks_and_theirs_and_by_nobody_else() {
        let world = Arc::new(Still::default());
        let inner = inhabit(world.clone(), async {
            let there = spawn(async { (wall_ms(), blocking(is_simulated).await) }).await.unwrap();
            (there, random::<2>())
        });
        assert_eq!(inner.await, ((7, Ok(true)), Ok([9, 9])));
        assert_eq!(world.0.lock().unwrap().len(), 1);
        assert!(!is_simulated() && wall_ms() > 7);
        assert_ne!(random::<16>(), random::<16>());
    }

    #[tokio::test]
    async fn a_node_that_is_switched_off_takes_its_tasks_along() {
        let world = Arc::new(Still::default());
        let begun = inhabit(world.clone(), async { vec![spawn(std::future::pending::<()>())] }).await;
        world.0.lock().unwrap().iter().for_each(AbortHandle::abort);
        for task in begun {
            assert!(task.await.unwrap_err().is_cancelled());
        }
    }

    #[tokio::test]
    async fn a_node_that_stands_still_polls_nothing() {
        let world = Arc::new(Still::default());
        world.1.store(true, Ordering::SeqCst);
        let mut task = std::pin::pin!(inhabit(world.clone(), async { 7 }));
        assert!(futures_util::poll!(task.as_mut()).is_pending());
        world.1.store(false, Ordering::SeqCst);
        assert_eq!(task.await, 7);
    }

    #[tokio::test]
    async fn what_a_task_holds_ends_in_its_world() {
        struct Last(Arc<AtomicBool>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.store(is_simulated(), Ordering::SeqCst);
            }
        }
        let seen = Arc::new(AtomicBool::new(false));
        let last = Last(Arc::clone(&seen));
        drop(inhabit(Arc::new(Still::default()), async move {
            let _last = last;
        }));
        assert!(seen.load(Ordering::SeqCst));
    }
}
