//! [`Doors`]: the broker's side. Runs calls that doors of other devices send, on this device's tools.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use chappie_mesh::{NodeId, Stream, StreamError};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    gather::gather,
    protocol::{self, Call, News, Order},
    words::{call_off, pass_on},
};
use crate::{
    broker::Broker,
    content::JsonObject,
    fleet::{
        Cancel,
        directory::Fleet,
        line::Line,
        protocol::{
            Blob, CALL_MAX, CONTROL_MAX, Extensions,
            ask::{DoorAsk, Picture, Reply},
        },
        seat::Seat,
        serve::{Doorway, NEWS_MAX},
    },
    host::BoxFuture,
    ids::{CallId, SessionId},
    tools::surface::{Answer, Assign, Assigned, Caller, Request, ResourceError, Sent, Surface, Ticket, UnknownTool},
};

/// How long the first message may take: 64 MiB at 512 KiB/s.
const FIRST_MAX: Duration = Duration::from_secs(128);
/// How long the word about an answer is waited for after its stream was lost: a reconnection takes a few seconds.
const TICKET_KEPT: Duration = Duration::from_secs(20);
/// Tickets that wait for such a word; beyond them nobody knows at once.
const TICKETS_MAX: usize = 1_024;

/// Serves doors of other devices. Cheap to clone.
#[derive(Clone)]
pub struct Doors(Arc<Inner>);

struct Inner {
    toolbox: Arc<dyn Surface>,
    fleet: Arc<Fleet>,
    broker: Broker,
    seat: Seat,
    line: Line,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    calls: BTreeMap<CallId, InHand>,
    tickets: BTreeMap<CallId, (u64, Ticket)>,
}

/// A call that is being run.
struct InHand {
    number: u64,
    cancelled: CancellationToken,
    /// The same call came on another stream: this one is left, and the work goes on.
    superseded: CancellationToken,
}

impl Doors {
    /// Runs calls on `toolbox`, this device's own tools, while it has the seat.
    #[must_use]
    pub fn new(toolbox: Arc<dyn Surface>, fleet: Arc<Fleet>, broker: Broker, seat: Seat, line: Line) -> Self {
        Self(Arc::new(Inner { toolbox, fleet, broker, seat, line, open: Mutex::default() }))
    }
}

