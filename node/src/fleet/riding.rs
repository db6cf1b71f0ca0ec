//! What rides along with a response: inputs of the session, then late results of the conversation. Claimed here, and
//! consumed only when the broker says that the response was written (failure rule F7).

use serde_json::{Value, json};

use super::{cut::cut, local::LocalNode, parcel::Packer};
use crate::{
    content::{JsonObject, ToolResult},
    ids::{CallId, Conversation, SessionId},
    sessions::{Input, LateResult, Session},
    storage::node::StoreError,
};

/// Riders for one response.
pub(super) struct Riding<'a> {
    pub(super) node: &'a LocalNode,
    /// The response's identity.
    pub(super) by: &'a CallId,
    /// Whose late results.
    pub(super) conversation: Option<&'a Conversation>,
    /// Whose inputs.
    pub(super) session: Option<&'a Session>,
}

impl Riding<'_> {
    /// Whether anything waits.
    pub(super) fn waits(&self) -> bool {
        self.session.is_some_and(Session::has_inputs)
            || self.conversation.is_some_and(|conversation| self.node.operations().has_late(conversation))
    }

    /// Packs what fits, claimed. When the store refuses, nothing rides: it waits for a later response.
    pub(super) async fn board(&self, packer: &mut Packer<'_>) {
        if !self.waits() {
            return;
        }
        let mark = packer.mark();
        if let Err(error) = self.attach(packer).await {
            tracing::warn!(%error, "inputs and late results wait for a later response");
            packer.rewind(mark);
            if let Some(session) = self.session {
                session.release_inputs(self.by);
            }
            self.node.operations().release_late(self.by);
        }
    }

    async fn attach(&self, packer: &mut Packer<'_>) -> Result<(), StoreError> {
        let operations = self.node.operations();
        let mut inputs = Vec::new();
        if let Some(session) = self.session {
            for input in session.claim_inputs(self.by)? {
                // Room only shrinks, so that after the first that finds none no later one overtakes it.
                if packer.has_room() {
                    self.input(packer, session, &input);
                    inputs.push(input);
                } else {
                    session.put_back_input(input.seq);
                }
            }
        }
        let mut late = Vec::new();
        if let Some(conversation) = self.conversation {
            for result in operations.claim_late(self.by, conversation).await? {
                if packer.has_room() {
                    late.push(result.call_id.clone());
                    self.late(packer, result);
                } else {
                    operations.put_back_late(&result.call_id);
                }
            }
        }
        let changes = self.session.map(|session| session.offering(&inputs)).unwrap_or_default();
        operations.offering(&late, changes).await
    }

    fn input(&self, packer: &mut Packer<'_>, session: &Session, input: &Input) {
        let id = &session.record().id;
        let mut header = json!({ "piInput": input.entry, "sessionId": id });
        if input.redelivered {
            header["redelivered"] = Value::Bool(true);
        }
        packer.json(&header);
        let name = format!("input-{}", input.entry);
        packer.blocks(id, &cut(&input.content, packer.left(), &self.node.outputs(id), &name));
    }

    fn late(&self, packer: &mut Packer<'_>, mut late: LateResult) {
        let mut header = JsonObject::new();
        header.insert("deferredResult".into(), json!(late.call_id));
        if let Some(request_id) = &late.request_id {
            header.insert("requestId".into(), json!(request_id));
        }
        header.insert("sessionId".into(), json!(late.session));
        header.insert("cwd".into(), json!(late.cwd));
        let error = match &late.outcome {
            Some(outcome) => outcome.error.clone(),
            None => Some(crate::sessions::PAYLOAD_GONE.to_owned()),
        };
        if let Some(error) = error {
            header.insert("error".into(), Value::String(error));
        }
        if late.redelivered {
            header.insert("redelivered".into(), Value::Bool(true));
        }
        packer.json(&Value::Object(header));
        if let Some(outcome) = &mut late.outcome {
            let name = format!("late-{}", late.call_id);
            pack_late(self.node, packer, &late.session, &mut outcome.results, &name);
        }
    }
}

/// Packs results that were cut to the room of another answer; what does not fit goes to files called after `name`.
pub(super) fn pack_late(
    node: &LocalNode,
    packer: &mut Packer<'_>,
    session: &SessionId,
    results: &mut [ToolResult],
    name: &str,
) {
    let members = results.len();
    for (index, result) in results.iter_mut().enumerate() {
        let share = packer.left().share(members - index).minus("{\"toolCallId\":\"\",\"toolName\":\"\"}");
        result.content = cut(&result.content, share, &node.outputs(session), &format!("{name}-{index}"));
        packer.result(session, result);
    }
}
