//! `chappie sessions`: the list, of all devices.

use std::io::{self, Write as _};

use serde_json::json;

use super::{Context, Failure, node, print};
use crate::{control::SessionRow, host::HostKind};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let status = node::look(context, async |commands| Ok(commands.status().await?)).await?;
    let rows = status.sessions;
    if status.broker.is_none() {
        let trouble = status.trouble.unwrap_or_else(|| "the broker's device cannot be asked from here".to_owned());
        let _ = writeln!(io::stderr(), "chappie: only this device's own sessions are listed: {trouble}");
    }
    if args.json { print::json(&json!({ "sessions": rows })) } else { table(&rows) }
}

/// The rows for people.
pub(super) fn table(rows: &[SessionRow]) -> Result<(), Failure> {
    let cells = |row: &SessionRow| {
        let host = match row.host {
            HostKind::Native => "native",
        };
        let name = row.name.clone().unwrap_or_else(|| "-".to_owned());
        let status = row.status.as_str().to_owned();
        let (device, chats) = (row.device.clone(), row.binding_count.to_string());
        vec![row.id.clone(), name, device, host.to_owned(), status, chats, row.cwd.clone()]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let heading = ["ID", "NAME", "DEVICE", "HOST", "STATUS", "CHATS", "FOLDER"];
    print::table(&heading, &rows, "no sessions; open one with `chappie session new DIR`")
}
