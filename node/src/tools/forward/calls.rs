//! One call at the door: sent to whoever is the broker, here or on another device; sent again after a loss and when somebody
//! else takes the seat; cancelled, answered. The identity and the pin are the same in every sending (failure rules F1, F6).

use std::{sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Stream, StreamError, StreamKind};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    door::Forwarding,
    patience::{AWAY_MAX, Patience},
    protocol::{self, Call, News, Order},
};
use crate::{
    content::JsonObject,
    fleet::{
        line::{ASK_WAIT, was_silent},
        protocol::{ANSWER_MAX, NotJson},
        seat::{Holder, Seat},
    },
    ids::{CallId, SessionId},
    tools::{
        compose::refusal,
        surface::{Answer, Caller, Request, UnknownTool},
    },
};

/// What a broker may take beyond the budget: it composes and sends up to 40 MiB.
const GRACE: Duration = Duration::from_secs(15);
/// How long past its budget a call is sent again when the seat moves: only a broker can say that it is running (failure rule
/// F5), and one is chosen within this time or the client hears that there is none.
const OVERTIME: Duration = AWAY_MAX;

/// One call, and what the door knows of it.
pub(super) struct Sending {
    pub(super) call_id: CallId,
    pub(super) tool: String,
    pub(super) caller: Caller,
    pub(super) cancelled: CancellationToken,
    pub(super) until: Instant,
    arguments: Arguments,
    /// The session that the request names.
    pub(super) explicit: Option<SessionId>,
    /// Where it goes, once it may have gone there.
    pub(super) pin: Option<SessionId>,
    /// Where it goes, as a broker said.
    pub(super) assigned: Option<(SessionId, String)>,
    /// Whether a broker may have it.
    pub(super) sent: bool,
    /// Whether the latest sending reached a broker whole.
    pub(super) through: bool,
    /// Whether this device's own tools had no office for the latest sending.
    pub(super) doubted: bool,
}

/// The arguments, in the form that the latest sending needed: they may be long.
enum Arguments {
    Here(JsonObject),
    There(Box<Call>),
}

/// How one sending ended.
pub(super) enum Ended {
    Answer(Answer),
    UnknownTool,
    /// The broker is not there, or not to be reached.
    Lost(String),
    /// The broker cannot say what becomes of it, and why: it is sent again.
    Again(String),
    /// The device was not the broker when it came, and why: it is sent again.
    NotTaken(String),
    /// Somebody else has the seat, or nobody.
    Moved,
    /// Never to be sent again, and why.
    Refused(String),
    Cancelled,
    Late,
}

impl Sending {
    fn of(request: Request, budget: Duration) -> Self {
        let (call_id, budget) = (request.call_id(), request.budget(budget));
        let pin = request.pin().cloned();
        let Request { tool, arguments, caller, cancelled, .. } = request;
        let explicit = arguments.get("sessionId").and_then(|id| id.as_str()).map(SessionId::from);
        Self {
            call_id,
            tool,
            caller,
            cancelled,
            until: Instant::now() + budget,
            arguments: Arguments::Here(arguments),
            explicit,
            pin,
            assigned: None,
            sent: false,
            through: false,
            doubted: false,
        }
    }

    /// What is left of the caller's budget.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// The arguments for this device's own tools.
    pub(super) fn arguments(&self) -> Result<JsonObject, NotJson> {
        match &self.arguments {
            Arguments::Here(arguments) => Ok(arguments.clone()),
            Arguments::There(call) => call.arguments.parse(),
        }
    }

    /// The call on the wire, as it is to be sent now.
    fn order(&mut self, proposal: Option<SessionId>) -> Result<Box<Call>, NotJson> {
        let mut call = match std::mem::replace(&mut self.arguments, Arguments::Here(JsonObject::new())) {
            Arguments::There(call) => call,
            Arguments::Here(arguments) => {
                let made = Call::new(self.call_id.clone(), &self.tool, &arguments, &self.caller, Duration::ZERO);
                match made {
                    Ok(call) => Box::new(Call { proposal, ..call }),
                    Err(error) => {
                        self.arguments = Arguments::Here(arguments);
                        return Err(error);
                    }
                }
            }
        };
        call.pin.clone_from(&self.pin);
        call.leave(self.left());
        Ok(call)
    }

