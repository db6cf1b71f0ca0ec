//! `chappie status`: the node at a glance.

use std::fmt::Write as _;

use super::{Context, Failure, node, peers, print, sessions};
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
    let mesh = report.mesh.as_deref().unwrap_or("this device alone; `chappie invite` makes a code for another");
    let _ = writeln!(out, "mesh     {mesh}");
    if let Some(quic) = &report.quic {
        let _ = writeln!(out, "address  {quic} (UDP)");
    }
    let _ = writeln!(out, "broker   {broker}");
    let _ = writeln!(out, "quorum   {} of {} voters reachable, {state}", quorum.reachable, quorum.voters);
    for peer in &report.peers {
        let rtt = peer.rtt_ms.map_or_else(String::new, |_| format!(", {}", peers::rtt(peer)));
        let addresses = match peer.addresses.as_slice() {
            [] => String::new(),
            known => format!(", at {}", known.join(" ")),
        };
        let _ = writeln!(out, "peer     {} ({}), {}{rtt}{addresses}", peer.name, peer.node, peer.state);
    }
    out.push_str(&peers::troubles(report.trouble.as_deref(), &report.peers));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::load::Environment,
        control::{BrokerRow, PeerRow, QuorumRow},
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
            quic: None,
        };
        assert!(summary(&report).contains("broker   this node, term 3\nquorum   1 of 1 voters reachable, ok\n"));
        report.broker = None;
        report.quorum = QuorumRow { voters: 3, reachable: 1, ok: false };
        assert!(summary(&report).contains("none: no quorum\nquorum   1 of 3 voters reachable, NOT reached"));
    }

    #[test]
    fn the_mesh_its_devices_and_what_is_wrong_are_told() {
        let peer = PeerRow {
            node: "PEER".into(),
            name: "laptop".into(),
            state: "connected".into(),
            addresses: vec!["10.0.0.2:1".into(), "[fe80::1%2]:1".into()],
            voter: true,
            lag: None,
            rtt_ms: Some(0.44),
            trouble: None,
        };
        let away = PeerRow {
            name: "tower".into(),
            state: "unknown".into(),
            addresses: Vec::new(),
            rtt_ms: None,
            trouble: Some("two devices use its identity".into()),
            ..peer.clone()
        };
        let mut report = StatusReport {
            node: "N".into(),
            name: "box".into(),
            mesh: None,
            broker: Some(BrokerRow { node: "PEER".into(), name: "laptop".into(), term: 1, is_self: false }),
            quorum: QuorumRow { voters: 1, reachable: 1, ok: true },
            peers: Vec::new(),
            sessions: Vec::new(),
            version: "1".into(),
            trouble: None,
            quic: None,
        };
        let alone = summary(&report);
        assert!(
            alone.contains("mesh     this device alone; `chappie invite`") && !alone.contains("TROUBLE"),
            "{alone}"
        );
        report.mesh = Some("MESH".into());
        report.quic = Some("[::]:24274".into());
        report.peers = vec![peer, away];
        report.trouble = Some("another device at 10.0.0.9:1 has this identity".into());
        let told = summary(&report);
        let lines = [
            "mesh     MESH\n",
            "address  [::]:24274 (UDP)\n",
            "broker   laptop (PEER), term 1\n",
            "peer     laptop (PEER), connected, 0.4 ms, at 10.0.0.2:1 [fe80::1%2]:1\n",
            "peer     tower (PEER), unknown\n",
            "TROUBLE  this node: another device at 10.0.0.9:1 has this identity\n",
            "TROUBLE  tower (PEER): two devices use its identity\n",
        ];
        for line in lines {
            assert!(told.contains(line), "{line} is not in: {told}");
        }
    }
}
