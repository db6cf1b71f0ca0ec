//! The table of long processes: who runs, who ended and how, across restarts and boots.

use std::{
    fs::File,
    time::{Duration, SystemTime},
};

use rustix::process::Signal;

use super::{entry::Leader, *};
use crate::{
    host::native::{
        group,
        testing::{World, until},
    },
    ids::Millis,
};

fn table(world: &World) -> Table {
    Table::new(&world.env.node_home, &world.env.session)
}

fn start(world: &World, command: &str) -> Entry {
    let shell = group::find_program("bash").unwrap();
    let start = Start { shell: &shell, command, name: None, cwd: &world.env.cwd, keep: false };
    table(world).start(&start).unwrap()
}

async fn ended(entry: &Entry) -> State {
    until("it ends", || Some(entry.state()).filter(|state| *state != State::Running)).await
}

#[tokio::test]
async fn exit_codes_and_outputs_are_written_by_the_process_itself() {
    let world = World::new();
    let entry = start(&world, "echo out; echo err >&2; exit 7");
    assert_eq!(ended(&entry).await, State::Exited(7));
    assert_eq!(fs::read_to_string(entry.output()).unwrap(), "out\nerr\n");
    assert_eq!(ended(&start(&world, "kill -SEGV $$")).await, State::Exited(139));
    let long = format!("# {}\nexit 9", "x".repeat(300_000));
    assert_eq!(ended(&start(&world, &long)).await, State::Exited(9));
}

#[tokio::test]
async fn the_wrapper_survives_the_signals_its_process_dies_of() {
    let world = World::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::USR1, 138)] {
        let entry = start(&world, "exec sleep 300");
        until("it is the sleep", || (entry.signal(Signal::CONT) == 2).then_some(())).await;
        until("the program was replaced", || crate::host::native::testing::runs("sleep 300").then_some(())).await;
        entry.signal(signal);
        assert_eq!(ended(&entry).await, State::Exited(code));
    }
}

#[tokio::test]
async fn what_was_killed_whole_or_belongs_to_another_boot_is_not_running() {
    let world = World::new();
    let entry = start(&world, "sleep 300");
    entry.signal(Signal::KILL);
    until("it is written down", || (entry.state() == State::Killed(9)).then_some(())).await;

    // A recycled pid: the same number, another start.
    let mut entry = start(&world, "sleep 300");
    let leader = entry.meta.leader.clone().unwrap();
    entry.meta.leader = Some(Leader { start: leader.start + 1, ..leader.clone() });
    assert_eq!(entry.state(), State::Lost);
    entry.meta.leader = Some(Leader { boot: "another".into(), ..leader.clone() });
    assert_eq!(entry.state(), State::Lost);
    entry.meta.leader = Some(leader);
    assert_eq!(entry.state(), State::Running);
    assert!(entry.end(STOP_GRACE).left.is_empty());
}

#[tokio::test]
async fn a_process_whose_pid_was_not_written_any_more_is_found_by_its_marker() {
    let world = World::new();
    let mut entry = start(&world, "sleep 300");
    entry.meta.leader = None;
    entry.meta.started = Millis(1);
    entry.write_meta().unwrap();
    let found = table(&world).find(&entry.meta.id).unwrap();
    assert_eq!((found.state(), found.pid()), (State::Running, None));
    assert!(found.end(STOP_GRACE).left.is_empty());
    assert_ne!(found.state(), State::Running);
}

#[tokio::test]
async fn an_entry_that_is_just_being_started_is_not_taken_for_lost() {
    let world = World::new();
    let shell = group::find_program("bash").unwrap();
    let start = Start { shell: &shell, command: "true", name: None, cwd: &world.env.cwd, keep: false };
    let mut entry = table(&world).create(&start).unwrap();
    entry.write_meta().unwrap();
    status::write_new(&entry.status_file(), State::Running).unwrap();
    assert_eq!(entry.state(), State::Running);
    entry.meta.started = Millis(1);
    assert_eq!(entry.state(), State::Lost);
}

#[tokio::test]
async fn ended_processes_are_listed_for_a_day_and_running_ones_for_ever() {
    let world = World::new();
    let [old, young, running] = ["true", "true", "sleep 300"].map(|command| start(&world, command));
    for entry in [&old, &young] {
        assert_eq!(ended(entry).await, State::Exited(0));
    }
    let age = |entry: &Entry, hours: u64| {
        let stamp = SystemTime::UNIX_EPOCH + Duration::from_millis(clock::now().0) - Duration::from_secs(hours * 3600);
        File::options().write(true).open(entry.status_file()).unwrap().set_modified(stamp).unwrap();
    };
    age(&old, 25);
    age(&young, 23);
    age(&running, 1_000);
    let listed: Vec<_> = table(&world).list().into_iter().map(|entry| entry.meta.id).collect();
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&young.meta.id) && listed.contains(&running.meta.id));
    assert!(!old.folder.exists());
    // A session that is over lists nothing; the next one that starts forgets for it.
    age(&young, 25);
    Table::new(&world.env.node_home, &clock::session_id()).adopt();
    assert!(!young.folder.exists() && running.folder.exists());
    assert!(running.end(STOP_GRACE).left.is_empty());
}

#[tokio::test]
async fn a_start_that_fails_leaves_no_entry() {
    let world = World::new();
    let missing = world.env.cwd.join("gone");
    let shell = group::find_program("bash").unwrap();
    let start = Start { shell: &shell, command: "true", name: None, cwd: &missing, keep: false };
    assert!(table(&world).start(&start).is_err());
    assert!(table(&world).list().is_empty());
    // A folder that is no entry is passed over.
    fs::create_dir_all(world.env.node_home.join("processes/x/y")).unwrap();
    fs::write(world.env.node_home.join("processes/x/y/meta.json"), "{").unwrap();
    assert!(table(&world).list().is_empty());
}
