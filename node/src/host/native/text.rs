//! What the bytes of a text file are: encoding, byte order mark, line ends, lines. Pure.
//!
//! Lines are numbered from 1 and end in LF or CRLF; a lone CR is a character like any other. Nothing here converts a
//! file.

use std::{borrow::Cow, ops::Range};

use memchr::{memchr, memchr_iter, memrchr};

/// UTF-8's byte order mark.
pub const BOM: &[u8] = b"\xef\xbb\xbf";

/// How much of a file's beginning tells what it is; git looks at as much.
pub const HEAD: usize = 8_000;

/// What a file's beginning looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text in UTF-8 or in an encoding that has ASCII's bytes for ASCII.
    Text {
        /// Whether a byte order mark precedes it.
        bom: bool,
    },
    /// Text in an encoding whose ASCII is not ASCII's bytes; its name.
    Wide(&'static str),
    /// No text.
    Binary,
}

/// Judges a file by its first bytes, of which [`HEAD`] are looked at.
#[must_use]
pub fn form(bytes: &[u8]) -> Form {
    let head = &bytes[..bytes.len().min(HEAD)];
    match head {
        [0xff, 0xfe, 0, 0, ..] => return Form::Wide("UTF-32LE"),
        [0xff, 0xfe, ..] => return Form::Wide("UTF-16LE"),
        [0, 0, 0xfe, 0xff, ..] => return Form::Wide("UTF-32BE"),
        [0xfe, 0xff, ..] => return Form::Wide("UTF-16BE"),
        _ => {}
    }
    if memchr(0, head).is_some() {
        return Form::Binary;
    }
    // Terminal output holds backspaces and escapes; random bytes hold one other control in ten, real text hardly any.
    let controls = head.iter().filter(|byte| matches!(byte, 1..=7 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f)).count();
    let tolerated = if is_utf8_beginning(head) { head.len() / 10 } else { head.len() / 50 };
    if controls > tolerated { Form::Binary } else { Form::Text { bom: head.starts_with(BOM) } }
}

/// Whether `bytes` are UTF-8 as far as they go; a character cut at their end counts as whole.
#[must_use]
pub fn is_utf8_beginning(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// `bytes` without a byte order mark before them.
#[must_use]
pub fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BOM).unwrap_or(bytes)
}

/// How many lines of each end `bytes` hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineEnds {
    /// LF without CR.
    pub lf: usize,
    /// CR and LF.
    pub crlf: usize,
}

impl LineEnds {
    /// Counted over `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let crlf = memchr::memmem::find_iter(bytes, b"\r\n").count();
        Self { lf: memchr_iter(b'\n', bytes).count() - crlf, crlf }
    }
}

/// The text for people and models: CRLF as LF, and U+FFFD for what is not UTF-8.
#[must_use]
pub fn shown(bytes: &[u8]) -> Cow<'_, str> {
    match String::from_utf8_lossy(bytes) {
        text if text.contains("\r\n") => Cow::Owned(text.replace("\r\n", "\n")),
        text => text,
    }
}

/// Number of the line that the byte at `at` stands in.
#[must_use]
pub fn line_at(bytes: &[u8], at: usize) -> usize {
    1 + memchr_iter(b'\n', &bytes[..at]).count()
}

/// `range` widened to whole lines, the last with its end. A range that ends with a line end takes no further line.
#[must_use]
pub fn whole_lines(bytes: &[u8], range: Range<usize>) -> Range<usize> {
    let start = memrchr(b'\n', &bytes[..range.start]).map_or(0, |newline| newline + 1);
    let closed = range.end > start && bytes[..range.end].ends_with(b"\n");
    let end = if closed {
        range.end
    } else {
        memchr(b'\n', &bytes[range.end..]).map_or(bytes.len(), |newline| range.end + newline + 1)
    };
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_other_bytes() {
        assert_eq!(form(b""), Form::Text { bom: false });
        assert_eq!(form(b"\xef\xbb\xbfalpha\r\n"), Form::Text { bom: true });
        assert_eq!(form(b"# caf\xe9 r\xe9sum\xe9\n"), Form::Text { bom: false });
        assert_eq!(form("привет\n".as_bytes()), Form::Text { bom: false });
        assert_eq!(form(b"\x1b[31mred\x1b[0m\x08\r\n"), Form::Text { bom: false });
        assert_eq!(form(b"\xff\xfeh\0i\0"), Form::Wide("UTF-16LE"));
        assert_eq!(form(b"\xfe\xff\0h\0i"), Form::Wide("UTF-16BE"));
        assert_eq!(form(b"\xff\xfe\0\0h\0\0\0"), Form::Wide("UTF-32LE"));
        assert_eq!(form(b"text\0text"), Form::Binary);
        assert_eq!(form(&[1, 2, 3, 4, 5, 6]), Form::Binary);
        let random: Vec<u8> = (0..4_096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 | 1).collect();
        assert_eq!(form(&random), Form::Binary);
    }

    #[test]
    fn a_character_cut_by_the_head_is_still_utf8() {
        let text = "é".repeat(HEAD);
        assert!(is_utf8_beginning(&text.as_bytes()[..HEAD - 1]));
        assert!(!is_utf8_beginning(b"caf\xe9 "));
    }

    #[test]
    fn line_ends_are_counted_apart() {
        assert_eq!(LineEnds::of(b"a\nb\r\nc\rd\n\r\n"), LineEnds { lf: 2, crlf: 2 });
        assert_eq!(LineEnds::of(b""), LineEnds::default());
    }

    #[test]
    fn shown_text_has_plain_line_ends_and_marks_foreign_bytes() {
        assert_eq!(shown(b"a\r\nb\rc\n"), "a\nb\rc\n");
        assert_eq!(shown(b"caf\xe9\n"), "caf\u{fffd}\n");
        assert!(matches!(shown("é\n".as_bytes()), Cow::Borrowed(_)));
    }

    #[test]
    fn ranges_widen_to_lines() {
        let text = b"one\ntwo\nthree";
        assert_eq!(line_at(text, 0), 1);
        assert_eq!(line_at(text, 4), 2);
        assert_eq!(whole_lines(text, 5..6), 4..8);
        assert_eq!(whole_lines(text, 4..8), 4..8);
        assert_eq!(whole_lines(text, 2..9), 0..13);
        assert_eq!(whole_lines(text, 4..4), 4..8);
        assert_eq!(whole_lines(text, 13..13), 8..13);
        assert_eq!(whole_lines(b"", 0..0), 0..0);
        assert_eq!(whole_lines(b"a\n", 2..2), 2..2);
    }
}
