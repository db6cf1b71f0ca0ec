//! Replacement as a function of bytes: exact, unique, all or none, line ends kept.

use super::*;
use crate::budget::TextBudget;

fn replace(old: &str, new: &str) -> Replacement {
    Replacement { old: old.to_owned(), new: new.to_owned() }
}

fn one(original: &[u8], old: &str, new: &str) -> Result<Vec<u8>, EditError> {
    edit(original, &[replace(old, new)]).map(|edited| edited.content)
}

fn refused(original: &[u8], old: &str, new: &str) -> String {
    one(original, old, new).unwrap_err().to_string()
}

#[test]
fn dev_01_a_byte_order_mark_and_crlf_stay() {
    let original = b"\xef\xbb\xbfalpha\r\nbeta\r\ngamma\r\n";
    let right = b"\xef\xbb\xbfALPHA\r\nBETA\r\ngamma\r\n".to_vec();
    assert_eq!(one(original, "alpha\nbeta\n", "ALPHA\nBETA\n").unwrap(), right);
    assert_eq!(one(original, "\u{feff}alpha\nbeta\n", "ALPHA\nBETA\n").unwrap(), right);
    assert_eq!(one(original, "\u{feff}alpha\nbeta\n", "\u{feff}ALPHA\nBETA\n").unwrap(), right);
    assert!(refused(original, "\u{feff}", "x").contains("oldText is empty"));
}

#[test]
fn dev_02_untouched_bytes_of_mixed_line_ends_stay() {
    let original = b"one\ntwo\r\nprog 10%\rprog 20%\rdone\nfour\n";
    assert_eq!(one(original, "four", "FOUR").unwrap(), b"one\ntwo\r\nprog 10%\rprog 20%\rdone\nFOUR\n");
    assert_eq!(one(original, "20%\rdone", "30%\rdone").unwrap(), b"one\ntwo\r\nprog 10%\rprog 30%\rdone\nfour\n");
}

#[test]
fn new_line_ends_are_those_of_the_place() {
    let mixed = b"a\nb\r\nc\nd\r\n";
    assert_eq!(one(mixed, "b", "b1\nb2").unwrap(), b"a\nb1\r\nb2\r\nc\nd\r\n");
    assert_eq!(one(mixed, "c", "c1\nc2").unwrap(), b"a\nb\r\nc1\nc2\nd\r\n");
    assert_eq!(one(mixed, "a\nb\nc\n", "A\nB\nC\nD\n").unwrap(), b"A\nB\r\nC\nD\nd\r\n");
    assert_eq!(one(b"a\r\nlast", "last", "x\ny").unwrap(), b"a\r\nx\r\ny");
    assert_eq!(one(b"a\r\nb\r\n", "a\n", "a\r\nx\n").unwrap(), b"a\r\nx\r\nb\r\n");
    assert_eq!(one(b"a\nb\n", "a", "x\r\ny").unwrap(), b"x\r\ny\nb\n", "a file of LF takes what is given");
}

#[test]
fn text_that_holds_a_cr_is_taken_byte_for_byte() {
    assert_eq!(one(b"a\r\nb\r\n", "a\r\n", "a\n").unwrap(), b"a\nb\r\n");
    assert!(refused(b"a\nb\n", "a\r\nb", "c").contains("CRLF line ends (\\r\\n) where the file has LF"));
}

#[test]
fn dev_03_bytes_that_are_not_utf8_stay() {
    let original = b"x = 1\n# caf\xe9 r\xe9sum\xe9\n";
    assert_eq!(one(original, "x = 1", "x = 2").unwrap(), b"x = 2\n# caf\xe9 r\xe9sum\xe9\n");
    assert!(refused(original, "x = 1", "x = é").contains("not UTF-8"));
    assert!(refused(original, "caf\u{fffd}", "cafe").contains("\u{fffd}, which `read` shows"));
    let damaged = "prix: 5 €\n".as_bytes().iter().copied().chain(*b"\xe9\n").collect::<Vec<_>>();
    assert_eq!(one(&damaged, "5 €", "6 €").unwrap(), ["prix: 6 €\n".as_bytes(), b"\xe9\n"].concat());
    assert!(refused(&damaged, "5 €", "\u{fffd}").contains("replace those bytes for good"));
}

