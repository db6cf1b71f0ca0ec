//! The real code in the world: devices that boot what `chappie up` boots, scenarios that shake them, and checkers.

mod bed;
mod changes;
mod clients;
mod counters;
mod device;
mod host;
mod ledger;
mod member;
mod node;
mod options;
mod quorum;
mod whole;

pub use counters::{Counters, REQUIRED, Tally};
pub use options::{Broken, Options, Took};

use crate::world::run::simulate;

/// What runs on the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scenario {
    /// Consensus alone.
    Quorum,
    /// Whole nodes, and chats at their doors.
    #[default]
    Whole,
}

/// Runs one seed.
///
/// # Errors
/// In words, what was found to be wrong.
pub fn run(scenario: Scenario, seed: u64, options: Options) -> Result<Tally, String> {
    match scenario {
        Scenario::Quorum => simulate(seed, move |seed| quorum::run(seed, options)),
        Scenario::Whole => simulate(seed, move |drawn| whole::run(drawn, seed, options)),
    }
}

#[cfg(test)]
mod tests;
