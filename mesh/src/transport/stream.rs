//! [`Stream`]: messages both ways between two devices. What a stream is for and what its messages say is not its
//! business.

use std::{
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::Ended;
use crate::wire::{CloseCode, FrameDecoder, FrameError, decode, encode, frame_header};

/// Taken from the connection at a time: some packets' worth, so that a long message is not copied in crumbs.
const READ_BYTES: usize = 64 * 1024;
/// A message that a sender may make: beyond what any reader here takes, so that a fault is found where it is made.
const MESSAGE_BYTES_MAX: usize = 66 * 1024 * 1024;
/// Bytes that all long messages of one connection may announce while they arrive: four of the longest, as much as the HTTP
/// door takes at once. What is over it is turned away: a flood of half messages has an end.
pub(crate) const ROOM_BYTES: usize = 4 * MESSAGE_BYTES_MAX;
/// A message up to this length needs no share: a thousand of them in the middle are 16 MiB.
const SHORT_BYTES: usize = 16 * 1024;
/// How long a message may stop in its middle. A device that sleeps loses its connection sooner.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Room that a sender keeps between messages; what a long message took beyond it is given back.
const KEPT_BYTES: usize = 16 * 1024;

/// One stream between two devices: both halves may be used on different tasks.
#[derive(Debug)]
pub struct Stream {
    /// What goes out.
    pub send: StreamSender,
    /// What comes in.
    pub recv: StreamReceiver,
}

impl Stream {
    /// A stream over any two halves, as a pipe in memory; `peer` is what errors call the other side.
    pub fn over<R, W>(read: R, write: W, peer: &str) -> Self
    where
        R: AsyncRead + Send + Sync + Unpin + 'static,
        W: AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let line: Arc<dyn Line> = Arc::new(Labelled(peer.to_owned()));
        Self {
            send: StreamSender::new(SendHalf::Other(Box::new(write)), Vec::new(), Arc::clone(&line)),
            recv: StreamReceiver::new(RecvHalf::Other(Box::new(read)), line),
        }
    }

    /// A stream of a connection. `head` goes out with the first message, or at the end; `received` was read already.
    pub(crate) fn quic(halves: (SendStream, RecvStream), head: Vec<u8>, received: &[u8], line: Arc<dyn Line>) -> Self {
        let mut recv = StreamReceiver::new(RecvHalf::Quic(halves.1), Arc::clone(&line));
        recv.frames.feed(received);
        Self { send: StreamSender::new(SendHalf::Quic(halves.0), head, line), recv }
    }
}

impl Stream {
    /// Turns it away unread, so that the other side knows; the connection stays.
    pub(crate) fn refuse(mut self) {
        // Dropping the other half stops it.
        self.send.finished = true;
        if let SendHalf::Quic(stream) = &mut self.send.half {
            // An error means that it is gone already.
            drop(stream.reset(CloseCode::Malformed.number().into()));
        }
    }
}

/// What a stream knows of the connection it runs on. Dropped with the last half.
pub(crate) trait Line: Send + Sync {
    /// What the other side is called.
    fn label(&self) -> &str;
    /// Why the connection is no more, naming the device.
    fn lost(&self, how: &Ended) -> String;
    /// What the connection's long messages share: [`ROOM_BYTES`] permits. `None`: nothing bounds them together.
    fn room(&self) -> Option<&Arc<Semaphore>> {
        None
    }
}

struct Labelled(String);

impl Line for Labelled {
    fn label(&self) -> &str {
        &self.0
    }

    fn lost(&self, how: &Ended) -> String {
        format!("{} {how}", self.0)
    }
}

/// Why a stream is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The connection or the other side's half is gone; says which device and why.
    #[error("{0}")]
    Lost(String),
    /// A message is longer than its reader takes.
    #[error("a message of {found} bytes, and {limit} are the most")]
    TooLong {
        /// The most.
        limit: usize,
        /// What was announced.
        found: usize,
    },
    /// Not the expected message, or one that was cut off.
    #[error("{0}")]
    Malformed(String),
    /// The other side reads no more of it.
    #[error("the other device reads no more of this stream")]
    Stopped,
}

