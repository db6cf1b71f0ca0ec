//! The pessimistic token estimate against the tokenizer of ChatGPT's models: never below it on a page of any kind of text,
//! and not so far above that pages become small.

use chappie::budget::{self, TextBudget};
use chappie_tests::{random::Random, tokens};

const PROSE: &str = include_str!("../../docs/ARCHITECTURE.md");
const CODE: &str = include_str!("../../node/src/host/native/edit_core.rs");
const LOCK: &str = include_str!("../../Cargo.lock");

/// Characters of one part of an answer: a page holds a few of these, and what matters is their sum.
const PART: usize = 3_000;

fn letters(random: &mut Random, from: &str, count: usize) -> String {
    let from: Vec<char> = from.chars().collect();
    (0..count).map(|_| *random.pick(&from)).collect()
}

fn between(random: &mut Random, first: u32, last: u32, count: usize) -> String {
    let span = u64::from(last - first) + 1;
    let mut next = || char::from_u32(first + random.below(span) as u32);
    std::iter::repeat_with(&mut next).flatten().take(count).collect()
}

fn words(random: &mut Random, from: &str, length: usize, count: usize) -> String {
    (0..count).map(|_| letters(random, from, length) + " ").collect()
}

/// Texts of every kind that files and commands give, each with its name.
fn samples() -> Vec<(String, String)> {
    const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
    let (upper, digits) = (LOWER.to_uppercase(), "0123456789");
    let base64 = format!("{LOWER}{upper}{digits}+/");
    let ascii: String = (' '..='~').collect();
    let mut random = Random::new(7);
    let r = &mut random;
    let mut samples = vec![
        ("prose", PROSE.to_owned()),
        ("code", CODE.to_owned()),
        ("lock file", LOCK.to_owned()),
        ("minified code", CODE.split_whitespace().collect()),
        ("escaped code", serde_json::Value::from(CODE).to_string()),
        (
            "json",
            serde_json::json!({"rows": vec![serde_json::json!({"id": 17, "ok": true, "at": "2026-01-02"}); 200]})
                .to_string(),
        ),
        ("base64", letters(r, &base64, 30_000)),
        ("hex", letters(r, "0123456789abcdef", 30_000)),
        ("lower case", letters(r, LOWER, 30_000)),
        ("upper case", letters(r, &upper, 30_000)),
        ("digits", letters(r, digits, 30_000)),
        ("punctuation", letters(r, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 30_000)),
        ("ascii", letters(r, &ascii, 30_000)),
        ("white space", letters(r, " \t\n\r", 30_000)),
        ("controls", between(r, 0, 31, 30_000)),
        ("han", between(r, 0x4e00, 0x9fff, 20_000)),
        ("kana", between(r, 0x3041, 0x30ff, 20_000)),
        ("hangul", between(r, 0xac00, 0xd7a3, 20_000)),
        ("arabic", words(r, "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", 5, 4_000)),
        ("russian", words(r, "абвгдежзийклмнопрстуфхцчшщъыьэюя", 6, 4_000)),
        ("emoji", between(r, 0x1f300, 0x1faff, 10_000)),
        ("western letters", between(r, 0xa0, 0x24f, 20_000)),
        ("anything", between(r, 0x80, 0x2ffff, 20_000)),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_owned(), text))
    .collect::<Vec<_>>();
    for length in 1..=12 {
        samples.push((format!("lower words of {length}"), words(r, LOWER, length, 30_000 / length)));
        samples.push((format!("upper words of {length}"), words(r, &upper, length, 30_000 / length)));
        samples.push((format!("numbers of {length}"), words(r, digits, length, 30_000 / length)));
    }
    samples
}

#[test]
fn the_estimate_is_never_below_the_tokenizer() {
    for (name, text) in samples() {
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(PART) {
            let part: String = part.iter().collect();
            let (estimate, real) = (budget::tokens(&part), tokens::count(&part));
            assert!(estimate >= real, "{name}: {estimate} estimated, {real} counted");
        }
    }
}

#[test]
fn runs_of_one_character_of_any_length_are_bounded() {
    for c in ('\0'..='~').chain("─│═→…•—█░▓\u{3000}é的あяا👍".chars()) {
        for count in (1..40).chain([64, 80, 100, 127, 200, 500]) {
            let run = c.to_string().repeat(count);
            let (estimate, real) = (budget::tokens(&run), tokens::count(&run));
            assert!(estimate >= real, "{count} of {c:?}: {estimate} estimated, {real} counted");
        }
    }
}

#[test]
fn a_whole_answer_stays_below_what_chatgpt_cuts_and_is_no_small_page() {
    for (name, text) in samples() {
        let page = TextBudget::WHOLE.head(&text);
        // The answer carries it twice.
        assert!(2 * tokens::count(page) <= 9_000 && 2 * page.len() <= 24 * 1024, "{name}");
    }
    for (name, text, least) in [("prose", PROSE.repeat(9), 7_000), ("code", CODE.to_owned(), 6_000)] {
        let page = TextBudget::WHOLE.head(&text);
        assert!(page.len() >= least, "{name}: {} bytes a page", page.len());
    }
}
