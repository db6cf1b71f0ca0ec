//! The tool `ls`: what stands in a folder, one name a line.

use std::{
    ffi::OsString,
    fs::{self, FileType},
    path::Path,
};

use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    ToolContext, ToolEnv, ToolOutput,
    arguments::{self, Positive},
    paths::{self, Kind},
    walk::{self, Listing, Place},
};
use crate::{budget::TextBudget, content::JsonObject, host::ToolDefinition};

/// Names given when the caller names no limit, as in Pi.
const LIMIT_DEFAULT: u64 = 500;

/// Most names kept at a time: a folder of millions is read through, not held.
const NAMES_MAX: usize = 20_000;

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "ls".to_owned(),
        description: "List a folder.\n\
            One name a line in alphabetical order, hidden ones too; folders end with /, links show where they lead, \
            pipes, sockets and devices say so."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "path": { "type": "string", "description": "Folder to list, default the working folder" },
                "limit": { "type": "integer", "minimum": 1, "description": "Most names to give, default 500" }
            },
            "additionalProperties": false
        }),
    }
}

/// The arguments as they come.
#[derive(Deserialize)]
struct Given {
    path: Option<String>,
    limit: Option<Positive>,
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    let checked = arguments::parse("ls", arguments)
        .and_then(|given: Given| Ok((Place::new(given.path, env)?, given.limit.map_or(LIMIT_DEFAULT, |n| n.0))));
    let (place, limit) = match checked {
        Ok(checked) => checked,
        Err(message) => return ToolOutput::error(message),
    };
    let budget = context.budget;
    let listed = walk::blocking(context, move |cancel| list(&place, limit, budget, cancel)).await;
    listed.map_or_else(ToolOutput::error, ToolOutput::text)
}

fn list(place: &Place, limit: u64, budget: TextBudget, cancel: &CancellationToken) -> Result<String, String> {
    match place.kind()? {
        Kind::Folder => {}
        other => return Err(format!("{} is {}, not a folder; read shows files", place.given, other.noun())),
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(NAMES_MAX);
    let (names, total) = first_names(place, limit, cancel)?;
    let mut listing = Listing::new(budget);
    let shown = names.iter().take_while(|(_, name, kind)| listing.push(&line(&place.path, name, *kind))).count();
    let notice = match shown {
        _ if total == 0 => "(empty folder)\n".to_owned(),
        shown if shown == total => String::new(),
        shown if shown < names.len() => {
            format!("[cut: {shown} of {total} names shown, more did not fit; find with a pattern narrows it]\n")
        }
        shown => format!("[limit reached: {shown} of {total} names shown; raise limit, or find with a pattern]\n"),
    };
    Ok(listing.finish(&notice))
}

/// A name with what it is sorted by (letters without their case first, as people look for names) and its type.
type Name = (String, OsString, FileType);

/// The first `limit` names in order and how many there are, in bounded memory.
fn first_names(place: &Place, limit: usize, cancel: &CancellationToken) -> Result<(Vec<Name>, usize), String> {
    let entries = fs::read_dir(&place.path).map_err(|error| place.complaint(&error))?;
    let (mut names, mut total) = (Vec::<Name>::new(), 0);
    for entry in entries {
        if cancel.is_cancelled() {
            return Err(walk::CANCELLED.to_owned());
        }
        let entry = entry.map_err(|error| place.complaint(&error))?;
        total += 1;
        // A name that went away meanwhile.
        let Ok(kind) = entry.file_type() else { continue };
        let name = entry.file_name();
        names.push((name.to_string_lossy().to_lowercase(), name, kind));
        if names.len() >= 2 * limit.max(1_000) {
            sort(&mut names);
            names.truncate(limit);
        }
    }
    sort(&mut names);
    names.truncate(limit);
    Ok((names, total))
}

fn sort(names: &mut [Name]) {
    names.sort_unstable_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
}

fn line(folder: &Path, name: &OsString, kind: FileType) -> String {
    let path = folder.join(name);
    let name = walk::escaped(name);
    if kind.is_symlink() {
        let target = fs::read_link(&path).map_or_else(|error| paths::cause(&error), |to| walk::escaped(to.as_os_str()));
        let end = match fs::metadata(&path) {
            Ok(found) if found.is_dir() && !target.ends_with('/') => "/",
            Ok(_) => "",
            Err(_) => " (broken link)",
        };
        return format!("{name} -> {target}{end}");
    }
    match Kind::of(kind) {
        Kind::File => name,
        Kind::Folder => format!("{name}/"),
        other => format!("{name} ({})", other.noun()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use serde_json::Value;

    use super::*;
    use crate::host::native::testing::{World, context, object, text};

    async fn ls(world: &World, arguments: Value) -> ToolOutput {
        run(object(arguments), &world.env, &context()).await
    }

    #[tokio::test]
    async fn names_come_in_order_with_what_they_are() {
        let world = World::new();
        let at = |name: &str| world.env.cwd.join(name);
        for file in ["b", "A", ".hidden", "a\nb"] {
            fs::write(at(file), "").unwrap();
        }
        fs::create_dir(at("dir")).unwrap();
        symlink("dir", at("to-dir")).unwrap();
        symlink("gone", at("to-gone")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
        let _socket = UnixListener::bind(at("sock")).unwrap();
        let output = ls(&world, json!({})).await;
        let wanted = ".hidden\nA\na\\nb\nb\ndir/\npipe (a named pipe (FIFO))\nsock (a socket)\nto-dir -> dir/\n\
            to-gone -> gone (broken link)";
        assert_eq!(text(&output), wanted);
        assert_eq!(text(&ls(&world, json!({"path": "dir"})).await), "(empty folder)");
        assert_eq!(text(&ls(&world, json!({"path": "to-dir"})).await), "(empty folder)");
    }

    #[tokio::test]
    async fn a_big_folder_gives_its_first_names_and_the_count() {
        let world = World::new();
        for n in 0..3_000 {
            fs::write(world.env.cwd.join(format!("file-{n:04}")), "").unwrap();
        }
        let output = ls(&world, json!({"limit": 2})).await;
        assert!(
            text(&output).starts_with("file-0000\nfile-0001\n[limit reached: 2 of 3000 names"),
            "{}",
            text(&output)
        );
        let output = ls(&world, json!({})).await;
        assert!(text(&output).contains("file-0499\n[limit reached: 500 of 3000"), "{}", text(&output));
        let output = ls(&world, json!({"limit": 3000})).await;
        assert!(
            TextBudget::WHOLE.fits(text(&output)) && text(&output).contains(" of 3000 names shown, more did not fit")
        );
    }

    #[tokio::test]
    async fn what_is_no_folder_is_named() {
        let world = World::new();
        fs::write(world.env.cwd.join("file"), "").unwrap();
        for (arguments, wanted) in [
            (json!({"path": "file"}), "file is a file, not a folder"),
            (json!({"path": "gone"}), "gone: does not exist"),
            (json!({"path": "/dev/null"}), "/dev/null is a device, not a folder"),
            (json!({"path": "a\0"}), "NUL"),
            (json!({"all": true}), "unknown argument `all`"),
        ] {
            let output = ls(&world, arguments.clone()).await;
            assert!(output.is_error && text(&output).contains(wanted), "{arguments}: {}", text(&output));
        }
    }
}
