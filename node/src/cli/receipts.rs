//! `chappie receipts`: what became of operations, and settling what nobody knows.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use serde_json::json;

use super::{Context, Failure, node, print};
use crate::control::{ReceiptRow, Resolution};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List them, oldest first
    List,
    /// Show one with all that is known of it
    Show {
        /// The receipt: id or a unique prefix of it
        id: String,
    },
    /// Settle an uncertain one, after looking at what it really did
    Resolve {
        /// The receipt: id or a unique prefix of it
        id: String,
        /// `completed`: it did its work. `not-run`: it did nothing, and the same operationId may run
        #[arg(value_parser = PossibleValuesParser::new(["completed", "not-run"]).map(|word| match word.as_str() {
            "completed" => Resolution::Completed,
            _ => Resolution::NotRun,
        }))]
        how: Resolution,
    },
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    match args.command.unwrap_or(Command::List) {
        Command::List => {
            let rows = node::look(context, async |commands| Ok(commands.receipts().await?)).await?;
            if args.json { print::json(&json!({ "receipts": rows })) } else { table(&rows) }
        }
        Command::Show { id } => {
            let report = node::look(context, async |commands| Ok(commands.receipt(id).await?)).await?;
            if args.json {
                return print::json(&report);
            }
            table(std::slice::from_ref(&report.row))?;
            report.details.iter().try_for_each(|(key, value)| print::text(&format!("{key}: {value}\n")))
        }
        Command::Resolve { id, how } => {
            node::look(context, async |commands| Ok(commands.resolve(id, how).await?)).await
        }
    }
}

fn table(rows: &[ReceiptRow]) -> Result<(), Failure> {
    // Twelve characters of a hash tell 16,384 receipts apart; `show` has all of it.
    let short = |id: &str| id.chars().take(12).collect::<String>();
    let cells = |row: &ReceiptRow| {
        let (operation, kind) = (row.operation_id.clone(), row.kind.clone());
        vec![short(&row.id), row.status.clone(), kind, operation, row.updated_at.clone(), row.cwd.clone()]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    print::table(&["ID", "STATUS", "KIND", "OPERATION", "CHANGED", "FOLDER"], &rows, "no receipts")
}
