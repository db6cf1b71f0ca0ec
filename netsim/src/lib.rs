//! A deterministic world for the mesh (design section 13). [`world`] is the world alone: seed, clock, network, disk,
//! crash; it names no crate of ours. [`fleet`] runs our real code in it.

// rustdoc gets flags of its own and runs nothing.
#[cfg(not(any(tokio_unstable, doc)))]
compile_error!("netsim seeds tokio's own choices: build with `--cfg tokio_unstable`, as .cargo/config.toml says");

pub mod fleet;
pub mod world;
