//! `chappie attach`: a plain follower and prompt. The history scrolls by, and each line typed is said in the session.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use tokio::{signal::ctrl_c, sync::mpsc};

use super::{Context, Failure, log, node, print};
use crate::control::{Commands, LogQuery};

/// Lines that were read and not yet said. A script that types faster waits.
const LINES_WAITING: usize = 16;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session: id, unique prefix of it, or name; may be left out when there is one
    id: Option<String>,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let commands = node::running(context).await?;
    // One page first: it settles which session is meant, and a wrong word fails before anything is read.
    let first = commands.log(LogQuery { session: args.id, ..LogQuery::default() }).await?;
    if io::stdin().is_terminal() {
        let _ =
            writeln!(io::stderr(), "attached to {}; a line and Enter says it, Ctrl-D or Ctrl-C leaves", first.session);
    }
    first.entries.iter().try_for_each(print::entry)?;
    let after = first.entries.last().map(|entry| entry.id.clone());
    let rest = LogQuery { session: Some(first.session.clone()), after, limit: None, wait: true };
    tokio::select! {
        ended = log::follow(commands.as_ref(), rest, print::entry) => ended,
        ended = type_into(commands.as_ref(), first.session, typed_lines()) => ended,
        _ = ctrl_c() => Ok(()),
    }
}

/// Says each line, until there are no more.
async fn type_into(commands: &dyn Commands, session: String, mut lines: mpsc::Receiver<String>) -> Result<(), Failure> {
    while let Some(line) = lines.recv().await {
        if line.trim().is_empty() {
            continue;
        }
        if let Err(error) = commands.say(Some(session.clone()), line, Vec::new()).await {
            let _ = writeln!(io::stderr(), "chappie: not said: {error}");
        }
    }
    Ok(())
}

/// The lines of standard input, read by a thread: nothing else reads a terminal without changing it for everybody.
fn typed_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(LINES_WAITING);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut bytes = Vec::new();
        while stdin.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            bytes.clear();
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
