//! A deterministic world for the mesh: seeded clock, network, disk and crash. Nothing is simulated yet, because one node
//! has no network; it comes with the elected broker (design section 13). No crate of ours inside its core.
