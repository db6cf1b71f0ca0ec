//! Asking: the connection that is there is used at once, and otherwise waited for. Each question waits for itself alone.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    super::{Core, verdict},
    Dialled, Peer, dial,
};
use crate::{
    api::OpenError,
    identity::{Admission, NodeId},
    transport::{QUESTION_BYTES_MAX, Unanswered},
    wire::CloseCode,
};

/// Connections that may break under one question. One does when the other side was restarted; more mean that it lets
/// this device in and throws it out again.
const TRIES: u32 = 3;

/// Asks `node`; see [`crate::Mesh::ask_raft`].
pub(crate) async fn ask(
    core: &Arc<Core>,
    node: NodeId,
    question: Vec<u8>,
    within: Duration,
) -> Result<Vec<u8>, OpenError> {
    let label = || core.label(&node);
    let unanswered = |trouble: String| OpenError::Unanswered { label: label(), trouble };
    if node == core.node || core.admission(&node) != Admission::Member {
        return Err(OpenError::NotMember(label()));
    }
    if question.len() > QUESTION_BYTES_MAX {
        let trouble = format!("a question of {} bytes, and {QUESTION_BYTES_MAX} are the most", question.len());
        return Err(unanswered(trouble));
    }
    let peer = core.raft.peer(node);
    let _waiting = Waiting::begin(&peer);
    let answer = tokio::select! {
        biased;
        () = core.stopping.cancelled() => return Err(OpenError::Stopped),
        answer = tokio::time::timeout(within, answered(core, node, &peer, question.into())) => answer,
    };
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(trouble)) => Err(unanswered(trouble)),
        Err(_) if peer.ready.borrow().is_some() => Err(unanswered(format!("none came within {within:?}"))),
        Err(_) => Err(OpenError::NotConnected { label: label(), trouble: peer.state().trouble.clone() }),
    }
}

/// The answer; or why this question gets none, in words.
async fn answered(core: &Arc<Core>, node: NodeId, peer: &Arc<Peer>, question: Bytes) -> Result<Vec<u8>, String> {
    let mut trouble = String::new();
    for _ in 0..TRIES {
        let dialled = connected(core, node, peer).await;
        match dialled.connection.ask(question.clone()).await {
            // A later run was let in meanwhile: this one's word does not count (failure rule F15).
            Ok(_) if !is_latest(core, node, &dialled) => "an earlier run of it answered".clone_into(&mut trouble),
            Ok(answer) => {
                dialled.answered();
                return Ok(answer);
            }
            Err(Unanswered::Refused(why)) => return Err(why),
            Err(Unanswered::Ended(ended)) => {
                trouble = ended.to_string();
                peer.lost(&dialled, format!("{} {ended}", core.label(&node)));
            }
        }
    }
    Err(trouble)
}

/// A connection to ask on.
async fn connected(core: &Arc<Core>, node: NodeId, peer: &Arc<Peer>) -> Arc<Dialled> {
    let mut ready = peer.ready.subscribe();
    loop {
        let now = ready.borrow_and_update().clone();
        match now {
            Some(dialled) if dialled.connection.end().is_none() && is_latest(core, node, &dialled) => {
                if dialled.is_silent() {
                    // The old one is asked meanwhile: it may only be slow.
                    dial::begin(core, node, peer);
                }
                return dialled;
            }
            Some(dialled) => {
                dialled.connection.close(CloseCode::Redundant, verdict::EARLIER_RUN);
                peer.lost(&dialled, format!("{} was restarted", core.label(&node)));
            }
            None => {
                dial::begin(core, node, peer);
                // The peer is held here, and the sender with it.
                drop(ready.changed().await);
            }
        }
    }
}

/// Whether no later run of the device was let in since.
fn is_latest(core: &Core, node: NodeId, dialled: &Dialled) -> bool {
    core.table.run(node) == Some(dialled.run)
}

/// Counts a question while it waits: as long as there is one, the device is dialled.
struct Waiting<'a>(&'a Peer);

impl<'a> Waiting<'a> {
    fn begin(peer: &'a Peer) -> Self {
        let mut state = peer.state();
        state.waiting += 1;
        state.asked = Some(Instant::now());
        Self(peer)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        state.asked = Some(Instant::now());
    }
}
