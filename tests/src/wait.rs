//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

/// How often a condition is looked at. Short enough to keep tests quick, long enough to leave the two cores alone.
const POLL: Duration = Duration::from_millis(20);

/// Patience for things that take well under a second when the machine is idle.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `look` gives something and returns it.
///
/// # Panics
/// When nothing came within [`PATIENCE`]; `what` says what was awaited.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look).await
}

/// The same with a patience of the caller's.
///
/// # Panics
/// When nothing came within `patience`.
pub async fn within<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < patience, "{what}: not seen within {patience:?}");
        tokio::time::sleep(POLL).await;
    }
}
