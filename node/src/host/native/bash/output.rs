//! Reads a command's pipe into a [`Spool`] while the command runs, and knows when to stop although background children
//! hold the pipe open.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{net::unix::pipe::Receiver, sync::oneshot, task::JoinHandle, time};

use crate::host::native::spool::Spool;

/// One read: the size of a pipe.
const READ_BYTES: usize = 64 * 1024;

/// The shell has ended and the pipe is still open: reading stops when nothing came for this long.
const QUIET: Duration = Duration::from_millis(50);

/// The same, however much background children print.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// What a background child may print after its call before the pipe is closed and the next print kills it: a server
/// that logs lives on, one that prints without end does not eat a processor for nobody.
const DROPPED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How many such pipes the node keeps reading: each holds a file descriptor.
const DROPPED_PIPES_MAX: usize = 64;

/// Reading in a task of its own.
pub(super) struct Collector {
    ended: oneshot::Sender<()>,
    task: JoinHandle<(Spool, Option<Receiver>)>,
}

impl Collector {
    /// Starts to read `pipe` (nothing without one) into `spool`.
    pub(super) fn start(pipe: Option<Receiver>, spool: Spool) -> Self {
        let (ended, end) = oneshot::channel();
        Self { ended, task: tokio::spawn(collect(pipe, spool, end)) }
    }

    /// The command has ended: takes what is in the pipe. Gives the spool, and the pipe when somebody still holds it.
    pub(super) async fn finish(self) -> (Spool, Option<Receiver>) {
        // The task may have seen the end of the pipe already.
        let _ = self.ended.send(());
        // Our bug, or the runtime is going down: the host makes it this member's error.
        self.task
            .await
            .unwrap_or_else(|e| std::panic::resume_unwind(Box::new(format!("reading the output failed: {e}"))))
    }
}

async fn collect(
    pipe: Option<Receiver>,
    mut spool: Spool,
    mut end: oneshot::Receiver<()>,
) -> (Spool, Option<Receiver>) {
    let Some(pipe) = pipe else { return (spool, None) };
    let mut buffer = vec![0; READ_BYTES];
    let mut last_call = None;
    loop {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return (spool, None),
            Ok(length) if spool.writes(length) => {
                let moved = tokio::task::spawn_blocking(move || {
                    spool.push(&buffer[..length]);
                    (spool, buffer)
                });
                match moved.await {
                    Ok(back) => (spool, buffer) = back,
                    // Only a panic in `push`; it is our bug and the member's error says so.
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                }
            }
            Ok(length) => spool.push(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match last_call {
                None => tokio::select! {
                    ready = pipe.readable() => if ready.is_err() { return (spool, None) },
                    _ = &mut end => last_call = Some(time::Instant::now() + DRAIN_MAX),
                },
                Some(_) => match time::timeout(QUIET, pipe.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return (spool, None),
                    Err(_) => return (spool, Some(pipe)),
                },
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return (spool, None),
        }
        // A child that never stops printing never lets the pipe run empty.
        if last_call.is_none() && end.try_recv().is_ok() {
            last_call = Some(time::Instant::now() + DRAIN_MAX);
        }
        if last_call.is_some_and(|deadline| time::Instant::now() >= deadline) {
            return (spool, Some(pipe));
        }
    }
}

/// Reads on for nobody, see [`DROPPED_BYTES_MAX`].
pub(super) async fn drop_output(pipe: Receiver) {
    let Some(_reading) = Reading::begin() else { return };
    let mut buffer = vec![0; READ_BYTES];
    let mut dropped = 0;
    while dropped < DROPPED_BYTES_MAX && pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => dropped += length as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// One of [`DROPPED_PIPES_MAX`].
struct Reading;

static READING: AtomicUsize = AtomicUsize::new(0);

impl Reading {
    fn begin() -> Option<Self> {
        let reading = Self;
        (READING.fetch_add(1, Ordering::Relaxed) < DROPPED_PIPES_MAX).then_some(reading)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.fetch_sub(1, Ordering::Relaxed);
    }
}
