//! What devices say to each other above the mesh: one file for each [`chappie_mesh::StreamKind`], except the door's, which
//! is with the tools. Messages are postcard, so each enum is append-only, a struct grows only through its `ext`, and JSON
//! travels as bytes; golden bytes in `tests` hold that. Pure.

pub mod ask;
pub mod feed;
pub mod history;
pub mod run;

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, SeqAccess, Visitor},
};

/// A question or an order without payload: ids, paths and sentences. The longest is 2,048 ids of late results.
pub const CONTROL_MAX: usize = 1 << 20;
/// A dispatch or a door's call: the 64 MiB that the HTTP door takes, and what goes around them.
pub const CALL_MAX: usize = (64 << 20) + CONTROL_MAX;
/// A composed part of an answer, or an image: 24 KiB of text and images of at most 32 MiB in base64 once, or raw.
pub const ANSWER_MAX: usize = 40 << 20;
/// An announcement or a roster: 256 sessions with two paths each of at most 4 KiB, and 2,048 conversations.
pub const FEED_MAX: usize = 4 << 20;

/// Fields that later versions add: number and value. Unknown numbers are skipped.
pub type Extensions = Vec<(u16, Blob)>;

/// Bytes that postcard copies in one piece instead of one by one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl Blob {
    /// `value` as JSON text.
    ///
    /// # Errors
    /// Why it has no JSON form, such as a path that is no UTF-8.
    pub fn json(value: &impl Serialize) -> Result<Self, NotJson> {
        serde_json::to_vec(value).map(Self).map_err(|error| NotJson(error.to_string()))
    }

    /// Reads JSON text.
    ///
    /// # Errors
    /// Where it is no JSON, or not of this shape.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, NotJson> {
        serde_json::from_slice(&self.0).map_err(|error| NotJson(error.to_string()))
    }
}

/// A message holds JSON that cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the JSON that this message holds: {0}")]
pub struct NotJson(pub String);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BlobVisitor)
    }
}

struct BlobVisitor;

impl<'de> Visitor<'de> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(Blob(bytes.to_vec()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Blob, E> {
        Ok(Blob(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Blob, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(Blob(bytes))
    }
}

#[cfg(test)]
mod tests;
