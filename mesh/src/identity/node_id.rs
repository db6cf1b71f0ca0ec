//! [`NodeId`]: what a device is called, on the wire and to people. Pure.

use std::{fmt, str::FromStr};

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Base32 of 32 bytes is 52 characters; each group of 13 gets a check character, which makes 56.
const GROUP: usize = 13;
const CHECKED_GROUP: usize = GROUP + 1;
const CHECKED_LEN: usize = 4 * CHECKED_GROUP;
/// Shown in pieces of seven, and the first piece is the short form.
const PIECE: usize = 7;

/// SHA-256 of the public key's SubjectPublicKeyInfo (DER). Shown like a Syncthing device id: base32 with a check
/// character after every 13, in eight pieces of seven.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; 32]);

impl NodeId {
    /// The id of the holder of this public key.
    #[must_use]
    pub fn of_spki(spki_der: &[u8]) -> Self {
        Self(Sha256::digest(spki_der).into())
    }

    /// The hash itself.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first seven characters: enough to tell a person's devices apart, never enough to trust one.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(PIECE);
        text
    }
}

impl From<[u8; 32]> for NodeId {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = BASE32_NOPAD.encode(&self.0);
        let mut checked = String::with_capacity(CHECKED_LEN);
        for group in plain.as_bytes().chunks(GROUP) {
            checked.extend(group.iter().map(|byte| char::from(*byte)));
            checked.push(char::from(check_character(group)));
        }
        for (at, character) in checked.chars().enumerate() {
            if at > 0 && at % PIECE == 0 {
                f.write_str("-")?;
            }
            write!(f, "{character}")?;
        }
        Ok(())
    }
}

/// Text where people read it, the 32 bytes where they do not.
impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({})", self.short())
    }
}

/// Why a text is no [`NodeId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeIdError {
    /// Too short or too long.
    #[error("a node id has {CHECKED_LEN} letters and digits, and this has {0}")]
    Length(usize),
    /// A character that base32 does not have.
    #[error("{0:?} cannot stand in a node id")]
    Character(char),
    /// A check character does not fit what stands before it.
    #[error("piece {} or {} of the node id is mistyped", .group * 2 + 1, .group * 2 + 2)]
    Check {
        /// Which group of 14, from 0.
        group: usize,
    },
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    /// Takes the shown form in either case, with or without dashes and spaces; `0`, `1` and `8` count as `O`, `I` and
    /// `B`.
    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        let mut checked = Vec::with_capacity(CHECKED_LEN);
        let mut length = 0;
        for character in text.chars().filter(|c| *c != '-' && !c.is_whitespace()) {
            let letter = match character.to_ascii_uppercase() {
                '0' => 'O',
                '1' => 'I',
                '8' => 'B',
                other => other,
            };
            let byte = u8::try_from(letter).ok().filter(|byte| digit(*byte).is_some());
            // What follows the 56th is only counted, so that a huge text costs no memory.
            length += 1;
            if length <= CHECKED_LEN {
                checked.push(byte.ok_or(NodeIdError::Character(character))?);
            }
        }
        if length != CHECKED_LEN {
            return Err(NodeIdError::Length(length));
        }
        let mut plain = Vec::with_capacity(4 * GROUP);
        for (at, group) in checked.chunks(CHECKED_GROUP).enumerate() {
            let (body, check) = group.split_at(GROUP);
            if check != [check_character(body)] {
                return Err(NodeIdError::Check { group: at });
            }
            plain.extend_from_slice(body);
        }
        let bytes = BASE32_NOPAD.decode(&plain).map_err(|_| NodeIdError::Check { group: 3 })?;
        <[u8; 32]>::try_from(bytes).map(Self).map_err(|_| NodeIdError::Length(length))
    }
}

/// A base32 character's value.
fn digit(byte: u8) -> Option<usize> {
    match byte {
        b'A'..=b'Z' => Some(usize::from(byte - b'A')),
        b'2'..=b'7' => Some(usize::from(byte - b'2') + 26),
        _ => None,
    }
}

/// The Luhn mod 32 check character of `group`, factors counted from the left as Syncthing does, so that ids made here
/// could be checked there.
fn check_character(group: &[u8]) -> u8 {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let sum: usize = group
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            let addend = digit(*byte).unwrap_or_default() * (1 + at % 2);
            addend / 32 + addend % 32
        })
        .sum();
    ALPHABET[(32 - sum % 32) % 32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device id that Syncthing's own documentation and tests use, and the bytes it stands for.
    const KNOWN: &str = "P56IOI7-MZJNU2Y-IQGDREY-DM2MGTI-MGL3BXN-PQ6W5BM-TBBZ4TJ-XZWICQ2";
    const KNOWN_BYTES: [u8; 32] = [
        0x7f, 0x7c, 0x87, 0x23, 0xec, 0xca, 0x5b, 0x4d, 0x22, 0x06, 0x1c, 0x49, 0x81, 0xb3, 0x4c, 0x34, 0xd8, 0x65,
        0xec, 0x37, 0x6b, 0xe1, 0xeb, 0x74, 0x33, 0x08, 0x73, 0xc9, 0xa6, 0xf9, 0xb2, 0x05,
    ];

    #[test]
    fn the_shown_form_is_that_of_a_syncthing_device_id() {
        assert_eq!(NodeId::from(KNOWN_BYTES).to_string(), KNOWN);
        assert_eq!(NodeId::from(KNOWN_BYTES).short(), "P56IOI7");
        assert_eq!(KNOWN.parse(), Ok(NodeId::from(KNOWN_BYTES)));
    }

    #[test]
    fn any_spelling_people_use_parses_to_the_same_id() {
        let bare = KNOWN.replace('-', "");
        for spelling in [bare.to_lowercase(), bare.replace('O', "0").replace('I', "1").replace('B', "8")] {
            assert_eq!(spelling.parse(), Ok(NodeId::from(KNOWN_BYTES)), "{spelling}");
        }
        assert_eq!(format!("  {KNOWN}\n").parse(), Ok(NodeId::from(KNOWN_BYTES)));
    }

    #[test]
    fn every_single_mistyped_character_is_noticed() {
        for at in 0..KNOWN.len() {
            for replacement in ['A', 'Z', '2', '7'] {
                let mut typed: Vec<char> = KNOWN.chars().collect();
                if typed[at] == '-' || typed[at] == replacement {
                    continue;
                }
                typed[at] = replacement;
                let typed: String = typed.into_iter().collect();
                assert!(matches!(typed.parse::<NodeId>(), Err(NodeIdError::Check { .. })), "{typed}");
            }
        }
    }

    #[test]
    fn wrong_lengths_and_foreign_characters_are_named() {
        assert_eq!("".parse::<NodeId>(), Err(NodeIdError::Length(0)));
        assert_eq!(KNOWN[..62].parse::<NodeId>(), Err(NodeIdError::Length(55)));
        assert_eq!("A".repeat(100_000).parse::<NodeId>(), Err(NodeIdError::Length(100_000)));
        assert_eq!(KNOWN.replace('P', "9").parse::<NodeId>(), Err(NodeIdError::Character('9')));
        assert_eq!(KNOWN.replace('P', "ü").parse::<NodeId>(), Err(NodeIdError::Character('ü')));
    }
}
