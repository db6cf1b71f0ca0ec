//! Who may import whom: rows of modules, each of which imports only from rows below, and libraries that one folder
//! names.

use crate::{
    Offence, check, sample,
    source::{Kind, Source},
};

/// The rows of `node` (docs/ARCHITECTURE.md section 3): module, row. The longest match counts. A module imports from
/// rows below its own; within a row only what [`SIDEWAYS`] lists.
pub(crate) const MODULES: [(&str, u8); 26] = [
    ("main", 5),
    ("cli", 5),
    ("app", 4),
    ("doors", 3),
    ("control", 3),
    ("mcp", 3),
    ("tools", 3),
    ("fleet", 2),
    ("sessions", 2),
    ("host", 2),
    ("transfer", 2),
    ("broker::begin", 1),
    ("broker::council", 1),
    ("broker::handle", 1),
    ("broker::selecting", 1),
    ("broker::testing", 1),
    ("broker::writer", 1),
    ("broker::errors", 1),
    ("storage", 1),
    ("broker", 0),
    ("budget", 0),
    ("clock", 0),
    ("config", 0),
    ("content", 0),
    ("ids", 0),
    ("telemetry", 0),
];
/// Imports nothing of ours, so that everybody may import it.
const LEAF: &str = "ids";

/// Imports inside a row that are allowed: the left one stands on the right one.
const SIDEWAYS: [(&str, &str); 16] = [
    ("main", "cli"),
    ("doors", "mcp"),
    ("doors", "tools"),
    ("mcp", "tools"),
    ("fleet", "sessions"),
    ("fleet", "host"),
    ("sessions", "host"),
    ("broker::begin", "storage"),
    ("broker::council", "broker::begin"),
    ("broker::council", "broker::errors"),
    ("broker::council", "broker::writer"),
    ("broker::council", "storage"),
    ("broker::testing", "storage"),
    ("broker::handle", "storage"),
    ("broker::writer", "storage"),
    ("broker::errors", "storage"),
];

/// Imports that the rows would allow and that are refused all the same, with what is excepted.
const REFUSED: [(&str, &str, &[&str]); 5] = [
    ("cli", "storage", &[]),
    ("doors", "storage", &[]),
    ("control", "storage", &[]),
    ("mcp", "storage", &[]),
    ("tools", "storage", &[]),
];

/// Libraries that only one folder names.
const HOMES: [(&str, &str); 9] = [
    ("rmcp", "node/src/mcp/"),
    ("redb", "node/src/storage/"),
    ("clap", "node/src/cli/"),
    ("toml", "node/src/config/"),
    ("quinn", "mesh/src/transport/"),
    ("quinn_proto", "mesh/src/transport/"),
    ("rustls", "mesh/src/transport/"),
    ("mdns_sd", "mesh/src/discovery/"),
    ("if_addrs", "mesh/src/discovery/"),
];

/// One path that a file names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// Whole, `crate`, `super` and `self` resolved to `crate`.
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    pub(crate) test: bool,
}

/// Every path in the file that has at least two segments, groups taken apart.
pub(crate) fn paths(source: &Source) -> Vec<Import> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < source.tokens.len() {
        let begins = source.tokens[at].kind == Kind::Word && source.stands(at + 1, ": :");
        let inside = at > 1 && source.tokens[at - 1].is(":") && source.tokens[at - 2].is(":");
        if begins && !inside {
            at = tree(source, at, &mut Vec::new(), &mut found);
        } else {
            at += 1;
        }
    }
    let module = module_path(&source.path);
    for import in &mut found {
        import.path = absolute(&module, std::mem::take(&mut import.path));
    }
    found
}

/// Reads the path or group at `at` under `prefix`; gives where it ends.
fn tree(source: &Source, mut at: usize, prefix: &mut Vec<String>, found: &mut Vec<Import>) -> usize {
    let depth = prefix.len();
    let (line, test) = (source.tokens[at].line, source.tokens[at].test);
    while let Some(token) = source.tokens.get(at) {
        if token.is("{") {
            let end = source.closing(at);
            let mut inner = at + 1;
            while inner < end {
                if source.tokens[inner].is(",") {
                    inner += 1;
                } else {
                    inner = tree(source, inner, prefix, found).max(inner + 1);
                }
            }
            prefix.truncate(depth);
            return end + 1;
        }
        if token.kind != Kind::Word && !token.is("*") {
            break;
        }
        prefix.push(token.text.clone());
        at += 1;
        if !source.stands(at, ": :") {
            break;
        }
        at += 2;
    }
    if prefix.len() > depth {
        found.push(Import { path: prefix.clone(), line, test });
    }
    // `as name` belongs to this path.
    if source.stands(at, "as") {
        at += 2;
    }
    prefix.truncate(depth);
    at
}

