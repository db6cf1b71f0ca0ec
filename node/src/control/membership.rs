//! The decisions around who belongs to the mesh that need no broker: how long an invite may stand, whom a word names, and
//! whether this device may use a code. Pure; what follows from them is done behind [`Commands`](super::Commands).

use chappie_mesh::{MeshId, NodeId, Roster};

use super::CommandError;

/// Uses of an invite when nothing else is said.
pub const USES_DEFAULT: u32 = 1;
/// A fleet that one code shall bring in; more codes can be made.
pub const USES_MAX: u32 = 1_000;
/// How long an invite stands when nothing else is said: time to walk over to the other device.
pub const TTL_DEFAULT_MS: u64 = 10 * 60 * 1_000;
/// Shorter, and it is over before it is typed.
pub const TTL_MIN_MS: u64 = 10 * 1_000;
/// Longer, and it is a password that somebody finds in a script: seven days.
pub const TTL_MAX_MS: u64 = 7 * 24 * 60 * 60 * 1_000;
/// Shorter is too easily typed by mistake for a device that cannot come back by itself.
const PREFIX_MIN: usize = 4;
/// How many devices a message lists.
const LISTED_MAX: usize = 8;

/// Whether an invite may be made so.
///
/// # Errors
/// When it could be used too often or stands too short or too long.
pub fn terms(uses: u32, ttl_ms: u64) -> Result<(), CommandError> {
    if !(1..=USES_MAX).contains(&uses) {
        return Err(CommandError::new(format!("an invite can be used 1 to {USES_MAX} times, not {uses}")));
    }
    if !(TTL_MIN_MS..=TTL_MAX_MS).contains(&ttl_ms) {
        return Err(CommandError::new(format!("an invite stands for 10 s to 7 d, not {ttl_ms} ms")));
    }
    Ok(())
}

/// The member that `word` names: its id, a unique prefix of the id with or without dashes, or its name.
///
/// # Errors
/// When it names none or several; the message lists what there is.
pub fn named(roster: &Roster, word: &str) -> Result<NodeId, CommandError> {
    let fits = matching(roster.members.iter().map(|(node, member)| (node.to_string(), member.name.as_str())), word);
    let ids: Vec<NodeId> = roster.members.keys().copied().collect();
    match fits.as_slice() {
        [only] => Ok(ids[*only]),
        [] => {
            let there = list(ids.iter().map(|id| roster.label(id)));
            Err(CommandError::new(format!("no device {word:?} in this mesh; there are: {there}")))
        }
        several => {
            let several = list(several.iter().map(|at| ids[*at].to_string()));
            Err(CommandError::new(format!("{word:?} fits several devices; give more of the id: {several}")))
        }
    }
}

/// Where in `devices` (id and name) those stand that `word` names. A whole id wins over a name, a name over a prefix.
pub fn matching<'a>(devices: impl Iterator<Item = (String, &'a str)>, word: &str) -> Vec<usize> {
    let plain = |text: &str| text.replace('-', "").to_ascii_uppercase();
    let wanted = plain(word.trim());
    let (mut whole, mut names, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (id, name)) in devices.enumerate() {
        let id = plain(&id);
        if id == wanted {
            whole.push(at);
        }
        if name == word.trim() {
            names.push(at);
        }
        if wanted.len() >= PREFIX_MIN && id.starts_with(&wanted) {
            prefixes.push(at);
        }
    }
    [whole, names, prefixes].into_iter().find(|fits| !fits.is_empty()).unwrap_or_default()
}

/// What a code is to this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// It is a member of that mesh: nothing is to be done.
    Member,
    /// It is a member, and does not know the device that invites: members came and went while it was away, and perhaps none
    /// of those that it knows remains. The code lets it in again as who it is (failure rule F20).
    Again,
    /// It stands alone and may join (failure rule F18).
    Free,
}

/// Whether the device with this roster may use a code of `inviter` for the mesh `mesh`.
///
/// # Errors
/// When it belongs to another mesh together with other devices.
pub fn joining(roster: &Roster, own: &NodeId, mesh: MeshId, inviter: &NodeId) -> Result<Joining, CommandError> {
    if roster.mesh == mesh {
        return Ok(if roster.members.contains_key(inviter) { Joining::Member } else { Joining::Again });
    }
    let others: Vec<NodeId> = roster.members.keys().copied().filter(|node| node != own).collect();
    if others.is_empty() {
        return Ok(Joining::Free);
    }
    if roster.broker == *own {
        return Err(CommandError::new(format!(
            "this device is the broker of a mesh with {}, and only a device that stands alone can join another one; forget \
             those devices here first with `chappie forget`, or stop the node here and run `chappie reset-identity`",
            list(others.iter().map(|node| roster.label(node))),
        )));
    }
    Err(CommandError::new(format!(
        "this device is in another mesh already, with {}, and only a device that stands alone can join; leave that mesh \
         first: run `chappie forget {}` on one of those devices, or stop the node here and run `chappie reset-identity`",
        list(others.iter().map(|node| roster.label(node))),
        own.short(),
    )))
}

