//! What the four direct tools share: each is a batch of one call with the session's own tool of that name.

use std::sync::Arc;

use serde_json::json;

use super::{
    call::members,
    operate::{Job, operate, take},
    surface::{Answer, Request},
    toolbox::Toolbox,
};
use crate::{broker::ReceiptKind, ids::SessionId, sessions::Work};

/// Sends the request's arguments unchanged to the session's tool of the same name.
pub(super) async fn run(toolbox: &Arc<Toolbox>, mut request: Request) -> Answer {
    let session = take(&mut request.arguments, "sessionId").map(SessionId);
    let operation_id = take(&mut request.arguments, "operationId");
    let arguments = std::mem::take(&mut request.arguments);
    let signed = json!({ "calls": [[request.tool, arguments]] });
    let work = Work::Call(members(vec![(request.tool.clone(), arguments)]));
    operate(toolbox, request, Job { session, operation_id, kind: ReceiptKind::Call, signed, work }).await
}
