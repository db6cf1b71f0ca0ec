//! Who acts as broker, as this device sees it: from how its consensus group stands (failure rules F10, F11). The only place
//! that says so to the rest of the program.

use std::{future::pending, sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Roster, consensus::Standing};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::Tenure;
use crate::{
    broker::{Broker, ProposeError},
    host::BoxFuture,
};

/// Where the broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This device is it.
    Here,
    /// That one is, as far as this device has heard.
    There(NodeId),
    /// Nobody is, or none that this device has heard of.
    Nobody,
}

/// The broker's seat as this device sees it. Cheap to clone; each clone watches for itself.
#[derive(Clone, Debug)]
pub struct Seat {
    own: NodeId,
    /// `None`: whoever the roster names has the seat for good.
    standings: Option<watch::Receiver<Arc<Standing>>>,
    rosters: watch::Receiver<Arc<Roster>>,
}

impl Seat {
    /// The seat as `standings` say, seen from `own`. While this device knows nothing of its group yet, `rosters` hint at who
    /// has it.
    #[must_use]
    pub const fn new(
        own: NodeId,
        standings: watch::Receiver<Arc<Standing>>,
        rosters: watch::Receiver<Arc<Roster>>,
    ) -> Self {
        Self { own, standings: Some(standings), rosters }
    }

    /// The seat of whoever the roster names, in the one term of its epoch.
    #[must_use]
    pub const fn fixed(own: NodeId, rosters: watch::Receiver<Arc<Roster>>) -> Self {
        Self { own, standings: None, rosters }
    }

    /// This device.
    #[must_use]
    pub const fn own(&self) -> NodeId {
        self.own
    }

    /// How the group stands; `None` when the roster alone decides.
    #[must_use]
    pub fn standing(&self) -> Option<Arc<Standing>> {
        self.standings.as_ref().map(|standings| Arc::clone(&standings.borrow()))
    }

    /// Who has it now.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let hint = || self.rosters.borrow().broker;
        match self.standing() {
            None if hint() == self.own => Holder::Here,
            None => Holder::There(hint()),
            Some(standing) => seen(&standing, self.own, hint),
        }
    }

    /// The office in which this device acts as broker.
    #[must_use]
    pub fn tenure(&self) -> Option<Tenure> {
        match self.standing() {
            None => {
                let roster = self.rosters.borrow();
                (roster.broker == self.own).then_some(Tenure { epoch: roster.epoch, term: 1 })
            }
            Some(standing) => {
                standing.office.map(|office| Tenure { epoch: standing.group.epoch.count, term: office.term })
            }
        }
    }

    /// Whether this device was chosen and has not taken the office yet: that is a matter of milliseconds.
    #[must_use]
    pub fn is_coming(&self) -> bool {
        self.standing().is_some_and(|standing| standing.office.is_none() && standing.leader == Some(self.own))
    }

    /// Resolves when somebody else than `holder` has it. Never, when nothing can change any more.
    pub async fn left(&mut self, holder: Holder) {
        while self.holder() == holder {
            self.changed().await;
        }
    }

    /// Resolves when the office `tenure` of this device is over. Never, when nothing can change any more.
    pub async fn over(&mut self, tenure: Tenure) {
        while self.tenure() == Some(tenure) {
            self.changed().await;
        }
    }

    /// Waits until somebody has it, and says who.
    pub async fn taken(&mut self) -> Holder {
        self.left(Holder::Nobody).await;
        self.holder()
    }

    /// Why this device does not answer as broker, when it does not. One that was chosen takes the office in a moment: for
    /// that it waits, up to `wait`.
    pub async fn refusal(&mut self, wait: Duration, label: impl Fn(&NodeId) -> String) -> Option<String> {
        let until = Instant::now() + wait;
        loop {
            let holder = self.holder();
            let own = label(&self.own);
            let word = match holder {
                Holder::Here => return None,
                Holder::There(broker) => format!("device {own} is not the broker; it is {}", label(&broker)),
                Holder::Nobody => format!("device {own} is not the broker just now"),
            };
            if !self.is_coming() || timeout_at(until, self.left(holder)).await.is_err() {
                return Some(word);
            }
        }
    }

    /// Resolves when something changed that it is seen from.
    async fn changed(&mut self) {
        let Self { standings, rosters, .. } = self;
        let stood = async {
            let changed = match standings {
                Some(standings) => standings.changed().await.is_ok(),
                None => false,
            };
            if !changed {
                pending().await
            }
        };
        let listed = async {
            if rosters.changed().await.is_err() {
                pending().await
            }
        };
        tokio::select! {
            biased;
            () = stood => {}
            () = listed => {}
        }
    }
}

