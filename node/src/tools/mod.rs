//! The MCP tools, one file each, behind [`Surface`]: `mcp` decodes and encodes, `tools` decides and calls handles.
//! Nothing here names rmcp, HTTP, redb or a host's internals.

pub mod surface;

pub use surface::{
    Annotations, Answer, Caller, Content, Request, ResourceError, ResourceRead, Surface, Ticket, ToolSpec, UnknownTool,
};
