//! What an edit makes of a file's bytes: every `oldText` is found exactly once in the original and replaced, or nothing
//! is. Pure.
//!
//! Works on bytes, so what no edit names stays as it is, whatever the encoding. In a file that has CRLF line ends an LF
//! of `oldText` also matches a CRLF, and an LF of `newText` takes the line end of the place it goes to. An `oldText` that
//! holds a CR itself is matched, and its `newText` taken, byte for byte. There are no patterns and no placeholders.

mod diff;
mod hint;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, ops::Range};

use memchr::memmem;

pub use self::diff::diff;
use super::text::{self, Form, line_at};

/// One replacement as the caller gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Text that stands once in the file.
    pub old: String,
    /// Text that takes its place.
    pub new: String,
}

/// One replacement as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The replaced bytes of the original.
    pub range: Range<usize>,
    /// What takes their place.
    pub new: Vec<u8>,
}

/// What an edit makes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// The whole new content.
    pub content: Vec<u8>,
    /// What was replaced, in the order of the file, without overlap.
    pub changes: Vec<Change>,
}

/// Why an edit was refused. `edit` is the place in the caller's list, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// It would match everywhere.
    #[error("edits[{edit}].oldText is empty; give the text to replace (`write` makes a file or replaces all of it)")]
    Empty {
        /// Which.
        edit: usize,
    },
    /// It says nothing.
    #[error("edits[{edit}] changes nothing: its oldText and newText are the same")]
    Same {
        /// Which.
        edit: usize,
    },
    /// Not in the file.
    #[error("edits[{edit}].oldText is not in the file. {hint}")]
    NotFound {
        /// Which.
        edit: usize,
        /// What comes closest, and what to do.
        hint: String,
    },
    /// In the file more than once.
    #[error(
        "edits[{edit}].oldText stands in {places} places (lines {lines}), overlapping ones counted; it must stand in one: \
         add lines around it until only one place matches"
    )]
    Ambiguous {
        /// Which.
        edit: usize,
        /// How many, or more than as many as were counted.
        places: String,
        /// The first few.
        lines: String,
    },
    /// Two replacements want the same bytes.
    #[error("edits[{first}] and edits[{second}] overlap at line {line}; make one edit of them")]
    Overlap {
        /// One.
        first: usize,
        /// The other.
        second: usize,
        /// Where.
        line: usize,
    },
    /// Not a text that edits can work on.
    #[error("the file is {0}, which text replacements would damage; change it with `bash` and a program made for it")]
    NoText(&'static str),
    /// The new text's bytes would not be what they are in this file.
    #[error(
        "the file is not UTF-8 (perhaps Latin-1 or Windows-1252), and edits[{edit}].newText has characters beyond ASCII, \
         whose bytes differ there; keep newText to ASCII, or convert the file first (iconv)"
    )]
    Encoding {
        /// Which.
        edit: usize,
    },
    /// The caller sent back a mark that `read` showed for bytes it could not.
    #[error(
        "edits[{edit}].newText holds \u{fffd}, which `read` shows for bytes that are not UTF-8; it would replace those \
         bytes for good. Choose oldText and newText without it"
    )]
    Replacement {
        /// Which.
        edit: usize,
    },
}

/// Applies `edits` to `original`, all of them or none; each is looked for in the original, not in what others made of it.
///
/// # Errors
/// See [`EditError`].
pub fn edit(original: &[u8], edits: &[Replacement]) -> Result<Edited, EditError> {
    match text::form(original) {
        Form::Text { .. } => {}
        Form::Wide(name) => return Err(EditError::NoText(name)),
        Form::Binary => return Err(EditError::NoText("binary")),
    }
    let body = Body::of(original);
    let mut found = Vec::with_capacity(edits.len());
    for (index, replacement) in edits.iter().enumerate() {
        found.push((index, body.change(index, replacement)?));
    }
    found.sort_by_key(|(_, change)| change.range.start);
    for pair in found.windows(2) {
        let [(first, before), (second, after)] = pair else { continue };
        if after.range.start < before.range.end {
            let line = line_at(original, after.range.start);
            let (first, second) = (*first.min(second), *first.max(second));
            return Err(EditError::Overlap { first, second, line });
        }
    }
    let changes: Vec<_> = found.into_iter().map(|(_, change)| change).collect();
    Ok(Edited { content: splice(original, &changes), changes })
}

