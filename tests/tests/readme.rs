//! The README's promises: its two commands are what they are said to be, and its examples work as they stand, but for the
//! port, against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use chappie_tests::Node;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The shell blocks, in order.
fn shell_blocks() -> Vec<String> {
    let readme = file("README.md");
    let blocks = readme.split("```sh\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().trim().to_owned()).collect()
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
