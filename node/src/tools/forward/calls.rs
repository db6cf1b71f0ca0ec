//! One call at the door: sent to the broker, sent again after a loss, cancelled, answered.

use std::{sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Stream, StreamError, StreamKind};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    door::Forwarding,
    protocol::{self, Call, News, Order},
};
use crate::{
    fleet::{
        line::{ASK_WAIT, was_silent},
        protocol::{
            ANSWER_MAX,
            ask::{Ask, DoorAsk},
        },
        seat::Holder,
    },
    ids::SessionId,
    tools::{
        compose::refusal,
        surface::{Answer, Request, Ticket, UnknownTool},
    },
};

/// How long the broker may be away before the client is told, from its loss on.
pub(super) const AWAY_MAX: Duration = Duration::from_secs(5);
/// The same for a broker that was silent for four seconds before that.
const AWAY_SILENT: Duration = Duration::from_millis(500);
/// Between two sendings.
const PAUSE: Duration = Duration::from_millis(200);
/// How often one call is sent. More than a few losses within one budget are a fault that repeating does not mend.
const SENDINGS_MAX: u32 = 8;
/// What a broker may take beyond the budget: it composes and sends up to 40 MiB.
const GRACE: Duration = Duration::from_secs(15);

/// What the door knows of a call, beside the call itself.
struct Sending {
    cancelled: CancellationToken,
    until: Instant,
    /// Whether a broker may have it.
    sent: bool,
    /// Whether the latest sending went out whole.
    through: bool,
    /// The session that the request names.
    explicit: Option<SessionId>,
    /// Where it goes, once the broker said so.
    assigned: Option<(SessionId, String)>,
}

/// How one sending ended.
enum Ended {
    Answer(Box<(protocol::Answer, Stream)>),
    UnknownTool,
    Lost(String),
    /// Never to be sent again, and why.
    Refused(String),
    Cancelled,
    Late,
}

impl Forwarding {
    pub(super) async fn forward(self: Arc<Self>, broker: NodeId, request: Request) -> Result<Answer, UnknownTool> {
        if !self.toolbox.specs().iter().any(|spec| spec.name == request.tool) {
            return Err(UnknownTool);
        }
        let (call_id, budget) = (request.call_id(), request.budget(self.call_budget));
        let Request { tool, arguments, caller, cancelled, .. } = request;
        let mut call = match Call::new(call_id, &tool, &arguments, &caller, budget) {
            Ok(call) => call,
            Err(error) => return Ok(refusal(format!("nothing was done: {error}"))),
        };
        call.proposal = caller.conversation.as_ref().and_then(|conversation| self.pins().last(conversation));
        let until = Instant::now() + budget;
        let explicit = arguments.get("sessionId").and_then(|id| id.as_str()).map(SessionId::from);
        drop(arguments);
        let sending = Sending { cancelled, until, sent: false, through: false, explicit, assigned: None };
        self.keep_sending(broker, call, sending).await
    }

    async fn keep_sending(
        self: Arc<Self>,
        mut broker: NodeId,
        call: Call,
        mut sending: Sending,
    ) -> Result<Answer, UnknownTool> {
        let mut order = Box::new(call);
        let mut away_until = Instant::now() + AWAY_MAX;
        let mut sendings = 0;
        loop {
            let (ended, back) = self.send(broker, order, &mut sending, away_until).await;
            order = back;
            let cause = match ended {
                Ended::Answer(answer) => return Ok(self.hand_over(broker, &order, *answer)),
                Ended::UnknownTool => return Err(UnknownTool),
                Ended::Refused(reason) => return Ok(refusal(reason)),
                Ended::Cancelled => return Ok(self.cancel(broker, &order)),
                Ended::Late => return Ok(refusal(self.late(&order, &sending))),
                Ended::Lost(cause) => cause,
            };
            sendings += 1;
            // Where it goes was fixed by the broker, or by both: it never goes anywhere else now.
            if sending.sent && order.pin.is_none() {
                let assigned = sending.assigned.as_ref().map(|(session, _)| session.clone());
                order.pin = sending.explicit.clone().or(assigned).or_else(|| order.proposal.clone());
            }
            let now = Instant::now();
            if sending.through {
                // The broker was there: this is a new loss.
                away_until = now + AWAY_MAX;
            }
            if was_silent(&cause) {
                away_until = away_until.min(now + AWAY_SILENT);
            }
            let left = sending.until.saturating_duration_since(now);
            if now + PAUSE >= away_until || left <= PAUSE || sendings >= SENDINGS_MAX {
                return Ok(refusal(self.unreachable(&cause, &order, &sending)));
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = sending.cancelled.cancelled() => return Ok(self.cancel(broker, &order)),
            }
            order.leave(sending.until.saturating_duration_since(Instant::now()));
            if let Holder::There(node) = self.seat.holder() {
                broker = node;
            }
        }
    }

