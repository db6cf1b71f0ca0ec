//! One log that a mesh agrees on, and the member that may add to it: the engine is openraft (design section 6; failure rules
//! F10 to F17). Knows commands as bytes; what they mean, where they are kept and how questions travel is told to it.

mod api;

pub use api::{
    Carrier, CommitError, Epoch, Follower, Group, LogStore, Machine, MemberId, Office, Pace, Persisted, Standing,
    StoreId, Unreached, Voting, Write,
};
