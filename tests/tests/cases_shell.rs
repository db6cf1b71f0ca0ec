//! Cases DEV-11 to DEV-15: shell commands through real MCP against the real program, processes looked at from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use chappie_tests::{Client, Node, answer::excerpt, eventually, process, tokens};
use serde_json::{Value, json};

/// Commands that would hold a careless reader of pipes run for a minute; half of it tells the two apart on any machine.
const NOT_HELD: Duration = Duration::from_secs(30);

async fn ready() -> (Node, Client) {
    let node = Node::single().await;
    let client = node.chat("v1/cases");
    (node, client)
}

fn bash(command: &str) -> Value {
    json!({"command": command})
}

async fn assert_gone(node: &Node, part: &str) {
    eventually(&format!("the end of {part}"), async || {
        process::running(node.world.mark(), part).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn dev_11_background_children_do_not_hold_the_call() {
    let (node, client) = ready().await;
    let start = Instant::now();
    let first = client.call("bash", bash("sleep 61 & echo up")).await.ok();
    assert!(first.output().contains("up"), "{}", first.output());
    let second = client.call("bash", bash("(sleep 62 </dev/null >/dev/null &) ; echo up2")).await.ok();
    assert!(second.output().contains("up2"), "{}", second.output());
    assert!(start.elapsed() < NOT_HELD, "took {:?}", start.elapsed());
    assert!(!process::running(node.world.mark(), "sleep 6").is_empty(), "the children were there to be waited for");
}

#[tokio::test]
async fn dev_11_variant_a_child_that_keeps_writing_does_not_hold_the_call() {
    let (node, client) = ready().await;
    let start = Instant::now();
    let script = "(for i in $(seq 1 600); do echo tick; sleep 0.1; done) & echo started";
    let answer = client.call("bash", bash(script)).await.ok();
    assert!(answer.output().contains("started"), "{}", answer.output());
    assert!(start.elapsed() < NOT_HELD, "took {:?}", start.elapsed());
    let next = client.call("bash", bash("echo next")).await.ok();
    assert!(next.output().contains("next") && !next.output().contains("tick"), "{}", next.output());
    drop(node);
}

#[tokio::test]
async fn dev_12_a_timeout_ends_the_whole_group_even_if_it_ignores_sigterm() {
    let (node, client) = ready().await;
    client.call("bash", bash("sleep 4241 & true")).await.ok();
    assert!(!process::running(node.world.mark(), "sleep 4241").is_empty(), "what runs is seen from outside");
    let script = r#"trap "" TERM; sleep 4242 & setsid sleep 4243 & sleep 4244"#;
    let answer = client.call("bash", json!({"command": script, "timeout": 2})).await.refused();
    let text = answer.text();
    assert!(text.contains('2') && (text.contains("timed out") || text.contains("timeout")), "{}", excerpt(&text));
    assert_gone(&node, "sleep 4242").await;
    assert_gone(&node, "sleep 4244").await;
    // What left the group by setsid may live, if the answer says so.
    if !text.contains("setsid") {
        assert_gone(&node, "sleep 4243").await;
    }
    let next = client.call("bash", bash("echo next")).await.ok();
    assert!(next.output().contains("next"));
}

#[tokio::test]
async fn dev_12_variant_a_deep_tree_is_ended_and_what_it_printed_is_kept() {
    let (node, client) = ready().await;
    let script = "echo first; bash -c 'bash -c \"echo deep; sleep 4252 & wait\" & wait'";
    let answer = client.call("bash", json!({"command": script, "timeout": 3})).await.refused();
    assert!(answer.text().contains("first") && answer.text().contains("deep"), "{}", answer.text());
    assert_gone(&node, "sleep 4252").await;
}

#[tokio::test]
async fn dev_13a_300_megabytes_of_output_are_bounded_in_memory_and_in_the_answer() {
    let (node, client) = ready().await;
    client.call("bash", bash("true")).await.ok();
    let before = node.resident();
    let call = client.begin("bash", bash("yes | head -c 300000000"));
    let mut peak = before;
    while !call.is_finished() {
        peak = peak.max(node.resident());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let answer = call.answer().await.ok();
    let rise = peak.saturating_sub(before);
    assert!(rise < 64 * 1024 * 1024, "memory rose by {rise} bytes");
    assert!(answer.text().chars().count() <= 40_000);
    let plain = answer.text().replace([',', '_'], "");
    assert!(
        ["300000000", "150000000", "286.1", "286 M", "300 M", "300.0"].iter().any(|size| plain.contains(size)),
        "says how much there was: {}",
        excerpt(&answer.text().chars().rev().take(500).collect::<String>().chars().rev().collect::<String>())
    );
}

/// The path of the full output that a cut notice names.
fn full_output(text: &str) -> String {
    let at = text.find("/outputs/").unwrap_or_else(|| panic!("no full-output path in {}", excerpt(text)));
    let start = text[..at].rfind(|c: char| c.is_whitespace() || "\"'`([<".contains(c)).map_or(0, |index| index + 1);
    let rest = &text[start..];
    let end = rest.find(|c: char| c.is_whitespace() || "\"'`)]>,;".contains(c)).unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').to_owned()
}

#[tokio::test]
async fn dev_13b_the_end_and_the_exit_code_are_kept_and_the_middle_can_be_read() {
    let (_node, client) = ready().await;
    let answer = client.call("bash", bash("seq 1 50000; echo THE-END-7; exit 3")).await.refused();
    let text = answer.text();
    assert!(text.contains("THE-END-7"));
    assert!(text.contains("exit") && text.contains('3'));
    let plain = text.replace([',', '_'], "");
    assert!(plain.contains("50001") || plain.contains("288904"), "says how much there was");
    let path = full_output(&text);
    let read = client.call("read", json!({"path": path, "offset": 25_000, "limit": 1})).await.ok();
    assert!(read.output().lines().any(|line| line.trim().ends_with("25000")), "{}", read.output());
    let tokens = tokens::count(&answer.text()) + tokens::count(&answer.structured.to_string());
    assert!(tokens <= 10_000, "{tokens} tokens would be cut by ChatGPT");
}

#[tokio::test]
async fn dev_13_variant_dense_output_of_both_streams_stays_within_what_chatgpt_shows() {
    let (_node, client) = ready().await;
    // Random hex has few characters per token: the worst case for an estimate by length.
    let script = "head -c 100000 /dev/urandom | od -An -tx1 -v; seq 1 3000 >&2; echo LAST";
    let answer = client.call("bash", bash(script)).await.ok();
    assert!(answer.text().contains("LAST"));
    let tokens = tokens::count(&answer.text()) + tokens::count(&answer.structured.to_string());
    assert!(tokens <= 10_000, "{tokens} tokens would be cut by ChatGPT");
    let path = full_output(&answer.text());
    let lines = client.call("bash", bash(&format!("wc -l < '{path}'"))).await.ok();
    assert!(lines.output().contains("9251"), "6,250 + 3,000 + 1 lines: {}", lines.output());
}

#[tokio::test]
async fn dev_14_death_by_a_signal_is_an_error_that_names_it() {
    let (_node, client) = ready().await;
    let answer = client.call("bash", bash("printf before; kill -KILL $$")).await.refused();
    let text = answer.text();
    assert!(text.contains("before"), "{text}");
    assert!(text.contains("KILL") || text.contains("signal 9") || text.contains("137"), "{text}");
}

#[tokio::test]
async fn dev_14_variant_a_segfault_of_the_last_command_is_an_error_too() {
    let (_node, client) = ready().await;
    let answer = client.call("bash", bash("echo before; kill -SEGV $$")).await.refused();
    let text = answer.text();
    assert!(text.contains("before"), "{text}");
    assert!(text.contains("SEGV") || text.contains("signal 11") || text.contains("139"), "{text}");
    let pipeline = client.call("bash", bash("exit 137")).await.refused();
    assert!(pipeline.text().contains("137"), "{}", pipeline.text());
}

const REPOSITORY: &str = "git init -q . && git config user.name A && git config user.email a@example.org && \
                          git commit -q --allow-empty -m first";

#[tokio::test]
async fn dev_15_what_asks_for_a_terminal_ends_at_once() {
    let (node, client) = ready().await;
    node.world.sh(node.folder(), REPOSITORY);
    let start = Instant::now();
    let cat = client.call("bash", bash("cat")).await.ok();
    assert!(!cat.output().contains("cat:"), "{}", cat.output());
    client.call("bash", bash("git commit --allow-empty")).await.refused();
    assert_eq!(node.world.sh(node.folder(), "git rev-list --count HEAD").trim(), "1");
    let log = client.call("bash", bash("git -c core.pager=less log")).await.ok();
    assert!(log.output().contains("first"), "{}", log.output());
    client.call("bash", bash("cat < /dev/tty")).await.refused();
    assert!(start.elapsed() < NOT_HELD, "took {:?}", start.elapsed());
    for program in ["vi", "less", "nano", "editor"] {
        let left = process::marked(node.world.mark()).into_iter().any(|seen| {
            seen.command.split_whitespace().next().is_some_and(|word| word.rsplit('/').next() == Some(program))
        });
        assert!(!left, "{program} stays behind");
    }
}

#[tokio::test]
async fn dev_15_variant_prompts_for_passwords_and_choices_end_at_once() {
    let (_node, client) = ready().await;
    let start = Instant::now();
    let asked = client.call("bash", bash("read -r -p 'sure? ' answer; echo \"got:$answer:\"")).await;
    assert!(asked.text().contains("got::"), "{}", asked.text());
    let python = client.call("bash", bash("python3 -c 'import getpass; getpass.getpass()'")).await.refused();
    assert!(python.text().contains("EOF") || python.text().contains("exit"), "{}", python.text());
    let rebase = "git init -q r && cd r && git -c user.name=A -c user.email=a@b.c commit -q --allow-empty -m x && \
                  git -c user.name=A -c user.email=a@b.c rebase -i --root";
    let _ = client.call("bash", bash(rebase)).await;
    assert!(start.elapsed() < NOT_HELD, "took {:?}", start.elapsed());
}
