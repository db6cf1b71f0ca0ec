//! How a process ended, and signals by name. Pure.

use std::{fmt, os::unix::process::ExitStatusExt, process::ExitStatus};

use rustix::process::Signal;

/// How a process ended, as text for the model and as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Signal(signal) => match name_of(signal) {
                Some(name) => write!(f, "killed by signal {signal} ({name})"),
                None => write!(f, "killed by signal {signal}"),
            },
            // A shell reports a child killed by signal n as 128 + n.
            Self::Code(code) if code > 128 && name_of(code - 128).is_some() => {
                write!(f, "exit {code} (128 + {}: killed by {})", code - 128, name_of(code - 128).unwrap_or_default())
            }
            Self::Code(code) => write!(f, "exit {code}"),
        }
    }
}

fn name_of(signal: i32) -> Option<&'static str> {
    SIGNALS.iter().find(|(_, s)| s.as_raw() == signal).map(|(name, _)| *name)
}

/// The signals that have a name here; `process` takes these.
const SIGNALS: [(&str, Signal); 14] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
];

/// The signal called `name`, with or without `SIG`, in any case.
#[must_use]
pub fn signal_named(name: &str) -> Option<Signal> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS.iter().find(|(known, _)| *known == short).map(|(_, signal)| *signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_signals_are_named() {
        assert_eq!(Exit::Code(3).to_string(), "exit 3");
        assert_eq!(Exit::Signal(9).to_string(), "killed by signal 9 (KILL)");
        assert_eq!(Exit::Code(137).to_string(), "exit 137 (128 + 9: killed by KILL)");
        assert_eq!(Exit::Code(255).to_string(), "exit 255");
        assert_eq!(Exit::Signal(40).to_string(), "killed by signal 40");
    }

    #[test]
    fn a_signal_is_found_with_and_without_its_prefix() {
        assert_eq!(signal_named("int"), Some(Signal::INT));
        assert_eq!(signal_named("SIGKILL"), Some(Signal::KILL));
        assert_eq!(signal_named("9"), None);
    }
}