    /// Sends the call once, and gives it back with how that ended.
    async fn send(
        &self,
        broker: NodeId,
        call: Box<Call>,
        sending: &mut Sending,
        away_until: Instant,
    ) -> (Ended, Box<Call>) {
        let wait = away_until.saturating_duration_since(Instant::now());
        sending.through = false;
        let opened = tokio::select! {
            opened = self.line.open(broker, StreamKind::Door, wait) => opened,
            () = sending.cancelled.cancelled() => return (Ended::Cancelled, call),
        };
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(cause) => return (Ended::Lost(cause), call),
        };
        let order = Order::Call(call);
        let sent = stream.send.message(&order).await;
        let Order::Call(call) = order else { unreachable!("it was made a call above") };
        let ended = match sent {
            Ok(()) => {
                (sending.sent, sending.through) = (true, true);
                self.follow(broker, &call, stream, sending).await
            }
            Err(error @ (StreamError::TooLong { .. } | StreamError::Malformed(_))) => {
                Ended::Refused(format!("nothing was done: the call cannot be sent to the broker's device: {error}"))
            }
            Err(error) => {
                sending.sent = true;
                Ended::Lost(self.line.trouble(&broker, &error))
            }
        };
        (ended, call)
    }

    async fn follow(&self, broker: NodeId, call: &Call, mut stream: Stream, sending: &mut Sending) -> Ended {
        let trouble = |error| Ended::Lost(self.line.trouble(&broker, &error));
        let mut give_up = sending.until + GRACE;
        let mut cancelling = false;
        loop {
            tokio::select! {
                biased;
                () = sending.cancelled.cancelled(), if !cancelling => {
                    cancelling = true;
                    give_up = Instant::now() + ASK_WAIT;
                    if stream.send.message(&Order::Cancel).await.is_err() {
                        return Ended::Cancelled;
                    }
                }
                news = stream.recv.message::<News>(ANSWER_MAX) => match news {
                    Ok(Some(News::Assigned { session, device, wait })) => {
                        if let Some(conversation) = &call.conversation {
                            self.pins().note(conversation, session.clone());
                        }
                        sending.assigned = Some((session, device));
                        if wait && let Err(error) = stream.send.message(&Order::Ack).await {
                            return trouble(error);
                        }
                    }
                    Ok(Some(News::Answer(answer))) => return Ended::Answer(Box::new((answer, stream))),
                    Ok(Some(News::UnknownTool)) => return Ended::UnknownTool,
                    Ok(Some(News::Refused(cause))) => return Ended::Lost(cause),
                    Ok(Some(News::Settled)) => {}
                    _ if cancelling => return Ended::Cancelled,
                    Ok(None) => {
                        let label = self.line.label(&broker);
                        return Ended::Lost(format!("device {label} ended the call without an answer"));
                    }
                    Err(error) => return trouble(error),
                },
                () = sleep_until(give_up) => return if cancelling { Ended::Cancelled } else { Ended::Late },
            }
        }
    }

    /// The answer for the client. Its ticket tells the broker: on the stream, and when that is gone on others until it
    /// arrives.
    fn hand_over(&self, broker: NodeId, call: &Call, answered: (protocol::Answer, Stream)) -> Answer {
        let (answer, mut stream) = answered;
        let structured = answer.structured.parse().unwrap_or_else(|error| {
            tracing::warn!(%error, "an answer of the broker has no structured content");
            crate::content::JsonObject::new()
        });
        let (settled, settling) = oneshot::channel();
        let (line, call_id) = (self.line.clone(), call.call_id.clone());
        self.line.runtime().spawn(async move {
            let written = settling.await.unwrap_or(false);
            let saying = async {
                stream.send.message(&Order::Written(written)).await.ok()?;
                loop {
                    if let News::Settled = stream.recv.message::<News>(ANSWER_MAX).await.ok()?? {
                        return Some(());
                    }
                }
            };
            if timeout(ASK_WAIT, saying).await.ok().flatten().is_none() {
                let ask = Ask::Door(DoorAsk::Written { call_id, written });
                line.insist(broker, ask, "whether an answer was written");
            }
        });
        let ticket = Ticket::new(move |written| {
            let _ = settled.send(written);
        });
        Answer { content: answer.content, structured, is_error: answer.is_error, ticket }
    }

    /// The client cancelled and the broker did not answer that: it is told until it has heard it.
    fn cancel(&self, broker: NodeId, call: &Call) -> Answer {
        let ask = DoorAsk::Cancel {
            call_id: call.call_id.clone(),
            conversation: call.conversation.clone(),
            reason: "ChatGPT cancelled the request".to_owned(),
        };
        self.line.insist(broker, Ask::Door(ask), "that a call was cancelled");
        refusal("cancelled; what finished comes with a later result, and history shows it")
    }

    fn unreachable(&self, cause: &str, call: &Call, sending: &Sending) -> String {
        let word = if !sending.sent {
            "Nothing was done; send the request again once that device is back".to_owned()
        } else if self.reads(&call.tool) {
            "The request only reads; send it again once that device is back".to_owned()
        } else {
            self.may_run(call, sending)
        };
        format!("the broker's device cannot be reached: {cause}. {word}")
    }

    fn late(&self, call: &Call, sending: &Sending) -> String {
        if self.reads(&call.tool) {
            return "the broker's device gave no answer in time. The request only reads; send it again".to_owned();
        }
        format!("the broker's device gave no answer in time. {}", self.may_run(call, sending))
    }

    /// What is known of an operation that a broker may have passed on.
    fn may_run(&self, call: &Call, sending: &Sending) -> String {
        let place = match &sending.assigned {
            Some((session, device)) => format!("It went to session {session} on device {device}"),
            // A broker passes on at once only what names its session or what it agrees with.
            None if sending.explicit.is_none() && call.pin.is_none() && call.proposal.is_none() => {
                return "Nothing was started; send the request again once that device is back".to_owned();
            }
            None => "It may have been passed on".to_owned(),
        };
        format!(
            "{place}, and it is not known how far it came. If it ran, its outcome arrives as a late result of this conversation; or look into `history` once the device is back; do not repeat it before"
        )
    }
}
