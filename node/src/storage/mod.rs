//! What a node keeps on disk. The only place that names redb.

pub mod blobs;
pub mod consensus;
pub mod disk;
pub mod node;
