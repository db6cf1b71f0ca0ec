//! Messages on a stream: a length in four bytes, big-endian, then that many bytes. Pure: the caller reads and writes.

use bytes::{Buf as _, Bytes, BytesMut};

/// Bytes of the length that stands before each message.
const HEADER: usize = 4;

/// Why there is no next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The message is longer than the reader takes, or than a length can say.
    #[error("a message of {found} bytes, and {limit} are the most")]
    TooLong {
        /// The most.
        limit: usize,
        /// What was announced.
        found: usize,
    },
    /// The stream ended inside a message.
    #[error("the stream ended inside a message, after {0} bytes of it")]
    CutOff(usize),
}

/// What stands before a message of `length` bytes.
///
/// # Errors
/// [`FrameError::TooLong`] beyond what four bytes can say.
pub fn frame_header(length: usize) -> Result<[u8; HEADER], FrameError> {
    let limit = u32::MAX as usize;
    u32::try_from(length).map(u32::to_be_bytes).map_err(|_| FrameError::TooLong { limit, found: length })
}

/// `body` as one message.
///
/// # Errors
/// [`FrameError::TooLong`] beyond what four bytes can say.
pub fn encode_frame(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    Ok([frame_header(body.len())?.as_slice(), body].concat())
}

/// Takes bytes as they come and gives whole messages. It holds what it was fed and never room for what is only
/// announced, so a length of 4 GiB costs nothing. It keeps what it has when its caller is cancelled.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
}

impl FrameDecoder {
    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message; `None`: feed more. A message over `limit` bytes is an error as soon as its length is
    /// there, and stays one: the stream is of no more use.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn next(&mut self, limit: usize) -> Result<Option<Bytes>, FrameError> {
        let Some(header) = self.buffer.first_chunk::<HEADER>() else { return Ok(None) };
        // On every machine this runs on a length fits; where it would not, it is over any limit.
        let found = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
        if found > limit {
            return Err(FrameError::TooLong { limit, found });
        }
        if self.buffer.len() - HEADER < found {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        Ok(Some(self.buffer.split_to(found).freeze()))
    }

    /// Says that the stream ended.
    ///
    /// # Errors
    /// [`FrameError::CutOff`] when it ended inside a message.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() { Ok(()) } else { Err(FrameError::CutOff(self.buffer.len())) }
    }

    /// How long the message is whose beginning is there; `None` before its length is.
    #[must_use]
    pub fn announced(&self) -> Option<usize> {
        let header = self.buffer.first_chunk::<HEADER>()?;
        Some(usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX))
    }

    /// Bytes that wait for the rest of their message.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_known_before_its_message() {
        let mut decoder = FrameDecoder::default();
        decoder.feed(&[0, 1, 0]);
        assert_eq!(decoder.announced(), None);
        decoder.feed(&[2, b'a']);
        assert_eq!((decoder.announced(), decoder.buffered()), (Some(65_538), 5));
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        assert_eq!(encode_frame(b"abc"), Ok(vec![0, 0, 0, 3, b'a', b'b', b'c']));
        assert_eq!(encode_frame(b""), Ok(vec![0; 4]));
        assert_eq!(frame_header(0x0102_0304), Ok([1, 2, 3, 4]));
    }

    #[test]
    fn messages_come_back_whole_however_the_bytes_arrive() {
        let bodies: [&[u8]; 4] = [b"first", b"", b"third message", &[0xff; 300]];
        let stream = bodies.map(|body| encode_frame(body).unwrap()).concat();
        for step in [1, 2, 3, 4, 5, 7, 64, stream.len()] {
            let mut decoder = FrameDecoder::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(step) {
                decoder.feed(chunk);
                while let Some(body) = decoder.next(300).unwrap() {
                    found.push(body);
                }
            }
            assert_eq!(found, bodies, "in steps of {step}");
            assert_eq!(decoder.finish(), Ok(()));
        }
    }

    #[test]
    fn a_message_over_the_limit_is_refused_at_its_length_and_costs_no_memory() {
        let mut decoder = FrameDecoder::default();
        decoder.feed(&[0xff; 4]);
        let refused = Err(FrameError::TooLong { limit: 10, found: u32::MAX as usize });
        assert_eq!(decoder.next(10), refused);
        assert_eq!(decoder.next(10), refused, "and stays refused");
        assert_eq!(decoder.next(usize::MAX), Ok(None));
        assert!(decoder.buffer.capacity() <= 64, "{}", decoder.buffer.capacity());
        let mut exact = FrameDecoder::default();
        exact.feed(&encode_frame(&[1; 10]).unwrap());
        assert_eq!(exact.next(10).unwrap().unwrap().len(), 10);
    }

    #[test]
    fn a_stream_that_ends_inside_a_message_says_so() {
        let whole = encode_frame(b"abc").unwrap();
        for end in 1..whole.len() {
            let mut decoder = FrameDecoder::default();
            decoder.feed(&whole[..end]);
            assert_eq!(decoder.next(10), Ok(None));
            assert_eq!(decoder.finish(), Err(FrameError::CutOff(end)));
        }
    }
}
