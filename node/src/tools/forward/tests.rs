//! Calls over the wire.
