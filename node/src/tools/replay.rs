//! Answers to an operation that was sent before: its receipt, never a second run, never its content again (failure rule
//! F6, behaviour 8.3). A replay carries no inputs and no late results.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    compose::Composer,
    operate::{Target, place},
    surface::{Answer, Ticket},
    toolbox::Toolbox,
};
use crate::{
    broker::{Receipt, ReceiptKey, ReceiptStatus},
    ids::CallId,
    sessions::Ended,
};

/// What is answered when attempts under one operationId are called off again and again.
pub(super) const NEVER_RAN: &str =
    "the attempt under this operationId never ran, so nothing was done; send the operation again";

/// The receipt of `key`; waits with running work until `deadline`. `None`: that attempt never ran, and the next one may.
pub(super) async fn receipt(toolbox: &Arc<Toolbox>, key: &ReceiptKey, deadline: Instant) -> Option<Answer> {
    let mut changes = toolbox.broker.subscribe();
    loop {
        changes.mark_unchanged();
        let receipt = toolbox.broker.receipt(key)?;
        let waits = receipt.status == ReceiptStatus::Running;
        if !waits || !matches!(tokio::time::timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
            return answer(toolbox, &receipt).await;
        }
    }
}

async fn answer(toolbox: &Toolbox, receipt: &Receipt) -> Option<Answer> {
    let ended = ended(toolbox, receipt).await;
    let (status, instructions) = match receipt.status {
        ReceiptStatus::Running => (
            "running",
            "This operation still runs. Do not send it again under another operationId; its result comes with a later result, or look into history",
        ),
        ReceiptStatus::NeverRun => return None,
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
    Some(plain(place(&receipt.session, &receipt.cwd), replay))
}

/// How a completed operation ended, as far as the node of its session knows; of a session that ended, any node may.
async fn ended(toolbox: &Toolbox, receipt: &Receipt) -> Option<Ended> {
    if receipt.status != ReceiptStatus::Completed {
        return None;
    }
    if let Some(placed) = toolbox.directory.find(&receipt.session) {
        return placed.node.ended(receipt.key.0.clone()).await;
    }
    let nodes = toolbox.directory.nodes();
    join_all(nodes.iter().map(|node| node.ended(receipt.key.0.clone()))).await.into_iter().flatten().next()
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

fn plain(mut header: Value, replay: Value) -> Answer {
    header["replay"] = replay;
    let mut composer = Composer::new();
    composer.json(&header);
    composer.finish(false, Ticket::default())
}

/// The same host request arrived twice: how far the first is.
pub(super) fn duplicate(target: &Target, twin: &CallId, running: bool) -> Answer {
    let replay = json!({
        "id": twin,
        "status": if running { "running" } else { "completed" },
        "instructions": "The host sent this request twice; it was run once. The result goes with the first answer, or comes with a later result; history has it",
    });
    plain(place(&target.selection.session, &target.placed.info.cwd), replay)
}

/// The same call arrived twice, and an earlier answer has its outcome.
pub(super) fn gone(target: &Target) -> Answer {
    let replay = json!({
        "id": target.call_id,
        "status": "completed",
        "instructions": "This call ran once, and its result went with an earlier answer; history has it",
    });
    plain(place(&target.selection.session, &target.placed.info.cwd), replay)
}
