//! The files of the tree, and what must and must not be at its top.

use std::{fs, path::Path};

use crate::{Offence, assert_clean};

/// A text file of the tree.
pub(crate) struct File {
    /// From the root of the tree, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What may stand at the top besides names that begin with a dot. `target` is cargo's and not tracked.
const TOP: [&str; 9] = ["Cargo.toml", "Cargo.lock", "node", "mesh", "tests", "netsim", "docs", "README.md", "deploy"];
/// What is made by tools and never tracked.
const MADE: [&str; 5] = ["target", ".git", "node_modules", ".venv", "__pycache__"];
/// A file over 1 MiB does not belong into a source tree.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every file that is text, in order of its path.
pub(crate) fn files() -> Vec<File> {
    let mut found = Vec::new();
    collect(root(), "", &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<File>) {
    for entry in fs::read_dir(folder).expect("the tree is readable").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("the tree is readable");
        if MADE.contains(&name.as_str()) || kind.is_symlink() {
            continue;
        }
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), found);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            found.push(File { path, text });
        }
    }
}

fn at_the_top<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Offence> {
    let foreign = names.filter(|name| !TOP.contains(name) && !MADE.contains(name) && !name.starts_with('.'));
    foreign.map(|name| Offence::new(name, 0, "is not one of the agreed names at the top")).collect()
}

/// Documents that must be there and say something.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "docs/ARCHITECTURE.md",
    "docs/PROTOCOL.md",
    "docs/OPERATING.md",
    "docs/SECURITY.md",
    "docs/TESTING.md",
    "docs/CHANGELOG.md",
    "docs/decisions/0001-dependencies.md",
];

fn documents(files: &[File]) -> Vec<Offence> {
    let written = |path: &str| files.iter().any(|file| file.path == path && file.text.trim().lines().count() > 3);
    let missing = DOCUMENTS.into_iter().filter(|path| !written(path));
    missing.map(|path| Offence::new(path, 0, "is missing or empty")).collect()
}

/// Each dependency named in the workspace has its line in the decision, and no line speaks of one that is gone.
fn dependencies(manifest: &str, decision: &str) -> Vec<Offence> {
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names: Vec<&str> =
        section.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.trim()).collect();
    let ours = ["chappie", "chappie-mesh"];
    let unexplained = names.iter().filter(|name| !ours.contains(name) && !decision.contains(&format!("`{name}`")));
    let unexplained = unexplained.map(|name| ("Cargo.toml", format!("`{name}` has no line in 0001-dependencies")));
    let headings = decision.lines().filter_map(|line| line.strip_prefix("- `")?.split_once(':'));
    let explained = headings.flat_map(|(names, _)| names.split(", ")).map(|name| name.trim_matches('`'));
    let gone = explained.filter(|name| !names.contains(name));
    let gone = gone.map(|name| ("docs/decisions/0001-dependencies.md", format!("`{name}` is no dependency")));
    unexplained.chain(gone).map(|(path, what)| Offence::new(path, 0, what)).collect()
}

fn versions_in_members(path: &str, manifest: &str) -> Vec<Offence> {
    let lines = manifest.lines().enumerate();
    let stated = lines.filter(|(_, line)| {
        let value = line.split_once('=').map_or("", |(_, value)| value.trim());
        value.starts_with("\"")
            && value.trim_matches('"').starts_with(|c: char| c.is_ascii_digit() || "^~=".contains(c))
            || value.contains("version =")
    });
    stated.map(|(at, _)| Offence::new(path, at + 1, "states a version; versions stand in the workspace")).collect()
}

fn text_of<'a>(files: &'a [File], path: &str) -> &'a str {
    files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str())
}

#[test]
fn only_the_agreed_names_stand_at_the_top() {
    let entries = fs::read_dir(root()).expect("the tree is readable").flatten();
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_clean("top level", &at_the_top(names.iter().map(String::as_str)));
    assert_eq!(at_the_top(["node", ".ci", "notes.txt", "target"].into_iter()).len(), 1);
}

#[test]
fn the_documents_are_there() {
    let files = files();
    assert_clean("documents", &documents(&files));
    assert_eq!(documents(&[]).len(), DOCUMENTS.len());
    let empty = File { path: "README.md".to_owned(), text: "# Chappie\n".to_owned() };
    assert_eq!(documents(&[empty]).len(), DOCUMENTS.len(), "a heading alone is not a document");
}

#[test]
fn every_dependency_says_why_it_is_there() {
    let files = files();
    let decision = text_of(&files, "docs/decisions/0001-dependencies.md");
    let manifest = text_of(&files, "Cargo.toml");
    assert!(manifest.contains("[workspace.dependencies]"));
    assert_clean("dependencies", &dependencies(manifest, decision));
    let bad = "[workspace.dependencies]\na = \"1\"\nb = { version = \"2\" }\n[profile.dev]\nc = 1\n";
    let found = dependencies(bad, "- `b`, `d`: needed");
    let named: Vec<bool> =
        found.iter().zip(["`a`", "`d`"]).map(|(offence, name)| offence.what.contains(name)).collect();
    assert_eq!(named, [true, true], "{found:?}");
}

#[test]
fn versions_of_dependencies_stand_in_the_workspace() {
    let files = files();
    let members = ["mesh", "netsim", "node"].map(|member| format!("{member}/Cargo.toml"));
    let offences = members.iter().flat_map(|path| versions_in_members(path, text_of(&files, path)));
    assert_clean("versions", &offences.collect::<Vec<_>>());
    let bad = "[dependencies]\na.workspace = true\nb = \"1.2\"\nc = { version = \"1\" }\nd = { workspace = true }\n";
    assert_eq!(versions_in_members("x", bad).iter().map(|o| o.line).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn no_file_is_huge() {
    fn walk(folder: &Path, offences: &mut Vec<Offence>) {
        for entry in fs::read_dir(folder).expect("the tree is readable").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let facts = fs::symlink_metadata(entry.path()).expect("the tree is readable");
            if facts.is_dir() && !MADE.contains(&name.as_str()) {
                walk(&entry.path(), offences);
            } else if facts.is_file() && facts.len() > FILE_BYTES_MAX {
                offences.push(Offence::new(&entry.path().display().to_string(), 0, "is over 1 MiB"));
            }
        }
    }
    let mut offences = Vec::new();
    walk(root(), &mut offences);
    assert_clean("sizes", &offences);
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("big"), vec![0; 1024 * 1024 + 1]).expect("a file");
    walk(folder.path(), &mut offences);
    assert_eq!(offences.len(), 1);
}
