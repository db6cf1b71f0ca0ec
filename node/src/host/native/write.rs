//! The tool `write`: a file's whole content, made or replaced in one step under the file's lock. How is `stage`.

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::json;

use super::{ToolContext, ToolEnv, ToolOutput, arguments, paths, seen::Fingerprint, stage};
use crate::{content::JsonObject, host::ToolDefinition};

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "write".to_owned(),
        description: "Write a file: make it, with the folders on the way, or replace all of its content.\n\
            The content is written as given, in UTF-8. The file is whole at any time: old or new. Mode and symbolic links \
            are kept. Use edit to change part of a file."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "path": { "type": "string", "description": "File, absolute, from ~ or from the working folder" },
                "content": { "type": "string", "description": "All that the file shall hold" }
            },
            "required": ["path", "content"],
            "additionalProperties": false
        }),
    }
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    let done = match arguments::parse::<Request>("write", arguments) {
        Ok(request) => request.run(env, context).await,
        Err(message) => Err(message),
    };
    done.unwrap_or_else(|message| ToolOutput::error(context.budget.head(&message)))
}

#[derive(Deserialize)]
struct Request {
    path: String,
    content: String,
}

impl Request {
    async fn run(self, env: &ToolEnv, context: &ToolContext) -> Result<ToolOutput, String> {
        let real = paths::locate(&self.path, &env.cwd, &env.home)?;
        let guard = env.locks.lock(&real, &context.cancel).await.map_err(|e| format!("{}: {e}", self.path))?;
        let (env, context) = (env.clone(), context.clone());
        // Off the async threads: the disk confirms what was written before this returns, which can take long.
        let work = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            self.change(&real, &env, &context)
        });
        work.await.unwrap_or_else(|panic| Err(format!("write: internal error: {panic}")))
    }

    fn change(&self, real: &Path, env: &ToolEnv, context: &ToolContext) -> Result<ToolOutput, String> {
        let before = stage::target(real).map_err(|error| format!("{}: {error}", self.path))?;
        if before.is_none() && paths::from_lost_folder(&self.path, &env.cwd) {
            // Making it again would hide that it is gone.
            let missing = io::Error::from(rustix::io::Errno::NOENT);
            return Err(paths::complaint(&self.path, real, &env.cwd, &missing));
        }
        let reader = context.reader.as_deref();
        let changed = before
            .as_ref()
            .is_some_and(|found| env.seen.last(reader, real).is_some_and(|seen| seen != Fingerprint::of(found)));
        let staged = stage::stage(&env.node_home, real, self.content.as_bytes(), before.as_ref())
            .map_err(|error| error.to_string())?;
        if context.cancel.is_cancelled() {
            return Err(format!("{}: cancelled; nothing was changed", self.path));
        }
        let committed = staged.commit().map_err(|error| error.to_string())?;
        env.seen.note(reader, real, committed.state);

        let bytes = self.content.len();
        let mut said = match &before {
            Some(found) => format!("Wrote {bytes} bytes to {}, replacing {}.\n", self.path, found.len()),
            None => format!("Wrote {bytes} bytes to the new file {}.\n", self.path),
        };
        if changed {
            said.push_str(
                "Note: the file had changed since this conversation last read or wrote it, and that change is overwritten.\n",
            );
        }
        for note in &committed.notes {
            said.push_str(&format!("Note: {note}.\n"));
        }
        Ok(ToolOutput::text(context.budget.head(&said)).with_details(json!({
            "path": PathBuf::from(real).to_string_lossy(),
            "bytes": bytes,
            "created": before.is_none(),
            "changedSinceSeen": changed,
        })))
    }
}
