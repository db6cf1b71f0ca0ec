//! Sizes and the header.

use crate::{
    Offence, check, sample,
    source::{Kind, Source, Token},
};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

fn header(source: &Source) -> Vec<Offence> {
    if source.header().is_empty() {
        return vec![Offence::new(&source.path, 1, "does not open with `//!` saying what it is")];
    }
    Vec::new()
}

fn file_length(source: &Source) -> Vec<Offence> {
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        return vec![Offence::new(&source.path, lines, format!("has {lines} lines; {FILE_LINES_MAX} are the most"))];
    }
    Vec::new()
}

fn function_length(source: &Source) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        let named = |name: &&Token| token.is("fn") && name.kind == Kind::Word;
        let Some(name) = source.tokens.get(at + 1).filter(named) else {
            continue;
        };
        let Some(open) = body(source, at) else {
            continue;
        };
        let lines = source.tokens[source.closing(open)].line - token.line + 1;
        if lines > FUNCTION_LINES_MAX {
            let what = format!("`{}` has {lines} lines; {FUNCTION_LINES_MAX} are the most", name.text);
            offences.push(Offence::new(&source.path, token.line, what));
        }
    }
    offences
}

/// The brace that opens the body of the function whose `fn` is at `at`; none for a declaration or a function type.
fn body(source: &Source, at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (n, token) in source.tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.checked_sub(1)?,
            "{" if depth == 0 => return Some(n),
            ";" | "}" if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[test]
fn every_file_says_what_it_is() {
    check("header", header);
    assert_eq!(sample(header, "node/src/x.rs", "\n//! Late.\n").len(), 1);
    assert_eq!(sample(header, "node/src/x.rs", "// Not this kind.\n").len(), 1);
    assert_eq!(sample(header, "node/src/x.rs", "//! What it is.\n").len(), 0);
}

#[test]
fn files_are_at_most_600_lines() {
    check("file length", file_length);
    assert_eq!(sample(file_length, "node/src/x.rs", &"\n".repeat(601)).len(), 1);
    assert_eq!(sample(file_length, "node/src/x.rs", &"\n".repeat(600)).len(), 0);
}

#[test]
fn functions_are_at_most_70_lines() {
    check("function length", function_length);
    let of = |lines: usize| {
        format!(
            "trait T {{ fn d(a: [u8; 2]); }}\nfn long<T>(f: fn(u8) -> u8)\nwhere\n    T: Fn(),\n{{{}}}",
            "\n".repeat(lines - 4)
        )
    };
    assert_eq!(sample(function_length, "node/src/x.rs", &of(71)), ["`long` has 71 lines; 70 are the most"]);
    assert_eq!(sample(function_length, "node/src/x.rs", &of(70)), [""; 0]);
    let nested = format!(
        "impl X {{\n    pub async fn inner(&self) -> impl Iterator<Item = [u8; 2]> {{ let s = \"}}\";{} }}\n}}",
        "\n".repeat(90)
    );
    assert_eq!(sample(function_length, "node/src/x.rs", &nested).len(), 1);
}
