//! The tool `bash`: one command, from start to answer. Its group and its end are `group`, its output is `spool`.
//!
//! The answer comes when the shell itself has ended and what it wrote is read: background children that keep the pipe
//! open do not hold it (what they print later is read and dropped for a while, so that they are not killed by it).

mod answer;
mod output;

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::json;
use tokio::{net::unix::pipe, time};

use self::{
    answer::{Finish, Notes},
    output::Collector,
};
use super::{
    ToolContext, ToolEnv, ToolOutput, arguments, check_folder,
    group::{self, Ended, Exit, Group, Marker, StartError},
    spool::Spool,
};
use crate::{content::JsonObject, host::ToolDefinition};

/// One day: longer work belongs to `process`.
const TIMEOUT_SECONDS_MAX: f64 = 86_400.0;

/// Linux takes at most 128 KiB in one argument (`MAX_ARG_STRLEN`); a longer command goes through a file.
pub(super) const ARGUMENT_BYTES_MAX: usize = 120 * 1024;

/// How long a killed shell may take to be gone before the answer says that it is not (asleep in the kernel).
const GONE_WAIT: Duration = Duration::from_secs(2);

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "bash".to_owned(),
        description: "Run a shell command in the session's working folder.\n\
            Gives stdout and stderr together, and the exit code when it is not 0. Long output is cut in the middle; the \
            notice names the file that holds all of it and the read that continues. There is no terminal and nothing to \
            read: commands that would ask fail. Without timeout it may run for ever; the answer does not wait for \
            background children, and neither the call nor the session ends them. Use process for servers and other \
            work that outlives the call: it lists it, stops it and ends it with the session."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "command": { "type": "string", "description": "Bash command or script" },
                "timeout": {
                    "type": "number",
                    "description": "Seconds after which the command and all of its processes are ended (at most 86400)"
                }
            },
            "required": ["command"],
            "additionalProperties": false
        }),
    }
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    match Request::parse(arguments) {
        Ok(request) => request.run(env, context).await,
        Err(message) => ToolOutput::error(message),
    }
}

/// The arguments as they come.
#[derive(Deserialize)]
struct Given {
    command: String,
    timeout: Option<f64>,
}

/// Checked arguments.
struct Request {
    command: String,
    timeout: Option<Duration>,
}

impl Request {
    fn parse(arguments: JsonObject) -> Result<Self, String> {
        let Given { command, timeout } = arguments::parse("bash", arguments)?;
        check_command(&command)?;
        let timeout = timeout.map(check_timeout).transpose()?;
        Ok(Self { command, timeout })
    }

    async fn run(self, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
        if context.cancel.is_cancelled() {
            return ToolOutput::error("cancelled before it started; nothing ran");
        }
        let begun = Instant::now();
        let timeout = self.timeout;
        let (node, member) = (env.clone(), context.clone());
        let started = tokio::task::spawn_blocking(move || Running::start(&self.command, &node, &member)).await;
        let mut running = match started.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(running) => running,
            Err(message) => return ToolOutput::error(message),
        };
        let spool = Spool::new(&env.outputs, &context.member);
        let collector = Collector::start(running.output.take(), spool);

        let finish = tokio::select! {
            biased;
            status = running.group.wait() => Finish::Ended(status.map(Exit::from)),
            () = context.cancel.cancelled() => Finish::Cancelled,
            () = elapsed(timeout) => Finish::TimedOut(timeout.unwrap_or_default()),
        };
        let mut left = Ended::default();
        if !matches!(finish, Finish::Ended(_)) {
            left = running.group.end().await;
            // Killed, so this is moments; its status says nothing that the reason does not say better.
            let _ = time::timeout(GONE_WAIT, running.group.wait()).await;
        }
        let (spool, held_open) = collector.finish().await;
        let mut background = Vec::new();
        if let Some(pipe) = held_open {
            background = running.group.remaining().await;
            tokio::spawn(output::drop_output(pipe));
        }
        let notes =
            Notes { finish, left, background: background.iter().map(|p| p.pid).collect(), shell: running.shell };
        notes.answer(spool, context, begun.elapsed()).await
    }
}

