//! Real MCP clients against the real program: the Python SDK, the TypeScript SDK and the Inspector, over HTTP and over
//! pipes, in both revisions. They check the wire with their own schemas; these tests check what came out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path, sync::Arc};

use chappie_tests::{Answer, Node, World, answer::excerpt, eventually, node::Setup, process, real};
use serde_json::{Value, json};

/// The tools of this version, in the order in which they are listed.
const TOOLS: [&str; 10] = ["init", "history", "sessions", "tools", "chat", "call", "read", "bash", "edit", "write"];

/// Which way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Http,
    Pipes,
}

/// A client script in one of its modes.
#[derive(Clone, Copy, Debug)]
struct Script {
    /// `session.py` or `session.mjs`.
    file: &'static str,
    /// Its MODE argument.
    mode: &'static str,
    /// The revision that must be agreed on.
    agrees: &'static str,
}

const PYTHON_LEGACY: Script = Script { file: "session.py", mode: "legacy", agrees: "2025-11-25" };
const PYTHON_AUTO: Script = Script { file: "session.py", mode: "auto", agrees: "2026-07-28" };
const TYPESCRIPT_LEGACY: Script = Script { file: "session.mjs", mode: "legacy", agrees: "2025-11-25" };
const TYPESCRIPT_AUTO: Script = Script { file: "session.mjs", mode: "auto", agrees: "2026-07-28" };
const TYPESCRIPT_PINNED: Script = Script { file: "session.mjs", mode: "2026-07-28", agrees: "2026-07-28" };

/// A node whose folder holds a picture. Clients run as the user of the tests, so the node does too: they share files.
async fn node_with_picture() -> Node {
    let world = Arc::new(World::privileged());
    let folder = world.folder("T");
    image::RgbImage::from_pixel(32, 20, image::Rgb([10, 120, 30])).save(folder.join("picture.png")).unwrap();
    Node::start(world, Setup::new().session(&folder, "s").cooldown(0.0)).await
}

async fn drive(node: &Node, script: Script, door: Door) -> Value {
    let program = if script.file.ends_with(".py") { real::python() } else { real::node_js() };
    let file = real::installed(script.file).display().to_string();
    let session = node.session("s");
    let chappie = chappie_tests::world::program(false).display().to_string();
    let mut arguments = vec![file.as_str(), script.mode, "v1/real", session.as_str()];
    match door {
        Door::Http => arguments.extend(["--url", node.url()]),
        Door::Pipes => arguments.extend(["--stdio", chappie.as_str(), "mcp"]),
    }
    let output = real::run(&node.world, node.folder(), &program, &arguments).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script:?} over {door:?}: {error}");
    let printed = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(printed.lines().last().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{script:?}: no report in {}; {error}", excerpt(&printed)))
}

fn step(report: &Value, name: &str) -> Answer {
    let step = &report["steps"][name];
    assert!(!step.is_null(), "the step {name} gave nothing");
    Answer::of(step)
}

async fn passes(script: Script, door: Door) {
    let node = node_with_picture().await;
    let report = drive(&node, script, door).await;
    assert_eq!(report["protocol"], script.agrees);
    assert_eq!(report["server"], "chappie");
    assert_eq!(report["tools"], json!(TOOLS));
    assert!(!report["instructions"].as_str().unwrap().is_empty());

    let init = step(&report, "init").ok().header();
    assert_eq!(init["session"]["id"], node.session("s"));
    assert_eq!(init["initialization"]["mode"], "executor");
    let listed = step(&report, "sessions").ok().header();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    step(&report, "write").ok();
    assert!(step(&report, "read").ok().output().contains("one\ntwo"));
    step(&report, "edit").ok();
    assert!(step(&report, "bash").ok().output().contains("one\nthree\nfrom-bash"));
    let call = step(&report, "call").ok();
    assert_eq!(call.results().len(), 2);
    assert!(call.output().contains("three") && call.output().contains("from-call"));
    let error = step(&report, "error").refused();
    assert!(error.text().contains("missing.txt"));
    let images = step(&report, "image").ok().images();
    assert_eq!(image::load_from_memory(&images[0].bytes).unwrap().to_rgb8().dimensions(), (32, 20));
    assert!(report["steps"]["cancelled"].is_null(), "a cancelled call gives its caller nothing");
    eventually("the cancelled command's end", async || {
        process::running(node.world.mark(), "sleep 31").is_empty().then_some(())
    })
    .await;
    assert!(step(&report, "after").ok().output().contains("after-cancel"));
    let history = step(&report, "history").ok().text();
    for word in ["from-bash", "from-call", "missing.txt", "after-cancel"] {
        assert!(history.contains(word), "{word} is in history");
    }
}

#[tokio::test]
async fn python_sdk_2025_11_25_over_http() {
    passes(PYTHON_LEGACY, Door::Http).await;
}

#[tokio::test]
async fn python_sdk_2026_07_28_over_http() {
    passes(PYTHON_AUTO, Door::Http).await;
}

#[tokio::test]
async fn python_sdk_2025_11_25_over_pipes() {
    passes(PYTHON_LEGACY, Door::Pipes).await;
}

#[tokio::test]
async fn python_sdk_2026_07_28_over_pipes() {
    passes(PYTHON_AUTO, Door::Pipes).await;
}

