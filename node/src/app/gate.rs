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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use chappie_mesh::{Member, NodeId, Roster};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        broker::{Broker, Settings, testing},
        content::JsonObject,
        fleet::membership::Remembered,
        storage::{
            medium::Medium,
            node::{Change, Key, NodeStore},
        },
    };

    /// Calls that end when they are let, and how many came.
    struct Tools(Mutex<usize>, watch::Sender<bool>);

    impl Surface for Tools {
        fn specs(&self) -> &[ToolSpec] {
            &[]
        }

        fn instructions(&self) -> &str {
            ""
        }

        fn call(self: Arc<Self>, _: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
            Box::pin(async move {
                *self.0.lock().unwrap() += 1;
                let _ = self.1.subscribe().wait_for(|open| *open).await;
                let structured = JsonObject::new();
                Ok(Answer { content: Vec::new(), structured, is_error: false, ticket: Ticket::default() })
            })
        }

        fn disconnected(&self, _: &Conversation) {}

        fn resource_templates(&self) -> Vec<(String, String, String)> {
            Vec::new()
        }

        fn read_resource(
            self: Arc<Self>,
            _: String,
            _: Caller,
        ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
            Box::pin(std::future::ready(Err(ResourceError::NotFound(String::new()))))
        }
    }

    fn request() -> Request {
        let (arguments, caller) = (JsonObject::new(), Caller::default());
        Request { tool: "bash".into(), arguments, caller, cancelled: CancellationToken::new(), sent: None }
    }

    fn gate(membership: Arc<Membership>, open: bool) -> (Arc<Gate>, Arc<Tools>) {
        let tools = Arc::new(Tools(Mutex::default(), watch::Sender::new(open)));
        (Arc::new(Gate::new(tools.clone(), membership)), tools)
    }

    /// A device that stands alone, or one that has joined a mesh and not handed over yet what its own broker knew.
    async fn member(home: &std::path::Path, owing: bool) -> Arc<Membership> {
        let own = NodeId::from([1; 32]);
        let store = NodeStore::open(home).unwrap();
        if owing {
            let mut roster = Roster::alone([7; 16].into(), NodeId::from([2; 32]), "hub".into());
            roster.members.insert(own, Member { name: "one".into() });
            let row = json!({"roster": roster, "addresses": [], "owing": true});
            store.durable(vec![Change::set(Key::mesh(), &row)]).await.unwrap();
        }
        let remembered = Remembered::read(&store, &own).await.unwrap();
        let place = crate::broker::Place {
            member_of: remembered.member_of(),
            ..testing::place(Medium::Folder(home.to_owned()), own)
        };
        let broker = Broker::open(place, Settings::default()).await.unwrap();
        Membership::open(own, "one", store, broker, remembered).await.unwrap()
    }

    #[tokio::test]
    async fn f18_a_call_waits_while_what_the_own_broker_knew_is_handed_over() {
        let home = tempfile::tempdir().unwrap();
        let membership = member(home.path(), true).await;
        assert!(membership.is_owing());
        let (gate, tools) = gate(membership.clone(), true);
        let call = gate.clone().call(request());
        let mut call = std::pin::pin!(call);
        assert!(futures_util::poll!(call.as_mut()).is_pending());
        assert_eq!(*tools.0.lock().unwrap(), 0, "neither broker would know of it");
        gate.quiet().await;
        membership.handed_over().await.unwrap();
        assert!(!call.await.unwrap().is_error);
        assert_eq!(*tools.0.lock().unwrap(), 1);
    }

    #[tokio::test]
    async fn f18_a_join_waits_for_the_calls_that_are_under_way() {
        let home = tempfile::tempdir().unwrap();
        let (gate, tools) = gate(member(home.path(), false).await, false);
        let mut call = gate.clone().call(request());
        assert!(futures_util::poll!(call.as_mut()).is_pending());
        assert_eq!(*tools.0.lock().unwrap(), 1);
        let mut quiet = std::pin::pin!(gate.quiet());
        assert!(futures_util::poll!(quiet.as_mut()).is_pending());
        tools.1.send_replace(true);
        assert!(!call.await.unwrap().is_error);
        assert!(futures_util::poll!(quiet.as_mut()).is_ready());
    }
}
