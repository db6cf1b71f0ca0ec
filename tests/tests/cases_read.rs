//! Cases DEV-08 to DEV-10: reading what is not a plain text file, through real MCP against the real program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chappie_tests::{Answer, Client, Node, answer::excerpt, node::Setup, process, world::World};
use serde_json::json;

/// Ten times what the case allows: the machine is shared, and what is ruled out is a hang.
const SOON: Duration = Duration::from_secs(30);

async fn two_sessions(script: &str) -> (Node, Client, Client) {
    let world = Arc::new(World::new());
    let (a, b) = (world.folder("T"), world.folder("U"));
    world.sh(&a, script);
    let node = Node::start(world, Setup::new().session(&a, "a").session(&b, "b")).await;
    let (first, second) = (node.chat("v1/first"), node.chat("v1/second"));
    let pwd = first.call("bash", json!({"command": "pwd"})).await.ok().output();
    assert!(pwd.contains("/T"), "{pwd}");
    (node, first, second)
}

async fn assert_pipe_is_refused_and_nothing_waits(command: &str, path: &str, word: &str) {
    let (node, first, second) = two_sessions(command).await;
    let start = Instant::now();
    let pipe = first.begin("read", json!({"path": path}));
    let other = node.folder().join("q").display().to_string();
    let beside = second.call("read", json!({"path": other})).await.ok();
    assert!(beside.output().contains("ok"), "{}", beside.output());
    let refusal = pipe.answer().await.refused();
    assert!(refusal.text().to_lowercase().contains(word), "says what it is: {}", refusal.text());
    let after = first.call("read", json!({"path": "q"})).await.ok();
    assert!(after.output().contains("ok"), "{}", after.output());
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
    let stuck: Vec<String> = process::waits(node.pid()).into_iter().filter(|wait| wait.contains("fifo")).collect();
    assert!(stuck.is_empty(), "a thread still waits in open: {stuck:?}");
}

#[tokio::test]
async fn dev_08_a_fifo_is_refused_and_holds_nobody_up() {
    assert_pipe_is_refused_and_nothing_waits("mkfifo p; echo ok > q", "p", "pipe").await;
}

#[tokio::test]
async fn dev_08_variant_a_link_to_a_fifo_and_a_socket_are_refused() {
    assert_pipe_is_refused_and_nothing_waits("mkfifo p; ln -s p alias; echo ok > q", "alias", "pipe").await;
    let make = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'; echo ok > q";
    assert_pipe_is_refused_and_nothing_waits(make, "s", "socket").await;
}

