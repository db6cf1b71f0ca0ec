//! The README's promises: its two commands are what they are said to be, and its examples work as they stand, but for the
//! port, against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc,
    time::Duration,
};

use chappie_tests::{Client, Node, World, eventually};
use serde_json::{Value, json};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The shell blocks, in order.
fn shell_blocks() -> Vec<String> {
    blocks_of(&file("README.md"))
}

fn blocks_of(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().trim().to_owned()).collect()
}

/// The section under this heading.
fn section(heading: &str) -> String {
    let readme = file("README.md");
    let rest = readme.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("no section {heading:?}"));
    rest.split("\n## ").next().unwrap().to_owned()
}

/// A device: a home of its own and a folder to work in. Two share this machine, so each takes free ports.
struct Device {
    world: World,
    up: Option<Child>,
    mcp: String,
}

impl Device {
    fn new() -> Self {
        Self { world: World::new(), up: None, mcp: String::new() }
    }

    /// A command of the README, typed in a shell whose PATH has the program.
    fn typed(&self, command: &str) -> std::process::Command {
        let program = chappie_tests::world::program(rustix::process::geteuid().is_root());
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = self.world.command("bash");
        shell.args(["-c", command]).env("PATH", path).env("CHAPPIE_MCP", "127.0.0.1:0");
        shell.current_dir(self.world.folder("work"));
        shell
    }

    fn run(&self, command: &str) -> String {
        let output = self.typed(command).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts what stays in the foreground and waits until it says that it is ready.
    fn start(&mut self, command: &str) {
        let mut child = self.typed(command).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        self.up = Some(child);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let ready = lines.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{command}: not ready"));
        assert!(ready.contains("is ready"), "{ready}");
        let mcp = ready.split("MCP at ").nth(1).and_then(|rest| rest.split(';').next());
        self.mcp = mcp.unwrap_or_else(|| panic!("no address in {ready}")).to_owned();
    }

    fn sessions(&self) -> Vec<Value> {
        let printed: Value = serde_json::from_str(&self.run("chappie sessions --json")).unwrap();
        printed["sessions"].as_array().unwrap().clone()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // What the shell started ends with the world.
        if let Some(mut up) = self.up.take() {
            let _ = up.kill();
            let _ = up.wait();
        }
    }
}

#[tokio::test]
async fn two_devices_in_four_commands() {
    let commands = blocks_of(&section("Two devices in four commands"));
    let [first_up, invite, join, second_up] = commands.as_slice() else { panic!("four commands, not {commands:?}") };
    let (mut first, mut second) = (Device::new(), Device::new());
    first.start(first_up);
    let code = first.run(invite);
    assert_eq!(code.lines().count(), 1, "the code alone: it can be piped");
    assert!(join.contains("CODE"), "{join}");
    second.run(&join.replace("CODE", code.trim()));
    second.start(second_up);
    let devices = [&first, &second];
    for device in devices {
        eventually("both sessions on each device", async || (device.sessions().len() == 2).then_some(())).await;
    }
    for (near, far) in [(0, 1), (1, 0)] {
        let folder = devices[far].world.folder("work").display().to_string();
        let session = devices[near].sessions().into_iter().find(|row| row["cwd"] == folder.as_str()).unwrap();
        let client = Client::stateless(&devices[near].mcp).chat("v1/readme");
        let arguments = json!({"command": "pwd", "sessionId": session["id"]});
        let answer = client.call("bash", arguments).await.ok();
        assert!(answer.output().contains(&folder), "{}", answer.output());
    }
    let refused = World::new();
    let again = refused.run(&["join", code.trim()]);
    assert_eq!(again.status.code(), Some(1), "the code was good once");
}

#[test]
fn the_second_command_runs_every_test_and_is_what_ci_runs() {
    let blocks = shell_blocks();
    assert_eq!(blocks[0], "bash deploy/up");
    assert_eq!(blocks[1], "bash deploy/ci/test");
    assert!(file(".ci/run").lines().any(|line| line.starts_with("exec bash") && line.contains("deploy/ci/test")));
    let script = file("deploy/ci/test");
    for step in ["cargo fmt --all --check", "cargo clippy --workspace --all-targets", "-D warnings", "--workspace"] {
        assert!(script.contains(step), "{step}");
    }
}

#[tokio::test]
async fn the_examples_work_as_they_stand() {
    let node = Node::single().await;
    node.world.put(&node.folder().join("README.md"), "# Chappie\n");
    let authority = node.url().trim_start_matches("http://").trim_end_matches("/mcp");
    let examples: Vec<String> = shell_blocks().into_iter().filter(|block| block.contains("curl")).collect();
    assert_eq!(examples.len(), 2, "one for each revision");
    for (example, wanted) in examples.iter().zip(["README.md", "# Chappie"]) {
        assert!(example.contains("127.0.0.1:24276"), "the default port");
        let script = example.replace("127.0.0.1:24276", authority);
        let session = node.session("s");
        // Each example is a chat of its own and picks a free session; the second finds none but is told which there is.
        let script = script.replace("\"limit\": 5", &format!("\"limit\": 5, \"sessionId\": \"{session}\""));
        let printed = node.world.sh(node.folder(), &script);
        assert!(printed.contains("\"result\"") && printed.contains(wanted), "{example}\n{printed}");
        assert!(printed.contains("\"isError\":false") || !printed.contains("\"isError\":true"), "{printed}");
    }
}
