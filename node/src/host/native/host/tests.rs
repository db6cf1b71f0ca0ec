//! Batches as `sessions` gives them to the host: order, errors, budgets, cancellation, images.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    clock,
    host::native::testing::{kill, object, runs, until},
};

struct World {
    host: Arc<NativeHost>,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cwd", "node", "home"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let blobs = Blobs::open(&folder.path().join("node/blobs")).unwrap();
        let hosts = NativeHosts::new(&folder.path().join("node"), &folder.path().join("home"), blobs);
        let host = hosts.host(&clock::session_id(), &folder.path().join("cwd"));
        Self { host, folder }
    }

    fn cwd(&self) -> PathBuf {
        self.folder.path().join("cwd")
    }

    async fn call(&self, calls: &[(&str, Value)]) -> Vec<ToolResult> {
        Arc::clone(&self.host).call(members(calls), context()).await
    }
}

fn members(calls: &[(&str, Value)]) -> Vec<ToolCall> {
    let member = |(name, arguments): &(&str, Value)| ToolCall {
        id: format!("chappie-{}", clock::token()),
        name: (*name).to_owned(),
        arguments: object(arguments.clone()),
    };
    calls.iter().map(member).collect()
}

fn context() -> CallContext {
    CallContext { call_id: clock::call_id(), cancel: CancellationToken::new(), reader: None, budget: TextBudget::WHOLE }
}

fn text(result: &ToolResult) -> &str {
    let [Block::Text { text }] = result.content.as_slice() else { panic!("not one text: {result:?}") };
    text
}

#[tokio::test]
async fn members_run_in_order_and_an_error_does_not_stop_the_rest() {
    let world = World::new();
    let calls = [
        ("bash", json!({"command": "echo 1 >> order; sleep 0.2; echo 1 done >> order"})),
        ("bash", json!({"command": "exit 3"})),
        ("nonsense", json!({})),
        ("bash", json!({"cmd": "x"})),
        ("bash", json!({"command": "echo 2 >> order"})),
        ("grep", json!({"pattern": ".", "path": "order"})),
        ("ls", json!({})),
    ];
    let results = world.call(&calls).await;
    let names: Vec<_> = results.iter().map(|r| (r.name.as_str(), r.is_error)).collect();
    let wanted = [
        ("bash", false),
        ("bash", true),
        ("nonsense", true),
        ("bash", true),
        ("bash", false),
        ("grep", false),
        ("ls", false),
    ];
    assert_eq!(names, wanted);
    assert_eq!(text(&results[2]), unknown("nonsense"));
    assert!(text(&results[2]).contains("bash") && text(&results[2]).contains("process"));
    assert_eq!(text(&results[5]), "order:1: 1\norder:2: 1 done\norder:3: 2");
    assert_eq!(text(&results[6]), "order");
}

#[tokio::test]
async fn results_carry_the_ids_of_their_calls_and_their_facts() {
    let world = World::new();
    let calls = members(&[("bash", json!({"command": "exit 4"})), ("ls", json!({}))]);
    let results = Arc::clone(&world.host).call(calls.clone(), context()).await;
    let ids: Vec<_> = results.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(ids, calls.iter().map(|c| c.id.as_str()).collect::<Vec<_>>());
    assert_eq!(results[0].details.as_ref().unwrap()["exitCode"], json!(4));
}

#[tokio::test]
async fn dev_07_two_edits_of_one_file_in_one_batch_are_both_there() {
    let world = World::new();
    let numbers: String = (1..=100).map(|n| format!("{n}\n")).collect();
    fs::write(world.cwd().join("n.txt"), &numbers).unwrap();
    let edit = |old: &str, new: &str| {
        let edits = json!([{"oldText": format!("\n{old}\n"), "newText": format!("\n{new}\n")}]);
        ("edit", json!({"path": "n.txt", "edits": edits}))
    };
    let results = world.call(&[edit("50", "FIFTY"), edit("75", "SEVENTYFIVE")]).await;
    assert!(results.iter().all(|r| !r.is_error), "{results:?}");
    let wanted = numbers.replace("\n50\n", "\nFIFTY\n").replace("\n75\n", "\nSEVENTYFIVE\n");
    assert_eq!(fs::read_to_string(world.cwd().join("n.txt")).unwrap(), wanted);
}

