//! The MCP tools, one file each, behind [`Surface`]: `mcp` decodes and encodes, `tools` decides and calls handles.
//! Nothing here names rmcp, HTTP, redb or a host's internals.

mod arguments;
mod bash;
mod call;
mod chat;
mod compose;
mod direct;
mod edit;
pub mod forward;
mod history;
mod init;
mod initialization;
mod operate;
mod preferring;
mod read;
mod replay;
mod resources;
mod riding;
mod sessions;
pub mod surface;
mod toolbox;
#[expect(clippy::module_inception, reason = "the tool is called tools")]
mod tools;
mod write;

pub use preferring::Preferring;
pub use surface::{
    Annotations, Answer, Assign, Assigned, Caller, Content, Request, ResourceError, ResourceRead, Sent, Surface,
    Ticket, ToolSpec, UnknownTool,
};
pub use toolbox::Toolbox;

#[cfg(test)]
mod tests;