/// The first few, and how many more.
fn list(all: impl ExactSizeIterator<Item = String>) -> String {
    let count = all.len();
    let mut shown: Vec<String> = all.take(LISTED_MAX).collect();
    if count > LISTED_MAX {
        shown.push(format!("{} more", count - LISTED_MAX));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use chappie_mesh::Member;

    use super::*;

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    fn roster(members: &[(u8, &str)]) -> Roster {
        let mut roster = Roster::alone([7; 16].into(), node(members[0].0), members[0].1.into());
        for (byte, name) in &members[1..] {
            roster.members.insert(node(*byte), Member { name: (*name).into() });
        }
        roster
    }

    #[test]
    fn an_invite_has_limits_and_a_refusal_names_them() {
        for (uses, ttl) in [(1, TTL_MIN_MS), (USES_MAX, TTL_MAX_MS), (USES_DEFAULT, TTL_DEFAULT_MS)] {
            assert_eq!(terms(uses, ttl), Ok(()));
        }
        for uses in [0, USES_MAX + 1, u32::MAX] {
            assert!(terms(uses, TTL_DEFAULT_MS).unwrap_err().message.contains("1 to 1000"));
        }
        for ttl in [0, TTL_MIN_MS - 1, TTL_MAX_MS + 1, u64::MAX] {
            assert!(terms(1, ttl).unwrap_err().message.contains("10 s to 7 d"));
        }
    }

    #[test]
    fn a_device_is_named_by_id_prefix_or_name() {
        let roster = roster(&[(1, "box"), (2, "laptop"), (3, "laptop")]);
        let id = node(2).to_string();
        let words = [id.clone(), id.to_ascii_lowercase(), id.replace('-', ""), node(2).short(), id[..10].into()];
        for word in words {
            assert_eq!(named(&roster, &word), Ok(node(2)), "{word}");
        }
        assert_eq!(named(&roster, " box\n"), Ok(node(1)));
        let several = named(&roster, "laptop").unwrap_err().message;
        assert!(several.contains(&node(2).to_string()) && several.contains(&node(3).to_string()), "{several}");
        for word in ["", "-", "tower", "9", "BOX"] {
            let none = named(&roster, word).unwrap_err().message;
            assert!(none.contains("no device") && none.contains("box"), "{none}");
        }
    }

    #[test]
    fn a_name_that_is_the_start_of_another_device_s_id_means_the_name() {
        let short = node(2).short();
        let roster = roster(&[(1, &short), (2, "laptop")]);
        assert_eq!(named(&roster, &short), Ok(node(1)));
        assert_eq!(named(&roster, &node(2).to_string()), Ok(node(2)), "the whole id is that device's all the same");
    }

    #[test]
    fn a_large_mesh_is_not_listed_in_full() {
        let mut roster = roster(&[(0, "d0")]);
        for byte in 1..100 {
            roster.members.insert(node(byte), Member { name: format!("d{byte}") });
        }
        let message = named(&roster, "no-such").unwrap_err().message;
        assert!(message.contains("92 more") && message.len() < 1_000, "{message}");
    }

    #[test]
    fn only_a_device_that_stands_alone_joins_and_a_member_has_nothing_to_do() {
        let alone = roster(&[(1, "box")]);
        assert_eq!(joining(&alone, &node(1), [8; 16].into(), &node(3)), Ok(Joining::Free));
        assert_eq!(joining(&alone, &node(1), [7; 16].into(), &node(1)), Ok(Joining::Member), "its own code");
        let fleet = roster(&[(1, "box"), (2, "laptop")]);
        assert_eq!(joining(&fleet, &node(2), [7; 16].into(), &node(1)), Ok(Joining::Member));
        let message = joining(&fleet, &node(2), [8; 16].into(), &node(1)).unwrap_err().message;
        for part in ["box", "chappie forget", &node(2).short(), "reset-identity"] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }

    #[test]
    fn f20_a_member_uses_the_code_of_a_device_that_it_does_not_know() {
        let fleet = roster(&[(1, "box"), (2, "laptop")]);
        assert_eq!(joining(&fleet, &node(2), [7; 16].into(), &node(3)), Ok(Joining::Again));
    }
}
