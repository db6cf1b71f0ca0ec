//! Shows a part of a process's output file: its last lines, or those from a line on. Memory stays bounded whatever the
//! file's size; the file is read once, to count its lines.

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

/// One read while counting.
const READ_BYTES: usize = 256 * 1024;

/// A part of the file.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    /// As [`plain`] made it: its lines are those of the file.
    text: String,
    /// Number of the first line shown, from 1.
    first: u64,
    /// Lines in all, the last one counted also without its line end.
    lines: u64,
    /// The line with which to go on: the one after the last whole line shown.
    next: u64,
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
    let page = blocking(move || read(&file, offset, limit.unwrap_or(LINES_DEFAULT), budget, &cancel)).await?;
    let page = page.map_err(|cause| format!("{}: the output of {}: {cause}", path.display(), entry.meta.id))?;
    let notice = notice(&entry, state, &page);
    let text = format!("{}{notice}", broken(page.text));
    let mut details = details(&entry, state);
    details["lines"] = json!(page.lines);
    details["nextOffset"] = json!(page.next);
    details["fullOutput"] = json!(path.to_string_lossy());
    Ok(ToolOutput::text(text).with_details(details))
}

impl Page {
    /// No page says more about itself.
    const LONGEST_NOTICE: Self =
        Self { text: String::new(), first: 1 << 40, lines: 1 << 40, next: 1 << 40, cut_line: true };
}

/// What is shown, whether it runs, and how to go on.
fn notice(entry: &Entry, state: State, page: &Page) -> String {
    let id = &entry.meta.id;
    let gap = if page.text.is_empty() || page.text.ends_with(LINE_BREAKS) { "" } else { "\n" };
    let count = page.text.lines().count() as u64;
    let shown = match count {
        _ if page.lines == 0 => "no output so far".to_owned(),
        0 => format!("nothing after line {} so far", page.lines),
        count => format!("lines {}-{} of {}", page.first, page.first + count - 1, page.lines),
    };
    let cut = match page.cut_line {
        true => format!("; a line was cut, whole in {}", entry.output().display()),
        false => String::new(),
    };
    let next = match state == State::Running || page.next <= page.lines {
        true => format!("; next: process {}", json!({ "action": "output", "id": id, "offset": page.next })),
        false => String::new(),
    };
    format!("{gap}[{id} {state}; {shown}{cut}{next}]")
}

/// Reads the page. Blocks; stops early when cancelled.
fn read(
    path: &Path,
    offset: Option<u64>,
    limit: u64,
    budget: TextBudget,
    cancel: &CancellationToken,
) -> io::Result<Page> {
    let mut file = File::open(path)?;
    let count = count(&mut file, offset, cancel)?;
    let first_byte = match offset {
        Some(_) => count.offset_byte.unwrap_or(count.bytes),
        None => count.bytes.saturating_sub(WINDOW_BYTES),
    };
    file.seek(SeekFrom::Start(first_byte))?;
    let mut raw = Vec::new();
    file.take(WINDOW_BYTES).read_to_end(&mut raw)?;
    // Not beyond what was counted: the process prints on.
    raw.truncate(usize::try_from(count.bytes - first_byte).unwrap_or(usize::MAX));
    Ok(match offset {
        Some(offset) => page_from(&raw, offset, &count, limit, budget),
        None => last_page(&raw, first_byte, &count, limit, budget),
    })
}

/// The lines from `offset` on, as many as fit.
fn page_from(raw: &[u8], offset: u64, count: &Count, limit: u64, budget: TextBudget) -> Page {
    let (lines, text) = (count.lines(), plain(raw));
    let first = offset.min(lines + 1);
    let wanted = first_lines(&text, limit);
    let shown = budget.head(wanted);
    let Some(last_end) = shown.rfind('\n') else {
        // Not one whole line: the file's unfinished last one, which comes again when it is whole, or one too long.
        let cut_line = shown.len() < wanted.len() || raw.len() as u64 == WINDOW_BYTES;
        return Page { text: shown.to_owned(), first, lines, next: first + u64::from(cut_line), cut_line };
    };
    let text = if shown.len() == text.len() { shown } else { &shown[..=last_end] };
    let next = first + text.matches('\n').count() as u64;
    Page { text: text.to_owned(), first, lines, next, cut_line: false }
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
    let first = (lines + 1).saturating_sub(shown.lines().count() as u64);
    Page { text: shown.to_owned(), first, lines, next: count.line_ends + 1, cut_line }
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
    bytes: u64,
    line_ends: u64,
    open_line: bool,
    /// Where the asked-for line begins; `None` when the file has no such line.
    offset_byte: Option<u64>,
}

impl Count {
    const fn lines(&self) -> u64 {
        self.line_ends + self.open_line as u64
    }
}

fn count(file: &mut File, offset: Option<u64>, cancel: &CancellationToken) -> io::Result<Count> {
    let mut count = Count { offset_byte: offset.filter(|line| *line == 1).map(|_| 0), ..Count::default() };
    let mut reader = BufReader::with_capacity(READ_BYTES, file);
    loop {
        if cancel.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "cancelled"));
        }
        let chunk = reader.fill_buf()?;
        let Some(last) = chunk.last() else { return Ok(count) };
        count.open_line = *last != b'\n';
        let ends = chunk.iter().filter(|byte| **byte == b'\n').count() as u64;
        // The asked-for line begins after the line end before it.
        let before = offset.map(|line| line - 1).filter(|n| *n > count.line_ends && *n <= count.line_ends + ends);
        if let Some(before) = before {
            let nth = usize::try_from(before - count.line_ends - 1).unwrap_or(usize::MAX);
            let at = chunk.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(nth);
            count.offset_byte = at.map(|(at, _)| count.bytes + at as u64 + 1);
        }
        count.line_ends += ends;
        count.bytes += chunk.len() as u64;
        let length = chunk.len();
        reader.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: TextBudget = TextBudget { bytes: 10_000, tokens: 10_000 };

    fn page(raw: &str, offset: Option<u64>, limit: u64, budget: TextBudget) -> Page {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::write(&path, raw).unwrap();
        read(&path, offset, limit, budget, &CancellationToken::new()).unwrap()
    }

    fn seen(page: &Page) -> (&str, u64, u64, u64) {
        (&page.text, page.first, page.lines, page.next)
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
            assert_eq!(page.first, at);
            assert!(page.next > at, "no progress at {at}");
            all.push_str(&page.text);
            at = page.next;
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
        assert_eq!((first.text.len(), first.next, first.cut_line), (10_000, 2, true));
        assert_eq!(seen(&page(&raw, Some(2), 9, WIDE)), ("end\n", 2, 2, 3));
        let last = page(&"x".repeat(200_000), None, 9, WIDE);
        assert_eq!((last.text.len(), last.first, last.cut_line), (10_000, 1, true));
    }

    #[test]
    fn lines_are_counted_across_reads() {
        let raw: String = (1..=100_000).map(|n| format!("{n:07}\n")).collect();
        assert_eq!(seen(&page(&raw, Some(77_777), 1, WIDE)), ("0077777\n", 77_777, 100_000, 77_778));
        assert_eq!(seen(&page(&raw, None, 1, WIDE)), ("0100000\n", 100_000, 100_000, 100_001));
    }
}
