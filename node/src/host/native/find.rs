//! The tool `find`: files and folders by a glob, with the rules of `walk`.

use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    ToolContext, ToolEnv, ToolOutput,
    arguments::{self, Positive},
    paths::Kind,
    walk::{self, Listing, PathGlob, Place, Unreadable},
};
use crate::{budget::TextBudget, content::JsonObject, host::ToolDefinition};

/// Paths given when the caller names no limit, as in Pi.
const LIMIT_DEFAULT: u64 = 1_000;

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "find".to_owned(),
        description: "Find files and folders by a glob.\n\
            A pattern without / is about names at any depth (*.rs); with / about the path below the searched folder \
            (src/**/*.ts). Gives paths that read takes, folders with a closing /. Hidden files count; what .gitignore \
            excludes and .git do not."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "pattern": { "type": "string", "description": "Glob, like *.ts or src/**/*.spec.ts" },
                "path": { "type": "string", "description": "Folder to search, default the working folder" },
                "limit": { "type": "integer", "minimum": 1, "description": "Most paths to give, default 1000" }
            },
            "required": ["pattern"],
            "additionalProperties": false
        }),
    }
}

/// The arguments as they come.
#[derive(Deserialize)]
struct Given {
    pattern: String,
    path: Option<String>,
    limit: Option<Positive>,
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    let checked = arguments::parse("find", arguments).and_then(|given: Given| {
        let place = Place::new(given.path, env)?;
        let glob = PathGlob::new("pattern", &given.pattern, &place)?;
        Ok((glob, place, given.limit.map_or(LIMIT_DEFAULT, |n| n.0)))
    });
    let (glob, place, limit) = match checked {
        Ok(checked) => checked,
        Err(message) => return ToolOutput::error(message),
    };
    let budget = context.budget;
    let found = walk::blocking(context, move |cancel| find(&glob, &place, limit, budget, cancel)).await;
    found.map_or_else(ToolOutput::error, ToolOutput::text)
}

