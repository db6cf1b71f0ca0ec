//! Measures the mesh on this machine and prints a Markdown table: what a remote call costs, how soon devices find each
//! other, what waiting and idling take, how long the loss of a broker is felt. Not part of the tests: figures depend on the
//! machine, and the targets beside them are the issue's. Needs root, as the networks do.
//!
//! ```text
//! cargo build --release -p chappie && cargo bench -p chappie-tests --bench mesh [-- WORD…]
//! ```
//!
//! A WORD picks the rows whose name contains it.

mod client;
mod failover;
mod idle;
mod rivals;
mod rows;

use std::io::Write;

/// One line of the table.
pub(crate) struct Row {
    what: String,
    measured: String,
    target: &'static str,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, measured: impl Into<String>, target: &'static str) -> Self {
        Self { what: what.into(), measured: measured.into(), target }
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let picked = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    println!("| what | measured | target |\n|---|---|---|");
    for name in [
        "read", "hop", "join", "listed", "wake", "waiters", "alone", "lan", "peers", "failover", "rivals", "handover",
        "write", "receipts",
    ] {
        if !picked(name) {
            continue;
        }
        let rows = match name {
            "read" => rows::read().await,
            "hop" => rows::hop().await,
            "join" => rows::join().await,
            "listed" => rows::listed().await,
            "wake" => rows::wake().await,
            "waiters" => idle::waiters().await,
            "alone" => idle::alone_rows().await,
            "lan" => idle::lan().await,
            "peers" => idle::peers().await,
            "failover" => failover::failover().await,
            "rivals" => tokio::task::spawn_blocking(rivals::rows).await.expect("the rivals are measured"),
            "handover" => failover::handover().await,
            "write" => failover::write().await,
            _ => failover::receipts().await,
        };
        for Row { what, measured, target } in rows {
            println!("| {what} | {measured} | {target} |");
        }
        let _ = std::io::stdout().flush();
    }
}
