//! A few fixed seeds for every run of the tests; the swarm has the rest.

use super::*;

/// Runs a seed, and gives what its trace comes to.
fn traced(scenario: Scenario, seed: u64) -> (u64, u64) {
    let options = Options::default();
    let tally = run(scenario, seed, options.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(tally.faults() > 0 && tally.of("Operations") > 0, "{tally}");
    options.took.trace().map(|trace| trace.digest()).expect("a seed that ran has a trace")
}

#[test]
fn the_same_seed_gives_the_same_trace_of_consensus_alone() {
    assert_eq!(traced(Scenario::Quorum, 3), traced(Scenario::Quorum, 3));
    assert_ne!(traced(Scenario::Quorum, 3), traced(Scenario::Quorum, 4));
}

#[test]
fn the_same_seed_gives_the_same_trace_of_whole_nodes() {
    assert_eq!(traced(Scenario::Whole, 2), traced(Scenario::Whole, 2));
}

#[test]
fn a_vote_that_is_not_written_down_is_found() {
    let broken = |seed| run(Scenario::Quorum, seed, Options { broken: Some(Broken::Vote), ..Options::default() });
    assert!((100..120).any(|seed| broken(seed).is_err()));
}
