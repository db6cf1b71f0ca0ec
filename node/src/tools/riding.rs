//! What rides along with a response: inputs of the session, then late results of the conversation. Claimed here, and
//! consumed only when the ticket says that the response was written (failure rule F7).

use std::{path::PathBuf, sync::Arc};

use serde_json::{Value, json};

use super::{
    compose::{Composer, RIDER_MIN, cut},
    surface::Ticket,
    toolbox::Toolbox,
};
use crate::{
    content::JsonObject,
    ids::{CallId, Conversation, SessionId},
    sessions::{Input, LateResult, RunHandle, Session},
    storage::node::StoreError,
};

/// What one response carries besides its own outcome.
pub(super) struct Riding<'a> {
    toolbox: &'a Toolbox,
    by: CallId,
    conversation: Option<Conversation>,
    session: Option<Arc<Session>>,
}

impl<'a> Riding<'a> {
    /// Riders for the response of `by`: inputs of `session` when it is given, late results of `conversation`.
    pub(super) const fn new(
        toolbox: &'a Toolbox,
        by: CallId,
        conversation: Option<Conversation>,
        session: Option<Arc<Session>>,
    ) -> Self {
        Self { toolbox, by, conversation, session }
    }

    /// Whether anything waits.
    pub(super) fn waits(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_inputs())
            || self
                .conversation
                .as_ref()
                .is_some_and(|conversation| self.toolbox.sessions.operations().has_late(conversation))
    }

    /// Adds what fits to `composer`, and returns the ticket that settles all of it together with `run`. When the store
    /// refuses, nothing rides: it waits for a later response.
    pub(super) async fn board(self, composer: &mut Composer<'_>, run: Option<RunHandle>) -> Ticket {
        if self.waits()
            && let Err(error) = self.attach(composer).await
        {
            tracing::warn!(%error, "inputs and late results wait for a later response");
            self.release();
        }
        let Self { toolbox, by, conversation, session } = self;
        let operations = Arc::clone(toolbox.sessions.operations());
        Ticket::new(move |written| {
            if written {
                if let Some(run) = run {
                    run.delivered();
                }
                if let Some(session) = &session {
                    session.confirm_inputs(&by);
                }
                if let Some(conversation) = &conversation {
                    operations.confirm_late(&by, conversation);
                }
            } else {
                drop(run);
                if let Some(session) = &session {
                    session.release_inputs(&by);
                }
                operations.release_late(&by);
            }
        })
    }

    fn release(&self) {
        if let Some(session) = &self.session {
            session.release_inputs(&self.by);
        }
        self.toolbox.sessions.operations().release_late(&self.by);
    }

    async fn attach(&self, composer: &mut Composer<'_>) -> Result<(), StoreError> {
        let operations = self.toolbox.sessions.operations();
        let mut inputs = Vec::new();
        if let Some(session) = &self.session {
            for input in session.claim_inputs(&self.by)? {
                // Room only shrinks, so that after the first that finds none no later one overtakes it.
                if composer_room(composer) {
                    self.input(composer, session, &input);
                    inputs.push(input);
                } else {
                    session.put_back_input(input.seq);
                }
            }
        }
        let mut late = Vec::new();
        if let Some(conversation) = &self.conversation {
            for result in operations.claim_late(&self.by, conversation).await? {
                if composer_room(composer) {
                    self.late(composer, &result);
                    late.push(result.call_id);
                } else {
                    operations.put_back_late(&result.call_id);
                }
            }
        }
        let changes = self.session.as_ref().map(|session| session.offering(&inputs)).unwrap_or_default();
        operations.offering(&late, changes).await
    }

    fn outputs(&self, session: &SessionId) -> PathBuf {
        self.toolbox.outputs(session)
    }

    fn input(&self, composer: &mut Composer<'_>, session: &Session, input: &Input) {
        let id = &session.record().id;
        let mut header = json!({ "piInput": input.entry, "sessionId": id });
        if input.redelivered {
            header["redelivered"] = Value::Bool(true);
        }
        composer.json(&header);
        let name = format!("input-{}", input.entry);
        composer.blocks(id, &cut(&input.content, composer.left(), &self.outputs(id), &name));
    }

    fn late(&self, composer: &mut Composer<'_>, late: &LateResult) {
        let mut header = JsonObject::new();
        header.insert("deferredResult".into(), json!(late.call_id));
        if let Some(request_id) = &late.request_id {
            header.insert("requestId".into(), json!(request_id));
        }
        header.insert("sessionId".into(), json!(late.session));
        header.insert("cwd".into(), json!(late.cwd));
        let error = match &late.outcome {
            Some(outcome) => outcome.error.clone(),
            None => Some("the result itself is no longer kept here; read the session's history".to_owned()),
        };
        if let Some(error) = error {
            header.insert("error".into(), Value::String(error));
        }
        if late.redelivered {
            header.insert("redelivered".into(), Value::Bool(true));
        }
        composer.json(&Value::Object(header));
        let results = late.outcome.as_ref().map(|outcome| outcome.results.as_slice()).unwrap_or_default();
        for (index, result) in results.iter().enumerate() {
            let mut result = result.clone();
            let share = composer.left().share(results.len() - index).minus("{\"toolCallId\":\"\",\"toolName\":\"\"}");
            let name = format!("late-{}-{index}", late.call_id);
            result.content = cut(&result.content, share, &self.outputs(&late.session), &name);
            composer.result(&late.session, &result);
        }
    }
}

fn composer_room(composer: &Composer<'_>) -> bool {
    let left = composer.left();
    left.bytes >= RIDER_MIN.bytes && left.tokens >= RIDER_MIN.tokens
}