/// `original` with `changes`, which are in order and apart, applied.
fn splice(original: &[u8], changes: &[Change]) -> Vec<u8> {
    let grown: usize = changes.iter().map(|change| change.new.len()).sum();
    let mut content = Vec::with_capacity(original.len() + grown);
    let mut at = 0;
    for change in changes {
        content.extend_from_slice(&original[at..change.range.start]);
        content.extend_from_slice(&change.new);
        at = change.range.end;
    }
    content.extend_from_slice(&original[at..]);
    content
}

/// A file in the two forms that are searched.
struct Body<'a> {
    /// As it is.
    raw: &'a [u8],
    /// With LF for every CRLF, when there are any.
    plain: Option<Plain>,
    /// Where the text begins: after the byte order mark, which no edit takes away.
    start: usize,
    encoding: Encoding,
}

impl<'a> Body<'a> {
    fn of(raw: &'a [u8]) -> Self {
        let start = raw.len() - text::without_bom(raw).len();
        Self { raw, plain: Plain::of(raw), start, encoding: Encoding::of(raw) }
    }

    fn change(&self, edit: usize, replacement: &Replacement) -> Result<Change, EditError> {
        let Replacement { old, new } = replacement;
        if old.is_empty() {
            return Err(EditError::Empty { edit });
        }
        if old == new {
            return Err(EditError::Same { edit });
        }
        match self.encoding {
            Encoding::OneByte if !new.is_ascii() => return Err(EditError::Encoding { edit }),
            // What `read` shows in place of foreign bytes, sent back.
            Encoding::Damaged if new.contains('\u{fffd}') => return Err(EditError::Replacement { edit }),
            _ => {}
        }
        let (old, new) = (self.without_mark(old), self.without_mark(new));
        let range = self.find(edit, old)?;
        let new = match &self.plain {
            Some(_) if !old.contains('\r') => with_line_ends(new, self.raw, &range),
            _ => Cow::Borrowed(new.as_bytes()),
        };
        if *new == self.raw[range.clone()] {
            return Err(EditError::Same { edit });
        }
        Ok(Change { range, new: new.into_owned() })
    }

    /// The mark is no part of the text: a caller that saw it may name it or not.
    fn without_mark<'t>(&self, text: &'t str) -> &'t str {
        if self.start == 0 { text } else { text.strip_prefix('\u{feff}').unwrap_or(text) }
    }

    /// The one place of `old`, in bytes of the raw file.
    fn find(&self, edit: usize, old: &str) -> Result<Range<usize>, EditError> {
        if old.is_empty() {
            return Err(EditError::Empty { edit });
        }
        let (places, to_raw): (_, &dyn Fn(usize) -> usize) = match &self.plain {
            Some(plain) if !old.contains('\r') => (places(&plain.bytes, self.start, old), &|at| plain.raw(at)),
            _ => (places(self.raw, self.start, old), &|at| at),
        };
        match *places {
            [] => Err(EditError::NotFound { edit, hint: hint::hint(self.raw, old) }),
            [start] => Ok(to_raw(start)..to_raw(start + old.len())),
            _ => {
                let lines: Vec<_> = places.iter().take(LINES_NAMED).map(|at| line_at(self.raw, to_raw(*at))).collect();
                let more = if places.len() > LINES_NAMED { ", …" } else { "" };
                let lines = lines.iter().map(usize::to_string).collect::<Vec<_>>().join(", ") + more;
                let counted = places.len();
                let places = if counted > COUNTED { format!("more than {COUNTED}") } else { counted.to_string() };
                Err(EditError::Ambiguous { edit, places, lines })
            }
        }
    }
}

