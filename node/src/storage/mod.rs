//! What a node keeps on disk. The only place that names redb.

pub mod blobs;
pub mod consensus;
mod damage;
pub mod disk;
pub mod node;
pub mod pair;