/// `node/src/a/b.rs` is `crate::a::b`, and `node/src/a/mod.rs` is `crate::a`.
fn module_path(path: &str) -> Vec<String> {
    let inner = path.split_once("/src/").map_or(path, |(_, inner)| inner).trim_end_matches(".rs");
    let parts = inner.split('/').filter(|part| !["mod", "lib"].contains(part));
    std::iter::once("crate").chain(parts).map(str::to_owned).collect()
}

fn absolute(module: &[String], path: Vec<String>) -> Vec<String> {
    match path.first().map(String::as_str) {
        Some("chappie") => std::iter::once("crate".to_owned()).chain(path.into_iter().skip(1)).collect(),
        Some("self") => module.iter().cloned().chain(path.into_iter().skip(1)).collect(),
        Some("super") => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let base = module.len().saturating_sub(ups).max(1);
            module[..base].iter().cloned().chain(path.into_iter().skip(ups)).collect()
        }
        _ => path,
    }
}

/// The module of the table that a path below `crate` belongs to, with its row.
fn row(path: &[String]) -> Option<(String, u8)> {
    let first = path.first()?;
    let two = path.get(1).map(|second| format!("{first}::{second}"));
    let find = |name: &str| MODULES.iter().find(|row| row.0 == name).map(|row| (row.0.to_owned(), row.1));
    two.and_then(|two| find(&two)).or_else(|| find(first))
}

fn rows(source: &Source) -> Vec<Offence> {
    if !source.path.starts_with("node/src/") || source.path == "node/src/lib.rs" {
        return Vec::new();
    }
    let module = module_path(&source.path);
    let Some((from, from_row)) = row(&module[1..]) else {
        return vec![Offence::new(&source.path, 1, format!("`{}` has no row in the table", module[1..].join("::")))];
    };
    let mut offences = Vec::new();
    for import in paths(source).into_iter().filter(|import| !import.test && import.path[0] == "crate") {
        let target = &import.path[1..];
        let Some((to, to_row)) = row(target) else {
            continue;
        };
        // A folder's `mod.rs` is its door and may show all of it.
        let same = from == to || source.path.ends_with("/mod.rs") && to.starts_with(&from);
        let below = to_row < from_row || to == LEAF;
        let sideways = to_row == from_row && SIDEWAYS.contains(&(from.as_str(), to.as_str()));
        let siblings = to_row == from_row && to_row == 1 && from.split("::").next() == to.split("::").next();
        let named = target.join("::");
        let refused = REFUSED.iter().any(|(who, whom, except)| {
            from == *who && to == *whom && !except.iter().any(|path| named.starts_with(path))
        });
        if refused || !(same || below || sideways || siblings) {
            let what = format!("`{from}` (row {from_row}) imports `{named}` (row {to_row})");
            offences.push(Offence::new(&source.path, import.line, what));
        }
    }
    offences
}

/// The simulator's world knows nothing of what runs in it (design section 13).
fn worlds(source: &Source) -> Vec<Offence> {
    if !source.path.starts_with("netsim/src/world/") {
        return Vec::new();
    }
    // `chappie` reads as `crate` here.
    let ours = paths(source).into_iter().filter(|import| match import.path[0].as_str() {
        "chappie_mesh" => true,
        "crate" => import.path.get(1).is_some_and(|module| module != "world"),
        _ => false,
    });
    ours.map(|import| Offence::new(&source.path, import.line, format!("names `{}`", import.path.join("::")))).collect()
}

fn homes(source: &Source) -> Vec<Offence> {
    let shipped = ["node/src/", "mesh/src/"].iter().any(|folder| source.path.starts_with(folder));
    let mut offences = Vec::new();
    for import in paths(source).into_iter().filter(|_| shipped) {
        for (library, home) in HOMES {
            if import.path[0] == library && !source.path.starts_with(home) {
                offences.push(Offence::new(&source.path, import.line, format!("names `{library}`; only {home} may")));
            }
        }
    }
    offences
}

