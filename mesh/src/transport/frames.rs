//! Lengths and bytes of messages, until `wire` has them. Pure.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a message of {found} bytes, and {limit} are the most")]
    TooLong { limit: usize, found: usize },
    #[error("the stream ended inside a message, after {0} bytes of it")]
    CutOff(usize),
}

pub(super) fn frame_header(length: usize) -> Result<[u8; 4], FrameError> {
    let limit = u32::MAX as usize;
    u32::try_from(length).map(u32::to_be_bytes).map_err(|_| FrameError::TooLong { limit, found: length })
}

#[derive(Debug, Default)]
pub(super) struct FrameDecoder(BytesMut);

impl FrameDecoder {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn next(&mut self, limit: usize) -> Result<Option<Bytes>, FrameError> {
        let Some(header) = self.0.first_chunk::<4>() else { return Ok(None) };
        let found = u32::from_be_bytes(*header) as usize;
        if found > limit {
            return Err(FrameError::TooLong { limit, found });
        }
        if self.0.len() - 4 < found {
            return Ok(None);
        }
        self.0.advance(4);
        Ok(Some(self.0.split_to(found).freeze()))
    }

    pub(super) fn finish(&self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::CutOff(self.0.len())) }
    }
}

pub(super) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_allocvec(value)
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err("a message with bytes left over".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
