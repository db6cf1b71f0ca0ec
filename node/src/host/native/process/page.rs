//! Shows a part of a process's output file: its last lines, or those from a line on. Memory and work stay
//! bounded whatever the file's size and however fast it grows: only what was there at the start is looked at, and lines
//! are counted in the first [`COUNTED_BYTES`] alone. In a longer file the last lines are shown without their numbers.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Entry, State, blocking, details};
use crate::{
    budget::TextBudget,
    host::native::{
        ToolContext, ToolOutput,
        plain::{LINE_BREAKS, broken, plain},
    },
};

/// Lines shown when the caller names no limit.
const LINES_DEFAULT: u64 = 200;

/// Raw bytes that one answer is made of: several times what it can hold as text.
const WINDOW_BYTES: u64 = 64 * 1024;

/// How much of a file is read to count its lines: a fraction of a second, and more lines than anybody pages through.
const COUNTED_BYTES: u64 = 64 * 1024 * 1024;

/// One read while counting.
const READ_BYTES: usize = 256 * 1024;

/// A part of the file.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    /// As [`plain`] made it: its lines are those of the file.
    text: String,
    /// Number of the first line shown, from 1; `None` when its lines were not counted.
    first: Option<u64>,
    /// Lines in all, the last one counted also without its line end; `None` when there are too many to count.
    lines: Option<u64>,
    /// The line with which to go on: the one after the last whole line shown; `None` when its number is not known.
    next: Option<u64>,
    /// Bytes in all.
    bytes: u64,
    /// A line was too long to be shown whole.
    cut_line: bool,
}

/// The answer of action `output`.
pub(super) async fn show(
    entry: Entry,
    offset: Option<u64>,
    limit: Option<u64>,
    context: &ToolContext,
) -> Result<ToolOutput, String> {
    let state = entry.state();
    let path = entry.output();
    let (file, cancel) = (path.clone(), context.cancel.clone());
    let budget = context.budget.minus(&notice(&entry, state, &Page::LONGEST_NOTICE));
    let limit = limit.unwrap_or(LINES_DEFAULT);
    let page = blocking(move || read(&file, offset, limit, budget, COUNTED_BYTES, &cancel)).await?;
    let page = page.map_err(|cause| format!("{}: the output of {}: {cause}", path.display(), entry.meta.id))?;
    let notice = notice(&entry, state, &page);
    let text = format!("{}{notice}", broken(page.text));
    let mut details = details(&entry, state);
    if let Some(lines) = page.lines {
        details["lines"] = json!(lines);
    }
    if let Some(next) = page.next {
        details["nextOffset"] = json!(next);
    }
    details["fullOutput"] = json!(path.to_string_lossy());
    Ok(ToolOutput::text(text).with_details(details))
}

impl Page {
    /// No page says more about itself.
    const LONGEST_NOTICE: Self =
        Self { text: String::new(), first: None, lines: None, next: Some(1 << 40), bytes: 1 << 50, cut_line: true };
}

/// What is shown, whether it runs, and how to go on.
fn notice(entry: &Entry, state: State, page: &Page) -> String {
    let id = &entry.meta.id;
    let gap = if page.text.is_empty() || page.text.ends_with(LINE_BREAKS) { "" } else { "\n" };
    let count = page.text.lines().count() as u64;
    let shown = match (page.first, page.lines) {
        (_, Some(0)) => "no output so far".to_owned(),
        (_, Some(lines)) if count == 0 => format!("nothing after line {lines} so far"),
        (Some(first), Some(lines)) => format!("lines {first}-{} of {lines}", first + count.saturating_sub(1)),
        (Some(first), None) => {
            format!("lines {first}-{} of {} bytes", first + count.saturating_sub(1), page.bytes)
        }
        (None, _) => format!(
            "the last {count} lines of {} bytes, too many to number; all of it in {}",
            page.bytes,
            entry.output().display()
        ),
    };
    let cut = match page.cut_line {
        true => format!("; a line was cut, whole in {}", entry.output().display()),
        false => String::new(),
    };
    let next = match page.next {
        Some(next) if state == State::Running || page.lines.is_none_or(|lines| next <= lines) => {
            format!("; next: process {}", json!({ "action": "output", "id": id, "offset": next }))
        }
        _ => String::new(),
    };
    format!("{gap}[{id} {state}; {shown}{cut}{next}]")
}

