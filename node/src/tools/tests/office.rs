//! The office or its broker changes between the steps of one operation: the door sends the call again, and it runs once.

use std::sync::Mutex;

use super::*;
use crate::{
    broker::ProposeError,
    fleet::seat::Assure,
    host::BoxFuture,
    ids::CallId,
    sessions::Sessions,
    tools::surface::{Assign, Sent},
};

/// Just before the first dispatch a new broker asks the session's node what became of it, or the office is over.
struct Moving {
    sessions: Arc<Sessions>,
    lost: bool,
    first: Mutex<bool>,
}

impl Assure for Moving {
    fn assure(&self) -> BoxFuture<'_, Result<Tenure, ProposeError>> {
        Box::pin(async move {
            if std::mem::take(&mut *self.first.lock().unwrap()) {
                if self.lost {
                    return Err(ProposeError::NotBroker);
                }
                self.sessions.reconcile().await.unwrap();
            }
            Ok(Tenure { epoch: 1, term: 1 })
        })
    }
}

/// The door of the call.
#[derive(Default)]
struct Door(Mutex<Vec<String>>);

impl Assign for Door {
    fn assigned(&self, _: Assigned) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    fn again(&self, cause: &str) {
        self.0.lock().unwrap().push(cause.to_owned());
    }
}

async fn sent_twice(lost: bool) {
    let (world, session) = world().await;
    let blobs = Blobs::open(&world.home.path().join("blobs")).unwrap();
    let node = LocalNode::new(Arc::clone(&world.sessions), blobs, "device".into());
    let office = Arc::new(Moving { sessions: Arc::clone(&world.sessions), lost, first: Mutex::new(true) });
    let toolbox = Arc::new(Toolbox::new(world.broker.clone(), node, office, LONG, Duration::from_secs(20)));
    let door = Arc::new(Door::default());
    let send = async |pin| {
        let sent = Sent { call_id: CallId::from("call"), pin, budget: LONG, assign: door.clone() };
        let caller = Caller { conversation: Some(chat()), ..Caller::default() };
        let arguments = note(Some("op")).as_object().cloned().unwrap();
        let request =
            Request { tool: "call".into(), arguments, caller, cancelled: CancellationToken::new(), sent: Some(sent) };
        Arc::clone(&toolbox).call(request).await.unwrap()
    };
    drop(send(None).await);
    let told = std::mem::take(&mut *door.0.lock().unwrap());
    assert!(told.len() == 1 && !told[0].contains("is the broker now"), "{told:?}");
    assert!(world.script.ran.lock().unwrap().is_empty());
    let answer = send(Some(session.record().id.clone())).await;
    let blocks = blocks(&answer);
    assert!(!answer.is_error && blocks[0].get("replay").is_none() && blocks.contains(&json!("done")), "{blocks:?}");
    answer.ticket.written();
    assert!(door.0.lock().unwrap().is_empty());
    assert_eq!(world.script.ran.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn f3_an_operation_that_was_sealed_before_its_dispatch_came_runs_as_the_next_attempt() {
    sent_twice(false).await;
}

#[tokio::test]
async fn f11_an_office_that_is_lost_before_the_dispatch_sends_the_call_again_to_its_own_reservation() {
    sent_twice(true).await;
}
