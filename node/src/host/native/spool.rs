//! Takes in a command's output of any size in bounded memory: the beginning, the end and the counts stay here, the whole
//! goes to a file as soon as it is more than the beginning. [`Spool::finish`] makes the text for the model.
//!
//! Writes block: callers on an async thread move a spool that [`Spool::writes`] to a blocking one.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    group::file_name,
    plain::{LINE_BREAKS, broken, plain},
};
use crate::budget::TextBudget;

/// Bytes of the beginning kept in memory; output up to this size makes no file unless the answer must cut it. Several
/// times an answer's whole text, because escape sequences go.
const HEAD_BYTES: usize = 64 * 1024;

/// Bytes of the end kept in memory.
const TAIL_BYTES: usize = 64 * 1024;

/// What one call may put on disk. A command that prints without end must not fill the disk; what it prints beyond this
/// is counted and its end shown, but not kept.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// The beginning gets one part in so many of a cut answer: a command's end (errors, summaries) tells more.
const HEAD_SHARE: usize = 3;

/// Output being taken in.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    name: String,
    head: Vec<u8>,
    /// What followed the head, cut at the front to [`TAIL_BYTES`] whenever it reaches twice that.
    tail: Vec<u8>,
    file: Option<(File, PathBuf)>,
    /// Bytes in the file.
    kept: u64,
    /// Why the file is not whole.
    trouble: Option<String>,
    bytes: u64,
    line_ends: u64,
    open_line: bool,
    file_bytes_max: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The text for the model, inside the budget: the whole or head, notice and tail.
    pub(super) text: String,
    /// Lines in all as `read` counts them, by `\n`; the last one counted also without its line end.
    pub(super) lines: u64,
    /// Bytes in all.
    pub(super) bytes: u64,
    /// The file of the full output; only when the text does not hold it whole and the file could be kept.
    pub(super) full_output: Option<PathBuf>,
    /// Whether the text was cut.
    pub(super) cut: bool,
}

