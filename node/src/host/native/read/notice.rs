//! What a page says about itself: what is left out and which call reads on, and what its text does not show. Pure.

use memchr::memchr;

use super::{
    super::text::{self, LineEnds},
    gather::Rest,
    layout::{Page, Place},
};
use crate::budget::TextBudget;

/// The notices of one page. Each is a line in brackets below the text.
pub(super) struct Notices {
    /// The path as an argument of the call that reads on.
    path: String,
    limit: Option<u64>,
    lines: Vec<String>,
    /// Whether the answer has so little room that only the shortest notice is given.
    is_terse: bool,
}

/// A longer path is not repeated in a notice.
const PATH: usize = 400;

/// An answer with less room than this for text gets the shortest notices.
const ROOMY: usize = 2_048;

impl Notices {
    pub(super) fn new(given: &str, limit: Option<u64>, budget: TextBudget) -> Self {
        let path =
            if given.len() <= PATH { serde_json::Value::from(given).to_string() } else { "<the same>".to_owned() };
        Self { path, limit, lines: Vec::new(), is_terse: budget.bytes < ROOMY || budget.tokens < ROOMY / 4 }
    }

    pub(super) fn add(&mut self, line: Option<String>) {
        if !self.is_terse {
            self.lines.extend(line.map(|line| format!("[{line}]")));
        }
    }

    /// Says what the text of a page with these bytes does not show.
    pub(super) fn add_form(&mut self, bytes: &[u8], start: Place) {
        let is_begin = start == Place { line: 1, column: 1 };
        if is_begin && bytes.starts_with(text::BOM) {
            self.add(Some("Begins with a UTF-8 byte order mark, not shown; edit keeps it".to_owned()));
        }
        let ends = LineEnds::of(bytes);
        if is_begin && ends.crlf > 0 {
            let kind = if ends.lf > 0 { "mixed, CRLF and LF," } else { "CRLF," };
            self.add(Some(format!("Line ends are {kind} shown as LF; edit keeps them")));
        }
        let whole = if start.column > 1 { super::without_cut_character(bytes) } else { bytes };
        if !text::is_utf8_beginning(whole) {
            if self.is_terse {
                self.lines.push("[not UTF-8]".to_owned());
            }
            let line = "Not UTF-8 (perhaps Latin-1 or Windows-1252): \u{fffd} stands for bytes that are no text. edit \
                        changes only the bytes it names; keep its oldText and newText to ASCII";
            self.add(Some(line.to_owned()));
        }
    }

    /// What these notices leave of `budget` for the text; with a file's size, also one that says where to read on.
    pub(super) fn room(&self, budget: TextBudget, cut: Option<u64>) -> TextBudget {
        let mut left = budget;
        for line in &self.lines {
            left = left.minus(line).minus("\n");
        }
        match cut {
            // A line end of its own before the first.
            _ if self.lines.is_empty() && cut.is_none() => left,
            None => left.minus("\n"),
            Some(size) => {
                // No line or column lies beyond the size, unless the file grows meanwhile or the system makes it up.
                let most = size.max(9_999_999);
                let far = Place { line: most, column: most };
                left.minus("\n").minus(&self.cut(far, most, far, Some((most + 1, most)), size))
            }
        }
    }

    /// Says where `page`, which began at `start` and shows the first of `bytes`, was cut; nothing at the file's end.
    pub(super) fn add_cut(&mut self, page: &Page, start: Place, bytes: &[u8], rest: Option<Rest>, size: u64) {
        let Some(next) = page.next else { return };
        let behind = &bytes[page.taken..];
        let counted = rest.map(|rest| {
            let to_line_end = memchr(b'\n', behind).map_or(behind.len() as u64 + rest.line_bytes, |at| at as u64);
            (rest.lines, next.column - 1 + to_line_end)
        });
        self.lines.push(self.cut(start, page.last, next, counted, size));
    }

    /// `counted`: lines of the file, and bytes of the line that `next` is in.
    fn cut(&self, start: Place, last: u64, next: Place, counted: Option<(u64, u64)>, size: u64) -> String {
        let call = self.call(next);
        if self.is_terse {
            return format!("[cut; {call}]");
        }
        let lines = match counted {
            Some((1, _)) => "1 line".to_owned(),
            Some((lines, _)) => format!("{lines} lines"),
            None => "an uncounted number of lines".to_owned(),
        };
        // Files made up by the system have no size.
        let of = if size == 0 { lines } else { format!("{lines} and {size} bytes") };
        let from =
            if start.column > 1 { format!(" (line {} from byte {})", start.line, start.column) } else { String::new() };
        if next.column > 1 {
            let bytes = counted.map_or_else(String::new, |(_, bytes)| format!(" of {bytes}"));
            let below = match counted {
                Some((lines, _)) if next.line >= lines => String::new(),
                _ => format!(". Next line: {}", self.call(Place { line: next.line.saturating_add(1), column: 1 })),
            };
            return format!(
                "[Line {} is cut after byte {}{bytes}{from}; the file has {of}. Read on: {call}{below}]",
                next.line,
                next.column - 1
            );
        }
        format!("[Lines {}-{last} shown{from}; the file has {of}. Read on: {call}]", start.line)
    }

    fn call(&self, next: Place) -> String {
        let mut arguments = if self.is_terse { String::new() } else { format!("\"path\":{},", self.path) };
        arguments.push_str(&format!("\"offset\":{}", next.line));
        if next.column > 1 {
            arguments.push_str(&format!(",\"column\":{}", next.column));
        }
        if let Some(limit) = self.limit {
            arguments.push_str(&format!(",\"limit\":{limit}"));
        }
        format!("read {{{arguments}}}")
    }

    /// `text` with the notices below it.
    pub(super) fn close(self, mut text: String) -> String {
        if !self.lines.is_empty() && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text + &self.lines.join("\n")
    }
}