/// Reads the page. Blocks; stops early when cancelled.
fn read(
    path: &Path,
    offset: Option<u64>,
    limit: u64,
    budget: TextBudget,
    counted: u64,
    cancel: &CancellationToken,
) -> io::Result<Page> {
    let mut file = File::open(path)?;
    // The process prints on: nothing beyond this is looked at, else a fast one would never be caught up with.
    let bytes = file.metadata()?.len();
    let count = match offset {
        None if bytes > counted => Count { bytes, ..Count::default() },
        _ => count(&mut file, bytes, offset, counted, cancel)?,
    };
    let first_byte = match offset {
        Some(line) if count.offset_byte.is_none() && !count.whole => return Err(too_far(line, counted)),
        Some(_) => count.offset_byte.unwrap_or(bytes),
        None => bytes.saturating_sub(WINDOW_BYTES),
    };
    file.seek(SeekFrom::Start(first_byte))?;
    let mut raw = Vec::new();
    file.take(WINDOW_BYTES.min(bytes - first_byte)).read_to_end(&mut raw)?;
    Ok(match offset {
        Some(offset) => page_from(&raw, offset, &count, limit, budget),
        None => last_page(&raw, first_byte, &count, limit, budget),
    })
}

fn too_far(line: u64, counted: u64) -> io::Error {
    io::Error::other(format!(
        "line {line} is not in its first {counted} bytes, the most that is searched for a line; give no offset for the \
         last lines, or use bash with tail or sed on the file"
    ))
}

/// The lines from `offset` on, as many as fit.
fn page_from(raw: &[u8], offset: u64, count: &Count, limit: u64, budget: TextBudget) -> Page {
    let (lines, text) = (count.lines(), plain(raw));
    let first = lines.map_or(offset, |lines| offset.min(lines + 1));
    let bytes = count.bytes;
    let wanted = first_lines(&text, limit);
    let shown = budget.head(wanted);
    let Some(last_end) = shown.rfind('\n') else {
        // Not one whole line: the file's unfinished last one, which comes again when it is whole, or one too long.
        let cut_line = shown.len() < wanted.len() || raw.len() as u64 == WINDOW_BYTES;
        let next = Some(first + u64::from(cut_line));
        return Page { text: shown.to_owned(), first: Some(first), lines, next, bytes, cut_line };
    };
    let text = if shown.len() == text.len() { shown } else { &shown[..=last_end] };
    let next = first + text.matches('\n').count() as u64;
    Page { text: text.to_owned(), first: Some(first), lines, next: Some(next), bytes, cut_line: false }
}

/// The last lines, as many as fit.
fn last_page(raw: &[u8], first_byte: u64, count: &Count, limit: u64, budget: TextBudget) -> Page {
    // The window may begin inside a line; without any line end it is one long line.
    let begin = match raw.iter().position(|byte| *byte == b'\n') {
        Some(at) if first_byte > 0 => at + 1,
        _ => 0,
    };
    let text = plain(&raw[begin..]);
    let shown = budget.tail(last_lines(&text, limit));
    let before = &text[..text.len() - shown.len()];
    let cut_line = if before.is_empty() { first_byte > 0 && begin == 0 } else { !before.ends_with('\n') };
    let lines = count.lines();
    let first = lines.map(|lines| (lines + 1).saturating_sub(shown.lines().count() as u64));
    let next = lines.map(|_| count.line_ends + 1);
    Page { text: shown.to_owned(), first, lines, next, bytes: count.bytes, cut_line }
}

fn first_lines(text: &str, limit: u64) -> &str {
    let nth = usize::try_from(limit - 1).unwrap_or(usize::MAX);
    text.match_indices('\n').nth(nth).map_or(text, |(at, _)| &text[..=at])
}

fn last_lines(text: &str, limit: u64) -> &str {
    let nth = usize::try_from(limit - 1).unwrap_or(usize::MAX);
    let body = text.strip_suffix('\n').unwrap_or(text);
    body.rmatch_indices('\n').nth(nth).map_or(text, |(at, _)| &text[at + 1..])
}

/// Where lines are in a file.
#[derive(Debug, Default)]
struct Count {
    /// Bytes in all, counted or not.
    bytes: u64,
    /// Every line was counted.
    whole: bool,
    line_ends: u64,
    open_line: bool,
    /// Where the asked-for line begins; `None` when the file has no such line.
    offset_byte: Option<u64>,
}

impl Count {
    fn lines(&self) -> Option<u64> {
        self.whole.then_some(self.line_ends + u64::from(self.open_line))
    }
}

