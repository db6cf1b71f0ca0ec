//! Bodies of HTTP answers: one piece, or a stream of server-sent events that is open before the call has ended.
//! A body hands the request's ticket to its connection together with the bytes that carry the answer, and knows when it is
//! dropped before that.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::{delivery::Outbox, exchange::Exchange, refusal::Refusal};

/// Between comments on a stream where nothing happens. ChatGPT was seen to give up 12 s after the last byte.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The first bytes of every stream: a comment, so that the client and every proxy between see the answer begin.
const OPENING: &[u8] = b": open\n\n";
const COMMENT: &[u8] = b": keep-alive\n\n";

/// The body of an answer.
pub struct Reply(Form);

enum Form {
    Whole { bytes: Option<Bytes>, parcel: Option<Parcel> },
    Events(Box<Events>),
}

impl Reply {
    /// A body without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self(Form::Whole { bytes: None, parcel: None })
    }

    /// A body of these bytes that answers no call.
    #[must_use]
    pub fn plain(bytes: Bytes) -> Self {
        Self(Form::Whole { bytes: Some(bytes), parcel: None })
    }

    /// A JSON-RPC answer in one piece.
    pub(super) fn whole(bytes: Bytes, parcel: Parcel) -> Self {
        Self(Form::Whole { bytes: (!bytes.is_empty()).then_some(bytes), parcel: Some(parcel) })
    }

    /// A stream that ends with the JSON-RPC answer `call` gives, or without one when the client cancelled meanwhile.
    pub(super) fn answer_stream(call: impl Future<Output = Bytes> + Send + 'static, parcel: Parcel) -> Self {
        Self(Form::Events(Box::new(Events::new(Source::Call { call: Box::pin(call), parcel }))))
    }

    /// A stream that carries nothing but comments until `end` resolves: we never speak first.
    pub(super) fn silent_stream(end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Form::Events(Box::new(Events::new(Source::Silent(Box::pin(end))))))
    }
}

impl Refusal {
    /// The refusal as an HTTP answer.
    #[must_use]
    pub fn into_response(self) -> Response<Reply> {
        let mut answer = Response::new(Reply::plain(self.body()));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("POST, GET, DELETE"));
        }
        answer
    }
}

/// Pairs an exchange with the connection its answer leaves by.
pub(super) struct Parcel {
    exchange: Arc<Exchange>,
    outbox: Arc<Outbox>,
    /// `Some` until the answer was handed over when a request closed before that is cancelled (2026-07-28); holds the
    /// token that fires when we close connections ourselves, which cancels nothing.
    cancels_unless: Option<CancellationToken>,
}

impl Parcel {
    /// A parcel whose loss means nothing but that the answer was not written (2025-11-25 and before, F4).
    pub(super) fn detaching(exchange: Arc<Exchange>, outbox: Arc<Outbox>) -> Self {
        Self { exchange, outbox, cancels_unless: None }
    }

    /// A parcel whose loss cancels the call, unless `closing` fired: then it was we who closed (2026-07-28).
    pub(super) fn cancelling(exchange: Arc<Exchange>, outbox: Arc<Outbox>, closing: CancellationToken) -> Self {
        Self { exchange, outbox, cancels_unless: Some(closing) }
    }

    /// The bytes are about to enter the connection's buffer: the ticket waits for the flush after them.
    fn hand_over(mut self) {
        self.cancels_unless = None;
        if let Some(ticket) = self.exchange.take_ticket() {
            self.outbox.park(ticket);
        }
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if self.cancels_unless.take().is_some_and(|closing| !closing.is_cancelled()) {
            self.exchange.cancelled.cancel();
        }
    }
}

struct Events {
    opened: bool,
    keep_alive: Pin<Box<Sleep>>,
    source: Source,
}

enum Source {
    Call { call: Pin<Box<dyn Future<Output = Bytes> + Send>>, parcel: Parcel },
    Silent(Pin<Box<dyn Future<Output = ()> + Send>>),
    Ended,
}

