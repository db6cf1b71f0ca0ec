//! What must not stand in a file: unfinished work, silenced tests, waits by the clock, names that say nothing, and what
//! belongs to one machine. The words are put together here, so that this file does not contain them.

use crate::{
    Offence, assert_clean, check, sample,
    source::{Kind, Source, Token},
    tree::{self, File},
};

fn unfinished(source: &Source) -> Vec<Offence> {
    let words = [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")];
    let mut offences = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        let whole = |word: &&str| {
            line.match_indices(*word).any(|(start, _)| {
                boundary(line[..start].chars().next_back()) && boundary(line[start + word.len()..].chars().next())
            })
        };
        for word in words.iter().filter(|word| whole(word)) {
            offences.push(Offence::new(&source.path, at + 1, format!("{word}: finish it or leave it out")));
        }
    }
    let macros = [concat!("to", "do !"), concat!("unimplement", "ed !")];
    for (at, token) in source.tokens.iter().enumerate() {
        for name in macros.iter().filter(|name| source.stands(at, name)) {
            offences.push(Offence::new(&source.path, token.line, format!("{name}: finish it or leave it out")));
        }
        if source.stands(at, "# [ ignore") {
            offences.push(Offence::new(&source.path, token.line, "an ignored test is no test"));
        }
    }
    offences
}

fn unsafe_code(source: &Source) -> Vec<Offence> {
    let found = source.tokens.iter().filter(|token| token.is("unsafe"));
    found.map(|token| Offence::new(&source.path, token.line, "unsafe code")).collect()
}

/// A wait by the clock in a test, unless it stands in a loop that looks at a condition.
fn fixed_sleep(source: &Source) -> Vec<Offence> {
    // Its time is virtual: a sleep is a condition of its own there.
    if source.path.starts_with("netsim/") {
        return Vec::new();
    }
    let mut offences = Vec::new();
    let mut loops = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if token.is("{") {
            loops.push(opens_loop(source, at));
        } else if token.is("}") {
            loops.pop();
        } else if token.test && source.stands(at, "sleep (") && !loops.contains(&true) {
            offences.push(Offence::new(&source.path, token.line, "a fixed sleep; wait for the condition"));
        }
    }
    offences
}

/// Whether the brace at `open` is the body of a `loop`, `while` or `for`.
fn opens_loop(source: &Source, open: usize) -> bool {
    let words = statement(source, open);
    !words.contains(&"impl") && ["loop", "while", "for"].iter().any(|word| words.contains(word))
}

/// What stands before the brace at `open`, back to the statement before.
fn statement(source: &Source, open: usize) -> Vec<&str> {
    let inside = |token: &&Token| !["{", "}", ";"].iter().any(|mark| token.is(mark));
    source.tokens[..open].iter().rev().take_while(inside).map(|token| token.text.as_str()).collect()
}

fn names(source: &Source) -> Vec<Offence> {
    let mut offences = Vec::new();
    // Whether each brace that is open is the body of `impl Trait for Type`, whose names are the trait's.
    let mut of_traits = Vec::new();
    for (at, pair) in source.tokens.windows(2).enumerate() {
        let [before, name] = pair else { continue };
        if before.is("{") {
            let words = statement(source, at);
            of_traits.push(words.contains(&"impl") && words.contains(&"for"));
        } else if before.is("}") {
            of_traits.pop();
        }
        if name.kind != Kind::Word {
            continue;
        }
        if before.is("fn") && name.text.starts_with("get_") && of_traits.last() != Some(&true) {
            offences.push(Offence::new(&source.path, name.line, format!("`{}`: leave out `get_`", name.text)));
        }
        let item = ["struct", "enum", "trait", "mod"].iter().any(|word| before.is(word));
        let lower = name.text.to_lowercase();
        let empty = ["manager", "util", "utils", "helper", "helpers", "common"];
        if item && empty.iter().any(|word| lower.ends_with(word)) {
            offences.push(Offence::new(&source.path, name.line, format!("`{}` says nothing", name.text)));
        }
    }
    offences
}

