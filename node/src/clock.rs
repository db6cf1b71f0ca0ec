//! The one place that reads the wall clock and draws random ids. Pure modules get both as arguments.

use chappie_mesh::runtime;
use tokio::time::Instant;
use uuid::Uuid;

use crate::ids::{CallId, Millis, SessionId};

/// Now, in milliseconds since the Unix epoch; zero when the clock stands before it.
#[must_use]
pub fn now() -> Millis {
    Millis(runtime::wall_ms())
}

/// When something was: by the wall clock, which is written down and may be set meanwhile, and by the steady one of this
/// process, when it was in it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the wall clock.
    pub wall: Millis,
    steady: Option<Instant>,
}

impl Moment {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self { wall: now(), steady: Some(Instant::now()) }
    }

    /// One that was written down by an earlier process.
    #[must_use]
    pub const fn written(wall: Millis) -> Self {
        Self { wall, steady: None }
    }

    /// The same moment after somebody set the wall clock to `wall`.
    #[cfg(test)]
    pub(crate) const fn with_wall(self, wall: Millis) -> Self {
        Self { wall, ..self }
    }

    /// How long ago it was at `now`, in milliseconds. By the steady clock when it can be: nobody sets that.
    #[must_use]
    pub fn age_ms(&self, now: &Self) -> u64 {
        match (self.steady, now.steady) {
            (Some(then), Some(now)) => {
                u64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
            }
            _ => now.wall.since(self.wall),
        }
    }
}

/// A fresh operation identity.
#[must_use]
pub fn call_id() -> CallId {
    CallId(by_time().to_string())
}

/// A fresh session identity.
#[must_use]
pub fn session_id() -> SessionId {
    SessionId(by_time().to_string())
}

/// A UUIDv7: what is made later sorts later, to the millisecond.
fn by_time() -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(runtime::wall_ms(), &random()).into_uuid()
}

/// A fresh random token (122 bits) for names that must not be guessed or repeated.
#[must_use]
pub fn token() -> String {
    uuid::Builder::from_random_bytes(random()).into_uuid().simple().to_string()
}

/// Fresh random bytes, for keys and secrets.
///
/// # Panics
/// When the system gives none: nothing can be kept apart or secret then.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    runtime::random().unwrap_or_else(|error| panic!("{error}"))
}

/// `stamp` as RFC 3339 in UTC with milliseconds, the form history shows.
#[must_use]
pub fn rfc3339(stamp: Millis) -> String {
    let ms = i64::try_from(stamp.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| format!("{}ms", stamp.0), |t| format!("{t:.3}"))
}