#[test]
fn wide_and_binary_files_are_refused_by_name() {
    assert!(refused(b"\xff\xfex\0 \0", "x", "y").contains("UTF-16LE"));
    assert!(refused(b"\x7fELF\0\0", "ELF", "FLE").contains("binary"));
}

#[test]
fn dev_04_overlapping_places_are_counted() {
    let text = refused(b"foo\nfoo\nfoo\n", "foo\nfoo\n", "bar\n");
    assert!(text.contains("stands in 2 places (lines 1, 2)"), "{text}");
    let text = refused("a".repeat(1_000).as_bytes(), "aa", "b");
    assert!(text.contains("more than 100 places (lines 1, 1, 1, 1, 1, …)"), "{text}");
    let text = refused(b"x\r\ny\nx\ny\n", "x\ny", "z");
    assert!(text.contains("stands in 2 places (lines 1, 3)"), "either line end counts: {text}");
}

#[test]
fn dev_05_nothing_in_new_text_is_a_placeholder() {
    let new = "\"$& $1 $$ \\1 ${x} $`\"";
    assert_eq!(one(b"log(\"done\");\n", "\"done\"", new).unwrap(), format!("log({new});\n").into_bytes());
}

#[test]
fn all_edits_are_found_in_the_original_or_none_is_made() {
    let original = b"one two three\n";
    let swapped = edit(original, &[replace("three", "one"), replace("one", "three")]).unwrap();
    assert_eq!(swapped.content, b"three two one\n");
    assert_eq!(swapped.changes[0].range, 0..3);
    let error = edit(original, &[replace("one", "1"), replace("four", "4")]).unwrap_err();
    assert!(error.to_string().starts_with("edits[1].oldText is not in the file"));
    let adjacent = edit(original, &[replace("two", "2"), replace(" three", "3")]).unwrap();
    assert_eq!(adjacent.content, b"one 23\n");
    let error = edit(b"a\none two\n", &[replace("two", "2"), replace("one t", "1")]).unwrap_err();
    assert_eq!(error, EditError::Overlap { first: 0, second: 1, line: 2 });
}

#[test]
fn edits_that_say_nothing_are_refused() {
    assert!(refused(b"a\n", "", "x").contains("edits[0].oldText is empty"));
    assert!(refused(b"a\n", "a", "a").contains("changes nothing"));
    assert!(refused(b"a\r\nb\r\n", "a\nb", "a\r\nb").contains("changes nothing"), "also after line ends");
}

#[test]
fn a_text_that_is_not_there_is_explained() {
    let file = "fn a() {\n\tlet x = “one”;\n    done()\n}\n\u{e9}t\u{e9}: cafe\n".as_bytes();
    let text = refused(file, "fn a() {\n    let x = “one”;", "x");
    assert!(text.contains("Line 1 differs from it only in white space") && text.contains("\\tlet"), "{text}");
    assert!(refused(file, "FN A()", "x").contains("upper and lower case"));
    assert!(refused(file, "let x = \"one\";", "x").contains("Line 2 differs from it only in quotation marks"));
    assert!(refused(file, "e\u{301}te\u{301}: cafe", "x").contains("another Unicode normalization"));
    let text = refused(file, "    done()\n}\nfn b() {}\n", "x");
    assert!(
        text.contains("beginning stands at line 3") && text.contains("line 5 the file has \"été: cafe\""),
        "{text}"
    );
    assert!(refused(file, "nowhere to be found", "x").contains("Read the file again"));
    assert!(refused(b"", "x", "y").contains("The file is empty"));
    assert!(refused("a b ".repeat(2_000_000).as_bytes(), "abc", "y").contains("Read the file again"));
}

#[test]
fn a_diff_shows_whole_lines_and_stays_in_its_budget() {
    let original = b"one\r\ntwo words\r\nthree\r\nfour\r\n";
    let edited = edit(original, &[replace("words", "WORDS"), replace("two", "2"), replace("four\n", "")]).unwrap();
    let text = diff(original, &edited.changes, TextBudget::WHOLE);
    assert_eq!(text, "@@ line 2 @@\n-two words\n+2 WORDS\n@@ line 4 @@\n-four\n");
    let lines: String = (0..3_000).map(|n| format!("line number {n}\n")).collect();
    let edits: Vec<_> = (1_000..1_100).map(|n| replace(&format!("number {n}\n"), "x\n")).collect();
    let edited = edit(lines.as_bytes(), &edits).unwrap();
    let small = TextBudget { bytes: 400, tokens: 200 };
    let text = diff(lines.as_bytes(), &edited.changes, small);
    assert!(small.fits(&text) && text.contains("more places changed, not shown"), "{text}");
    assert!(diff(lines.as_bytes(), &edited.changes, TextBudget { bytes: 0, tokens: 0 }).is_empty());
}

