//! What `grep`, `find` and `ls` share: which files of a tree they see and in which order, how paths are shown, what a
//! glob means, how a listing stays inside its budget, and how the work is cancelled.

use std::{
    ffi::OsStr,
    fmt::Write,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use globset::{GlobBuilder, GlobMatcher};
use ignore::{Walk, WalkBuilder};
use tokio_util::sync::CancellationToken;

use super::{
    ToolContext, ToolEnv,
    paths::{self, Kind},
};
use crate::budget::TextBudget;

/// How long cancelled work may take to notice; it looks at every file, so only a disk that hangs takes longer.
const CANCEL_WAIT: Duration = Duration::from_millis(500);

/// Runs `work` off the async threads and gives up on it soon after `context` was cancelled.
pub(super) async fn blocking<T: Send + 'static>(
    context: &ToolContext,
    work: impl FnOnce(&CancellationToken) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let cancel = context.cancel.clone();
    let mut task = tokio::task::spawn_blocking(move || work(&cancel));
    let given_up = async {
        context.cancel.cancelled().await;
        tokio::time::sleep(CANCEL_WAIT).await;
    };
    tokio::select! {
        done = &mut task => match done {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        },
        () = given_up => Err(CANCELLED.to_owned()),
    }
}

/// What a cancelled listing answers.
pub(super) const CANCELLED: &str = "cancelled; nothing was changed";

/// A place to look at, as the caller named it (nothing means the working folder) and where it is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) given: String,
    pub(super) path: PathBuf,
    /// Paths are shown from here.
    cwd: PathBuf,
}

impl Place {
    pub(super) fn new(given: Option<String>, env: &ToolEnv) -> Result<Self, String> {
        let given = given.unwrap_or_else(|| ".".to_owned());
        let path = paths::resolve(&given, &env.cwd, &env.home).map_err(|error| error.to_string())?;
        // `cwd/.` is shown as `cwd`.
        Ok(Self { given, path: path.components().collect(), cwd: env.cwd.clone() })
    }

    /// What stands there, links followed. Nothing there is an error that names it.
    pub(super) fn kind(&self) -> Result<Kind, String> {
        match fs::metadata(&self.path) {
            Ok(found) => Ok(Kind::of(found.file_type())),
            Err(error) => Err(self.complaint(&error)),
        }
    }

    /// The message for a place that cannot be used.
    pub(super) fn complaint(&self, error: &io::Error) -> String {
        paths::complaint(&self.given, &self.path, &self.cwd, error)
    }

    /// The message for a glob that is not about what is below this place, with the call that says the same.
    fn leads_out(&self, argument: &str, glob: &str, excludes: bool) -> String {
        let parts: Vec<&str> = glob.split('/').collect();
        // The folders before the first part with a wildcard or the last one.
        let folders = parts[..parts.len() - 1].iter().take_while(|part| !part.contains(['*', '?', '[', '{', '\\']));
        let (folder, rest) = parts.split_at(folders.count());
        let folder = match folder.join("/") {
            none if none.is_empty() && glob.starts_with('/') => "/".to_owned(),
            outside if self.given == "." || outside == "~" || rooted_elsewhere(&outside) => outside,
            outside => format!("{}/{outside}", self.given.trim_end_matches('/')),
        };
        let turned = if excludes { "!" } else { "" };
        let rest = match rest {
            [""] => format!("{turned}*"),
            [name] => format!("{turned}./{name}"),
            _ => format!("{turned}{}", rest.join("/")),
        };
        let there = match climbs(&rest) {
            true => String::new(),
            false => format!("Search there with {}, or give", serde_json::json!({ "path": folder, argument: rest })),
        };
        let there = if there.is_empty() { "Give" } else { &there };
        format!(
            "the {argument} {glob:?} leads out of {}: a glob is relative to `path` and only about what is below it. \
             {there} the glob without a leading / or ~/ and without ..",
            self.path.display()
        )
    }

    /// `path` as the answer shows it: from the working folder when it is below, so that other tools take it as it is.
    pub(super) fn shown(&self, path: &Path) -> String {
        escaped(path.strip_prefix(&self.cwd).unwrap_or(path).as_os_str())
    }
}

