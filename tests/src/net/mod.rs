//! Networks that a test makes for itself: machines as network namespaces ([`Namespace`]), a switch between them ([`Lan`]), a
//! long thin line between two of them ([`Wan`]), and what went over the wire ([`Capture`]). All of it is real Linux
//! networking; nothing here knows of Chappie. It needs root, as only root may make namespaces with devices between
//! them; without it a test fails and says so.

mod capture;
mod lan;
mod line;
mod namespace;
mod wan;

pub use capture::{Capture, contains};
pub use lan::{Device, Lan};
pub use line::Line;
pub use namespace::Namespace;
pub use wan::Wan;
