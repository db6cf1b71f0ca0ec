//! [`Forwarding`]: the door's side. It keeps the call's identity and its pin over every sending (failure rule F1), and
//! answers for a broker that cannot be reached.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use chappie_mesh::NodeId;
use tokio::time::{Instant, sleep_until};

use super::{patience::AWAY_MAX, pins::Pins};
use crate::{
    broker::Broker,
    fleet::{
        directory::Fleet,
        line::Line,
        protocol::ask::{Ask, DoorAsk, Reply},
        seat::{Holder, Seat},
    },
    host::BoxFuture,
    ids::Conversation,
    tools::surface::{Answer, Caller, Request, ResourceError, ResourceRead, Surface, ToolSpec, UnknownTool},
};

/// How long a resource may take: the 32 MiB that one may have, at 1 MiB/s.
const RESOURCE_WAIT: Duration = Duration::from_secs(40);

/// The tools of this device, wherever the broker is.
pub struct Forwarding {
    /// Words go on being said without whoever had them said.
    this: Weak<Self>,
    pub(super) seat: Seat,
    pub(super) toolbox: Arc<dyn Surface>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) broker: Broker,
    pub(super) line: Line,
    pub(super) call_budget: Duration,
    pins: Mutex<Pins>,
}

impl Forwarding {
    /// `toolbox` while this device has the seat, else the toolbox of the broker's device. `fleet` and `broker` are this
    /// device's own; `call_budget` is how long a call may take before it is answered as running.
    #[must_use]
    pub fn new(
        seat: Seat,
        toolbox: Arc<dyn Surface>,
        fleet: Arc<Fleet>,
        broker: Broker,
        line: Line,
        call_budget: Duration,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            seat,
            toolbox,
            fleet,
            broker,
            line,
            call_budget,
            pins: Mutex::default(),
        })
    }

    pub(super) fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the tool changes nothing, so that a lost call may be repeated.
    pub(super) fn reads(&self, tool: &str) -> bool {
        self.toolbox.specs().iter().any(|spec| spec.name == tool && spec.annotations.read_only)
    }

    /// Reads a resource through whoever is the broker: it only reads, so it is asked for again when the seat moves.
    async fn resource(&self, uri: String, caller: Caller) -> Result<ResourceRead, ResourceError> {
        let mut seat = self.seat.clone();
        let until = Instant::now() + RESOURCE_WAIT;
        loop {
            let holder = seat.holder();
            let reading = async {
                match holder {
                    Holder::Here => Arc::clone(&self.toolbox).read_resource(uri.clone(), caller.clone()).await,
                    Holder::There(broker) => self.resource_of(broker, uri.clone(), caller.clone(), until).await,
                    Holder::Nobody => {
                        sleep_until(until.min(Instant::now() + AWAY_MAX)).await;
                        Err(ResourceError::Unreadable(self.fleet.no_broker()))
                    }
                }
            };
            tokio::select! {
                biased;
                read = reading => return read,
                () = seat.left(holder) => {}
            }
        }
    }

    async fn resource_of(
        &self,
        broker: NodeId,
        uri: String,
        caller: Caller,
        until: Instant,
    ) -> Result<ResourceRead, ResourceError> {
        let Caller { conversation, request_id, .. } = caller;
        let ask = Ask::Door(DoorAsk::Resource { uri, conversation, request_id });
        let unreachable =
            |cause| ResourceError::Unreadable(format!("the broker could not be asked ({cause}); try again"));
        let wait = until.saturating_duration_since(Instant::now());
        match self.line.ask(broker, &ask, wait).await.map_err(unreachable)? {
            Reply::Resource(picture) => Ok(ResourceRead { mime: picture.mime, bytes: picture.bytes.0 }),
            Reply::NotFound(cause) => Err(ResourceError::NotFound(cause)),
            Reply::Unreadable(cause) => Err(ResourceError::Unreadable(cause)),
            Reply::Unsupported(cause) | Reply::Refused(cause) | Reply::Failed(cause) => Err(unreachable(cause)),
            _ => Err(unreachable("it gave an answer to another question".to_owned())),
        }
    }
}

impl Surface for Forwarding {
    fn specs(&self) -> &[ToolSpec] {
        self.toolbox.specs()
    }

    fn instructions(&self) -> &str {
        self.toolbox.instructions()
    }

    fn call(self: Arc<Self>, request: Request) -> BoxFuture<'static, Result<Answer, UnknownTool>> {
        Box::pin(self.deliver(request))
    }

    fn disconnected(&self, conversation: &Conversation) {
        self.pins().forget(conversation);
        match (self.seat.holder(), self.this.upgrade()) {
            (Holder::Here, _) => self.toolbox.disconnected(conversation),
            (_, Some(this)) => this.insist(DoorAsk::Disconnected(conversation.clone()), "that a connection ended"),
            // The node stops.
            (_, None) => {}
        }
    }

    fn resource_templates(&self) -> Vec<(String, String, String)> {
        self.toolbox.resource_templates()
    }

    fn read_resource(
        self: Arc<Self>,
        uri: String,
        caller: Caller,
    ) -> BoxFuture<'static, Result<ResourceRead, ResourceError>> {
        Box::pin(async move { self.resource(uri, caller).await })
    }
}