#[test]
fn modules_import_only_from_rows_below() {
    check("import rows", rows);
    let bad = [
        ("node/src/tools/x.rs", "use crate::mcp::server;"),
        ("node/src/tools/x.rs", "use crate::{ids::Millis, storage::node::{Key, StoreError}};"),
        ("node/src/mcp/x.rs", "use crate::storage;\nuse crate::storage::blobs::Blobs;"),
        ("node/src/sessions/x.rs", "let x = crate::tools::surface::y();"),
        ("node/src/sessions/x.rs", "use super::super::app::App;"),
        ("node/src/host/native/x.rs", "use crate::sessions::Session;"),
        ("node/src/broker/apply.rs", "use super::handle::Broker;"),
        ("node/src/broker/apply.rs", "use crate::{storage::consensus::Log};"),
        ("node/src/ids.rs", "use crate::content::Block;"),
        ("node/src/control/x.rs", "use crate::cli;\nuse crate::cli::run;"),
        ("node/src/app.rs", "use crate::cli::Failure;"),
        ("node/src/newcomer.rs", "fn f() {}"),
    ];
    for (path, text) in bad {
        assert!(!sample(rows, path, text).is_empty(), "{path}: {text}");
    }
    let good = [
        ("node/src/tools/x.rs", "use crate::{ids::Millis, fleet::{Directory, parcel::HEADER}};\nuse super::y;"),
        ("node/src/mcp/x.rs", "use crate::tools::Surface;"),
        ("node/src/broker/handle.rs", "use super::apply;\nuse crate::storage::consensus::Log;"),
        ("node/src/broker/mod.rs", "pub use self::handle::Broker;"),
        ("node/src/main.rs", "fn main() { chappie::cli::run() }"),
        ("node/src/ids.rs", "#[cfg(test)]\nmod tests { use crate::app::App; }"),
        ("node/src/ids.rs", "//! See [`crate::app`].\n// use crate::app::App;\nconst S: &str = \"crate::app::App\";"),
    ];
    for (path, text) in good {
        assert_eq!(sample(rows, path, text), [""; 0], "{path}: {text}");
    }
}

#[test]
fn the_simulators_world_names_no_crate_of_ours() {
    check("the simulator's world", worlds);
    for bad in [
        "use chappie_mesh::Mesh;",
        "fn f() { chappie::ids::now() }",
        "use crate::fleet::Node;",
        "use super::super::fleet;",
    ] {
        assert_eq!(sample(worlds, "netsim/src/world/x.rs", bad).len(), 1, "{bad}");
        assert_eq!(sample(worlds, "netsim/src/fleet/x.rs", bad).len(), 0, "{bad}");
    }
    let good = "use crate::world::seed;\nuse super::{net, disk::Disk};\nuse quinn::udp::Transmit;";
    assert_eq!(sample(worlds, "netsim/src/world/x.rs", good), [""; 0]);
}

#[test]
fn each_library_is_named_in_its_home_only() {
    check("homes of libraries", homes);
    assert_eq!(sample(homes, "node/src/tools/x.rs", "use rmcp::model::Tool;").len(), 1);
    assert_eq!(sample(homes, "node/src/sessions/x.rs", "fn f() -> redb::Result {}").len(), 1);
    assert_eq!(sample(homes, "mesh/src/x.rs", "use redb::{Database, Table as T};").len(), 2);
    assert_eq!(sample(homes, "node/src/mcp/x.rs", "use rmcp::model::Tool;").len(), 0);
    assert_eq!(sample(homes, "tests/src/x.rs", "use redb::Database;").len(), 0, "tests may look into the store");
}

#[test]
fn groups_and_relative_paths_are_taken_apart() {
    let text = "use crate::{a::{b, self as me, c::*}, d as e};\nfn f() { super::g::<u8>(x::y()) }";
    let found = paths(&Source::parse("node/src/m/n.rs", text));
    let joined: Vec<String> = found.iter().map(|import| import.path.join("::")).collect();
    assert_eq!(joined, ["crate::a::b", "crate::a::self", "crate::a::c::*", "crate::d", "crate::m::g", "x::y"]);
    assert_eq!(found.iter().map(|import| import.line).collect::<Vec<_>>(), [1, 1, 1, 1, 2, 2]);
}
