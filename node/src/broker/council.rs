//! The council: the one task that owns this device's store and its member of the consensus engine, and so which group the
//! device belongs to. It starts the member, again after its store failed (failure rule F25), takes and gives up the office,
//! and moves the device to another group (F16, F18, F21). Not a place for decisions: those are in [`super::begin`],
//! [`super::follow`] and [`super::prefer`].

mod moving;
mod opening;
mod reopen;
mod room;
mod sounding;

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chappie_mesh::{
    Incarnation, MeshId, NodeId,
    consensus::{Carrier, Consensus, Group, MemberId, Pace, Persisted, Settings as MemberSettings, Standing, Voting},
    runtime::{blocking, spawn},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use super::{
    errors::{OpenError, ProposeError},
    follow::Start,
    limits::{SILENT_MS, SOUND_MAX, SPLIT_HEARD_MS},
    machine::Replica,
    prefer::PREFER_EVERY_MS,
    shared::{Clocks, Shared},
    writer::{Acting, Seat},
};
use crate::storage::{
    log::{ConsensusStore, Head, Opened},
    medium::Medium,
};
use opening::{Taken, all_of, damaged, take, unusable};
use reopen::Reopen;
use room::Room;
use sounding::sounded;

/// Where a broker stands, and whose it is.
#[derive(Clone)]
pub struct Place {
    /// Where its store is.
    pub medium: Medium,
    /// This device.
    pub node: NodeId,
    /// What its owner calls it; for a mesh that is founded.
    pub name: String,
    /// This start of the device, which the node's store does not have yet.
    pub run: Incarnation,
    /// Its owner's word on whether it votes.
    pub voting: Voting,
    /// The way to the other members.
    pub carrier: Arc<dyn Carrier>,
    /// How patient members are.
    pub pace: Pace,
    /// Whether the other members are asked of which epoch they are before this device stands for election: they can be, once
    /// they are looked after.
    pub sounds: bool,
    /// The group of the bigger mesh that this device belongs to, as its own store says: a new store becomes an empty member of
    /// it. `None`: a new store becomes a mesh of one.
    pub member_of: Option<Group>,
}

/// Another epoch of this mesh in which somebody acts as the broker too, or may (failure rule F16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// A device there.
    pub node: NodeId,
    /// Its group.
    pub group: Group,
}

