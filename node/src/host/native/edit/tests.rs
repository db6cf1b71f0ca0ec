//! The edit tool over real files: all edits of a call or none, and what of a file is kept.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::host::native::{
    testing::{World, context, object, text},
    write,
};

/// The first 16 digits of a file's SHA-256, as the cases give it.
fn sha(path: &Path) -> String {
    format!("{:x}", Sha256::digest(fs::read(path).unwrap()))[..16].to_owned()
}

fn arguments(path: &str, edits: &[(&str, &str)]) -> JsonObject {
    let edits: Vec<Value> = edits.iter().map(|(old, new)| json!({"oldText": old, "newText": new})).collect();
    object(json!({"path": path, "edits": edits}))
}

async fn edit(world: &World, path: &str, old: &str, new: &str) -> ToolOutput {
    run(arguments(path, &[(old, new)]), &world.env, &context()).await
}

/// A world with one file.
fn world_with(name: &str, content: &[u8]) -> (World, PathBuf) {
    let world = World::new();
    let path = world.env.cwd.join(name);
    fs::write(&path, content).unwrap();
    (world, path)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn dev_01_an_edit_keeps_a_byte_order_mark_and_crlf() {
    let (world, path) = world_with("c.txt", b"\xef\xbb\xbfalpha\r\nbeta\r\ngamma\r\n");
    let output = edit(&world, "c.txt", "alpha\nbeta\n", "ALPHA\nBETA\n").await;
    assert!(!output.is_error, "{output:?}");
    assert_eq!(sha(&path), "d7932d623eebd388");
    let real = fs::canonicalize(&path).unwrap();
    assert_eq!(output.details, Some(json!({"path": real.to_str(), "replacements": 1, "firstLine": 1})));
    assert!(text(&output).starts_with("Edited c.txt: 1 replacement, the first at line 1.\n@@ line 1 @@\n"));
}

#[tokio::test]
async fn dev_02_an_edit_changes_only_its_bytes() {
    let before = b"one\ntwo\r\nprog 10%\rprog 20%\rdone\nfour\n";
    let (world, path) = world_with("m.txt", before);
    assert!(!edit(&world, "m.txt", "four", "FOUR").await.is_error);
    let changed = before.iter().zip(fs::read(&path).unwrap()).filter(|(old, new)| **old != *new).count();
    assert_eq!((changed, sha(&path).as_str()), (4, "595d3a04d94157ce"));
}

#[tokio::test]
async fn dev_03_bytes_that_are_not_utf8_are_not_replaced() {
    let (world, path) = world_with("l.txt", b"x = 1\n# caf\xe9 r\xe9sum\xe9\n");
    let refused = edit(&world, "l.txt", "x = 1", "x = \u{fffd}").await;
    assert!(refused.is_error && text(&refused).contains("not UTF-8"), "{refused:?}");
    assert_eq!(sha(&path), "ac4e533960bfa93c");
    assert!(!edit(&world, "l.txt", "x = 1", "x = 2").await.is_error);
    assert_eq!(sha(&path), "408a86aabc7b952a");
}

#[tokio::test]
async fn dev_04_a_text_in_two_overlapping_places_is_refused() {
    let (world, path) = world_with("o.txt", b"foo\nfoo\nfoo\n");
    let output = edit(&world, "o.txt", "foo\nfoo\n", "bar\n").await;
    assert!(output.is_error && text(&output).starts_with("o.txt: edits[0].oldText stands in 2 places"), "{output:?}");
    assert_eq!((sha(&path).as_str(), names(&world.env.cwd)), ("2c7289545968d565", vec!["o.txt".to_owned()]));
}

#[tokio::test]
async fn dev_05_new_text_is_taken_literally() {
    let (world, path) = world_with("d.js", b"log(\"done\");\n");
    assert!(!edit(&world, "d.js", "\"done\"", "\"$& $1 $$ \\1 ${x} $`\"").await.is_error);
    assert_eq!(sha(&path), "d9de7629874fc44b");
}

#[tokio::test]
async fn dev_06_links_stay_links_and_the_mode_stays() {
    let (world, real) = world_with("real.sh", b"echo old\n");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| world.env.cwd.join(name);
    for (to, name) in [("real.sh", "l1"), ("l1", "l2"), ("loop", "loop")] {
        symlink(to, at(name)).unwrap();
    }
    assert!(!edit(&world, "l2", "old", "new").await.is_error);
    assert_eq!(fs::read_to_string(&real).unwrap(), "echo new\n");
    let arguments = object(json!({"path": "l1", "content": "echo newer"}));
    assert!(!write::run(arguments, &world.env, &context()).await.is_error);
    assert_eq!(fs::read_to_string(&real).unwrap(), "echo newer");
    for (name, to) in [("l1", "real.sh"), ("l2", "l1"), ("loop", "loop")] {
        assert_eq!(fs::read_link(at(name)).unwrap(), Path::new(to));
    }
    assert_eq!(fs::metadata(&real).unwrap().mode() & 0o7777, 0o755);
    let circle = write::run(object(json!({"path": "loop", "content": "x"})), &world.env, &context()).await;
    assert!(circle.is_error && text(&circle).contains("symbolic links lead in a circle"), "{circle:?}");
    let circle = edit(&world, "loop", "a", "b").await;
    assert!(circle.is_error && text(&circle).contains("symbolic links lead in a circle"), "{circle:?}");
    assert_eq!(names(&world.env.cwd), ["l1", "l2", "loop", "real.sh"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dev_07_edits_of_one_file_at_the_same_time_are_all_made() {
    let lines: String = (201..=220).map(|n| format!("{n}\n")).collect();
    let (world, path) = world_with("p.txt", b"");
    // Through other names of the file and from another session of the node, too.
    let mut other = world.env.clone();
    other.cwd = world.env.home.clone();
    symlink(&path, other.cwd.join("p.txt")).unwrap();
    for round in 0..10 {
        fs::write(&path, &lines).unwrap();
        let edits: Vec<_> = (201..=220)
            .map(|n| {
                let env = if round % 2 == 1 && n % 2 == 1 { other.clone() } else { world.env.clone() };
                let (old, new) = (n.to_string(), format!("line-{n}"));
                tokio::spawn(async move { run(arguments("p.txt", &[(&old, &new)]), &env, &context()).await })
            })
            .collect();
        for done in edits {
            let output = done.await.unwrap();
            assert!(!output.is_error, "{output:?}");
        }
        let content = fs::read_to_string(&path).unwrap();
        assert_eq!(content, lines.lines().map(|line| format!("line-{line}\n")).collect::<String>());
    }
}

#[tokio::test]
async fn several_edits_of_one_call_are_all_made_or_none() {
    let lines: String = (1..=100).map(|n| format!("{n}\n")).collect();
    let (world, path) = world_with("n.txt", lines.as_bytes());
    let both = arguments("n.txt", &[("50\n", "FIFTY\n"), ("75\n", "SEVENTYFIVE\n")]);
    let output = run(both, &world.env, &context()).await;
    assert!(!output.is_error && text(&output).contains("2 replacements, the first at line 50"), "{output:?}");
    let content = fs::read_to_string(&path).unwrap();
    assert!(content.contains("49\nFIFTY\n51\n") && content.contains("74\nSEVENTYFIVE\n76\n"));
    let half = arguments("n.txt", &[("FIFTY", "50"), ("absent", "x")]);
    assert!(run(half, &world.env, &context()).await.is_error);
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
}

#[tokio::test]
async fn what_cannot_be_edited_is_refused_by_name_and_cause() {
    let (world, path) = world_with("ro.txt", b"text\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, world.env.cwd.join("pipe"), 0o600.into()).unwrap();
    fs::create_dir(world.env.cwd.join("dir")).unwrap();
    fs::write(world.env.cwd.join("none"), "text\n").unwrap();
    fs::set_permissions(world.env.cwd.join("none"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::write(world.env.cwd.join("wide.txt"), b"\xff\xfet\0e\0x\0t\0").unwrap();
    let big = fs::File::create(world.env.cwd.join("big")).unwrap();
    big.set_len(LARGEST + 1).unwrap();
    for (name, cause) in [
        ("ro.txt", "is read-only"),
        ("none", "is read-only"),
        ("pipe", "is a named pipe (FIFO)"),
        ("dir", "is a folder"),
        ("absent", "does not exist"),
        ("wide.txt", "UTF-16LE"),
        ("big", "edit takes at most"),
        ("ro.txt/x", "a part of the path is a file"),
        ("/dev/zero", "is a device"),
        ("", "`path` is empty"),
        ("a\0b", "NUL"),
    ] {
        let output = edit(&world, name, "text", "x").await;
        assert!(output.is_error && text(&output).contains(cause), "{name}: {output:?}");
        assert!(text(&output).contains("nothing was"), "{name}: {output:?}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "text\n");
    assert_eq!(names(&world.env.cwd), ["big", "dir", "none", "pipe", "ro.txt", "wide.txt"]);
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let (world, _) = world_with("f", b"a\n");
    let one = json!({"oldText": "a", "newText": "b"});
    for (given, said) in [
        (json!({"path": "f", "patch": "x"}), "`patch` is for sessions of Oh My Pi"),
        (json!({"path": "f", "edits": []}), "expected 1 to 128 replacements, found 0"),
        (json!({"path": "f", "edits": vec![one.clone(); 129]}), "found 129"),
        (json!({"path": "f", "oldText": "a", "newText": "b"}), "unknown arguments `oldText`, `newText`"),
        (json!({"path": "f", "edits": [one, {"oldText": "a"}]}), "edits[1]: `newText`: is required"),
        (json!({"path": "f", "edits": [{"oldText": "a", "newText": "b", "all": true}]}), "unknown argument `all`"),
        (json!({"path": "f", "edits": "a"}), "`edits`: invalid type: string"),
        (json!({"path": 7, "edits": []}), "`path`: invalid type"),
    ] {
        let output = run(object(given), &world.env, &context()).await;
        assert!(output.is_error && text(&output).contains(said), "{said}: {output:?}");
    }
}

#[tokio::test]
async fn a_cancelled_edit_leaves_the_old_file() {
    let (world, path) = world_with("f", b"old\n");
    let context = context();
    context.cancel.cancel();
    let output = run(arguments("f", &[("old", "new")]), &world.env, &context).await;
    assert!(output.is_error && text(&output).contains("cancelled"), "{output:?}");
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(&world.env.cwd)), ("old\n", vec!["f".to_owned()]));
}

#[tokio::test]
async fn a_cancelled_wait_for_another_edit_ends_and_changes_nothing() {
    let (world, path) = world_with("f", b"old\n");
    let real = fs::canonicalize(&path).unwrap();
    let held = world.env.locks.lock(&real, &CancellationToken::new()).await.unwrap();
    let context = context();
    let waiting = tokio::spawn({
        let (env, context) = (world.env.clone(), context.clone());
        async move { run(arguments("f", &[("old", "new")]), &env, &context).await }
    });
    context.cancel.cancel();
    let output = waiting.await.unwrap();
    drop(held);
    assert!(output.is_error && text(&output).contains("cancelled"), "{output:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old\n");
}

#[tokio::test]
async fn an_answer_stays_in_its_budget() {
    let lines: String = (0..2_000).map(|n| format!("line {n}\n")).collect();
    let (world, _) = world_with("f", lines.as_bytes());
    let edits: Vec<_> = (100..200).map(|n| (format!("line {n}\n"), "x".repeat(500))).collect();
    let edits: Vec<_> = edits.iter().map(|(old, new)| (old.as_str(), new.as_str())).collect();
    for bytes in [0, 60, 3_000] {
        let mut context = context();
        context.budget = crate::budget::TextBudget { bytes, tokens: bytes / 3 };
        let original = fs::read(world.env.cwd.join("f")).unwrap();
        let output = run(arguments("f", &edits), &world.env, &context).await;
        assert!(!output.is_error && context.budget.fits(text(&output)), "{output:?}");
        fs::write(world.env.cwd.join("f"), original).unwrap();
    }
}

#[tokio::test]
async fn a_deleted_working_folder_is_named() {
    let (world, _) = world_with("f", b"old\n");
    fs::remove_dir_all(&world.env.cwd).unwrap();
    let output = edit(&world, "f", "old", "new").await;
    assert!(output.is_error && text(&output).contains("working folder"), "{output:?}");
    assert!(!world.env.cwd.exists());
}
