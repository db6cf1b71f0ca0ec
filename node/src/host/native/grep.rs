//! The tool `grep`: lines that match, by ripgrep's own crates, in the files that `walk` sees.

mod sink;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use grep_matcher::LineTerminator;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::sink::Found;
use super::{
    ToolContext, ToolEnv, ToolOutput,
    arguments::{self, Positive},
    paths::{self, Kind, OpenError},
    walk::{self, Listing, PathGlob, Place, Unreadable},
};
use crate::{budget::TextBudget, content::JsonObject, host::ToolDefinition};

/// Matching lines given when the caller names no limit, as in Pi.
const LIMIT_DEFAULT: u64 = 100;

/// More context than this is reading the file.
const CONTEXT_MAX: u64 = 100;

/// A line of a text file that needs more than this is no text; the file is passed over and said to be.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "grep".to_owned(),
        description: "Search file contents for a regular expression.\n\
            Gives path:line: text for matching lines and path-line- text for context. Rust regex syntax, one line at a \
            time; literal: true takes the pattern as it stands. Hidden files count; what .gitignore excludes, .git and \
            binary files do not."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "pattern": { "type": "string", "description": "Regular expression, or text with literal: true" },
                "path": { "type": "string", "description": "Folder or file to search, default the working folder" },
                "glob": { "type": "string", "description": "Only files like this, for example *.ts or src/**/*.rs" },
                "ignoreCase": { "type": "boolean", "description": "Upper and lower case are the same" },
                "literal": { "type": "boolean", "description": "The pattern is text, not a regular expression" },
                "context": { "type": "integer", "minimum": 0, "description": "Lines to show around each match" },
                "limit": { "type": "integer", "minimum": 1, "description": "Most matching lines, default 100" }
            },
            "required": ["pattern"],
            "additionalProperties": false
        }),
    }
}

/// The arguments as they come.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    ignore_case: Option<bool>,
    literal: Option<bool>,
    context: Option<u64>,
    limit: Option<Positive>,
}

/// Checked arguments.
struct Search {
    matcher: RegexMatcher,
    searcher: Searcher,
    place: Place,
    glob: Option<PathGlob>,
    limit: u64,
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    let mut search = match arguments::parse("grep", arguments).and_then(|given| Search::new(given, env)) {
        Ok(search) => search,
        Err(message) => return ToolOutput::error(message),
    };
    let budget = context.budget;
    let found = walk::blocking(context, move |cancel| search.run(budget, cancel)).await;
    found.map_or_else(ToolOutput::error, ToolOutput::text)
}

impl Search {
    fn new(given: Given, env: &ToolEnv) -> Result<Self, String> {
        if given.pattern.is_empty() {
            return Err("pattern is empty and would match every line; give what to search for".to_owned());
        }
        let literal = given.literal.unwrap_or(false);
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(given.ignore_case.unwrap_or(false))
            .fixed_strings(literal)
            .multi_line(true)
            .crlf(true)
            .build(&given.pattern)
            .map_err(|error| bad_pattern(&given.pattern, literal, &error))?;
        let around = given.context.map_or(0, |lines| lines.min(CONTEXT_MAX));
        let around = usize::try_from(around).unwrap_or_default();
        let searcher = SearcherBuilder::new()
            .line_terminator(LineTerminator::crlf())
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LINE_BYTES_MAX))
            .before_context(around)
            .after_context(around)
            .build();
        let place = Place::new(given.path, env)?;
        let glob = given.glob.as_deref().map(|glob| PathGlob::new("glob", glob, &place)).transpose()?;
        Ok(Self { matcher, searcher, place, glob, limit: given.limit.map_or(LIMIT_DEFAULT, |limit| limit.0) })
    }

    fn run(&mut self, budget: TextBudget, cancel: &CancellationToken) -> Result<String, String> {
        let kind = self.place.kind()?;
        let mut found = Found::new(Listing::new(budget), self.limit);
        let mut unreadable = Unreadable::default();
        match kind {
            Kind::File => {
                let path = self.place.path.clone();
                self.file(&path, &mut found, cancel).map_err(|why| format!("{}: {why}", self.place.given))?;
                if let Some(at) = found.binary_at() {
                    return Err(format!(
                        "{} is a binary file (a NUL byte at {at}); bash with grep -a searches it as text",
                        self.place.given
                    ));
                }
            }
            Kind::Folder => self.tree(&mut found, &mut unreadable, cancel)?,
            other => return Err(format!("{} is {}; give a file or a folder", self.place.given, other.noun())),
        }
        Ok(found.finish(&unreadable.line()))
    }

    fn tree(
        &mut self,
        found: &mut Found,
        unreadable: &mut Unreadable,
        cancel: &CancellationToken,
    ) -> Result<(), String> {
        for entry in walk::walk(&self.place.path) {
            if cancel.is_cancelled() {
                return Err(walk::CANCELLED.to_owned());
            }
            match entry {
                Ok(entry) => {
                    let wanted = self.glob.as_ref().is_none_or(|glob| glob.matches(&self.place.path, entry.path()));
                    if !wanted || !entry.file_type().is_some_and(|kind| kind.is_file()) {
                        continue;
                    }
                    if let Err(why) = self.file(entry.path(), found, cancel) {
                        if cancel.is_cancelled() {
                            return Err(walk::CANCELLED.to_owned());
                        }
                        unreadable.note(format!("{}: {why}", self.place.shown(entry.path())));
                    }
                }
                Err(problem) => unreadable.note(problem),
            }
            if found.is_over() {
                break;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, found: &mut Found, cancel: &CancellationToken) -> Result<(), OpenError> {
        // Nothing but a file is opened, whatever took its place since it was listed.
        let (file, _) = paths::open(path)?;
        found.begin(self.place.shown(path));
        let reader = Cancellable { file, cancel };
        Ok(self.searcher.search_reader(&self.matcher, reader, found.sink(&self.matcher))?)
    }
}

fn bad_pattern(pattern: &str, literal: bool, error: &grep_regex::Error) -> String {
    if pattern.contains('\n') || pattern.contains("\\n") {
        return "a match cannot go over a line end; search for one line of it and use context, or bash with rg -U"
            .to_owned();
    }
    let advice = if literal { "" } else { "; mend it, or pass literal: true to search for it as text" };
    format!("the regular expression is not valid: {error}{advice}")
}

/// Ends a search inside a huge file when the caller gave up.
struct Cancellable<'a> {
    file: File,
    cancel: &'a CancellationToken,
}

impl Read for Cancellable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other(walk::CANCELLED));
        }
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests;
