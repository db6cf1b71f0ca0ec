//! `chappie say`: a person's words into a session.

use std::{
    io::{self, Read as _},
    path::PathBuf,
};

use serde_json::json;

use super::{Context, Failure, node, print};
use crate::control::frame::FRAME_BYTES_MAX;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The session: id, unique prefix of it, or name
    id: String,
    /// What to say; `-` reads standard input
    text: String,
    /// A picture to show along with it; may be repeated
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let text = if args.text == "-" { standard_input()? } else { args.text };
    let images = args.image.iter().map(|path| context.absolute(path)).collect();
    let entry = node::running(context).await?.say(Some(args.id), text, images).await?;
    if args.json { print::json(&json!({ "id": entry })) } else { print::text(&format!("{entry}\n")) }
}

fn standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    // One byte more than fits, so that what is too long is refused by the node's rule and not cut here.
    let limit = u64::try_from(FRAME_BYTES_MAX).unwrap_or(u64::MAX);
    let read = io::stdin().take(limit).read_to_string(&mut text);
    read.map_err(|cause| Failure::Failed(format!("cannot read standard input as text: {cause}")))?;
    Ok(text)
}
