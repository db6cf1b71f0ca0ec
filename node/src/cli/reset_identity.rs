//! `chappie reset-identity`: makes this home another device, for one whose home folder is a copy or whose key leaked.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use chappie_mesh::{Identity, IdentityError, NodeId};
use serde::Serialize;

use super::{
    Context, Failure, confirm,
    node::{self, Found},
    peers, print,
};

/// What an identity that was put aside is called, before its number.
const ASIDE: &str = "key.pem.old-";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Do not ask first
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Reset {
    /// The new id.
    node: String,
    /// The old one; `None` when its key could not be read.
    old: Option<String>,
    /// Where the old key is kept.
    key: Option<PathBuf>,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let reset = reset(context, || {
        if confirm::is_needed(args.yes) {
            confirm::ask(
                "give this device a new identity? It leaves its mesh, keeps its sessions, and joins again with a new \
                 invite.",
            )?;
        }
        Ok(())
    });
    let reset = reset.await?;
    if args.json { print::json(&reset) } else { print::text(&told(&reset)) }
}

async fn reset(context: &Context, confirmed: impl FnOnce() -> Result<(), Failure>) -> Result<Reset, Failure> {
    let home = &context.home;
    if !home.join("key.pem").exists() {
        let home = home.display();
        return Err(Failure::Failed(format!("{home} has no identity yet; check --home and CHAPPIE_HOME")));
    }
    // Checked before anything is changed: the second half of the work needs it.
    let config = context.config(crate::config::Layer::default())?;
    let held = match node::find_or_hold(context).await? {
        Found::Held(held) => held,
        Found::Running(_) => {
            let home = home.display();
            return Err(Failure::Failed(format!(
                "a node runs for {home} and goes on with the identity it has; stop it first (end `chappie up`, or \
                 `systemctl --user stop chappie`), then run this again"
            )));
        }
    };
    confirmed()?;
    let old = Identity::load_or_create(home).ok().map(|identity| identity.node_id());
    let before = aside(home);
    let failed = |error: IdentityError| Failure::Failed(error.to_string());
    let new = Identity::reset(home).map_err(failed)?;
    let key = aside(home).difference(&before).next().cloned();
    // A start finds that the mesh on disk is not this identity's and makes one of its own.
    node::here(config, held, async |_| Ok(())).await?;
    Ok(Reset { node: new.to_string(), old: old.as_ref().map(NodeId::to_string), key })
}

/// The keys that were put aside so far.
fn aside(home: &Path) -> BTreeSet<PathBuf> {
    let entries: io::Result<Vec<_>> = fs::read_dir(home).and_then(Iterator::collect);
    let names = entries.into_iter().flatten().map(|entry| entry.path());
    names.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ASIDE))).collect()
}

fn told(reset: &Reset) -> String {
    let was = reset.old.as_deref().map_or_else(String::new, |old| format!(" and was {}", peers::short(old)));
    let kept = reset.key.as_ref().map_or_else(String::new, |key| format!("; the old key is kept in {}", key.display()));
    let forget = reset.old.as_deref().map_or_else(String::new, |old| {
        format!("if no other device goes on with the old identity, run `chappie forget {old}` in its mesh\n")
    });
    format!(
        "this device is {}{was}; it stands alone and has kept its sessions{kept}\nto let it into a mesh: `chappie invite` \
         there, then `chappie join CODE` here\n{forget}",
        reset.node
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        app::{App, Doors},
        config::{Layer, home, load::Environment},
        control::SessionNew,
        host::HostKind,
    };

    fn context(folder: &Path) -> Context {
        let variables =
            [("CHAPPIE_LISTEN", "127.0.0.1:0"), ("CHAPPIE_NO_MDNS", "true"), ("CHAPPIE_MCP", "127.0.0.1:0")];
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let environment = Environment { variables, cwd: folder.to_owned(), host_name: "box".into() };
        Context { home: folder.join("home"), environment }
    }

    fn id(context: &Context) -> String {
        Identity::load_or_create(&context.home).unwrap().node_id().to_string()
    }

    #[tokio::test]
    async fn the_identity_is_new_and_the_sessions_and_the_old_key_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        let request = SessionNew { dir: folder.path().to_owned(), name: Some("web".into()), host: HostKind::Native };
        let row = node::ask(&context, async |commands| Ok(commands.session_new(request).await?)).await.unwrap();
        let (old, key) = (id(&context), fs::read(context.home.join("key.pem")).unwrap());
        let first = reset(&context, || Ok(())).await.unwrap();
        assert_eq!(first.old.as_deref(), Some(old.as_str()));
        assert_eq!(first.node, id(&context));
        assert_ne!(first.node, old);
        assert_eq!(fs::read(first.key.as_ref().unwrap()).unwrap(), key);
        let second = reset(&context, || Ok(())).await.unwrap();
        assert_eq!(second.old, Some(first.node));
        assert_ne!(second.key, first.key);
        let rows = node::ask(&context, async |commands| Ok(commands.sessions().await?)).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), [row.id.as_str()]);
        let status = node::ask(&context, async |commands| Ok(commands.status().await?)).await.unwrap();
        assert_eq!((status.node, status.mesh), (second.node, None));
    }

    #[tokio::test]
    async fn a_running_node_and_a_no_leave_it_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        home::prepare(&context.home).unwrap();
        let app = App::start(context.config(Layer::default()).unwrap(), Doors::Control).await.unwrap();
        let old = id(&context);
        let error = reset(&context, || Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("a node runs") && error.contains("stop it first"), "{error}");
        app.stop().await;
        let declined = reset(&context, || Err(Failure::Failed("no".into()))).await.unwrap_err().to_string();
        assert_eq!(declined, "no");
        assert_eq!(id(&context), old);
        assert!(aside(&context.home).is_empty());
    }

    #[tokio::test]
    async fn without_an_identity_there_is_nothing_to_reset_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        let error = reset(&context, || Ok(())).await.unwrap_err().to_string();
        assert!(error.contains("no identity yet"), "{error}");
        assert!(!context.home.exists());
    }

    #[test]
    fn what_to_do_next_is_told_with_the_old_id_in_full() {
        let told_of = told(&Reset {
            node: "NEWNODE-HIJKLMN".into(),
            old: Some("ABCDEFG-HIJKLMN".into()),
            key: Some("/h/key.pem.old-1".into()),
        });
        for part in ["NEWNODE-HIJKLMN", "chappie join CODE", "chappie forget ABCDEFG-HIJKLMN", "/h/key.pem.old-1"] {
            assert!(told_of.contains(part), "{part} is not in: {told_of}");
        }
        let unreadable = told(&Reset { node: "N".into(), old: None, key: None });
        assert!(!unreadable.contains("forget"), "{unreadable}");
    }
}
