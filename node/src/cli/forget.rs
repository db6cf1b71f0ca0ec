//! `chappie forget`: takes a device out of the mesh, here and everywhere.

use std::fmt::Write as _;

use super::{Context, Failure, confirm, node, peers, print};
use crate::control::{Commands, ForgetRow, SessionRow, membership};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The device: node id, unique prefix of it, or name
    node: String,
    /// Do not ask first
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let commands = node::running(context).await?;
    let mut word = args.node;
    if confirm::is_needed(args.yes) {
        let (id, question) = about(commands.as_ref(), &word).await?;
        confirm::ask(&question)?;
        // The device that was shown, whatever the word comes to mean meanwhile.
        word = id;
    }
    let row = commands.forget(word).await?;
    if args.json { print::json(&row) } else { print::text(&told(&row)) }
}

/// The device that `word` names, and what a person is asked. A word that is not one of the others' is left to the node,
/// which knows more: the word may mean this device.
async fn about(commands: &dyn Commands, word: &str) -> Result<(String, String), Failure> {
    let peers = commands.peers().await?;
    let fits = membership::matching(peers.iter().map(|peer| (peer.node.clone(), peer.name.as_str())), word);
    let [only] = fits.as_slice() else {
        return Ok((word.to_owned(), format!("forget {word}?")));
    };
    let peer = &peers[*only];
    let name = format!("{} ({})", peer.name, peers::short(&peer.node));
    let question = format!(
        "forget {name}? It is cut off at once, chats bound to its sessions lose them, and it comes back only with a new \
         invite."
    );
    Ok((peer.node.clone(), question))
}

fn told(row: &ForgetRow) -> String {
    let mut out = format!("forgot {} ({}): it is no longer in this mesh\n", row.name, peers::short(&row.node));
    // Writing to a string cannot fail.
    for session in &row.sessions {
        let _ = writeln!(out, "its session {}", ended(session));
    }
    if row.sessions.is_empty() {
        out.push_str("none of its sessions were connected\n");
    }
    out.push_str("what was running there is uncertain now: see `chappie receipts`\n");
    out
}

fn ended(session: &SessionRow) -> String {
    let name = session.name.as_deref().unwrap_or(&session.id);
    let chats = match session.binding_count {
        0 => String::new(),
        1 => "; 1 chat was bound to it and selects another".to_owned(),
        count => format!("; {count} chats were bound to it and select others"),
    };
    format!("{name} in {} is no longer listed; the device keeps it{chats}", session.cwd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{control::SessionStatus, host::HostKind};

    fn session(name: &str, binding_count: u64) -> SessionRow {
        SessionRow {
            id: "0197".into(),
            name: Some(name.into()),
            host: HostKind::Native,
            agent_dir: "/h".into(),
            device: "laptop".into(),
            cwd: "/src".into(),
            status: SessionStatus::Idle,
            binding_count,
        }
    }

    #[test]
    fn what_became_of_each_session_is_told() {
        let sessions = vec![session("web", 0), session("api", 1), session("lib", 3)];
        let told_of = told(&ForgetRow { node: "ABCDEFG-HIJKLMN".into(), name: "laptop".into(), sessions });
        for part in ["forgot laptop (ABCDEFG)", "session web in /src is no longer listed", "1 chat was", "3 chats were"]
        {
            assert!(told_of.contains(part), "{part} is not in: {told_of}");
        }
        let nothing = told(&ForgetRow { node: "A".into(), name: "laptop".into(), sessions: Vec::new() });
        assert!(nothing.contains("none of its sessions"), "{nothing}");
    }
}
