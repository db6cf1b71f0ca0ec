//! Parse, run, print the error, exit with its code.

use std::process::ExitCode;

use chappie::host::native::group::{SESSION_ARGUMENT, become_session};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    // Not a subcommand: how a node with a terminal starts its commands where the system has no `setsid` program.
    if arguments.nth(1).is_some_and(|first| first == SESSION_ARGUMENT) {
        eprintln!("chappie: {}", become_session(arguments));
        return ExitCode::from(CANNOT_RUN);
    }
    chappie::cli::run(std::env::args_os())
}

/// What a shell gives for a command that cannot be run.
const CANNOT_RUN: u8 = 127;
