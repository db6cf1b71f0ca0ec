//! Laying a page's bytes out as text inside a budget, and where the next page begins. Pure.

use super::super::text;
use crate::budget::{TextBudget, tokens};

/// A place in a file: line and byte in the line, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u64,
    pub(super) column: u64,
}

/// A page as it is shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// CRLF as LF, U+FFFD for what is not UTF-8.
    pub(super) text: String,
    /// The last line of which something is shown.
    pub(super) last: u64,
    /// Where to read on; none at the end of the file.
    pub(super) next: Option<Place>,
    /// How many of the bytes are shown.
    pub(super) taken: usize,
}

/// Lays out `bytes`, which begin at `start`; `more` when the file goes on behind them. Lines are kept whole, but for a
/// first line that does not fit: as much of it as does is shown. Nothing is shown when not even a character fits.
pub(super) fn lay_out(bytes: &[u8], start: Place, more: bool, budget: TextBudget) -> Page {
    let mut page = Page { text: String::new(), last: start.line, next: None, taken: 0 };
    let (mut left, mut place) = (budget, start);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let ends = line.ends_with(b"\n");
        let is_whole = ends || !more;
        let shown = text::shown(line);
        let cost = tokens(&shown);
        if !is_whole || shown.len() > left.bytes || cost > left.tokens {
            if page.text.is_empty() {
                let line = if is_whole { line } else { without_cut_end(line) };
                page.text.push_str(budget.head(&text::shown(line)));
                page.taken = raw_length(line, page.text.len());
                place.column += page.taken as u64;
            }
            page.next = Some(place);
            return page;
        }
        page.last = place.line;
        page.text.push_str(&shown);
        page.taken += line.len();
        left = TextBudget { bytes: left.bytes - shown.len(), tokens: left.tokens - cost };
        if ends {
            place = Place { line: place.line + 1, column: 1 };
        }
    }
    page.next = more.then_some(place);
    page
}

/// `line` without a character, or a line end, of which the end of the page cuts a part: it belongs to the next page.
fn without_cut_end(line: &[u8]) -> &[u8] {
    let line = &line[..line.len() - cut_character(line)];
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Bytes of an incomplete UTF-8 character at the end of `bytes`.
fn cut_character(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    (0..tail.len())
        .find(|at| {
            let length = match tail[*at] {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => return false,
            };
            tail.len() - at < length && tail[at + 1..].iter().all(|byte| byte & 0xc0 == 0x80)
        })
        .map_or(0, |at| tail.len() - at)
}

/// How many bytes of `line` its first `shown` shown bytes stand for. A CR before the line's end counts with the end.
fn raw_length(line: &[u8], shown: usize) -> usize {
    let (mut raw, mut left) = (0, shown);
    for chunk in line.utf8_chunks() {
        let valid = chunk.valid().len();
        if left <= valid {
            return raw + left;
        }
        raw += valid + chunk.invalid().len();
        left -= valid;
        if !chunk.invalid().is_empty() {
            left = left.saturating_sub('\u{fffd}'.len_utf8());
        }
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Place = Place { line: 1, column: 1 };

    #[expect(clippy::unnecessary_wraps, reason = "it stands where a page has it")]
    const fn at(line: u64, column: u64) -> Option<Place> {
        Some(Place { line, column })
    }

    fn budget(bytes: usize) -> TextBudget {
        TextBudget { bytes, tokens: bytes }
    }

    #[test]
    fn lines_are_kept_whole() {
        let page = lay_out(b"one\ntwo\r\nthree\n", START, false, budget(9));
        assert_eq!(page, Page { text: "one\ntwo\n".into(), last: 2, next: at(3, 1), taken: 9 });
        let page = lay_out(b"one\ntwo", Place { line: 7, column: 1 }, false, budget(9));
        assert_eq!(page, Page { text: "one\ntwo".into(), last: 8, next: None, taken: 7 });
        let page = lay_out(b"one\ntw", START, true, budget(99));
        assert_eq!(page, Page { text: "one\n".into(), last: 1, next: at(2, 1), taken: 4 });
        let page = lay_out(b"one\n", START, true, budget(99));
        assert_eq!(page.next, Some(Place { line: 2, column: 1 }));
    }

    #[test]
    fn a_long_first_line_is_cut_between_characters() {
        let page = lay_out("ééé\nx".as_bytes(), Place { line: 4, column: 11 }, true, budget(5));
        assert_eq!(page, Page { text: "éé".into(), last: 4, next: at(4, 15), taken: 4 });
        let page = lay_out(b"ab\xc3", START, true, budget(99));
        assert_eq!(page, Page { text: "ab".into(), last: 1, next: at(1, 3), taken: 2 });
        let page = lay_out(b"a\xff\xffbcd\n", START, false, budget(8));
        assert_eq!(page, Page { text: "a\u{fffd}\u{fffd}b".into(), last: 1, next: at(1, 5), taken: 4 });
        let page = lay_out(b"abc\r\n", START, false, budget(3));
        assert_eq!(page.next, Some(Place { line: 1, column: 4 }));
    }

    #[test]
    fn nothing_fits_into_nothing() {
        let page = lay_out(b"abc\n", START, true, budget(0));
        assert_eq!(page, Page { text: String::new(), last: 1, next: Some(START), taken: 0 });
    }

    #[test]
    fn pages_laid_end_to_end_are_the_text() {
        let text = "é\r\n\nlong line with 汉字 and \u{1f980} in it\r\nx\n".repeat(20) + "end";
        let bytes = text.as_bytes();
        for size in [4, 7, 30, 100] {
            let (mut read, mut at, mut seen) = (String::new(), 0, START);
            loop {
                let end = bytes.len().min(at + 2 * size);
                let page = lay_out(&bytes[at..end], seen, end < bytes.len(), budget(size));
                read.push_str(&page.text);
                let Some(next) = page.next else { break };
                assert_ne!(next, seen, "no progress at {seen:?} with {size}");
                seen = next;
                let line: usize = text.split_inclusive('\n').take(next.line as usize - 1).map(str::len).sum();
                at = line + next.column as usize - 1;
            }
            assert_eq!(read, text.replace("\r\n", "\n"), "{size}");
        }
    }
}
