//! The `history` tool (behaviour 3.4 and 9): ranges, waiting, observing, and what pages hold, against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use chappie_tests::{Answer, Client, Node, answer::excerpt, tokens};
use serde_json::{Value, json};

fn ids(page: &Answer) -> Vec<String> {
    page.sections().iter().filter_map(|section| section.head["id"].as_str()).map(str::to_owned).collect()
}

fn has_more(page: &Answer) -> bool {
    page.header()["history"]["hasMore"] == true
}

async fn page(client: &Client, arguments: Value) -> Answer {
    let mut all = json!({"observer": true});
    all.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
    client.call("history", all).await.ok()
}

/// A node with some history, a client bound to its session, and the ids of all entries in branch order.
async fn with_entries() -> (Node, Client, Vec<String>) {
    let node = Node::single().await;
    let client = node.chat("v1/history");
    for number in 0..6 {
        client.call("bash", json!({"command": format!("echo entry-{number}")})).await.ok();
    }
    let all = page(&client, json!({"limit": 200})).await;
    let ids = ids(&all);
    assert!(ids.len() >= 12, "a call and a result each: {}", excerpt(&all.text()));
    assert!(!has_more(&all));
    (node, client, ids)
}

#[tokio::test]
async fn without_a_range_the_last_entries_come_in_branch_order() {
    let (_node, client, all) = with_entries().await;
    let last = page(&client, json!({"limit": 3})).await;
    assert_eq!(ids(&last), all[all.len() - 3..]);
    assert!(has_more(&last));
    assert_eq!(last.header()["history"]["count"], 3);
    assert_eq!(ids(&page(&client, json!({})).await), all[all.len().saturating_sub(20)..]);
}

#[tokio::test]
async fn before_gives_the_entries_just_before_and_after_the_first_ones_after() {
    let (_node, client, all) = with_entries().await;
    let before = page(&client, json!({"before": all[5], "limit": 2})).await;
    assert_eq!(ids(&before), all[3..5]);
    assert!(has_more(&before));
    let after = page(&client, json!({"after": all[5], "limit": 2})).await;
    assert_eq!(ids(&after), all[6..8]);
    assert!(has_more(&after));
    let between = page(&client, json!({"after": all[2], "before": all[7], "limit": 200})).await;
    assert_eq!(ids(&between), all[3..7]);
    assert!(!has_more(&between));
    let first = page(&client, json!({"before": all[1], "limit": 5})).await;
    assert_eq!(ids(&first), all[..1]);
    assert!(!has_more(&first));
    assert!(ids(&page(&client, json!({"after": all[2], "before": all[3]})).await).is_empty());
}

#[tokio::test]
async fn paging_forward_and_backward_sees_every_entry_once() {
    let (_node, client, all) = with_entries().await;
    let mut forward = vec![all[0].clone()];
    loop {
        let next = page(&client, json!({"after": forward.last(), "limit": 4})).await;
        forward.extend(ids(&next));
        if !has_more(&next) {
            break;
        }
    }
    assert_eq!(forward, all);
    let mut backward: Vec<String> = vec![all.last().unwrap().clone()];
    loop {
        let previous = page(&client, json!({"before": backward[0], "limit": 4})).await;
        backward.splice(0..0, ids(&previous));
        if !has_more(&previous) {
            break;
        }
    }
    assert_eq!(backward, all);
}

#[tokio::test]
async fn wrong_ranges_are_refused_with_a_reason() {
    let (node, client, all) = with_entries().await;
    for (arguments, word) in [
        (json!({"after": "no-such-entry"}), "no-such-entry"),
        (json!({"before": "no-such-entry"}), "no-such-entry"),
        (json!({"after": all[5], "before": all[2]}), "before"),
        (json!({"limit": 0}), "limit"),
        (json!({"limit": 201}), "limit"),
        (json!({"limit": 1.5}), "limit"),
        (json!({"after": ""}), "after"),
        (json!({"sessionId": "no-such-session"}), "no-such-session"),
    ] {
        let refused = client.call("history", arguments.clone()).await.refused();
        assert!(refused.text().contains(word), "{arguments}: {}", refused.text());
    }
    let stranger = node.chat("v1/stranger").call("history", json!({})).await.refused();
    assert!(stranger.text().contains("sessionId"), "history never selects: {}", stranger.text());
    let listed = node.chat("v1/stranger").call("sessions", json!({})).await.ok().header();
    assert!(listed["binding"].is_null(), "and never binds");
}

#[tokio::test]
async fn waiting_is_woken_by_a_new_entry_and_leaves_the_session_free() {
    let (node, client, all) = with_entries().await;
    let waiting = client.begin("history", json!({"after": all.last(), "wait": true, "observer": true}));
    let start = Instant::now();
    assert!(client.call("bash", json!({"command": "echo while-waiting"})).await.ok().output().contains("while"));
    let woken = waiting.answer().await.ok();
    assert!(!ids(&woken).is_empty(), "{}", excerpt(&woken.text()));
    assert!(start.elapsed() < Duration::from_secs(25), "woken, not timed out: {:?}", start.elapsed());
    // What a person types wakes too.
    let last = ids(&page(&client, json!({"limit": 1})).await);
    let waiting = client.begin("history", json!({"after": last[0], "wait": true, "observer": true}));
    node.say(&node.session("s"), "WAKE-UP");
    assert!(waiting.answer().await.ok().text().contains("WAKE-UP"));
}

