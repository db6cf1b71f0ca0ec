//! Who acts as broker. In this version the roster says so; whatever else decides it later changes only this file.

use std::sync::Arc;

use chappie_mesh::{NodeId, Roster};
use tokio::sync::watch;

/// Where the broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This device is it.
    Here,
    /// That one is.
    There(NodeId),
}

/// The broker's seat as this device sees it. Cheap to clone; each clone watches for itself.
#[derive(Clone, Debug)]
pub struct Seat {
    own: NodeId,
    rosters: watch::Receiver<Arc<Roster>>,
}

impl Seat {
    /// The seat as the rosters say, seen from `own`.
    #[must_use]
    pub const fn new(own: NodeId, rosters: watch::Receiver<Arc<Roster>>) -> Self {
        Self { own, rosters }
    }

    /// This device.
    #[must_use]
    pub const fn own(&self) -> NodeId {
        self.own
    }

    /// Who has it now.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let broker = self.rosters.borrow().broker;
        if broker == self.own { Holder::Here } else { Holder::There(broker) }
    }

    /// Resolves when somebody else than `holder` has it. Never, when nothing can change any more.
    pub async fn left(&mut self, holder: Holder) {
        while self.holder() == holder {
            if self.rosters.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_seat_follows_the_roster() {
        let (one, two) = (NodeId::from([1; 32]), NodeId::from([2; 32]));
        let roster = Roster::alone([7; 16].into(), one, "box".into());
        let (rosters, watched) = watch::channel(Arc::new(roster.clone()));
        let mut seat = Seat::new(one, watched);
        assert_eq!(seat.holder(), Holder::Here);
        rosters.send(Arc::new(Roster { broker: two, ..roster })).unwrap();
        seat.left(Holder::Here).await;
        assert_eq!(seat.holder(), Holder::There(two));
    }
}