enum SendHalf {
    Quic(SendStream),
    Other(Box<dyn AsyncWrite + Send + Sync + Unpin>),
}

/// The sending half. Dropped, it ends in order, unless a message was cut off: then the reader gets an error.
pub struct StreamSender {
    half: SendHalf,
    line: Arc<dyn Line>,
    /// Whole messages, of which the first `sent` bytes are out: a caller that goes away in the middle leaves a rest
    /// that goes first the next time.
    unsent: Vec<u8>,
    sent: usize,
    finished: bool,
}

impl std::fmt::Debug for StreamSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamSender(to {})", self.line.label())
    }
}

impl StreamSender {
    fn new(half: SendHalf, head: Vec<u8>, line: Arc<dyn Line>) -> Self {
        Self { half, line, unsent: head, sent: 0, finished: false }
    }

    /// Sends one message: a length and postcard. It waits while the other side has no room. Cancelled in the middle,
    /// the message still goes out whole with the next one.
    ///
    /// # Errors
    /// When the value cannot be written or is longer than 64 MiB (the stream goes on), or the stream is of no more use.
    pub async fn message<T: Serialize + ?Sized>(&mut self, message: &T) -> Result<(), StreamError> {
        if self.finished {
            return Err(StreamError::Stopped);
        }
        self.append(message)?;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        while self.sent < self.unsent.len() {
            give_way().await;
            let rest = &self.unsent[self.sent..];
            self.sent += match &mut self.half {
                SendHalf::Quic(stream) => stream.write(rest).await.map_err(|error| write_error(&*self.line, &error))?,
                SendHalf::Other(half) => match half.write(rest).await {
                    Ok(0) => return Err(StreamError::Stopped),
                    Ok(written) => written,
                    Err(error) => return Err(io_error(&*self.line, &error)),
                },
            };
        }
        self.unsent.clear();
        self.unsent.shrink_to(KEPT_BYTES);
        self.sent = 0;
        if let SendHalf::Other(half) = &mut self.half {
            half.flush().await.map_err(|error| io_error(&*self.line, &error))?;
        }
        Ok(())
    }

    /// Sends bytes that need be no message, after what stands before a first message.
    #[cfg(test)]
    pub(crate) async fn raw(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.unsent.extend(bytes);
        self.flush().await
    }

    /// Ends this half in order: the reader gets what was sent and then `None`.
    pub fn finish(&mut self) {
        if self.finished {
            return;
        }
        self.finished = true;
        let mut context = Context::from_waker(Waker::noop());
        // Only what stands before a first message is ever left here; a message that was cut off is not worth waiting.
        let mut whole = true;
        while whole && self.sent < self.unsent.len() {
            let rest = &self.unsent[self.sent..];
            let written = match &mut self.half {
                SendHalf::Quic(stream) => Pin::new(stream).poll_write(&mut context, rest).map(Result::ok),
                SendHalf::Other(half) => Pin::new(half).poll_write(&mut context, rest).map(Result::ok),
            };
            match written {
                Poll::Ready(Some(written)) if written > 0 => self.sent += written,
                Poll::Ready(_) | Poll::Pending => whole = false,
            }
        }
        match &mut self.half {
            // An error means that the connection or the stream is gone already, and so is what would be ended.
            SendHalf::Quic(stream) if whole => drop(stream.finish()),
            SendHalf::Quic(stream) => drop(stream.reset(CloseCode::Malformed.number().into())),
            SendHalf::Other(half) => drop(std::pin::pin!(half.shutdown()).poll(&mut context)),
        }
    }

    fn append<T: Serialize + ?Sized>(&mut self, message: &T) -> Result<(), StreamError> {
        let body = encode(message).map_err(|error| StreamError::Malformed(error.to_string()))?;
        let too_long = StreamError::TooLong { limit: MESSAGE_BYTES_MAX, found: body.len() };
        let header = frame_header(body.len()).ok().filter(|_| body.len() <= MESSAGE_BYTES_MAX).ok_or(too_long)?;
        self.unsent.extend(header);
        self.unsent.extend(body);
        Ok(())
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        self.finish();
    }
}

