//! `chappie join`, and the invite that the settings name: into the mesh of another device.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Read as _},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{Context, Failure, node, print};
use crate::{
    config::JoinCode,
    control::{CommandError, Commands, JoinRow},
};

/// A code, at most 1 KiB, also with line ends in it.
const INPUT_BYTES_MAX: u64 = 2 * 1024;
/// A machine that has just started may have no network for a while, nor the device that invites it.
const START_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The first pause between two tries; each is twice as long as the one before it.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// The longest pause, as between two dials of the mesh.
const PAUSE_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    // No value parser: clap would show the code in its error.
    /// What `chappie invite` printed on the other device; `-` reads standard input
    code: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let text = if args.code == "-" { typed()? } else { args.code };
    let code: JoinCode = text.parse().map_err(|error: crate::config::Invalid| Failure::Usage(error.to_string()))?;
    let runs = node::find(context).await?.is_some();
    let row = node::ask(context, async |commands| Ok(commands.join(code).await?)).await?;
    if args.json { print::json(&row) } else { print::text(&told(&row, runs)) }
}

fn typed() -> Result<String, Failure> {
    let mut text = String::new();
    let terminal = io::stdin().is_terminal();
    let mut input = io::stdin().lock().take(INPUT_BYTES_MAX);
    // A person ends with Enter; a file may have the code broken over lines.
    let read = if terminal { input.read_line(&mut text) } else { input.read_to_string(&mut text) };
    read.map_err(|cause| Failure::Failed(format!("cannot read the code from standard input: {cause}")))?;
    Ok(text)
}

fn told(row: &JoinRow, runs: bool) -> String {
    let devices = if row.members == 1 { "1 device".to_owned() } else { format!("{} devices", row.members) };
    let what = if row.already {
        format!("this device is a member already; the mesh has {devices}")
    } else {
        format!("joined the mesh of {}: it has {devices} now", row.device)
    };
    let next = if runs { "`chappie sessions` lists the sessions of all" } else { "start this node with `chappie up`" };
    format!("{what}; {next}\n")
}

/// Uses the invite of the settings, before the node says that it is ready. A member goes on silently.
pub(super) async fn at_start(commands: &dyn Commands, code: Option<JoinCode>) -> Result<(), Failure> {
    let Some(code) = code else { return Ok(()) };
    // A member needs it no more, whatever has become of the device that made it.
    let mesh = code.invite().mesh.to_string();
    if commands.status().await.is_ok_and(|now| !now.peers.is_empty() && now.mesh == Some(mesh)) {
        return Ok(());
    }
    let row = until_joined(async || commands.join(code.clone()).await).await.map_err(|error| {
        Failure::Failed(format!("cannot use the invite in CHAPPIE_JOIN: {error}; or start without it"))
    })?;
    if !row.already {
        tracing::info!(mesh = row.mesh, device = row.device, members = row.members, "joined the mesh");
    }
    Ok(())
}

/// Tries again what may pass by itself, for [`START_LIMIT`].
async fn until_joined(
    mut attempt: impl AsyncFnMut() -> Result<JoinRow, CommandError>,
) -> Result<JoinRow, CommandError> {
    let deadline = Instant::now() + START_LIMIT;
    let mut pause = PAUSE_FIRST;
    loop {
        match attempt().await {
            Err(error) if error.temporary && Instant::now() + pause < deadline => {
                tracing::warn!(%error, seconds = pause.as_secs(), "not joined yet; trying again");
            }
            settled => return settled,
        }
        sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(already: bool) -> JoinRow {
        JoinRow { mesh: "M".into(), device: "box".into(), members: 2, already }
    }

    #[test]
    fn what_comes_next_depends_on_whether_a_node_runs() {
        assert_eq!(
            told(&row(false), false),
            "joined the mesh of box: it has 2 devices now; start this node with `chappie up`\n"
        );
        assert!(told(&row(false), true).contains("chappie sessions"));
        let already = told(&row(true), true);
        assert!(already.contains("a member already") && !already.contains("joined"), "{already}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_by_itself_is_tried_again_with_pauses_that_grow() {
        let start = Instant::now();
        let mut tries = Vec::new();
        let joined = until_joined(async || {
            tries.push(start.elapsed().as_secs());
            if tries.len() < 7 { Err(CommandError::temporary("nobody answers")) } else { Ok(row(false)) }
        })
        .await;
        assert_eq!(joined, Ok(row(false)));
        assert_eq!(tries, [0, 1, 3, 7, 15, 30, 45]);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_end_and_what_nothing_will_mend_is_tried_once() {
        let start = Instant::now();
        let mut tries = 0_u32;
        let away = CommandError::temporary("nobody answers");
        let error = until_joined(async || {
            tries += 1;
            Err(away.clone())
        })
        .await;
        assert_eq!(error, Err(away));
        assert!(start.elapsed() <= START_LIMIT && tries > 15, "{tries}");
        tries = 0;
        let spent = CommandError::new("the invite is spent");
        let error = until_joined(async || {
            tries += 1;
            Err(spent.clone())
        })
        .await;
        assert_eq!((error, tries), (Err(spent), 1));
    }
}
