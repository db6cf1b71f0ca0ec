//! The bash tool with real shells: output, exit, timeout, cancellation, children.

use std::{os::unix::fs::PermissionsExt, time::Instant};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    budget::TextBudget,
    host::native::testing::{World, context, kill, object, runs, text, until},
};

async fn bash(world: &World, arguments: Value) -> ToolOutput {
    run(object(arguments), &world.env, &context()).await
}

fn detail<'a>(output: &'a ToolOutput, key: &str) -> &'a Value {
    &output.details.as_ref().expect("details")[key]
}

/// A number that no other test has in its command lines.
fn unique_seconds() -> String {
    format!("{}", 100_000_000 + u32::from_str_radix(&crate::clock::token()[..7], 16).unwrap())
}

#[tokio::test]
async fn stdout_and_stderr_come_in_order_and_success_says_nothing_more() {
    let world = World::new();
    let output = bash(&world, json!({"command": "echo one; echo two >&2; echo three; pwd"})).await;
    assert_eq!(text(&output), format!("one\ntwo\nthree\n{}\n", world.env.cwd.display()));
    assert!(!output.is_error);
    assert_eq!((detail(&output, "exitCode"), detail(&output, "lines")), (&json!(0), &json!(4)));
    let output = bash(&world, json!({"command": "true"})).await;
    assert_eq!((text(&output), output.is_error), ("(no output, exit 0)", false));
}

#[tokio::test]
async fn dev_11_background_children_do_not_hold_the_call() {
    let world = World::new();
    let seconds = unique_seconds();
    let begun = Instant::now();
    let output = bash(&world, json!({"command": format!("sleep {seconds} & echo up")})).await;
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert!(text(&output).starts_with("up\n[still running in the background: pid "), "{}", text(&output));
    assert!(text(&output).contains("not ended with the session") && text(&output).contains("the tool process"));
    assert_eq!((output.is_error, detail(&output, "exitCode")), (false, &json!(0)));
    assert!(runs(&seconds), "a background child lives on");
    let command = format!("(sleep {seconds} </dev/null >/dev/null &) ; echo up2");
    let output = bash(&world, json!({"command": command})).await;
    assert!(text(&output).starts_with("up2\n"));
    let daemon = format!("(setsid sh -c 'sleep {seconds}' >/dev/null 2>&1 </dev/null &)");
    let output = bash(&world, json!({"command": format!("{daemon}; echo up3")})).await;
    assert_eq!(text(&output), "up3\n");
    assert!(begun.elapsed() < Duration::from_secs(9), "three calls, three seconds each");
    kill(&seconds);
}

