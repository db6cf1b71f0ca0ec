//! Process groups: ending everything a call started, whatever it did to hide.

use std::process::Stdio;

use super::*;

fn shell(script: &str) -> Command {
    let mut command = command(&find_program("bash").unwrap(), Path::new("/"));
    command.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Waits until `ready` holds; panics after ten seconds.
async fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn marker() -> Marker {
    Marker::call(&crate::clock::call_id(), "chappie-test")
}

#[tokio::test]
async fn ending_reaches_what_ignores_term_left_the_session_or_wiped_its_environment() {
    let home = tempfile::tempdir().unwrap();
    let marker = marker();
    let script = "trap '' TERM; sleep 300 & setsid sleep 300 & env -i setsid sleep 300 & (setsid sleep 300 &) ; wait";
    let mut group = Group::start(home.path(), &marker, shell(script)).unwrap();
    until("the shell and four sleeps run", || group.target.living().len() == 5).await;
    let before = group.target.living();
    let ended = group.end().await;
    assert_eq!(ended.left, Vec::<i32>::new());
    assert_eq!(Exit::from(group.wait().await.unwrap()), Exit::Signal(9));
    assert!(before.iter().all(|p| !p.is_alive()), "{before:?}");
}

#[tokio::test]
async fn a_process_that_obeys_term_may_clean_up() {
    let home = tempfile::tempdir().unwrap();
    let [up, clean] = ["up", "clean"].map(|name| home.path().join(name));
    let script =
        format!("trap ': >{}; exit 5' TERM; : >{}; while :; do sleep 0.01; done", clean.display(), up.display());
    let mut group = Group::start(home.path(), &marker(), shell(&script)).unwrap();
    until("its trap is set", || up.exists()).await;
    let ended = group.end().await;
    assert!(ended.left.is_empty());
    assert_eq!(Exit::from(group.wait().await.unwrap()), Exit::Code(5));
    assert!(clean.exists());
}

#[tokio::test]
async fn a_dropped_group_is_killed_and_its_record_removed() {
    let home = tempfile::tempdir().unwrap();
    let group = Group::start(home.path(), &marker(), shell("sleep 300 & setsid sleep 300")).unwrap();
    until("both sleeps run", || group.target.living().len() == 3).await;
    let target = group.target.clone();
    assert_eq!(std::fs::read_dir(home.path().join("groups")).unwrap().count(), 1);
    drop(group);
    until("all are gone", || target.living().is_empty()).await;
    assert_eq!(std::fs::read_dir(home.path().join("groups")).unwrap().count(), 0);
}

#[tokio::test]
async fn sweeping_ends_what_a_killed_node_left_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let marker = marker();
    let group = Group::start(home.path(), &marker, shell("trap '' TERM; setsid sleep 300 & sleep 300")).unwrap();
    let stranger = Group::start(tempfile::tempdir().unwrap().path(), &self::marker(), shell("sleep 300")).unwrap();
    until("they run", || group.target.living().len() == 3).await;
    let target = group.target.clone();
    // As a kill -9 leaves it: nobody waits, the record stays.
    std::mem::forget(group);
    let home_path = home.path().to_owned();
    let swept = tokio::task::spawn_blocking(move || sweep(&home_path)).await.unwrap();
    assert_eq!(swept.len(), 1);
    assert_eq!((swept[0].call.as_str(), swept[0].ended), (marker.value.as_str(), 3));
    assert_eq!(swept[0].left, Vec::<i32>::new());
    assert!(target.living().is_empty());
    assert_eq!(stranger.target.living().len(), 1, "another call's process was ended");
    assert!(sweep(home.path()).is_empty());
}

#[tokio::test]
async fn a_record_written_before_the_start_finds_the_processes_by_their_marker() {
    let home = tempfile::tempdir().unwrap();
    let marker = marker();
    let record = record::Record::create(home.path(), &marker).unwrap();
    let mut command = shell("sleep 300");
    command.env(marker.key, &marker.value);
    // `bash -c` becomes its only command.
    let mut child = command.spawn().unwrap();
    std::mem::forget(record);
    until("it carries its marker", || Target::new(None, &marker).living().len() == 1).await;
    let swept = sweep(home.path());
    assert_eq!(swept.iter().map(|s| s.ended).collect::<Vec<_>>(), [1]);
    assert_eq!(Exit::from(child.wait().unwrap()), Exit::Signal(15));
}

#[tokio::test]
async fn a_command_has_no_terminal_and_no_editor() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let mut command = command(&find_program("bash").unwrap(), home.path());
    command.args([
        "-c",
        "echo $TERM $PAGER $GIT_EDITOR $EDITOR $CHAPPIE_CALL; cat; [ $$ = $(cut -d' ' -f5 /proc/$$/stat) ] && echo leads",
    ]);
    command.stdout(std::fs::File::create(&out).unwrap());
    let marker = marker();
    let mut group = Group::start(home.path(), &marker, command).unwrap();
    assert_eq!(Exit::from(group.wait().await.unwrap()), Exit::Code(0));
    let text = std::fs::read_to_string(&out).unwrap();
    assert_eq!(text, format!("dumb cat false false {}\nleads\n", marker.value));
}
