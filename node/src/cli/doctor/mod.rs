//! `chappie doctor`: what can be seen from outside, and what the node says of itself.

mod mesh;

use std::{
    ffi::OsStr,
    fs, io,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{Context, Failure, node, print};
use crate::{
    clock,
    config::{Config, FILE, Layer},
    control::{Commands as _, Finding},
    ids::Millis,
};

/// 2026-01-01: no clock that is set stands before this program was written.
const CLOCK_MIN: Millis = Millis(1_767_225_600_000);
/// 2100-01-01: beyond it, stamps of real clocks would look ancient.
const CLOCK_MAX: Millis = Millis(4_102_444_800_000);
/// Below this the node takes no new work that changes things (failure rule F25).
const FREE_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Enough for a while of full-output files and pictures.
const FREE_BYTES_EASY: u64 = 1024 * 1024 * 1024;
/// Filesystems on which a lock or an fsync may not mean what the store needs, by their magic numbers (statfs(2)).
const REMOTE: [(u64, &str); 6] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let findings = examine(context).await;
    let healthy = findings.iter().all(|finding| finding.ok);
    if args.json {
        print::json(&json!({ "ok": healthy, "findings": findings }))?;
    } else {
        findings.iter().try_for_each(show)?;
    }
    if healthy { Ok(()) } else { Err(Failure::Silent) }
}

fn show(finding: &Finding) -> Result<(), Failure> {
    let mark = if finding.ok { "ok  " } else { "FAIL" };
    print::text(&format!("{mark}  {}: {}\n", finding.name, finding.detail))?;
    if finding.advice.is_empty() { Ok(()) } else { print::text(&format!("      {}\n", finding.advice)) }
}

async fn examine(context: &Context) -> Vec<Finding> {
    let mut findings = vec![home(&context.home), disk(&context.home), key(&context.home), clock_sane(clock::now())];
    let path =
        context.environment.variables.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    findings.push(program("bash", path, true));
    findings.push(program("git", path, false));
    let config = context.config(Layer::default());
    findings.push(match &config {
        Ok(_) => good("configuration", format!("{} and the environment are valid", context.home.join(FILE).display())),
        Err(failure) => bad("configuration", failure.to_string(), "correct the setting it names"),
    });
    findings.extend(config.as_ref().ok().map(mesh::multicast));
    let mut reported = Ok(Vec::new());
    match node::find(context).await {
        Ok(Some(remote)) => {
            findings.push(good("socket", "a node runs and answers".to_owned()));
            reported = remote.doctor().await.map_err(Failure::from);
            let rows = reported.as_deref().unwrap_or_default();
            match remote.status().await {
                Ok(status) => findings.extend(mesh::standing(&status, rows)),
                Err(error) => findings.push(bad("status", error.to_string(), "stop the node and start it again")),
            }
        }
        Ok(None) => {
            findings.push(socket(&context.home));
            findings.extend(config.iter().flat_map(|config| [port(config), mesh::port(config)]));
            // A home that was never used has nothing to tell, and looking must not make it one.
            if config.is_ok() && context.home.join("key.pem").exists() {
                reported = node::ask(context, async |commands| Ok(commands.doctor().await?)).await;
            }
        }
        Err(failure) => findings.push(bad("socket", failure.to_string(), "end what holds it, or remove the file")),
    }
    let seen: Vec<String> = findings.iter().map(|finding| finding.name.clone()).collect();
    match reported {
        // What was looked at from outside already is not said twice.
        Ok(rows) => findings.extend(rows.into_iter().filter(|row| !seen.contains(&row.name))),
        Err(failure) => findings.push(bad("node", failure.to_string(), "")),
    }
    findings
}

fn home(home: &Path) -> Finding {
    let advice = "set CHAPPIE_HOME to a folder of your own on a local disk";
    let facts = match fs::metadata(home) {
        Ok(facts) => facts,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return good("home", format!("{} does not exist; the first `chappie up` makes it", home.display()));
        }
        Err(cause) => return bad("home", format!("{}: {cause}", home.display()), advice),
    };
    if let Err(cause) = tempfile::Builder::new().prefix(".doctor.").tempfile_in(home) {
        return bad("home", format!("{} cannot be written to: {cause}", home.display()), advice);
    }
    let mode = facts.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let remedy = format!("run `chmod 700 {}`", home.display());
        return bad("home", format!("{} is open to others (mode {mode:04o})", home.display()), &remedy);
    }
    good("home", format!("{} is private and writable", home.display()))
}

fn disk(home: &Path) -> Finding {
    let there = home.ancestors().find(|path| path.exists()).unwrap_or(home);
    let (kind, space) = match (rustix::fs::statfs(there), rustix::fs::statvfs(there)) {
        (Ok(kind), Ok(space)) => (kind.f_type, space),
        (Err(cause), _) | (_, Err(cause)) => return bad("disk", format!("{}: {cause}", there.display()), ""),
    };
    // The type is signed or not by platform; the magic numbers have 32 bits.
    let magic = u64::try_from(kind).unwrap_or_default() & 0xffff_ffff;
    if let Some((_, name)) = REMOTE.iter().find(|(number, _)| *number == magic) {
        let advice = "set CHAPPIE_HOME to a folder on a local disk; a store over the network can be damaged";
        return bad("disk", format!("{} is on {name}", there.display()), advice);
    }
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let detail = format!("{} MiB free at {}", free / (1024 * 1024), there.display());
    match free {
        ..FREE_BYTES_MIN => {
            bad("disk", detail, "free some space: below 64 MiB the node refuses work that changes things")
        }
        FREE_BYTES_MIN..FREE_BYTES_EASY => {
            Finding { advice: "less than 1 GiB: keep an eye on it".to_owned(), ..good("disk", detail) }
        }
        FREE_BYTES_EASY.. => good("disk", detail),
    }
}