/// How many places of a text are counted before "more than" does: each costs a search.
const COUNTED: usize = 100;

/// How many lines a refusal names.
const LINES_NAMED: usize = 5;

/// Where `old` stands in `bytes` from `start` on, overlapping places too, at most one more than [`COUNTED`].
fn places(bytes: &[u8], start: usize, old: &str) -> Vec<usize> {
    let finder = memmem::Finder::new(old);
    let mut places = Vec::new();
    let mut from = start;
    while let Some(found) = finder.find(&bytes[from..]) {
        places.push(from + found);
        from += found + 1;
        if places.len() > COUNTED {
            break;
        }
    }
    places
}

/// A file's bytes with LF for CRLF, and the way back.
struct Plain {
    bytes: Vec<u8>,
    /// Where in `bytes` the line feeds stand that had a CR before them.
    crlf: Vec<usize>,
}

impl Plain {
    fn of(raw: &[u8]) -> Option<Self> {
        let mut ends = memmem::find_iter(raw, b"\r\n").peekable();
        ends.peek()?;
        let (mut bytes, mut crlf, mut at) = (Vec::with_capacity(raw.len()), Vec::new(), 0);
        for end in ends {
            bytes.extend_from_slice(&raw[at..end]);
            crlf.push(bytes.len());
            at = end + 1;
        }
        bytes.extend_from_slice(&raw[at..]);
        Some(Self { bytes, crlf })
    }

    /// The place in the file of the place `at` here; before the CR when `at` is such a line feed.
    fn raw(&self, at: usize) -> usize {
        at + self.crlf.partition_point(|end| *end < at)
    }
}

/// `new` with the line ends of the place it goes to: those of the replaced text in their order, the last of them for
/// further lines; where it had none, that of the line it ended in, else that of the line before.
fn with_line_ends<'n>(new: &'n str, raw: &[u8], range: &Range<usize>) -> Cow<'n, [u8]> {
    let is_crlf = |newline: usize| newline > 0 && raw[newline - 1] == b'\r';
    let mut ends: Vec<bool> =
        memchr::memchr_iter(b'\n', &raw[range.clone()]).map(|at| is_crlf(range.start + at)).collect();
    if ends.is_empty() {
        let after = memchr::memchr(b'\n', &raw[range.end..]).map(|at| range.end + at);
        let near = after.or_else(|| memchr::memrchr(b'\n', &raw[..range.start]));
        ends.push(near.is_some_and(is_crlf));
    }
    if !ends.contains(&true) {
        return Cow::Borrowed(new.as_bytes());
    }
    let mut bytes = Vec::with_capacity(new.len() + new.len() / 16);
    let mut line = 0;
    for byte in new.bytes() {
        if byte == b'\n' {
            if ends[line.min(ends.len() - 1)] && !bytes.ends_with(b"\r") {
                bytes.push(b'\r');
            }
            line += 1;
        }
        bytes.push(byte);
    }
    Cow::Owned(bytes)
}

/// What characters beyond ASCII are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Utf8,
    /// UTF-8 with some bytes that are not.
    Damaged,
    /// One byte for each character, as Latin-1 has it.
    OneByte,
}

impl Encoding {
    fn of(bytes: &[u8]) -> Self {
        let (mut foreign, mut multibyte) = (false, false);
        for chunk in bytes.utf8_chunks() {
            foreign |= !chunk.invalid().is_empty();
            multibyte |= !chunk.valid().is_ascii();
        }
        match (foreign, multibyte) {
            (false, _) => Self::Utf8,
            (true, true) => Self::Damaged,
            (true, false) => Self::OneByte,
        }
    }
}