#[tokio::test]
async fn a_background_child_that_prints_on_is_neither_waited_for_nor_killed_by_it() {
    let world = World::new();
    let alive = world.env.cwd.join("alive");
    // It prints after the answer, and lives to tell.
    let command = "(while [ ! -e answered ]; do sleep 0.01; done; echo late; echo late >&2; : >alive) & echo up";
    let output = bash(&world, json!({"command": command})).await;
    assert!(text(&output).starts_with("up\n"));
    fs::write(world.env.cwd.join("answered"), "").unwrap();
    until("the background child went on", || alive.exists().then_some(())).await;

    let begun = Instant::now();
    let output = bash(&world, json!({"command": "yes &"})).await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(text(&output).contains("[cut: ") && text(&output).contains("in the background"), "{}", text(&output));
    let pid =
        text(&output).rsplit_once("in the background: pid ").unwrap().1.split_once(';').unwrap().0.parse().unwrap();
    until("a child that never stops printing is cut off", || {
        group::Identity::of(pid).is_none_or(|p| !p.is_alive()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn dev_12_a_timeout_ends_everything_also_what_ignores_term_or_left_the_session() {
    let world = World::new();
    let seconds = unique_seconds();
    let command = format!(
        "echo begun; trap '' TERM; sleep {seconds} & setsid sleep {seconds} & sleep {seconds}; sleep {seconds}"
    );
    let begun = Instant::now();
    let output = bash(&world, json!({"command": command, "timeout": 0.5})).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(output.is_error);
    assert!(text(&output).starts_with("begun\ntimed out: it ran past 0.5 s"), "{}", text(&output));
    assert_eq!(detail(&output, "timedOut"), &json!(true));
    assert!(!runs(&seconds));
    assert_eq!(text(&bash(&world, json!({"command": "echo next"})).await), "next\n");
}

#[tokio::test]
async fn a_daemon_that_forked_twice_ends_with_a_timed_out_call() {
    let world = World::new();
    let seconds = unique_seconds();
    let command = format!("(setsid sh -c 'trap \"\" TERM; sleep {seconds} & sleep {seconds}' &) ; sleep {seconds}");
    let output = bash(&world, json!({"command": command, "timeout": 0.5})).await;
    assert!(output.is_error);
    assert!(!runs(&seconds));
}

/// The largest resident size this process had, in KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs itself again in a process of its own: the memory of other tests must not count.
#[tokio::test]
async fn dev_13_a_flood_of_output_is_spooled_in_bounded_memory() {
    const ALONE: &str = "CHAPPIE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "host::native::bash::tests::dev_13_a_flood_of_output_is_spooled_in_bounded_memory";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let world = World::new();
    let before = peak_memory();
    let output = bash(&world, json!({"command": "yes | head -c 300000000"})).await;
    let grown = peak_memory().saturating_sub(before);
    assert!(grown < 64 * 1024, "memory rose by {grown} KiB");
    assert!(!output.is_error && text(&output).len() <= 40_000);
    assert!(text(&output).contains("[cut: 150000000 lines, 300000000 bytes in all; full output: "));
    let path = PathBuf::from(detail(&output, "fullOutput").as_str().unwrap());
    assert_eq!(path.metadata().unwrap().len(), 300_000_000);
    assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn dev_13_the_end_the_exit_code_and_the_way_to_the_rest_are_there() {
    let world = World::new();
    let output = bash(&world, json!({"command": "seq 1 50000; echo THE-END-7; exit 3"})).await;
    assert!(output.is_error);
    assert!(text(&output).starts_with("1\n2\n3\n"));
    assert!(text(&output).ends_with("50000\nTHE-END-7\nexit 3"));
    assert!(text(&output).contains("[cut: 50001 lines, 288904 bytes in all; full output: "));
    assert!(TextBudget::WHOLE.fits(text(&output)));
    assert_eq!(detail(&output, "exitCode"), &json!(3));
    let path = detail(&output, "fullOutput").as_str().unwrap();
    let whole = fs::read_to_string(path).unwrap();
    assert_eq!((whole.len(), whole.lines().nth(24_999)), (288_904, Some("25000")));
}

#[tokio::test]
async fn output_without_a_line_end_and_outside_utf8_does_not_break() {
    let world = World::new();
    let output = bash(&world, json!({"command": r"printf 'caf\xe9 \x1b[31mred\x1b[0m\x00'; exit 4"})).await;
    assert_eq!(text(&output), "caf\u{fffd} red\u{2400}\nexit 4");
    let output = bash(&world, json!({"command": "head -c 500000 /dev/zero | tr '\\0' x"})).await;
    assert!(TextBudget::WHOLE.fits(text(&output)));
    assert!(text(&output).contains("[cut: 1 lines, 500000 bytes in all"));
    let output = bash(&world, json!({"command": "head -c 300000 /dev/urandom"})).await;
    assert!(TextBudget::WHOLE.fits(text(&output)));
}

#[tokio::test]
async fn dev_14_a_signal_is_named_and_never_a_success() {
    let world = World::new();
    let output = bash(&world, json!({"command": "printf before; kill -KILL $$"})).await;
    assert_eq!((text(&output), output.is_error), ("before\nkilled by signal 9 (KILL)", true));
    assert_eq!(detail(&output, "signal"), &json!(9));
    let output = bash(&world, json!({"command": "sh -c 'kill -SEGV $$'; exit $?"})).await;
    assert!(text(&output).ends_with("exit 139 (128 + 11: killed by SEGV)"), "{}", text(&output));
    assert!(output.is_error);
}

#[tokio::test]
async fn dev_15_nothing_waits_for_a_person() {
    let world = World::new();
    let output = bash(&world, json!({"command": "cat"})).await;
    assert_eq!((text(&output), output.is_error), ("(no output, exit 0)", false));
    let setup =
        "git init -q . && git config user.name a && git config user.email a@b && git commit -qm first --allow-empty";
    let output = bash(&world, json!({"command": setup})).await;
    assert!(!output.is_error, "{}", text(&output));
    let output = bash(&world, json!({"command": "git commit --allow-empty", "timeout": 5})).await;
    assert!(output.is_error && detail(&output, "timedOut").is_null(), "{}", text(&output));
    let output = bash(&world, json!({"command": "git rev-list --count HEAD"})).await;
    assert_eq!(text(&output), "1\n");
    let output = bash(&world, json!({"command": "git -c core.pager=less log", "timeout": 5})).await;
    assert!(text(&output).contains("    first") && !output.is_error, "{}", text(&output));
    let output = bash(&world, json!({"command": "cat < /dev/tty", "timeout": 5})).await;
    assert!(output.is_error && detail(&output, "timedOut").is_null(), "{}", text(&output));
    let output = bash(&world, json!({"command": "read -p 'Continue? ' answer", "timeout": 5})).await;
    assert_eq!(detail(&output, "exitCode"), &json!(1));
}

/// The node of a person who types `chappie up` has a terminal; its commands must not reach it.
#[test]
fn dev_15_holds_also_for_a_node_with_a_terminal() {
    let exe = std::env::current_exe().unwrap();
    let command = format!("'{}' --exact host::native::bash::tests::dev_15_nothing_waits_for_a_person", exe.display());
    let mut script = std::process::Command::new("script");
    let output = script.args(["-qec", &command, "/dev/null"]).stdin(std::process::Stdio::null()).output();
    let output = output.expect("the program script (util-linux) is needed for this test");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_cancelled_command_is_gone_within_a_second_and_its_output_is_kept() {
    let world = World::new();
    let seconds = unique_seconds();
    for script in ["sleep", "trap '' TERM; sleep"] {
        let context = context();
        let arguments = object(json!({"command": format!("echo begun; {script} {seconds}")}));
        let env = world.env.clone();
        let cancel = context.cancel.clone();
        let call = tokio::spawn(async move { run(arguments, &env, &context).await });
        until("it runs", || runs(&seconds).then_some(())).await;
        let begun = Instant::now();
        cancel.cancel();
        let output = call.await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        assert!(output.is_error);
        assert_eq!(text(&output), "begun\ncancelled: it was ended with all of its processes");
        assert!(!runs(&seconds));
    }
}

#[tokio::test]
async fn cancelling_while_output_is_spooled_keeps_a_whole_answer() {
    let world = World::new();
    let context = context();
    let (env, cancel, outputs) = (world.env.clone(), context.cancel.clone(), world.env.outputs.clone());
    let call = tokio::spawn(async move { run(object(json!({"command": "yes"})), &env, &context).await });
    until("the file grows", || {
        let entry = fs::read_dir(&outputs).ok()?.flatten().next()?;
        (entry.metadata().ok()?.len() > 1_000_000).then_some(())
    })
    .await;
    cancel.cancel();
    let output = call.await.unwrap();
    assert!(text(&output).ends_with("cancelled: it was ended with all of its processes"));
    let bytes = detail(&output, "bytes").as_u64().unwrap();
    assert_eq!(fs::metadata(detail(&output, "fullOutput").as_str().unwrap()).unwrap().len(), bytes);
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let context = ToolContext { cancel: cancelled, ..super::super::testing::context() };
    let output = run(object(json!({"command": ": >ran"})), &world.env, &context).await;
    assert_eq!((text(&output), output.is_error), ("cancelled before it started; nothing ran", true));
    assert!(!world.env.cwd.join("ran").exists());
}

#[tokio::test]
async fn bad_arguments_are_refused_and_run_nothing() {
    let world = World::new();
    for (arguments, wanted) in [
        (json!({}), "`command`: is required"),
        (json!({"command": "  \n"}), "command is empty"),
        (json!({"command": "echo a\0b"}), "NUL character at byte 6"),
        (json!({"command": 7}), "`command`: invalid type"),
        (json!({"command": ": >ran", "timeout": 0}), "timeout must be above 0"),
        (json!({"command": ": >ran", "timeout": -1}), "timeout must be above 0"),
        (json!({"command": ": >ran", "timeout": 86401}), "at most 86400 seconds"),
        (json!({"command": ": >ran", "timeout": "5"}), "`timeout`: invalid type"),
        (json!({"command": ": >ran", "cwd": "/"}), "unknown argument `cwd`"),
    ] {
        let output = bash(&world, arguments.clone()).await;
        assert!(output.is_error && text(&output).contains(wanted), "{arguments}: {}", text(&output));
    }
    assert_eq!(fs::read_dir(&world.env.cwd).unwrap().count(), 0);
}

#[tokio::test]
async fn a_command_longer_than_an_argument_can_be_runs_all_the_same() {
    let world = World::new();
    let command = format!("echo begun\n# {}\necho done; exit 5", "x".repeat(3_000_000));
    let output = bash(&world, json!({"command": command})).await;
    assert_eq!(text(&output), "begun\ndone\nexit 5");
    assert_eq!(fs::read_dir(&world.env.outputs).unwrap().count(), 0, "its file is removed");
    let output = bash(&world, json!({"command": "-x; echo $?"})).await;
    assert!(text(&output).contains("127"), "a command may begin with a dash: {}", text(&output));
}

#[tokio::test]
async fn a_missing_working_folder_is_named_and_not_made() {
    let world = World::new();
    fs::remove_dir(&world.env.cwd).unwrap();
    let output = bash(&world, json!({"command": "echo hi"})).await;
    assert!(output.is_error && text(&output).contains(world.env.cwd.to_str().unwrap()), "{}", text(&output));
    assert!(!world.env.cwd.exists());
    fs::write(&world.env.cwd, "").unwrap();
    assert!(text(&bash(&world, json!({"command": "echo hi"})).await).contains("it is not a folder"));
}

#[tokio::test]
async fn no_record_stays_after_a_call() {
    let world = World::new();
    bash(&world, json!({"command": "true"})).await;
    bash(&world, json!({"command": "sleep 60", "timeout": 0.1})).await;
    assert_eq!(fs::read_dir(world.env.node_home.join("groups")).unwrap().count(), 0);
}
