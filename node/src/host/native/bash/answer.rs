//! Words what a command came to: exit code or signal, what still runs, and the machine-readable facts.

use std::{io, time::Duration};

use serde_json::{Value, json};

use crate::{
    content::JsonObject,
    host::native::{
        ToolContext, ToolOutput,
        group::{Ended, Exit},
        spool::{Report, Spool},
    },
};

/// Why the command is over.
pub(super) enum Finish {
    /// By itself.
    Ended(io::Result<Exit>),
    /// It ran past this.
    TimedOut(Duration),
    /// The caller gave up.
    Cancelled,
}

/// All that the answer says besides the output.
pub(super) struct Notes {
    pub(super) finish: Finish,
    /// What did not end.
    pub(super) left: Ended,
    /// Processes that live on.
    pub(super) background: Vec<i32>,
    /// A word about the shell.
    pub(super) shell: Option<&'static str>,
}

impl Notes {
    /// The answer: output cut to the budget that these words leave, then the words.
    pub(super) async fn answer(self, spool: Spool, context: &ToolContext, took: Duration) -> ToolOutput {
        let notes = self.text(spool.is_empty());
        let budget = context.budget.minus(&notes).minus("\n");
        let report = match tokio::task::spawn_blocking(move || spool.finish(budget)).await {
            Ok(report) => report,
            Err(panic) => return ToolOutput::error(format!("its output could not be shown: {panic}\n{notes}")),
        };
        let gap = if report.text.is_empty() || report.text.ends_with('\n') || notes.is_empty() { "" } else { "\n" };
        let text = format!("{}{gap}{notes}", report.text);
        let details = self.details(&report, took);
        let output = if self.failed() { ToolOutput::error(text) } else { ToolOutput::text(text) };
        output.with_details(details)
    }

    const fn failed(&self) -> bool {
        !matches!(self.finish, Finish::Ended(Ok(Exit::Code(0))))
    }

    fn text(&self, silent: bool) -> String {
        let mut notes = Vec::new();
        if let Some(shell) = self.shell {
            notes.push(format!("[{shell}]"));
        }
        if !self.background.is_empty() {
            notes.push(format!(
                "[still running in the background: {}; not ended with the session, and what they print from now on is \
                 dropped. Work that outlives a call is for the tool process, which lists it, stops it and ends it with \
                 the session]",
                numbers(&self.background)
            ));
        }
        match &self.finish {
            Finish::Ended(Ok(Exit::Code(0))) if silent => notes.push("(no output, exit 0)".to_owned()),
            Finish::Ended(Ok(Exit::Code(0))) => {}
            Finish::Ended(Ok(exit)) => notes.push(exit.to_string()),
            Finish::Ended(Err(cause)) => notes.push(format!("its exit status is not known: {cause}")),
            Finish::TimedOut(limit) => notes.push(format!(
                "timed out: it ran past {} s and was ended with all of its processes; give a longer timeout or use the \
                 tool process",
                limit.as_secs_f64()
            )),
            Finish::Cancelled => notes.push("cancelled: it was ended with all of its processes".to_owned()),
        }
        if !self.left.left.is_empty() {
            notes.push(format!("these did not end even when killed: {}", numbers(&self.left.left)));
        }
        notes.join("\n")
    }

    fn details(&self, report: &Report, took: Duration) -> Value {
        let mut details = JsonObject::new();
        match &self.finish {
            Finish::Ended(Ok(Exit::Code(code))) => details.insert("exitCode".to_owned(), json!(code)),
            Finish::Ended(Ok(Exit::Signal(signal))) => details.insert("signal".to_owned(), json!(signal)),
            Finish::Ended(Err(_)) => None,
            Finish::TimedOut(_) => details.insert("timedOut".to_owned(), json!(true)),
            Finish::Cancelled => details.insert("cancelled".to_owned(), json!(true)),
        };
        if let Some(path) = &report.full_output {
            details.insert("fullOutput".to_owned(), json!(path.to_string_lossy()));
        }
        details.insert("lines".to_owned(), json!(report.lines));
        details.insert("bytes".to_owned(), json!(report.bytes));
        details.insert("durationMs".to_owned(), json!(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)));
        Value::Object(details)
    }
}

fn numbers(pids: &[i32]) -> String {
    let names: Vec<String> = pids.iter().map(|pid| format!("pid {pid}")).collect();
    names.join(", ")
}
