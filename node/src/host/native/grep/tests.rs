//! The grep tool over real folders: matches, limits, and what is skipped.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use serde_json::Value;

use super::*;
use crate::host::native::testing::{World, context, object, text};

async fn grep(world: &World, arguments: Value) -> ToolOutput {
    run(object(arguments), &world.env, &context()).await
}

fn write(world: &World, files: &[(&str, &str)]) {
    for (file, content) in files {
        let path = world.env.cwd.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[tokio::test]
async fn matches_come_by_path_and_line_without_ignored_and_binary_files() {
    let world = World::new();
    write(
        &world,
        &[
            ("b.rs", "one\nneedle two\n"),
            ("a/x.rs", "needle\r\nno\r\nNeedle"),
            (".hidden", "a needle"),
            ("target/x", "needle"),
            (".git/x", "needle"),
            ("bin", "needle\0needle"),
            (".gitignore", "target\n"),
        ],
    );
    let output = grep(&world, json!({"pattern": "needle"})).await;
    assert_eq!(text(&output), ".hidden:1: a needle\na/x.rs:1: needle\nb.rs:2: needle two");
    let output = grep(&world, json!({"pattern": "^needle$", "ignoreCase": true})).await;
    assert_eq!(text(&output), "a/x.rs:1: needle\na/x.rs:3: Needle");
    let output = grep(&world, json!({"pattern": "needle", "glob": "*.rs", "path": "a"})).await;
    assert_eq!(text(&output), "a/x.rs:1: needle");
    let output = grep(&world, json!({"pattern": "needle", "glob": "!*.rs"})).await;
    assert_eq!(text(&output), ".hidden:1: a needle");
    let output = grep(&world, json!({"pattern": "needle", "path": "b.rs"})).await;
    assert_eq!(text(&output), "b.rs:2: needle two");
    let output = grep(&world, json!({"pattern": "absent"})).await;
    assert_eq!((text(&output), output.is_error), ("no matches", false));
    let output = grep(&world, json!({"pattern": "needle", "path": "bin"})).await;
    assert!(output.is_error && text(&output).contains("bin is a binary file"), "{}", text(&output));
}

#[tokio::test]
async fn context_lines_are_marked_and_groups_are_parted() {
    let world = World::new();
    let lines: String = (1..=20).map(|n| format!("line {n}\n")).collect();
    write(&world, &[("a", &lines), ("b", "x\nline 10\n")]);
    let output = grep(&world, json!({"pattern": "line (5|6|10)$", "context": 1})).await;
    let wanted = "a-4- line 4\na:5: line 5\na:6: line 6\na-7- line 7\n--\na-9- line 9\na:10: line 10\na-11- line 11\n\
        --\nb-1- x\nb:2: line 10";
    assert_eq!(text(&output), wanted);
}

#[tokio::test]
async fn a_bad_expression_is_explained_and_literal_takes_it_as_text() {
    let world = World::new();
    write(&world, &[("a", "call foo(x\n")]);
    let output = grep(&world, json!({"pattern": "foo("})).await;
    assert!(output.is_error);
    assert!(text(&output).contains("unclosed group") && text(&output).contains("literal: true"), "{}", text(&output));
    let output = grep(&world, json!({"pattern": "foo(", "literal": true})).await;
    assert_eq!(text(&output), "a:1: call foo(x");
    let output = grep(&world, json!({"pattern": "a\nb"})).await;
    assert!(output.is_error && text(&output).contains("line end"), "{}", text(&output));
}

#[tokio::test]
async fn pipes_devices_loops_and_unreadable_folders_do_not_stop_a_search() {
    let world = World::new();
    write(&world, &[("dir/a", "needle"), ("zz", "needle"), ("locked", "needle")]);
    let at = |name: &str| world.env.cwd.join(name);
    symlink("..", at("dir/loop")).unwrap();
    symlink("/dev/zero", at("zero")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
    fs::set_permissions(at("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let output = grep(&world, json!({"pattern": "needle"})).await;
    if fs::read(at("locked")).is_ok() {
        // Nothing is unreadable to root.
        assert_eq!(text(&output), "dir/a:1: needle\nlocked:1: needle\nzz:1: needle");
    } else {
        assert_eq!(text(&output), "dir/a:1: needle\nzz:1: needle\n[not readable: locked: permission denied]");
    }
    for (path, wanted) in [("pipe", "a named pipe"), ("zero", "a device"), ("gone", "does not exist")] {
        let output = grep(&world, json!({"pattern": "x", "path": path})).await;
        assert!(output.is_error && text(&output).contains(wanted), "{path}: {}", text(&output));
    }
}

#[tokio::test]
async fn limits_budgets_and_long_lines_are_said() {
    let world = World::new();
    let lines: String = (1..=5_000).map(|n| format!("a needle in line {n}\n")).collect();
    write(&world, &[("a", &lines), ("long", &format!("{}needle", "x".repeat(100_000)))]);
    let output = grep(&world, json!({"pattern": "needle", "limit": 2})).await;
    assert!(
        text(&output).starts_with("a:1: a needle in line 1\na:2: a needle in line 2\n[limit of 2 "),
        "{}",
        text(&output)
    );
    let output = grep(&world, json!({"pattern": "needle"})).await;
    assert!(text(&output).contains("a:100: ") && text(&output).contains("[limit of 100 "));
    let output = grep(&world, json!({"pattern": "needle", "limit": 5000})).await;
    assert!(TextBudget::WHOLE.fits(text(&output)) && text(&output).contains("more did not fit"));
    let output = grep(&world, json!({"pattern": "needle", "path": "long"})).await;
    assert_eq!(
        text(&output),
        format!("long:1: [99900 characters]…{}needle\n[long lines are cut; read shows them whole]", "x".repeat(100))
    );
    // The limit is met exactly: nothing is left.
    let output = grep(&world, json!({"pattern": "line 5000$", "limit": 1})).await;
    assert_eq!(text(&output), "a:5000: a needle in line 5000");
}

#[tokio::test]
async fn encodings_and_control_characters_are_shown_on_one_line() {
    let world = World::new();
    let utf16: Vec<u8> = "\u{feff}wide needle\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(world.env.cwd.join("utf16"), utf16).unwrap();
    fs::write(world.env.cwd.join("latin"), b"caf\xe9 needle\x1b[0m\rx\n").unwrap();
    let output = grep(&world, json!({"pattern": "needle"})).await;
    assert_eq!(text(&output), "latin:1: caf\u{fffd} needle\u{241b}[0m\u{240d}x\nutf16:1: wide needle");
}

#[tokio::test]
async fn bad_arguments_are_refused() {
    let world = World::new();
    for (arguments, wanted) in [
        (json!({}), "`pattern`: is required"),
        (json!({"pattern": ""}), "pattern is empty"),
        (json!({"pattern": "x", "context": -1}), "`context`"),
        (json!({"pattern": "x", "limit": 1.5}), "`limit`: expected a whole number"),
        (json!({"pattern": "x", "glob": "a["}), "the glob \"a[\" is not valid"),
        (json!({"pattern": "x", "regex": true}), "unknown argument `regex`"),
    ] {
        let output = grep(&world, arguments.clone()).await;
        assert!(output.is_error && text(&output).contains(wanted), "{arguments}: {}", text(&output));
    }
}

#[tokio::test]
async fn a_cancelled_search_stops() {
    let world = World::new();
    write(&world, &[("a", "x")]);
    let context = context();
    context.cancel.cancel();
    let output = run(object(json!({"pattern": "x"})), &world.env, &context).await;
    assert_eq!((text(&output), output.is_error), (walk::CANCELLED, true));
}
