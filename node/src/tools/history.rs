//! `history`: the session's branch in pages, or a wait for what comes next (behaviour 3.4 and 9). It selects nothing,
//! binds nothing and consumes nothing.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    compose::{Composer, HEADER, cut, refusal},
    operate::take,
    surface::{Answer, Request, Ticket, ToolSpec},
    toolbox::{READS, Toolbox, input_schema, spec as tool_spec},
};
use crate::{
    budget::TextBudget,
    clock,
    content::Block,
    ids::{Conversation, EntryId, SessionId},
    sessions::{
        Session,
        entry::{Body, Entry, Event},
        history::{LIMIT_MAX, Page, Range},
    },
};

/// How long an empty page is held (the guide).
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Entries of a page when no limit is given (the guide).
const LIMIT_DEFAULT: usize = 20;
/// What is left of an entry that is longer than a page: at least this much is shown before the notice.
const ENTRY_MIN: TextBudget = TextBudget { bytes: 512, tokens: 190 };

pub(super) fn spec() -> ToolSpec {
    let entry = |what: &str| json!({"type": "string", "minLength": 1, "maxLength": 128, "description": what});
    let properties = json!({
        "sessionId": {
            "type": "string", "minLength": 1, "maxLength": 256,
            "description": "Session to read; the conversation's default when left out"
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "description": "Entries, 20 when left out"},
        "before": entry("Only entries before this entry id"),
        "after": entry("Only entries after this entry id"),
        "wait": {"type": "boolean", "description": "At the end of the branch, wait up to 30 s for a new entry; with after"},
        "observer": {"type": "boolean", "description": "Read without leaving a notice in the session"},
    });
    tool_spec(
        "history",
        "Read history",
        "Reads the session's history with entry ids and timestamps, latest entries first chosen, in branch order. after with wait follows progress. Reading takes nothing away from later results.",
        input_schema(properties, &[], &[]),
        READS,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    let Request { mut arguments, caller, cancelled, .. } = request;
    let session = take(&mut arguments, "sessionId").map(SessionId);
    let limit = arguments.get("limit").and_then(Value::as_f64).map_or(LIMIT_DEFAULT, |limit| limit as usize);
    let flag = |key: &str| arguments.get(key).and_then(Value::as_bool).unwrap_or(false);
    let (wait, observer) = (flag("wait"), flag("observer"));
    let range = Range {
        limit,
        before: take(&mut arguments, "before").map(EntryId),
        after: take(&mut arguments, "after").map(EntryId),
    };
    let id = match toolbox.broker.target(caller.conversation.as_ref(), session).await {
        Ok(id) => id,
        Err(error) => return refusal(error.to_string()),
    };
    let Some(session) = toolbox.sessions.find(&id) else {
        return refusal(format!("session {id} ended just now"));
    };
    let held = wait && range.before.is_none();
    let page = tokio::select! {
        biased;
        () = cancelled.cancelled() => return refusal("cancelled"),
        page = page(&session, &range, held) => page,
    };
    let page = match page {
        Ok(page) => page,
        Err(error) => return refusal(error),
    };
    if !observer {
        let who = caller.conversation.as_ref().map_or_else(|| "?".into(), Conversation::short);
        session.notice(Event::History, format!("ChatGPT {who} read history: {} entries", page.entries.len()));
    }
    render(toolbox, &session, &range, page)
}

/// The page, held while it is empty and somebody wants to wait.
async fn page(session: &Session, range: &Range, held: bool) -> Result<Page, String> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut changes = session.history().subscribe();
    loop {
        changes.mark_unchanged();
        let page = session.page(range).await.map_err(|error| error.to_string())?;
        if !held || !page.entries.is_empty() {
            return Ok(page);
        }
        if session.ended().is_cancelled() {
            return Err(format!("session {} ended", session.record().id));
        }
        if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
            return Ok(page);
        }
    }
}

/// One entry, ready to be shown.
struct Shown {
    header: Value,
    blocks: Vec<Block>,
}

/// Shows as many entries as fit, whole, from the end that was asked for; one that fits no page alone is cut.
fn render(toolbox: &Toolbox, session: &Session, range: &Range, page: Page) -> Answer {
    let id = &session.record().id;
    let mut left = TextBudget::WHOLE;
    left.bytes -= HEADER.bytes;
    left.tokens -= HEADER.tokens;
    let forwards = range.after.is_some();
    let total = page.entries.len();
    let order: Vec<&Entry> = if forwards { page.entries.iter().collect() } else { page.entries.iter().rev().collect() };
    let mut shown: Vec<Shown> = Vec::new();
    for entry in order {
        let mut item = show(entry);
        let size = text_of(&item);
        if !left.fits(&size) {
            let room = left.bytes >= ENTRY_MIN.bytes && left.tokens >= ENTRY_MIN.tokens;
            if !shown.is_empty() || !room {
                break;
            }
            let header = item.header.to_string();
            let budget = left.minus(&header);
            item.blocks = cut(&item.blocks, budget, &toolbox.outputs(id), &format!("entry-{}", entry.id));
        }
        left = left.minus(&text_of(&item));
        shown.push(item);
    }
    let has_more = page.has_more || shown.len() < total;
    if !forwards {
        shown.reverse();
    }
    let mut composer = Composer::new(&toolbox.blobs);
    composer.json(&json!({
        "sessionId": id,
        "cwd": session.record().cwd,
        "history": {"count": shown.len(), "hasMore": has_more},
    }));
    for item in shown {
        composer.json(&item.header);
        composer.blocks(id, &item.blocks);
    }
    composer.finish(false, Ticket::default())
}

/// Everything that the budget counts. An image adds its reference.
fn text_of(item: &Shown) -> String {
    let mut text = item.header.to_string();
    for block in &item.blocks {
        text.push('\n');
        match block {
            Block::Text { text: more } => text.push_str(more),
            Block::Image(image) => {
                text.push_str(&format!(
                    "{{\"piImage\":\"chappie://session/00000000-0000-0000-0000-000000000000/image/{}/image.webp\"}}",
                    image.sha256
                ));
            }
        }
    }
    text
}

/// The entry's record without its content, and the content as blocks.
fn show(entry: &Entry) -> Shown {
    let mut header = json!({
        "id": entry.id,
        "parentId": entry.parent_id,
        "timestamp": clock::rfc3339(entry.at),
        "type": "message",
    });
    let blocks = match &entry.body {
        Body::User { content } => {
            header["message"] = json!({"role": "user"});
            content.clone()
        }
        Body::Assistant { content, calls, source } => {
            header["message"] = json!({"role": "assistant", "chappie": source});
            let calls = calls.iter().map(|call| {
                Block::text(
                    json!({"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments})
                        .to_string(),
                )
            });
            content.iter().cloned().chain(calls).collect()
        }
        Body::ToolResult { result, source } => {
            header["message"] = json!({
                "role": "toolResult",
                "toolCallId": result.id,
                "toolName": result.name,
                "isError": result.is_error,
                "chappie": source,
            });
            if let Some(details) = &result.details {
                header["message"]["details"] = details.clone();
            }
            result.content.clone()
        }
        Body::Notice { event, message } => {
            header["type"] = json!("custom");
            header["customType"] = json!("chappie.notice");
            header["event"] = json!(event);
            vec![Block::text(message.clone())]
        }
    };
    Shown { header, blocks }
}
