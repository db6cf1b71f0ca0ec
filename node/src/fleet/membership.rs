//! [`Membership`]: which mesh this device belongs to. Who is in it is replicated ([`Broker::roster`]); a copy stands in the
//! node's store, for the time before this device's log has said anything, and for one that lost its log. Leaving one mesh
//! for another happens here and nowhere else (failure rules F18, F21).

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chappie_mesh::{
    EarlierRoster, Identity, InviteCode, JoinError, NodeId, Roster, Sockets,
    consensus::{Epoch, Group},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio_util::sync::CancellationToken;

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

/// What the store keeps of a mesh that has other devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    roster: Roster,
    /// Where members were last said to be.
    addresses: Addresses,
    /// Whether the mesh's broker has yet to take over what this device's own broker knew (F18).
    owing: bool,
}

/// The row of the time before there were elections.
#[derive(Deserialize)]
struct EarlierRow {
    roster: EarlierRoster,
    addresses: Addresses,
    owing: bool,
}

impl From<EarlierRow> for Row {
    fn from(earlier: EarlierRow) -> Self {
        let EarlierRow { roster, addresses, owing } = earlier;
        Self { roster: roster.into(), addresses, owing }
    }
}

/// Whose log a roster is kept in.
#[must_use]
pub fn group_of(roster: &Roster) -> Group {
    Group { mesh: roster.mesh, epoch: Epoch { count: roster.epoch, id: roster.epoch_id } }
}

/// What the store remembers of this device's mesh, read before its log is opened.
#[derive(Debug, Default)]
pub struct Remembered(Option<Row>);

impl Remembered {
    /// Reads it, in today's form or the one before.
    ///
    /// # Errors
    /// The store's.
    pub async fn read(store: &NodeStore, node: &NodeId) -> Result<Self, StoreError> {
        let mut row: Option<Row> = store.read(&Key::mesh())?;
        if row.is_none() {
            row = store.read::<EarlierRow>(&Key::membership())?.map(Row::from);
            if let Some(row) = &row {
                store.durable(vec![Change::set(Key::mesh(), row), Change::remove(Key::membership())]).await?;
            }
        }
        if row.as_ref().is_some_and(|row| !row.roster.members.contains_key(node)) {
            // The device has another identity than the one that was let in: it stands alone. Such a device is a copy, or an
            // older state that was put back, and its journal may lack what ran since.
            let since = Change::set(Key::journal_since(), &clock::now());
            store.durable(vec![Change::remove(Key::mesh()), since]).await?;
            row = None;
        }
        Ok(Self(row))
    }

    /// The group that a lost log belongs to; `None`: this device stands alone, or its own log is still its own mesh's.
    #[must_use]
    pub fn member_of(&self) -> Option<Group> {
        self.0.as_ref().filter(|row| !row.owing).map(|row| group_of(&row.roster))
    }
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
    name: String,
    store: NodeStore,
    broker: Broker,
    row: Mutex<Option<Row>>,
    rosters: watch::Sender<Arc<Roster>>,
    /// Whether the mesh's broker has yet to take over what this device's own broker knew.
    owing: watch::Sender<bool>,
    /// Joining, being forgotten and taking a roster over happen one after the other.
    changing: tokio::sync::Mutex<()>,
    /// Written to by a join: nobody is let in while it lasts.
    leaving: RwLock<()>,
}

impl Membership {
    /// Takes up what the store and the log say.
    ///
    /// # Errors
    /// The node's store cannot be written.
    pub async fn open(
        node: NodeId,
        name: &str,
        store: NodeStore,
        broker: Broker,
        Remembered(mut row): Remembered,
    ) -> Result<Arc<Self>, StoreError> {
        // The log was changed over already, and the end of it was not written down.
        if let Some(row) = row.as_mut().filter(|row| row.owing && broker.group() == group_of(&row.roster)) {
            row.owing = false;
            store.durable(vec![Change::set(Key::mesh(), row)]).await?;
        }
        let this = Self {
            node,
            name: name.to_owned(),
            store,
            rosters: watch::Sender::new(broker.roster()),
            broker,
            owing: watch::Sender::new(row.as_ref().is_some_and(|row| row.owing)),
            row: Mutex::new(row),
            changing: tokio::sync::Mutex::new(()),
            leaving: RwLock::new(()),
        };
        this.show();
        Ok(Arc::new(this))
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

    /// Where members were last said to be.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.row().as_ref().map(|row| row.addresses.clone()).unwrap_or_default()
    }