fn key(home: &Path) -> Finding {
    let path = home.join("key.pem");
    if !path.exists() {
        return good("key", "made at the first start".to_owned());
    }
    match chappie_mesh::Identity::load_or_create(home) {
        Ok(identity) => good("key", format!("this node is {}", identity.node_id())),
        Err(error) => bad("key", error.to_string(), ""),
    }
}

fn clock_sane(now: Millis) -> Finding {
    let stamp = clock::rfc3339(now);
    if (CLOCK_MIN..CLOCK_MAX).contains(&now) {
        return good("clock", stamp);
    }
    bad("clock", format!("{stamp} cannot be now"), "set the clock; `timedatectl set-ntp true` keeps it right")
}

fn program(name: &str, path: Option<&OsStr>, needed: bool) -> Finding {
    let folders = path.map(|path| std::env::split_paths(path).collect::<Vec<PathBuf>>()).unwrap_or_default();
    let runs = |file: &PathBuf| fs::metadata(file).is_ok_and(|f| f.is_file() && f.permissions().mode() & 0o111 != 0);
    match folders.iter().map(|folder| folder.join(name)).find(runs) {
        Some(file) => good(name, file.display().to_string()),
        None if needed => bad(name, "not found in PATH".to_owned(), "install it: the session's bash tool runs it"),
        None => Finding {
            advice: "install it if ChatGPT shall work with repositories".to_owned(),
            ..good(name, "not found in PATH".to_owned())
        },
    }
}

fn socket(home: &Path) -> Finding {
    let path = home.join(crate::control::socket::FILE);
    match fs::symlink_metadata(&path) {
        Ok(facts) if !std::os::unix::fs::FileTypeExt::is_socket(&facts.file_type()) => {
            bad("socket", format!("{} is not a socket", path.display()), "move it away")
        }
        Ok(_) => good("socket", "a dead one is left over; the next start replaces it".to_owned()),
        Err(_) => good("socket", "no node runs".to_owned()),
    }
}

fn port(config: &Config) -> Finding {
    match TcpListener::bind(config.mcp) {
        Ok(_) => good("port", format!("{} is free", config.mcp)),
        Err(cause) => {
            let advice = "end what holds it, or choose another with `chappie up --mcp 127.0.0.1:PORT`";
            bad("port", format!("{}: {cause}", config.mcp), advice)
        }
    }
}

fn good(name: &str, detail: String) -> Finding {
    Finding { name: name.to_owned(), ok: true, detail, advice: String::new() }
}

fn bad(name: &str, detail: String, advice: &str) -> Finding {
    Finding { name: name.to_owned(), ok: false, detail, advice: advice.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_judged_by_mode_and_by_whether_it_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(home(folder.path()).ok);
        assert!(home(&folder.path().join("later")).ok, "a missing one is made");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let open = home(folder.path());
        assert!(!open.ok && open.advice.contains("chmod 700"), "{open:?}");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(!home(&file).ok, "a file is no home");
    }

    #[tokio::test]
    async fn a_home_that_does_not_exist_is_reported_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let environment = crate::config::load::Environment {
            variables: Vec::new(),
            cwd: folder.path().to_owned(),
            host_name: "b".into(),
        };
        let context = Context { home: folder.path().join("home"), environment };
        let findings = examine(&context).await;
        let told = findings.iter().any(|finding| finding.name == "home" && finding.detail.contains("does not exist"));
        assert!(told, "{findings:?}");
        assert!(!context.home.exists());
    }

    #[test]
    fn the_disk_is_that_of_the_nearest_folder_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let found = disk(&folder.path().join("not/yet"));
        assert!(found.detail.contains(&folder.path().display().to_string()), "{found:?}");
        let none_free = disk(Path::new("/proc"));
        assert!(!none_free.ok && none_free.detail.starts_with("0 MiB"), "{none_free:?}");
    }

    #[test]
    fn a_clock_outside_this_century_is_noticed() {
        assert!(clock_sane(clock::now()).ok);
        for wrong in [0, CLOCK_MIN.0 - 1, CLOCK_MAX.0, u64::MAX] {
            assert!(!clock_sane(Millis(wrong)).ok, "{wrong}");
        }
    }

    #[test]
    fn a_program_is_found_where_it_can_run_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str();
        assert!(!program("bash", Some(path), true).ok);
        assert!(!program("bash", None, true).ok);
        fs::write(folder.path().join("bash"), "").unwrap();
        assert!(!program("bash", Some(path), true).ok, "it cannot run");
        fs::set_permissions(folder.path().join("bash"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(program("bash", Some(path), true).ok);
        let optional = program("git", Some(path), false);
        assert!(optional.ok && !optional.advice.is_empty(), "{optional:?}");
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Layer::default().complete("/h".into(), "box");
        config.mcp = taken.local_addr().unwrap();
        let found = port(&config);
        assert!(!found.ok && found.detail.contains(&config.mcp.to_string()), "{found:?}");
        drop(taken);
        assert!(port(&config).ok);
    }

    #[test]
    fn a_key_is_read_and_never_made_by_looking() {
        let folder = tempfile::tempdir().unwrap();
        assert!(key(folder.path()).ok);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(folder.path().join("key.pem"), "x").unwrap();
        assert!(!key(folder.path()).ok);
    }

    #[test]
    fn what_stands_in_the_socket_s_place_is_told() {
        let folder = tempfile::tempdir().unwrap();
        assert!(socket(folder.path()).ok);
        fs::write(folder.path().join("chappie.sock"), "").unwrap();
        assert!(!socket(folder.path()).ok);
    }
}
