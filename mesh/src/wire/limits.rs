//! How long what a peer says may be. Pure. Checked when a message is decoded, so that whatever passed can be kept, shown
//! and handed on.

use std::net::SocketAddr;

use super::CodecError;

/// Bytes of a device's name: a host name has at most 64 characters, a line of a terminal 80 columns.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of a build, as `0.1.0 (0123456789ab, x86_64-unknown-linux-musl)`.
pub const BUILD_BYTES_MAX: usize = 64;
/// Addresses that one device says it has: more than any device has networks, and few enough to dial all.
pub const ADDRESSES_MAX: usize = 32;
/// Entries of `ext`, the room for what a later version says.
pub const EXT_ENTRIES_MAX: usize = 16;
/// Bytes of one entry of `ext`.
pub const EXT_BYTES_MAX: usize = 1024;
/// Bytes of a reason that a person will read.
pub const REASON_BYTES_MAX: usize = 1024;

/// What a later version says beside the fields: a number that keeps its meaning, and its bytes.
pub type Ext = Vec<(u16, Vec<u8>)>;

/// A message with limits of its own.
pub(crate) trait Limited {
    /// Whether each field keeps its limit.
    ///
    /// # Errors
    /// [`CodecError::Limit`], naming the field.
    fn check(&self) -> Result<(), CodecError>;
}

/// Whether `name` can be a device's name: something, at most [`NAME_BYTES_MAX`] bytes, and nothing that moves a
/// terminal's cursor or turns its text around.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.trim().is_empty() {
        return Err("a device's name must not be empty".to_owned());
    }
    text("a device's name", name, NAME_BYTES_MAX)
}

/// Whether `value` is at most `limit` bytes of text that a terminal shows as it stands.
fn text(what: &str, value: &str, limit: usize) -> Result<(), String> {
    if value.len() > limit {
        return Err(format!("{what} has {} bytes, and {limit} are the most", value.len()));
    }
    match value.chars().find(|c| c.is_control() || turns_text(*c)) {
        Some(bad) => Err(format!("{what} has the control character {bad:?}, which must not stand in it")),
        None => Ok(()),
    }
}

/// Characters that change the direction or the breaks of the text around them: no control characters to Unicode, and as
/// good as one on a terminal.
const fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

pub(super) fn name(value: &str) -> Result<(), CodecError> {
    check_name(value).map_err(CodecError::Limit)
}

pub(super) fn build(value: &str) -> Result<(), CodecError> {
    text("a build", value, BUILD_BYTES_MAX).map_err(CodecError::Limit)
}

/// A reason has lines, and nothing else that a name must not have.
pub(super) fn reason(value: &str) -> Result<(), CodecError> {
    text("a reason", &value.replace('\n', " "), REASON_BYTES_MAX).map_err(CodecError::Limit)
}

pub(super) fn addresses(value: &[SocketAddr]) -> Result<(), CodecError> {
    count("addresses", value.len(), ADDRESSES_MAX)
}

pub(super) fn ext(value: &[(u16, Vec<u8>)]) -> Result<(), CodecError> {
    count("further entries", value.len(), EXT_ENTRIES_MAX)?;
    let long = value.iter().find(|(_, bytes)| bytes.len() > EXT_BYTES_MAX);
    long.map_or(Ok(()), |(number, bytes)| {
        let length = bytes.len();
        Err(CodecError::Limit(format!("entry {number} has {length} bytes, and {EXT_BYTES_MAX} are the most")))
    })
}

fn count(what: &str, found: usize, limit: usize) -> Result<(), CodecError> {
    if found <= limit {
        return Ok(());
    }
    Err(CodecError::Limit(format!("a message with {found} {what}, and {limit} are the most")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_people_and_machines_pass() {
        for name in ["laptop", "Ada's büro", "机器", "a", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_are_nothing_too_long_or_play_with_the_terminal_do_not() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "  ", "a\nb", "a\u{1b}[2J", "a\0", "a\u{7f}", "a\u{202e}b", "\u{feff}", "a\u{85}", &long] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name(&long).unwrap_err().contains("129 bytes, and 128"), "{:?}", check_name(&long));
    }

    #[test]
    fn each_limit_names_what_broke_it() {
        let limit = |result: Result<(), CodecError>| result.unwrap_err().to_string();
        assert!(limit(build(&"x".repeat(65))).contains("a build has 65 bytes"));
        assert!(limit(reason(&"x".repeat(1025))).contains("a reason has 1025 bytes"));
        assert_eq!(reason("two\nlines"), Ok(()));
        assert!(limit(reason("a\u{1b}b")).contains("control character"));
        let many = vec![SocketAddr::from(([10, 0, 0, 1], 1)); ADDRESSES_MAX + 1];
        assert!(limit(addresses(&many)).contains("33 addresses, and 32"));
        assert_eq!(addresses(&many[1..]), Ok(()));
        assert!(limit(ext(&vec![(1, vec![]); 17])).contains("17 further entries"));
        assert!(limit(ext(&[(1, vec![0; 1024]), (9, vec![0; 1025])])).contains("entry 9 has 1025 bytes"));
    }
}
