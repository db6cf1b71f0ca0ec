//! `chappie status`: the node at a glance.

use std::fmt::Write as _;

use super::{Context, Failure, node, print, sessions};
use crate::control::StatusReport;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Only a node that runs has a state to speak of: one started for the question would always look healthy.
    let report = node::running(context).await?.status().await?;
    if args.json {
        return print::json(&report);
    }
    print::text(&summary(&report))?;
    sessions::table(&report.sessions)
}

fn summary(report: &StatusReport) -> String {
    let mut out = format!("node     {} ({}), version {}\n", report.name, report.node, report.version);
    let broker = match &report.broker {
        Some(broker) if broker.is_self => format!("this node, term {}", broker.term),
        Some(broker) => format!("{} ({}), term {}", broker.name, broker.node, broker.term),
        None => "none: no quorum".to_owned(),
    };
    let quorum = &report.quorum;
    let state = if quorum.ok { "ok" } else { "NOT reached: decisions wait" };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "broker   {broker}");
    let _ = writeln!(out, "quorum   {} of {} voters reachable, {state}", quorum.reachable, quorum.voters);
    for peer in &report.peers {
        let _ = writeln!(out, "peer     {} ({}), {}", peer.name, peer.node, peer.state);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::load::Environment,
        control::{BrokerRow, QuorumRow},
    };

    #[tokio::test]
    async fn without_a_node_the_status_is_a_failure_that_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment { variables: Vec::new(), cwd: folder.path().to_owned(), host_name: "box".into() };
        let context = Context { home: folder.path().join("home"), environment };
        for json in [false, true] {
            let failure = run(&context, &Args { json }).await.unwrap_err();
            assert!(matches!(failure, Failure::Failed(_)), "exit code 1");
            let said = failure.to_string();
            let home = context.home.display().to_string();
            assert!(said.contains("no node runs for") && said.contains(&home) && said.contains("chappie up"), "{said}");
            assert!(!context.home.exists());
        }
    }

    #[test]
    fn a_lost_quorum_is_plain_to_see() {
        let mut report = StatusReport {
            node: "N".into(),
            name: "box".into(),
            mesh: None,
            broker: Some(BrokerRow { node: "N".into(), name: "box".into(), term: 3, is_self: true }),
            quorum: QuorumRow { voters: 1, reachable: 1, ok: true },
            peers: Vec::new(),
            sessions: Vec::new(),
            version: "1".into(),
            trouble: None,
        };
        assert!(summary(&report).contains("broker   this node, term 3\nquorum   1 of 1 voters reachable, ok\n"));
        report.broker = None;
        report.quorum = QuorumRow { voters: 3, reachable: 1, ok: false };
        assert!(summary(&report).contains("none: no quorum\nquorum   1 of 3 voters reachable, NOT reached"));
    }
}