/// Everything below `root` in a fixed order: hidden files too, without what ignore files exclude (also outside of git
/// repositories) and without `.git`. Links are listed, not followed.
pub(super) fn walk(root: &Path) -> Walk {
    WalkBuilder::new(root)
        .hidden(false)
        .require_git(false)
        .follow_links(false)
        .filter_entry(|entry| entry.depth() == 0 || entry.file_name() != ".git")
        .sort_by_file_name(Ord::cmp)
        .build()
}

/// Counts what could not be looked at, and remembers the first.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    count: usize,
    first: String,
}

impl Unreadable {
    pub(super) fn note(&mut self, problem: impl ToString) {
        if self.count == 0 {
            self.first = escaped(OsStr::new(&problem.to_string()));
        }
        self.count += 1;
    }

    /// A line for the answer; empty when all could be read.
    pub(super) fn line(&self) -> String {
        match self.count {
            0 => String::new(),
            1 => format!("[not readable: {}]\n", self.first),
            n => format!("[{n} places were not readable, the first: {}]\n", self.first),
        }
    }
}

/// A glob over paths below a root. Without a `/` it is about the name at any depth; with one, about the path from the
/// root. `!` before it turns it round.
#[derive(Debug)]
pub(super) struct PathGlob {
    glob: GlobMatcher,
    whole_path: bool,
    excludes: bool,
}

impl PathGlob {
    /// `argument` is what the caller calls it. A glob that leads out of `place` would match nothing, so it is refused.
    pub(super) fn new(argument: &str, pattern: &str, place: &Place) -> Result<Self, String> {
        let (excludes, glob) = pattern.strip_prefix('!').map_or((false, pattern), |rest| (true, rest));
        let inside = below(glob, &place.path);
        if inside.is_none() && (rooted_elsewhere(glob) || climbs(glob)) {
            return Err(place.leads_out(argument, glob, excludes));
        }
        let rooted = inside.unwrap_or(glob).trim_start_matches("./");
        if rooted.is_empty() {
            return Err(format!("the glob {pattern:?} is empty; give one like *.rs or src/**/*.ts"));
        }
        let built = GlobBuilder::new(rooted).literal_separator(true).backslash_escape(true).build();
        let built = built.map_err(|error| format!("the glob {pattern:?} is not valid: {}", error.kind()))?;
        Ok(Self { glob: built.compile_matcher(), whole_path: glob.contains('/'), excludes })
    }

    /// Whether `path`, which is below `root` or `root` itself, is meant.
    pub(super) fn matches(&self, root: &Path, path: &Path) -> bool {
        let relative = path.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty());
        let name = path.file_name().map(Path::new);
        let subject = if self.whole_path { relative.or(name) } else { name };
        subject.is_some_and(|subject| self.glob.is_match(subject)) != self.excludes
    }
}

/// What an absolute `glob` says about paths below `root`, when it begins with that folder.
fn below<'a>(glob: &'a str, root: &Path) -> Option<&'a str> {
    let rest = glob.strip_prefix(root.to_str()?)?;
    let rest = if root.parent().is_none() { rest } else { rest.strip_prefix('/')? };
    (!climbs(rest)).then_some(rest)
}

/// Whether `glob` does not begin at the folder that is searched.
fn rooted_elsewhere(glob: &str) -> bool {
    glob.starts_with('/') || glob.starts_with("~/")
}

/// Whether a part of `glob` is `..`, which no path below a folder has.
fn climbs(glob: &str) -> bool {
    glob.split('/').any(|part| part == "..")
}

/// `name` with what would break a line or is no UTF-8 made visible: `\n`, `\xff`.
pub(super) fn escaped(name: &OsStr) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Lines inside a budget: takes them until one does not fit.
#[derive(Debug)]
pub(super) struct Listing {
    text: String,
    left: TextBudget,
    full: bool,
}

/// Room for what is said after a listing.
const NOTICE_ROOM: TextBudget = TextBudget { bytes: 400, tokens: 150 };

impl Listing {
    pub(super) fn new(budget: TextBudget) -> Self {
        let left = TextBudget {
            bytes: budget.bytes.saturating_sub(NOTICE_ROOM.bytes),
            tokens: budget.tokens.saturating_sub(NOTICE_ROOM.tokens),
        };
        Self { text: String::new(), left, full: false }
    }

