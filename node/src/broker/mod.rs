//! The broker: shared decisions — which conversation works in which session, which operations ran, which late results
//! were delivered. Design sections 4 to 7; behaviour 6, 8, 10, 11.
//!
//! Pure, replicated-ready files (no clock, no I/O, no randomness, ordered maps only): [`limits`], [`meshtime`],
//! [`state`], [`bindings`], [`membership`], [`merge`], [`command`], [`apply`], [`receipts`], [`volatile`], [`select`],
//! [`query`], [`import`], [`errors`]. Time
//! reaches them in a command's stamp or as an argument. The drivers are [`handle`] and [`selecting`], what the rest of
//! the program may use, and `writer`, the one thread through which every change goes: stamp, append to the log, apply,
//! reply.
//!
//! It is not where work runs: sessions, journals and payloads belong to the session node.

pub mod apply;
pub mod bindings;
pub mod command;
pub mod errors;
pub mod handle;
pub mod import;
pub mod limits;
pub mod membership;
pub mod merge;
pub mod meshtime;
pub mod query;
pub mod receipts;
pub mod select;
pub mod selecting;
pub mod state;
pub mod volatile;
mod writer;

pub use command::{Resolve, Settlement};
pub use errors::{AdmitError, ForgetError, InviteError, OpenError, ProposeError, ResolveError, SelectError};
pub use handle::{Broker, Reserve, Reserved, Settings, read_state_file};
pub use import::{ImportError, ImportReport, Imported, ImportedBinding};
pub use merge::{Belongings, MergeReport};
pub use receipts::{
    Receipt, ReceiptKey, ReceiptKind, ReceiptScope, ReceiptStatus, ResourceRefData, receipt_key, signature,
};
pub use select::{How, Purpose};
pub use selecting::{Ask, Selection};
pub use volatile::{Announced, Bound, Mode};

#[cfg(test)]
mod tests;
