//! What the tests of these tools share: a session in a temporary folder.

use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::{Part, ToolContext, ToolEnv, ToolOutput, group::Identity};
use crate::{budget::TextBudget, clock, content::JsonObject};

/// A session whose folders live as long as this.
pub(super) struct World {
    pub(super) env: ToolEnv,
    _folder: TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [cwd, node_home, home] = ["cwd", "node", "home"].map(|name| folder.path().join(name));
        for path in [&cwd, &node_home, &home] {
            std::fs::create_dir(path).unwrap();
        }
        let session = clock::session_id();
        let outputs = node_home.join("outputs").join(session.as_str());
        let (locks, seen) = Default::default();
        Self { env: ToolEnv { session, cwd, home, outputs, node_home, locks, seen }, _folder: folder }
    }
}

/// A member of a call of its own, with the whole budget.
pub(super) fn context() -> ToolContext {
    ToolContext {
        call_id: clock::call_id(),
        member: format!("chappie-{}", clock::token()),
        cancel: tokio_util::sync::CancellationToken::new(),
        reader: None,
        budget: TextBudget::WHOLE,
    }
}

pub(super) fn object(value: Value) -> JsonObject {
    let Value::Object(object) = value else { panic!("not an object: {value}") };
    object
}

/// The only text of `output`.
pub(super) fn text(output: &ToolOutput) -> &str {
    let [Part::Text(text)] = output.parts.as_slice() else { panic!("not one text: {output:?}") };
    text
}

/// Waits until `ready` gives something; panics after 20 seconds.
pub(super) async fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a process runs whose command line holds `text`.
pub(super) fn runs(text: &str) -> bool {
    !named(text).is_empty()
}

/// Kills every process whose command line holds `text`.
pub(super) fn kill(text: &str) {
    named(text).iter().for_each(|process| process.signal(rustix::process::Signal::KILL));
}

fn named(text: &str) -> Vec<Identity> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text).then_some(pid)
    });
    pids.filter_map(Identity::of).collect()
}
