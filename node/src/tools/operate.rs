//! The way of every operation: select, reserve, hand over, wait, answer (design section 4). `call`, `chat` and the direct
//! tools differ only in the [`Job`] they make.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    compose::{Composer, refusal},
    initialization::initialization,
    replay,
    riding::{Riding, others},
    surface::{Answer, Assigned, Caller, Request, Ticket},
    toolbox::{Toolbox, not_selected, not_taken, told},
};
use crate::{
    broker::{
        Ask, Bound, Purpose, Receipt, ReceiptKind, ReceiptScope, ReceiptStatus, Reserve, Reserved, Selection,
        Settlement, receipt_key, signature,
    },
    budget::TextBudget,
    clock,
    content::JsonObject,
    fleet::{Dispatch, Known, Placed, Ran, Run, parcel::RIDERS},
    ids::{CallId, Conversation, SessionId},
    sessions::{Operation, ReceiptClaim, Work, entry::Event, request_identity},
};

/// The part of a caller's budget that is kept for the way back, so that a node says how far a duplicate is before the
/// broker stops waiting; one part in so many, and never more than [`BACK_MAX`].
const BACK_SHARE: u32 = 10;
/// The longest way back.
const BACK_MAX: Duration = Duration::from_millis(500);

/// How long an answer may be late, when the budget is over and the session's device has not taken the operation: it is
/// asked again within 3 s and given up within 5 s more (F23).
const TAKEN_WAIT: Duration = Duration::from_secs(9);
/// Between two looks whether it has.
const TAKEN_LOOK: Duration = Duration::from_millis(20);

/// One operation, decoded.
pub(super) struct Job {
    /// An explicit target.
    pub session: Option<SessionId>,
    /// The caller's name for it.
    pub operation_id: Option<String>,
    /// Its kind, part of its receipt's key.
    pub kind: ReceiptKind,
    /// What its signature covers: the tool's name and its own arguments.
    pub signed: Value,
    /// The work.
    pub work: Work,
}

