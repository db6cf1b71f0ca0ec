//! Whether `consensus.redb` and `node.redb` are of the same past (failure rule F15): a copy of one that was put back while
//! the other went on is recognised. Pure.
//!
//! A start writes three times: its run to `consensus.redb`, then to `node.redb`, then to `consensus.redb` that both have it.
//! In this order a crash in between never looks like an older `consensus.redb` put back, whose votes are forgotten.

use chappie_mesh::Incarnation;

/// What the run in `consensus.redb` is to the one in `node.redb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// Both have the last start.
    Whole,
    /// The last start ended after it wrote the first of them. Nothing is lost.
    CutOff,
    /// One of them is older than the other, or not of this device: the store must not vote under the number it had.
    Restored,
}

/// The verdict on a store whose last run was `kept`, and `settled` when that was written to both. `run` is the start that
/// asks: [`Incarnation::next`] of what `node.redb` has, which is not written yet.
#[must_use]
pub fn bond(run: &Incarnation, kept: &Incarnation, settled: bool) -> Bond {
    let follows = kept.generation.checked_add(1) == Some(run.generation) && kept.nonce == run.previous;
    let instead = kept.generation == run.generation && kept.previous == run.previous;
    if kept == run || follows {
        Bond::Whole
    } else if instead && !settled {
        Bond::CutOff
    } else {
        Bond::Restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(nonces: &[u8]) -> Incarnation {
        let (first, later) = nonces.split_first().unwrap();
        later.iter().fold(Incarnation::first([*first; 16]), |run, nonce| run.next([*nonce; 16]))
    }

    #[test]
    fn only_the_same_past_and_a_start_that_was_cut_off_are_no_restoration() {
        use Bond::{CutOff, Restored, Whole};
        /// The starts that node.redb has, those that consensus.redb has, whether its last one is settled.
        type Case = (&'static [u8], &'static [u8], bool, Bond, &'static str);
        let cases: [Case; 14] = [
            (&[1], &[1], true, Whole, "the second start"),
            (&[1, 2, 3], &[1, 2, 3], true, Whole, "as every day"),
            (&[1, 2, 3], &[1, 2, 3], false, Whole, "cut off before it was settled"),
            (&[], &[1], false, CutOff, "the first start was cut off"),
            (&[1, 2], &[1, 2, 3], false, CutOff, "cut off between the two"),
            (&[], &[1], true, Restored, "node.redb was lost after the first start"),
            (&[1, 2], &[1, 2, 3], true, Restored, "node.redb put back, by one start"),
            (&[1], &[1, 2, 3], true, Restored, "node.redb put back, by two"),
            (&[1], &[1, 2, 3], false, Restored, "the same, and the last start was cut off"),
            (&[], &[1, 2, 3], true, Restored, "node.redb was lost"),
            (&[1, 2, 3], &[1, 2], true, Restored, "consensus.redb put back, by one start"),
            (&[1, 2, 3], &[1, 2], false, Restored, "consensus.redb put back, of a moment in its start"),
            (&[1, 2, 3], &[1], true, Restored, "consensus.redb put back, by two"),
            (&[1, 2, 3], &[1, 2, 4], true, Restored, "of another branch"),
        ];
        for (node, log, settled, expected, what) in cases {
            let fresh = [9; 16];
            let run = if node.is_empty() { Incarnation::first(fresh) } else { chain(node).next(fresh) };
            assert_eq!(bond(&run, &chain(log), settled), expected, "{what}");
        }
    }

    #[test]
    fn reopening_within_a_run_is_whole() {
        let run = chain(&[1, 2]);
        assert_eq!(bond(&run, &run, false), Bond::Whole);
        assert_eq!(bond(&run, &run, true), Bond::Whole);
    }
}