impl Doorway for Doors {
    fn call(&self, peer: NodeId, stream: Stream) -> BoxFuture<'static, ()> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.serve(peer, stream).await })
    }

    fn ask(&self, _peer: NodeId, ask: DoorAsk) -> BoxFuture<'static, Reply> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.answer(ask).await })
    }

    fn settle(&self, by: &CallId, written: bool) -> bool {
        let ticket = self.0.open().tickets.remove(by);
        let waited = ticket.is_some();
        if let Some((_, ticket)) = ticket {
            settle(ticket, written);
        }
        waited
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: &Arc<Self>, peer: NodeId, mut stream: Stream) {
        let call = match timeout(FIRST_MAX, stream.recv.message::<Order>(CALL_MAX)).await {
            Ok(Ok(Some(Order::Call(call)))) => *call,
            Ok(Err(error @ (StreamError::Malformed(_) | StreamError::TooLong { .. }))) => {
                tracing::warn!(device = self.line.label(&peer), %error, "a call that cannot be read was refused");
                return;
            }
            Ok(_) | Err(_) => return,
        };
        if let Some(word) = self.seat.clone().refusal(NEWS_MAX, |node| self.line.label(node)).await {
            drop(stream.send.message(&News::NotTaken(word)).await);
            return;
        }
        let arguments = match call.arguments.parse::<JsonObject>() {
            Ok(arguments) => arguments,
            Err(error) => {
                tracing::warn!(device = self.line.label(&peer), %error, "a call that cannot be read was refused");
                return;
            }
        };
        self.broker.door_used(peer);
        self.run(call, arguments, stream).await;
    }

    /// Runs one call for as long as its stream is there. When it is lost the call is dropped, which leaves its work
    /// running: the door sends the same call again, and it attaches.
    async fn run(self: &Arc<Self>, call: Call, arguments: JsonObject, mut stream: Stream) {
        let mut seat = self.seat.clone();
        let Some(tenure) = seat.tenure() else { return };
        let (assigns, mut assigned) = mpsc::channel(1);
        let in_hand = HandGuard::take(self, &call.call_id);
        let back = Arc::new(Back::new(&call, assigns));
        let request = request(call, arguments, in_hand.cancelled.clone(), back.clone());
        let calling = async {
            gather(&self.fleet, &self.broker, &request).await;
            Arc::clone(&self.toolbox).call(request).await
        };
        let mut calling = std::pin::pin!(calling);
        let mut acked: Option<oneshot::Sender<bool>> = None;
        let answer = loop {
            tokio::select! {
                biased;
                order = stream.recv.message::<Order>(CONTROL_MAX) => match order {
                    Ok(Some(Order::Ack)) => if let Some(acked) = acked.take() { let _ = acked.send(true); },
                    Ok(Some(Order::Cancel)) => in_hand.cancelled.cancel(),
                    Ok(Some(Order::Call(_) | Order::Written(_))) => {}
                    Ok(None) | Err(_) => return,
                },
                () = in_hand.superseded.cancelled() => return,
                // Whoever is the broker now gets the call from its door, and finds its work by its id.
                () = seat.over(tenure) => {
                    let own = self.line.label(&seat.own());
                    return drop(stream.send.message(&News::Refused(format!("device {own} is not the broker any more"))).await);
                }
                Some(Told { news, wait, done }) = assigned.recv() => {
                    if stream.send.message(&news).await.is_err() {
                        return;
                    }
                    if wait { acked = Some(done) } else { let _ = done.send(true); }
                }
                answer = &mut calling => break answer,
            }
        };
        if let Some(cause) = back.again() {
            return drop(stream.send.message(&News::Refused(cause)).await);
        }
        self.hand_back(&in_hand, answer, stream).await;
    }

    /// Sends the answer, and settles its ticket when the door says whether the client has it.
    async fn hand_back(
        self: &Arc<Self>,
        in_hand: &HandGuard<'_>,
        answer: Result<Answer, UnknownTool>,
        mut stream: Stream,
    ) {
        let Ok(Answer { content, structured, is_error, ticket }) = answer else {
            drop(stream.send.message(&News::UnknownTool).await);
            return;
        };
        let answer = match Blob::json(&structured) {
            Ok(structured) => protocol::Answer { content, structured, is_error, ext: Extensions::new() },
            Err(error) => return tracing::error!(%error, "an answer has no JSON form"),
        };
        let saying = async {
            stream.send.message(&News::Answer(answer)).await.ok()?;
            loop {
                match stream.recv.message::<Order>(CONTROL_MAX).await.ok()? {
                    Some(Order::Written(written)) => return Some(written),
                    Some(Order::Call(_) | Order::Ack | Order::Cancel) => {}
                    None => return None,
                }
            }
        };
        let said = tokio::select! {
            biased;
            said = saying => said,
            // The door sends the call again, so its client has no answer yet. Dropping the ticket says so.
            () = in_hand.superseded.cancelled() => return,
        };
        match said {
            Some(written) => {
                settle(ticket, written);
                drop(stream.send.message(&News::Settled).await);
            }
            None => self.keep(in_hand.call_id.clone(), ticket),
        }
    }

    /// Keeps the ticket of an answer whose stream was lost: the door's word may come on another one.
    fn keep(self: &Arc<Self>, call_id: CallId, ticket: Ticket) {
        let mut open = self.open();
        if open.tickets.len() >= TICKETS_MAX {
            drop(open);
            return ticket.lapse();
        }
        open.next += 1;
        let number = open.next;
        let replaced = open.tickets.insert(call_id.clone(), (number, ticket));
        drop(open);
        drop(replaced);
        let inner = Arc::clone(self);
        self.line.runtime().spawn(async move {
            tokio::time::sleep(TICKET_KEPT).await;
            let mut open = inner.open();
            let same = open.tickets.get(&call_id).is_some_and(|(kept, _)| *kept == number);
            let lapsed = if same { open.tickets.remove(&call_id) } else { None };
            drop(open);
            if let Some((_, ticket)) = lapsed {
                ticket.lapse();
            }
        });
    }

    async fn answer(&self, ask: DoorAsk) -> Reply {
        match ask {
            DoorAsk::Resource { uri, conversation, request_id } => {
                let caller = Caller { conversation, request_id, preferred: None };
                match Arc::clone(&self.toolbox).read_resource(uri, caller).await {
                    Ok(read) => Reply::Resource(Picture { mime: read.mime, bytes: Blob(read.bytes) }),
                    Err(ResourceError::NotFound(cause)) => Reply::NotFound(cause),
                    Err(ResourceError::Unreadable(cause)) => Reply::Unreadable(cause),
                }
            }
            DoorAsk::Disconnected(conversation) => {
                self.toolbox.disconnected(&conversation);
                Reply::Done
            }
            DoorAsk::Cancel { call_id, conversation, reason } => {
                self.call_off(Cancel { call_id, conversation, reason }, None).await
            }
            DoorAsk::CallOff { call_id, pin, conversation, reason } => {
                self.call_off(Cancel { call_id, conversation, reason }, pin).await
            }
            DoorAsk::Written { call_id, written } => {
                let ticket = self.open().tickets.remove(&call_id);
                match ticket {
                    Some((_, ticket)) => settle(ticket, written),
                    // An earlier broker's answer (failure rule F7).
                    None => pass_on(&self.fleet, &call_id, written).await,
                }
                Reply::Done
            }
        }
    }

    async fn call_off(&self, cancel: Cancel, pin: Option<SessionId>) -> Reply {
        if let Some(call) = self.open().calls.get(&cancel.call_id) {
            call.cancelled.cancel();
        }
        if call_off(&self.fleet, cancel, pin.as_ref()).await {
            Reply::Done
        } else {
            Reply::Failed("the device of its session is away".to_owned())
        }
    }
}

