//! `chappie session new` and `chappie session end`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use super::{Context, Failure, node, print};
use crate::{config, control::SessionNew, host::HostKind};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Open a session in a folder
    New(New),
    /// End a session and what it still runs
    End(End),
}

#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// The working folder
    dir: PathBuf,
    /// A name for people
    #[arg(long, value_parser = config::name)]
    name: Option<String>,
    /// What runs the session's tools
    #[arg(
        long, default_value = "native",
        value_parser = PossibleValuesParser::new(["native"]).map(|_| HostKind::Native)
    )]
    host: HostKind,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct End {
    /// The session: id, unique prefix of it, or name
    id: String,
}

pub(super) async fn run(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::New(args) => new(context, args).await,
        Command::End(args) => Ok(node::running(context).await?.session_end(args.id).await?),
    }
}

async fn new(context: &Context, args: New) -> Result<(), Failure> {
    let request = SessionNew { dir: context.absolute(&args.dir), name: args.name, host: args.host };
    let row = node::ask(context, async |commands| Ok(commands.session_new(request).await?)).await?;
    if args.json { print::json(&row) } else { print::text(&format!("{}\n", row.id)) }
}