    /// Whether the broker has yet to take over what this device's own broker knew. Nothing is dispatched meanwhile.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        *self.owing.borrow()
    }

    /// The same, to be watched.
    #[must_use]
    pub fn owing(&self) -> watch::Receiver<bool> {
        self.owing.subscribe()
    }

    fn row(&self) -> std::sync::MutexGuard<'_, Option<Row>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the log for as long as the node runs: keeps a copy of what it says of members, and notices when it says
    /// that this device was forgotten. Ends with `stopping`.
    pub async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let mut own = self.broker.rosters();
        loop {
            self.show();
            self.copy().await;
            tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                changed = own.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Publishes what row and log say now.
    fn show(&self) {
        let own = self.broker.roster();
        let row = self.row();
        let word = match row.as_ref() {
            // While it is owing, the log is that of the mesh that is left.
            Some(row) if row.owing || own.mesh != row.roster.mesh || row.roster.supersedes(&own) => {
                Arc::new(row.roster.clone())
            }
            _ => own,
        };
        // Under the lock of the row, so that the later word is the last one shown.
        self.owing.send_if_modified(|shown| {
            let owing = row.as_ref().is_some_and(|row| row.owing);
            std::mem::replace(shown, owing) != owing
        });
        self.rosters.send_if_modified(|shown| {
            let changed = **shown != *word;
            *shown = word;
            changed
        });
    }

    /// Takes what the log says of members into the store's copy.
    async fn copy(&self) {
        let _one = self.changing.lock().await;
        if self.is_owing() {
            return;
        }
        let own = self.broker.roster();
        // A log that is still being caught up with tells of the time before this device came in, and of its absence before
        // that: it counts from where it says what is known here already.
        let known = self.row().as_ref().map(|row| row.roster.clone());
        if own.members.is_empty() || known.is_some_and(|known| known.mesh != own.mesh || known.supersedes(&own)) {
            return;
        }
        if !own.members.contains_key(&self.node) {
            tracing::warn!("this device was forgotten, as its mesh's log says, and is on its own now");
            if let Err(error) = self.stand_alone().await {
                tracing::error!(%error, "that this device was forgotten could not be recorded");
            }
            return;
        }
        let next = {
            let row = self.row();
            let addresses = row.as_ref().map(|row| row.addresses.clone()).unwrap_or_default();
            let next = (own.members.len() > 1).then(|| Row { roster: (*own).clone(), addresses, owing: false });
            if *row == next {
                return;
            }
            next
        };
        // The log has it: what a crash loses is copied again.
        self.store.lazy(vec![match &next {
            Some(next) => Change::set(Key::mesh(), next),
            None => Change::remove(Key::mesh()),
        }]);
        *self.row() = next;
        self.show();
    }

    async fn keep(&self, row: Row) -> Result<(), StoreError> {
        self.store.durable(vec![Change::set(Key::mesh(), &row)]).await?;
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
        sockets: Option<&dyn Sockets>,
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
        let welcome = chappie_mesh::join_over(identity, name, build, code, sockets).await?;
        self.welcomed(welcome.roster, bounded(welcome.addresses)).await?;
        Ok(self.roster())
    }

    /// Keeps what an inviter said. It may know less than this device, when this one was a member before.
    async fn welcomed(&self, roster: Roster, addresses: Addresses) -> Result<(), StoreError> {
        let known = self.row().as_ref().map(|row| row.roster.clone());
        let roster = known.filter(|known| known.mesh == roster.mesh && !roster.supersedes(known)).unwrap_or(roster);
        let owing = self.broker.group().mesh != roster.mesh;
        self.keep(Row { roster, addresses, owing }).await
    }

    /// Holds this device where it is while it lets another one in: two devices that join each other at one time would each
    /// leave the mesh that the other one enters. `None`: it is leaving for another mesh just now.
    pub fn stay(&self) -> Option<Stay<'_>> {
        let held = self.leaving.try_read().ok()?;
        (!self.is_owing()).then_some(Stay(held))
    }

    /// A member's word on who is a member and where. An older one, or one of another mesh, changes nothing.
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
        self.store.lazy(vec![Change::set(Key::mesh(), &next)]);
        *self.row() = Some(next);
        Ok(())
    }

    /// The broker has what this device's own broker knew: that is archived, and this device follows the mesh's log.
    ///
    /// # Errors
    /// The stores'; it is still owing then, and handing over nothing more does no harm.
    pub async fn handed_over(&self) -> Result<(), OpenFailure> {
        let _one = self.changing.lock().await;
        let Some(row) = self.row().clone() else { return Ok(()) };
        let backup = self.broker.leave_for(group_of(&row.roster)).await?;
        tracing::info!(backup = %backup.display(), "what this device's own broker knew is with the mesh's broker now");
        self.keep(Row { owing: false, ..row }).await?;
        Ok(())
    }

    /// The broker, or another voter, says that this device was forgotten: it is a mesh of one again (F21). False: `by` is
    /// none of them, or this was heard before.
    ///
    /// # Errors
    /// The stores'; it is said again at the next connection.
    pub async fn forgotten(&self, by: NodeId) -> Result<bool, OpenFailure> {
        let _one = self.changing.lock().await;
        let entitled = |roster: &Roster| roster.broker == by || roster.voters.contains(&by);
        if self.row().as_ref().is_none_or(|row| !entitled(&row.roster)) {
            return Ok(false);
        }
        self.stand_alone().await?;
        Ok(true)
    }

    /// Leaves the mesh behind. In this order: a start in between finds the old log and hears the same again.
    async fn stand_alone(&self) -> Result<(), OpenFailure> {
        self.store.durable(vec![Change::remove(Key::mesh())]).await?;
        let owing = self.row().take().is_some_and(|row| row.owing);
        // A device that was still owing has its own mesh's log.
        if !owing {
            self.broker.alone(clock::random::<16>().into(), &self.name).await?;
        }
        self.show();
        Ok(())
    }
}

