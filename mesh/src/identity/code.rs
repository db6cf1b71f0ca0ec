//! The invite code: what one device shows and another takes, to be let into a mesh. Pure.

use std::{cmp::Ordering, fmt, net::SocketAddr, str::FromStr};

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

use super::{InviteId, InviteSecret, MeshId, NodeId};

/// Addresses in a code: a device has few, and each makes the code longer.
pub const CODE_ADDRESSES_MAX: usize = 16;
/// Characters of a code: what a terminal, a chat and a cloud-init file take without breaking it.
pub const CODE_CHARACTERS_MAX: usize = 1024;

const PREFIX: &str = "chappie-";
const VERSION: u8 = 1;
/// The version and the length of all that follows it but the checksum.
const HEAD: usize = 3;
const FIXED: usize = 16 + 32 + 8 + 16;
const CHECKSUM: usize = 4;
/// Bytes that the characters after the prefix can stand for.
const BYTES_MAX: usize = (CODE_CHARACTERS_MAX - PREFIX.len()) / 8 * 5;
/// A host name has at most 253 characters (RFC 1035), and the port five.
const ADDRESS_BYTES_MAX: usize = 253 + 6;

const KIND_NAME: u8 = 0;
const KIND_IPV4: u8 = 4;
const KIND_IPV6: u8 = 6;

/// All that a device needs to join, as one word: `chappie-` and base32, in either case and however a line broke it.
/// It has a checksum over everything, so a mistyped code is known before anything is dialled.
#[derive(Clone, PartialEq, Eq)]
pub struct InviteCode {
    /// The mesh that it opens.
    pub mesh: MeshId,
    /// The device that answers; its key is pinned.
    pub inviter: NodeId,
    /// Where that device is: `host:port`. The text takes the first 16, as far as there is room.
    pub addresses: Vec<String>,
    /// Which invite.
    pub id: InviteId,
    /// Its secret.
    pub secret: InviteSecret,
}

impl fmt::Debug for InviteCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InviteCode")
            .field("mesh", &self.mesh)
            .field("inviter", &self.inviter)
            .field("addresses", &self.addresses)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Shows the whole code, its secret with it: for the one who asked for it, never for a log.
impl fmt::Display for InviteCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = Vec::with_capacity(BYTES_MAX);
        body.extend_from_slice(self.mesh.as_bytes());
        body.extend_from_slice(self.inviter.as_bytes());
        body.extend_from_slice(&self.id.0);
        body.extend_from_slice(&self.secret.0);
        for address in self.addresses.iter().filter_map(|address| write_address(address)).take(CODE_ADDRESSES_MAX) {
            if HEAD + body.len() + address.len() + CHECKSUM <= BYTES_MAX {
                body.extend_from_slice(&address);
            }
        }
        let length = u16::try_from(body.len()).map_err(|_| fmt::Error)?;
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.append(&mut body);
        bytes.extend_from_slice(&checksum(&bytes));
        write!(f, "{PREFIX}{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
    }
}

/// Why a text is no invite code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviteCodeError {
    /// Something else.
    #[error("this is no invite code: one begins with `{PREFIX}`; make one with `chappie invite`")]
    NotACode,
    /// A character that no code has.
    #[error("{0:?} cannot stand in an invite code; copy the code again")]
    Character(char),
    /// The end is missing.
    #[error("the invite code is cut off: it has {found} of {expected} characters; copy all of it")]
    CutOff {
        /// Characters that are there.
        found: usize,
        /// Characters that it should have, when its beginning says so; else the fewest that a code has.
        expected: usize,
    },
    /// More than the code.
    #[error("the invite code has {0} characters too many; copy the code alone")]
    TooLong(usize),
    /// The checksum does not fit.
    #[error("the invite code is mistyped: its checksum does not fit; copy it again")]
    Mistyped,
    /// A whole code, made by a later program.
    #[error("the invite code is of version {0}, and this program knows version {VERSION}: update it")]
    Version(u8),
    /// A whole code with contents that no program of ours makes.
    #[error("the invite code has contents that it must not have ({0}); make another with `chappie invite`")]
    Contents(&'static str),
}

impl FromStr for InviteCode {
    type Err = InviteCodeError;

    fn from_str(text: &str) -> Result<Self, InviteCodeError> {
        let (bytes, found) = code_bytes(text)?;
        let Some((covered, sum)) = bytes.split_last_chunk::<CHECKSUM>() else { return Err(broken(&bytes, found)) };
        if checksum(covered) != *sum {
            return Err(broken(&bytes, found));
        }
        match covered.split_first_chunk::<HEAD>() {
            Some((&[VERSION, high, low], body)) if usize::from(u16::from_be_bytes([high, low])) == body.len() => {
                read_body(body)
            }
            Some((&[VERSION, ..], _)) => Err(InviteCodeError::Contents("its length")),
            Some((&[version, ..], _)) => Err(InviteCodeError::Version(version)),
            None => Err(InviteCodeError::Contents("too short")),
        }
    }
}

/// The fewest characters of a code, the prefix among them.
const CODE_CHARACTERS_MIN: usize = characters(HEAD + FIXED + CHECKSUM);

/// Characters of a code of `bytes` bytes.
const fn characters(bytes: usize) -> usize {
    PREFIX.len() + (bytes * 8).div_ceil(5)
}

