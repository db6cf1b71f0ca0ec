//! The program `chappie`. Start at [`app`], which builds everything in order; see docs/ARCHITECTURE.md for the map.

pub mod app;
pub mod broker;
pub mod budget;
pub mod cli;
pub mod clock;
pub mod config;
pub mod content;
pub mod control;
pub mod doors;
pub mod fleet;
pub mod host;
pub mod ids;
pub mod mcp;
pub mod sessions;
pub mod storage;
pub mod telemetry;
pub mod tools;