/// While it lasts, this device joins no other mesh.
pub struct Stay<'a>(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, ()>);

/// Why the membership could not be given over.
#[derive(Debug, thiserror::Error)]
pub enum OpenFailure {
    /// The node's store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker's store.
    #[error("this device's own mesh could not be recorded: {0}")]
    Broker(#[from] ProposeError),
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
    use chappie_mesh::Member;

    use super::*;
    use crate::{broker::testing, storage::medium::Medium};

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    async fn open_as(home: &std::path::Path, own: NodeId) -> Arc<Membership> {
        let store = NodeStore::open(home).unwrap();
        let remembered = Remembered::read(&store, &own).await.unwrap();
        let place = crate::broker::Place {
            member_of: remembered.member_of(),
            ..testing::place(Medium::Folder(home.to_owned()), own)
        };
        let broker = Broker::open(place, crate::broker::Settings::default()).await.unwrap();
        Membership::open(own, "one", store, broker, remembered).await.unwrap()
    }

    async fn open(home: &std::path::Path) -> Arc<Membership> {
        open_as(home, node(1)).await
    }

    async fn close(membership: Arc<Membership>) {
        membership.broker.close().await;
        membership.store.stop().await.unwrap();
    }

    /// The roster of a mesh with `broker`, of which the device is a member.
    fn joined(broker: u8, version: u64) -> Roster {
        let mut roster = Roster::alone([7; 16].into(), node(broker), "hub".into());
        roster.members.insert(node(1), Member { name: "one".into() });
        Roster { version, epoch_id: [5; 16], ..roster }
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
    async fn f18_the_own_log_is_kept_until_its_belongings_are_handed_over() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        let alone = membership.broker.group();
        membership.keep(row(true)).await.unwrap();
        assert_eq!(membership.roster().broker, node(2));
        assert_eq!(membership.broker.group(), alone);
        close(membership).await;
        let membership = open(home.path()).await;
        assert!(membership.is_owing(), "a crash in between does not lose what is owed");
        assert_eq!(membership.broker.group(), alone);
        membership.handed_over().await.unwrap();
        assert!(!membership.is_owing());
        assert_eq!(membership.broker.group(), group_of(&row(false).roster), "it waits for that mesh's broker");
        assert_eq!(membership.roster().broker, node(2), "whom it still knows by the copy");
    }

    #[tokio::test]
    async fn f18_a_crash_after_the_log_was_changed_over_owes_nothing_any_more() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.keep(row(true)).await.unwrap();
        membership.broker.leave_for(group_of(&row(true).roster)).await.unwrap();
        close(membership).await;
        let membership = open(home.path()).await;
        assert!(!membership.is_owing());
        assert_eq!(membership.broker.group(), group_of(&row(false).roster));
    }

