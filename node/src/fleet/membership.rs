//! [`Membership`]: which mesh this device belongs to, kept in the node's store. The broker decides on the roster; everybody
//! else keeps the copy that stands here. Leaving one mesh for another happens here and nowhere else (failure rules F18, F21).

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chappie_mesh::{Identity, InviteCode, JoinError, NodeId, Roster};
use serde::{Deserialize, Serialize};
use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio_util::sync::CancellationToken;

use super::Tenure;
use crate::{
    broker::{Broker, ProposeError},
    clock,
    storage::node::{Change, Key, NodeStore, StoreError},
};

/// Addresses that are kept of one member; a device has a handful of interfaces.
const ADDRESSES_MAX: usize = 16;
/// How long a join waits for its belongings to be taken over before it goes on in the background. It takes two round
/// trips and one write.
pub const HAND_OVER_WAIT: Duration = Duration::from_secs(5);

/// Dialable addresses of members.
pub type Addresses = Vec<(NodeId, Vec<SocketAddr>)>;

/// What the store keeps of a mesh that another device is broker of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    roster: Roster,
    /// Where members were last said to be.
    addresses: Addresses,
    /// Whether the broker has yet to take over what this device's own broker knew (F18).
    owing: bool,
}

/// Why a device did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinFailure {
    /// The code is this device's own.
    #[error("this code was made here; use it on the device that shall join")]
    Own,
    /// Other devices are in its mesh.
    #[error("this device shares a mesh with {0} other devices, and only one that stands alone can join another mesh")]
    NotAlone(usize),
    /// The other device did not let it in, or was not reached.
    #[error(transparent)]
    Mesh(#[from] JoinError),
    /// The membership could not be recorded.
    #[error("the other device let this one in, but that could not be recorded here: {0}; run the same command again")]
    Store(#[from] StoreError),
}

/// Handle to the membership of this device.
pub struct Membership {
    node: NodeId,
    store: NodeStore,
    broker: Broker,
    row: Mutex<Option<Row>>,
    rosters: watch::Sender<Arc<Roster>>,
    /// The roster that says who is this device's broker: its own until its belongings were taken over.
    seated: watch::Sender<Arc<Roster>>,
    tenure: watch::Sender<Tenure>,
    /// Joining, being forgotten and taking a roster over happen one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Written to by a join: nobody is let in while it lasts.
    leaving: RwLock<()>,
}

impl Membership {
    /// Takes up what the store says; a new device becomes a mesh of one.
    ///
    /// # Errors
    /// The node's store cannot be read, or the broker's cannot be written.
    pub async fn open(node: NodeId, name: &str, store: NodeStore, broker: Broker) -> Result<Arc<Self>, OpenFailure> {
        broker.rename(node, name).await?;
        let mut row: Option<Row> = store.read(&Key::membership())?;
        if row.as_ref().is_some_and(|row| !row.roster.members.contains_key(&node)) {
            // The device has another identity than the one that was let in: it stands alone. Such a device is a copy, or an
            // older state that was put back, and its journal may lack what ran since.
            let since = Change::set(Key::journal_since(), &clock::now());
            store.durable(vec![Change::remove(Key::membership()), since]).await?;
            row = None;
        }
        let roster = row.as_ref().map_or_else(|| broker.roster(), |row| Arc::new(row.roster.clone()));
        let seated = if row.as_ref().is_some_and(|row| row.owing) { broker.roster() } else { Arc::clone(&roster) };
        Ok(Arc::new(Self {
            node,
            store,
            broker,
            row: Mutex::new(row),
            rosters: watch::Sender::new(roster),
            tenure: watch::Sender::new(tenure(&seated)),
            seated: watch::Sender::new(seated),
            changing: tokio::sync::Mutex::new(()),
            leaving: RwLock::new(()),
        }))
    }

    /// The members, as far as this device knows.
    #[must_use]
    pub fn roster(&self) -> Arc<Roster> {
        self.rosters.borrow().clone()
    }

    /// The same, to be watched.
    #[must_use]
    pub fn rosters(&self) -> watch::Receiver<Arc<Roster>> {
        self.rosters.subscribe()
    }

    /// The roster that says whose commands this device takes; see [`super::Seat`].
    #[must_use]
    pub fn seated(&self) -> watch::Receiver<Arc<Roster>> {
        self.seated.subscribe()
    }

    /// The office that commands are given in.
    #[must_use]
    pub fn tenure(&self) -> watch::Receiver<Tenure> {
        self.tenure.subscribe()
    }

    /// Where members were last said to be.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.row().as_ref().map(|row| row.addresses.clone()).unwrap_or_default()
    }

    /// Whether the broker has yet to take over what this device's own broker knew. Nothing is dispatched meanwhile.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        self.row().as_ref().is_some_and(|row| row.owing)
    }

    fn row(&self) -> std::sync::MutexGuard<'_, Option<Row>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows this device's own broker for as long as it is the one; ends with `stopping`.
    pub async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let mut own = self.broker.rosters();
        loop {
            self.show();
            tokio::select! {
                () = stopping.cancelled() => return,
                changed = own.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Publishes what row and broker say now.
    fn show(&self) {
        let own = self.broker.roster();
        let row = self.row();
        let roster = row.as_ref().map_or_else(|| Arc::clone(&own), |row| Arc::new(row.roster.clone()));
        let seated = if row.as_ref().is_some_and(|row| row.owing) { own } else { Arc::clone(&roster) };
        // Under the lock of the row, so that the later word is the last one shown.
        let put = |sender: &watch::Sender<Arc<Roster>>, word: Arc<Roster>| {
            sender.send_if_modified(|shown| {
                let changed = **shown != *word;
                *shown = word;
                changed
            });
        };
        self.tenure.send_replace(tenure(&seated));
        put(&self.rosters, roster);
        put(&self.seated, seated);
    }

    async fn keep(&self, row: Row) -> Result<(), StoreError> {
        self.store.durable(vec![Change::set(Key::membership(), &row)]).await?;
        *self.row() = Some(row);
        self.show();
        Ok(())
    }

    /// Joins the mesh of `code`. On `Ok` this device is a member, durably; what its own broker knew is handed over next.
    /// The same code again gives the same answer (F19).
    ///
    /// # Errors
    /// [`JoinFailure`]; this device is where it was.
    pub async fn join(
        &self,
        identity: &Identity,
        name: &str,
        build: &str,
        code: &InviteCode,
    ) -> Result<Arc<Roster>, JoinFailure> {
        let _leaving = self.leaving.write().await;
        let _one = self.changing.lock().await;
        if code.inviter == self.node {
            return Err(JoinFailure::Own);
        }
        let roster = self.roster();
        if roster.mesh != code.mesh && roster.members.len() > 1 {
            return Err(JoinFailure::NotAlone(roster.members.len() - 1));
        }
        let welcome = chappie_mesh::join(identity, name, build, code).await?;
        let owing = roster.mesh != welcome.roster.mesh || self.is_owing();
        self.keep(Row { roster: welcome.roster, addresses: bounded(welcome.addresses), owing }).await?;
        Ok(self.roster())
    }

    /// Holds this device where it is while it lets another one in: two devices that join each other at one time would each
    /// leave the mesh that the other one enters. `None`: it is leaving for another mesh just now.
    pub fn stay(&self) -> Option<Stay<'_>> {
        let held = self.leaving.try_read().ok()?;
        (!self.is_owing()).then_some(Stay(held))
    }

    /// The broker's word on who is a member and where. An older one, or one of another mesh, changes nothing.
    ///
    /// # Errors
    /// The store's; the word is then shown all the same and comes again with the next connection.
    pub async fn adopt(&self, roster: Roster, addresses: Addresses) -> Result<(), StoreError> {
        let _one = self.changing.lock().await;
        let (next, newer) = {
            let row = self.row();
            let Some(row) = row.as_ref() else { return Ok(()) };
            let newer = roster.supersedes(&row.roster) && roster.members.contains_key(&self.node);
            let roster = if newer { roster } else { row.roster.clone() };
            let next = Row { roster, addresses: bounded(addresses), owing: row.owing };
            if next == *row {
                return Ok(());
            }
            (next, newer)
        };
        if newer {
            return self.keep(next).await;
        }
        // Addresses come again with every connection: they need not wait for the disk.
        self.store.lazy(vec![Change::set(Key::membership(), &next)]);
        *self.row() = Some(next);
        Ok(())
    }

    /// The broker has what this device's own broker knew: that is archived, and the mesh's broker is this device's.
    ///
    /// # Errors
    /// The stores'; it is still owing then, and handing over nothing more does no harm.
    pub async fn handed_over(&self, name: &str) -> Result<(), OpenFailure> {
        let _one = self.changing.lock().await;
        let Some(row) = self.row().clone() else { return Ok(()) };
        let backup = self.broker.start_over(clock::random::<16>().into(), name).await?;
        tracing::info!(backup = %backup.display(), "what this device's own broker knew is with the mesh's broker now");
        self.keep(Row { owing: false, ..row }).await?;
        Ok(())
    }

    /// The broker forgot this device: it is a mesh of one again (F21). False: `by` is not that broker, or this was heard
    /// before.
    ///
    /// # Errors
    /// The store's; the broker says it again at the next connection.
    pub async fn forgotten(&self, by: NodeId) -> Result<bool, StoreError> {
        let _one = self.changing.lock().await;
        if self.row().as_ref().is_none_or(|row| row.roster.broker != by) {
            return Ok(false);
        }
        self.store.durable(vec![Change::remove(Key::membership())]).await?;
        *self.row() = None;
        self.show();
        Ok(true)
    }
}

