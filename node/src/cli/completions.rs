//! `chappie completions`: a script that teaches a shell our words.

use std::io::{self, Write as _};

use clap::CommandFactory as _;

use super::{Cli, Failure};

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    Ok(io::stdout().write_all(script(args).as_bytes())?)
}

/// Made in memory: the generator panics when a write fails.
pub(super) fn script(args: &Args) -> String {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "chappie", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
