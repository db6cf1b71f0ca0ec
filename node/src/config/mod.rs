//! Settings: flags, then environment, then `config.toml`, then defaults, one name for each, into one [`Config`] that is
//! valid. Pure; [`load`] reads the process and the file, [`home`] makes the folder.

pub mod home;
pub mod load;
mod parse;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    path::{Path, PathBuf},
    time::Duration,
};

use chappie_mesh::consensus::Voting;
use serde::Deserialize;

pub use parse::{Invalid, JoinCode, call_budget, connect, cooldown, device_name, listen, mcp, name, session, voter};

/// Where MCP is served when nothing else is said (design section 11).
pub const MCP_DEFAULT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 24276));
/// Where the mesh listens when nothing else is said: all addresses of both families (design section 11).
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 24274, 0, 0));
/// The same where the system has no IPv6.
pub const LISTEN_DEFAULT_V4: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 24274));
/// How long a conversation keeps the word in a session (design section 12).
pub const COOLDOWN_DEFAULT: Duration = Duration::from_secs(20);
/// How long a call is held before it is answered as running: ChatGPT cuts at 60 s, and the answer needs time to arrive.
pub const CALL_BUDGET_DEFAULT: Duration = Duration::from_secs(45);
/// The settings' file inside the home folder.
pub const FILE: &str = "config.toml";

/// A folder that shall be a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpec {
    /// Its path, absolute.
    pub dir: PathBuf,
    /// A name for people.
    pub name: Option<String>,
}

/// All settings of one node, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The folder with everything of this node, absolute.
    pub home: PathBuf,
    /// What people call this device.
    pub name: String,
    /// Sessions to open at the start.
    pub sessions: Vec<SessionSpec>,
    /// Where MCP over HTTP listens: a loopback address; port 0 takes a free one.
    pub mcp: SocketAddr,
    /// Where the mesh listens (UDP); port 0 takes a free one. `None` is [`LISTEN_DEFAULT`], or [`LISTEN_DEFAULT_V4`]
    /// where there is no IPv6.
    pub listen: Option<SocketAddr>,
    /// Where other devices may be found, `HOST:PORT`; names are resolved at each try.
    pub connect: Vec<String>,
    /// Whether devices are looked for, and this one shown, by multicast DNS.
    pub mdns: bool,
    /// Whether this device may vote on who is broker, and so be it.
    pub voter: Voting,
    /// The invite that a node without a mesh uses at its start.
    pub join: Option<JoinCode>,
    /// Whether the ready line is JSON.
    pub json: bool,
    /// Length of the participation window; zero turns it off.
    pub cooldown: Duration,
    /// How long a call may be held, 1 to 55 s.
    pub call_budget: Duration,
    /// What to log, in the syntax of `RUST_LOG`.
    pub log: Option<String>,
}

/// The settings that one source states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// See [`Config::name`].
    pub name: Option<String>,
    /// See [`Config::sessions`]; folders as they were written.
    pub session: Option<Vec<SessionSpec>>,
    /// See [`Config::mcp`].
    pub mcp: Option<SocketAddr>,
    /// See [`Config::listen`].
    pub listen: Option<SocketAddr>,
    /// See [`Config::connect`].
    pub connect: Option<Vec<String>>,
    /// See [`Config::mdns`].
    pub mdns: Option<bool>,
    /// See [`Config::voter`].
    pub voter: Option<Voting>,
    /// See [`Config::join`].
    pub join: Option<JoinCode>,
    /// See [`Config::json`].
    pub json: Option<bool>,
    /// See [`Config::cooldown`].
    pub cooldown: Option<Duration>,
    /// See [`Config::call_budget`].
    pub call_budget: Option<Duration>,
    /// See [`Config::log`].
    pub log: Option<String>,
}

