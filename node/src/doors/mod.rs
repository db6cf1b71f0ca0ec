//! Where MCP enters: HTTP on loopback ([`http`]) and JSON lines over stdio or a socket ([`stdio`]). A door owns its sockets,
//! their limits and its orderly stop; what the bytes mean is `crate::mcp`'s.

mod guard;
pub mod http;
pub mod stdio;
#[cfg(test)]
mod tests;
mod watched;