/// A change of the group.
pub(super) enum Change {
    /// Become a mesh of one with nothing in it, unless this is that mesh already.
    Alone { mesh: MeshId, name: String, archive: &'static str },
    /// Become a member of this group that has heard nothing yet.
    Leave { group: Group, archive: &'static str },
    /// Become a new epoch of one with all this device has.
    Recover,
}

/// What the council is asked for.
pub(super) enum Control {
    /// A copy of the store; the word says what for, and stands in the copy's name.
    Archive(&'static str, oneshot::Sender<io::Result<PathBuf>>),
    Change(Change, oneshot::Sender<Result<PathBuf, ProposeError>>),
    /// Follow a later epoch that a device of it told of, if nobody acts in this one.
    Follow(Group, oneshot::Sender<()>),
    /// The node's store has this start, too.
    Settle(oneshot::Sender<io::Result<()>>),
    /// Look after the members from now on.
    Tend,
    Close(oneshot::Sender<()>),
}

/// What handles read of the council without asking it.
#[derive(Default)]
pub(super) struct Front {
    current: Mutex<Option<(Group, Consensus)>>,
    split: Mutex<Option<(Split, Instant)>>,
    /// Since when nobody acts in this device's group; `None` while somebody does.
    silent: Mutex<Option<Instant>>,
}

impl Front {
    /// The member that runs now.
    pub(super) fn current(&self) -> Option<(Group, Consensus)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, current: Option<(Group, Consensus)>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// Another epoch that was heard of lately.
    pub(super) fn split(&self) -> Option<Split> {
        let split = *self.split.lock().unwrap_or_else(PoisonError::into_inner);
        split.filter(|(_, heard)| heard.elapsed() < Duration::from_millis(SPLIT_HEARD_MS)).map(|(split, _)| split)
    }

    /// Whether somebody acts in this device's group, or did a moment ago.
    pub(super) fn acts(&self) -> bool {
        let silent = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.is_none_or(|since| since.elapsed() < Duration::from_millis(SILENT_MS))
    }

    /// Notes whether somebody acts now.
    fn stands(&self, acts: bool) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        *silent = if acts { None } else { Some(silent.unwrap_or_else(Instant::now)) };
    }

    pub(super) fn heard_of(&self, split: Option<Split>) {
        let now = Instant::now();
        *self.split.lock().unwrap_or_else(PoisonError::into_inner) = split.map(|split| (split, now));
    }
}

/// The member that runs.
struct Running {
    /// Since when.
    since: Instant,
    consensus: Consensus,
    standing: watch::Receiver<Arc<Standing>>,
}

/// A store that failed, and when it is tried again.
struct Down {
    retry: Instant,
}

/// The task's own state.
pub(super) struct Council {
    place: Place,
    shared: Arc<Shared>,
    store: ConsensusStore,
    /// Whose log the store has.
    head: Head,
    running: Result<Running, Down>,
    reopen: Reopen,
    controls: mpsc::Receiver<Control>,
    front: Arc<Front>,
    seat: watch::Sender<Seat>,
    tending: bool,
    /// Whether it stands for election.
    stands: bool,
    /// Who is asked before it does.
    others: Vec<NodeId>,
    /// They are being asked of which epoch they are.
    sounding: Option<oneshot::Receiver<Start>>,
    next_look: Instant,
    room: Room,
    /// The voters' clocks are being asked.
    clocks: Option<Clocked>,
}

/// What was opened.
pub(super) struct Opening {
    pub(super) shared: Arc<Shared>,
    pub(super) front: Arc<Front>,
    pub(super) seat: watch::Receiver<Seat>,
    /// Whether it stands for election already.
    pub(super) stands: bool,
    pub(super) council: Council,
}

/// Opens the store and starts its member.
pub(super) async fn open(
    place: Place,
    controls: mpsc::Receiver<Control>,
    clocks: Clocks,
) -> Result<Opening, OpenError> {
    let now = clocks().wall;
    let asked = place.clone();
    let taken = blocking(move || take(&asked, now)).await;
    let Taken { store, head, persisted, state } =
        taken.map_err(|cause| unusable(&place, &io::Error::other(cause))).and_then(|taken| taken)?;
    let standing = Standing::before(head.group, MemberId::of(&place.node, &head.store));
    let shared = Arc::new(Shared::new(standing, state.at, clocks));
    let front = Arc::new(Front::default());
    // As far as is known before its member has started.
    let alone = state.membership.is_some();
    let members = state.membership.iter().flat_map(|membership| membership.members.keys().copied());
    let others: Vec<NodeId> = members.filter(|member| *member != place.node).take(SOUND_MAX).collect();
    let stands = !place.sounds || others.is_empty();
    let (seat, receiver) = watch::channel(Seat { acting: None, alone });
    let mut council = Council {
        place,
        shared: Arc::clone(&shared),
        store,
        head,
        running: Err(Down { retry: Instant::now() }),
        reopen: Reopen::default(),
        controls,
        front: Arc::clone(&front),
        seat,
        tending: false,
        stands,
        others,
        sounding: None,
        next_look: Instant::now() + Duration::from_millis(PREFER_EVERY_MS),
        room: Room::new(),
        clocks: None,
    };
    if let Err(cause) = council.start(persisted).await {
        return Err(damaged(&council.place, cause));
    }
    Ok(Opening { shared, front, seat: receiver, stands, council })
}

impl Council {
    /// Starts the member that the store has.
    async fn start(&mut self, persisted: Persisted) -> Result<(), String> {
        let generation = self.shared.begin();
        let machine = Box::new(Replica::new(Arc::clone(&self.shared), generation));
        let Place { node, voting, pace, .. } = self.place;
        let Head { group, store, .. } = self.head;
        let settings = MemberSettings { node, store, group, pace, voting, stands: self.stands };
        let carrier = Arc::clone(&self.place.carrier);
        let consensus = Consensus::start(settings, persisted, Box::new(self.store.clone()), machine, carrier)
            .await
            .map_err(|error| error.to_string())?;
        let standing = consensus.standing();
        if self.tending {
            consensus.tend(self.shared.tended.subscribe());
        }
        self.front.show(Some((self.head.group, consensus.clone())));
        self.running = Ok(Running { since: Instant::now(), consensus, standing });
        self.stand();
        Ok(())
    }

    /// Works until it is closed or every handle is gone.
    pub(super) async fn run(mut self) {
        let mut broken = self.shared.broken.subscribe();
        loop {
            let (down, mut standing) = match &self.running {
                Ok(running) => (None, Some(running.standing.clone())),
                Err(down) => (Some(down.retry), None),
            };
            tokio::select! {
                biased;
                control = self.controls.recv() => match control {
                    None => return self.end().await,
                    Some(Control::Close(done)) => {
                        self.end().await;
                        let _ = done.send(());
                        return;
                    }
                    Some(control) => self.obey(control).await,
                },
                changed = changed(&mut standing) => match changed {
                    Some(receiver) => {
                        if let Ok(running) = &mut self.running {
                            running.standing = receiver;
                        }
                        self.look().await;
                    }
                    None => self.fail("the broker's engine has ended".into()).await,
                },
                Ok(()) = broken.changed() => {
                    let cause = broken.borrow_and_update().clone();
                    if let Some(cause) = cause {
                        self.fail(cause).await;
                    }
                },
                clocks = asked(&mut self.clocks) => {
                    self.clocks = None;
                    self.shared.set_clock(&clocks);
                }
                start = sounded(&mut self.sounding) => {
                    self.sounding = None;
                    self.begin_with(start).await;
                }
                () = due(down) => self.restart().await,
                () = sleep_until(self.next_look) => self.prefer(),
                () = sleep_until(self.room.next) => self.look_for_room().await,
            }
        }
    }

    async fn obey(&mut self, control: Control) {
        match control {
            Control::Archive(what_for, done) => {
                let _ = done.send(self.archive(what_for).await);
            }
            Control::Change(change, done) => {
                let _ = done.send(self.change(change).await);
            }
            Control::Follow(theirs, done) => {
                self.follow(theirs).await;
                let _ = done.send(());
            }
            Control::Settle(done) => {
                let store = self.store.clone();
                let settled = blocking(move || store.settle_run()).await.map_err(io::Error::other).flatten();
                let _ = done.send(settled);
            }
            Control::Tend => {
                if let Ok(running) = &self.running
                    && !self.tending
                {
                    running.consensus.tend(self.shared.tended.subscribe());
                }
                self.tending = true;
                self.sound();
            }
            Control::Close(done) => drop(done),
        }
    }

    /// Shows how the group stands, and takes or gives up the office.
    fn stand(&mut self) {
        let Ok(running) = &mut self.running else { return };
        let standing = Arc::clone(&running.standing.borrow_and_update());
        // At its very start the member does not say who votes.
        let alone = if standing.voters.is_empty() {
            self.seat.borrow().alone
        } else {
            standing.voters.len() == 1 && standing.voters.contains(&self.place.node)
        };
        let before = self.shared.standing.send_replace(Arc::clone(&standing));
        // A leader that no quorum answers does not act, whatever it believes of itself.
        let acts = standing.office.is_some() || standing.leader.is_some_and(|leader| leader != self.place.node);
        self.front.stands(acts);
        if (&before.group, before.leader, &before.voters) != (&standing.group, standing.leader, &standing.voters) {
            self.shared.publish();
        }
        let held = self.seat.borrow().acting.as_ref().map(|acting| acting.office);
        if standing.office.is_some() || (!alone && standing.trouble.is_none()) {
            self.shared.memory().trouble = None;
        }
        if held != standing.office || self.seat.borrow().alone != alone {
            if held != standing.office && standing.office.is_some() {
                self.shared.take_office(alone);
                let asked = running.consensus.clone();
                self.clocks = (!alone).then(|| {
                    let (say, said) = oneshot::channel();
                    spawn(async move { say.send(asked.clocks().await) });
                    said
                });
            }
            let consensus = &running.consensus;
            let acting = standing.office.map(|office| Acting { consensus: consensus.clone(), office });
            self.seat.send_replace(Seat { acting, alone });
            self.shared.wake();
        }
    }

    async fn look(&mut self) {
        self.stand();
        let trouble = self.shared.standing.borrow().trouble.clone();
        if let Some(cause) = trouble {
            self.fail(cause).await;
        }
    }

    /// The store or the engine failed: this device takes part no more until it was opened again.
    async fn fail(&mut self, cause: String) {
        tracing::warn!(cause, "the broker's store failed; it is opened again");
        self.shared.memory().trouble = Some(cause.clone());
        let ran = self.running.as_ref().map_or(Duration::ZERO, |running| running.since.elapsed());
        self.stop().await;
        self.show_down(Some(cause));
        self.running = Err(Down { retry: Instant::now() + self.reopen.failed(ran) });
    }

    /// Ends the member.
    async fn stop(&mut self) {
        self.front.show(None);
        let alone = self.seat.borrow().alone;
        self.seat.send_replace(Seat { acting: None, alone });
        self.clocks = None;
        if let Ok(running) = &self.running {
            running.consensus.stop().await;
        }
        self.running = Err(Down { retry: Instant::now() });
    }

    fn show_down(&self, trouble: Option<String>) {
        self.shared.standing.send_modify(|standing| {
            let group = self.head.group;
            let own = MemberId::of(&self.place.node, &self.head.store);
            *standing = Arc::new(Standing { group, own, leader: None, office: None, trouble, ..(**standing).clone() });
        });
        self.front.stands(false);
        self.shared.publish();
    }

    async fn restart(&mut self) {
        let mut store = self.store.clone();
        let opened = blocking(move || {
            let opened = store.reopen().map_err(|error| error.to_string())?;
            // What cannot be used is found before the engine is.
            all_of(&opened.persisted).map(|_| (store, opened))
        });
        let started = match opened.await.and_then(|opened| opened) {
            Ok((store, Opened { head: Some(head), persisted, .. })) => {
                (self.store, self.head) = (store, head);
                self.start(persisted).await
            }
            Ok(_) => Err("the broker's store is gone".into()),
            Err(cause) => Err(cause),
        };
        if let Err(cause) = started {
            self.fail(cause).await;
        }
    }

    /// Hands the office to the voter whose door is used most.
    fn prefer(&mut self) {
        self.next_look = Instant::now() + Duration::from_millis(PREFER_EVERY_MS);
        let standing = Arc::clone(&self.shared.standing.borrow());
        let Ok(running) = &self.running else { return };
        if standing.office.is_none() {
            return;
        }
        let ready: BTreeSet<NodeId> = standing
            .followers
            .iter()
            .filter(|(node, _)| standing.voters.contains(node))
            .filter(|(_, follower)| {
                follower.lag <= LAG_MAX && follower.answered_ms.is_some_and(|ms| ms <= ANSWERED_MAX_MS)
            })
            .map(|(node, _)| *node)
            .collect();
        let better = self.shared.memory().volatile.doors.look(&self.place.node, &ready);
        if let Some(better) = better {
            tracing::info!(to = %better, "most calls enter there, so it becomes the broker");
            let consensus = running.consensus.clone();
            spawn(async move { consensus.hand_over(Some(better)).await });
        }
    }

    async fn end(mut self) {
        if self.running.is_ok() {
            self.stop().await;
        }
        let store = self.store.clone();
        let _ = blocking(move || store.close()).await;
    }
}

/// A member that lacks more entries than this is not in step.
const LAG_MAX: u64 = 64;
/// Nor one that was not heard for this long, in milliseconds.
const ANSWERED_MAX_MS: u64 = 2_000;

/// What the voters' clocks say, when they have said it.
type Clocked = oneshot::Receiver<Vec<u64>>;

async fn changed(standing: &mut Option<watch::Receiver<Arc<Standing>>>) -> Option<watch::Receiver<Arc<Standing>>> {
    let Some(receiver) = standing else { return std::future::pending().await };
    receiver.changed().await.ok().map(|()| receiver.clone())
}

async fn asked(clocks: &mut Option<Clocked>) -> Vec<u64> {
    match clocks {
        Some(clocks) => clocks.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

async fn due(retry: Option<Instant>) {
    match retry {
        Some(retry) => sleep_until(retry).await,
        None => std::future::pending().await,
    }
}
