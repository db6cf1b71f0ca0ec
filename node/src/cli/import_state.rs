//! `chappie import-state`: the original program's bindings, taken over.

use std::path::PathBuf;

use super::{Context, Failure, node, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The original's `chappie.state.json`
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let path = context.absolute(&args.file);
    let row = node::ask(context, async |commands| Ok(commands.import_state(path).await?)).await?;
    if args.json {
        return print::json(&row);
    }
    let backup = row.backup.map_or_else(String::new, |path| format!("; the store before it is kept in {path}"));
    let (imported, unchanged, expired) = (row.imported, row.unchanged, row.expired);
    print::text(&format!("{imported} bindings imported, {unchanged} were here, {expired} had expired{backup}\n"))
}