    /// Where it goes is fixed once a broker may have passed it on, by the broker or by both: it never goes anywhere else.
    fn fix(&mut self) {
        if self.sent && self.pin.is_none() {
            let assigned = self.assigned.as_ref().map(|(session, _)| session.clone());
            self.pin = self.explicit.clone().or(assigned).or_else(|| self.proposal().cloned());
        }
    }

    /// What a broker elsewhere was told that the conversation's last call went to.
    pub(super) fn proposal(&self) -> Option<&SessionId> {
        match &self.arguments {
            Arguments::There(call) => call.proposal.as_ref(),
            Arguments::Here(_) => None,
        }
    }
}

impl Forwarding {
    /// Sends a call until it is answered, or until it is clear that it will not be.
    pub(super) async fn deliver(self: Arc<Self>, request: Request) -> Result<Answer, UnknownTool> {
        if !self.toolbox.specs().iter().any(|spec| spec.name == request.tool) {
            return Err(UnknownTool);
        }
        let mut sending = Sending::of(request, self.call_budget);
        let mut seat = self.seat.clone();
        let mut patience = Patience::new(Instant::now());
        loop {
            let holder = seat.holder();
            let away_until = patience.until();
            let ended = match holder {
                Holder::Here => self.here(&mut seat, &mut sending).await,
                Holder::There(broker) => self.there(broker, &mut seat, &mut sending, away_until).await,
                Holder::Nobody => self.await_holder(&mut seat, &sending, away_until).await,
            };
            let ended = match ended {
                Ended::Answer(answer) => return Ok(answer),
                Ended::UnknownTool => return Err(UnknownTool),
                Ended::Refused(reason) => return Ok(refusal(reason)),
                Ended::Late => return Ok(refusal(self.late(&sending))),
                Ended::Cancelled => return Ok(self.cancel(&sending)),
                // Whoever has it may not get to it any more.
                Ended::Lost(_) | Ended::Again(_) | Ended::NotTaken(_) | Ended::Moved
                    if sending.cancelled.is_cancelled() =>
                {
                    return Ok(self.cancel(&sending));
                }
                ended => ended,
            };
            sending.fix();
            let now = Instant::now();
            let through = std::mem::take(&mut sending.through);
            let pause = match &ended {
                Ended::Moved => patience.moved(now, through, seat.holder() != Holder::Nobody),
                Ended::Lost(cause) | Ended::Again(cause) => patience.lost(now, through, was_silent(cause)),
                Ended::NotTaken(_) => patience.refused(now),
                _ => None,
            };
            let Some(pause) = pause.filter(|pause| now + *pause < sending.until + OVERTIME) else {
                return Ok(refusal(self.given_up(ended, holder, &sending)));
            };
            tokio::select! {
                biased;
                () = sending.cancelled.cancelled() => return Ok(self.cancel(&sending)),
                () = seat.left(holder) => {}
                () = sleep_until(now + pause) => {}
            }
        }
    }

    /// Waits until somebody has the seat.
    async fn await_holder(&self, seat: &mut Seat, sending: &Sending, away_until: Instant) -> Ended {
        tokio::select! {
            biased;
            () = sending.cancelled.cancelled() => Ended::Cancelled,
            _ = seat.taken() => Ended::Moved,
            () = sleep_until(away_until.min(sending.until + OVERTIME)) => Ended::Lost(self.fleet.no_broker()),
        }
    }

