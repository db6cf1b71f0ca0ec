//! The tool `process`: long work that outlives the call that starts it, the door and the node. What a process is and
//! where it is kept is `process_table`; this file checks arguments and words answers.

mod action;
mod page;

use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use self::action::Action;
use super::{
    ToolContext, ToolEnv, ToolOutput, bash, check_folder,
    process_table::{Entry, RUNNING_MAX, STOP_GRACE, Start, State, Table},
};
use crate::{clock, content::JsonObject, host::ToolDefinition};

/// How long `start` watches for a command that ends at once (a mistyped name), so that it is said in the same answer.
const FIRST_LOOK: Duration = Duration::from_millis(150);

/// How long `input` waits for a process that is slow to read.
const INPUT_WAIT: Duration = Duration::from_secs(5);

/// How long a single signal may take to end a process before the answer says that it still runs.
const SIGNAL_WAIT: Duration = Duration::from_secs(1);

/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A label, not a text.
const NAME_CHARS_MAX: usize = 100;

/// The definition that `tools` shows.
#[must_use]
pub fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "process".to_owned(),
        description: "Run long work (servers, watchers, long builds) that outlives this call and a restart of the node.\n\
            start {command, name?, keep?} gives an id; it ends with the session unless keep is true. output {id, offset?, \
            limit?} gives the last lines, or those from line offset on, and the offset that continues. input {id, text} \
            writes text to its stdin as it stands: end a line with \\n. stop {id, signal?} ends it and all of its \
            children (TERM, then KILL after 5 s), or only sends that signal. list shows all, with how they ended."
            .to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "action": { "type": "string", "enum": ["start", "output", "input", "stop", "list"] },
                "id": { "type": "string", "description": "Process id, for output, input and stop" },
                "command": { "type": "string", "description": "Bash command, for start" },
                "name": { "type": "string", "description": "Label, for start" },
                "keep": { "type": "boolean", "description": "start: live on when the session ends" },
                "text": { "type": "string", "description": "input: what to write to its stdin" },
                "offset": { "type": "integer", "minimum": 1, "description": "output: first line to show, from 1" },
                "limit": { "type": "integer", "minimum": 1, "description": "output: lines to show" },
                "signal": { "type": "string", "description": "stop: send only this, like INT, HUP or KILL" }
            },
            "required": ["action"],
            "additionalProperties": false
        }),
    }
}

/// Whether these arguments only look.
#[must_use]
pub fn reads_only(arguments: &JsonObject) -> bool {
    matches!(arguments.get("action").and_then(Value::as_str), Some("list" | "output"))
}

/// Runs it.
pub async fn run(arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    match Action::parse(arguments) {
        Ok(action) => action.run(env, context).await.unwrap_or_else(ToolOutput::error),
        Err(message) => ToolOutput::error(message),
    }
}

impl Action {
    async fn run(self, env: &ToolEnv, context: &ToolContext) -> Result<ToolOutput, String> {
        let table = Table::new(&env.node_home, &env.session);
        match self {
            Self::Start { command, name, keep } => start(table, command, name, keep, env, context).await,
            Self::Output { id, offset, limit } => {
                let entry = find(table, id).await?;
                page::show(entry, offset, limit, context).await
            }
            Self::Input { id, text } => input(&find(table, id).await?, text.as_bytes(), context).await,
            Self::Stop { id, signal } => stop(find(table, id).await?, signal, context).await,
            Self::List => list(table, context).await,
        }
    }
}

async fn start(
    table: Table,
    command: String,
    name: Option<String>,
    keep: bool,
    env: &ToolEnv,
    context: &ToolContext,
) -> Result<ToolOutput, String> {
    bash::check_command(&command)?;
    if name.as_ref().is_some_and(|name| name.chars().count() > NAME_CHARS_MAX || name.contains(char::is_control)) {
        return Err(format!("name must be one line of at most {NAME_CHARS_MAX} characters"));
    }
    let cwd = env.cwd.clone();
    let entry = blocking(move || {
        check_folder(&cwd).map_err(|error| error.to_string())?;
        if table.running() >= RUNNING_MAX {
            return Err(format!(
                "{RUNNING_MAX} processes of this session run already, the most there may be; stop one of them first \
                 (action list shows them)"
            ));
        }
        let (shell, _) = bash::find_shell()?;
        let start = Start { shell: &shell, command: &command, name, cwd: &cwd, keep };
        table.start(&start).map_err(|cause| format!("the process was not started: {cause}"))
    })
    .await??;
    if let State::Exited(_) = settled(&entry, FIRST_LOOK).await {
        return page::show(entry, None, None, context).await;
    }
    let id = &entry.meta.id;
    let ends = if keep { "it lives on when the session ends" } else { "it ends with the session" };
    let read = json!({ "action": "output", "id": id });
    let text = format!("started {id}, pid {}; {ends}. What it prints: process {read}", pid(&entry));
    Ok(ToolOutput::text(text).with_details(details(&entry, State::Running)))
}

