//! `chappie peers`: the other devices of the mesh, as this node sees them.

use serde_json::json;

use super::{Context, Failure, node, print};
use crate::control::PeerRow;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    // Only a node that runs has connections to speak of.
    let commands = node::running(context).await?;
    let (peers, trouble) = (commands.peers().await?, commands.status().await?.trouble);
    if args.json {
        return print::json(&json!({ "peers": peers, "trouble": trouble }));
    }
    let cells: Vec<Vec<String>> = peers.iter().map(cells).collect();
    let none = "no other devices; `chappie invite` makes a code that lets one in";
    print::table(&["DEVICE", "NODE", "STATE", "RTT", "ADDRESSES"], &cells, none)?;
    print::text(&troubles(trouble.as_deref(), &peers))
}

fn cells(peer: &PeerRow) -> Vec<String> {
    let addresses = if peer.addresses.is_empty() { "-".to_owned() } else { peer.addresses.join(" ") };
    vec![peer.name.clone(), short(&peer.node), peer.state.clone(), rtt(peer), addresses]
}

/// The measured round trip for people.
pub(super) fn rtt(peer: &PeerRow) -> String {
    peer.rtt_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"))
}

/// The first seven characters of an id: enough to tell a person's devices apart.
pub(super) fn short(node: &str) -> String {
    node.chars().take(7).collect()
}

/// What is wrong, one line each; empty when nothing is.
pub(super) fn troubles(own: Option<&str>, peers: &[PeerRow]) -> String {
    let own = own.map(|trouble| format!("TROUBLE  this node: {trouble}\n"));
    let theirs = peers.iter().filter_map(|peer| {
        peer.trouble.as_ref().map(|trouble| format!("TROUBLE  {} ({}): {trouble}\n", peer.name, short(&peer.node)))
    });
    own.into_iter().chain(theirs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> PeerRow {
        PeerRow {
            node: "ABCDEFG-HIJKLMN".into(),
            name: "laptop".into(),
            state: "connected".into(),
            addresses: vec!["10.0.0.2:24274".into(), "[fe80::1%2]:24274".into()],
            voter: true,
            lag: Some(0),
            rtt_ms: Some(1.26),
            trouble: None,
        }
    }

    #[test]
    fn a_row_has_what_tells_devices_apart_and_how_they_stand() {
        let row = ["laptop", "ABCDEFG", "connected", "1.3 ms", "10.0.0.2:24274 [fe80::1%2]:24274"];
        assert_eq!(cells(&peer()), row);
        let away = PeerRow { state: "unknown".into(), addresses: Vec::new(), rtt_ms: None, ..peer() };
        assert_eq!(cells(&away), ["laptop", "ABCDEFG", "unknown", "-", "-"]);
    }

    #[test]
    fn every_trouble_is_named_with_whose_it_is() {
        assert_eq!(troubles(None, &[peer()]), "");
        let twice = PeerRow { trouble: Some("two devices use its identity".into()), ..peer() };
        assert_eq!(
            troubles(Some("turned away"), &[peer(), twice]),
            "TROUBLE  this node: turned away\nTROUBLE  laptop (ABCDEFG): two devices use its identity\n"
        );
    }
}