/// Paths of one machine and addresses of registries, in any text file but the lock file.
fn places(file: &File) -> Vec<Offence> {
    if file.path == "Cargo.lock" {
        return Vec::new();
    }
    let hosts = [
        concat!("registry.npmjs", ".org"),
        concat!("index.crates", ".io"),
        concat!("static.crates", ".io"),
        concat!("files.pythonhosted", ".org"),
        concat!("pypi.org", "/simple"),
        concat!("deb.debian", ".org"),
    ];
    let folders = ["work", "farm", "root"].map(|name| format!("/{name}/"));
    let mut offences = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let own = |folder: &String| {
            line.match_indices(folder.as_str()).any(|(start, _)| {
                let before = line[..start].chars().next_back();
                before.is_none_or(|c| !c.is_ascii_alphanumeric() && !"_.-".contains(c))
            })
        };
        if hosts.iter().any(|host| line.contains(host)) || folders.iter().any(own) {
            offences.push(Offence::new(&file.path, at + 1, "names a place that other machines do not have"));
        }
    }
    offences
}

#[test]
fn nothing_is_unfinished_or_ignored() {
    check("unfinished", unfinished);
    let bad =
        [concat!("// FIX", "ME later"), concat!("// TO", "DO: x"), concat!("f(to", "do!())"), concat!("#[ign", "ore]")];
    for text in bad {
        assert_eq!(sample(unfinished, "node/src/x.rs", text).len(), 1, "{text}");
    }
    // Taken apart, so that other tools that look for these words find none here either.
    let good = concat!("// to", "dos and XX", "XL are words\nlet to", "do = 1;");
    assert_eq!(sample(unfinished, "node/src/x.rs", good).len(), 0);
}

#[test]
fn no_code_is_unsafe() {
    check("unsafe", unsafe_code);
    assert_eq!(sample(unsafe_code, "node/src/x.rs", "unsafe { f() }").len(), 1);
    assert_eq!(sample(unsafe_code, "node/src/x.rs", "// unsafe\nlet s = \"unsafe\";").len(), 0);
}

#[test]
fn tests_wait_for_conditions_and_not_for_the_clock() {
    check("sleep", fixed_sleep);
    let test = |body: &str| format!("#[cfg(test)]\nmod tests {{ fn t() {{ {body} }} }}");
    let rule = |body: &str| sample(fixed_sleep, "node/src/x.rs", &test(body)).len();
    assert_eq!(rule("sleep(SECOND).await;"), 1);
    assert_eq!(rule("if x { std::thread::sleep(d) }"), 1);
    assert_eq!(rule("while !ready() { sleep(POLL).await; }"), 0);
    assert_eq!(rule("loop { if x { sleep(POLL) } }"), 0);
    assert_eq!(rule("loop { } sleep(POLL)"), 1);
    assert_eq!(sample(fixed_sleep, "node/src/x.rs", "fn f() { sleep(BACK_OFF) }").len(), 0, "not a test");
    assert_eq!(sample(fixed_sleep, "netsim/src/x.rs", &test("sleep(SECOND).await;")).len(), 0, "virtual time");
    assert_eq!(sample(fixed_sleep, "tests/tests/x.rs", "fn f() { sleep(d) }").len(), 1);
    assert_eq!(sample(fixed_sleep, "tests/tests/x.rs", "impl A for B { fn f() { sleep(d) } }").len(), 1);
}

#[test]
fn names_say_what_a_thing_is() {
    check("names", names);
    for bad in ["fn get_x() {}", "struct SessionManager;", "mod util;", "trait Common {}"] {
        assert_eq!(sample(names, "node/src/x.rs", bad).len(), 1, "{bad}");
    }
    assert_eq!(sample(names, "node/src/x.rs", "fn get() {}\nstruct Utility;\nimpl A for B { fn get_x() {} }").len(), 0);
}

#[test]
fn nothing_belongs_to_one_machine() {
    assert_clean("places", &tree::files().iter().flat_map(places).collect::<Vec<_>>());
    let bad = |text: &str| places(&File { path: "x".to_owned(), text: text.to_owned() }).len();
    for text in [concat!("cd /wo", "rk/x"), concat!("\"/ro", "ot/x\""), concat!("https://index.crates", ".io/")] {
        assert_eq!(bad(text), 1, "{text}");
    }
    for text in [concat!("a/wo", "rk/b"), concat!("../ro", "ot/x"), "/rooted/x"] {
        assert_eq!(bad(text), 0, "{text}");
    }
}
