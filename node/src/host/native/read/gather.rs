//! Taking one page's bytes from a file of any length in one pass and bounded memory.

use std::io::{self, BufRead};

use memchr::{memchr, memchr_iter};
use tokio_util::sync::CancellationToken;

/// Where a page begins and how much it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Line, from 1.
    pub(super) line: u64,
    /// Byte in that line, from 1.
    pub(super) column: u64,
    /// Most lines, counting that one.
    pub(super) lines: Option<u64>,
    /// Most bytes.
    pub(super) room: usize,
}

/// A page's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gathered {
    pub(super) bytes: Vec<u8>,
    /// Whether the file goes on behind them.
    pub(super) more: bool,
    /// What is known of the rest; nothing when that is too long to look through.
    pub(super) rest: Option<Rest>,
}

/// What stands behind a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    /// Lines of the whole file.
    pub(super) lines: u64,
    /// Bytes from the page's end to the next line end or the file's end.
    pub(super) line_bytes: u64,
}

/// Why there is no such page.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatherError {
    /// The file has fewer lines.
    #[error("the file has {0} lines")]
    Lines(u64),
    /// The line has fewer bytes.
    #[error("the line has {0} bytes")]
    Bytes(u64),
    /// The caller gave up.
    #[error("cancelled")]
    Cancelled,
    /// What the system says.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How much of a file is looked through behind a page just to count its lines: some milliseconds' worth.
const COUNTED: u64 = 16 * 1024 * 1024;

/// Reads `source` from its beginning up to the page and, as far as [`COUNTED`] allows, to its end.
pub(super) fn gather(
    source: &mut impl BufRead,
    wanted: Wanted,
    cancel: &CancellationToken,
) -> Result<Gathered, GatherError> {
    skip_lines(source, wanted.line - 1, cancel)?;
    skip_bytes(source, wanted.column - 1, cancel)?;
    let mut bytes = Vec::new();
    let mut lines = wanted.lines.unwrap_or(u64::MAX);
    while bytes.len() < wanted.room && lines > 0 {
        let chunk = filled(source, cancel)?;
        if chunk.is_empty() {
            break;
        }
        let mut taken = chunk.len().min(wanted.room - bytes.len());
        for newline in memchr_iter(b'\n', &chunk[..taken]) {
            lines -= 1;
            if lines == 0 {
                taken = newline + 1;
                break;
            }
        }
        bytes.extend_from_slice(&chunk[..taken]);
        source.consume(taken);
    }
    let more = !filled(source, cancel)?.is_empty();
    let above = wanted.line - 1 + count(&bytes);
    let rest = rest(source, above, bytes.last().is_none_or(|byte| *byte == b'\n'), cancel)?;
    Ok(Gathered { bytes, more, rest })
}

/// The next bytes; none at the end.
fn filled<'s>(source: &'s mut impl BufRead, cancel: &CancellationToken) -> Result<&'s [u8], GatherError> {
    if cancel.is_cancelled() {
        return Err(GatherError::Cancelled);
    }
    Ok(source.fill_buf()?)
}

