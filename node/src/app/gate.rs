//! [`Gate`]: the tools behind a gate that is shut while this device joins a mesh (F18): what its own broker knows is on the
//! way to another one, and a call in between would be known to neither.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::{sync::watch, time::timeout};

use crate::{
    fleet::membership::Membership,
    host::BoxFuture,
    ids::Conversation,
    tools::{Answer, Caller, Content, Request, ResourceError, ResourceRead, Surface, Ticket, ToolSpec, UnknownTool},
};

/// How long a call waits at the gate: handing over takes two round trips and a write; whoever waits longer is told so.
const GATE_WAIT: Duration = Duration::from_secs(10);

/// How long a join waits for calls that are inside already: an offline selection waits 5 s before it reserves.
const QUIET_WAIT: Duration = Duration::from_secs(7);

/// The gate.
pub(super) struct Gate {
    tools: Arc<dyn Surface>,
    membership: Arc<Membership>,
    /// Calls inside.
    inside: Arc<watch::Sender<usize>>,
}

/// A call inside.
struct Inside(Arc<watch::Sender<usize>>);

impl Inside {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|inside| *inside += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.send_modify(|inside| *inside -= 1);
    }
}

impl Gate {
    pub(super) fn new(tools: Arc<dyn Surface>, membership: Arc<Membership>) -> Self {
        Self { tools, membership, inside: Arc::default() }
    }

    /// Resolves when no call is inside any more, or after 7 s: what is inside then has long been reserved and dispatched.
    pub(super) async fn quiet(&self) {
        let mut inside = self.inside.subscribe();
        let _ = timeout(QUIET_WAIT, inside.wait_for(|inside| *inside == 0)).await;
    }

    /// Whether it opened in time.
    async fn opened(membership: &Membership) -> bool {
        let mut owing = membership.owing();
        timeout(GATE_WAIT, owing.wait_for(|owing| !owing)).await.is_ok()
    }
}

impl Surface for Gate {
    fn specs(&self) -> &[ToolSpec] {
        self.tools.specs()
    }

    fn instructions(&self) -> &str {
        self.tools.instructions()
    }

    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        Box::pin(async move {
            // Counted before it looks: whoever shuts the gate then either sees it inside or has shut it out.
            let mut inside = Inside::new(&self.inside);
            if self.membership.is_owing() {
                drop(inside);
                if !Self::opened(&self.membership).await {
                    return Ok(shut(&self.membership));
                }
                inside = Inside::new(&self.inside);
            }
            let answer = Arc::clone(&self.tools).call(request).await;
            drop(inside);
            answer
        })
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.tools.disconnected(conversation);
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        self.tools.resource_templates()
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        Arc::clone(&self.tools).read_resource(uri, caller)
    }
}

fn shut(membership: &Membership) -> Answer {
    let roster = membership.roster();
    let text = format!(
        "This device is joining a mesh and its broker, the device {}, has not answered yet; nothing was done. Try again in \
         a minute, and see that the node runs there; `chappie reset-identity` takes this device out of that mesh again",
        roster.label(&roster.broker)
    );
    let structured = json!({ "text": text }).as_object().cloned().unwrap_or_default();
    Answer { content: vec![Content::Text(text)], structured, is_error: true, ticket: Ticket::default() }
}
