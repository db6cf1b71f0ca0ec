//! A TCP connection that says when what was written is with the operating system, and that no peer can stall for ever.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

use crate::mcp::Outbox;

/// How long a peer may leave a full socket buffer unread. A reader that slow is gone; its answer's memory is not.
const STALL_MAX: Duration = Duration::from_secs(60);

/// The stream and what waits for its flushes.
pub(super) struct Watched {
    stream: TcpStream,
    outbox: Arc<Outbox>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, outbox: Arc<Outbox>) -> Self {
        Self { stream, outbox, stalled: None }
    }

    /// Refuses to write an answer that nobody is left to read: its first bytes would still fit the socket's buffer. A
    /// client cannot have read it yet, so an end of its stream means that it went away.
    fn expect_reader(&self) -> io::Result<()> {
        if self.outbox.is_waiting() && has_ended(&self.stream) {
            self.outbox.close();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }

    /// Passes a write's outcome on, timing how long the peer takes nothing.
    fn timed(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL_MAX)));
        if stalled.as_mut().poll(cx).is_ready() {
            let message = format!("the client read nothing for {} s", STALL_MAX.as_secs());
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
        }
        Poll::Pending
    }
}

/// Whether the peer has closed its side, asked of the kernel: the runtime may not have noticed yet.
#[cfg(unix)]
fn has_ended(stream: &TcpStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    let mut byte = [0u8];
    matches!(recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((0, _)))
}

/// Elsewhere the reset that answers a write into nothing has to do.
#[cfg(not(unix))]
fn has_ended(_stream: &TcpStream) -> bool {
    false
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.expect_reader()?;
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.expect_reader()?;
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.timed(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes only when its own buffer is empty, so a flush means that every byte so far was taken by the kernel.
    /// A reset that came back for them (the peer was gone already) shows as the socket's pending error.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(outcome, Poll::Ready(Ok(()))) && self.outbox.is_waiting() {
            if let Some(error) = self.stream.take_error()? {
                self.outbox.close();
                return Poll::Ready(Err(error));
            }
            self.outbox.flushed();
        }
        outcome
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.outbox.close();
    }
}