fn count(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

fn skip_lines(source: &mut impl BufRead, lines: u64, cancel: &CancellationToken) -> Result<(), GatherError> {
    let (mut left, mut open_line) = (lines, false);
    loop {
        let chunk = filled(source, cancel)?;
        if chunk.is_empty() && (left > 0 || lines > 0) {
            return Err(GatherError::Lines(lines - left + u64::from(open_line)));
        }
        if left == 0 {
            return Ok(());
        }
        let mut taken = chunk.len();
        for newline in memchr_iter(b'\n', chunk) {
            left -= 1;
            if left == 0 {
                taken = newline + 1;
                break;
            }
        }
        open_line = !chunk[..taken].ends_with(b"\n");
        source.consume(taken);
    }
}

fn skip_bytes(source: &mut impl BufRead, bytes: u64, cancel: &CancellationToken) -> Result<(), GatherError> {
    let mut skipped = 0;
    loop {
        let chunk = filled(source, cancel)?;
        if chunk.is_empty() && bytes > 0 {
            return Err(GatherError::Bytes(skipped));
        }
        if skipped == bytes {
            return Ok(());
        }
        let taken = chunk.len().min(usize::try_from(bytes - skipped).unwrap_or(usize::MAX));
        if let Some(newline) = memchr(b'\n', &chunk[..taken]) {
            return Err(GatherError::Bytes(skipped + newline as u64));
        }
        skipped += taken as u64;
        source.consume(taken);
    }
}

/// Counts on from `above` line ends; `at_start` when the page ended a line.
fn rest(
    source: &mut impl BufRead,
    above: u64,
    at_start: bool,
    cancel: &CancellationToken,
) -> Result<Option<Rest>, GatherError> {
    let (mut lines, mut line_bytes, mut in_first, mut open_line) = (above, 0, true, !at_start);
    let mut looked = 0;
    loop {
        let chunk = filled(source, cancel)?;
        if chunk.is_empty() {
            return Ok(Some(Rest { lines: lines + u64::from(open_line), line_bytes }));
        }
        if looked > COUNTED {
            return Ok(None);
        }
        if in_first {
            let newline = memchr(b'\n', chunk);
            line_bytes += newline.unwrap_or(chunk.len()) as u64;
            in_first = newline.is_none();
        }
        lines += count(chunk);
        open_line = !chunk.ends_with(b"\n");
        let taken = chunk.len();
        looked += taken as u64;
        source.consume(taken);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    fn page(text: &[u8], line: u64, column: u64, lines: Option<u64>, room: usize) -> Result<Gathered, GatherError> {
        // A buffer of three bytes, so that every boundary is met.
        let mut source = BufReader::with_capacity(3, text);
        gather(&mut source, Wanted { line, column, lines, room }, &CancellationToken::new())
    }

    #[test]
    fn a_page_is_cut_by_lines_bytes_and_the_end() {
        let text = b"one\ntwo\nthree\nfour";
        let all = page(text, 1, 1, None, 100).unwrap();
        assert_eq!((all.bytes.as_slice(), all.more, all.rest.unwrap().lines), (&text[..], false, 4));
        let two = page(text, 2, 1, Some(2), 100).unwrap();
        assert_eq!((two.bytes.as_slice(), two.more), (&b"two\nthree\n"[..], true));
        assert_eq!(two.rest, Some(Rest { lines: 4, line_bytes: 4 }));
        let cut = page(text, 3, 2, None, 3).unwrap();
        assert_eq!((cut.bytes.as_slice(), cut.rest), (&b"hre"[..], Some(Rest { lines: 4, line_bytes: 1 })));
        let last = page(text, 4, 1, None, 100).unwrap();
        assert_eq!((last.bytes.as_slice(), last.more), (&b"four"[..], false));
        let end = page(b"a\nb\n", 2, 2, None, 9).unwrap();
        assert_eq!((end.bytes.as_slice(), end.rest), (&b"\n"[..], Some(Rest { lines: 2, line_bytes: 0 })));
    }

    #[test]
    fn a_page_beyond_the_end_names_what_there_is() {
        for (text, lines) in [(&b"a\nb\n"[..], 2), (b"a\nb", 2), (b"a", 1), (b"\n", 1), (b"", 0)] {
            for line in [lines + 1, lines + 5] {
                let found = page(text, line.max(2), 1, None, 9);
                assert!(matches!(found, Err(GatherError::Lines(found)) if found == lines), "{text:?} at {line}");
            }
        }
        for column in [5, 6, 40] {
            assert!(matches!(page(b"abc", 1, column, None, 9), Err(GatherError::Bytes(3))));
            assert!(matches!(page(b"x\nabc\nd", 2, column, None, 9), Err(GatherError::Bytes(3))));
        }
        assert!(matches!(page(b"abc", 1, 4, None, 9), Err(GatherError::Bytes(3))));
    }

    #[test]
    fn the_lines_of_a_very_long_rest_are_not_counted() {
        let endless = io::repeat(b'\n').take(COUNTED * 4);
        let mut source = BufReader::with_capacity(64 * 1024, endless);
        let wanted = Wanted { line: 1, column: 1, lines: Some(1), room: 10 };
        let page = gather(&mut source, wanted, &CancellationToken::new()).unwrap();
        assert_eq!((page.bytes.as_slice(), page.more, page.rest), (&b"\n"[..], true, None));
        assert!(source.into_inner().limit() > COUNTED * 2, "it did not read on");
    }

    #[test]
    fn a_cancelled_read_of_an_endless_file_ends() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        let mut source = BufReader::new(io::repeat(b'x'));
        let wanted = Wanted { line: 2, column: 1, lines: None, room: 10 };
        assert!(matches!(gather(&mut source, wanted, &cancel), Err(GatherError::Cancelled)));
    }
}
