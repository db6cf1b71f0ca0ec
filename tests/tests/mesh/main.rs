//! The mesh (design section 6): several real nodes that trust each other and serve all their sessions through any door.
//! On loopback, except `net`, which makes networks of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod delivery;
mod faults;
mod identity;
mod joining;
mod net;
mod scale;
mod strangers;