/// Counts the first `bytes` of `file`; when that is more than `counted`, only as far as line `offset` and at most so
/// many.
fn count(
    file: &mut File,
    bytes: u64,
    offset: Option<u64>,
    counted: u64,
    cancel: &CancellationToken,
) -> io::Result<Count> {
    let offset_byte = offset.filter(|line| *line == 1).map(|_| 0);
    let mut count = Count { bytes, whole: bytes <= counted, offset_byte, ..Count::default() };
    let mut reader = BufReader::with_capacity(READ_BYTES, file.take(bytes.min(counted)));
    let mut at = 0;
    while count.whole || count.offset_byte.is_none() {
        if cancel.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "cancelled"));
        }
        let chunk = reader.fill_buf()?;
        let Some(last) = chunk.last() else { break };
        count.open_line = *last != b'\n';
        let ends = memchr::memchr_iter(b'\n', chunk).count() as u64;
        // The asked-for line begins after the line end before it.
        let before = offset.map(|line| line - 1).filter(|n| *n > count.line_ends && *n <= count.line_ends + ends);
        if let Some(before) = before {
            let nth = usize::try_from(before - count.line_ends - 1).unwrap_or(usize::MAX);
            count.offset_byte = memchr::memchr_iter(b'\n', chunk).nth(nth).map(|end| at + end as u64 + 1);
        }
        count.line_ends += ends;
        let length = chunk.len();
        at += length as u64;
        reader.consume(length);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: TextBudget = TextBudget { bytes: 10_000, tokens: 10_000 };

    fn page(raw: &str, offset: Option<u64>, limit: u64, budget: TextBudget) -> Page {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::write(&path, raw).unwrap();
        read(&path, offset, limit, budget, COUNTED_BYTES, &CancellationToken::new()).unwrap()
    }

    fn seen(page: &Page) -> (&str, u64, u64, u64) {
        (&page.text, page.first.unwrap(), page.lines.unwrap(), page.next.unwrap())
    }

    #[test]
    fn of_a_file_too_long_to_count_only_what_is_asked_for_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::write(&path, (1..=1_000_000).map(|n| format!("{n}\n")).collect::<String>()).unwrap();
        // No process could print so much: a hole in the file. Counting it would take hours.
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        io::Write::write_all(&mut file, b"\nlast but one\nlast\n").unwrap();
        let at = |offset, limit| read(&path, offset, limit, WIDE, 1_000_000, &CancellationToken::new());
        let last = at(None, 2).unwrap();
        assert_eq!((last.text.as_str(), last.first, last.lines), ("last but one\nlast\n", None, None));
        assert_eq!((last.next, last.bytes), (None, (1 << 40) + 19));
        let early = at(Some(1_000), 2).unwrap();
        assert_eq!((early.text.as_str(), early.first, early.next), ("1000\n1001\n", Some(1_000), Some(1_002)));
        assert_eq!(early.lines, None);
        let error = at(Some(900_000), 2).unwrap_err().to_string();
        assert!(error.starts_with("line 900000 is not in its first 1000000 bytes"), "{error}");
    }

    #[test]
    fn the_last_lines_come_by_default() {
        assert_eq!(seen(&page("a\nb\nc\n", None, 2, WIDE)), ("b\nc\n", 2, 3, 4));
        assert_eq!(seen(&page("a\nb\nc", None, 2, WIDE)), ("b\nc", 2, 3, 3));
        assert_eq!(seen(&page("", None, 2, WIDE)), ("", 1, 0, 1));
    }

    #[test]
    fn an_offset_reads_forward_and_the_next_one_continues() {
        let raw: String = (1..=1000).map(|n| format!("line {n}\n")).collect();
        let small = TextBudget { bytes: 400, tokens: 400 };
        let (mut at, mut all) = (1, String::new());
        while at <= 1000 {
            let page = page(&raw, Some(at), 200, small);
            assert_eq!(page.first, Some(at));
            assert!(page.next > Some(at), "no progress at {at}");
            all.push_str(&page.text);
            at = page.next.unwrap();
        }
        assert_eq!(all, raw);
        assert_eq!(seen(&page(&raw, Some(1001), 5, WIDE)), ("", 1001, 1000, 1001));
        assert_eq!(seen(&page(&raw, Some(5000), 5, WIDE)), ("", 1001, 1000, 1001));
        assert_eq!(seen(&page(&raw, Some(999), 1, WIDE)), ("line 999\n", 999, 1000, 1000));
    }

    #[test]
    fn an_unfinished_line_is_shown_again_when_it_is_whole() {
        assert_eq!(seen(&page("a\nName? ", Some(1), 9, WIDE)), ("a\nName? ", 1, 2, 2));
        assert_eq!(seen(&page("a\nName? ", Some(2), 9, WIDE)), ("Name? ", 2, 2, 2));
    }

    #[test]
    fn a_line_longer_than_the_window_is_cut_and_passed() {
        let raw = format!("{}\nend\n", "x".repeat(200_000));
        let first = page(&raw, Some(1), 9, WIDE);
        assert_eq!((first.text.len(), first.next, first.cut_line), (10_000, Some(2), true));
        assert_eq!(seen(&page(&raw, Some(2), 9, WIDE)), ("end\n", 2, 2, 3));
        let last = page(&"x".repeat(200_000), None, 9, WIDE);
        assert_eq!((last.text.len(), last.first, last.cut_line), (10_000, Some(1), true));
    }

    #[test]
    fn lines_are_counted_across_reads() {
        let raw: String = (1..=100_000).map(|n| format!("{n:07}\n")).collect();
        assert_eq!(seen(&page(&raw, Some(77_777), 1, WIDE)), ("0077777\n", 77_777, 100_000, 77_778));
        assert_eq!(seen(&page(&raw, None, 1, WIDE)), ("0100000\n", 100_000, 100_000, 100_001));
    }
}
