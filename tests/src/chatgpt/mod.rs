//! A double of ChatGPT as an MCP client. Each thing that ChatGPT is known to do is a switch with its source, so that a
//! test can say which of them it is about, and `tests/double.rs` shows that every switch changes what is on the wire or
//! what the model gets. No live ChatGPT was seen: the sources are second hand, see docs/TESTING.md.

mod double;

pub use double::{ChatGpt, Outcome, View};

use std::time::Duration;

/// What the double does. [`Switches::chatgpt`] is ChatGPT as it is known; [`Switches::none`] a plain client.
///
/// Sources name sections of the project's research notes on ChatGPT, which quote captures of August to October 2026.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Sends `server/discover` first, with the JSON-RPC id `openai-mcp-discover`, naming 2026-07-28.
    /// Source: notes 1.1, "Client sends server/discover first" (capture 2026-08-27).
    pub discover_first: bool,
    /// When discovery is answered with HTTP 400, goes on with `initialize` for 2025-11-25. Without it, gives up.
    /// Source: notes 1.1, "on a 400 it falls back to initialize" (same capture).
    pub fall_back: bool,
    /// Puts `openai/session`, `subject`, `organization`, `locale`, `userAgent` and `userLocation` into `_meta` of every
    /// tool call. Source: notes 1.2, the official table and "all six present".
    pub openai_meta: bool,
    /// Sends `x-openai-session` and `x-openai-subject` with tool calls, and the user agent `openai-mcp/1.0.0`.
    /// Source: notes 1.1 (client name and user agent) and 1.2 (headers).
    pub openai_headers: bool,
    /// Never sends back the `Mcp-Session-Id` that a server issued. Source: notes 1.1, "no Mcp-Session-Id sent/needed".
    pub drop_session_id: bool,
    /// Gives a call up after this time by closing its connection, without a cancellation. 60 s at ChatGPT; tests scale.
    /// Source: notes 1.3, "Tool calls time out after ~60 s".
    pub cut_at: Option<Duration>,
    /// Sends every tool call twice at the same moment, under two JSON-RPC ids.
    /// Source: notes 1.3, "ChatGPT re-runs/duplicates executions".
    pub duplicates: bool,
    /// Shows the model at most so many tokens (o200k) of `content` and `structuredContent` together; 10,000 at ChatGPT.
    /// Source: notes 1.3, "truncates tool responses exceeding 10,000 tokens".
    pub truncate_at: Option<usize>,
    /// Sends no `progressToken`. Source: notes 1.2, "no progressToken".
    pub no_progress_token: bool,
}

impl Switches {
    /// ChatGPT as it is known, but without duplicates, which it makes only now and then.
    #[must_use]
    pub const fn chatgpt() -> Self {
        Self {
            discover_first: true,
            fall_back: true,
            openai_meta: true,
            openai_headers: true,
            drop_session_id: true,
            cut_at: Some(Duration::from_secs(60)),
            duplicates: false,
            truncate_at: Some(10_000),
            no_progress_token: true,
        }
    }

    /// A plain, patient client that does none of it.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            discover_first: false,
            fall_back: false,
            openai_meta: false,
            openai_headers: false,
            drop_session_id: false,
            cut_at: None,
            duplicates: false,
            truncate_at: None,
            no_progress_token: false,
        }
    }
}