    /// Sends the call once to the broker of another device, and follows it until somebody else has the seat.
    async fn there(
        self: &Arc<Self>,
        broker: NodeId,
        seat: &mut Seat,
        sending: &mut Sending,
        away_until: Instant,
    ) -> Ended {
        let proposal = sending.caller.conversation.as_ref().and_then(|conversation| self.pins().last(conversation));
        let call = match sending.order(proposal) {
            Ok(call) => call,
            Err(error) => return Ended::Refused(format!("nothing was done: {error}")),
        };
        let wait = away_until.saturating_duration_since(Instant::now());
        let opened = tokio::select! {
            biased;
            () = sending.cancelled.cancelled() => Err(Ended::Cancelled),
            () = seat.left(Holder::There(broker)) => Err(Ended::Moved),
            opened = self.line.open(broker, StreamKind::Door, wait) => opened.map_err(Ended::Lost),
        };
        let order = Order::Call(call);
        let ended = match opened {
            Ok(mut stream) => {
                let sent = tokio::select! {
                    biased;
                    () = seat.left(Holder::There(broker)) => None,
                    sent = stream.send.message(&order) => Some(sent),
                };
                let earlier = std::mem::replace(&mut sending.sent, true);
                match sent {
                    None => Ended::Moved,
                    Some(Ok(())) => {
                        sending.through = true;
                        let ended = self.follow(broker, seat, sending, stream).await;
                        if matches!(ended, Ended::NotTaken(_)) {
                            (sending.sent, sending.through) = (earlier, false);
                        }
                        ended
                    }
                    Some(Err(error @ (StreamError::TooLong { .. } | StreamError::Malformed(_)))) => Ended::Refused(
                        format!("nothing was done: the call cannot be sent to the broker's device: {error}"),
                    ),
                    Some(Err(error)) => Ended::Lost(self.line.trouble(&broker, &error)),
                }
            }
            Err(ended) => ended,
        };
        if let Order::Call(call) = order {
            sending.arguments = Arguments::There(call);
        }
        ended
    }

    async fn follow(
        self: &Arc<Self>,
        broker: NodeId,
        seat: &mut Seat,
        sending: &mut Sending,
        mut stream: Stream,
    ) -> Ended {
        let trouble = |error| Ended::Lost(self.line.trouble(&broker, &error));
        let mut give_up = sending.until + GRACE;
        let mut cancelling = false;
        loop {
            tokio::select! {
                biased;
                () = sending.cancelled.cancelled(), if !cancelling => {
                    cancelling = true;
                    give_up = Instant::now() + ASK_WAIT;
                    if !matches!(timeout_at(give_up, stream.send.message(&Order::Cancel)).await, Ok(Ok(()))) {
                        return Ended::Cancelled;
                    }
                }
                news = stream.recv.message::<News>(ANSWER_MAX) => match news {
                    Ok(Some(News::Assigned { session, device, wait })) => {
                        self.assigned(sending, session, device);
                        if wait {
                            let acked = tokio::select! {
                                biased;
                                acked = stream.send.message(&Order::Ack) => acked,
                                () = seat.left(Holder::There(broker)) => return Ended::Moved,
                            };
                            if let Err(error) = acked {
                                return trouble(error);
                            }
                        }
                    }
                    Ok(Some(News::Answer(answer))) => {
                        return Ended::Answer(self.hand_over(&sending.call_id, answer, stream));
                    }
                    Ok(Some(News::UnknownTool)) => return Ended::UnknownTool,
                    Ok(Some(News::Settled)) => {}
                    _ if cancelling => return Ended::Cancelled,
                    Ok(Some(News::Refused(cause))) => return Ended::Again(cause),
                    Ok(Some(News::NotTaken(cause))) => return Ended::NotTaken(cause),
                    Ok(None) => {
                        let label = self.line.label(&broker);
                        return Ended::Lost(format!("device {label} ended the call without an answer"));
                    }
                    Err(error) => return trouble(error),
                },
                // A stream to a broker that died may hang for seconds; whoever follows it has the work already, or gets it.
                () = seat.left(Holder::There(broker)) => return Ended::Moved,
                () = sleep_until(give_up) => return if cancelling { Ended::Cancelled } else { Ended::Late },
            }
        }
    }

    /// A broker said where the call goes.
    pub(super) fn assigned(&self, sending: &mut Sending, session: SessionId, device: String) {
        if let Some(conversation) = &sending.caller.conversation {
            self.pins().note(conversation, session.clone());
        }
        sending.assigned = Some((session, device));
    }
}

/// An answer that came over the wire, with nothing to tell yet.
pub(super) fn answer(answer: protocol::Answer, ticket: crate::tools::surface::Ticket) -> Answer {
    let structured = answer.structured.parse().unwrap_or_else(|error| {
        tracing::warn!(%error, "an answer of the broker has no structured content");
        JsonObject::new()
    });
    Answer { content: answer.content, structured, is_error: answer.is_error, ticket }
}
