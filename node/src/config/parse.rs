//! One function for each kind of value; flags, environment and file all use them. Pure.

use std::{
    ffi::{OsStr, OsString},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
    time::Duration,
};

use super::SessionSpec;

/// A name is one line on a screen and one label in a list.
const NAME_CHARS_MAX: usize = 64;
/// Longer than a day is a mistake in the unit.
const COOLDOWN_SECONDS_MAX: f64 = 86_400.0;
/// ChatGPT gives up after 60 s; five are kept for the way back.
const CALL_BUDGET_SECONDS_MAX: f64 = 55.0;

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Bytes that are not UTF-8.
    #[error("the value is not UTF-8 text")]
    NotText,
    /// Not a name.
    #[error("{0:?} is not a name: 1 to {NAME_CHARS_MAX} characters on one line")]
    Name(String),
    /// Not a folder.
    #[error("{0:?} names no folder; write DIR or DIR=NAME")]
    Session(OsString),
    /// Not an address.
    #[error("{0:?} is not an address; write HOST:PORT, for example 127.0.0.1:24276 or [::1]:0")]
    Address(String),
    /// An address that other machines can reach.
    #[error(
        "{0} is not a loopback address: other machines could reach this door, and it asks nobody who they are; use \
         127.0.0.1 or [::1], and a tunnel for what is outside"
    )]
    NotLoopback(IpAddr),
    /// Not true or false.
    #[error("{0:?} is neither true nor false")]
    Boolean(String),
    /// Not a number of seconds.
    #[error("{0:?} is not a number of seconds")]
    Seconds(String),
    /// Outside what the setting may be.
    #[error("{found} seconds is outside {min} to {max}")]
    Range {
        /// What was given.
        found: String,
        /// The least.
        min: String,
        /// The most.
        max: String,
    },
}

/// A device's or session's name.
///
/// # Errors
/// When it is empty, too long, or holds control characters.
pub fn name(text: &str) -> Result<String, Invalid> {
    let trimmed = text.trim();
    let fits = (1..=NAME_CHARS_MAX).contains(&trimmed.chars().count());
    if !fits || trimmed.chars().any(char::is_control) {
        return Err(Invalid::Name(text.chars().take(2 * NAME_CHARS_MAX).collect()));
    }
    Ok(trimmed.to_owned())
}

/// `DIR` or `DIR=NAME`. The last `=` splits, unless a `/` follows it: `a=b/` is the folder `a=b`.
///
/// # Errors
/// When the folder or the name is empty or cannot be.
pub fn session(text: &OsStr) -> Result<SessionSpec, Invalid> {
    let bytes = text.as_bytes();
    let split = bytes.iter().rposition(|byte| *byte == b'=').filter(|at| !bytes[*at..].contains(&b'/'));
    let (dir, label) = match split {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    };
    if dir.is_empty() || dir.contains(&0) {
        return Err(Invalid::Session(text.to_owned()));
    }
    let label =
        label.map(|label| std::str::from_utf8(label).map_err(|_| Invalid::NotText).and_then(name)).transpose()?;
    Ok(SessionSpec { dir: PathBuf::from(OsString::from_vec(dir.to_vec())), name: label })
}

/// Several sessions in one environment variable, separated by `:` as in `PATH`.
pub(super) fn session_list(value: &OsStr) -> Result<Vec<SessionSpec>, Invalid> {
    let items = value.as_bytes().split(|byte| *byte == b':').filter(|item| !item.is_empty());
    items.map(|item| session(OsStr::from_bytes(item))).collect()
}

/// A loopback address and port.
///
/// # Errors
/// When it is no address, or one that other machines can reach.
pub fn mcp(text: &str) -> Result<SocketAddr, Invalid> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let address = match local {
        Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        None => text.parse().map_err(|_| Invalid::Address(text.to_owned()))?,
    };
    if !address.ip().is_loopback() {
        return Err(Invalid::NotLoopback(address.ip()));
    }
    Ok(address)
}

pub(super) fn boolean(text: &str) -> Result<bool, Invalid> {
    match text {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(Invalid::Boolean(text.to_owned())),
    }
}

/// The participation window in seconds; zero or more.
///
/// # Errors
/// When it is no number or out of range.
pub fn cooldown(text: &str) -> Result<Duration, Invalid> {
    cooldown_seconds(number(text)?)
}

/// The call budget in seconds; 1 to 55.
///
/// # Errors
/// When it is no number or out of range.
pub fn call_budget(text: &str) -> Result<Duration, Invalid> {
    call_budget_seconds(number(text)?)
}

pub(super) fn cooldown_seconds(seconds: f64) -> Result<Duration, Invalid> {
    within(seconds, 0.0, COOLDOWN_SECONDS_MAX)
}

pub(super) fn call_budget_seconds(seconds: f64) -> Result<Duration, Invalid> {
    within(seconds, 1.0, CALL_BUDGET_SECONDS_MAX)
}

fn number(text: &str) -> Result<f64, Invalid> {
    text.trim().parse().map_err(|_| Invalid::Seconds(text.to_owned()))
}

fn within(seconds: f64, min: f64, max: f64) -> Result<Duration, Invalid> {
    // NaN is in no range, so it ends here as well.
    if !(min..=max).contains(&seconds) {
        return Err(Invalid::Range { found: seconds.to_string(), min: min.to_string(), max: max.to_string() });
    }
    Ok(Duration::from_secs_f64(seconds))
}