/// What the characters stand for, and how many there are; nothing is checked but that they can stand in a code.
fn code_bytes(text: &str) -> Result<(Vec<u8>, usize), InviteCodeError> {
    let mut plain = String::with_capacity(text.len().min(CODE_CHARACTERS_MAX));
    let mut length = 0;
    for character in text.chars().filter(|c| !c.is_whitespace()) {
        length += 1;
        // What follows is only counted, so that a huge text costs no memory.
        if length <= CODE_CHARACTERS_MAX {
            plain.push(character.to_ascii_uppercase());
        }
    }
    let Some(digits) = plain.strip_prefix(&PREFIX.to_ascii_uppercase()) else {
        return Err(InviteCodeError::NotACode);
    };
    if length > CODE_CHARACTERS_MAX {
        return Err(InviteCodeError::TooLong(length - CODE_CHARACTERS_MAX));
    }
    if let Some(bad) = digits.chars().find(|c| !matches!(c, 'A'..='Z' | '2'..='7')) {
        return Err(InviteCodeError::Character(bad));
    }
    match BASE32_NOPAD.decode(digits.as_bytes()) {
        Ok(bytes) => Ok((bytes, length)),
        // A length that no code has, or bits behind the last byte: characters are missing, added or changed.
        Err(_) => {
            let whole = &digits.as_bytes()[..digits.len() / 8 * 8];
            Err(broken(&BASE32_NOPAD.decode(whole).unwrap_or_default(), length))
        }
    }
}

/// What to say of `found` characters that are no whole code, by what their beginning says of their number.
fn broken(bytes: &[u8], found: usize) -> InviteCodeError {
    let Some(&[version, high, low]) = bytes.first_chunk::<HEAD>() else {
        return InviteCodeError::CutOff { found, expected: CODE_CHARACTERS_MIN };
    };
    let expected = characters(HEAD + usize::from(u16::from_be_bytes([high, low])) + CHECKSUM);
    if version != VERSION || !(CODE_CHARACTERS_MIN..=CODE_CHARACTERS_MAX).contains(&expected) {
        return InviteCodeError::Mistyped;
    }
    match found.cmp(&expected) {
        Ordering::Less => InviteCodeError::CutOff { found, expected },
        Ordering::Greater => InviteCodeError::TooLong(found - expected),
        Ordering::Equal => InviteCodeError::Mistyped,
    }
}

/// The first bytes of SHA-256: a mistake gets by once in four billion.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let digest = Sha256::digest(bytes);
    [digest[0], digest[1], digest[2], digest[3]]
}

fn read_body(mut rest: &[u8]) -> Result<InviteCode, InviteCodeError> {
    let short = InviteCodeError::Contents("too short");
    let mesh: [u8; 16] = take(&mut rest).ok_or_else(|| short.clone())?;
    let inviter: [u8; 32] = take(&mut rest).ok_or_else(|| short.clone())?;
    let id: [u8; 8] = take(&mut rest).ok_or_else(|| short.clone())?;
    let secret: [u8; 16] = take(&mut rest).ok_or(short)?;
    let mut addresses = Vec::new();
    while !rest.is_empty() {
        if addresses.len() == CODE_ADDRESSES_MAX {
            return Err(InviteCodeError::Contents("more than 16 addresses"));
        }
        addresses.push(read_address(&mut rest).ok_or(InviteCodeError::Contents("an address"))?);
    }
    let (mesh, inviter) = (MeshId::from(mesh), NodeId::from(inviter));
    Ok(InviteCode { mesh, inviter, addresses, id: InviteId(id), secret: InviteSecret(secret) })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

/// An address as a kind and its bytes; numbers take less room than their text. `None` for what is no address.
fn write_address(address: &str) -> Option<Vec<u8>> {
    let numbers = address.parse::<SocketAddr>().ok().filter(|parsed| parsed.to_string() == address);
    match numbers {
        Some(SocketAddr::V4(v4)) => Some([&[KIND_IPV4][..], &v4.ip().octets(), &v4.port().to_be_bytes()].concat()),
        // With a scope its text differs from what the bytes give back; such an address is for this device only.
        Some(SocketAddr::V6(v6)) if v6.scope_id() != 0 => None,
        Some(SocketAddr::V6(v6)) => Some([&[KIND_IPV6][..], &v6.ip().octets(), &v6.port().to_be_bytes()].concat()),
        None if is_host_and_port(address) => {
            let length = u16::try_from(address.len()).ok()?;
            Some([&[KIND_NAME][..], &length.to_be_bytes(), address.as_bytes()].concat())
        }
        None => None,
    }
}

fn read_address(rest: &mut &[u8]) -> Option<String> {
    let [kind] = take(rest)?;
    match kind {
        KIND_IPV4 => {
            let ip: [u8; 4] = take(rest)?;
            Some(SocketAddr::from((ip, u16::from_be_bytes(take(rest)?))).to_string())
        }
        KIND_IPV6 => {
            let ip: [u8; 16] = take(rest)?;
            Some(SocketAddr::from((ip, u16::from_be_bytes(take(rest)?))).to_string())
        }
        KIND_NAME => {
            let length = usize::from(u16::from_be_bytes(take(rest)?));
            let (name, after) = rest.split_at_checked(length)?;
            *rest = after;
            let name = std::str::from_utf8(name).ok()?;
            // One code for one text: numbers have a form of their own.
            let numbers = name.parse::<SocketAddr>().is_ok_and(|parsed| parsed.to_string() == name);
            (is_host_and_port(name) && !numbers).then(|| name.to_owned())
        }
        _ => None,
    }
}

/// Whether a resolver could take it: `host:port` of letters, digits, dots, dashes and what IPv6 needs.
fn is_host_and_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let letters = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    !host.is_empty()
        && address.len() <= ADDRESS_BYTES_MAX
        && host.chars().all(letters)
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests;