/// Takes `key` out of `arguments` as a string; the schema has made sure that it is one.
pub(super) fn take(arguments: &mut JsonObject, key: &str) -> Option<String> {
    match arguments.shift_remove(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// Where an operation goes, once it is selected.
pub(super) struct Target {
    pub selection: Selection,
    pub placed: Placed,
    pub call_id: CallId,
    pub deadline: Instant,
    /// Whether an earlier sending of this call may have come as far as the session.
    pub resent: bool,
}

/// Runs one operation and answers within the call budget.
pub(super) async fn operate(toolbox: &Arc<Toolbox>, request: Request, job: Job) -> Answer {
    let deadline = Instant::now() + request.budget(toolbox.call_budget);
    if job.operation_id.as_ref().is_some_and(|id| id.trim().is_empty()) {
        return refusal("operationId must not be blank. Nothing was done");
    }
    let (caller, cancelled) = (&request.caller, &request.cancelled);
    let call_id = request.call_id();
    let resent = request.pin().is_some();
    // A call that was sent before goes where it went (F1).
    let session = request.pin().or(job.session.as_ref()).cloned();
    let ask = Ask { conversation: caller.conversation.as_ref(), session, purpose: Purpose::Operate };
    let selected = tokio::select! {
        biased;
        () = cancelled.cancelled() => return refusal("cancelled before a session was selected; nothing was done"),
        selected = toolbox.broker.select(ask) => selected,
    };
    let selection = match selected {
        Ok(selection) => selection,
        Err(error) => return not_selected(&request, &error),
    };
    let Some(placed) = toolbox.directory.find(&selection.session) else {
        return refusal(format!("session {} ended just now; nothing was done", selection.session));
    };
    announce(toolbox, caller, &selection, &placed);
    let assigned =
        Assigned { session: selection.session.clone(), device: placed.device.clone(), explicit: job.session.is_some() };
    if !request.assign(assigned).await {
        return refusal("the device that asked went away before the session was settled; nothing was done");
    }
    let target = Target { selection, placed, call_id, deadline, resent };
    let signed = signature(job.kind, &job.signed);
    let request_key = caller
        .request_id
        .as_deref()
        .filter(|_| job.operation_id.is_none())
        .and_then(|id| request_identity(caller.conversation.as_ref(), id, &signed));
    if chappie_mesh::runtime::is_broken("receipt-after-dispatch") {
        return unreserved(toolbox, request, target, job, signed).await;
    }
    let receipt = match reserve(toolbox, &request, &target, &job, signed).await {
        Ok(receipt) => receipt,
        Err(answer) => return answer,
    };
    let operation = Operation {
        call_id: target.call_id.clone(),
        conversation: caller.conversation.clone(),
        request_id: caller.request_id.clone(),
        request_key,
        receipt,
        work: job.work,
        budget: TextBudget::WHOLE,
    };
    dispatch(toolbox, &request, target, operation).await
}

/// The mistake that the simulator has to find: the receipt is reserved once the operation has been sent and answered.
async fn unreserved(
    toolbox: &Arc<Toolbox>,
    request: Request,
    target: Target,
    mut job: Job,
    signature: String,
) -> Answer {
    let operation = Operation {
        call_id: target.call_id.clone(),
        conversation: request.caller.conversation.clone(),
        request_id: None,
        request_key: None,
        receipt: None,
        work: std::mem::replace(&mut job.work, Work::Call(Vec::new())),
        budget: TextBudget::WHOLE,
    };
    let Target { selection, placed, call_id, deadline, resent } = &target;
    let selection = Selection { session: selection.session.clone(), how: selection.how, bound: None, mode: None };
    let (placed, call_id) = (placed.clone(), call_id.clone());
    let reserved = Target { selection, placed, call_id, deadline: *deadline, resent: *resent };
    let answer = dispatch(toolbox, &request, target, operation).await;
    match reserve(toolbox, &request, &reserved, &job, signature).await {
        Ok(_) => answer,
        Err(replayed) => replayed,
    }
}

/// Attempts under one operationId that one call waits for: each was called off by a device that lost sight of it, and more
/// than a few in a row are a fault that repeating does not mend.
const ATTEMPTS_MAX: u32 = 4;

/// Reserves the receipt, replicated before anything is dispatched; or answers with what the receipt already says.
async fn reserve(
    toolbox: &Arc<Toolbox>,
    request: &Request,
    target: &Target,
    job: &Job,
    signature: String,
) -> Result<Option<ReceiptClaim>, Answer> {
    let Some(operation_id) = &job.operation_id else { return Ok(None) };
    let caller = &request.caller;
    let scope = match &caller.conversation {
        Some(conversation) => ReceiptScope::Conversation(conversation),
        None => ReceiptScope::Session(&target.selection.session),
    };
    let key = receipt_key(scope, job.kind, operation_id);
    let reserve = Reserve {
        key: key.clone(),
        signature,
        operation_id: operation_id.clone(),
        conversation: caller.conversation.clone(),
        session: target.selection.session.clone(),
        cwd: PathBuf::from(&target.placed.info.cwd),
        kind: job.kind,
        call_id: target.call_id.clone(),
    };
    let mut reserved = toolbox.broker.reserve(reserve.clone()).await;
    // An earlier attempt that turns out never to have run makes room for the next one (F3).
    for _ in 1..ATTEMPTS_MAX {
        match &reserved {
            Ok(Reserved::Replay(receipt)) if !attaches(target, receipt).await => {
                if let Some(answer) = replay::receipt(toolbox, &key, target.deadline).await {
                    return Err(answer);
                }
                reserved = toolbox.broker.reserve(reserve.clone()).await;
            }
            _ => break,
        }
    }
    match reserved {
        Ok(Reserved::Fresh { attempt }) => Ok(Some(ReceiptClaim { key, attempt })),
        Ok(Reserved::Replay(receipt)) if attaches(target, &receipt).await => {
            Ok(Some(ReceiptClaim { key, attempt: receipt.attempt }))
        }
        Ok(Reserved::Replay(_)) => Err(refusal(replay::NEVER_RAN)),
        Ok(Reserved::Conflict(_)) => Err(refusal(format!(
            "operationId {operation_id:?} was used in this conversation with different arguments; nothing was done. Use a new operationId for a new request"
        ))),
        Ok(Reserved::Full { limit }) => Err(refusal(format!(
            "all {limit} operation receipts are in use, so nothing was done: settle uncertain ones with `chappie receipts` on the broker's device, or leave operationId out"
        ))),
        Err(error) => Err(not_taken(request, &error, format!("not run: {error}"))),
    }
}

/// Whether a receipt is that of an earlier sending of this very call, whose work it gets then (F6). Work that ended is
/// only attached to while its node has it: it must not run again.
async fn attaches(target: &Target, receipt: &Receipt) -> bool {
    if receipt.call_id != target.call_id || receipt.session != target.selection.session {
        return false;
    }
    let held = || target.placed.node.known(target.call_id.clone());
    receipt.status == ReceiptStatus::Running || held().await == Ok(Known::Held)
}

async fn dispatch(toolbox: &Arc<Toolbox>, request: &Request, target: Target, mut operation: Operation) -> Answer {
    // Nothing is ordered in an office that may be over (failure rule F11).
    let tenure = match toolbox.office.assure().await {
        Ok(tenure) => tenure,
        Err(error) => {
            let words = told(&error, || format!("not run: {error}"));
            request.again(&words);
            return refusal(words);
        }
    };
    let (receipt, conversation) = (operation.receipt.clone(), operation.conversation.clone());
    let header = header(toolbox, &target);
    operation.budget = TextBudget::WHOLE.minus("\n").minus(&Value::Object(header.clone()).to_string());
    if !others(toolbox, conversation.as_ref(), Some(&target.placed.node)).is_empty() {
        operation.budget.bytes = operation.budget.bytes.saturating_sub(RIDERS.bytes);
        operation.budget.tokens = operation.budget.tokens.saturating_sub(RIDERS.tokens);
    }
    let left = target.deadline.saturating_duration_since(Instant::now());
    let dispatch = Dispatch {
        session: target.selection.session.clone(),
        operation,
        wait: left - (left / BACK_SHARE).min(BACK_MAX),
        tenure,
        resent: target.resent,
    };
    let mut run = Arc::clone(&target.placed.node).run(dispatch);
    let ran = tokio::select! {
        biased;
        ran = run.done() => Some(ran),
        () = request.cancelled.cancelled() => {
            run.cancel("ChatGPT cancelled the request".into()).await;
            return refusal("cancelled; what finished comes with a later result, and history shows it");
        }
        () = tokio::time::sleep_until(target.deadline) => None,
    };
    // A device that has not taken the operation yet may never do so: whether it has is known within a few seconds.
    let ran = match ran {
        None if !run.is_taken() => tokio::time::timeout(TAKEN_WAIT, taken(&mut run)).await.ok().flatten(),
        ran => ran,
    };
    match ran {
        Some(Ran::Finished(parcel)) => {
            let mut riding = Riding::new(toolbox, target.call_id.clone(), conversation);
            riding.carry(run);
            let (mut composer, mut header) = (Composer::new(), header);
            if let Some(error) = &parcel.error {
                header.insert("error".into(), json!(error));
            }
            composer.json(&Value::Object(header));
            let failed = parcel.failed;
            composer.parcel(parcel);
            let ticket = riding.others(&mut composer, Some(&target.placed.node)).await;
            composer.finish(failed, ticket)
        }
        Some(Ran::NeverRan(reason)) => {
            never_ran(toolbox, &target, receipt).await;
            refusal(reason)
        }
        Some(Ran::Fenced(reason)) => {
            request.again(&reason);
            refusal(reason)
        }
        Some(Ran::Duplicate { twin, running }) => replay::duplicate(&target, &twin, running),
        Some(Ran::Gone) => replay::gone(&target),
        Some(Ran::Unknown(reason)) => unknown(header, &target, &reason),
        None => running(toolbox, &target, header, run, conversation).await,
    }
}

/// Waits until the operation's device has it: `None`, or until it ended: how.
async fn taken(run: &mut Box<dyn Run>) -> Option<Ran> {
    loop {
        match tokio::time::timeout(TAKEN_LOOK, run.done()).await {
            Ok(ran) => return Some(ran),
            Err(_) if run.is_taken() => return None,
            Err(_) => {}
        }
    }
}

/// The receipt of an operation that never ran is free for a retry. Its node says so too, as soon as it can.
async fn never_ran(toolbox: &Toolbox, target: &Target, receipt: Option<ReceiptClaim>) {
    let Some(claim) = receipt else { return };
    let open = toolbox
        .broker
        .receipt(&claim.key)
        .is_some_and(|receipt| receipt.status == ReceiptStatus::Running && receipt.call_id == target.call_id);
    if open && let Err(error) = toolbox.broker.settle(claim.key, claim.attempt, Settlement::NeverRun).await {
        tracing::warn!(%error, "the receipt of a refused operation stays until its node is met again");
    }
}

fn header(toolbox: &Toolbox, target: &Target) -> JsonObject {
    let mut header = JsonObject::new();
    header.insert("sessionId".into(), json!(target.selection.session));
    header.insert("cwd".into(), json!(target.placed.info.cwd));
    if let Some(mode) = target.selection.mode {
        header.insert("initialization".into(), initialization(&target.selection.session, mode, toolbox.cooldown));
    }
    header
}

/// The budget is over: the work goes on, and its outcome becomes a late result (failure rule F5).
async fn running(
    toolbox: &Arc<Toolbox>,
    target: &Target,
    mut header: JsonObject,
    run: Box<dyn Run>,
    conversation: Option<Conversation>,
) -> Answer {
    let status = if run.is_running() { "running" } else { "queued" };
    drop(run);
    // An identity of its own: that of the call still claims what its outcome would have carried.
    let mut riding = Riding::new(toolbox, clock::call_id(), conversation);
    let mut composer = Composer::new();
    header.insert("operation".into(), operation(&target.call_id, status, toolbox.call_budget));
    composer.json(&Value::Object(header));
    riding.session(&mut composer, &target.placed.node, Some(&target.selection.session)).await;
    let ticket = riding.others(&mut composer, Some(&target.placed.node)).await;
    composer.finish(false, ticket)
}

/// The session's device went away with the operation.
fn unknown(mut header: JsonObject, target: &Target, reason: &str) -> Answer {
    header.insert("error".into(), json!(reason));
    header.insert(
        "operation".into(),
        json!({
            "id": target.call_id,
            "status": "unknown",
            "instructions": format!(
                "It is not known whether this ran on {}. Do not simply send it again: when the device is back, check its effects (history, files, processes). If it ran, what it comes to is delivered once with a later result (deferredResult {}); if history does not show it then, it did not run",
                target.placed.device, target.call_id
            ),
        }),
    );
    let mut composer = Composer::new();
    composer.json(&Value::Object(header));
    composer.finish(true, Ticket::default())
}

fn operation(call_id: &CallId, status: &str, budget: Duration) -> Value {
    let seconds = budget.as_secs();
    json!({
        "id": call_id,
        "status": status,
        "instructions": format!(
            "Still {status} after {seconds} s and going on by itself: do not send it again. Its result comes once with a later result (deferredResult {call_id}); follow it with history and wait: true. End it with call process {{\"action\":\"stop\",\"id\":\"{call_id}\"}}. Put work of this length into the process tool."
        ),
    })
}

/// Tells the sessions when a conversation's default changed.
pub(super) fn announce(toolbox: &Toolbox, caller: &Caller, selection: &Selection, placed: &Placed) {
    let Some(left) = selection.bound.as_ref().and_then(Bound::left) else { return };
    let who = short(caller);
    placed.node.notice(selection.session.clone(), Event::Joined, format!("ChatGPT {who} joined"));
    if let Some(previous) = left.filter(|id| **id != selection.session).and_then(|id| toolbox.directory.find(id)) {
        previous.node.notice(
            previous.info.id,
            Event::Left,
            format!("ChatGPT {who} left for session {}", selection.session),
        );
    }
}

fn short(caller: &Caller) -> String {
    caller.conversation.as_ref().map_or_else(|| "?".into(), crate::ids::Conversation::short)
}

/// Where `cwd` of a receipt's answer comes from.
pub(super) fn place(session: &SessionId, cwd: &str) -> Value {
    json!({ "sessionId": session, "cwd": cwd })
}