fn find(
    glob: &PathGlob,
    place: &Place,
    limit: u64,
    budget: TextBudget,
    cancel: &CancellationToken,
) -> Result<String, String> {
    match place.kind()? {
        Kind::Folder => {}
        other => return Err(format!("{} is {}, not a folder; give a folder to search", place.given, other.noun())),
    }
    let (mut listing, mut unreadable, mut shown, mut more) =
        (Listing::new(budget), Unreadable::default(), 0_u64, false);
    for entry in walk::walk(&place.path) {
        if cancel.is_cancelled() {
            return Err(walk::CANCELLED.to_owned());
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(problem) => {
                unreadable.note(problem);
                continue;
            }
        };
        if entry.depth() == 0 || !glob.matches(&place.path, entry.path()) {
            continue;
        }
        let close = if entry.file_type().is_some_and(|kind| kind.is_dir()) { "/" } else { "" };
        if shown == limit || !listing.push(&format!("{}{close}", place.shown(entry.path()))) {
            more = true;
            break;
        }
        shown += 1;
    }
    let mut notices = String::new();
    if more && listing.is_full() {
        notices = format!("[cut: {shown} shown, more did not fit; search a narrower path or pattern]\n");
    } else if more {
        notices = format!("[limit of {limit} reached, there are more; narrow path or pattern, or raise limit]\n");
    } else if listing.is_empty() {
        notices = "nothing found\n".to_owned();
    }
    notices.push_str(&unreadable.line());
    Ok(listing.finish(&notices))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{ffi::OsStrExt, fs::symlink},
        path::Path,
    };

    use serde_json::Value;

    use super::*;
    use crate::host::native::testing::{World, context, object, text};

    async fn find(world: &World, arguments: Value) -> ToolOutput {
        run(object(arguments), &world.env, &context()).await
    }

    fn tree(world: &World, files: &[&str]) {
        for file in files {
            let path = world.env.cwd.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    #[tokio::test]
    async fn paths_are_found_in_order_hidden_ones_too_without_ignored_ones() {
        let world = World::new();
        tree(&world, &["b/x.rs", "a.rs", ".hid/x.rs", "target/x.rs", ".git/x.rs", "b/.git", "b/skip.rs", "c.ts"]);
        fs::write(world.env.cwd.join(".gitignore"), "/target\n").unwrap();
        fs::write(world.env.cwd.join("b/.gitignore"), "skip.*\n").unwrap();
        let output = find(&world, json!({"pattern": "*.rs"})).await;
        assert_eq!(text(&output), ".hid/x.rs\na.rs\nb/x.rs");
        let output = find(&world, json!({"pattern": "*", "path": "b"})).await;
        assert_eq!(text(&output), "b/.gitignore\nb/x.rs");
        let output = find(&world, json!({"pattern": "b"})).await;
        assert_eq!(text(&output), "b/");
        // Named explicitly, an ignored folder is searched.
        assert_eq!(text(&find(&world, json!({"pattern": "*.rs", "path": "target"})).await), "target/x.rs");
        let output = find(&world, json!({"pattern": "*.py"})).await;
        assert_eq!((text(&output), output.is_error), ("nothing found", false));
    }

    #[tokio::test]
    async fn pipes_loops_and_strange_names_are_listed_and_not_entered() {
        let world = World::new();
        let at = |name: &str| world.env.cwd.join(name);
        tree(&world, &["dir/a"]);
        symlink("..", at("dir/loop")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
        fs::write(world.env.cwd.join(Path::new(std::ffi::OsStr::from_bytes(b"bad\xff\n"))), "").unwrap();
        let output = find(&world, json!({"pattern": "**/*"})).await;
        assert_eq!(text(&output), "bad\\xff\\n\nbroken\ndir/\ndir/a\ndir/loop\npipe");
    }

    #[tokio::test]
    async fn limits_and_budgets_cut_and_say_so() {
        let world = World::new();
        for n in 0..1_500 {
            fs::write(world.env.cwd.join(format!("a-file-with-a-longer-name-{n:04}.txt")), "").unwrap();
        }
        let output = find(&world, json!({"pattern": "*.txt", "limit": 2})).await;
        let wanted = "a-file-with-a-longer-name-0000.txt\na-file-with-a-longer-name-0001.txt\n[limit of 2 reached";
        assert!(text(&output).starts_with(wanted), "{}", text(&output));
        let output = find(&world, json!({"pattern": "*.txt", "limit": 1500})).await;
        assert!(TextBudget::WHOLE.fits(text(&output)) && text(&output).contains("[cut: "));
        let output = find(&world, json!({"pattern": "*-1499.txt", "limit": 1})).await;
        assert_eq!(text(&output), "a-file-with-a-longer-name-1499.txt");
    }

    #[tokio::test]
    async fn bad_arguments_and_places_are_named() {
        let world = World::new();
        tree(&world, &["file"]);
        for (arguments, wanted) in [
            (json!({}), "`pattern`: is required"),
            (json!({"pattern": "a["}), "the glob \"a[\" is not valid"),
            (json!({"pattern": ""}), "the glob \"\" is empty"),
            (json!({"pattern": "/etc/host*"}), r#"{"path":"/etc","pattern":"./host*"}"#),
            (json!({"pattern": "../*"}), "relative to `path`"),
            (json!({"pattern": "*", "path": "gone"}), "gone: does not exist"),
            (json!({"pattern": "*", "path": ""}), "`path` is empty"),
            (json!({"pattern": "*", "path": "file"}), "file is a file, not a folder"),
            (json!({"pattern": "*", "path": "/dev/null"}), "/dev/null is a device, not a folder"),
            (json!({"pattern": "*", "limit": 0}), "`limit`: expected a whole number of at least 1"),
            (json!({"pattern": "*", "type": "f"}), "unknown argument `type`"),
        ] {
            let output = find(&world, arguments.clone()).await;
            assert!(output.is_error && text(&output).contains(wanted), "{arguments}: {}", text(&output));
        }
        fs::remove_dir_all(&world.env.cwd).unwrap();
        let output = find(&world, json!({"pattern": "*"})).await;
        assert!(output.is_error && text(&output).contains("working folder"), "{}", text(&output));
    }

    #[tokio::test]
    async fn a_cancelled_search_stops() {
        let world = World::new();
        tree(&world, &["a"]);
        let context = context();
        context.cancel.cancel();
        let output = run(object(json!({"pattern": "*"})), &world.env, &context).await;
        assert_eq!((text(&output), output.is_error), (walk::CANCELLED, true));
    }
}
