//! The invite code: its form, and what is said of every way to get it wrong.

use super::*;
use crate::identity::fresh_invite;

fn code(addresses: &[&str]) -> InviteCode {
    let (id, secret) = fresh_invite(std::array::from_fn(|at| u8::try_from(at).unwrap()));
    let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
    InviteCode { mesh: [7; 16].into(), inviter: NodeId::from([9; 32]), addresses, id, secret }
}

fn parse(text: &str) -> Result<InviteCode, InviteCodeError> {
    text.parse()
}

/// A code of these contents, its checksum right.
fn sealed(version: u8, length: u16, body: &[u8]) -> String {
    let covered = [&[version][..], &length.to_be_bytes(), body].concat();
    let bytes = [&covered[..], &checksum(&covered)].concat();
    format!("chappie-{}", BASE32_NOPAD.encode(&bytes))
}

fn body(addresses: &[u8]) -> Vec<u8> {
    [&[7; 16][..], &[9; 32], &[0; 24], addresses].concat()
}

#[test]
fn the_form_of_a_code_is_this() {
    let text = code(&["10.0.0.5:7373"]).to_string();
    assert_eq!(
        text,
        "chappie-aeae6byha4dqobyha4dqobyha4dqobyjbeeqscijbeeqscijbeeqscijbeeqscijbeeqscij\
         beeqscijbeaacaqdaqcqmbyibefawdanbyhraeiscmkbkfqxaqfaaaafdtgzvfkqm4"
    );
    assert_eq!(parse(&text), Ok(code(&["10.0.0.5:7373"])));
}

#[test]
fn every_kind_of_address_comes_back_as_it_was() {
    let addresses =
        ["10.0.0.5:7373", "[fd00::5]:7373", "box.example:7373", "BOX:1", "[::ffff:1.2.3.4]:65535", "[::0001]:80"];
    assert_eq!(parse(&code(&addresses).to_string()), Ok(code(&addresses)));
    assert_eq!(parse(&code(&[]).to_string()), Ok(code(&[])));
}

#[test]
fn addresses_that_others_could_not_dial_are_left_out() {
    let text = code(&["[fe80::1%3]:7373", "no port", "box:0", "box:70000", ":7373", "", "a\nb:1", "ok:1"]).to_string();
    assert_eq!(parse(&text), Ok(code(&["ok:1"])));
}

