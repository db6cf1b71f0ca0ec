//! The writing half of a line connection: lines in order, each with the ticket that its flush settles.

use std::sync::Arc;

use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{LinesError, link::Link};
use crate::{mcp::refusal::Refusal, tools::Ticket};

/// Answers between the handlers and the writer. More wait in their tasks, which the limit on requests bounds.
pub(super) const WRITE_QUEUE: usize = 64;

/// One line to write.
pub(super) struct Job {
    pub(super) line: Vec<u8>,
    /// Settled by the flush.
    pub(super) ticket: Option<Ticket>,
    /// Dropped once the line is out or never will be.
    pub(super) _token: Option<TaskTrackerToken>,
    /// Told that the line is out.
    pub(super) done: Option<oneshot::Sender<()>>,
}

impl Job {
    pub(super) fn refusal(refusal: &Refusal) -> Self {
        Self { line: terminated(refusal.body().into()), ticket: None, _token: None, done: None }
    }
}

/// A line with its end.
pub(super) fn terminated(mut line: Vec<u8>) -> Vec<u8> {
    line.push(b'\n');
    line
}

/// Writes lines in order and flushes when no more are waiting, so that a burst costs one flush.
pub(super) async fn write_lines<W: AsyncWrite + Unpin>(mut writer: W, mut jobs: mpsc::Receiver<Job>, link: Arc<Link>) {
    let mut unflushed = Vec::new();
    while let Some(job) = jobs.recv().await {
        let outcome = async {
            let mut next = Some(job);
            while let Some(job) = next {
                writer.write_all(&job.line).await?;
                unflushed.push(job);
                next = if unflushed.len() < WRITE_QUEUE { jobs.try_recv().ok() } else { None };
            }
            writer.flush().await
        };
        if let Err(error) = outcome.await {
            link.fail(LinesError::Write(error));
            return;
        }
        for Job { ticket, done, .. } in unflushed.drain(..) {
            if let Some(ticket) = ticket {
                ticket.written();
            }
            if let Some(done) = done {
                // The sender may be gone; the line is out all the same.
                let _ = done.send(());
            }
        }
    }
}