fn settle(ticket: Ticket, written: bool) {
    if written { ticket.written() } else { drop(ticket) }
}

fn request(call: Call, arguments: JsonObject, cancelled: CancellationToken, assign: Arc<Back>) -> Request {
    let caller = call.caller();
    let budget = Duration::from_millis(call.budget_ms);
    let sent = Sent { call_id: call.call_id, pin: call.pin, budget, assign };
    Request { tool: call.tool, arguments, caller, cancelled, sent: Some(sent) }
}

/// Something that the door is told, and where its word on it goes.
struct Told {
    news: News,
    wait: bool,
    done: oneshot::Sender<bool>,
}

/// The way back to the door of one call.
struct Back {
    pin: Option<SessionId>,
    proposal: Option<SessionId>,
    assigns: mpsc::Sender<Told>,
    again: OnceLock<String>,
}

impl Back {
    fn new(call: &Call, assigns: mpsc::Sender<Told>) -> Self {
        Self { pin: call.pin.clone(), proposal: call.proposal.clone(), assigns, again: OnceLock::new() }
    }

    /// Why the door is to send the call again, when it is.
    fn again(&self) -> Option<String> {
        self.again.get().cloned()
    }
}

impl Assign for Back {
    fn assigned(&self, assigned: Assigned) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let Assigned { session, device, explicit } = assigned;
            let agreed = [&self.pin, &self.proposal].into_iter().flatten().any(|known| *known == session);
            let (done, told) = oneshot::channel();
            let wait = !explicit && !agreed;
            let told_so = self.assigns.send(Told { news: News::Assigned { session, device, wait }, wait, done }).await;
            told_so.is_ok() && told.await.unwrap_or(false)
        })
    }

    fn again(&self, cause: &str) {
        let _ = self.again.set(cause.to_owned());
    }
}

/// A call's place among those that are run; leaves with the call.
struct HandGuard<'a> {
    inner: &'a Inner,
    call_id: CallId,
    number: u64,
    cancelled: CancellationToken,
    superseded: CancellationToken,
}

impl<'a> HandGuard<'a> {
    fn take(inner: &'a Inner, call_id: &CallId) -> Self {
        let (cancelled, superseded) = (CancellationToken::new(), CancellationToken::new());
        let mut open = inner.open();
        open.next += 1;
        let number = open.next;
        let in_hand = InHand { number, cancelled: cancelled.clone(), superseded: superseded.clone() };
        let earlier = open.calls.insert(call_id.clone(), in_hand);
        // What its answer carried was not written by an earlier sending, or it would not be sent again.
        let ticket = open.tickets.remove(call_id);
        drop(open);
        drop(ticket);
        if let Some(earlier) = earlier {
            earlier.superseded.cancel();
        }
        Self { inner, call_id: call_id.clone(), number, cancelled, superseded }
    }
}

impl Drop for HandGuard<'_> {
    fn drop(&mut self) {
        let mut open = self.inner.open();
        if open.calls.get(&self.call_id).is_some_and(|call| call.number == self.number) {
            open.calls.remove(&self.call_id);
        }
    }
}