/// While it lasts, this device joins no other mesh.
pub struct Stay<'a>(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, ()>);

/// Why the membership could not be taken up or given over.
#[derive(Debug, thiserror::Error)]
pub enum OpenFailure {
    /// The node's store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker's store.
    #[error("this device's own mesh could not be recorded: {0}")]
    Broker(#[from] ProposeError),
}

/// The broker is fixed, so there is one term in each epoch.
fn tenure(roster: &Roster) -> Tenure {
    Tenure { epoch: roster.epoch, term: 1 }
}

fn bounded(addresses: Addresses) -> Addresses {
    addresses
        .into_iter()
        .map(|(node, mut list)| {
            list.truncate(ADDRESSES_MAX);
            (node, list)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Settings, testing};

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    async fn open(home: &std::path::Path) -> Arc<Membership> {
        let store = NodeStore::open(home).unwrap();
        let broker = testing::alone(home, node(1), Settings::default()).await.unwrap();
        Membership::open(node(1), "one", store, broker).await.unwrap()
    }

    async fn close(membership: Arc<Membership>) {
        membership.broker.close().await;
        membership.store.stop().await.unwrap();
    }

    /// The roster of a mesh with `broker`, of which the device is a member.
    fn joined(broker: u8, version: u64) -> Roster {
        let mut roster = Roster::alone([7; 16].into(), node(broker), "hub".into());
        roster.members.insert(node(1), chappie_mesh::Member { name: "one".into() });
        Roster { version, ..roster }
    }

    fn row(owing: bool) -> Row {
        Row { roster: joined(2, 5), addresses: Vec::new(), owing }
    }

    #[tokio::test]
    async fn a_new_device_is_a_mesh_of_one_and_stays_the_same_over_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        let roster = membership.roster();
        assert_eq!((roster.members.len(), roster.broker), (1, node(1)));
        close(membership).await;
        assert_eq!(open(home.path()).await.roster().mesh, roster.mesh);
    }

    #[tokio::test]
    async fn f18_the_own_broker_keeps_the_seat_until_its_belongings_are_handed_over() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        let alone = membership.roster();
        membership.keep(row(true)).await.unwrap();
        assert_eq!(membership.roster().broker, node(2));
        assert_eq!(membership.seated().borrow().broker, node(1));
        close(membership).await;
        let membership = open(home.path()).await;
        assert!(membership.is_owing(), "a crash in between does not lose what is owed");
        assert_eq!(membership.seated().borrow().broker, node(1));
        membership.handed_over("one").await.unwrap();
        assert!(!membership.is_owing());
        assert_eq!(membership.seated().borrow().broker, node(2));
        assert_ne!(membership.broker.roster().mesh, alone.mesh, "its own broker starts over");
    }