#[test]
fn a_code_is_never_longer_than_its_limit() {
    let many: Vec<String> = (1..=40).map(|n| format!("10.0.0.{n}:7373")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(parse(&code(&many).to_string()), Ok(code(&many[..16])));
    let long: Vec<String> = (10..20).map(|n| format!("{}.{n}:7373", "x".repeat(200))).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let text = code(&long).to_string();
    assert!(text.len() <= CODE_CHARACTERS_MAX, "{}", text.len());
    assert_eq!(parse(&text), Ok(code(&long[..2])), "what has room is there");
}

#[test]
fn any_case_and_any_line_break_is_the_same_code() {
    let code = code(&["10.0.0.5:7373"]);
    let text = code.to_string();
    let broken = format!(" {}\n  {}\r\n", &text[..40], &text[40..]);
    for spelling in [text.to_uppercase(), broken] {
        assert_eq!(parse(&spelling), Ok(code.clone()), "{spelling}");
    }
}

#[test]
fn every_single_mistyped_character_is_noticed() {
    let text = code(&["10.0.0.5:7373"]).to_string();
    for at in PREFIX.len()..text.len() {
        for replacement in ["a", "q", "z", "2", "7"] {
            let mut typed = text.clone();
            typed.replace_range(at..=at, replacement);
            if typed != text {
                assert!(parse(&typed).is_err(), "{typed}");
            }
        }
    }
    // Neighbours changed about.
    for at in PREFIX.len()..text.len() - 1 {
        let typed = format!("{}{}{}{}", &text[..at], &text[at + 1..at + 2], &text[at..=at], &text[at + 2..]);
        assert!(typed == text || parse(&typed).is_err(), "{typed}");
    }
}

#[test]
fn a_code_that_was_cut_says_how_much_is_there() {
    let text = code(&["10.0.0.5:7373"]).to_string();
    for end in PREFIX.len()..text.len() {
        let error = parse(&text[..end]).unwrap_err();
        assert!(
            matches!(error, InviteCodeError::CutOff { found, expected } if found == end && expected > end),
            "{end}: {error}"
        );
        if end >= PREFIX.len() + 8 {
            assert_eq!(error, InviteCodeError::CutOff { found: end, expected: text.len() });
        }
    }
}

#[test]
fn a_code_with_more_behind_it_says_how_much() {
    let text = code(&["10.0.0.5:7373"]).to_string();
    for more in 1..20 {
        let longer = format!("{text}{}", "a".repeat(more));
        assert_eq!(parse(&longer), Err(InviteCodeError::TooLong(more)), "{longer}");
    }
    assert_eq!(
        parse(&format!("{text}{}", "A".repeat(1 << 20))),
        Err(InviteCodeError::TooLong((1 << 20) + text.len() - 1024))
    );
}

#[test]
fn other_texts_are_named_for_what_they_are() {
    for text in ["", "hello", "chappie", "chappie_abc", "https://example.org/", &NodeId::from([1; 32]).to_string()] {
        assert_eq!(parse(text), Err(InviteCodeError::NotACode), "{text}");
    }
    assert_eq!(parse("chappie-a0b"), Err(InviteCodeError::Character('0')));
    assert_eq!(parse("chappie-aüb"), Err(InviteCodeError::Character('ü')));
    assert!(matches!(parse("chappie-"), Err(InviteCodeError::CutOff { found: 8, .. })));
}

#[test]
fn a_whole_code_of_another_version_is_told_from_a_mistyped_one() {
    let other = sealed(2, 3, b"new");
    assert_eq!(parse(&other), Err(InviteCodeError::Version(2)));
    assert!(parse(&other).unwrap_err().to_string().contains("update it"));
}

#[test]
fn a_checksum_does_not_excuse_the_contents() {
    let own = |addresses: &[u8]| sealed(1, u16::try_from(body(addresses).len()).unwrap(), &body(addresses));
    assert_eq!(parse(&own(&[4, 10, 0, 0, 1, 0, 80])).unwrap().addresses, ["10.0.0.1:80"]);
    let bad: [&[u8]; 9] = [
        &[9],
        &[4, 10, 0, 0],
        &[6, 0, 0],
        &[0, 0xff, 0xff, b'a'],
        &[0, 0, 3, b'a', b'b', b'c'],
        &[0, 0, 3, 0xff, b':', b'1'],
        &[0, 0, 4, 0x1b, b'b', b':', b'1'],
        b"\x00\x00\x0b10.0.0.1:80",
        &[4, 10, 0, 0, 1, 0, 80].repeat(17),
    ];
    for addresses in bad {
        assert!(matches!(parse(&own(addresses)), Err(InviteCodeError::Contents(_))), "{addresses:?}");
    }
    assert!(matches!(parse(&sealed(1, 9, &body(&[]))), Err(InviteCodeError::Contents(_))));
    assert!(matches!(parse(&sealed(1, 5, &[1; 5])), Err(InviteCodeError::Contents(_))));
}

#[test]
fn the_secret_is_in_the_code_and_in_nothing_else_that_is_printed() {
    let (id, secret) = fresh_invite([0xab; 24]);
    let shown = InviteCode { id, secret, ..code(&["10.0.0.5:7373"]) };
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        // The id has the same bytes in this test, and eight of them.
        let hex = text.to_lowercase().replace("abababababababab", "");
        assert!(!hex.contains("abab") && !text.contains("171"), "{text}");
        assert!(!text.contains(&BASE32_NOPAD.encode(&[0xab; 16])), "{text}");
    }
}

#[test]
fn whatever_stands_behind_a_right_checksum_is_refused_or_has_one_form() {
    let numbers = [&[4, 10, 0, 0, 1, 0, 80][..], &[6], &[0xfd; 18], b"\0\0\x05box:1"].concat();
    let corpus = [body(&[]), body(&numbers), body(&[4, 10, 0, 0, 1, 0, 80].repeat(16)), body(b"\0\xff\xffa:1")];
    crate::wire::fuzz::fuzz("the contents of a code", &corpus, |contents| {
        let text = sealed(1, u16::try_from(contents.len()).unwrap_or(u16::MAX), contents);
        match parse(&text) {
            Ok(code) => {
                assert_eq!(code.to_string(), text.to_ascii_lowercase());
                true
            }
            Err(error) => {
                let known = matches!(error, InviteCodeError::Contents(_) | InviteCodeError::TooLong(_));
                assert!(known, "{error}");
                false
            }
        }
    });
}
