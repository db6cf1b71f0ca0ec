//! Words what the searcher finds, inside limit and budget.

use std::io;

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkFinish, SinkMatch};

use crate::host::native::{plain, walk::Listing};

/// Characters shown of a line, as in Pi; what is left out is counted.
const LINE_CHARS_MAX: usize = 500;

/// Characters shown before a match that stands far into a long line.
const BEFORE_CHARS: usize = 100;

/// What was found in all files so far.
pub(super) struct Found {
    listing: Listing,
    path: String,
    matches: u64,
    limit: u64,
    /// More was found than may be shown.
    more: bool,
    cut_lines: bool,
    binary_at: Option<u64>,
    /// A gap between two groups of context lines is to be marked before the next line.
    gap: bool,
}

impl Found {
    pub(super) const fn new(listing: Listing, limit: u64) -> Self {
        Self {
            listing,
            path: String::new(),
            matches: 0,
            limit,
            more: false,
            cut_lines: false,
            binary_at: None,
            gap: false,
        }
    }

    /// The next file, as it is shown.
    pub(super) fn begin(&mut self, path: String) {
        self.path = path;
        self.binary_at = None;
    }

    pub(super) const fn sink<'a>(&'a mut self, matcher: &'a RegexMatcher) -> FileSink<'a> {
        FileSink { found: self, matcher, number: 0 }
    }

    /// Nothing more will be shown.
    pub(super) const fn is_over(&self) -> bool {
        self.more || self.listing.is_full()
    }

    /// Where the last file turned out to be binary.
    pub(super) const fn binary_at(&self) -> Option<u64> {
        self.binary_at
    }

    /// The answer; `notices` come last.
    pub(super) fn finish(self, notices: &str) -> String {
        let mut said = String::new();
        if self.listing.is_full() {
            said = format!(
                "[cut: {} matching lines shown, more did not fit; narrow path, glob or pattern]\n",
                self.matches
            );
        } else if self.more {
            said = format!(
                "[limit of {} matching lines reached, there are more; narrow path, glob or pattern, or raise limit]\n",
                self.limit
            );
        } else if self.matches == 0 {
            said = "no matches\n".to_owned();
        }
        if self.cut_lines {
            said.push_str("[long lines are cut; read shows them whole]\n");
        }
        said.push_str(notices);
        self.listing.finish(&said)
    }

    fn line(&mut self, number: Option<u64>, mark: char, text: &str) -> bool {
        if std::mem::take(&mut self.gap) && !self.listing.is_empty() && !self.listing.push("--") {
            return false;
        }
        let number = number.unwrap_or_default();
        self.listing.push(&format!("{}{mark}{number}{mark} {text}", self.path))
    }
}

/// One file's search.
pub(super) struct FileSink<'a> {
    found: &'a mut Found,
    matcher: &'a RegexMatcher,
    /// Matches in this file.
    number: u64,
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        if self.found.matches == self.found.limit {
            self.found.more = true;
            return Ok(false);
        }
        let at = self.matcher.find(found.bytes()).ok().flatten().map_or(0, |found| found.start());
        let (text, cut) = window(found.bytes(), at);
        if !self.found.line(found.line_number(), ':', &text) {
            return Ok(false);
        }
        self.found.cut_lines |= cut;
        self.found.matches += 1;
        self.number += 1;
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let (text, cut) = window(context.bytes(), 0);
        self.found.cut_lines |= cut;
        Ok(self.found.line(context.line_number(), '-', &text))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.found.gap = true;
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, offset: u64) -> io::Result<bool> {
        self.found.binary_at = Some(offset);
        Ok(true)
    }

    fn finish(&mut self, searcher: &Searcher, _: &SinkFinish) -> io::Result<()> {
        self.found.gap = self.number > 0 && searcher.after_context() > 0;
        Ok(())
    }
}

/// The part of `line` that is shown, with the match at byte `at` in it, and whether anything was left out.
fn window(line: &[u8], at: usize) -> (String, bool) {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let before = plain::visible_line(&line[..at.min(line.len())]);
    let after = plain::visible_line(&line[at.min(line.len())..]);
    let (before_chars, after_chars) = (before.chars().count(), after.chars().count());
    if before_chars + after_chars <= LINE_CHARS_MAX {
        return (before + &after, false);
    }
    // From the beginning when the match is near it, else from shortly before the match.
    let skipped = if before_chars < LINE_CHARS_MAX - BEFORE_CHARS { 0 } else { before_chars - BEFORE_CHARS };
    let shown: String = before.chars().chain(after.chars()).skip(skipped).take(LINE_CHARS_MAX).collect();
    let left = before_chars + after_chars - skipped - shown.chars().count();
    let begin = if skipped > 0 { format!("[{skipped} characters]…") } else { String::new() };
    let end = if left > 0 { format!("…[{left} characters]") } else { String::new() };
    (format!("{begin}{shown}{end}"), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_shows_the_part_with_the_match() {
        assert_eq!(window(b"short\r\n", 3), ("short".into(), false));
        let line = format!("{}needle{}", "a".repeat(2_000), "b".repeat(2_000));
        let (text, cut) = window(line.as_bytes(), 2_000);
        assert!(cut);
        assert!(text.starts_with("[1900 characters]…a") && text.ends_with("b…[1606 characters]"), "{text}");
        assert!(text.contains("aneedleb"));
        let (text, _) = window("é".repeat(600).as_bytes(), 0);
        assert_eq!(text, format!("{}…[100 characters]", "é".repeat(500)));
    }
}
