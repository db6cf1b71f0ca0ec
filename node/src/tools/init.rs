//! `init`: selects or changes the conversation's default session and reads its environment (behaviour 3.3).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    compose::{Composer, refusal},
    initialization::initialization,
    operate::{announce, take},
    riding::Riding,
    surface::{Annotations, Answer, Request, Ticket, ToolSpec},
    toolbox::{Toolbox, describe, input_schema, not_selected, spec as tool_spec},
};
use crate::{
    broker::{Ask, Mode, Purpose},
    clock,
    host::{Inspection, ToolDefinition},
    ids::SessionId,
};

pub(super) fn spec() -> ToolSpec {
    let properties = json!({"sessionId": {
        "type": "string", "minLength": 1, "maxLength": 256,
        "description": "Session to resume or to switch to; left out: the saved default, else a free session"
    }});
    let annotations = Annotations { read_only: false, destructive: false, idempotent: true, open_world: false };
    tool_spec(
        "init",
        "Start or resume local work",
        "Call first. Selects this conversation's default session and returns its environment: session, tool catalogue, skills, global instructions file and how to take part. Pass sessionId to resume a specific task.",
        input_schema(properties, &[], &[]),
        annotations,
    )
}

pub(super) async fn run(toolbox: &Arc<Toolbox>, request: Request) -> Answer {
    let mut request = request;
    let session = take(&mut request.arguments, "sessionId").map(SessionId);
    let (caller, cancelled) = (&request.caller, &request.cancelled);
    let ask = Ask { conversation: caller.conversation.as_ref(), session, purpose: Purpose::Init };
    let selected = tokio::select! {
        biased;
        () = cancelled.cancelled() => return refusal("cancelled; the default session is as it was"),
        selected = toolbox.broker.select(ask) => selected,
    };
    let selection = match selected {
        Ok(selection) => selection,
        Err(error) => return not_selected(&request, &error),
    };
    let inspected = match toolbox.directory.find(&selection.session) {
        None => Err(format!("session {} ended just now", selection.session)),
        Some(placed) => tokio::select! {
            biased;
            () = cancelled.cancelled() => Err("cancelled".to_owned()),
            inspected = placed.node.inspect(placed.info.id.clone()) => inspected.map(|inspection| (placed.clone(), inspection)),
        },
    };
    let (placed, inspection) = match inspected {
        Ok(found) => found,
        Err(error) => {
            // A binding made by a failed init is taken back (design 12).
            if let Some(bound) = selection.bound {
                toolbox.broker.rollback(bound).await;
            }
            return refusal(format!("{error}; the default session is as it was"));
        }
    };
    announce(toolbox, caller, &selection, &placed);
    let mode = selection.mode.unwrap_or(Mode::Executor);
    let mut composer = Composer::new();
    let mut header = json!({
        "selection": selection.how,
        "initialization": initialization(&selection.session, mode, toolbox.cooldown),
        "session": describe(&placed),
    });
    environment(&mut header, &inspection);
    composer.json(&header);
    let ticket = match mode {
        Mode::Observer => Ticket::default(),
        Mode::Executor => {
            let mut riding = Riding::new(toolbox, clock::call_id(), caller.conversation.clone());
            riding.session(&mut composer, &placed.node, Some(&placed.info.id)).await;
            riding.others(&mut composer, Some(&placed.node)).await
        }
    };
    composer.finish(false, ticket)
}

/// Catalogue, skills and the global instructions file.
fn environment(header: &mut Value, inspection: &Inspection) {
    header["tools"] = inspection.tools.iter().map(catalogue_row).collect();
    header["skills"] = json!(inspection.skills);
    if let Some(path) = &inspection.global_agents {
        header["globalAgents"] = json!({ "path": path });
    }
}

/// The first line says enough to choose; `tools` has the rest.
fn catalogue_row(tool: &ToolDefinition) -> Value {
    json!({ "name": tool.name, "description": tool.description.lines().next().unwrap_or("") })
}