/// Who has the seat, as `own` sees it in `standing`.
fn seen(standing: &Standing, own: NodeId, hint: impl Fn() -> NodeId) -> Holder {
    if standing.office.is_some() {
        return Holder::Here;
    }
    // Who knows of no voter has never heard of its group, as a device that just joined.
    let heard = standing.leader.or_else(|| standing.voters.is_empty().then(hint));
    heard.filter(|leader| *leader != own).map_or(Holder::Nobody, Holder::There)
}

/// Makes sure of the office before something is done in it (failure rule F11).
pub trait Assure: Send + Sync + 'static {
    /// The office, when a quorum has just confirmed it. It takes no longer than a few round trips.
    ///
    /// # Errors
    /// This device is not the broker, or nobody confirmed in time that it is: it must not act.
    fn assure(&self) -> BoxFuture<'_, Result<Tenure, ProposeError>>;
}

/// An office that nobody takes away.
#[cfg(test)]
impl Assure for Tenure {
    fn assure(&self) -> BoxFuture<'_, Result<Tenure, ProposeError>> {
        Box::pin(std::future::ready(Ok(*self)))
    }
}

impl Assure for Seat {
    fn assure(&self) -> BoxFuture<'_, Result<Tenure, ProposeError>> {
        Box::pin(std::future::ready(self.tenure().ok_or(ProposeError::NotBroker)))
    }
}

impl Assure for Broker {
    fn assure(&self) -> BoxFuture<'_, Result<Tenure, ProposeError>> {
        Box::pin(async { Self::assure(self).await.map(|(epoch, term)| Tenure { epoch, term }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::{node, roster, standing};

    #[tokio::test]
    async fn a_fixed_seat_follows_the_roster() {
        let (rosters, watched) = watch::channel(Arc::new(roster()));
        let mut seat = Seat::fixed(node(1), watched);
        assert_eq!((seat.holder(), seat.tenure()), (Holder::Here, Some(Tenure { epoch: 1, term: 1 })));
        rosters.send(Arc::new(Roster { broker: node(2), ..roster() })).unwrap();
        seat.left(Holder::Here).await;
        assert_eq!((seat.holder(), seat.tenure()), (Holder::There(node(2)), None));
    }

    #[tokio::test]
    async fn f10_the_seat_is_here_only_in_an_office() {
        let (standings, stood) = watch::channel(Arc::new(standing(1, Some(2), None)));
        let mut seat = Seat::new(node(1), stood, watch::channel(Arc::new(roster())).1);
        assert_eq!(seat.holder(), Holder::There(node(2)));
        standings.send_replace(Arc::new(standing(1, Some(1), None)));
        seat.left(Holder::There(node(2))).await;
        assert_eq!((seat.holder(), seat.is_coming()), (Holder::Nobody, true), "elected, and not confirmed yet");
        standings.send_replace(Arc::new(standing(1, Some(1), Some(7))));
        assert_eq!(seat.taken().await, Holder::Here);
        let tenure = Tenure { epoch: 1, term: 7 };
        assert_eq!((seat.tenure(), seat.assure().await), (Some(tenure), Ok(tenure)));
        standings.send_replace(Arc::new(standing(1, Some(1), Some(9))));
        seat.over(tenure).await;
        assert_eq!(seat.holder(), Holder::Here, "in another office");
        standings.send_replace(Arc::new(standing(1, None, None)));
        seat.left(Holder::Here).await;
        assert_eq!((seat.holder(), seat.tenure(), seat.is_coming()), (Holder::Nobody, None, false));
        assert!(seat.assure().await.is_err());
    }

    #[tokio::test]
    async fn the_roster_hints_at_the_broker_until_the_group_is_known() {
        let mut fresh = standing(3, None, None);
        fresh.voters.clear();
        let (standings, stood) = watch::channel(Arc::new(fresh.clone()));
        let (rosters, watched) = watch::channel(Arc::new(roster()));
        let mut seat = Seat::new(node(3), stood, watched);
        assert_eq!(seat.holder(), Holder::There(node(1)));
        rosters.send_replace(Arc::new(Roster { broker: node(3), ..roster() }));
        seat.left(Holder::There(node(1))).await;
        assert_eq!(seat.holder(), Holder::Nobody, "a hint at the device itself is none");
        standings.send_replace(Arc::new(standing(3, None, None)));
        rosters.send_replace(Arc::new(roster()));
        assert_eq!(seat.holder(), Holder::Nobody, "who knows its voters waits for their word");
    }
}
