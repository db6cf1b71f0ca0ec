//! Pages of history as an answer shows them: held while they are empty, whole entries as far as they fit.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    HistoryAsk, Parcel,
    cut::cut,
    local::LocalNode,
    parcel::{HEADER, Packer},
};
use crate::{
    budget::TextBudget,
    clock,
    content::Block,
    sessions::{
        Session,
        entry::{Body, Entry, Event},
        history::{Page, Range},
    },
};

/// What is left of an entry that is longer than a page: at least this much is shown before the notice.
const ENTRY_MIN: TextBudget = TextBudget { bytes: 512, tokens: 190 };

/// The page that `ask` wants of `session`, and the notice of who read it.
pub(super) async fn read(node: &LocalNode, session: &Session, ask: &HistoryAsk) -> Result<Parcel, String> {
    let page = page(session, ask).await?;
    if let Some(reader) = &ask.reader {
        session.notice(Event::History, format!("ChatGPT {reader} read history: {} entries", page.entries.len()));
    }
    Ok(render(node, session, &ask.range, page))
}

/// The page, held while it is empty and somebody wants to wait.
async fn page(session: &Session, ask: &HistoryAsk) -> Result<Page, String> {
    let deadline = Instant::now() + ask.wait;
    let mut changes = session.history().subscribe();
    loop {
        changes.mark_unchanged();
        let page = session.page(&ask.range).await.map_err(|error| error.to_string())?;
        if ask.wait.is_zero() || !page.entries.is_empty() {
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
fn render(node: &LocalNode, session: &Session, range: &Range, page: Page) -> Parcel {
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
            item.blocks = cut(&item.blocks, budget, &node.outputs(id), &format!("entry-{}", entry.id));
        }
        left = left.minus(&text_of(&item));
        shown.push(item);
    }
    let has_more = page.has_more || shown.len() < total;
    if !forwards {
        shown.reverse();
    }
    let mut packer = Packer::new(node.blobs(), TextBudget::WHOLE);
    packer.json(&json!({
        "sessionId": id,
        "cwd": session.record().cwd,
        "history": {"count": shown.len(), "hasMore": has_more},
    }));
    for item in shown {
        packer.json(&item.header);
        packer.blocks(id, &item.blocks);
    }
    packer.finish(false, None)
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
