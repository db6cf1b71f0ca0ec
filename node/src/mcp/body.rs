//! Request bodies: read within their limits, and together within a budget.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refusal::Refusal;

/// Largest request body: a `write` of 32 MiB whose JSON doubles every byte.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// All bodies of a door that are not yet decoded: four of the largest. Over it a request is refused, not queued: uploads
/// that wait for each other would never end.
const BODIES_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;
/// Longest pause between two pieces of a request body.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// From this size on decoding takes turns: for a moment it needs six times the body (measured with rmcp 3.11).
const LARGE_BYTES: usize = 1024 * 1024;
/// Large bodies decoded at once.
const LARGE_AT_ONCE: usize = 2;

/// What a door's bodies share.
pub(super) struct Intake {
    held: Arc<AtomicUsize>,
    turns: Arc<Semaphore>,
}

/// The room a body takes until it is decoded.
pub(super) struct Room {
    total: Arc<AtomicUsize>,
    bytes: usize,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self { held: Arc::default(), turns: Arc::new(Semaphore::new(LARGE_AT_ONCE)) }
    }

    /// Collects a body, and waits for its turn to be decoded when it is large.
    ///
    /// # Errors
    ///
    /// A refusal: too large (413), too slow (408), cut short (400), or too many at once (503).
    pub(super) async fn read<B>(&self, headers: &HeaderMap, mut body: B) -> Result<(Bytes, Room), Refusal>
    where
        B: Body + Unpin,
        B::Error: Display,
    {
        let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
            return Err(too_large());
        }
        let mut room = Room { total: self.held.clone(), bytes: 0, _turn: None };
        let mut collected = BytesMut::new();
        while let Some(frame) = next_frame(&mut body).await? {
            if frame.remaining() > BODY_BYTES_MAX - collected.len() {
                return Err(too_large());
            }
            room.grow(frame.remaining())?;
            collected.extend_from_slice(&frame);
        }
        if collected.len() > LARGE_BYTES {
            // Closed never happens: the semaphore lives as long as the door.
            room._turn = self.turns.clone().acquire_owned().await.ok();
        }
        Ok((collected.freeze(), room))
    }
}

impl Room {
    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes += bytes;
        let before = self.total.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= BODIES_BYTES_MAX {
            return Ok(());
        }
        let message = format!("too many large requests at once (over {BODIES_BYTES_MAX} bytes together): try again");
        Err(Refusal::request(StatusCode::SERVICE_UNAVAILABLE, message))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

async fn next_frame<B>(body: &mut B) -> Result<Option<Bytes>, Refusal>
where
    B: Body + Unpin,
    B::Error: Display,
{
    loop {
        let frame = tokio::time::timeout(PAUSE_MAX, body.frame()).await.map_err(|_elapsed| {
            let message = format!("the request body stopped arriving for {} s", PAUSE_MAX.as_secs());
            Refusal::request(StatusCode::REQUEST_TIMEOUT, message)
        })?;
        let Some(frame) = frame else {
            return Ok(None);
        };
        let frame = frame.map_err(|error| {
            Refusal::request(StatusCode::BAD_REQUEST, format!("the request body could not be read: {error}"))
        })?;
        // Trailers say nothing to us.
        if let Ok(mut data) = frame.into_data() {
            return Ok(Some(data.copy_to_bytes(data.remaining())));
        }
    }
}

fn too_large() -> Refusal {
    let message = format!("request body too large: expected at most {BODY_BYTES_MAX} bytes; send less per call");
    Refusal::request(StatusCode::PAYLOAD_TOO_LARGE, message)
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn full(bytes: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b' '; bytes]))
    }

    async fn read(intake: &Intake, bytes: usize) -> Result<Room, u16> {
        let read = intake.read(&HeaderMap::new(), full(bytes)).await;
        read.map(|(_, room)| room).map_err(|refusal| refusal.status.as_u16())
    }

    #[tokio::test]
    async fn a_body_at_the_limit_passes_and_one_byte_more_does_not() {
        let intake = Intake::new();
        assert!(read(&intake, BODY_BYTES_MAX).await.is_ok());
        assert_eq!(read(&intake, BODY_BYTES_MAX + 1).await.err(), Some(413));
    }

    #[tokio::test]
    async fn bodies_share_a_budget_that_comes_back_when_they_are_decoded() {
        let intake = Intake::new();
        let most = LARGE_BYTES;
        let mut rooms = Vec::new();
        for _ in 0..BODIES_BYTES_MAX / most {
            rooms.push(read(&intake, most).await.unwrap());
        }
        assert_eq!(read(&intake, 1).await.err(), Some(503));
        rooms.pop();
        assert!(read(&intake, most).await.is_ok());
        drop(rooms);
        assert_eq!(intake.held.load(Ordering::Relaxed), 0, "refused ones give theirs back too");
    }

    #[tokio::test]
    async fn large_bodies_take_turns_and_small_ones_do_not_wait() {
        let intake = Intake::new();
        let first = read(&intake, LARGE_BYTES + 1).await.unwrap();
        let _second = read(&intake, LARGE_BYTES + 1).await.unwrap();
        assert!(read(&intake, LARGE_BYTES).await.is_ok());
        let mut third = std::pin::pin!(read(&intake, LARGE_BYTES + 1));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(third.as_mut().poll(cx).is_pending())).await);
        drop(first);
        assert!(third.await.is_ok());
    }
}
