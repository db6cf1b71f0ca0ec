//! The operations of the kill test: what each sends, what it leaves in the ledger and in files.

use chappie_tests::{ledger::Ledger, random::Random};
use serde_json::{Value, json};

/// A file of the test is large enough that a torn write would show.
const LINES: usize = 4_000;

/// What a call of the mix does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bash,
    Write,
    Edit,
    Batch,
}

impl Kind {
    pub(crate) const MIXED: [Self; 6] = [Self::Bash, Self::Write, Self::Batch, Self::Edit, Self::Bash, Self::Write];
}

/// One call that is sent once, and perhaps repeated under its `operationId`.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) tool: &'static str,
    /// Its mark in the ledger, and its `operationId` when it has one.
    pub(crate) name: String,
    arguments: Value,
    marks: bool,
    /// The file it puts content into.
    puts: Option<(&'static str, String)>,
}

impl Operation {
    /// A command of some tens of milliseconds that marks its start and its end.
    pub(crate) fn probe(number: usize, ledger: &Ledger, random: &mut Random) -> Self {
        let name = format!("p{number}");
        let pause = 40 + random.below(120);
        let command = format!(
            "{}; sleep 0.{pause:03}; {}; printf 'out-%s\\n' {name}",
            ledger.append(&format!("{name}-start")),
            ledger.append(&format!("{name}-end")),
        );
        Self {
            tool: "bash",
            arguments: json!({"command": command, "operationId": name}),
            name,
            marks: true,
            puts: None,
        }
    }

    /// A call of the mix. `edited` is what the edited file holds now.
    pub(crate) fn mixed(
        kind: Kind,
        name: &str,
        ledger: &Ledger,
        file: &'static str,
        edited_now: &str,
        with_id: bool,
    ) -> Self {
        let mark = format!("{}; printf 'out-%s\\n' {name}", ledger.append(name));
        let (tool, mut arguments, puts) = match kind {
            Kind::Bash => ("bash", json!({"command": mark}), None),
            Kind::Write => {
                let content = content(name);
                ("write", json!({"path": file, "content": content}), Some((file, content)))
            }
            Kind::Edit => {
                let old = edited_now.lines().next().unwrap_or_default();
                let edits = json!([{"oldText": old, "newText": format!("current {name}")}]);
                ("edit", json!({"path": super::EDITED, "edits": edits}), Some((super::EDITED, edited(name))))
            }
            Kind::Batch => {
                let content = content(name);
                let calls = json!([
                    {"name": "bash", "arguments": {"command": mark}},
                    {"name": "write", "arguments": {"path": file, "content": content}},
                ]);
                ("call", json!({"calls": calls}), Some((file, content)))
            }
        };
        if with_id {
            arguments["operationId"] = json!(name);
        }
        let marks = matches!(kind, Kind::Bash | Kind::Batch);
        Self { tool, name: name.to_owned(), arguments, marks, puts }
    }

    pub(crate) fn arguments(&self, session: &str) -> Value {
        let mut arguments = self.arguments.clone();
        arguments["sessionId"] = json!(session);
        arguments
    }

    /// What its output holds and its command does not.
    pub(crate) fn output(&self) -> String {
        format!("out-{}", self.name)
    }

    pub(crate) const fn leaves_mark(&self) -> bool {
        self.marks
    }

    pub(crate) fn has_id(&self) -> bool {
        self.arguments.get("operationId").is_some()
    }

    /// The conversation that `Scene::begin_mixed` sends it in.
    pub(crate) fn conversation(&self) -> String {
        let index: usize = self.name.rsplit('x').next().and_then(|text| text.parse().ok()).unwrap_or(0);
        format!("mixed-{}", index % 2)
    }

    /// Whether `now` is all of what it puts into `file`.
    pub(crate) fn puts(&self, file: &str, now: &str) -> bool {
        self.puts.as_ref().is_some_and(|(name, content)| *name == file && content == now)
    }
}

/// Many equal lines: a mixture of two versions cannot pass for one.
pub(crate) fn content(version: &str) -> String {
    format!("{version}\n").repeat(LINES)
}

/// The edited file: its first line says which version it is.
pub(crate) fn edited(version: &str) -> String {
    format!("current {version}\n{}", "steady\n".repeat(LINES))
}
