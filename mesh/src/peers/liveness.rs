//! Whether a peer with work in flight is still there (failure rule F23). Pure: somebody else ticks once a second.

/// Ticks without a word after which a peer with work in flight counts as gone.
const QUIET_TICKS_MAX: u8 = 4;

/// What a tick asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// No work: nothing is said.
    Rest,
    /// Ask whether the peer is there.
    Ask,
    /// It did not answer for four seconds.
    Gone,
}

/// One connection's count. It counts ticks and not time, so that a device that slept itself does not blame the others.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    watching: bool,
    quiet: u8,
}

impl Liveness {
    /// A second has passed, or work has just begun.
    pub(super) fn tick(&mut self, working: bool) -> Beat {
        if !working {
            self.watching = false;
            return Beat::Rest;
        }
        if !self.watching {
            *self = Self { watching: true, quiet: 0 };
            return Beat::Ask;
        }
        self.quiet += 1;
        if self.quiet >= QUIET_TICKS_MAX { Beat::Gone } else { Beat::Ask }
    }

    /// The peer said something.
    pub(super) fn heard(&mut self) {
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_work_is_left_alone() {
        let mut liveness = Liveness::default();
        for _ in 0..10 {
            assert_eq!(liveness.tick(false), Beat::Rest);
        }
    }

    #[test]
    fn a_silent_peer_is_gone_at_the_fourth_second_and_one_that_answers_never() {
        let mut liveness = Liveness::default();
        let beats: Vec<Beat> = (0..5).map(|_| liveness.tick(true)).collect();
        assert_eq!(beats, [Beat::Ask, Beat::Ask, Beat::Ask, Beat::Ask, Beat::Gone]);
        let mut liveness = Liveness::default();
        for _ in 0..100 {
            assert_eq!(liveness.tick(true), Beat::Ask);
            liveness.heard();
        }
        let late: Vec<Beat> = (0..4).map(|_| liveness.tick(true)).collect();
        assert_eq!(late, [Beat::Ask, Beat::Ask, Beat::Ask, Beat::Gone], "four seconds after the last word");
    }

    #[test]
    fn silence_before_the_work_does_not_count() {
        let mut liveness = Liveness::default();
        assert_eq!([true, true, true].map(|working| liveness.tick(working)), [Beat::Ask; 3]);
        assert_eq!(liveness.tick(false), Beat::Rest);
        assert_eq!([true; 4].map(|working| liveness.tick(working)), [Beat::Ask; 4]);
    }
}