/// The environment variables that are settings, without `CHAPPIE_HOME`, which says where the file is.
const VARIABLES: [&str; 12] = [
    "CHAPPIE_NAME",
    "CHAPPIE_SESSION",
    "CHAPPIE_MCP",
    "CHAPPIE_LISTEN",
    "CHAPPIE_CONNECT",
    "CHAPPIE_NO_MDNS",
    "CHAPPIE_VOTER",
    "CHAPPIE_JOIN",
    "CHAPPIE_JSON",
    "CHAPPIE_COOLDOWN",
    "CHAPPIE_CALL_BUDGET",
    "CHAPPIE_LOG",
];
/// Says where the home folder is.
pub const HOME_VARIABLE: &str = "CHAPPIE_HOME";

/// Why there is no configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Neither the setting nor the usual variables say where the home folder is.
    #[error("cannot tell where to keep the node's files: HOME is not set; set CHAPPIE_HOME to a folder")]
    NoHome,
    /// The settings' file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The settings' file is not TOML, or holds a key or a type that is not known.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the parser said, with the line.
        cause: String,
    },
    /// A value that cannot be.
    #[error("{key} in {place}: {cause}")]
    Value {
        /// The setting as that place names it.
        key: &'static str,
        /// `the environment`, or the file's path.
        place: String,
        /// What is wrong with it.
        cause: Invalid,
    },
    /// A `CHAPPIE_` variable that is no setting.
    #[error("the environment variable {0} is no setting; there are CHAPPIE_HOME {known}", known = VARIABLES.join(" "))]
    Variable(String),
}

/// `config.toml` as it is written. Numbers are seconds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    session: Option<Vec<String>>,
    mcp: Option<String>,
    listen: Option<String>,
    connect: Option<Vec<String>>,
    mdns: Option<bool>,
    voter: Option<String>,
    join: Option<String>,
    json: Option<bool>,
    cooldown: Option<f64>,
    call_budget: Option<f64>,
    log: Option<String>,
}

impl Layer {
    /// The settings in the text of a `config.toml`.
    ///
    /// # Errors
    /// When it is not TOML, holds an unknown key, or a value that cannot be; the error names key and file.
    pub fn from_toml(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let written: Written = toml::from_str(text)
            .map_err(|cause| ConfigError::File { path: path.to_owned(), cause: located(&cause, text) })?;
        let place = path.display().to_string();
        let sessions = written
            .session
            .map(|list| list.iter().map(|text| parse::session(text.as_ref())).collect::<Result<Vec<_>, _>>())
            .transpose();
        Ok(Self {
            name: checked("name", &place, written.name.map(|text| parse::device_name(&text)).transpose())?,
            session: checked("session", &place, sessions)?,
            mcp: checked("mcp", &place, written.mcp.map(|text| parse::mcp(&text)).transpose())?,
            listen: checked("listen", &place, written.listen.map(|text| parse::listen(&text)).transpose())?,
            connect: checked("connect", &place, written.connect.map(parse::connect_all).transpose())?,
            mdns: written.mdns,
            voter: checked("voter", &place, written.voter.map(|text| parse::voter(&text)).transpose())?,
            join: checked("join", &place, written.join.map(|text| text.parse()).transpose())?,
            json: written.json,
            cooldown: checked("cooldown", &place, written.cooldown.map(parse::cooldown_seconds).transpose())?,
            call_budget: checked(
                "call_budget",
                &place,
                written.call_budget.map(parse::call_budget_seconds).transpose(),
            )?,
            log: written.log,
        })
    }

    /// The settings among environment variables. An empty variable counts as not set.
    ///
    /// # Errors
    /// When a variable that starts with `CHAPPIE_` is no setting, or a value cannot be.
    pub fn from_variables(variables: &[(OsString, OsString)]) -> Result<Self, ConfigError> {
        let mut layer = Self::default();
        for (variable, value) in variables {
            let Some(variable) = variable.to_str().filter(|variable| variable.starts_with("CHAPPIE_")) else {
                continue;
            };
            if value.is_empty() || variable == HOME_VARIABLE {
                continue;
            }
            let Some(key) = VARIABLES.into_iter().find(|known| *known == variable) else {
                return Err(ConfigError::Variable(variable.to_owned()));
            };
            checked(key, "the environment", layer.set(key, value))?;
        }
        Ok(layer)
    }

