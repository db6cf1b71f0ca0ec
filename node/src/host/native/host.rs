//! `NativeHost`: runs batches with the tools of this folder. What a tool does is its own file; the order of a batch is
//! [`batch`], which is pure; what a session offers besides tools is `skills`.
//!
//! No queue, no journal, no retry: `sessions` has these.

mod batch;
mod skills;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Part, ToolContext, ToolEnv, ToolOutput, bash, check_folder, edit, find, grep, locks::PathLocks, ls, process,
    process_table::Table, read, seen::SeenFiles, write,
};
use crate::{
    budget::TextBudget,
    content::{Block, JsonObject, ToolCall, ToolResult},
    host::{BoxFuture, CallContext, Host, HostError, HostKind, Inspection, ToolDefinition},
    ids::SessionId,
    storage::blobs::Blobs,
};

/// Images in one answer: more than a model looks at, and an answer of all members must stay a size that clients take.
const IMAGES_MAX: usize = 8;

/// Bytes of all images in one answer.
const IMAGE_BYTES_MAX: usize = 12 * 1024 * 1024;

/// What all native sessions of a node share; makes their hosts.
#[derive(Clone, Debug)]
pub struct NativeHosts {
    node_home: PathBuf,
    home: PathBuf,
    blobs: Blobs,
    locks: PathLocks,
    seen: SeenFiles,
}

impl NativeHosts {
    /// For the node of `node_home` (`CHAPPIE_HOME`), whose user's home folder is `home`.
    #[must_use]
    pub fn new(node_home: &Path, home: &Path, blobs: Blobs) -> Self {
        let (locks, seen) = Default::default();
        Self { node_home: node_home.to_owned(), home: home.to_owned(), blobs, locks, seen }
    }

    /// The host of `session` in `cwd`. Inside a tokio runtime it also looks after the processes that an earlier run of
    /// the node left to the session.
    #[must_use]
    pub fn host(&self, session: &SessionId, cwd: &Path) -> Arc<NativeHost> {
        let env = ToolEnv {
            session: session.clone(),
            cwd: cwd.to_owned(),
            home: self.home.clone(),
            outputs: self.node_home.join("outputs").join(session.as_str()),
            node_home: self.node_home.clone(),
            locks: self.locks.clone(),
            seen: self.seen.clone(),
        };
        let table = Table::new(&self.node_home, session);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || table.adopt());
        }
        Arc::new(NativeHost { env, blobs: self.blobs.clone() })
    }
}

/// One session's host.
#[derive(Debug)]
pub struct NativeHost {
    env: ToolEnv,
    blobs: Blobs,
}

impl Host for NativeHost {
    fn kind(&self) -> HostKind {
        HostKind::Native
    }

    fn inspect(&self) -> BoxFuture<'_, Result<Inspection, HostError>> {
        let (cwd, node_home) = (self.env.cwd.clone(), self.env.node_home.clone());
        Box::pin(async move {
            let inspected = tokio::task::spawn_blocking(move || inspect(&cwd, &node_home)).await;
            inspected
                .unwrap_or_else(|error| Err(HostError::Folder { path: self.env.cwd.clone(), cause: error.to_string() }))
        })
    }

    fn call(self: Arc<Self>, calls: Vec<ToolCall>, context: CallContext) -> BoxFuture<'static, Vec<ToolResult>> {
        Box::pin(async move { self.run(calls, context).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let table = Table::new(&self.env.node_home, &self.env.session);
        Box::pin(async move {
            if let Err(error) = tokio::task::spawn_blocking(move || table.close()).await {
                tracing::error!(%error, "ending the processes of a session failed");
            }
        })
    }

    fn reads_only(&self, calls: &[ToolCall]) -> bool {
        calls.iter().all(batch::reads_only)
    }
}

fn inspect(cwd: &Path, node_home: &Path) -> Result<Inspection, HostError> {
    check_folder(cwd)?;
    let agents = node_home.join("AGENTS.md");
    Ok(Inspection {
        tools: definitions(),
        skills: skills::find(&[&cwd.join(".agents/skills"), &node_home.join("skills")]),
        global_agents: agents.is_file().then_some(agents),
    })
}

/// The tools, in the order in which they are shown.
fn definitions() -> Vec<ToolDefinition> {
    vec![
        read::definition(),
        bash::definition(),
        edit::definition(),
        write::definition(),
        grep::definition(),
        find::definition(),
        ls::definition(),
        process::definition(),
    ]
}

