//! Where other devices are. Nothing here says that a device is trusted.

mod book;
mod interfaces;
mod local;
mod mdns;
mod neighbours;

pub use book::{AddressBook, CANDIDATES_MAX, HostPort, HostPortError, NODES_MAX, Source};
pub use local::local_addresses;
pub use mdns::{DiscoveryError, Mdns};
#[cfg(test)]
pub(crate) use neighbours::Announcement;
pub use neighbours::Sighting;