#[tokio::test]
async fn a_cancelled_batch_keeps_what_finished_and_starts_nothing_more() {
    let world = World::new();
    let seconds = format!("6{}", std::process::id());
    let calls = members(&[
        ("bash", json!({"command": "echo first"})),
        ("bash", json!({"command": format!("echo second; sleep {seconds}")})),
        ("bash", json!({"command": ": >third"})),
        ("ls", json!({})),
    ]);
    let context = context();
    let cancel = context.cancel.clone();
    let call = tokio::spawn(Arc::clone(&world.host).call(calls, context));
    until("the second runs", || runs(&seconds).then_some(())).await;
    cancel.cancel();
    let results = call.await.unwrap();
    assert_eq!((text(&results[0]), results[0].is_error), ("first\n", false));
    assert!(text(&results[1]).starts_with("second\ncancelled: "), "{}", text(&results[1]));
    assert_eq!(text(&results[2]), "cancelled before bash started; nothing was done");
    assert_eq!(text(&results[3]), "cancelled before ls started; nothing was done");
    assert!(!world.cwd().join("third").exists() && !runs(&seconds));
}

#[tokio::test]
async fn all_members_together_stay_inside_the_budget() {
    let world = World::new();
    for count in [1, 3, 128] {
        let calls = vec![("bash", json!({"command": "seq 1 20000"})); count];
        let results = world.call(&calls).await;
        let texts: String = results.iter().map(text).collect();
        assert!(TextBudget::WHOLE.fits(&texts), "{count} members: {} bytes", texts.len());
        assert!(results.iter().all(|r| r.details.as_ref().unwrap()["fullOutput"].is_string()));
    }
    // What one member does not need is there for those after it.
    let calls = [("bash", json!({"command": "true"})), ("bash", json!({"command": "seq 1 2500"}))];
    let results = world.call(&calls).await;
    assert!(text(&results[1]).len() > TextBudget::WHOLE.bytes / 2, "{}", text(&results[1]).len());
}

#[tokio::test]
async fn a_missing_folder_fails_every_member_and_is_not_made() {
    let world = World::new();
    fs::remove_dir(world.cwd()).unwrap();
    let calls = [("bash", json!({"command": "mkdir -p ."})), ("ls", json!({})), ("process", json!({"action": "list"}))];
    let results = world.call(&calls).await;
    for result in &results[..2] {
        assert!(result.is_error && text(result).contains("working folder"), "{}", text(result));
    }
    assert_eq!(text(&results[2]), "no processes");
    assert!(!world.cwd().exists());
    assert!(matches!(world.host.inspect().await, Err(HostError::Folder { .. })));
}

#[tokio::test]
async fn inspection_names_tools_skills_and_the_global_instructions() {
    let world = World::new();
    let inspection = world.host.inspect().await.unwrap();
    let names: Vec<_> = inspection.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["read", "bash", "edit", "write", "grep", "find", "ls", "process"]);
    for tool in &inspection.tools {
        assert_eq!(tool.parameters["additionalProperties"], json!(false), "{}", tool.name);
        assert!(tool.description.contains('\n'), "{}: a first line and more", tool.name);
    }
    assert_eq!((inspection.skills.len(), inspection.global_agents), (0, None));
    fs::create_dir_all(world.cwd().join(".agents/skills/ship")).unwrap();
    fs::write(world.cwd().join(".agents/skills/ship/SKILL.md"), "---\ndescription: Ship\n---\n").unwrap();
    let agents = world.folder.path().join("node/AGENTS.md");
    fs::write(&agents, "").unwrap();
    let inspection = world.host.inspect().await.unwrap();
    assert_eq!(inspection.skills[0].name, "ship");
    assert_eq!(inspection.global_agents, Some(agents));
}