    #[tokio::test]
    async fn f15_a_member_whose_log_is_lost_comes_back_as_an_empty_member_of_its_mesh() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.keep(row(false)).await.unwrap();
        close(membership).await;
        std::fs::remove_file(home.path().join("consensus.redb")).unwrap();
        let membership = open(home.path()).await;
        assert_eq!(membership.broker.group(), group_of(&row(false).roster));
        assert!(membership.broker.roster().members.is_empty(), "it has heard nothing yet");
        assert_eq!(membership.roster().members.len(), 2);
    }

    #[tokio::test]
    async fn a_device_that_is_leaving_for_another_mesh_lets_nobody_in() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        let (one, two) = (membership.stay(), membership.stay());
        assert!(one.is_some() && two.is_some(), "several may come in at one time");
        drop((one, two));
        let joining = membership.leaving.write().await;
        assert!(membership.stay().is_none());
        drop(joining);
        membership.keep(row(true)).await.unwrap();
        assert!(membership.stay().is_none());
        membership.handed_over().await.unwrap();
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
    async fn f20_a_member_that_is_let_in_again_owes_nothing_and_keeps_the_later_word() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.welcomed(joined(2, 5), Vec::new()).await.unwrap();
        assert!(membership.is_owing(), "what its own mesh knows is handed over");
        membership.handed_over().await.unwrap();
        let later = joined(3, 9);
        membership.welcomed(later.clone(), Vec::new()).await.unwrap();
        assert_eq!((&*membership.roster(), membership.is_owing()), (&later, false), "nobody that it knew remains");
        membership.welcomed(joined(2, 5), Vec::new()).await.unwrap();
        assert_eq!(*membership.roster(), later, "a device that was forgotten and does not know it");
    }

    #[tokio::test]
    async fn f21_only_one_who_may_be_the_broker_can_say_that_a_device_is_forgotten_and_it_is_heard_once() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.keep(Row { owing: true, ..row(true) }).await.unwrap();
        membership.handed_over().await.unwrap();
        assert!(!membership.forgotten(node(3)).await.unwrap());
        assert_eq!(membership.roster().broker, node(2));
        assert!(membership.forgotten(node(2)).await.unwrap());
        assert!(!membership.forgotten(node(2)).await.unwrap());
        assert_eq!((membership.roster().broker, membership.roster().members.len()), (node(1), 1));
        close(membership).await;
        assert_eq!(open(home.path()).await.roster().broker, node(1));
    }

    #[tokio::test]
    async fn a_row_of_the_time_before_elections_is_read_and_replaced() {
        let home = tempfile::tempdir().unwrap();
        let store = NodeStore::open(home.path()).unwrap();
        let mut earlier = serde_json::to_value(row(false)).unwrap();
        for later in ["voters", "epoch_id"] {
            assert!(earlier["roster"].as_object_mut().unwrap().remove(later).is_some());
        }
        store.durable(vec![Change::set(Key::membership(), &earlier)]).await.unwrap();
        let Remembered(row) = Remembered::read(&store, &node(1)).await.unwrap();
        let row = row.unwrap();
        assert_eq!((row.roster.voters, row.roster.epoch_id, row.owing), ([node(2)].into(), [0; 16], false));
        assert!(store.read::<Row>(&Key::mesh()).unwrap().is_some());
        assert!(store.read::<u8>(&Key::membership()).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_device_with_another_identity_than_the_one_that_was_let_in_stands_alone() {
        let home = tempfile::tempdir().unwrap();
        let membership = open(home.path()).await;
        membership.keep(row(false)).await.unwrap();
        close(membership).await;
        let membership = open_as(home.path(), node(4)).await;
        let since: Option<crate::ids::Millis> = membership.store.read(&Key::journal_since()).unwrap();
        assert!(since.is_some(), "its journal is not trusted about what came before");
        assert_eq!((membership.roster().broker, membership.roster().members.len()), (node(4), 1));
    }
}