    /// Adds a line without its end; false when it did not fit, and then nothing fits any more.
    pub(super) fn push(&mut self, line: &str) -> bool {
        let left = self.left.minus(line).minus("\n");
        self.full |= !self.left.fits(line) || left.is_spent();
        if self.full {
            return false;
        }
        self.left = left;
        self.text.push_str(line);
        self.text.push('\n');
        true
    }

    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The lines, and what is said after them.
    pub(super) fn finish(mut self, notices: &str) -> String {
        self.text.push_str(notices);
        let end = self.text.trim_end_matches('\n').len();
        self.text.truncate(end);
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_without_a_slash_is_about_names_and_with_one_about_paths() {
        let at = |glob: &str, path: &str| {
            PathGlob::new("glob", glob, &place(".")).unwrap().matches(Path::new("/r"), &Path::new("/r").join(path))
        };
        for (glob, path, wanted) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "deep/er/a.rs", true),
            ("*.rs", "a.rsx", false),
            ("*.{ts,tsx}", "x/a.tsx", true),
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/deep/a.rs", false),
            ("src/**/*.rs", "src/deep/a.rs", true),
            ("src/**/*.rs", "src/a.rs", true),
            ("./src/*.rs", "src/a.rs", true),
            ("./a.rs", "a.rs", true),
            ("./a.rs", "src/a.rs", false),
            ("/r/*.rs", "a.rs", true),
            ("/r/*.rs", "src/a.rs", false),
            ("!/r/*.rs", "a.rs", false),
            ("~*", "~a", true),
            ("**/test/**", "a/test/b", true),
            ("!*.rs", "a.rs", false),
            ("!*.rs", "a.ts", true),
        ] {
            assert_eq!(at(glob, path), wanted, "{glob} on {path}");
        }
        let error = |glob: &str| PathGlob::new("glob", glob, &place(".")).unwrap_err();
        assert!(error("a[").contains("the glob \"a[\" is not valid"));
        assert!(error("!").contains("is empty"));
    }

    fn place(given: &str) -> Place {
        Place { given: given.to_owned(), path: Path::new("/r").join(given).components().collect(), cwd: "/r".into() }
    }

    #[test]
    fn a_glob_that_leads_out_of_the_searched_folder_is_refused_with_the_call_to_make() {
        for (given, glob, wanted) in [
            (".", "/etc/host*", r#"{"path":"/etc","pattern":"./host*"}"#),
            (".", "/*", r#"{"path":"/","pattern":"./*"}"#),
            (".", "/rest/a", r#"{"path":"/rest","pattern":"./a"}"#),
            (".", "/r/../x", r#"{"path":"/r/..","pattern":"./x"}"#),
            (".", "/src/**/*.rs", r#"{"path":"/src","pattern":"**/*.rs"}"#),
            (".", "../*", r#"{"path":"..","pattern":"./*"}"#),
            ("sub", "../*", r#"{"path":"sub/..","pattern":"./*"}"#),
            (".", "~/x", r#"{"path":"~","pattern":"./x"}"#),
            (".", "/etc/", r#"{"path":"/etc","pattern":"*"}"#),
            (".", "*/../x", "Give the glob without"),
            (".", "!../x", r#"{"path":"..","pattern":"!./x"}"#),
        ] {
            let error = PathGlob::new("pattern", glob, &place(given)).unwrap_err();
            assert!(error.contains("relative to `path`") && error.contains(wanted), "{glob}: {error}");
        }
    }

    #[test]
    fn names_that_would_break_a_line_are_escaped() {
        assert_eq!(escaped(OsStr::from_bytes("vide é\n👍".as_bytes())), "vide é\\n👍");
        assert_eq!(escaped(OsStr::from_bytes(b"a\xffb\x1b")), "a\\xffb\\u{1b}");
    }

    #[test]
    fn a_listing_stays_inside_its_budget() {
        let mut listing = Listing::new(TextBudget::WHOLE);
        while listing.push("some/path/to/a/file.rs") {}
        assert!(listing.is_full() && !listing.push("x"));
        let text = listing.finish("[more]\n");
        assert!(TextBudget::WHOLE.fits(&text));
        assert!(text.ends_with("file.rs\n[more]"));
        assert!(!Listing::new(TextBudget { bytes: 10, tokens: 10 }).push("x"));
    }
}
