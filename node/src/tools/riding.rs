//! Gathers what rides along with a response from the nodes that hold it, and brings them the word on what became of the
//! response (failure rule F7).

use std::{ptr, sync::Arc};

use super::{compose::Composer, surface::Ticket, toolbox::Toolbox};
use crate::{
    fleet::{Board, Run, SessionNode, parcel::RIDER_MIN},
    ids::{CallId, Conversation, SessionId},
};

/// What one response carries, node by node. Dropped without a word it was not written.
pub(super) struct Riding<'a> {
    toolbox: &'a Toolbox,
    conversation: Option<Conversation>,
    aboard: Aboard,
}

/// Whom to tell.
struct Aboard {
    by: CallId,
    run: Option<Box<dyn Run>>,
    nodes: Vec<Arc<dyn SessionNode>>,
}

impl Aboard {
    /// `None`: nobody knows.
    fn settle(&mut self, written: Option<bool>) {
        // A run that is dropped without a word says that there is none.
        if let (Some(run), Some(written)) = (self.run.take(), written) {
            run.settle(written);
        }
        for node in self.nodes.drain(..) {
            match written {
                Some(written) => node.settle(self.by.clone(), written),
                None => node.lapse(self.by.clone()),
            }
        }
    }
}

impl Drop for Aboard {
    fn drop(&mut self) {
        self.settle(Some(false));
    }
}

impl<'a> Riding<'a> {
    /// Riders for the response of `by`, to `conversation`.
    pub(super) const fn new(toolbox: &'a Toolbox, by: CallId, conversation: Option<Conversation>) -> Self {
        Self { toolbox, conversation, aboard: Aboard { by, run: None, nodes: Vec::new() } }
    }

    /// The response is the one of this run, whose node packed its own riders with the outcome.
    pub(super) fn carry(&mut self, run: Box<dyn Run>) {
        self.aboard.run = Some(run);
    }

    /// Boards the inputs of `session` and the late results of the conversation at `node`.
    pub(super) async fn session(
        &mut self,
        composer: &mut Composer,
        node: &Arc<dyn SessionNode>,
        session: Option<&SessionId>,
    ) {
        self.aboard.nodes.push(Arc::clone(node));
        let board = Board {
            by: self.aboard.by.clone(),
            conversation: self.conversation.clone(),
            session: session.cloned(),
            room: composer.left(),
        };
        composer.parcel(node.board(board).await);
    }

    /// Boards what other nodes than `except` have for the conversation, as long as there is room, and gives the ticket that
    /// settles everything.
    pub(super) async fn others(mut self, composer: &mut Composer, except: Option<&Arc<dyn SessionNode>>) -> Ticket {
        for node in others(self.toolbox, self.conversation.as_ref(), except) {
            let left = composer.left();
            if left.bytes < RIDER_MIN.bytes || left.tokens < RIDER_MIN.tokens {
                break;
            }
            self.session(composer, &node, None).await;
        }
        let mut aboard = self.aboard;
        Ticket::knowing(move |written| aboard.settle(written))
    }
}

/// The nodes that hold late results of `conversation`, but for `except`.
pub(super) fn others(
    toolbox: &Toolbox,
    conversation: Option<&Conversation>,
    except: Option<&Arc<dyn SessionNode>>,
) -> Vec<Arc<dyn SessionNode>> {
    let mut nodes = conversation.map(|conversation| toolbox.directory.late(conversation)).unwrap_or_default();
    nodes.retain(|node| except.is_none_or(|except| !ptr::addr_eq(Arc::as_ptr(node), Arc::as_ptr(except))));
    nodes
}