/// Runs the tool called `name`.
async fn run_tool(name: &str, arguments: JsonObject, env: &ToolEnv, context: &ToolContext) -> ToolOutput {
    match name {
        "read" => read::run(arguments, env, context).await,
        "bash" => bash::run(arguments, env, context).await,
        "edit" => edit::run(arguments, env, context).await,
        "write" => write::run(arguments, env, context).await,
        "grep" => grep::run(arguments, env, context).await,
        "find" => find::run(arguments, env, context).await,
        "ls" => ls::run(arguments, env, context).await,
        "process" => process::run(arguments, env, context).await,
        _ => ToolOutput::error(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<String> = definitions().into_iter().map(|tool| tool.name).collect();
    // A name comes from outside and may be long.
    let shown: String = name.chars().take(80).collect();
    format!("no tool {shown:?} in this session; it has {}", names.join(", "))
}

impl NativeHost {
    async fn run(self: Arc<Self>, calls: Vec<ToolCall>, context: CallContext) -> Vec<ToolResult> {
        let mut answer = Answer { blobs: self.blobs.clone(), left: context.budget, images: 0, image_bytes: 0 };
        let mut results = Vec::with_capacity(calls.len());
        for step in batch::steps(&calls) {
            // Each member may have an equal part of what is left to it and to those after it.
            let share = answer.left.share(calls.len() - step.start);
            let running: Vec<_> = calls[step.clone()]
                .iter()
                .map(|call| tokio::spawn(Arc::clone(&self).member(call.clone(), context.clone(), share)))
                .collect();
            for (call, member) in calls[step].iter().zip(running) {
                let output = member.await.unwrap_or_else(|error| {
                    ToolOutput::error(format!(
                        "{} failed by a fault of chappie ({error}); look at what it was to change before trying again",
                        call.name
                    ))
                });
                results.push(answer.result(call, output, share).await);
            }
        }
        results
    }

    async fn member(self: Arc<Self>, call: ToolCall, context: CallContext, budget: TextBudget) -> ToolOutput {
        if context.cancel.is_cancelled() {
            return ToolOutput::error(format!("cancelled before {} started; nothing was done", call.name));
        }
        if let Err(error) = check_folder(&self.env.cwd)
            && !batch::needs_no_folder(&call)
        {
            return ToolOutput::error(error.to_string());
        }
        let context = ToolContext {
            call_id: context.call_id,
            member: call.id,
            cancel: context.cancel,
            reader: context.reader,
            budget,
        };
        run_tool(&call.name, call.arguments, &self.env, &context).await
    }
}

/// What an answer has taken so far.
struct Answer {
    blobs: Blobs,
    left: TextBudget,
    images: usize,
    image_bytes: usize,
}

impl Answer {
    /// Turns a tool's output into a result: images go to the blob store, text stays inside `share`.
    async fn result(&mut self, call: &ToolCall, output: ToolOutput, share: TextBudget) -> ToolResult {
        let mut left = share;
        let mut content = Vec::with_capacity(output.parts.len());
        for part in output.parts {
            let block = match part {
                Part::Text(text) => Block::Text { text: fitted(text, left) },
                Part::Image { mime, bytes } => self.image(mime, bytes).await,
            };
            if let Block::Text { text } = &block {
                left = left.minus(text);
                self.left = self.left.minus(text);
            }
            content.push(block);
        }
        let (id, name) = (call.id.clone(), call.name.clone());
        ToolResult { id, name, is_error: output.is_error, content, details: output.details }
    }

    async fn image(&mut self, mime: &'static str, bytes: Vec<u8>) -> Block {
        let size = bytes.len();
        if self.images == IMAGES_MAX || self.image_bytes + size > IMAGE_BYTES_MAX {
            return Block::text(format!(
                "[an image of {size} bytes was left out: one answer holds {IMAGES_MAX} images and {IMAGE_BYTES_MAX} \
                 bytes of them; read it in a call of its own]"
            ));
        }
        let blobs = self.blobs.clone();
        let kept = tokio::task::spawn_blocking(move || blobs.put(&bytes, mime)).await;
        match kept.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(image) => {
                self.images += 1;
                self.image_bytes += size;
                Block::Image(image)
            }
            Err(cause) => Block::text(format!("[the image could not be kept and is not shown: {cause}]")),
        }
    }
}

/// Tools cut their own output with advice; this only holds the limit when a member's part is too small for that.
fn fitted(text: String, budget: TextBudget) -> String {
    const CUT: &str = "…[cut]";
    if budget.fits(&text) {
        return text;
    }
    let head = budget.minus(CUT).head(&text);
    format!("{head}{CUT}")
}

#[cfg(test)]
mod tests;
