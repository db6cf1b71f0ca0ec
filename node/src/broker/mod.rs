//! The broker: shared decisions — which conversation works in which session, which operations ran, which late results
//! were delivered. Design sections 4 to 7; behaviour 6, 8, 10, 11.
//!
//! Pure files (no clock, no I/O, no randomness, ordered maps only): [`limits`], [`meshtime`], [`state`], [`bindings`],
//! [`membership`], [`merge`], [`reannounce`], [`command`], [`apply`], [`receipts`], [`volatile`], [`select`], [`query`],
//! [`import`], [`errors`], `begin`, [`follow`], [`prefer`]. Time reaches them in a command's stamp or as an argument.
//!
//! The same state stands on every member of the group: its log is `chappie_mesh::consensus`, and `machine` applies what that
//! commits. The drivers are [`handle`] and [`selecting`], what the rest of the program may use; `writer`, the one task
//! through which this device's commands go (stamp, propose, reply); and `council`, the one task that owns the store, and
//! so which group the device belongs to.
//!
//! It is not where work runs: sessions, journals and payloads belong to the session node.

pub mod apply;
mod begin;
pub mod bindings;
pub mod command;
mod council;
pub mod errors;
pub mod follow;
pub mod handle;
pub mod import;
pub mod limits;
mod machine;
pub mod membership;
pub mod merge;
pub mod meshtime;
pub mod prefer;
pub mod query;
pub mod reannounce;
pub mod receipts;
pub mod select;
pub mod selecting;
mod shared;
pub mod state;
#[cfg(test)]
pub(crate) mod testing;
pub mod volatile;
mod writer;

pub use command::{Resolve, Settlement};
pub use council::{Place, Split};
pub use errors::{AdmitError, ForgetError, InviteError, OpenError, ProposeError, ResolveError, SelectError};
pub use handle::{Broker, Reserve, Reserved, Settings, read_state_file};
pub use import::{ImportError, ImportReport, Imported, ImportedBinding};
pub use merge::{Belongings, MergeReport};
pub use reannounce::Reannounced;
pub use receipts::{
    Receipt, ReceiptKey, ReceiptKind, ReceiptScope, ReceiptStatus, ResourceRefData, receipt_key, signature,
};
pub use select::{How, Purpose};
pub use selecting::{Ask, Selection};
pub use volatile::{Announced, Bound, Mode};

#[cfg(test)]
mod tests;
