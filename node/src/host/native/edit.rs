//! The tool `edit`: exact replacements in one file, all of them or none, under the file's lock. What they make of the
//! bytes is `edit_core`, how the file is replaced is `stage`.

#[cfg(test)]
mod tests;

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::json;

use super::{
    ToolContext, ToolEnv, ToolOutput, arguments,
    edit_core::{self, Edited, Replacement},
    paths::{self, OpenError},
    seen::Fingerprint,
    stage::{self, Committed},
    text,
};
use crate::{content::JsonObject, host::ToolDefinition};

/// Most replacements of one call, as many as a batch may have members.
const EDITS: usize = 128;

/// Larger files are refused: an edit keeps the old and the new content, and a CRLF-free copy, in memory.
const LARGEST: u64 = 64 * 1024 * 1024;

/// How often an edit starts over because another program changed the file under it.
const ATTEMPTS: usize = 3;

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "edit".to_owned(),
        description: "Replace exact pieces of text in a file.\n\
            Each oldText must stand in the file exactly once, as it was before this call; all replacements are made or \
            none. Nothing in newText is a pattern or placeholder. Line ends (LF or CRLF), byte order mark, mode and links \
            are kept; write line ends as \\n. Use write for new files."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "path": { "type": "string", "description": "File, absolute, from ~ or from the working folder" },
                "edits": {
                    "type": "array",
                    "description": "1 to 128 replacements, none overlapping another",
                    "minItems": 1,
                    "maxItems": EDITS,
                    "items": {
                        "type": "object",
                        "properties": {
                            "oldText": { "type": "string", "description": "Text that stands once in the file" },
                            "newText": { "type": "string", "description": "Text to put in its place" }
                        },
                        "required": ["oldText", "newText"],
                        "additionalProperties": false
                    }
                }
            },
            "required": ["path", "edits"],
            "additionalProperties": false
        }),
    }
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    let done = match Request::parse(arguments) {
        Ok(request) => request.run(env, context).await,
        Err(message) => Err(message),
    };
    done.unwrap_or_else(|message| ToolOutput::error(context.budget.head(&message)))
}

/// The arguments as they come.
#[derive(Deserialize)]
struct Given {
    path: String,
    edits: Vec<JsonObject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GivenEdit {
    old_text: String,
    new_text: String,
}

/// Checked arguments.
struct Request {
    path: String,
    edits: Vec<Replacement>,
}

impl Request {
    fn parse(arguments: JsonObject) -> Result<Self, String> {
        if arguments.contains_key("patch") {
            return Err("edit: `patch` is for sessions of Oh My Pi; nothing was done. This session takes `path` and \
                        `edits`: [{\"oldText\": …, \"newText\": …}]"
                .to_owned());
        }
        let Given { path, edits } = arguments::parse("edit", arguments)?;
        if !(1..=EDITS).contains(&edits.len()) {
            return Err(format!(
                "edit: `edits`: expected 1 to {EDITS} replacements, found {}; nothing was done",
                edits.len()
            ));
        }
        let edits = edits.into_iter().enumerate().map(|(index, edit)| {
            let GivenEdit { old_text, new_text } = arguments::parse(&format!("edits[{index}]"), edit)?;
            Ok(Replacement { old: old_text, new: new_text })
        });
        Ok(Self { path, edits: edits.collect::<Result<_, String>>()? })
    }

    async fn run(self, env: &ToolEnv, context: &ToolContext) -> Result<ToolOutput, String> {
        let real = paths::locate(&self.path, &env.cwd, &env.home)?;
        let guard = env.locks.lock(&real, &context.cancel).await.map_err(|e| format!("{}: {e}", self.path))?;
        let (env, context) = (env.clone(), context.clone());
        // Off the async threads: the disk confirms what was written before this returns, which can take long.
        let work = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            self.change(&real, &env, &context)
        });
        work.await.unwrap_or_else(|panic| Err(format!("edit: internal error: {panic}")))
    }

    fn change(&self, real: &Path, env: &ToolEnv, context: &ToolContext) -> Result<ToolOutput, String> {
        for _ in 0..ATTEMPTS {
            let (original, state) = self.load(real, env)?;
            let edited = edit_core::edit(&original, &self.edits)
                .map_err(|error| format!("{}: {error}; nothing was changed", self.path))?;
            let before =
                fs::symlink_metadata(real).map_err(|error| paths::complaint(&self.path, real, &env.cwd, &error))?;
            let staged =
                stage::stage(&env.node_home, real, &edited.content, Some(&before)).map_err(|e| e.to_string())?;
            if context.cancel.is_cancelled() {
                return Err(format!("{}: cancelled; nothing was changed", self.path));
            }
            if fs::symlink_metadata(real).is_ok_and(|found| Fingerprint::of(&found) == state) {
                let committed = staged.commit().map_err(|e| e.to_string())?;
                env.seen.note(context.reader.as_deref(), real, committed.state);
                return Ok(self.answer(real, &original, &edited, &committed, context));
            }
        }
        Err(format!(
            "{}: another program changed the file {ATTEMPTS} times during the edit; nothing was changed here. Find out \
             which program writes it, then read it again",
            self.path
        ))
    }

    /// The file's bytes and the state that they belong to.
    fn load(&self, real: &Path, env: &ToolEnv) -> Result<(Vec<u8>, Fingerprint), String> {
        match stage::target(real) {
            Ok(Some(_)) => {}
            Ok(None) => {
                let missing = io::Error::from(rustix::io::Errno::NOENT);
                let said = paths::complaint(&self.path, real, &env.cwd, &missing);
                return Err(format!("{said}; nothing was changed. Use `write` to make a new file"));
            }
            Err(error) => return Err(format!("{}: {error}", self.path)),
        }
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}; nothing was changed", self.path);
        let (file, found) = paths::open(real).map_err(|error| match error {
            OpenError::Kind(_) => failed(&error),
            OpenError::System(error) => failed(&paths::cause(&error)),
        })?;
        if found.len() > LARGEST {
            let size = found.len();
            return Err(failed(&format_args!(
                "is {size} bytes, and edit takes at most {LARGEST} (it holds the file in memory); use `bash`, for example sed"
            )));
        }
        let mut original = Vec::with_capacity(usize::try_from(found.len()).unwrap_or_default());
        // One more than allowed, so that a file that grows is seen as changed and not cut.
        file.take(LARGEST + 1).read_to_end(&mut original).map_err(|error| failed(&paths::cause(&error)))?;
        Ok((original, Fingerprint::of(&found)))
    }

    fn answer(
        &self,
        real: &Path,
        original: &[u8],
        edited: &Edited,
        committed: &Committed,
        context: &ToolContext,
    ) -> ToolOutput {
        let changes = &edited.changes;
        let first = changes.first().map_or(1, |change| text::line_at(original, change.range.start));
        let plural = if changes.len() == 1 { "replacement" } else { "replacements" };
        let mut said = format!("Edited {}: {} {plural}, the first at line {first}.\n", self.path, changes.len());
        for note in &committed.notes {
            said.push_str(&format!("Note: {note}.\n"));
        }
        let diff = edit_core::diff(original, changes, context.budget.minus(&said));
        said.push_str(&diff);
        ToolOutput::text(context.budget.head(&said)).with_details(json!({
            "path": PathBuf::from(real).to_string_lossy(),
            "replacements": changes.len(),
            "firstLine": first,
        }))
    }
}
