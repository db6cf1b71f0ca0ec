//! The house rules as tests: what a file may import, how long it may be, what must not stand in it. Each rule runs over
//! the whole tree and, on a bad sample, is seen to fire: a rule that cannot fail is no rule.
//!
//! It reads Rust as tokens ([`source`]), not as syntax: macros that build paths or functions escape it.

mod imports;
mod purity;
mod rules;
mod shape;
mod source;
mod tree;
mod words;

use std::fmt;

use source::Source;

/// One breach of one rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offence {
    path: String,
    /// From 1; 0 when the whole file is meant.
    line: usize,
    what: String,
}

impl Offence {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Every Rust file of the tree.
fn sources() -> Vec<Source> {
    let files = tree::files();
    let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
    let parsed: Vec<Source> = rust.map(|file| Source::parse(&file.path, &file.text)).collect();
    assert!(parsed.len() > 50, "only {} Rust files were found; is the tree where it is looked for?", parsed.len());
    parsed
}

/// Fails with every offence, one a line.
fn assert_clean(rule: &str, offences: &[Offence]) {
    let list: Vec<String> = offences.iter().map(ToString::to_string).collect();
    assert!(offences.is_empty(), "{rule}:\n{}", list.join("\n"));
}

/// Runs `rule` over every Rust file.
fn check(name: &str, rule: impl Fn(&Source) -> Vec<Offence>) {
    assert_clean(name, &sources().iter().flat_map(rule).collect::<Vec<_>>());
}

/// What `rule` says of `text` standing at `path`.
fn sample(rule: impl Fn(&Source) -> Vec<Offence>, path: &str, text: &str) -> Vec<String> {
    rule(&Source::parse(path, text)).into_iter().map(|offence| offence.what).collect()
}
