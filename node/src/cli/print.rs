//! What people and scripts read on standard output. A reader that closes early is not an error of ours.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use super::Failure;
use crate::control::LogEntry;

/// One JSON value on one line.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|cause| Failure::Failed(cause.to_string()))?;
    raw(&format!("{text}\n"))
}

/// Text for people: on a terminal, control characters that could move the cursor or worse are replaced.
pub(super) fn text(text: &str) -> Result<(), Failure> {
    if io::stdout().is_terminal() { raw(&harmless(text)) } else { raw(text) }
}

/// Rows under a heading, columns as wide as their widest cell; nothing but `none` when there are no rows.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>], none: &str) -> Result<(), Failure> {
    if rows.is_empty() {
        return text(&format!("{none}\n"));
    }
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&heading).chain(rows).collect();
    let width =
        |column: usize| all.iter().map(|row: &&Vec<String>| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut out = String::new();
    for row in &all {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    text(&out)
}

/// One entry of a history, further lines indented under the first.
pub(super) fn entry(entry: &LogEntry) -> Result<(), Failure> {
    let body = entry.text.trim_end().replace('\n', "\n    ");
    text(&format!("{}  {}: {body}\n", entry.timestamp, entry.kind))
}

/// `text` without control characters other than line ends and tabs.
pub(super) fn harmless(text: &str) -> String {
    let keep = |c: char| c == '\n' || c == '\t' || !c.is_control();
    text.chars().map(|c| if keep(c) { c } else { '\u{fffd}' }).collect()
}

fn raw(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_steer_a_terminal_is_replaced() {
        assert_eq!(harmless("a\tb\n\u{1b}[2Jc\u{9b}d\re"), "a\tb\n\u{fffd}[2Jc\u{fffd}d\u{fffd}e");
        assert_eq!(harmless("Grüße 漢字"), "Grüße 漢字");
    }
}
