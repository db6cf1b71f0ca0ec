//! Answers to an operation that was sent before: its receipt, never a second run, never its content again (failure rule
//! F6, behaviour 8.3). A replay carries no inputs and no late results.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    compose::{Composer, refusal},
    operate::{Target, place},
    surface::{Answer, Ticket},
    toolbox::Toolbox,
};
use crate::{
    broker::{Receipt, ReceiptKey, ReceiptStatus},
    ids::CallId,
    sessions::{Ended, Progress},
};

const NEVER_RAN: &str = "the attempt under this operationId never ran, so nothing was done; send the operation again";

/// The receipt of `key`; waits with running work until `deadline`.
pub(super) async fn receipt(toolbox: &Arc<Toolbox>, key: &ReceiptKey, deadline: Instant) -> Answer {
    let mut changes = toolbox.broker.subscribe();
    loop {
        changes.mark_unchanged();
        let Some(receipt) = toolbox.broker.receipt(key) else { return refusal(NEVER_RAN) };
        let waits = receipt.status == ReceiptStatus::Running;
        if !waits || !matches!(tokio::time::timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
            return answer(toolbox, &receipt).await;
        }
    }
}

async fn answer(toolbox: &Toolbox, receipt: &Receipt) -> Answer {
    let ended = toolbox.sessions.operations().ended(&receipt.key.0).await.unwrap_or_default();
    let (status, instructions) = match receipt.status {
        ReceiptStatus::Running => (
            "running",
            "This operation still runs. Do not send it again under another operationId; its result comes with a later result, or look into history",
        ),
        ReceiptStatus::NeverRun => return refusal(NEVER_RAN),
        ReceiptStatus::Completed => ("completed", completed(ended)),
        ReceiptStatus::Uncertain => (
            "uncertain",
            "It is not known how far this operation came. Check its effects in history, files and processes; never simply retry it. A person can settle it with `chappie receipts`",
        ),
    };
    let mut replay = json!({ "id": receipt.operation_id, "status": status, "instructions": instructions });
    if let Some(ended) = ended.filter(|_| receipt.status == ReceiptStatus::Completed) {
        replay["ended"] = json!(ended);
    }
    if let Some(reason) = &receipt.reason {
        replay["reason"] = json!(reason);
    }
    if receipt.status == ReceiptStatus::Completed {
        replay["delivery"] = json!({ "hostReceipt": "unconfirmed", "resources": receipt.resources });
    }
    plain(toolbox, place(&receipt.session, &receipt.cwd), replay)
}

/// What a completed receipt says, by how the operation ended.
const fn completed(ended: Option<Ended>) -> &'static str {
    match ended {
        Some(Ended::Cancelled) => {
            "This operation was cut off before its end, and was not run again: what it did until then stands. Its partial result came with an earlier answer, or comes with a later one; history has it. To run it anew use a new operationId"
        }
        Some(Ended::Failed) => {
            "This operation ran and failed before, so it was not run again. Its result came with an earlier answer, or comes with a later one; history has it. To try anew use a new operationId"
        }
        Some(Ended::Succeeded) | None => {
            "This operation ran to its end before, so it was not run again. Its result came with an earlier answer, or comes with a later one; history has it"
        }
    }
}

fn plain(toolbox: &Toolbox, mut header: Value, replay: Value) -> Answer {
    header["replay"] = replay;
    let mut composer = Composer::new(&toolbox.blobs);
    composer.json(&header);
    composer.finish(false, Ticket::default())
}

/// The same host request arrived twice: waits with the first, then says how far it is.
pub(super) async fn duplicate(toolbox: &Arc<Toolbox>, target: &Target, twin: &CallId) -> Answer {
    let mut status = "completed";
    if let Some(mut progress) = toolbox.sessions.operations().progress(twin) {
        let ended = |progress: &Progress| matches!(progress, Progress::Finished(_) | Progress::NeverRan(_));
        let waited = tokio::time::timeout_at(target.deadline, progress.wait_for(ended)).await;
        status = match waited.map(|ended| ended.map(|progress| progress.clone())) {
            Ok(Ok(Progress::NeverRan(reason))) => return refusal(reason),
            Ok(_) => "completed",
            Err(_) => "running",
        };
    }
    let replay = json!({
        "id": twin,
        "status": status,
        "instructions": "The host sent this request twice; it was run once. The result goes with the first answer, or comes with a later result; history has it",
    });
    plain(toolbox, place(&target.selection.session, &target.session.record().cwd.display().to_string()), replay)
}
