//! Holds a call back that would select among sessions before members had time to announce theirs (failure rule F13).

use crate::{broker::Broker, fleet::directory::Fleet, tools::surface::Request};

/// Resolves when the call may go on: at once when it names its session or has a default, else once members have announced.
pub(super) async fn gather(fleet: &Fleet, broker: &Broker, request: &Request) {
    if fleet.has_gathered() || request.pin().is_some() || request.arguments.contains_key("sessionId") {
        return;
    }
    let preferred = request.caller.preferred.is_some() && request.tool != "sessions";
    let bound = preferred || request.caller.conversation.as_ref().is_some_and(|chat| broker.binding(chat).is_some());
    if !bound {
        tokio::select! {
            () = fleet.gathered() => {}
            () = request.cancelled.cancelled() => {}
        }
    }
}
