//! The flags that a node takes, whether `up` or `mcp` runs it. They name the settings of [`crate::config`].

use std::{ffi::OsString, net::SocketAddr, time::Duration};

use chappie_mesh::consensus::Voting;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use crate::config::{self, Layer, SessionSpec};

#[derive(Debug, clap::Args)]
pub(super) struct Settings {
    /// What people call this device [default: host name] [env: CHAPPIE_NAME]
    #[arg(long, value_parser = config::device_name)]
    name: Option<String>,
    /// Open a session in a folder; may be repeated [env: CHAPPIE_SESSION, with `:` between]
    #[arg(long, value_name = "DIR[=NAME]",
        value_parser = OsStringValueParser::new().try_map(|text: OsString| config::session(&text)))]
    session: Vec<SessionSpec>,
    /// Where the mesh listens, UDP; port 0 is a free one [default: [::]:24274, all addresses] [env: CHAPPIE_LISTEN]
    #[arg(long, value_name = "ADDR", value_parser = config::listen)]
    listen: Option<SocketAddr>,
    /// Where another device is, where multicast cannot say; may be repeated [env: CHAPPIE_CONNECT, with `,` between]
    #[arg(long, value_name = "HOST:PORT", value_parser = config::connect)]
    connect: Vec<String>,
    /// Neither look for devices nor be seen by multicast DNS [env: CHAPPIE_NO_MDNS]
    #[arg(long)]
    no_mdns: bool,
    /// Whether this device votes on who is broker: auto, always or never [default: auto] [env: CHAPPIE_VOTER]
    #[arg(long, value_name = "WORD", value_parser = config::voter)]
    voter: Option<Voting>,
    /// Seconds in which a second run of a chat is told to observe; 0 turns it off [default: 20] [env: CHAPPIE_COOLDOWN]
    #[arg(long, value_name = "SECONDS", value_parser = config::cooldown)]
    cooldown: Option<Duration>,
    /// Seconds until a call is answered as running, 1 to 55 [default: 45] [env: CHAPPIE_CALL_BUDGET]
    #[arg(long, value_name = "SECONDS", value_parser = config::call_budget)]
    call_budget: Option<Duration>,
    /// What to log, like `info` or `chappie=debug,warn` [env: CHAPPIE_LOG]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

impl Settings {
    /// What the flags say.
    pub(super) fn layer(self) -> Layer {
        Layer {
            name: self.name,
            session: Some(self.session).filter(|list| !list.is_empty()),
            listen: self.listen,
            connect: Some(self.connect).filter(|list| !list.is_empty()),
            mdns: self.no_mdns.then_some(false),
            voter: self.voter,
            cooldown: self.cooldown,
            call_budget: self.call_budget,
            log: self.log,
            ..Layer::default()
        }
    }
}
