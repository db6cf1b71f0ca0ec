//! The way of every operation: select, reserve, queue, wait, answer (design section 4). `call`, `chat` and the direct
//! tools differ only in the [`Job`] they make.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    compose::{Composer, MEMBER, RIDERS, refusal},
    initialization::initialization,
    replay,
    riding::Riding,
    surface::{Answer, Caller, Request},
    toolbox::Toolbox,
};
use crate::{
    broker::{
        Ask, Bound, Purpose, ReceiptKind, ReceiptScope, Reserve, Reserved, Selection, Settlement, receipt_key,
        signature,
    },
    budget::TextBudget,
    clock,
    content::JsonObject,
    ids::{CallId, SessionId},
    sessions::{Operation, Outcome, Progress, ReceiptClaim, RunHandle, Session, Work, entry::Event, request_identity},
};

/// Room for the word on a cancellation in the header.
const SLACK: TextBudget = TextBudget { bytes: 128, tokens: 48 };

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
    pub session: Arc<Session>,
    pub call_id: CallId,
    pub deadline: Instant,
}

/// Runs one operation and answers within the call budget.
pub(super) async fn operate(toolbox: &Arc<Toolbox>, request: Request, job: Job) -> Answer {
    let deadline = Instant::now() + toolbox.call_budget;
    if job.operation_id.as_ref().is_some_and(|id| id.trim().is_empty()) {
        return refusal("operationId must not be blank. Nothing was done");
    }
    let Request { caller, cancelled, .. } = request;
    let call_id = clock::call_id();
    let ask =
        Ask { conversation: caller.conversation.as_ref(), session: job.session.clone(), purpose: Purpose::Operate };
    let selected = tokio::select! {
        biased;
        () = cancelled.cancelled() => return refusal("cancelled before a session was selected; nothing was done"),
        selected = toolbox.broker.select(ask) => selected,
    };
    let selection = match selected {
        Ok(selection) => selection,
        Err(error) => return refusal(error.to_string()),
    };
    let Some(session) = toolbox.sessions.find(&selection.session) else {
        return refusal(format!("session {} ended just now; nothing was done", selection.session));
    };
    announce(toolbox, &caller, &selection, &session);
    let target = Target { selection, session, call_id, deadline };
    let signed = signature(job.kind, &job.signed);
    let request_key = caller
        .request_id
        .as_deref()
        .filter(|_| job.operation_id.is_none())
        .and_then(|id| request_identity(caller.conversation.as_ref(), id, &signed));
    if let Some(twin) = request_key.as_ref().and_then(|key| toolbox.sessions.operations().by_request(key)) {
        return replay::duplicate(toolbox, &target, &twin).await;
    }
    let receipt = match reserve(toolbox, &caller, &target, &job, signed).await {
        Ok(receipt) => receipt,
        Err(answer) => return answer,
    };
    dispatch(toolbox, &caller, &cancelled, target, job.work, receipt, request_key).await
}

/// Reserves the receipt, replicated before anything is dispatched; or answers with what the receipt already says.
async fn reserve(
    toolbox: &Arc<Toolbox>,
    caller: &Caller,
    target: &Target,
    job: &Job,
    signature: String,
) -> Result<Option<ReceiptClaim>, Answer> {
    let Some(operation_id) = &job.operation_id else { return Ok(None) };
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
        cwd: target.session.record().cwd.clone(),
        kind: job.kind,
        call_id: target.call_id.clone(),
    };
    match toolbox.broker.reserve(reserve).await {
        Ok(Reserved::Fresh { attempt }) => Ok(Some(ReceiptClaim { key, attempt })),
        Ok(Reserved::Replay(_)) => Err(replay::receipt(toolbox, &key, target.deadline).await),
        Ok(Reserved::Conflict(_)) => Err(refusal(format!(
            "operationId {operation_id:?} was used in this conversation with different arguments; nothing was done. Use a new operationId for a new request"
        ))),
        Ok(Reserved::Full { limit }) => Err(refusal(format!(
            "all {limit} operation receipts are in use, so nothing was done: settle uncertain ones with `chappie receipts` on the broker's device, or leave operationId out"
        ))),
        Err(error) => Err(refusal(format!("not run: {error}"))),
    }
}

