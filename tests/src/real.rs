//! The real MCP clients that `tests/clients/install` puts into `tests/clients`. One that is missing fails the test that
//! asks for it; nothing is skipped.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use tokio::process::Command;

use crate::world::World;

/// The longest client run takes a few seconds on an idle machine.
const CLIENT_LIMIT: Duration = Duration::from_secs(240);

/// The folder of the clients.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Node.js of the version that the Inspector and the conformance suite need.
#[must_use]
pub fn node_js() -> PathBuf {
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    installed(&format!("node_modules/node-linux-{machine}/bin/node"))
}

/// Python with the SDK.
#[must_use]
pub fn python() -> PathBuf {
    installed(".venv/bin/python")
}

/// A file of the clients' folder that has to be there.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn installed(path: &str) -> PathBuf {
    let path = folder().join(path);
    assert!(path.exists(), "{} is missing: run tests/clients/install (deploy/ci/test does)", path.display());
    path
}

/// Runs a client as the user of the tests in `cwd`, in `world`'s home and with its mark, and gives what it printed.
///
/// # Panics
/// When it does not start or does not end.
pub async fn run(world: &World, cwd: &Path, program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(cwd)
        .env("HOME", world.home())
        .env("CHAPPIE_HOME", world.state())
        .env(crate::process::MARK, world.mark())
        .env("MCP_AUTO_OPEN_ENABLED", "false")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    match tokio::time::timeout(CLIENT_LIMIT, command.output()).await {
        Ok(output) => output.unwrap_or_else(|error| panic!("{}: {error}", program.display())),
        Err(_) => panic!("{} {arguments:?} did not end within {CLIENT_LIMIT:?}", program.display()),
    }
}
