//! What a node keeps on disk. The only place that names redb.

pub mod blobs;
pub mod bond;
mod damage;
pub mod disk;
#[cfg(test)]
pub(crate) mod faulty;
pub mod footing;
pub mod log;
pub mod medium;
pub mod node;
pub mod pair;
#[cfg(test)]
pub(crate) mod relics;
