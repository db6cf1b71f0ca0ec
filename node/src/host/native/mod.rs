//! The node's own session: tools with Pi's names and argument shapes, run by this process (design section 8).

pub mod arguments;
pub mod bash;
pub mod edit;
pub mod edit_core;
pub mod find;
pub mod grep;
pub mod group;
pub mod host;
pub mod image_part;
pub mod locks;
pub mod ls;
pub mod paths;
mod plain;
pub mod process;
mod process_table;
pub mod read;
pub mod seen;
mod spool;
pub mod stage;
#[cfg(test)]
mod testing;
pub mod text;
mod walk;
pub mod write;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use self::host::{NativeHost, NativeHosts};
use self::{locks::PathLocks, seen::SeenFiles};
use crate::{
    budget::TextBudget,
    host::HostError,
    ids::{CallId, SessionId},
};

/// What every native tool of one session shares. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ToolEnv {
    /// The session.
    pub session: SessionId,
    /// Relative paths resolve from here.
    pub cwd: PathBuf,
    /// `~` resolves to this.
    pub home: PathBuf,
    /// Folder of this session's full-output files (`<CHAPPIE_HOME>/outputs/<session>/`); made on first use, mode 0700.
    pub outputs: PathBuf,
    /// `CHAPPIE_HOME`: where changes of files are recorded until they are done.
    pub node_home: PathBuf,
    /// One for the whole node, whatever the session.
    pub locks: PathLocks,
    /// One for the whole node, whatever the session.
    pub seen: SeenFiles,
}

/// One tool's run.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The operation.
    pub call_id: CallId,
    /// The member's id, unique in the session; names its spool file.
    pub member: String,
    /// Fires when the caller gave up.
    pub cancel: CancellationToken,
    /// Key of the conversation that asks ([`crate::ids::Conversation::key`]); none for a caller that named neither.
    pub reader: Option<String>,
    /// Text this member may give back; the tool cuts its own output to it, with advice on how to read on.
    pub budget: TextBudget,
}

/// Whether the session's folder is there. The system's own error would name the program that was to run in it.
fn check_folder(cwd: &Path) -> Result<(), HostError> {
    let cause = match fs::metadata(cwd) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a folder".to_owned(),
        Err(cause) => cause.to_string(),
    };
    Err(HostError::Folder { path: cwd.to_owned(), cause })
}

/// What a tool gives back, before images go to the blob store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// Text and pictures, in order.
    pub parts: Vec<Part>,
    /// Whether the tool failed.
    pub is_error: bool,
    /// Machine-readable facts.
    pub details: Option<Value>,
}

/// A piece of a [`ToolOutput`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// An image that was decoded whole, so it is what `mime` says.
    Image {
        /// Its real type.
        mime: &'static str,
        /// The bytes to show.
        bytes: Vec<u8>,
    },
}

impl ToolOutput {
    /// A success of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![Part::Text(text.into())], ..Self::default() }
    }

    /// A failure of one text: it names the file or command and the cause, and says what to do next.
    pub fn error(text: impl Into<String>) -> Self {
        Self { parts: vec![Part::Text(text.into())], is_error: true, details: None }
    }

    /// The same with machine-readable facts.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }
}
