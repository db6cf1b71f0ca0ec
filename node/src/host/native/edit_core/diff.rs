//! What an edit changed, in the form of a unified diff without context, for an answer. Pure.

use std::ops::Range;

use super::{Change, splice};
use crate::{
    budget::TextBudget,
    host::native::text::{line_at, shown, whole_lines},
};

/// Longer lines are shown around what changed in them.
const LINE: usize = 240;

/// Bytes shown on each side of a change within a long line.
const AROUND: usize = 60;

/// Most lines of one side of one hunk.
const LINES: usize = 40;

/// Shows `changes` of `original` as far as `budget` allows.
#[must_use]
pub fn diff(original: &[u8], changes: &[Change], budget: TextBudget) -> String {
    let (mut diff, mut left) = (String::new(), budget.minus(MORE));
    let hunks = hunks(original, changes);
    let count = hunks.len();
    for (index, (lines, changes)) in hunks.into_iter().enumerate() {
        let hunk = show(original, lines, changes);
        if !left.fits(&hunk) {
            if index == 0 {
                diff.push_str(left.head(&hunk));
            }
            if !budget.is_spent() {
                diff.push_str(MORE.replace("{}", &(count - index).to_string()).as_str());
            }
            break;
        }
        left = left.minus(&hunk);
        diff.push_str(&hunk);
    }
    diff
}

/// Closes a diff that was cut.
const MORE: &str = "… ({} more places changed, not shown)\n";

/// Changes that share lines, with those lines.
fn hunks<'c>(original: &[u8], changes: &'c [Change]) -> Vec<(Range<usize>, &'c [Change])> {
    let mut hunks: Vec<(Range<usize>, &[Change])> = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let lines = whole_lines(original, change.range.clone());
        match hunks.last_mut() {
            Some((last, members)) if lines.start < last.end => {
                last.end = last.end.max(lines.end);
                *members = &changes[index - members.len()..=index];
            }
            _ => hunks.push((lines, &changes[index..=index])),
        }
    }
    hunks
}

fn show(original: &[u8], lines: Range<usize>, changes: &[Change]) -> String {
    let old = &original[lines.clone()];
    let moved: Vec<_> = changes
        .iter()
        .map(|change| {
            let range = change.range.start - lines.start..change.range.end - lines.start;
            Change { range, new: change.new.clone() }
        })
        .collect();
    let new = splice(old, &moved);
    let (old, new) = (shown(old), shown(&new));
    let mut hunk = format!("@@ line {} @@\n", line_at(original, lines.start));
    let is_long = |text: &str| text.lines().any(|line| line.len() > LINE);
    if is_long(&old) || is_long(&new) {
        let (before, after) = (common(old.chars(), new.chars()), common(old.chars().rev(), new.chars().rev()));
        side(&mut hunk, '-', &excerpt(&old, before, after));
        side(&mut hunk, '+', &excerpt(&new, before, after));
    } else {
        side(&mut hunk, '-', &old);
        side(&mut hunk, '+', &new);
    }
    hunk
}

/// Bytes of the characters that both begin with.
fn common(one: impl Iterator<Item = char>, other: impl Iterator<Item = char>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).map(|(c, _)| c.len_utf8()).sum()
}

/// `text` without most of what is common to both sides: `before` bytes at its beginning, `after` at its end.
fn excerpt(text: &str, before: usize, after: usize) -> String {
    let mut start = before.min(text.len()).saturating_sub(AROUND);
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = text.len() - after.min(text.len() - before.min(text.len())).saturating_sub(AROUND);
    while !text.is_char_boundary(end) {
        end += 1;
    }
    let (left, right) = (if start > 0 { "…" } else { "" }, if end < text.len() { "…" } else { "" });
    format!("{left}{}{right}", &text[start..end])
}

fn side(hunk: &mut String, sign: char, text: &str) {
    for (index, line) in text.lines().enumerate() {
        hunk.push(sign);
        if index == LINES {
            hunk.push_str(&format!("… {} more lines\n", text.lines().count() - LINES));
            break;
        }
        match line.char_indices().nth(LINE) {
            Some((end, _)) => {
                hunk.push_str(&line[..end]);
                hunk.push('…');
            }
            None => hunk.push_str(line),
        }
        hunk.push('\n');
    }
}