#[tokio::test]
async fn typescript_sdk_2025_11_25_over_http() {
    passes(TYPESCRIPT_LEGACY, Door::Http).await;
}

#[tokio::test]
async fn typescript_sdk_in_auto_mode_as_chatgpt_over_http() {
    passes(TYPESCRIPT_AUTO, Door::Http).await;
}

#[tokio::test]
async fn typescript_sdk_pinned_to_2026_07_28_over_http() {
    passes(TYPESCRIPT_PINNED, Door::Http).await;
}

#[tokio::test]
async fn typescript_sdk_in_auto_mode_over_pipes() {
    passes(TYPESCRIPT_AUTO, Door::Pipes).await;
}

/// Runs the Inspector's command line and gives the JSON it printed.
async fn inspect(node: &Node, era: &str, arguments: &[&str]) -> Value {
    let inspector = real::installed("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js");
    let inspector = inspector.display().to_string();
    let mut all = vec![inspector.as_str(), "--cli", node.url(), "--transport", "http", "--protocol-era", era];
    all.extend(["--format", "json", "--quiet"]);
    all.extend(arguments);
    let output = real::run(&node.world, node.folder(), &real::node_js(), &all).await;
    let (printed, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A tool error ends the Inspector with a status of its own and still prints the result.
    let value = serde_json::from_str::<Value>(printed.trim());
    value.unwrap_or_else(|_| panic!("{arguments:?}: {}; {}", excerpt(&printed), excerpt(&error)))["result"].take()
}

async fn inspector_passes(era: &str) {
    let node = node_with_picture().await;
    let listed = inspect(&node, era, &["--method", "tools/list", "--strict"]).await;
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, TOOLS);
    let call = async |tool: &str, arguments: Value| {
        let arguments = arguments.to_string();
        let flags = ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", &arguments];
        let flags = [&flags[..], &["--tool-metadata", "openai/session=v1/inspector"]].concat();
        Answer::of(&inspect(&node, era, &flags).await)
    };
    let session = node.session("s");
    let init = call("init", json!({"sessionId": session})).await.ok();
    assert_eq!(init.header()["session"]["id"], session);
    call("write", json!({"path": "i.txt", "content": "by inspector\n"})).await.ok();
    assert!(call("bash", json!({"command": "cat i.txt"})).await.ok().output().contains("by inspector"));
    assert!(call("read", json!({"path": "missing.txt"})).await.refused().text().contains("missing.txt"));
    assert_eq!(call("read", json!({"path": "picture.png"})).await.ok().images().len(), 1);
    let text = call("history", json!({"limit": 20})).await.ok().text();
    assert!(text.contains("by inspector"), "{}", excerpt(&text));
}

#[tokio::test]
async fn inspector_2025_11_25() {
    inspector_passes("legacy").await;
}

#[tokio::test]
async fn inspector_2026_07_28() {
    inspector_passes("modern").await;
}

/// Runs a conformance suite against a node. What each is expected to fail, and why, is in `tests/clients/conformance/`.
async fn conformance(suite: &str, arguments: &[&str], baseline: &Path) -> (bool, String) {
    let node = node_with_picture().await;
    let program = real::installed(&format!("node_modules/{suite}/dist/index.js")).display().to_string();
    let (baseline, results) = (baseline.display().to_string(), node.world.folder("results").display().to_string());
    let mut all = vec![program.as_str(), "server", "--url", node.url(), "--expected-failures", baseline.as_str()];
    all.extend(["--output-dir", results.as_str()]);
    all.extend(arguments);
    let output = real::run(&node.world, node.folder(), &real::node_js(), &all).await;
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let summary = printed.split("=== SUMMARY ===").last().unwrap_or_default().to_owned();
    (output.status.success(), summary)
}

async fn conforms(suite: &str, arguments: &[&str], baseline: &str) {
    let baseline = real::installed(&format!("conformance/{baseline}"));
    let (passed, summary) = conformance(suite, arguments, &baseline).await;
    assert!(passed, "an unexpected failure or a stale line in {}:\n{summary}", baseline.display());
}

#[tokio::test]
async fn the_conformance_suite_fails_on_a_line_that_should_not_be_in_the_baseline() {
    let world = World::privileged();
    let known = fs::read_to_string(real::installed("conformance/stable-2025-11-25.yml")).unwrap();
    for (name, text, word) in [
        ("stale.yml", format!("{known}  - tools-list\n"), "tale"),
        ("short.yml", known.replace("  - prompts-list", "  # "), "prompts-list"),
    ] {
        let baseline = world.root().join(name);
        world.put(&baseline, text);
        let (passed, summary) = conformance("@modelcontextprotocol/conformance", &[], &baseline).await;
        assert!(!passed && summary.contains(word), "{name}:\n{summary}");
    }
}

#[tokio::test]
async fn conformance_suite_0_1_16_2025_11_25() {
    conforms("@modelcontextprotocol/conformance", &[], "stable-2025-11-25.yml").await;
}

#[tokio::test]
async fn conformance_suite_0_2_0_2025_11_25() {
    conforms("conformance-alpha", &["--requirements", "2025-11-25"], "alpha-2025-11-25.yml").await;
}

#[tokio::test]
async fn conformance_suite_0_2_0_2026_07_28() {
    conforms("conformance-alpha", &["--requirements", "2026-07-28"], "alpha-2026-07-28.yml").await;
}