/// A started command.
struct Running {
    group: Group,
    output: Option<pipe::Receiver>,
    /// What was said about the shell, when it was not bash.
    shell: Option<&'static str>,
    _script: Option<Script>,
}

impl Running {
    /// Starts `command`; blocks for the moment that takes. The error is the answer.
    fn start(command: &str, env: &ToolEnv, context: &ToolContext) -> Result<Self, String> {
        check_folder(&env.cwd).map_err(|error| error.to_string())?;
        let (shell, note) = find_shell()?;
        let mut process = group::command(&shell, &env.cwd);
        let script = add_command(&mut process, command, &env.outputs, &context.member)?;
        let (reader, writer) = io::pipe().map_err(|cause| format!("cannot make a pipe for its output: {cause}"))?;
        let second = writer.try_clone().map_err(|cause| format!("cannot make a pipe for its output: {cause}"))?;
        process.stdout(writer).stderr(second);
        let output = pipe::Receiver::from_owned_fd(reader.into())
            .map_err(|cause| format!("cannot make a pipe for its output: {cause}"))?;
        let marker = Marker::call(&context.call_id, &context.member);
        let group = Group::start(&env.node_home, &marker, process).map_err(|error| match error {
            // The folder may have gone since it was checked.
            StartError::Spawn(cause) => match check_folder(&env.cwd) {
                Ok(()) => format!("cannot start {} in {}: {cause}", shell.display(), env.cwd.display()),
                Err(folder) => folder.to_string(),
            },
            StartError::Record { .. } => error.to_string(),
        })?;
        Ok(Self { group, output: Some(output), shell: note, _script: script })
    }
}

/// Never, without a timeout.
async fn elapsed(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// Refuses what no shell can run.
pub(super) fn check_command(command: &str) -> Result<(), String> {
    if command.trim().is_empty() {
        return Err("command is empty; give the shell command to run".to_owned());
    }
    match command.find('\0') {
        Some(at) => Err(format!("command holds a NUL character at byte {at}, which no command line can carry")),
        None => Ok(()),
    }
}

fn check_timeout(seconds: f64) -> Result<Duration, String> {
    if seconds > 0.0 && seconds <= TIMEOUT_SECONDS_MAX {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("timeout must be above 0 and at most {TIMEOUT_SECONDS_MAX} seconds, got {seconds}"))
    }
}

/// bash, else sh with a word about it.
pub(super) fn find_shell() -> Result<(PathBuf, Option<&'static str>), String> {
    if let Some(bash) = group::find_program("bash") {
        return Ok((bash, None));
    }
    match group::find_program("sh") {
        Some(sh) => Ok((sh, Some("bash is not installed here: sh ran this"))),
        None => Err("neither bash nor sh is on the PATH of this node; install one of them".to_owned()),
    }
}

/// A command too long for an argument, as a file that lives as long as this.
#[derive(Debug)]
pub(super) struct Script(PathBuf);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Gives `command` to the shell `process` runs: as an argument, or as a file in `folder` when it is too long for one.
fn add_command(process: &mut Command, command: &str, folder: &Path, name: &str) -> Result<Option<Script>, String> {
    if command.len() <= ARGUMENT_BYTES_MAX {
        process.args(["-c", "--", command]);
        return Ok(None);
    }
    let path = folder.join(format!("{}.sh", group::file_name(name)));
    let write = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(command.as_bytes())
    };
    let script = Script(path.clone());
    write().map_err(|cause| format!("the command is too long for an argument and {} {cause}", path.display()))?;
    process.arg(&path);
    Ok(Some(script))
}

#[cfg(test)]
mod tests;