    #[tokio::test]
    async fn a_device_that_is_leaving_for_another_mesh_lets_nobody_in() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        assert!(membership.stay().is_some());
        let (one, two) = (membership.stay(), membership.stay());
        assert!(one.is_some() && two.is_some(), "several may come in at one time");
        drop((one, two));
        let joining = membership.leaving.write().await;
        assert!(membership.stay().is_none());
        drop(joining);
        membership.keep(row(true)).await.unwrap();
        assert!(membership.stay().is_none());
        membership.handed_over("one").await.unwrap();
        assert!(membership.stay().is_some(), "as a member it passes invites on to its broker");
    }

    #[tokio::test]
    async fn only_a_later_word_of_the_same_mesh_with_this_device_in_it_is_adopted() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.adopt(joined(2, 9), Vec::new()).await.unwrap();
        assert_eq!(membership.roster().broker, node(1), "nobody is followed without having joined");
        membership.keep(row(false)).await.unwrap();
        let foreign = Roster { mesh: [8; 16].into(), ..joined(2, 9) };
        let mut without = joined(2, 9);
        without.members.remove(&node(1));
        for word in [joined(2, 4), foreign, without] {
            membership.adopt(word, Vec::new()).await.unwrap();
            assert_eq!(membership.roster().version, 5);
        }
        membership.adopt(joined(2, 6), Vec::new()).await.unwrap();
        assert_eq!(membership.roster().version, 6);
    }

    #[tokio::test]
    async fn f21_only_the_broker_can_forget_a_device_and_it_is_heard_once() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.keep(row(false)).await.unwrap();
        assert!(!membership.forgotten(node(3)).await.unwrap());
        assert_eq!(membership.roster().broker, node(2));
        assert!(membership.forgotten(node(2)).await.unwrap());
        assert!(!membership.forgotten(node(2)).await.unwrap());
        assert_eq!((membership.roster().broker, membership.roster().members.len()), (node(1), 1));
        close(membership).await;
        assert_eq!(open(home.path()).await.roster().broker, node(1));
    }

    #[tokio::test]
    async fn a_device_with_another_identity_than_the_one_that_was_let_in_stands_alone() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.keep(row(false)).await.unwrap();
        close(membership).await;
        let store = NodeStore::open(home.path()).unwrap();
        let broker = testing::alone(home.path(), node(4), Settings::default()).await.unwrap();
        let membership = Membership::open(node(4), "one", store, broker).await.unwrap();
        let since: Option<crate::ids::Millis> = membership.store.read(&Key::journal_since()).unwrap();
        assert!(since.is_some(), "its journal is not trusted about what came before");
        assert_eq!((membership.roster().broker, membership.roster().members.len()), (node(4), 1));
    }
}