impl Spool {
    /// An empty spool whose file, if one is needed, is `folder/name`.
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            name: file_name(name),
            head: Vec::new(),
            tail: Vec::new(),
            file: None,
            kept: 0,
            trouble: None,
            bytes: 0,
            line_ends: 0,
            open_line: false,
            file_bytes_max: FILE_BYTES_MAX,
        }
    }

    /// Whether nothing came.
    pub(super) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether taking in `more` bytes touches the disk.
    pub(super) fn writes(&self, more: usize) -> bool {
        self.head.len() + more > HEAD_BYTES
    }

    /// Takes in what came next. Never fails: trouble with the file is told at the end.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let Some(last) = chunk.last() else { return };
        self.bytes += chunk.len() as u64;
        self.line_ends += count_line_ends(chunk);
        self.open_line = *last != b'\n';
        if self.file.is_none() && self.trouble.is_none() && self.writes(chunk.len()) {
            self.make_file();
        }
        let room = (HEAD_BYTES - self.head.len()).min(chunk.len());
        let (beginning, rest) = chunk.split_at(room);
        self.head.extend_from_slice(beginning);
        self.keep(chunk);
        let recent = &rest[rest.len().saturating_sub(TAIL_BYTES)..];
        if self.tail.len() + recent.len() > 2 * TAIL_BYTES {
            let keep_from = self.tail.len().saturating_sub(TAIL_BYTES);
            self.tail.drain(..keep_from);
        }
        self.tail.extend_from_slice(recent);
    }

    /// The text and the facts. Writes the file when the text must be cut and none was made so far.
    pub(super) fn finish(mut self, budget: TextBudget) -> Report {
        let whole_in_memory = self.bytes == (self.head.len() + self.tail.len()) as u64;
        if whole_in_memory {
            self.head.append(&mut self.tail);
            let text = broken(plain(&self.head));
            if budget.fits(&text) {
                self.drop_file();
                return self.report(text, false);
            }
        }
        if self.file.is_none() && self.trouble.is_none() {
            self.make_file();
        }
        let text = self.cut(budget, whole_in_memory);
        self.report(text, true)
    }

    fn report(self, text: String, cut: bool) -> Report {
        let lines = self.lines();
        Report { text, lines, bytes: self.bytes, full_output: self.file.map(|(_, path)| path), cut }
    }

    const fn lines(&self) -> u64 {
        self.line_ends + self.open_line as u64
    }

    /// Head, notice and tail.
    fn cut(&self, budget: TextBudget, whole_in_memory: bool) -> String {
        let head = plain(&self.head);
        let tail = if whole_in_memory { String::new() } else { plain(&self.tail) };
        // The longest notice is the one with the highest line number.
        let mut notice = self.notice(self.lines(), true);
        let brief = !budget.share(2).fits(&notice);
        if brief {
            notice = self.notice(0, false);
        }
        let left = budget.minus(&notice).minus("\n\n");
        let beginning = left.share(HEAD_SHARE).head(&head);
        let left = left.minus(beginning);
        let ending = left.tail(if whole_in_memory { &head[beginning.len()..] } else { &tail });
        if !brief {
            notice = self.notice(beginning.matches('\n').count() as u64 + 1, true);
        }
        let gap = if beginning.is_empty() || beginning.ends_with(LINE_BREAKS) { "" } else { "\n" };
        let break_after = if ending.is_empty() { "" } else { "\n" };
        let (beginning, ending) = (broken(beginning.to_owned()), broken(ending.to_owned()));
        format!("{beginning}{gap}{notice}{break_after}{ending}")
    }

    /// What was cut and how to read on, from line `next` of the file.
    fn notice(&self, next: u64, long: bool) -> String {
        let (lines, bytes) = (self.lines(), self.bytes);
        match (&self.file, &self.trouble) {
            (Some((_, path)), trouble) if long => {
                let incomplete = trouble.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                let path = path.to_string_lossy();
                let read = serde_json::json!({ "path": path, "offset": next });
                format!("[cut: {lines} lines, {bytes} bytes in all; full output: {path}{incomplete}; read {read}]")
            }
            (Some((_, path)), _) => format!("[cut: {lines} lines; full output: {}]", path.display()),
            (None, Some(why)) if long => {
                format!("[cut: {lines} lines, {bytes} bytes in all; the full output was not kept: {why}]")
            }
            (None, _) => format!("[cut: {lines} lines, {bytes} bytes in all]"),
        }
    }

    fn make_file(&mut self) {
        match create(&self.folder, &self.name) {
            Ok(made) => {
                self.file = Some(made);
                let (head, tail) = (std::mem::take(&mut self.head), std::mem::take(&mut self.tail));
                self.keep(&head);
                self.keep(&tail);
                (self.head, self.tail) = (head, tail);
            }
            Err(cause) => self.trouble = Some(format!("{}: {cause}", self.folder.display())),
        }
    }

    /// Appends to the file, when there is one and it has room.
    fn keep(&mut self, chunk: &[u8]) {
        let Some((file, path)) = &mut self.file else { return };
        let room = usize::try_from(self.file_bytes_max - self.kept).unwrap_or(usize::MAX).min(chunk.len());
        if let Err(cause) = file.write_all(&chunk[..room]) {
            // Half a file helps nobody and takes the room that the command may need.
            self.trouble = Some(format!("{}: {cause}", path.display()));
            self.drop_file();
            return;
        }
        self.kept += room as u64;
        if room < chunk.len() && self.trouble.is_none() {
            self.trouble = Some(format!("its first {} bytes only, the most that one call may keep", self.kept));
        }
    }

    fn drop_file(&mut self) {
        if let Some((_, path)) = self.file.take() {
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes `folder` (0700) if need be and a new file (0600) in it; a name in use gets a number.
fn create(folder: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for attempt in 1..=NAMES_MAX {
        let path = folder.join(if attempt == 1 { format!("{name}.txt") } else { format!("{name}-{attempt}.txt") });
        match OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (file, path)),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{NAMES_MAX} files called {name} exist")))
}

/// A member's id is unique in its session, so a second file of one name means a run repeated after a restart.
const NAMES_MAX: u32 = 100;

fn count_line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests;
