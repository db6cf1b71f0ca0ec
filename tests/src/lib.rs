//! What needs more than one crate, a real process or a real client. This library is the vocabulary of the tests beside
//! it: a world of throw-away folders, the real program in it, clients that speak MCP over raw HTTP and pipes, and a double
//! of ChatGPT. It holds no test and decides nothing for the product.
//!
//! A step that cannot be done panics with what was expected and found: a test fails that way, so nothing here returns
//! errors that no test looks at.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod answer;
pub mod chatgpt;
pub mod client;
pub mod disk;
pub mod election;
pub mod files;
pub mod ledger;
pub mod mesh;
pub mod net;
pub mod node;
pub mod process;
pub mod random;
pub mod real;
pub mod recorder;
pub mod riding;
pub mod stdio;
pub mod stranger;
pub mod tokens;
pub mod wait;
pub mod wire;
pub mod world;

pub use answer::Answer;
pub use client::{Client, Revision};
pub use node::Node;
pub use wait::eventually;
pub use world::World;
