//! The wire side of MCP and the only place that names rmcp: it decodes requests for [`crate::tools::Surface`] and encodes
//! what comes back. `Endpoint` speaks streamable HTTP, `lines` speaks JSON lines; both share one handler.
//!
//! One endpoint serves two eras. A 2026-07-28 request says so itself (header or `_meta`) and is stateless; older clients
//! shake hands with `initialize` and get an `Mcp-Session-Id`. rmcp runs stateless for both: its own session mode answers
//! two concurrent requests with one JSON-RPC id on one of them only, and puts a task and its queues behind every session.
//! So sessions are a small table of ours ([`sessions`]) and cancellation is a registry of ours ([`inflight`]).
//!
//! Nothing here opens a socket (that is `crate::doors`), knows a tool or touches storage.
//! Pure files: `caller`, `envelope`, `refusal`, `route`, `sessions`.

mod body;
mod caller;
mod delivery;
mod encode;
mod envelope;
mod exchange;
mod http;
mod inflight;
mod lines;
mod refusal;
mod reply;
mod route;
mod server;
mod sessions;

pub use delivery::Outbox;
pub use http::Endpoint;
pub use lines::{LinesError, serve_lines};
pub use refusal::Refusal;
pub use reply::Reply;
