//! The write tool over real files: made, replaced, linked, refused.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use super::*;
use crate::{
    clock,
    host::native::testing::{World, context, object, text},
};

async fn write(world: &World, path: &str, content: &str) -> ToolOutput {
    run(object(json!({"path": path, "content": content})), &world.env, &context()).await
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_new_file_is_made_with_its_folders_and_the_umask() {
    let world = World::new();
    let output = write(&world, "a/b/vide é.txt", "x\r\n\0é").await;
    assert!(!output.is_error, "{output:?}");
    assert_eq!(text(&output), "Wrote 6 bytes to the new file a/b/vide é.txt.\n");
    let path = world.env.cwd.join("a/b/vide é.txt");
    assert_eq!(fs::read(&path).unwrap(), "x\r\n\0é".as_bytes());
    fs::write(world.env.cwd.join("plain"), "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode();
    assert_eq!(mode(&path), mode(&world.env.cwd.join("plain")));
    assert_eq!(output.details.unwrap()["created"], json!(true));
}

#[tokio::test]
async fn a_replaced_file_keeps_its_mode_and_says_its_size() {
    let world = World::new();
    let path = world.env.cwd.join("f");
    fs::write(&path, "before").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o751)).unwrap();
    let output = write(&world, "f", "").await;
    assert_eq!(text(&output), "Wrote 0 bytes to f, replacing 6.\n");
    assert_eq!((fs::read(&path).unwrap().len(), fs::metadata(&path).unwrap().mode() & 0o777), (0, 0o751));
    assert_eq!(names(&world.env.cwd), ["f"]);
}

#[tokio::test]
async fn home_absolute_and_linked_paths_reach_the_real_file() {
    let world = World::new();
    assert!(!write(&world, "~/in home", "1").await.is_error);
    assert_eq!(fs::read_to_string(world.env.home.join("in home")).unwrap(), "1");
    symlink("absent/deep", world.env.cwd.join("dangling")).unwrap();
    assert!(!write(&world, "dangling", "2").await.is_error);
    assert_eq!(fs::read_to_string(world.env.cwd.join("absent/deep")).unwrap(), "2");
    assert!(world.env.cwd.join("dangling").is_symlink());
    let absolute = world.env.cwd.join("absolute");
    assert!(!write(&world, absolute.to_str().unwrap(), "3").await.is_error);
    assert_eq!(fs::read_to_string(absolute).unwrap(), "3");
}

#[tokio::test]
async fn a_change_that_this_conversation_has_not_seen_is_named_after_it_is_overwritten() {
    let world = World::new();
    let path = world.env.cwd.join("f");
    let call = |reader: &str, content: &str| {
        let mut context = context();
        context.reader = Some(reader.to_owned());
        let arguments = object(json!({"path": "f", "content": content}));
        let env = world.env.clone();
        async move { run(arguments, &env, &context).await }
    };
    let said = |output: &ToolOutput| text(output).contains("had changed since this conversation last");
    assert!(!said(&call("chat:a", "one").await));
    assert!(!said(&call("chat:a", "two").await), "its own change");
    assert!(!said(&call("chat:b", "three").await), "never seen by this one");
    let output = call("chat:a", "four").await;
    assert!(said(&output) && !output.is_error, "{output:?}");
    assert_eq!(output.details.unwrap()["changedSinceSeen"], json!(true));
    fs::write(&path, "by another program").unwrap();
    assert!(said(&call("chat:a", "five").await));
    assert_eq!(fs::read_to_string(&path).unwrap(), "five");
}

#[tokio::test]
async fn what_is_no_file_is_refused_and_stays() {
    let world = World::new();
    let cwd = &world.env.cwd;
    rustix::fs::mkfifoat(rustix::fs::CWD, cwd.join("pipe"), 0o600.into()).unwrap();
    fs::create_dir(cwd.join("dir")).unwrap();
    fs::write(cwd.join("ro"), "keep").unwrap();
    fs::set_permissions(cwd.join("ro"), fs::Permissions::from_mode(0o444)).unwrap();
    let long = "n".repeat(256);
    for (name, cause) in [
        ("pipe", "is a named pipe"),
        ("dir", "is a folder"),
        ("dir/", "is a folder"),
        ("new/", "is a folder"),
        ("/dev/null", "is a device"),
        ("ro", "is read-only"),
        ("ro/x", "a part of the path is a file"),
        (&long, "longer than the file system takes"),
        (&"n/".repeat(3_000), "system takes at most"),
        ("/proc/no-such/file", "cannot make the folder /proc/no-such"),
        ("", "`path` is empty"),
        ("a\0", "NUL"),
    ] {
        let output = write(&world, name, "x").await;
        assert!(output.is_error && text(&output).contains(cause), "{name}: {output:?}");
        assert!(text(&output).contains("nothing was"), "{name}: {output:?}");
    }
    assert_eq!(names(cwd), ["dir", "pipe", "ro"]);
    assert_eq!(fs::read_to_string(cwd.join("ro")).unwrap(), "keep");
    assert_eq!(names(&world.env.node_home.join("staging")), Vec::<String>::new());
}

#[tokio::test]
async fn a_deleted_working_folder_is_named_and_not_made_again() {
    let world = World::new();
    fs::remove_dir_all(&world.env.cwd).unwrap();
    let output = write(&world, "a/b", "x").await;
    assert!(output.is_error && text(&output).contains("working folder"), "{output:?}");
    assert!(!world.env.cwd.exists());
}

#[tokio::test]
async fn a_cancelled_write_changes_nothing() {
    let world = World::new();
    let context = context();
    context.cancel.cancel();
    let output = run(object(json!({"path": "a/b", "content": "x"})), &world.env, &context).await;
    assert!(output.is_error && text(&output).contains("cancelled"), "{output:?}");
    assert_eq!(names(&world.env.cwd), Vec::<String>::new());
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let world = World::new();
    for (given, said) in [
        (json!({"path": "f"}), "write: `content`: is required"),
        (json!({"path": "f", "content": 1}), "write: `content`: invalid type"),
        (json!({"path": "f", "content": "", "mode": 1}), "unknown argument `mode`"),
    ] {
        let output = run(object(given), &world.env, &context()).await;
        assert!(output.is_error && text(&output).contains(said), "{output:?}");
    }
    assert_eq!(names(&world.env.cwd), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_at_the_same_time_leave_one_whole_file() {
    let world = World::new();
    let contents: Vec<String> = (0..20).map(|n| clock::token().repeat(1_000 + n)).collect();
    let tasks: Vec<_> = contents
        .iter()
        .map(|content| {
            let (env, arguments) = (world.env.clone(), object(json!({"path": "new/f", "content": content})));
            tokio::spawn(async move { run(arguments, &env, &context()).await })
        })
        .collect();
    for task in tasks {
        let output = task.await.unwrap();
        assert!(!output.is_error, "{output:?}");
    }
    let content = fs::read_to_string(world.env.cwd.join("new/f")).unwrap();
    assert!(contents.contains(&content));
    assert_eq!(names(&world.env.cwd.join("new")), ["f"]);
}
