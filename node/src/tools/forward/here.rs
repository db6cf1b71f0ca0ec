//! One sending of a call while this device is the broker itself: a function call, left when the office ends.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    calls::{Ended, Sending},
    door::Forwarding,
    gather::gather,
};
use crate::{
    fleet::seat::Seat,
    host::BoxFuture,
    tools::surface::{Assign, Assigned, Request, Sent},
};

/// What the tools say of a call of this device's own door.
#[derive(Default)]
struct Told {
    assigned: Option<Assigned>,
    again: Option<String>,
}

/// The way back to the door.
#[derive(Default)]
struct Own(Mutex<Told>);

impl Own {
    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Assign for Own {
    fn assigned(&self, assigned: Assigned) -> BoxFuture<'_, bool> {
        self.told().assigned = Some(assigned);
        Box::pin(std::future::ready(true))
    }

    fn again(&self, cause: &str) {
        self.told().again = Some(cause.to_owned());
    }
}

impl Forwarding {
    /// Runs the call on this device's own tools. When its office ends the call is dropped, which leaves its work running:
    /// whoever is the broker then finds it by the call's id.
    pub(super) async fn here(&self, seat: &mut Seat, sending: &mut Sending) -> Ended {
        let Some(tenure) = seat.tenure() else { return Ended::Moved };
        let arguments = match sending.arguments() {
            Ok(arguments) => arguments,
            Err(error) => return Ended::Refused(format!("nothing was done: {error}")),
        };
        let own = Arc::new(Own::default());
        let sent = Sent {
            call_id: sending.call_id.clone(),
            pin: sending.pin.clone(),
            budget: sending.left(),
            assign: own.clone(),
        };
        let request = Request {
            tool: sending.tool.clone(),
            arguments,
            caller: sending.caller.clone(),
            cancelled: sending.cancelled.clone(),
            sent: Some(sent),
        };
        sending.sent = true;
        self.broker.door_used(seat.own());
        let calling = async {
            gather(&self.fleet, &self.broker, &request).await;
            Arc::clone(&self.toolbox).call(request).await
        };
        let answered = tokio::select! {
            biased;
            // First: nothing more is begun in an office that is over.
            () = seat.over(tenure) => None,
            answered = calling => Some(answered),
        };
        let Told { assigned, again } = std::mem::take(&mut *own.told());
        if let Some(Assigned { session, device, .. }) = assigned {
            self.assigned(sending, session, device);
        }
        // Its first doubt is a new loss, however long the call was under way; what follows at once is the same one.
        let doubted = std::mem::replace(&mut sending.doubted, again.is_some());
        sending.through = again.is_none() || !doubted;
        match (answered, again) {
            (None, _) => Ended::Moved,
            (Some(_), Some(cause)) => Ended::Again(cause),
            (Some(Ok(answer)), None) => Ended::Answer(answer),
            (Some(Err(_)), None) => Ended::UnknownTool,
        }
    }
}