#[tokio::test]
async fn a_batch_of_readers_needs_no_journal() {
    let world = World::new();
    let reads = |calls: &[(&str, Value)]| world.host.reads_only(&members(calls));
    assert!(reads(&[("read", json!({})), ("ls", json!({})), ("process", json!({"action": "output"}))]));
    assert!(!reads(&[("read", json!({})), ("bash", json!({}))]));
    assert!(!reads(&[("unknown", json!({}))]));
}

#[tokio::test]
async fn closing_ends_processes_that_were_not_to_be_kept() {
    let world = World::new();
    let seconds = format!("5{}", std::process::id());
    let start = |n: u8, keep: bool| {
        ("process", json!({"action": "start", "command": format!("sleep {seconds}{n}"), "keep": keep}))
    };
    let results = world.call(&[start(1, false), start(2, true)]).await;
    assert!(results.iter().all(|r| !r.is_error), "{results:?}");
    tokio::time::timeout(Duration::from_secs(5), world.host.close()).await.unwrap();
    assert!(!runs(&format!("{seconds}1")) && runs(&format!("{seconds}2")));
    kill(&seconds);
}

#[tokio::test]
async fn dev_13_the_file_of_full_output_reads_where_the_notice_says() {
    let world = World::new();
    let results = world.call(&[("bash", json!({"command": "seq 1 50000; echo THE-END-7; exit 3"}))]).await;
    let path = results[0].details.as_ref().unwrap()["fullOutput"].as_str().unwrap().to_owned();
    let (_, notice) = text(&results[0]).split_once("; read ").unwrap();
    let advice: Value = serde_json::from_str(notice.split_once(']').unwrap().0).unwrap();
    let line = advice["offset"].as_u64().unwrap();
    let calls = [("read", json!({"path": path, "offset": 25000, "limit": 1})), ("read", advice)];
    let results = world.call(&calls).await;
    assert!(text(&results[0]).starts_with("25000"), "{}", text(&results[0]));
    assert!(text(&results[1]).starts_with(&format!("{line}\n{}\n", line + 1)), "{}", text(&results[1]));
}

#[tokio::test]
async fn images_beyond_the_limits_are_left_out_and_said_to_be() {
    let world = World::new();
    let call = &members(&[("read", json!({}))])[0];
    let image = |n: u8, size: usize| Part::Image { mime: "image/png", bytes: vec![n; size] };
    let blobs = world.host.blobs.clone();
    let fresh = || Answer { blobs: blobs.clone(), left: TextBudget::WHOLE, images: 0, image_bytes: 0 };
    let parts = (0..10).map(|n| image(n, 10)).collect();
    let output = ToolOutput { parts, ..ToolOutput::default() };
    let result = fresh().result(call, output, TextBudget::WHOLE).await;
    let images = result.content.iter().filter(|block| matches!(block, Block::Image(_))).count();
    assert_eq!((images, result.content.len()), (8, 10));
    assert!(matches!(&result.content[9], Block::Text { text } if text.contains("an image of 10 bytes was left out")));

    let output = ToolOutput { parts: vec![image(1, 8 << 20), image(2, 8 << 20), image(3, 1)], ..ToolOutput::default() };
    let result = fresh().result(call, output, TextBudget::WHOLE).await;
    let kinds: Vec<_> = result.content.iter().map(|block| matches!(block, Block::Image(_))).collect();
    assert_eq!(kinds, [true, false, true]);
    let Block::Image(first) = &result.content[0] else { panic!("no image") };
    assert_eq!(blobs.bytes(first).unwrap().len(), 8 << 20);
}

#[test]
fn what_is_cut_hard_says_so_and_fits() {
    let budget = TextBudget { bytes: 30, tokens: 30 };
    let cut = fitted("x".repeat(100), budget);
    assert!(budget.fits(&cut) && cut.ends_with("…[cut]"));
    assert_eq!(fitted("short".into(), budget), "short");
}