#[tokio::test]
async fn waiting_with_entries_at_hand_or_with_before_does_not_wait() {
    let (_node, client, all) = with_entries().await;
    let start = Instant::now();
    let here = page(&client, json!({"after": all[2], "wait": true, "limit": 1})).await;
    assert_eq!(ids(&here), all[3..4]);
    assert!(ids(&page(&client, json!({"before": all[0], "wait": true})).await).is_empty());
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_wait_ends_empty_after_thirty_seconds() {
    let (_node, client, all) = with_entries().await;
    let start = Instant::now();
    let empty = page(&client, json!({"after": all.last(), "wait": true})).await;
    assert!(ids(&empty).is_empty() && !has_more(&empty));
    let took = start.elapsed();
    assert!((Duration::from_secs(25)..Duration::from_secs(90)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn reading_leaves_no_entry_whoever_reads() {
    let (_node, client, all) = with_entries().await;
    for observer in [false, true, false] {
        let again = client.call("history", json!({"limit": 200, "observer": observer})).await.ok();
        assert_eq!(ids(&again), all);
    }
}

#[tokio::test]
async fn reading_as_executor_leaves_a_notice_for_people_and_observing_does_not() {
    let (node, client, _) = with_entries().await;
    let log = || node.world.run_ok(&["log", "s"]);
    client.call("history", json!({"observer": true})).await.ok();
    let before = log();
    client.call("history", json!({"observer": false})).await.ok();
    let after = log();
    // People see the notice in the log, or it is kept from them as from readers; then the two logs are equal.
    assert!(!before.contains("read history"), "{before}");
    assert!(after.contains("read history") || after == before, "{after}");
}

#[tokio::test]
async fn entries_carry_ids_stamps_parents_and_their_source() {
    let (_node, client, _) = with_entries().await;
    let sections = page(&client, json!({"limit": 200})).await.sections();
    let mut parent: Option<Value> = None;
    for section in &sections {
        let head = &section.head;
        assert!(head["id"].is_string() && head["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{head}");
        if let Some(parent) = parent {
            assert_eq!(head["parentId"], parent, "{head}");
        }
        parent = Some(head["id"].clone());
    }
    let result = sections.iter().find(|section| section.head["message"]["role"] == "toolResult").unwrap();
    assert_eq!(result.head["message"]["toolName"], "bash");
    assert_eq!(result.head["message"]["isError"], false);
    assert_eq!(result.head["message"]["chappie"]["chatId"], "v1/history");
}

#[tokio::test]
async fn a_page_stays_within_what_chatgpt_shows_and_paging_goes_on() {
    let node = Node::single().await;
    let client = node.chat("v1/history");
    for number in 0..8 {
        let command = format!("seq {number}0000 {number}1500");
        client.call("bash", json!({"command": command})).await.ok();
    }
    let mut seen = 0;
    let mut cursor: Option<String> = None;
    loop {
        let mut arguments = json!({"limit": 200});
        if let Some(cursor) = &cursor {
            arguments["before"] = json!(cursor);
        }
        let answer = page(&client, arguments).await;
        let tokens = tokens::count(&answer.text()) + tokens::count(&answer.structured.to_string());
        assert!(tokens <= 10_000, "{tokens} tokens would be cut by ChatGPT");
        let found = ids(&answer);
        assert!(!found.is_empty(), "{}", excerpt(&answer.text()));
        seen += found.len();
        cursor = found.first().cloned();
        if !has_more(&answer) {
            break;
        }
    }
    assert!(seen >= 16, "{seen} entries");
}

#[tokio::test]
async fn an_entry_longer_than_a_page_says_how_to_read_on() {
    let node = Node::single().await;
    let client = node.chat("v1/history");
    let content = "a line of some length for the file\n".repeat(1_500);
    client.call("write", json!({"path": "big.txt", "content": content})).await.ok();
    let answer = page(&client, json!({"limit": 200})).await;
    let tokens = tokens::count(&answer.text()) + tokens::count(&answer.structured.to_string());
    assert!(tokens <= 10_000, "{tokens} tokens would be cut by ChatGPT");
    // Read back until the entry with the call is shown.
    let all = page(&client, json!({"before": ids(&answer)[0], "limit": 1})).await;
    let text = if answer.text().contains("cut") { answer.text() } else { all.text() };
    assert!(text.contains("cut") && text.contains("read"), "{}", excerpt(&text));
}

#[tokio::test]
async fn arguments_too_large_for_an_entry_are_kept_in_a_file_that_it_names() {
    let node = Node::single().await;
    let client = node.chat("v1/history");
    let content = "a line of some length for the file\n".repeat(4_000);
    client.call("write", json!({"path": "big.txt", "content": content})).await.ok();
    let text = page(&client, json!({"limit": 200})).await.text();
    let path = text.split("\"keptIn\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let read = client.call("read", json!({"path": path})).await;
    assert!(read.text().contains("a line of some length"), "{}: {}", excerpt(&text), excerpt(&read.text()));
}

#[tokio::test]
async fn history_survives_a_restart_with_the_same_ids() {
    let (mut node, client, all) = with_entries().await;
    drop(client);
    node.restart().await;
    let again = page(&node.chat("v1/history"), json!({"limit": 200})).await;
    assert_eq!(ids(&again)[..all.len()], all);
}
