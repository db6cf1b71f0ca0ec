//! The arguments of `process`: one flat object for five actions, checked so that a key of another action is refused.

use rustix::process::Signal;
use serde::Deserialize;

use crate::{
    content::JsonObject,
    host::native::{
        arguments::{self, Positive},
        group,
    },
};

/// The arguments as they come: a flat object for every action.
#[derive(Deserialize)]
struct Given {
    action: String,
    id: Option<String>,
    command: Option<String>,
    name: Option<String>,
    keep: Option<bool>,
    text: Option<String>,
    offset: Option<Positive>,
    limit: Option<Positive>,
    signal: Option<String>,
}

impl Given {
    /// A key that the action did not take.
    fn left(&self) -> Option<&'static str> {
        let given = [
            ("id", self.id.is_some()),
            ("command", self.command.is_some()),
            ("name", self.name.is_some()),
            ("keep", self.keep.is_some()),
            ("text", self.text.is_some()),
            ("offset", self.offset.is_some()),
            ("limit", self.limit.is_some()),
            ("signal", self.signal.is_some()),
        ];
        given.iter().find(|(_, is_given)| *is_given).map(|(key, _)| *key)
    }
}

/// Checked arguments.
pub(super) enum Action {
    Start { command: String, name: Option<String>, keep: bool },
    Output { id: String, offset: Option<u64>, limit: Option<u64> },
    Input { id: String, text: String },
    Stop { id: String, signal: Option<Signal> },
    List,
}

impl Action {
    /// Checks what came.
    pub(super) fn parse(arguments: JsonObject) -> Result<Self, String> {
        let mut given: Given = arguments::parse("process", arguments)?;
        let name = std::mem::take(&mut given.action);
        let need = |value: Option<String>, key: &str| {
            value.ok_or_else(|| format!("process: action {name} needs `{key}`; nothing was done"))
        };
        let action = match name.as_str() {
            "start" => Self::Start {
                command: need(given.command.take(), "command")?,
                name: given.name.take(),
                keep: given.keep.take().unwrap_or(false),
            },
            "output" => Self::Output {
                id: need(given.id.take(), "id")?,
                offset: given.offset.take().map(|line| line.0),
                limit: given.limit.take().map(|lines| lines.0),
            },
            "input" => Self::Input { id: need(given.id.take(), "id")?, text: need(given.text.take(), "text")? },
            "stop" => Self::Stop {
                id: need(given.id.take(), "id")?,
                signal: given.signal.take().map(|name| signal(&name)).transpose()?,
            },
            "list" => Self::List,
            other => {
                return Err(format!("process: action must be start, output, input, stop or list, got {other:?}"));
            }
        };
        match given.left() {
            Some(key) => Err(format!("process: action {name} does not take `{key}`; nothing was done")),
            None => Ok(action),
        }
    }
}

fn signal(name: &str) -> Result<Signal, String> {
    group::signal_named(name)
        .ok_or_else(|| format!("signal {name:?} is not known; give a name like TERM, INT, HUP or KILL"))
}
