//! Runs one seed: on a thread of its own, so that what threads keep begins clean, in a runtime of its own whose time
//! stands still and whose choices are seeded. A panic anywhere on it, also in a task that nobody waits for, fails the
//! seed. Real time has one use here: a seed that never ends is found.

use std::{
    cell::RefCell,
    panic,
    sync::{Once, mpsc},
    thread,
    time::Duration,
};

use tokio::runtime::{Builder, RngSeed};

use super::seed::Seed;

/// Tasks of a node hold large futures on the stack while they are made.
const STACK_BYTES: usize = 16 * 1024 * 1024;
/// A seed takes some seconds even on a busy machine in a debug build.
const REAL_TIME_MAX: Duration = Duration::from_secs(600);

thread_local! {
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `scenario` with this seed.
///
/// # Errors
/// In words: what panicked, or what the scenario itself found.
pub fn simulate<T, F>(number: u64, scenario: impl FnOnce(Seed) -> F + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    F: Future<Output = Result<T, String>>,
{
    listen();
    let (done, result) = mpsc::channel();
    let thread = thread::Builder::new().name(format!("seed {number}")).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        PANICS.with(|panics| *panics.borrow_mut() = Some(Vec::new()));
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| in_runtime(number, scenario)));
        let panics = PANICS.with(|panics| panics.borrow_mut().take()).unwrap_or_default();
        let outcome = match (panics.first(), outcome) {
            (Some(first), _) => Err(format!("panic: {first}")),
            (None, Ok(outcome)) => outcome,
            (None, Err(_)) => Err("panic without a word".to_owned()),
        };
        // Nobody listens any more when this took too long.
        let _gone = done.send(outcome);
    });
    started.map_err(|error| format!("no thread: {error}"))?;
    result.recv_timeout(REAL_TIME_MAX).unwrap_or_else(|_| {
        Err(format!("did not end in {} s of real time: something turns without waiting", REAL_TIME_MAX.as_secs()))
    })
}

fn in_runtime<T, F: Future<Output = Result<T, String>>>(
    number: u64,
    scenario: impl FnOnce(Seed) -> F,
) -> Result<T, String> {
    let seed = Seed::new(number);
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).rng_seed(RngSeed::from_bytes(&seed.fork("tokio").bytes()));
    let runtime = builder.build().map_err(|error| format!("no runtime: {error}"))?;
    // Inside, because a scenario may read the clock before it waits for the first time.
    runtime.block_on(async { scenario(seed).await })
}

/// Writes down panics of threads that run a seed; those of all others are shown as ever.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let seen = PANICS.with(|panics| match panics.borrow_mut().as_mut() {
                Some(panics) => {
                    panics.push(info.to_string());
                    true
                }
                None => false,
            });
            if !seen {
                usual(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn an_hour_passes_in_no_time_and_only_virtually() {
        let before = std::time::Instant::now();
        let virtual_time = simulate(1, |_| async {
            let start = Instant::now();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok(start.elapsed())
        });
        assert_eq!(virtual_time, Ok(Duration::from_secs(3600)));
        assert!(before.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_panic_in_a_forgotten_task_fails_the_seed() {
        let outcome = simulate(1, |_| async {
            tokio::spawn(async { panic!("in a task") });
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        });
        let told = outcome.unwrap_err();
        assert!(told.contains("in a task") && told.contains("run.rs"), "{told}");
        let whole =
            simulate(1, |_| async { if Instant::now().elapsed() < Duration::MAX { panic!("itself") } else { Ok(()) } });
        assert!(whole.unwrap_err().contains("itself"));
        assert_eq!(simulate(1, |_| async { Err::<(), _>("found".to_owned()) }), Err("found".to_owned()));
    }

    async fn race(_seed: Seed) -> Result<Vec<u8>, String> {
        let mut order = Vec::new();
        for _ in 0..64 {
            tokio::select! {
                () = std::future::ready(()) => order.push(0),
                () = std::future::ready(()) => order.push(1),
                () = std::future::ready(()) => order.push(2),
            }
        }
        Ok(order)
    }

    #[test]
    fn tokios_own_choices_follow_the_seed() {
        assert_eq!(simulate(1, race), simulate(1, race));
        assert_ne!(simulate(1, race), simulate(2, race));
    }
}
