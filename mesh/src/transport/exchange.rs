//! One question and its answer, each of them the whole of one direction of a stream: what the consensus engine says.
//! What the bytes mean, and who may ask, is not decided here.

use std::time::Duration;

use bytes::Bytes;
use quinn::{ReadError, ReadToEndError, RecvStream, SendStream, WriteError};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Ended;
use crate::wire::CloseCode;

/// The longest question: a piece of a snapshot, or many entries.
pub(crate) const QUESTION_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The longest answer: some numbers, and a broker's few words.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// A question up to this length is short: a heartbeat, a vote, a few entries. A thousand of them are 64 MiB.
const SHORT_BYTES: usize = 64 * 1024;
/// Long questions that one connection may have arriving at a time: two of the longest are 16 MiB.
pub(crate) const QUESTIONS_LONG: usize = 2;
/// Taken of a question at a time.
const READ_BYTES: usize = 64 * 1024;
/// How long a question may stop in its middle.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Long questions give way to short ones: a heartbeat is never behind a snapshot.
const LONG_PRIORITY: i32 = -1;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The connection is gone.
    Ended(Ended),
    /// The other side did not take this question, in words.
    Refused(String),
}

pub(super) async fn ask(halves: (SendStream, RecvStream), question: Bytes) -> Result<Vec<u8>, Unanswered> {
    let (mut send, mut recv) = halves;
    if question.len() > SHORT_BYTES {
        // An error means that the stream is gone, and that is found out next.
        drop(send.set_priority(LONG_PRIORITY));
    }
    match send.write_chunk(question).await {
        Ok(()) => drop(send.finish()),
        Err(WriteError::ConnectionLost(error)) => return Err(Unanswered::Ended(Ended::from(&error))),
        Err(error) => return Err(Unanswered::Refused(format!("it did not take the question: {error}"))),
    }
    match recv.read_to_end(ANSWER_BYTES_MAX).await {
        Ok(answer) => Ok(answer),
        Err(ReadToEndError::Read(ReadError::ConnectionLost(error))) => Err(Unanswered::Ended(Ended::from(&error))),
        Err(ReadToEndError::Read(error)) => Err(Unanswered::Refused(format!("it gave no answer: {error}"))),
        Err(ReadToEndError::TooLong) => {
            Err(Unanswered::Refused(format!("its answer has more than {ANSWER_BYTES_MAX} bytes")))
        }
    }
}

/// A question that the other side asks.
#[derive(Debug)]
pub(crate) struct Question {
    send: SendStream,
    recv: RecvStream,
}

impl Question {
    pub(super) fn new((send, recv): (SendStream, RecvStream)) -> Self {
        Self { send, recv }
    }

    /// Its bytes. Long ones share `room`, of [`QUESTIONS_LONG`] permits; one that finds none is turned away instead of
    /// filling the connection while it waits.
    ///
    /// # Errors
    /// In words, when the question is too long, too many, cut off or gone.
    pub(crate) async fn read(&mut self, room: &Semaphore) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut share: Option<SemaphorePermit<'_>> = None;
        loop {
            let chunk = tokio::time::timeout(STALL_MAX, self.recv.read_chunk(READ_BYTES, true)).await;
            let chunk = chunk.map_err(|_| "stopped in the middle of a question".to_owned())?;
            let Some(chunk) = chunk.map_err(|error| format!("broke a question off: {error}"))? else {
                return Ok(bytes);
            };
            if bytes.len() + chunk.bytes.len() > QUESTION_BYTES_MAX {
                return Err(format!("asks a question of more than {QUESTION_BYTES_MAX} bytes"));
            }
            bytes.extend_from_slice(&chunk.bytes);
            if bytes.len() > SHORT_BYTES && share.is_none() {
                let full = |_| format!("asks more than {QUESTIONS_LONG} long questions at once");
                share = Some(room.try_acquire().map_err(full)?);
            }
        }
    }

    /// Waits until the other side wants no answer any more, or is gone.
    pub(crate) async fn unwanted(&mut self) {
        // Either way nobody reads an answer.
        drop(self.send.stopped().await);
    }

    /// Answers.
    ///
    /// # Errors
    /// In words, when the answer is too long; the other side is told that there is none.
    pub(crate) async fn answer(mut self, answer: Vec<u8>) -> Result<(), String> {
        let length = answer.len();
        if length > ANSWER_BYTES_MAX {
            self.refuse();
            return Err(format!("an answer of {length} bytes, and {ANSWER_BYTES_MAX} are the most"));
        }
        if self.send.write_chunk(answer.into()).await.is_ok() {
            // An error means that it is wanted no more.
            drop(self.send.finish());
        }
        Ok(())
    }

    /// Turns it away, so that the other side does not wait.
    pub(crate) fn refuse(mut self) {
        let code = CloseCode::Malformed.number().into();
        // An error means that it is gone already.
        drop(self.send.reset(code));
        drop(self.recv.stop(code));
    }
}
