//! How long this device has slept. The lease is counted by a clock that stands still while the device is suspended; what it
//! missed is told here (failure rule F11).

use std::time::Duration;

use crate::runtime;

/// How long the device has been suspended since it was started. In a simulation never: its clock goes on.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn slept() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let read = |clock| {
        let time = clock_gettime(clock);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
    };
    if runtime::is_simulated() {
        return Duration::ZERO;
    }
    // In this order a wait between the two readings makes the sleep shorter, and never makes one up.
    let with_sleep = read(ClockId::Boottime);
    let without = read(ClockId::Monotonic);
    with_sleep.saturating_sub(without)
}

/// Other systems' steady clocks, as tokio reads them, are not compared: there the engine's patience and the term that
/// every order carries hold alone.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn slept() -> Duration {
    let _ = runtime::is_simulated;
    Duration::ZERO
}