enum RecvHalf {
    Quic(RecvStream),
    Other(Box<dyn AsyncRead + Send + Sync + Unpin>),
}

/// The receiving half. Dropped, it tells the other side to send no more.
pub struct StreamReceiver {
    half: RecvHalf,
    line: Arc<dyn Line>,
    frames: FrameDecoder,
    /// The share of the long message that is arriving.
    share: Option<OwnedSemaphorePermit>,
}

impl std::fmt::Debug for StreamReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamReceiver(from {})", self.line.label())
    }
}

impl StreamReceiver {
    fn new(half: RecvHalf, line: Arc<dyn Line>) -> Self {
        Self { half, line, frames: FrameDecoder::default(), share: None }
    }

    /// The next message, of at most `limit` bytes; `None` when the other side finished in order. Cancelled, it loses
    /// nothing. It holds what has arrived of a message and never room for what is only announced.
    ///
    /// # Errors
    /// When the stream is of no more use.
    pub async fn message<T: DeserializeOwned>(&mut self, limit: usize) -> Result<Option<T>, StreamError> {
        let Some(body) = self.frame(limit).await? else { return Ok(None) };
        let label = self.line.label();
        decode(&body).map(Some).map_err(|error| StreamError::Malformed(format!("{label}: {error}")))
    }

    /// The bytes of the next message, as [`StreamReceiver::message`].
    pub(crate) async fn frame(&mut self, limit: usize) -> Result<Option<Bytes>, StreamError> {
        loop {
            match self.frames.next(limit) {
                Ok(Some(body)) => {
                    self.share = None;
                    return Ok(Some(body));
                }
                Ok(None) => self.take_share()?,
                Err(FrameError::TooLong { limit, found }) => return Err(StreamError::TooLong { limit, found }),
                Err(error) => return Err(StreamError::Malformed(format!("{}: {error}", self.line.label()))),
            }
            let more = if self.frames.buffered() == 0 {
                self.read().await?
            } else {
                let stalled = StreamError::Lost(format!("{} stopped in the middle of a message", self.line.label()));
                tokio::time::timeout(STALL_MAX, self.read()).await.map_err(|_| stalled)??
            };
            if !more {
                let cut_off = |error| StreamError::Malformed(format!("{}: {error}", self.line.label()));
                return self.frames.finish().map(|()| None).map_err(cut_off);
            }
        }
    }

    /// Takes the share of a long message, once its length is known. It does not wait for one: unread streams would fill the
    /// connection's window, and with it the way of everything else.
    fn take_share(&mut self) -> Result<(), StreamError> {
        let long = self.frames.announced().filter(|length| *length > SHORT_BYTES && self.share.is_none());
        let (Some(length), Some(room)) = (long, self.line.room()) else { return Ok(()) };
        let permits = u32::try_from(length.min(ROOM_BYTES)).unwrap_or(u32::MAX);
        let share = Arc::clone(room).try_acquire_many_owned(permits).map_err(|_| {
            StreamError::Lost(format!(
                "{} sends more long messages at once than are taken ({} MiB together); try again",
                self.line.label(),
                ROOM_BYTES >> 20
            ))
        })?;
        self.share = Some(share);
        Ok(())
    }

