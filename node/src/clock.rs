//! The one place that reads the wall clock and draws random ids. Pure modules get both as arguments.

use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::ids::{CallId, Millis, SessionId};

/// Now, in milliseconds since the Unix epoch; zero when the clock stands before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the seam that the rule points to")]
pub fn now() -> Millis {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// A fresh operation identity.
#[must_use]
pub fn call_id() -> CallId {
    CallId(Uuid::now_v7().to_string())
}

/// A fresh session identity.
#[must_use]
pub fn session_id() -> SessionId {
    SessionId(Uuid::now_v7().to_string())
}

/// A fresh random token (122 bits) for names that must not be guessed or repeated.
#[must_use]
pub fn token() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Fresh random bytes from the system, for keys and secrets.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // Blocks only before the system's generator is seeded, which is long before a user's program starts.
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the system gives no random bytes: {error}"),
        }
    }
    bytes
}

/// `stamp` as RFC 3339 in UTC with milliseconds, the form history shows.
#[must_use]
pub fn rfc3339(stamp: Millis) -> String {
    let ms = i64::try_from(stamp.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| format!("{}ms", stamp.0), |t| format!("{t:.3}"))
}