async fn dispatch(
    toolbox: &Arc<Toolbox>,
    caller: &Caller,
    cancelled: &CancellationToken,
    target: Target,
    work: Work,
    receipt: Option<ReceiptClaim>,
    request_key: Option<String>,
) -> Answer {
    let riding =
        Riding::new(toolbox, target.call_id.clone(), caller.conversation.clone(), Some(Arc::clone(&target.session)));
    let operation = Operation {
        call_id: target.call_id.clone(),
        conversation: caller.conversation.clone(),
        request_id: caller.request_id.clone(),
        request_key,
        receipt: receipt.clone(),
        budget: budget(&header(toolbox, &target), &work, riding.waits()),
        work,
    };
    let mut run = match target.session.submit(operation) {
        Ok(run) => run,
        Err(error) => {
            if let Some(claim) = receipt
                && let Err(error) = toolbox.broker.settle(claim.key, claim.attempt, Settlement::NeverRun).await
            {
                tracing::warn!(%error, "the receipt of a refused operation stays until the node starts again");
            }
            return refusal(error.to_string());
        }
    };
    let progress = tokio::select! {
        biased;
        progress = run.done() => progress,
        () = cancelled.cancelled() => {
            run.cancel("ChatGPT cancelled the request");
            return refusal("cancelled; what finished comes with a later result, and history shows it");
        }
        () = tokio::time::sleep_until(target.deadline) => run.progress(),
    };
    match progress {
        Progress::Finished(outcome) => finished(toolbox, &target, &outcome, run, riding).await,
        Progress::NeverRan(reason) => refusal(reason),
        Progress::Queued => running(toolbox, &target, "queued", run, riding).await,
        Progress::Running => running(toolbox, &target, "running", run, riding).await,
    }
}

/// Text the work may give back: what the answer's own headers leave of one copy, and less when something wants to ride.
fn budget(header: &Value, work: &Work, riders: bool) -> TextBudget {
    let members = match work {
        Work::Call(calls) => calls.len(),
        Work::Chat(_) => 0,
    };
    let less = |from: TextBudget, by: TextBudget, times: usize| TextBudget {
        bytes: from.bytes.saturating_sub(by.bytes * times),
        tokens: from.tokens.saturating_sub(by.tokens * times),
    };
    let base = less(TextBudget::WHOLE.minus(&header.to_string()), MEMBER, members);
    let base = less(base, SLACK, 1);
    if riders { less(base, RIDERS, 1) } else { base }
}

fn header(toolbox: &Toolbox, target: &Target) -> Value {
    let mut header = json!({ "sessionId": target.selection.session, "cwd": target.session.record().cwd });
    if let Some(mode) = target.selection.mode {
        header["initialization"] = initialization(&target.selection.session, mode, toolbox.cooldown);
    }
    header
}

async fn finished(
    toolbox: &Arc<Toolbox>,
    target: &Target,
    outcome: &Outcome,
    run: RunHandle,
    riding: Riding<'_>,
) -> Answer {
    let mut composer = Composer::new(&toolbox.blobs);
    let mut header = header(toolbox, target);
    if let Some(error) = &outcome.error {
        header["error"] = json!(error);
    }
    composer.json(&header);
    for result in &outcome.results {
        composer.result(&target.selection.session, result);
    }
    let failed = outcome.results.iter().any(|result| result.is_error);
    let ticket = riding.board(&mut composer, Some(run)).await;
    composer.finish(failed, ticket)
}

/// The budget is over: the work goes on, and its outcome becomes a late result (failure rule F5).
async fn running(toolbox: &Arc<Toolbox>, target: &Target, status: &str, run: RunHandle, riding: Riding<'_>) -> Answer {
    drop(run);
    let mut composer = Composer::new(&toolbox.blobs);
    let mut header = header(toolbox, target);
    header["operation"] = operation(&target.call_id, status, toolbox.call_budget);
    composer.json(&header);
    let ticket = riding.board(&mut composer, None).await;
    composer.finish(false, ticket)
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
pub(super) fn announce(toolbox: &Toolbox, caller: &Caller, selection: &Selection, session: &Session) {
    let Some(left) = selection.bound.as_ref().and_then(Bound::left) else { return };
    let who = short(caller);
    session.notice(Event::Joined, format!("ChatGPT {who} joined"));
    if let Some(previous) = left.filter(|id| **id != selection.session).and_then(|id| toolbox.sessions.find(id)) {
        previous.notice(Event::Left, format!("ChatGPT {who} left for session {}", selection.session));
    }
}

fn short(caller: &Caller) -> String {
    caller.conversation.as_ref().map_or_else(|| "?".into(), crate::ids::Conversation::short)
}

/// Where `cwd` of a receipt's answer comes from.
pub(super) fn place(session: &SessionId, cwd: &str) -> Value {
    json!({ "sessionId": session, "cwd": cwd })
}
