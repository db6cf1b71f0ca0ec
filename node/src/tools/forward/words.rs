//! What a door says beside its calls, and in what words it gives one up. Orders and news that must arrive follow the broker's
//! seat until somebody has taken them (failure rules F4, F7).

use std::sync::Arc;

use chappie_mesh::Stream;
use tokio::{sync::oneshot, time::timeout};

use super::{
    calls::{self, Ended, Sending},
    door::Forwarding,
    protocol::{self, News, Order},
};
use crate::{
    fleet::{
        Cancel, Directory as _,
        directory::Fleet,
        line::ASK_WAIT,
        protocol::{
            ANSWER_MAX,
            ask::{Ask, DoorAsk},
        },
        seat::Holder,
    },
    ids::{CallId, SessionId},
    tools::{
        compose::refusal,
        surface::{Answer, Ticket},
        toolbox::OFFICE_LOST,
    },
};

/// Ends an operation of a door wherever it went: at the node of its session when that is known, else at every node that is
/// online; one that has not seen it yet refuses it then. False: that node is away, so the order is to be repeated.
pub(super) async fn call_off(fleet: &Fleet, cancel: Cancel, pin: Option<&SessionId>) -> bool {
    // A broker that has just taken the seat hears within a second where the sessions are.
    fleet.gathered().await;
    let nodes = match pin {
        Some(session) => fleet.find(session).map(|placed| vec![placed.node]),
        None => Some(fleet.nodes()),
    };
    let Some(nodes) = nodes else { return false };
    // A node that cannot be reached is told later, by itself.
    for node in nodes {
        let cancel = cancel.clone();
        fleet.line().runtime().spawn(async move { node.cancel(cancel).await });
    }
    true
}

/// Passes on whether an answer was written whose broker is gone: whatever node has a part in it knows that by the call's id.
pub(super) async fn pass_on(fleet: &Fleet, call_id: &CallId, written: bool) {
    fleet.gathered().await;
    for node in fleet.nodes() {
        node.settle(call_id.clone(), written);
    }
}

impl Forwarding {
    /// The answer for the client. Its ticket tells the broker: on the stream, and when that is gone whoever has the seat,
    /// until it arrives.
    pub(super) fn hand_over(
        self: &Arc<Self>,
        call_id: &CallId,
        answer: protocol::Answer,
        mut stream: Stream,
    ) -> Answer {
        let (settled, settling) = oneshot::channel();
        let (this, call_id) = (Arc::clone(self), call_id.clone());
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
                this.insist(DoorAsk::Written { call_id, written }, "whether an answer was written");
            }
        });
        let ticket = Ticket::new(move |written| {
            let _ = settled.send(written);
        });
        calls::answer(answer, ticket)
    }

    /// The client cancelled and no broker answered that: whoever has the seat is told until one has heard it.
    pub(super) fn cancel(self: &Arc<Self>, sending: &Sending) -> Answer {
        if !sending.sent {
            return refusal("cancelled; nothing was done");
        }
        let ask = DoorAsk::CallOff {
            call_id: sending.call_id.clone(),
            pin: sending.pin.clone().or_else(|| sending.assigned.as_ref().map(|(session, _)| session.clone())),
            conversation: sending.caller.conversation.clone(),
            reason: "ChatGPT cancelled the request".to_owned(),
        };
        self.insist(ask, "that a call was cancelled");
        refusal("cancelled; what finished comes with a later result, and history shows it")
    }

    /// Says something to whoever has the seat until it has arrived.
    pub(super) fn insist(self: &Arc<Self>, ask: DoorAsk, what: &'static str) {
        let (this, here) = (Arc::clone(self), ask.clone());
        let hear = move || {
            let (this, ask) = (Arc::clone(&this), here.clone());
            async move { this.hear(ask).await }
        };
        self.line.insist_on_seat(self.seat.clone(), hear, Ask::Door(ask), what);
    }

    /// This device's own door says it to this device's own broker. False: it is to be repeated.
    async fn hear(&self, ask: DoorAsk) -> bool {
        match ask {
            DoorAsk::Written { call_id, written } => pass_on(&self.fleet, &call_id, written).await,
            DoorAsk::CallOff { call_id, pin, conversation, reason } => {
                return call_off(&self.fleet, Cancel { call_id, conversation, reason }, pin.as_ref()).await;
            }
            DoorAsk::Cancel { call_id, conversation, reason } => {
                return call_off(&self.fleet, Cancel { call_id, conversation, reason }, None).await;
            }
            DoorAsk::Disconnected(conversation) => self.toolbox.disconnected(&conversation),
            // It has an answer, and is not insisted on.
            DoorAsk::Resource { .. } => {}
        }
        true
    }

    /// Why a call is given up, and what the client should do.
    pub(super) fn given_up(&self, ended: Ended, holder: Holder, sending: &Sending) -> String {
        let cause = match ended {
            // In the words of this device's own tools: nothing was done.
            Ended::Again(cause) if holder == Holder::Here && cause != OFFICE_LOST => return cause,
            Ended::Lost(cause) if holder == Holder::Nobody => cause,
            Ended::Lost(_) | Ended::Again(_) | Ended::NotTaken(_) | Ended::Moved if self.fleet.lacks_quorum() => {
                self.fleet.no_broker()
            }
            Ended::Again(cause) | Ended::NotTaken(cause) => format!("no broker has taken this in time: {cause}"),
            Ended::Lost(cause) => format!("the broker's device cannot be reached: {cause}"),
            _ => "the broker changed too often while this was under way".to_owned(),
        };
        let word = if !sending.sent {
            "Nothing was done; send the request again once there is a broker".to_owned()
        } else if self.reads(&sending.tool) {
            "The request only reads; send it again once there is a broker".to_owned()
        } else {
            may_run(sending)
        };
        format!("{cause}. {word}")
    }

    pub(super) fn late(&self, sending: &Sending) -> String {
        if self.reads(&sending.tool) {
            return "the broker's device gave no answer in time. The request only reads; send it again".to_owned();
        }
        format!("the broker's device gave no answer in time. {}", may_run(sending))
    }
}

/// What is known of an operation that a broker may have passed on.
fn may_run(sending: &Sending) -> String {
    let place = match &sending.assigned {
        Some((session, device)) => format!("It went to session {session} on device {device}"),
        // A broker passes on at once only what names its session or what it agrees with.
        None if sending.explicit.is_none() && sending.pin.is_none() && sending.proposal().is_none() => {
            return "Nothing was started; send the request again once there is a broker".to_owned();
        }
        None => "It may have been passed on".to_owned(),
    };
    format!(
        "{place}, and it is not known how far it came. If it ran, its outcome arrives as a late result of this conversation; or look into `history` once the device is back; do not repeat it before"
    )
}
