//! `chappie mesh`: what a person decides when the mesh cannot: to begin anew without the voters that are lost, and which
//! side counts after a split (failure rules F16 and F17).

use std::{fmt::Write as _, io::IsTerminal as _};

use super::{Context, Failure, confirm, node, print};
use crate::control::{FollowRow, RecoverRow, StatusReport};

/// What a person types to begin anew: a word that is not typed by habit.
const WORD: &str = "recover";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Begin the mesh anew on this device, with all that it knows, when more than half of its voters are lost for good
    Recover(Recover),
    /// Give this device's own side up after a split, and follow that of another device
    Follow(Follow),
}

#[derive(Debug, clap::Args)]
pub(super) struct Recover {
    /// Let operations run again that only missing devices know
    #[arg(long)]
    accept_loss: bool,
    /// Do not ask first
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Follow {
    /// The device: node id, unique prefix of it, or name
    node: String,
    /// Do not ask first
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Recover(args) => recover(context, args).await,
        Command::Follow(args) => follow(context, args).await,
    }
}

async fn recover(context: &Context, args: Recover) -> Result<(), Failure> {
    let commands = node::running(context).await?;
    if !args.yes {
        somebody_is_there("this begins the mesh anew and cannot be taken back", std::io::stdin().is_terminal())?;
        let status = commands.status().await?;
        confirm::ask_word(&about(&status, args.accept_loss), WORD)?;
    }
    let row = commands.recover(args.accept_loss).await?;
    if args.json { print::json(&row) } else { print::text(&recovered(&row)) }
}

/// What cannot be taken back is not begun by a script that forgot to say so.
fn somebody_is_there(what: &str, terminal: bool) -> Result<(), Failure> {
    let refused = || Failure::Usage(format!("{what}; repeat it with --yes when nobody can be asked"));
    if terminal { Ok(()) } else { Err(refused()) }
}

/// What a person is told before the word is typed.
fn about(status: &StatusReport, accept_loss: bool) -> String {
    let quorum = &status.quorum;
    let mut out = format!(
        "{} of {} voters can be reached from here. This makes {} a new beginning of the mesh, with everything that it \
         knows: what only the lost devices know is lost. Devices that come back follow it.\n",
        quorum.reachable, quorum.voters, status.name
    );
    if accept_loss {
        out.push_str("Operations that only missing devices know may run a second time.\n");
    }
    out
}

fn recovered(row: &RecoverRow) -> String {
    if row.loss_only {
        return "what the missing devices know is given up: new operations are taken from now on\n".to_owned();
    }
    let mut out = format!("the mesh begins anew on this device (epoch {})\n", row.epoch);
    if !row.missing.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "not back yet: {}. Until they are, new operations with an operationId are refused, because one of them may have \
             run the same already. If they are lost for good: `chappie mesh recover --accept-loss`",
            row.missing.join(", ")
        );
    }
    out
}

async fn follow(context: &Context, args: Follow) -> Result<(), Failure> {
    let commands = node::running(context).await?;
    if !args.yes {
        somebody_is_there("this puts this device's own side of a split away", std::io::stdin().is_terminal())?;
        confirm::ask(&format!(
            "follow {}? What this device's own side recorded since the split is put away and counts no more.",
            args.node
        ))?;
    }
    let row = commands.follow(args.node).await?;
    if args.json { print::json(&row) } else { print::text(&followed(&row)) }
}

fn followed(row: &FollowRow) -> String {
    format!("this device follows {} now; its own side's records are in {}\n", row.device, row.archived)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_did_not_say_yes_is_refused() {
        let refused = somebody_is_there("this is final", false).unwrap_err();
        assert!(
            matches!(&refused, Failure::Usage(text) if text.contains("final") && text.contains("--yes")),
            "{refused}"
        );
        assert!(somebody_is_there("this is final", true).is_ok());
    }

    #[test]
    fn who_is_missing_after_a_recovery_is_told_with_what_to_do() {
        let row =
            RecoverRow { mesh: "M".into(), epoch: 2, missing: vec!["tower".into(), "lap".into()], loss_only: false };
        let told = recovered(&row);
        assert!(told.contains("epoch 2") && told.contains("tower, lap") && told.contains("--accept-loss"), "{told}");
        let whole = recovered(&RecoverRow { missing: Vec::new(), ..row.clone() });
        assert!(!whole.contains("--accept-loss"), "{whole}");
        let later = recovered(&RecoverRow { missing: Vec::new(), loss_only: true, ..row });
        assert!(!later.contains("anew") && later.contains("given up"), "{later}");
    }
}