    fn set(&mut self, variable: &str, value: &OsString) -> Result<(), Invalid> {
        if variable == "CHAPPIE_SESSION" {
            self.session = Some(parse::session_list(value)?);
            return Ok(());
        }
        let text = value.to_str().ok_or(Invalid::NotText)?;
        match variable {
            "CHAPPIE_NAME" => self.name = Some(parse::device_name(text)?),
            "CHAPPIE_MCP" => self.mcp = Some(parse::mcp(text)?),
            "CHAPPIE_LISTEN" => self.listen = Some(parse::listen(text)?),
            "CHAPPIE_CONNECT" => self.connect = Some(parse::connect_list(text)?),
            "CHAPPIE_NO_MDNS" => self.mdns = Some(!parse::boolean(text)?),
            "CHAPPIE_VOTER" => self.voter = Some(parse::voter(text)?),
            "CHAPPIE_JOIN" => self.join = Some(text.parse()?),
            "CHAPPIE_JSON" => self.json = Some(parse::boolean(text)?),
            "CHAPPIE_COOLDOWN" => self.cooldown = Some(parse::cooldown(text)?),
            "CHAPPIE_CALL_BUDGET" => self.call_budget = Some(parse::call_budget(text)?),
            _ => self.log = Some(text.to_owned()),
        }
        Ok(())
    }

    /// The folders made absolute: `~/` from `user_home`, relative ones from `base`.
    #[must_use]
    pub fn anchored(mut self, base: &Path, user_home: Option<&Path>) -> Self {
        for spec in self.session.iter_mut().flatten() {
            spec.dir = match (spec.dir.strip_prefix("~"), user_home) {
                (Ok(rest), Some(user_home)) => user_home.join(rest),
                _ => base.join(&spec.dir),
            };
        }
        self
    }

    /// This layer where it says something, else `below`. A list replaces the list below it.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            name: self.name.or(below.name),
            session: self.session.or(below.session),
            mcp: self.mcp.or(below.mcp),
            listen: self.listen.or(below.listen),
            connect: self.connect.or(below.connect),
            mdns: self.mdns.or(below.mdns),
            voter: self.voter.or(below.voter),
            join: self.join.or(below.join),
            json: self.json.or(below.json),
            cooldown: self.cooldown.or(below.cooldown),
            call_budget: self.call_budget.or(below.call_budget),
            log: self.log.or(below.log),
        }
    }

    /// The whole configuration, with defaults for what nothing says.
    #[must_use]
    pub fn complete(self, home: PathBuf, host_name: &str) -> Config {
        Config {
            home,
            name: self.name.unwrap_or_else(|| parse::device_name(host_name).unwrap_or_else(|_| "device".to_owned())),
            sessions: self.session.unwrap_or_default(),
            mcp: self.mcp.unwrap_or(MCP_DEFAULT),
            listen: self.listen,
            connect: self.connect.unwrap_or_default(),
            mdns: self.mdns.unwrap_or(true),
            voter: self.voter.unwrap_or_default(),
            join: self.join,
            json: self.json.unwrap_or(false),
            cooldown: self.cooldown.unwrap_or(COOLDOWN_DEFAULT),
            call_budget: self.call_budget.unwrap_or(CALL_BUDGET_DEFAULT),
            log: self.log,
        }
    }
}

/// What the parser said and where, without the text that stands there: an invite code must not get into a log.
fn located(cause: &toml::de::Error, text: &str) -> String {
    let before = cause.span().and_then(|span| text.as_bytes().get(..span.start));
    let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
    let message = cause.message().trim();
    line.map_or_else(|| message.to_owned(), |line| format!("line {line}: {message}"))
}

fn checked<T>(key: &'static str, place: &str, value: Result<T, Invalid>) -> Result<T, ConfigError> {
    value.map_err(|cause| ConfigError::Value { key, place: place.to_owned(), cause })
}
