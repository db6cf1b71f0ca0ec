//! `chappie log`: a session's history, once or as it grows.

use std::time::Duration;

use super::{Context, Failure, node, print};
use crate::control::{Commands, LOG_LIMIT_MAX, LogEntry, LogQuery};

/// An empty page normally comes after a held wait; should one come at once, the loop does not spin.
const EMPTY_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session: id, unique prefix of it, or name; may be left out when there is one
    id: Option<String>,
    /// Go on printing entries as they come
    #[arg(short, long)]
    follow: bool,
    /// Only entries after this one
    #[arg(long, value_name = "ENTRY")]
    after: Option<String>,
    /// At most so many entries at the start
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_LIMIT_MAX)))]
    limit: Option<u32>,
    /// Print JSON: one object, or with --follow one line for each entry
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let query = LogQuery { session: args.id, after: args.after, limit: args.limit, wait: false };
    let show = |entry: &LogEntry| if args.json { print::json(entry) } else { print::entry(entry) };
    if args.follow {
        return follow(node::running(context).await?.as_ref(), query, show).await;
    }
    let page = node::look(context, async |commands| Ok(commands.log(query).await?)).await?;
    if args.json {
        return print::json(&page);
    }
    if page.entries.is_empty() {
        return print::text("no entries\n");
    }
    page.entries.iter().try_for_each(print::entry)
}

/// Shows the page of `query` and then every new entry, until the node or the reader goes away.
pub(super) async fn follow(
    commands: &dyn Commands,
    mut query: LogQuery,
    show: impl Fn(&LogEntry) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let page = commands.log(query.clone()).await?;
        page.entries.iter().try_for_each(&show)?;
        if page.entries.is_empty() && query.wait {
            tokio::time::sleep(EMPTY_PAUSE).await;
        }
        let last = page.entries.last().map(|entry| entry.id.clone());
        query = LogQuery { session: Some(page.session), after: last.or(query.after), limit: None, wait: true };
    }
}
