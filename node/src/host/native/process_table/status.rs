//! How a process ended, as twelve bytes of a file that is written in place: the wrapper's shell and the node write the
//! same form, and neither needs room on a disk that filled up meanwhile.

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::host::native::group::Exit;

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host::native) enum State {
    /// It runs.
    Running,
    /// It returned this code (128 + n when signal n killed it: a shell writes it down).
    Exited(i32),
    /// It was killed together with the shell that would have said so.
    Killed(i32),
    /// It is gone and nobody wrote down how: killed from outside, or the machine stopped.
    Lost,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Running => f.write_str("running"),
            Self::Exited(code) => Exit::Code(code).fmt(f),
            Self::Killed(signal) => Exit::Signal(signal).fmt(f),
            Self::Lost => f.write_str("ended, exit code unknown (killed from outside, or the machine stopped)"),
        }
    }
}

/// The state in the file; lost when there is none.
pub(super) fn read(path: &Path) -> State {
    fs::read_to_string(path).map_or(State::Lost, |text| parse(&text))
}

fn parse(text: &str) -> State {
    let number = |text: &str| text.parse().ok();
    match text.trim_end().split_once(' ') {
        None if text.trim_end() == "running" => State::Running,
        Some(("exit", code)) => number(code).map_or(State::Lost, State::Exited),
        Some(("killed", signal)) => number(signal).map_or(State::Lost, State::Killed),
        _ => State::Lost,
    }
}

fn form(state: State) -> String {
    let text = match state {
        State::Running => "running".to_owned(),
        State::Exited(code) => format!("exit {code}"),
        State::Killed(signal) => format!("killed {signal}"),
        State::Lost => "lost".to_owned(),
    };
    format!("{text:<11}\n")
}

/// Makes the file.
pub(super) fn write_new(path: &Path, state: State) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(form(state).as_bytes())
}

/// Writes over the file; what fails leaves the older state, which the next look corrects.
pub(super) fn write(path: &Path, state: State) {
    if let Ok(mut file) = OpenOptions::new().write(true).open(path) {
        let _ = file.write_all(form(state).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        write_new(&path, State::Running).unwrap();
        for state in [State::Running, State::Killed(15), State::Exited(0), State::Exited(255), State::Lost] {
            write(&path, state);
            assert_eq!(read(&path), state);
            assert_eq!(fs::metadata(&path).unwrap().len(), 12);
        }
    }

    #[test]
    fn anything_else_is_lost() {
        for text in ["", "exit", "exit x", "runn", "killed", "exit 3 4"] {
            assert_eq!(parse(text), State::Lost, "{text:?}");
        }
        assert_eq!(read(Path::new("/no/such/file")), State::Lost);
    }
}
