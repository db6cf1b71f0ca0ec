//! What a client is told when nobody acts as broker: who is missing and what to do (design section 6). Pure.

use std::collections::BTreeSet;

use chappie_mesh::{NodeId, Roster, consensus::Standing};

/// How long ago the leader may have heard of a voter that counts as there, milliseconds: some heartbeats of the slowest pace.
const HEARD_MS: u64 = 2_000;

/// The voters of `standing` that `own` cannot reach. `connected`: whom it has a connection to, which tells for as long as
/// nobody was asked: a connection to a device that died looks well for seconds.
#[must_use]
pub fn missing(standing: &Standing, own: &NodeId, connected: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let leads = standing.leader == Some(*own);
    let there = |voter: &NodeId| {
        if voter == own {
            return standing.trouble.is_none();
        }
        if let Some(answering) = &standing.answering {
            return answering.contains(voter);
        }
        let heard = standing.followers.get(voter).and_then(|follower| follower.answered_ms);
        connected.contains(voter) && (!leads || heard.is_none_or(|ms| ms <= HEARD_MS))
    };
    standing.voters.iter().filter(|voter| !there(voter)).copied().collect()
}

/// Why there is no broker, and what to do, in sentences that name the devices.
#[must_use]
pub fn nobody(standing: &Standing, own: &NodeId, roster: &Roster, connected: &BTreeSet<NodeId>) -> String {
    let missing = missing(standing, own, connected);
    let (all, away) = (standing.voters.len(), missing.len());
    let quorum = all / 2 + 1;
    let names = missing.iter().map(|voter| roster.label(voter)).collect::<Vec<_>>().join(", ");
    if let Some(trouble) = standing.trouble.as_ref().filter(|_| all - away < quorum) {
        return format!("there is no broker: this device's log cannot be used ({trouble}){}", others(&names));
    }
    if all == 0 {
        let broker = roster.label(&roster.broker);
        return format!(
            "this device has not heard from the broker of its mesh yet; {broker} was it last. Start `chappie up` there, or bring \
             both devices onto one network"
        );
    }
    if all - away >= quorum {
        return format!("the devices are agreeing on a new broker just now; try again in a moment{}", others(&names));
    }
    let word = if all == 1 {
        format!(
            "the broker's device {names} cannot be reached, and no other device may stand in for it. Missing: {names}. Start \
             `chappie up` there, or bring it back to the network"
        )
    } else {
        format!(
            "there is no broker: {} of {all} devices that elect one can be reached, and {quorum} must be. Missing: {names}. \
             Start `chappie up` there, or bring them back to the network",
            if away == all { "none".to_owned() } else { (all - away).to_string() }
        )
    };
    if away * 2 > all {
        format!(
            "{word}. If that is lost for good, run `chappie mesh recover` on a device that is left: never while what \
             is missing may still run somewhere"
        )
    } else {
        word
    }
}

/// The voters that are away, when some are.
fn others(names: &str) -> String {
    if names.is_empty() { String::new() } else { format!(". Away: {names}") }
}

#[cfg(test)]
mod tests {
    use chappie_mesh::consensus::Follower;

    use super::*;
    use crate::fleet::testing::{node, roster, standing};

    fn told(voters: &[u8], connected: &[u8]) -> String {
        let mut standing = standing(1, None, None);
        standing.voters = voters.iter().copied().map(node).collect();
        nobody(&standing, &node(1), &roster(), &connected.iter().copied().map(node).collect())
    }

    #[test]
    fn who_is_missing_is_named_and_recover_only_when_more_than_half_are() {
        for (voters, connected, missing, recover) in [
            (&[1, 2, 3][..], &[][..], "two, three", true),
            (&[1, 2, 3], &[2], "", false),
            (&[2], &[], "two", true),
            (&[1, 2], &[], "two", false),
            (&[1, 2, 3], &[2, 3], "", false),
        ] {
            let word = told(voters, connected);
            let lacks = voters.iter().filter(|voter| **voter != 1 && !connected.contains(voter)).count();
            let quorum = voters.len() / 2 + 1;
            assert_eq!(word.contains("Missing: "), voters.len() - lacks < quorum, "{voters:?} {connected:?}: {word}");
            assert!(word.contains(missing), "{voters:?} {connected:?}: {word}");
            assert_eq!(word.contains("mesh recover"), recover, "{voters:?} {connected:?}: {word}");
        }
        assert!(
            told(&[1, 2, 3], &[2]).contains("agreeing on a new broker") && told(&[1, 2, 3], &[2]).contains("three")
        );
        assert!(told(&[], &[]).contains("has not heard"));
    }

    #[test]
    fn without_a_leader_a_voter_is_there_when_its_member_answers_and_not_when_its_connection_looks_well() {
        let mut standing = standing(1, None, None);
        let all: BTreeSet<NodeId> = [node(2), node(3)].into();
        for (answering, away) in [(&[][..], &[2, 3][..]), (&[2], &[3]), (&[2, 3], &[])] {
            standing.answering = Some(answering.iter().copied().map(node).collect());
            let away: BTreeSet<NodeId> = away.iter().copied().map(node).collect();
            assert_eq!(missing(&standing, &node(1), &all), away, "{answering:?}");
            assert_eq!(missing(&standing, &node(1), &BTreeSet::new()), away, "{answering:?}, and no connection");
        }
    }

    #[test]
    fn a_leader_counts_who_answers_it_and_a_failed_log_is_said() {
        let mut standing = standing(1, Some(1), None);
        let all: BTreeSet<NodeId> = [node(2), node(3)].into();
        for (number, ms) in [(2, 9_000), (3, 10)] {
            standing.followers.insert(node(number), Follower { lag: 0, answered_ms: Some(ms) });
        }
        assert_eq!(missing(&standing, &node(1), &all), [node(2)].into(), "connected, and silent for long");
        standing.trouble = Some("disk full".into());
        let word = nobody(&standing, &node(1), &roster(), &all);
        assert!(word.contains("disk full") && word.contains("two"), "{word}");
    }
}
