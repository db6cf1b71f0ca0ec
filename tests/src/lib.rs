//! What needs more than one crate, a real process or a real client.
