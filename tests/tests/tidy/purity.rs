//! Pure files: no clock, no I/O, no randomness, no tasks. A file says of itself that it is pure in its header; the ones
//! that must be are listed, so that the word cannot get lost.

use crate::{
    Offence, assert_clean, check,
    imports::{self, MODULES},
    sample,
    source::Source,
    sources,
};

/// Files that must call themselves pure.
const MUST: [&str; 35] = [
    "node/src/app/desk/messages.rs",
    "node/src/control/membership.rs",
    "mesh/src/discovery/book.rs",
    "mesh/src/discovery/interfaces.rs",
    "mesh/src/discovery/neighbours.rs",
    "mesh/src/identity/code.rs",
    "mesh/src/identity/incarnation.rs",
    "mesh/src/identity/invite.rs",
    "mesh/src/identity/node_id.rs",
    "mesh/src/identity/roster.rs",
    "mesh/src/wire/codec.rs",
    "mesh/src/wire/frame.rs",
    "mesh/src/wire/hello.rs",
    "mesh/src/wire/join.rs",
    "mesh/src/wire/limits.rs",
    "node/src/broker/apply.rs",
    "node/src/broker/apply/members.rs",
    "node/src/broker/bindings.rs",
    "node/src/broker/command.rs",
    "node/src/broker/import.rs",
    "node/src/broker/membership.rs",
    "node/src/broker/merge.rs",
    "node/src/broker/meshtime.rs",
    "node/src/broker/query.rs",
    "node/src/broker/receipts.rs",
    "node/src/broker/select.rs",
    "node/src/broker/state.rs",
    "node/src/broker/volatile.rs",
    "node/src/budget.rs",
    "node/src/config/mod.rs",
    "node/src/config/parse.rs",
    "node/src/content.rs",
    "node/src/control/frame.rs",
    "node/src/control/protocol.rs",
    "node/src/ids.rs",
];

/// Words that mean an effect, wherever they stand in code.
const WORDS: [(&str, &str); 16] = [
    ("tokio", "runs tasks or does I/O"),
    ("redb", "does I/O"),
    ("quinn", "does I/O"),
    ("axum", "does I/O"),
    ("tempfile", "does I/O"),
    ("tracing", "logs"),
    ("rand", "draws randomness"),
    ("getrandom", "draws randomness"),
    ("Uuid", "draws randomness"),
    ("SystemTime", "reads a clock"),
    ("Instant", "reads a clock"),
    ("TcpStream", "does I/O"),
    ("UnixStream", "does I/O"),
    ("UdpSocket", "does I/O"),
    ("spawn", "starts something"),
    ("sleep", "waits"),
];
/// Modules of the standard library that mean an effect.
const STD: [&str; 4] = ["fs", "env", "process", "thread"];
/// Collections whose order is not the same on every node.
const UNORDERED: [&str; 2] = ["HashMap", "HashSet"];

/// Whether the header says "Pure", as a sentence or its beginning; "Pure files: …" speaks of others.
fn claims(source: &Source) -> bool {
    let header = source.header();
    header.match_indices("ure").any(|(at, _)| {
        let before = &header[..at];
        let after = &header[at + 3..];
        before.ends_with('P') && [".", ":", ";", " and "].iter().any(|next| after.starts_with(next))
            || before.ends_with("A p") && after.starts_with(' ')
    })
}

fn effects(source: &Source) -> Vec<Offence> {
    if !claims(source) {
        return Vec::new();
    }
    let mut offences = Vec::new();
    for (at, token) in source.tokens.iter().enumerate().filter(|(_, token)| !token.test) {
        let method = at > 0 && source.tokens[at - 1].is(".");
        if let Some((word, why)) = WORDS.iter().find(|(word, _)| token.is(word)).filter(|_| !method) {
            offences.push(Offence::new(&source.path, token.line, format!("is pure, and `{word}` {why}")));
        }
        if source.path.starts_with("node/src/broker/") && UNORDERED.iter().any(|word| token.is(word)) {
            let what = format!("is replicated, and `{}` has another order on every node", token.text);
            offences.push(Offence::new(&source.path, token.line, what));
        }
    }
    for import in imports::paths(source).into_iter().filter(|import| !import.test) {
        let path: Vec<&str> = import.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            // How a process ended is a value.
            ["std", "process", "ExitStatus" | "ExitCode", ..] => {}
            ["std", module, ..] if STD.contains(module) => {
                offences.push(Offence::new(&source.path, import.line, format!("is pure, and `std::{module}` is not")));
            }
            ["crate", "clock", ..] => {
                offences.push(Offence::new(
                    &source.path,
                    import.line,
                    "is pure, and `clock` is not; take it as an argument",
                ));
            }
            _ => {}
        }
    }
    offences
}

fn unclaimed(sources: &[Source]) -> Vec<Offence> {
    let pure = |path: &str| sources.iter().any(|source| source.path == path && claims(source));
    let lost = MUST.into_iter().filter(|path| !pure(path));
    lost.map(|path| Offence::new(path, 1, "must be pure and say so in its header, or is gone")).collect()
}

#[test]
fn pure_files_have_no_effects() {
    check("purity", effects);
    let pure = |code: &str| sample(effects, "node/src/broker/x.rs", &format!("//! Decides. Pure: no I/O.\n{code}"));
    for bad in [
        "use tokio::sync::mpsc;",
        "let now = Instant::now();",
        "use std::fs;",
        "use std::{collections::BTreeMap, env};",
        "std::process::exit(1)",
        "tracing::info!(\"x\")",
        "use crate::{clock, ids::Millis};",
        "let id = crate::clock::token();",
        "use std::collections::HashMap;",
        "fn f() { spawn(g) }",
    ] {
        assert!(!pure(bad).is_empty(), "{bad}");
    }
    for good in ["use std::collections::BTreeMap;", "// tokio", "#[cfg(test)]\nmod tests { use std::fs; }", "a.spawn()"]
    {
        assert_eq!(pure(good), [""; 0], "{good}");
    }
    assert_eq!(sample(effects, "node/src/x.rs", "//! Pure files: `a`, `b`.\nuse tokio::fs;").len(), 0);
}

#[test]
fn the_files_that_must_be_pure_say_so() {
    assert_clean("pure files", &unclaimed(&sources()));
    let lost = unclaimed(&[Source::parse(MUST[0], "//! A node's id.\n")]);
    assert_eq!(lost.len(), MUST.len());
    let kept = unclaimed(&[Source::parse(MUST[0], "//! A node's id. Pure.\n")]);
    assert_eq!(kept.len(), MUST.len() - 1);
}

#[test]
fn the_lowest_row_is_named_in_the_table() {
    for module in ["ids", "content", "budget", "config", "broker"] {
        assert!(MODULES.iter().any(|row| row.0 == module && row.1 == 0), "{module}");
    }
}
