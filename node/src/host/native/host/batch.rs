//! How a batch is taken: one member after the other, except that neighbours that only read run together. Pure.

use std::ops::Range;

use crate::{content::ToolCall, host::native::process};

/// Whether the member changes nothing.
#[must_use]
pub(super) fn reads_only(call: &ToolCall) -> bool {
    match call.name.as_str() {
        "read" | "grep" | "find" | "ls" => true,
        "process" => process::reads_only(&call.arguments),
        _ => false,
    }
}

/// Whether the member makes sense without the session's working folder: processes go on without it.
#[must_use]
pub(super) fn needs_no_folder(call: &ToolCall) -> bool {
    call.name == "process" && call.arguments.get("action").is_none_or(|action| action != "start")
}

/// Members that run together at most: each may hold a file, a thread and its output.
const TOGETHER_MAX: usize = 8;

/// The batch as parts, in order; the members of a part run at the same time.
#[must_use]
pub(super) fn steps(calls: &[ToolCall]) -> Vec<Range<usize>> {
    let mut steps: Vec<Range<usize>> = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        match steps.last_mut() {
            Some(step)
                if step.len() < TOGETHER_MAX && reads_only(call) && step.clone().all(|i| reads_only(&calls[i])) =>
            {
                step.end = at + 1;
            }
            _ => steps.push(at..at + 1),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(names: &[&str]) -> Vec<ToolCall> {
        let call = |(at, name): (usize, &&str)| {
            let (name, action) = name.split_once(' ').unwrap_or((name, ""));
            let arguments = serde_json::json!({ "action": action });
            let arguments = arguments.as_object().cloned().unwrap();
            ToolCall { id: format!("chappie-{at}"), name: name.to_owned(), arguments }
        };
        names.iter().enumerate().map(call).collect()
    }

    #[test]
    fn neighbours_that_only_read_run_together() {
        let batch = calls(&["read", "grep", "edit", "read", "bash", "ls", "process list", "process stop", "unknown"]);
        assert_eq!(steps(&batch), [0..2, 2..3, 3..4, 4..5, 5..7, 7..8, 8..9]);
        assert!(steps(&[]).is_empty());
    }

    #[test]
    fn no_more_than_a_few_run_together() {
        assert_eq!(steps(&calls(&["read"; 20])), [0..8, 8..16, 16..20]);
    }
}
