//! A deterministic world: a seed, a clock, a network, disks, processes that crash and stand still, and faults. It knows
//! nothing of what runs in it; no crate of ours is named here, so that what it shows of our code it does not owe to it.

pub mod clock;
pub mod disk;
pub mod fault;
pub mod net;
pub mod process;
pub mod run;
pub mod seed;
pub mod trace;