/// The call that the notice advises: the last `offset=N` (and its `limit`) or JSON that stands in the text.
fn advice(text: &str) -> Option<serde_json::Value> {
    let at = text.rfind("offset")?;
    let number = |from: &str| -> Option<u64> {
        let digits: String =
            from.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    Some(json!(number(&text[at..])?))
}

async fn follow_to_the_end(client: &Client, path: &str, end: &str, calls_max: usize) -> Vec<Answer> {
    let mut answers = vec![client.call("read", json!({"path": path})).await.ok()];
    while !answers.last().unwrap().output().contains(end) {
        let last = answers.last().unwrap().output();
        assert!(answers.len() < calls_max, "{calls_max} calls did not reach the end; last: {}", excerpt(&last));
        let offset = advice(&last).unwrap_or_else(|| panic!("no advice how to read on: …{}", tail(&last)));
        let next = client.call("read", json!({"path": path, "offset": offset})).await.ok();
        assert_ne!(next.output(), last, "each further call shows something new");
        answers.push(next);
    }
    answers
}

fn tail(text: &str) -> String {
    let all: Vec<char> = text.chars().collect();
    all[all.len().saturating_sub(400)..].iter().collect()
}

#[tokio::test]
async fn dev_09_a_huge_line_is_cut_with_its_number_and_size_and_the_end_is_reached() {
    let node = Node::single().await;
    node.world.sh(node.folder(), "head -c 200000 /dev/zero | tr '\\0' x > big.txt; printf '\\ntail-7\\n' >> big.txt");
    let client = node.chat("v1/cases");
    let answers = follow_to_the_end(&client, "big.txt", "tail-7", 20).await;
    let first = &answers[0];
    assert!(first.output().contains("xxxxxxxxxx"), "holds part of line 1");
    assert!(first.text().chars().count() <= 40_000, "{} characters", first.text().chars().count());
    let notice = tail(&first.output());
    assert!(notice.contains('1'), "names the line: {notice}");
    let plain = notice.replace([',', '_'], "");
    assert!(
        plain.contains("200000") || plain.contains("195.3") || plain.contains("200008"),
        "names the size: {notice}"
    );
    let second = client.call("read", json!({"path": "big.txt", "offset": 2})).await.ok();
    assert!(second.output().contains("tail-7") && !second.output().contains("xxxx"), "{}", excerpt(&second.output()));
}

#[tokio::test]
async fn dev_09_variant_many_long_lines_are_all_seen_by_following_the_notices() {
    let node = Node::single().await;
    let script =
        "for i in $(seq 1 60); do printf 'mark-%03d ' $i; head -c 3000 /dev/zero | tr '\\0' y; echo; done > m.txt";
    node.world.sh(node.folder(), script);
    let client = node.chat("v1/cases");
    let answers = follow_to_the_end(&client, "m.txt", "mark-060", 40).await;
    let all: String = answers.iter().map(Answer::output).collect();
    for number in 1..=60 {
        assert!(all.contains(&format!("mark-{number:03}")), "line {number} was never shown");
    }
}

#[tokio::test]
async fn dev_10_what_only_pretends_to_be_an_image_is_named_for_what_it_is() {
    let node = Node::single().await;
    let script = r#"printf '<svg xmlns="http://www.w3.org/2000/svg"/>' > fake.png; : > empty.jpg
        { printf '\x89PNG\r\n\x1a\n'; head -c 2048 /dev/urandom; } > noise.png"#;
    node.world.sh(node.folder(), script);
    let client = node.chat("v1/cases");
    for (name, words) in [
        ("fake.png", &["svg", "xml", "text"][..]),
        ("empty.jpg", &["empty", "0 bytes"]),
        ("noise.png", &["decode", "damaged", "corrupt", "not a valid", "broken"]),
    ] {
        let answer = client.call("read", json!({"path": name})).await;
        assert!(answer.images().is_empty(), "{name} is no image");
        let text = answer.text().to_lowercase();
        assert!(words.iter().any(|word| text.contains(word)), "{name}: {}", excerpt(&text));
    }
    let on = client.call("bash", json!({"command": "echo on"})).await.ok();
    assert!(on.output().contains("on"));
    let history = client.call("history", json!({"limit": 50})).await.ok();
    assert!(history.images().is_empty(), "history holds no image of these");
}

#[tokio::test]
async fn dev_10_variant_a_real_image_under_a_wrong_name_is_shown_as_what_it_is() {
    let node = Node::single().await;
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(40, 30, image::Rgb([200, 30, 30])).write_to(&mut png, image::ImageFormat::Png).unwrap();
    let png = png.into_inner();
    node.world.put(&node.folder().join("photo.jpg"), &png);
    node.world.put(&node.folder().join("cut.png"), &png[..png.len() / 2]);
    let client = node.chat("v1/cases");
    let shown = client.call("read", json!({"path": "photo.jpg"})).await.ok();
    let images = shown.images();
    assert_eq!(images.len(), 1, "{}", excerpt(&shown.text()));
    assert_eq!(images[0].mime, "image/png");
    assert_eq!(image::load_from_memory(&images[0].bytes).unwrap().to_rgb8().dimensions(), (40, 30));
    let cut = client.call("read", json!({"path": "cut.png"})).await;
    assert!(cut.images().is_empty(), "half an image is no image");
}