#[test]
fn a_diff_of_long_lines_shows_what_changed_in_them() {
    let original = format!("{}é old é{}\n", "x".repeat(5_000), "y".repeat(5_000));
    let edited = edit(original.as_bytes(), &[replace("old", "new")]).unwrap();
    let text = diff(original.as_bytes(), &edited.changes, TextBudget::WHOLE);
    assert!(
        text.len() < 600 && text.contains("-…xxx") && text.contains("é old é") && text.contains("é new é"),
        "{text}"
    );
    let grown = edit(b"a\n", &[replace("a", &"line\n".repeat(1_000))]).unwrap();
    let text = diff(b"a\n", &grown.changes, TextBudget::WHOLE);
    assert!(text.contains("+… 961 more lines"), "{text}");
}

/// A seeded generator (xorshift), so that a failure comes back.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    fn pick(&mut self, from: &[&[u8]], most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).flat_map(|_| from[self.below(from.len())].to_vec()).collect()
    }
}

/// Every place of `old`, tried byte by byte: an LF matches a CRLF unless `old` holds a CR.
fn places_by_trial(file: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let exact = old.contains(&b'\r');
    let starts_inside = |at: usize| !exact && at > 0 && file[at - 1] == b'\r' && file.get(at) == Some(&b'\n');
    (0..file.len())
        .filter(|start| !starts_inside(*start))
        .filter_map(|start| {
            let mut at = start;
            for byte in old {
                if !exact && *byte == b'\n' && file[at..].starts_with(b"\r\n") {
                    at += 1;
                }
                if file.get(at) != Some(byte) {
                    return None;
                }
                at += 1;
            }
            Some(start..at)
        })
        .collect()
}

#[test]
fn edits_agree_with_a_naive_model() {
    const SEED: u64 = 0x5eed_cafe;
    let mut random = Random(SEED);
    let pieces: [&[u8]; 7] = [b"a", b"b", b"\n", b"\r\n", b"\r", "é".as_bytes(), b"ab\n"];
    let (mut done, mut ambiguous, mut missing) = (0, 0, 0);
    for round in 0..30_000 {
        let file = random.pick(&pieces, 14);
        let old = String::from_utf8(random.pick(&pieces, 4)).unwrap();
        let new = String::from_utf8(random.pick(&pieces, 4)).unwrap();
        let result = edit(&file, &[replace(&old, &new)]);
        let places = places_by_trial(&file, old.as_bytes());
        let case = || format!("round {round}: {:?} {old:?} {new:?}", String::from_utf8_lossy(&file));
        match result {
            Ok(Edited { content, changes }) => {
                done += 1;
                let [place] = &places[..] else { panic!("{}: {places:?}", case()) };
                assert_eq!(&changes[0].range, place, "{}", case());
                assert_eq!(&content[..place.start], &file[..place.start], "{}", case());
                assert!(content.ends_with(&file[place.end..]), "{}", case());
                let middle = &content[place.start..content.len() - (file.len() - place.end)];
                let plain = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\r\n", "\n");
                assert_eq!(plain(middle), plain(new.as_bytes()), "{}", case());
            }
            Err(EditError::Ambiguous { .. }) => {
                ambiguous += 1;
                assert!(places.len() > 1, "{}: {places:?}", case());
            }
            Err(EditError::NotFound { .. }) => {
                missing += 1;
                assert!(places.is_empty(), "{}: {places:?}", case());
            }
            Err(EditError::Empty { .. }) => assert!(old.is_empty(), "{}", case()),
            Err(EditError::Same { .. }) => {
                assert!(!places.is_empty() || old == new, "{}", case());
            }
            Err(other) => panic!("{}: {other}", case()),
        }
    }
    assert!(done > 2_000 && ambiguous > 1_000 && missing > 1_000, "{done} {ambiguous} {missing}");
}