    /// Takes what is there; `false` at the end.
    async fn read(&mut self) -> Result<bool, StreamError> {
        give_way().await;
        match &mut self.half {
            RecvHalf::Quic(stream) => match stream.read_chunk(READ_BYTES, true).await {
                Ok(Some(chunk)) => {
                    self.frames.feed(&chunk.bytes);
                    Ok(true)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(read_error(&*self.line, &error)),
            },
            RecvHalf::Other(half) => {
                let mut bytes = BytesMut::with_capacity(KEPT_BYTES);
                let read = half.read_buf(&mut bytes).await.map_err(|error| io_error(&*self.line, &error))?;
                self.frames.feed(&bytes);
                Ok(read > 0)
            }
        }
    }
}

/// Lets other tasks of the thread run now and then. QUIC's streams do not by themselves: two tasks that always have
/// something to say to each other would hold a thread for seconds.
async fn give_way() {
    tokio::task::coop::consume_budget().await;
}

fn read_error(line: &dyn Line, error: &ReadError) -> StreamError {
    StreamError::Lost(match error {
        ReadError::ConnectionLost(error) => line.lost(&Ended::from(error)),
        ReadError::Reset(_) => format!("{} broke the stream off", line.label()),
        other => format!("{}: {other}", line.label()),
    })
}

fn write_error(line: &dyn Line, error: &WriteError) -> StreamError {
    match error {
        WriteError::ConnectionLost(error) => StreamError::Lost(line.lost(&Ended::from(error))),
        WriteError::Stopped(_) | WriteError::ClosedStream => StreamError::Stopped,
        WriteError::ZeroRttRejected => StreamError::Lost(format!("{}: {error}", line.label())),
    }
}

fn io_error(line: &dyn Line, error: &std::io::Error) -> StreamError {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => StreamError::Stopped,
        _ => StreamError::Lost(format!("{}: {error}", line.label())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{duplex, split};

    use super::*;

    /// A line whose long messages share room.
    struct Roomy(Arc<Semaphore>);

    impl Line for Roomy {
        fn label(&self) -> &str {
            "laptop"
        }

        fn lost(&self, how: &Ended) -> String {
            how.to_string()
        }

        fn room(&self) -> Option<&Arc<Semaphore>> {
            Some(&self.0)
        }
    }

    /// The reader of a stream on which `bytes` came, with what keeps the stream open.
    async fn arrived(
        bytes: &[u8],
        room: &Arc<Semaphore>,
    ) -> (StreamReceiver, Box<dyn AsyncWrite + Send + Sync + Unpin>) {
        let (mut near, far) = duplex(256 * 1024);
        near.write_all(bytes).await.unwrap();
        (StreamReceiver::new(RecvHalf::Other(Box::new(far)), Arc::new(Roomy(Arc::clone(room)))), Box::new(near))
    }

    #[tokio::test(start_paused = true)]
    async fn long_messages_that_are_over_the_room_of_their_connection_are_turned_away_and_give_it_back() {
        let room = Arc::new(Semaphore::new(100_000));
        let half = [&frame_header(60_000).unwrap()[..], b"only the beginning"].concat();
        let (mut first, _open) = arrived(&half, &room).await;
        let stalled = first.frame(100_000).await.unwrap_err();
        assert!(stalled.to_string().contains("middle of a message"), "{stalled}");
        assert_eq!(room.available_permits(), 40_000);
        let (mut second, _open) = arrived(&half, &room).await;
        let refused = second.frame(100_000).await.unwrap_err();
        assert!(refused.to_string().contains("more long messages"), "{refused}");
        let short = [&frame_header(3).unwrap()[..], b"abc"].concat();
        let (mut third, _open) = arrived(&short, &room).await;
        assert_eq!(third.frame(100_000).await.unwrap().unwrap(), &b"abc"[..]);
        drop(first);
        let whole = [&frame_header(60_000).unwrap()[..], &[7; 60_000]].concat();
        let (mut fourth, _open) = arrived(&whole, &room).await;
        assert_eq!(fourth.frame(100_000).await.unwrap().unwrap().len(), 60_000);
        assert_eq!(room.available_permits(), 100_000);
    }

    fn pair(room: usize) -> (Stream, Stream) {
        let (here, there) = duplex(room);
        let ((here_read, here_write), (there_read, there_write)) = (split(here), split(there));
        (Stream::over(here_read, here_write, "there"), Stream::over(there_read, there_write, "here"))
    }

    #[tokio::test]
    async fn messages_arrive_in_order_and_then_the_end() {
        let (mut here, mut there) = pair(64);
        let sending = async {
            for number in 0..100_u32 {
                here.send.message(&(number, "x".repeat(number as usize))).await.unwrap();
            }
            here.send.finish();
            assert_eq!(here.send.message(&1).await, Err(StreamError::Stopped), "nothing follows the end");
        };
        let receiving = async {
            for number in 0..100_u32 {
                let (found, text) = there.recv.message::<(u32, String)>(200).await.unwrap().unwrap();
                assert_eq!((found, text.len()), (number, number as usize));
            }
            assert_eq!(there.recv.message::<u8>(200).await, Ok(None));
        };
        tokio::join!(sending, receiving);
    }

    #[tokio::test]
    async fn a_receiver_that_is_cancelled_loses_nothing() {
        let (mut here, mut there) = pair(7);
        let sending = async {
            for number in 0..50_u64 {
                here.send.message(&(number, [7_u8; 20])).await.unwrap();
            }
            here.send.finish();
        };
        let receiving = async {
            let mut numbers = Vec::new();
            loop {
                // Given up after each poll: every wait is one that is cancelled.
                let next = tokio::select! {
                    biased;
                    next = there.recv.message::<(u64, [u8; 20])>(100) => next.unwrap(),
                    () = tokio::task::yield_now() => continue,
                };
                let Some((number, _)) = next else { return numbers };
                numbers.push(number);
            }
        };
        let ((), numbers) = tokio::join!(sending, receiving);
        assert_eq!(numbers, (0..50).collect::<Vec<u64>>());
    }

    #[tokio::test]
    async fn a_sender_that_is_cancelled_in_a_message_sends_it_whole_with_the_next() {
        let (mut here, mut there) = pair(5);
        {
            let mut sending = std::pin::pin!(here.send.message(&"the first"));
            let mut context = Context::from_waker(Waker::noop());
            assert!(sending.as_mut().poll(&mut context).is_pending());
        }
        let receiving = async {
            let first = there.recv.message::<String>(100).await.unwrap().unwrap();
            (first, there.recv.message::<String>(100).await.unwrap().unwrap())
        };
        let (sent, received) = tokio::join!(here.send.message(&"the second"), receiving);
        sent.unwrap();
        assert_eq!(received, ("the first".to_owned(), "the second".to_owned()));
    }

    #[tokio::test]
    async fn an_oversized_message_is_refused_at_its_length() {
        let (mut here, mut there) = pair(1024);
        here.send.message(&vec![0_u8; 200]).await.unwrap();
        let refused = there.recv.message::<Vec<u8>>(100).await;
        assert_eq!(refused, Err(StreamError::TooLong { limit: 100, found: 202 }));
        let huge = vec![0_u8; MESSAGE_BYTES_MAX];
        let error = here.send.message(&huge).await.unwrap_err();
        assert!(matches!(error, StreamError::TooLong { limit: MESSAGE_BYTES_MAX, .. }), "{error}");
        here.send.message(&1_u8).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_no_message_names_the_device() {
        let (mut here, mut there) = pair(1024);
        here.send.message(&300_u32).await.unwrap();
        let error = there.recv.message::<String>(100).await.unwrap_err();
        assert!(matches!(&error, StreamError::Malformed(text) if text.starts_with("here: ")), "{error}");
        let (raw, other) = duplex(64);
        let (read, write) = split(other);
        let mut cut = Stream::over(read, write, "laptop");
        let (raw_read, mut raw_write) = split(raw);
        raw_write.write_all(&[0, 0, 0, 9, 1, 2]).await.unwrap();
        raw_write.shutdown().await.unwrap();
        let error = cut.recv.message::<String>(100).await.unwrap_err();
        assert!(matches!(&error, StreamError::Malformed(text) if text.starts_with("laptop: ")), "{error}");
        drop(raw_read);
    }

    #[tokio::test]
    async fn dropping_a_half_ends_it_in_order() {
        let (mut here, mut there) = pair(64);
        here.send.message(&1_u8).await.unwrap();
        drop(here);
        assert_eq!(there.recv.message::<u8>(8).await, Ok(Some(1)));
        assert_eq!(there.recv.message::<u8>(8).await, Ok(None));
    }
}
