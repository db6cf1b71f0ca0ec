//! The elected broker (design sections 5 to 7 and 13), with real processes: devices that are killed, paused, cut off,
//! wiped and brought back while calls run. A ledger outside the product counts what ran. On loopback, except
//! `partition`, which makes networks of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod carried;
mod failover;
mod members;
mod partition;
mod paused;
mod planned;
mod quorum;
mod restored;
mod storage;
mod wiped;