impl Events {
    fn new(source: Source) -> Self {
        Self { opened: false, keep_alive: Box::pin(sleep(KEEP_ALIVE)), source }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.opened {
            self.opened = true;
            return Poll::Ready(Some(Bytes::from_static(OPENING)));
        }
        match &mut self.source {
            Source::Call { call, .. } => {
                if let Poll::Ready(json) = call.as_mut().poll(cx) {
                    let Source::Call { parcel, .. } = std::mem::replace(&mut self.source, Source::Ended) else {
                        return Poll::Ready(None);
                    };
                    // MCP: no response to a request that the client cancelled; the stream just ends.
                    let silent = parcel.exchange.cancelled.is_cancelled();
                    parcel.hand_over();
                    return Poll::Ready((!silent).then(|| event(&json)));
                }
            }
            Source::Silent(end) => {
                if end.as_mut().poll(cx).is_ready() {
                    self.source = Source::Ended;
                    return Poll::Ready(None);
                }
            }
            Source::Ended => return Poll::Ready(None),
        }
        ready!(self.keep_alive.as_mut().poll(cx));
        self.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
        Poll::Ready(Some(Bytes::from_static(COMMENT)))
    }
}

/// One event. JSON as serde writes it has no line ends, so it is one `data` line.
fn event(json: &[u8]) -> Bytes {
    Bytes::from([b"event: message\ndata: ", json, b"\n\n"].concat())
}

impl Body for Reply {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = match &mut self.get_mut().0 {
            Form::Whole { bytes, parcel } => {
                let next = bytes.take();
                if next.is_some()
                    && let Some(parcel) = parcel.take()
                {
                    parcel.hand_over();
                }
                next
            }
            Form::Events(events) => ready!(events.poll_next(cx)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Form::Whole { bytes, .. } => bytes.is_none(),
            Form::Events(events) => matches!(events.source, Source::Ended),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Form::Whole { bytes, .. } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Form::Events(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use http_body_util::BodyExt;

    use super::*;
    use crate::tools::Ticket;

    struct Stand {
        exchange: Arc<Exchange>,
        outbox: Arc<Outbox>,
        closing: CancellationToken,
        settled: mpsc::Receiver<bool>,
    }

    impl Stand {
        fn new() -> Self {
            let (tx, settled) = mpsc::channel();
            let exchange = Arc::new(Exchange::default());
            exchange.leave_ticket(Ticket::new(move |written| tx.send(written).unwrap()));
            Self { exchange, outbox: Arc::default(), closing: CancellationToken::new(), settled }
        }

        fn cancelling(&self) -> Parcel {
            Parcel::cancelling(self.exchange.clone(), self.outbox.clone(), self.closing.clone())
        }

        fn detaching(&self) -> Parcel {
            Parcel::detaching(self.exchange.clone(), self.outbox.clone())
        }
    }

    #[tokio::test]
    async fn f7_the_ticket_is_parked_with_the_bytes_of_the_answer_and_not_before() {
        let stand = Stand::new();
        let mut reply = Reply::whole(Bytes::from_static(b"{}"), stand.cancelling());
        assert_eq!(reply.size_hint().exact(), Some(2));
        assert!(!stand.outbox.is_waiting());
        let frame = reply.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "{}");
        assert!(stand.outbox.is_waiting() && reply.is_end_stream());
        drop(reply);
        assert!(!stand.exchange.cancelled.is_cancelled(), "handed over, so closing it is no cancellation");
        stand.outbox.flushed();
        assert_eq!(stand.settled.try_recv(), Ok(true));
    }

    #[test]
    fn f4_a_body_dropped_before_its_answer_cancels_only_where_closing_means_that() {
        let stand = Stand::new();
        drop(Reply::whole(Bytes::from_static(b"{}"), stand.detaching()));
        assert!(!stand.exchange.cancelled.is_cancelled());
        drop(Reply::whole(Bytes::from_static(b"{}"), stand.cancelling()));
        assert!(stand.exchange.cancelled.is_cancelled());
    }

    #[test]
    fn f4_a_body_that_we_drop_while_closing_cancels_nothing() {
        let stand = Stand::new();
        stand.closing.cancel();
        drop(stand.cancelling());
        assert!(!stand.exchange.cancelled.is_cancelled());
    }

    #[tokio::test]
    async fn an_answer_stream_is_opening_then_one_event_then_its_end() {
        let stand = Stand::new();
        let mut reply = Reply::answer_stream(async { Bytes::from_static(b"{\"id\":1}") }, stand.detaching());
        let mut pieces = Vec::new();
        while let Some(frame) = reply.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(pieces, [": open\n\n", "event: message\ndata: {\"id\":1}\n\n"]);
        assert!(stand.outbox.is_waiting());
    }
}
