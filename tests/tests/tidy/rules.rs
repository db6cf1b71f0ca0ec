//! The table of rules in `docs/TESTING.md`, held against the tests that it names. It sees that they are there, not what
//! they assert.

use std::collections::BTreeSet;

use crate::{
    Offence, assert_clean,
    source::Source,
    sources,
    tree::{self, File},
};

const DOCUMENT: &str = "docs/TESTING.md";
const HEADING: &str = "## Rules and their tests";
/// The failure rules, each of which has its row.
const RULES: std::ops::RangeInclusive<usize> = 1..=27;
/// The words before names, and where the tests are that they mean.
const PLACES: [(&str, &str); 4] =
    [("mesh", "mesh/src/"), ("node", "node/src/"), ("netsim", "netsim/src/"), ("real", "tests/tests/")];

/// A test as it is found: its file without `.rs`, and its name.
type Found = BTreeSet<(String, String)>;

fn tests(source: &Source) -> Vec<(String, String)> {
    let path = source.path.trim_end_matches(".rs").to_owned();
    let attributes = (0..source.tokens.len())
        .filter(|at| source.stands(*at, "# [ test ]") || source.stands(*at, "# [ tokio : : test"));
    let names = attributes.filter_map(|at| {
        let rest = &source.tokens[source.closing(at + 1)..];
        let function = rest.iter().position(|token| token.is("fn"))?;
        rest.get(function + 1).map(|name| name.text.clone())
    });
    names.map(|name| (path.clone(), name)).collect()
}

/// Whether `name`, a module and a test, is among those of a place.
fn is_there(found: &Found, root: &str, name: &str) -> bool {
    let Some((module, test)) = name.split_once("::") else { return false };
    found.iter().any(|(path, function)| {
        function == test && path.strip_prefix(root).is_some_and(|path| path.split('/').any(|part| part == module))
    })
}

fn rules(document: &str, found: &Found) -> Vec<Offence> {
    let section = document.split(HEADING).nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let (mut offences, mut labels) = (Vec::new(), BTreeSet::new());
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| rule")).map(str::trim);
    for row in rows {
        let label = row.split('|').nth(1).unwrap_or_default().trim().to_owned();
        let mut root = "";
        let mut named = 0;
        for (n, piece) in row.split('`').enumerate() {
            if n % 2 == 0 {
                let words: Vec<&str> = piece.split(|c: char| !c.is_alphanumeric()).collect();
                let place = PLACES.iter().find(|(word, _)| words.contains(word));
                root = place.map_or(root, |(_, place)| place);
            } else if piece.contains("::") {
                named += 1;
                if !is_there(found, root, piece) {
                    offences.push(Offence::new(
                        DOCUMENT,
                        0,
                        format!("{label}: there is no test `{piece}` in {root:?}"),
                    ));
                }
            }
        }
        if named == 0 && !row.contains("issue") {
            offences.push(Offence::new(DOCUMENT, 0, format!("{label}: no test, and no issue that brings it")));
        }
        labels.insert(label.split_whitespace().next().unwrap_or_default().to_owned());
    }
    let missing = RULES.map(|rule| format!("F{rule}")).filter(|rule| !labels.contains(rule));
    offences.extend(missing.map(|rule| Offence::new(DOCUMENT, 0, format!("{rule} has no row"))));
    offences
}

#[test]
fn every_rule_names_tests_that_are_there() {
    let found: Found = sources().iter().flat_map(tests).collect();
    assert!(found.len() > 1_000, "only {} tests were found", found.len());
    let files = tree::files();
    let document = files.iter().find(|file: &&File| file.path == DOCUMENT).map_or("", |file| file.text.as_str());
    assert_clean("rules and their tests", &rules(document, &found));

    let sample = "#[cfg(test)]\nmod tests {\n#[tokio::test(start_paused = true)]\nasync fn f1_a() {}\n\
        #[test]\n#[should_panic]\nfn f1_b() {}\nfn f1_c() {}\n}";
    let found: Found = tests(&Source::parse("node/src/fleet/local.rs", sample)).into_iter().collect();
    let row = |rule: usize, names: &str| format!("| F{rule} | {names} |\n");
    let good = RULES.map(|rule| row(rule, "node `local::f1_a`, `fleet::f1_b`")).collect::<String>();
    let good = format!("{HEADING}\n\n| rule | tests |\n|---|---|\n{good}");
    assert_eq!(rules(&good, &found), []);
    for bad in ["node `local::f1_c`", "mesh `local::f1_a`", "node `local`", "node `remote::f1_a`", "nothing"] {
        assert_eq!(rules(&format!("{good}{}", row(28, bad)), &found).len(), 1, "{bad}");
    }
    assert_eq!(rules(&good.replace("| F7 |", "| F28 |"), &found).len(), 1);
    assert_eq!(rules(&format!("{good}{}", row(28, "issue 5")), &found), []);
}
