//! One log that a mesh agrees on, and the member that may add to it: the engine is openraft (design section 6; failure rules
//! F10 to F17). Knows commands as bytes; what they mean, where they are kept and how questions travel is told to it.

mod api;
mod clock;
mod driver;
mod log;
mod machine;
mod member;
mod network;
mod office;
mod pace;
mod policy;
mod presence;
mod runtime;
mod seed;
mod serve;
mod shared;
mod tend;
mod types;
mod wire;
mod writer;

pub use api::{
    Carrier, CommitError, Epoch, Follower, Group, LogStore, Machine, MemberId, Office, Pace, Persisted, Standing,
    StoreId, Unreached, Voting, Write,
};
pub use member::{Consensus, Settings, StartError};
pub use presence::Said;
pub use seed::{Contents, contents, seed};
pub use wire::{Question, other_group};

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod storage_tests;
#[cfg(test)]
mod tests;
