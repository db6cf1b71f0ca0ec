//! Identifiers and time stamps. Pure: nothing here reads a clock or draws randomness; whoever mints an id passes both in
//! or calls [`crate::clock`], the one place that does.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch. Stamped at the edge, before a command enters the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// This moment plus `ms` milliseconds, saturating.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

string_id! {
    /// One agent conversation in one folder of one device.
    SessionId
}
string_id! {
    /// One operation's identity inside Chappie (UUIDv7). A door makes it once and keeps it through every retry.
    CallId
}
string_id! {
    /// One entry of a session's history; stable for the life of the session.
    EntryId
}

impl CallId {
    /// When it was made, as a UUIDv7 says in its first 48 bits (RFC 9562 section 5.7); `None` for any other id.
    #[must_use]
    pub fn made(&self) -> Option<Millis> {
        let hex: String = self.0.chars().filter(|character| *character != '-').collect();
        if hex.len() != 32 || hex.as_bytes().get(12) != Some(&b'7') {
            return None;
        }
        u64::from_str_radix(hex.get(..12)?, 16).ok().map(Millis)
    }
}

/// Which ChatGPT chat (or which client connection) a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Conversation {
    /// `_meta["openai/session"]`: a correlator that outlives connections and restarts. Never a credential.
    Chat(String),
    /// A stdio process or a 2025-11-25 MCP session: nothing of it is kept beyond that connection.
    Connection(String),
}

impl Conversation {
    /// A text key in which the two kinds cannot collide.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Chat(id) => format!("chat:{id}"),
            Self::Connection(id) => format!("conn:{id}"),
        }
    }

    /// The last four characters, for notices that people read.
    #[must_use]
    pub fn short(&self) -> String {
        let (Self::Chat(id) | Self::Connection(id)) = self;
        let tail: Vec<char> = id.chars().rev().take(4).collect();
        tail.into_iter().rev().collect()
    }
}