async fn input(entry: &Entry, text: &[u8], context: &ToolContext) -> Result<ToolOutput, String> {
    let id = &entry.meta.id;
    if text.is_empty() {
        return Err("text is empty; give what to write to the process's stdin".to_owned());
    }
    let state = entry.state();
    if state != State::Running {
        return Err(format!("process {id} does not run any more: {state}; nothing was written"));
    }
    // Non-blocking: neither opening nor writing may wait for a process that does not read.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().write(true).custom_flags(flags).open(entry.input());
    let mut fifo =
        opened.map_err(|cause| format!("process {id} has closed its stdin: {cause}; nothing was written"))?;
    let deadline = Instant::now() + INPUT_WAIT;
    let mut written = 0;
    while written < text.len() {
        match fifo.write(&text[written..]) {
            Ok(length) => written += length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let given_up = context.cancel.is_cancelled();
                if given_up || Instant::now() >= deadline || entry.state() != State::Running {
                    let why = if given_up { "cancelled" } else { "it does not read its input" };
                    return Err(format!("process {id} took {written} of {} bytes: {why}", text.len()));
                }
                time::sleep(LOOK_AGAIN).await;
            }
            Err(cause) => return Err(format!("process {id} took {written} of {} bytes: {cause}", text.len())),
        }
    }
    let read = json!({ "action": "output", "id": id });
    Ok(ToolOutput::text(format!("wrote {written} bytes to {id}. What it prints: process {read}"))
        .with_details(details(entry, State::Running)))
}

async fn stop(entry: Entry, signal: Option<Signal>, context: &ToolContext) -> Result<ToolOutput, String> {
    let id = entry.meta.id.clone();
    let before = entry.state();
    let seen = entry.clone();
    let ending = blocking(move || match signal {
        Some(signal) => (seen.signal(signal), Vec::new()),
        None => {
            let ended = seen.end(STOP_GRACE);
            (ended.ended, ended.left)
        }
    });
    let (reached, left) = tokio::select! {
        biased;
        done = ending => done?,
        () = context.cancel.cancelled() => return Err(format!("cancelled; {id} was told to end and is still being ended")),
    };
    if !left.is_empty() {
        return Err(format!("processes {left:?} of {id} did not end even when killed; they are asleep in the kernel"));
    }
    let state = settled(&entry, SIGNAL_WAIT).await;
    let text = match (before, signal) {
        (State::Running, _) if state != State::Running => format!("{id} ended: {state}"),
        (State::Running, Some(_)) => format!("sent to {id}; it still runs. Without signal, stop ends it"),
        (State::Running, None) => return Err(format!("{id} was told to end, yet it still runs")),
        (_, _) if reached > 0 => format!("{id} had ended ({state}); {reached} processes it had left were signalled"),
        _ => format!("{id} had ended already: {state}"),
    };
    Ok(ToolOutput::text(text).with_details(details(&entry, state)))
}

async fn list(table: Table, context: &ToolContext) -> Result<ToolOutput, String> {
    let session = context.budget;
    let entries = blocking(move || {
        let all: Vec<(Entry, State)> = table.list().into_iter().map(|entry| (entry.clone(), entry.state())).collect();
        all
    })
    .await?;
    if entries.is_empty() {
        return Ok(ToolOutput::text("no processes").with_details(json!({ "processes": [] })));
    }
    // The newest matter most when not all fit.
    let mut lines = Vec::new();
    let mut left = session.minus("and 1000 older ones\n");
    for (entry, state) in entries.iter().rev() {
        let line = line(entry, *state);
        if !left.fits(&line) {
            lines.push(format!("and {} older ones\n", entries.len() - lines.len()));
            break;
        }
        left = left.minus(&line);
        lines.push(line);
    }
    let running = entries.iter().filter(|(_, state)| *state == State::Running).count();
    let details = json!({ "processes": entries.len(), "running": running });
    Ok(ToolOutput::text(lines.concat()).with_details(details))
}

/// `p1a2b3c4 "dev server": running for 12 s, pid 123: npm run dev`
fn line(entry: &Entry, state: State) -> String {
    let Entry { meta, .. } = entry;
    let name = meta.name.as_ref().map(|name| format!(" {name:?}")).unwrap_or_default();
    let age = clock::now().since(meta.started) / 1000;
    let state = match state {
        State::Running => format!("running for {age} s, pid {}", pid(entry)),
        ended => format!("{ended}; started {}", clock::rfc3339(meta.started)),
    };
    let kept = if meta.keep { ", kept" } else { "" };
    let command: String =
        meta.command.chars().take(COMMAND_CHARS_SHOWN).map(|c| if c == '\n' { ' ' } else { c }).collect();
    format!("{}{name}: {state}{kept}: {command}\n", meta.id)
}

/// Enough to recognise a command in a list.
const COMMAND_CHARS_SHOWN: usize = 100;

fn pid(entry: &Entry) -> String {
    entry.pid().map_or_else(|| "unknown".to_owned(), |pid| pid.to_string())
}

fn details(entry: &Entry, state: State) -> Value {
    let mut details = json!({ "id": entry.meta.id, "running": state == State::Running });
    match state {
        State::Exited(code) => details["exitCode"] = json!(code),
        State::Killed(signal) => details["signal"] = json!(signal),
        State::Running | State::Lost => {}
    }
    details
}

/// The state as soon as it is known to be no longer running, or after `wait`.
async fn settled(entry: &Entry, wait: Duration) -> State {
    let deadline = Instant::now() + wait;
    loop {
        let state = entry.state();
        // A process that was just killed is lost for the moment until `watch` has written down by what.
        if !matches!(state, State::Running | State::Lost) || Instant::now() >= deadline {
            return state;
        }
        time::sleep(LOOK_AGAIN).await;
    }
}

async fn find(table: Table, id: String) -> Result<Entry, String> {
    let wanted = id.clone();
    let found = blocking(move || table.find(&wanted)).await?;
    found.ok_or_else(|| format!("no process {id:?} in this session; action list shows those there are"))
}

/// Disk and `/proc` off the async threads. The error is a panic's message.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| panic.to_string())
}

#[cfg(test)]
mod tests;
