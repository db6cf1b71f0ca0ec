//! The one place that reads the wall clock and draws random ids. Pure modules get both as arguments.

use chappie_mesh::runtime;
use uuid::Uuid;

use crate::ids::{CallId, Millis, SessionId};

/// Now, in milliseconds since the Unix epoch; zero when the clock stands before it.
#[must_use]
pub fn now() -> Millis {
    Millis(runtime::wall_ms())
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
