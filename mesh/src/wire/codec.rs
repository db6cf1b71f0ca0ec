//! Values to bytes and back: postcard, with nothing left over. Pure.

use serde::{Serialize, de::DeserializeOwned};

/// Why a value is no bytes, or bytes are no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The value has something that the wire has no form for, as a path that is not UTF-8.
    #[error("this cannot be sent: {0}")]
    Unsendable(String),
    /// Not the expected message: cut off, damaged, or of a newer program. Also one that breaks a limit, when the
    /// limit's own text was lost on the way (postcard keeps none).
    #[error("not the expected message of {length} bytes: {cause}")]
    Malformed {
        /// How many bytes there were.
        length: usize,
        /// What postcard said.
        cause: String,
    },
    /// A message that says what it says in another form than ours: a number with more bytes than it needs, entries out
    /// of order or twice.
    #[error("a message that is not in its one form")]
    NotCanonical,
    /// A whole message, and then more.
    #[error("a message with {0} bytes left over")]
    TrailingBytes(usize),
    /// A field is longer than it may be, or has what it must not have.
    #[error("{0}")]
    Limit(String),
    /// A program that speaks another protocol.
    #[error("{0}")]
    Version(String),
}

/// The bytes of `value`.
///
/// # Errors
/// [`CodecError::Unsendable`] when the value cannot be written.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    postcard::to_allocvec(value).map_err(|cause| CodecError::Unsendable(cause.to_string()))
}

/// The value of `bytes`, all of them. Lengths inside are not believed beyond the bytes that are there.
///
/// # Errors
/// When the bytes are no such value, or more than one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(CodecError::TrailingBytes(rest.len())),
        Err(cause) => Err(CodecError::Malformed { length: bytes.len(), cause: cause.to_string() }),
    }
}

/// The value of `bytes`, which must be the very bytes that [`encode`] makes of it: for messages of strangers, so that
/// nothing is said twice or dropped unseen.
///
/// # Errors
/// As [`decode`], and [`CodecError::NotCanonical`].
pub(super) fn decode_canonical<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let value = decode(bytes)?;
    if encode(&value)? == bytes { Ok(value) } else { Err(CodecError::NotCanonical) }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

    use super::*;

    #[test]
    fn a_value_comes_back_whole() {
        let value = (7_u32, "name".to_owned(), vec![1_u64, 2], Some([9_u8; 4]));
        assert_eq!(decode(&encode(&value).unwrap()), Ok(value));
    }

    #[test]
    fn bytes_left_over_and_bytes_missing_are_errors() {
        let bytes = encode(&(1_u8, "abc")).unwrap();
        let longer = [bytes.as_slice(), &[0, 0]].concat();
        assert_eq!(decode::<(u8, String)>(&longer), Err(CodecError::TrailingBytes(2)));
        for end in 0..bytes.len() {
            let error = decode::<(u8, String)>(&bytes[..end]).unwrap_err();
            assert!(matches!(error, CodecError::Malformed { length, .. } if length == end), "{error}");
        }
    }

    #[test]
    fn what_has_no_form_on_the_wire_is_an_error_and_no_panic() {
        let error = encode(Path::new(OsStr::from_bytes(&[0xff]))).unwrap_err();
        assert!(matches!(error, CodecError::Unsendable(_)), "{error}");
    }

    #[test]
    fn a_number_with_more_bytes_than_it_needs_is_not_canonical() {
        assert_eq!(decode::<u16>(&[0x81, 0x00]), Ok(1), "postcard takes it");
        assert_eq!(decode_canonical::<u16>(&[0x81, 0x00]), Err(CodecError::NotCanonical));
        assert_eq!(decode_canonical::<u16>(&[1]), Ok(1));
    }
}
