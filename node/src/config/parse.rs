//! One function for each kind of value; flags, environment and file all use them. Pure.

use std::{
    ffi::{OsStr, OsString},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use chappie_mesh::{InviteCode, InviteCodeError, consensus::Voting};
use serde::{Deserialize, Serialize};

use super::SessionSpec;

/// A name is one line on a screen and one label in a list.
const NAME_CHARS_MAX: usize = 64;
/// Longer than a day is a mistake in the unit.
const COOLDOWN_SECONDS_MAX: f64 = 86_400.0;
/// ChatGPT gives up after 60 s; five are kept for the way back.
const CALL_BUDGET_SECONDS_MAX: f64 = 55.0;

/// A name in the domain name system has at most 253 characters (RFC 1035 section 3.1, as it is written).
const HOST_CHARS_MAX: usize = 253;
/// Every one is tried until it answers; a fleet larger than this finds itself through its members.
const CONNECT_MAX: usize = 64;

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Bytes that are not UTF-8.
    #[error("the value is not UTF-8 text")]
    NotText,
    /// Not a name.
    #[error("{0:?} is not a name: 1 to {NAME_CHARS_MAX} characters on one line")]
    Name(String),
    /// Not a name that other devices take.
    #[error("{0}; give another with --name")]
    DeviceName(String),
    /// Not a folder.
    #[error("{0:?} names no folder; write DIR or DIR=NAME")]
    Session(OsString),
    /// Not an address.
    #[error("{0:?} is not an address; write HOST:PORT, for example 127.0.0.1:24276 or [::1]:0")]
    Address(String),
    /// No address that can be listened on.
    #[error(
        "{0:?} is not an address to listen on; write ADDRESS:PORT, for example 0.0.0.0:24274, [::]:24274 or [::]:0"
    )]
    Listen(String),
    /// No place to dial.
    #[error(
        "{0:?} is no HOST:PORT; write a name, an IPv4 address or an IPv6 address in brackets, then `:` and the port, for \
         example laptop.local:24274 or [2001:db8::7]:24274"
    )]
    Connect(String),
    /// More places than are tried.
    #[error("{0} addresses are more than the {CONNECT_MAX} that are tried; devices tell each other the rest")]
    ConnectCount(usize),
    /// No invite code. It never says what was found: a code that is mistyped in one place is still a secret.
    #[error(transparent)]
    Code(#[from] InviteCodeError),
    /// An address that other machines can reach.
    #[error(
        "{0} is not a loopback address: other machines could reach this door, and it asks nobody who they are; use \
         127.0.0.1 or [::1], and a tunnel for what is outside"
    )]
    NotLoopback(IpAddr),
    /// Not true or false.
    #[error("{0:?} is neither true nor false")]
    Boolean(String),
    /// Not a word on voting.
    #[error("{0:?} is none of auto, always, never")]
    Voter(String),
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

/// A session's name.
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

/// A device's name: other devices and their terminals show it.
///
/// # Errors
/// As for [`name`], and when it is longer than the mesh carries or turns the text around it.
pub fn device_name(text: &str) -> Result<String, Invalid> {
    let name = name(text)?;
    chappie_mesh::check_name(&name).map_err(Invalid::DeviceName)?;
    Ok(name)
}

/// Whether a device votes: `auto`, `always` or `never`.
///
/// # Errors
/// When it is another word.
pub fn voter(text: &str) -> Result<Voting, Invalid> {
    match text.trim() {
        "auto" => Ok(Voting::Auto),
        "always" => Ok(Voting::Always),
        "never" => Ok(Voting::Never),
        _ => Err(Invalid::Voter(text.chars().take(2 * NAME_CHARS_MAX).collect())),
    }
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

/// Where the mesh listens.
///
/// # Errors
/// When it is no address with a port, or one that no machine has.
pub fn listen(text: &str) -> Result<SocketAddr, Invalid> {
    let address: SocketAddr = text.trim().parse().map_err(|_| Invalid::Listen(shown(text)))?;
    let broadcast = address.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.ip().is_multicast() || broadcast { Err(Invalid::Listen(shown(text))) } else { Ok(address) }
}

/// One place to dial, `HOST:PORT`, as it was written but for spaces around it.
///
/// # Errors
/// When the host is neither a name nor an address, or the port is none that can be dialled.
pub fn connect(text: &str) -> Result<String, Invalid> {
    let trimmed = text.trim();
    let invalid = || Invalid::Connect(shown(text));
    // With a scope, a link-local address is dialable too: `[fe80::1%2]:24274`.
    if let Ok(address) = trimmed.parse::<SocketAddr>() {
        let dialable = address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast();
        return if dialable { Ok(trimmed.to_owned()) } else { Err(invalid()) };
    }
    let (host, port) = trimmed.rsplit_once(':').ok_or_else(invalid)?;
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = digits && port.parse::<u16>().is_ok_and(|port| port != 0);
    if numbered && is_host_name(host) { Ok(trimmed.to_owned()) } else { Err(invalid()) }
}

/// RFC 1123 section 2.1 and, as resolvers do, with underscores. What is all digits and dots would be an IPv4 address
/// that was not one.
fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    let numeric = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (1..=HOST_CHARS_MAX).contains(&name.len()) && !numeric && name.split('.').all(label)
}

/// Places to dial, separated by commas.
pub(super) fn connect_list(text: &str) -> Result<Vec<String>, Invalid> {
    connect_all(text.split(',').filter(|place| !place.trim().is_empty()).map(str::to_owned).collect())
}

pub(super) fn connect_all(places: Vec<String>) -> Result<Vec<String>, Invalid> {
    if places.len() > CONNECT_MAX {
        return Err(Invalid::ConnectCount(places.len()));
    }
    places.iter().map(|place| connect(place)).collect()
}

/// As much of a wrong value as a message can show.
fn shown(text: &str) -> String {
    text.chars().take(2 * NAME_CHARS_MAX).collect()
}

/// An invite code on its way from a person to the node: checked, and a secret that no log, error or debug print shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JoinCode(InviteCode);

impl JoinCode {
    /// What the code says.
    #[must_use]
    pub const fn invite(&self) -> &InviteCode {
        &self.0
    }
}

impl From<InviteCode> for JoinCode {
    fn from(code: InviteCode) -> Self {
        Self(code)
    }
}

impl FromStr for JoinCode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Ok(Self(text.parse()?))
    }
}

impl TryFrom<String> for JoinCode {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<JoinCode> for String {
    fn from(code: JoinCode) -> Self {
        code.0.to_string()
    }
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
