//! [`Shared`]: what the handles, the writer, the council and the machine of the log share: the state, and what only memory
//! knows. Short locks around pure code; decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use chappie_mesh::{
    MeshId, NodeId, Roster,
    consensus::{Group, Standing},
};
use tokio::sync::watch;

use super::{
    command::{Command, Entry, Reply},
    limits::QUEUE_MAX,
    machine::apply_next,
    meshtime::{MeshTime, Reading},
    receipts::ReceiptKey,
    state::State,
    volatile::Volatile,
};
use crate::ids::{Conversation, Millis};

/// Reads both clocks.
pub(super) type Clocks = Box<dyn Fn() -> Reading + Send + Sync>;

/// What all parts of the broker share. Lock order: `state`, then `memory`.
pub(super) struct Shared {
    state: RwLock<State>,
    memory: Mutex<Memory>,
    /// Index of the last applied command.
    pub(super) applied: watch::Sender<u64>,
    /// Counts everything that a waiting selection may care for.
    pub(super) changed: watch::Sender<u64>,
    /// The roster of the state with the voters and the broker of the group; see [`nobody`] before there is one.
    pub(super) roster: watch::Sender<Arc<Roster>>,
    /// The roster by which members are taken in and let go: without those that are about to leave.
    pub(super) tended: watch::Sender<Arc<Roster>>,
    /// Who is about to leave, and how many want that.
    leaving: Mutex<BTreeMap<NodeId, usize>>,
    /// What the rosters that are shown were made of: making them takes time in a large mesh.
    shown: Mutex<Option<Sight>>,
    /// How the group stands.
    pub(super) standing: watch::Sender<Arc<Standing>>,
    /// Receipts whose reservation is under way, or may be taken back: their state is not the last word.
    open: Arc<Mutex<BTreeMap<ReceiptKey, usize>>>,
    /// Why the state stands still: the log holds what this program does not know.
    pub(super) broken: watch::Sender<Option<String>>,
    /// Which machine may change the state: the one that was made last.
    generation: AtomicU64,
    clocks: Clocks,
}

/// What tells two rosters apart.
#[derive(Clone, PartialEq, Eq)]
struct Sight {
    group: Group,
    /// Mesh, epoch and version.
    word: (MeshId, u64, u64),
    leader: Option<NodeId>,
    voters: BTreeSet<NodeId>,
    leaving: BTreeSet<NodeId>,
}

/// A device is about to leave: it gives its vote, and the office, to others.
pub(super) struct Leaving(Arc<Shared>, NodeId);

impl Drop for Leaving {
    fn drop(&mut self) {
        {
            let mut leaving = self.0.leaving();
            if let Some(count) = leaving.get_mut(&self.1) {
                *count -= 1;
            }
            leaving.retain(|_, count| *count > 0);
        }
        self.0.publish();
    }
}

/// A reservation that is under way; it is over when the last clone is dropped.
pub(super) struct Open {
    table: Arc<Mutex<BTreeMap<ReceiptKey, usize>>>,
    key: ReceiptKey,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = table.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.key);
            }
        }
    }
}

/// What is not in the log.
pub(super) struct Memory {
    pub(super) volatile: Volatile,
    pub(super) time: MeshTime,
    /// Commands that take others back; kept until they are written, or another device may have been the broker.
    pub(super) undo: Vec<Undo>,
    /// Commands of unknown fate that are taken back when they turn out to be in the log. Only of a sole voter: nobody else
    /// can have acted on them meanwhile.
    doubts: Vec<Command>,
    /// Why nothing can be written now.
    pub(super) trouble: Option<String>,
}

/// A command that takes another one back.
pub(super) struct Undo {
    pub(super) command: Command,
    /// Whose default changes by it; selections of it wait meanwhile.
    pub(super) conversation: Option<Conversation>,
    /// Held until it is done.
    #[expect(dead_code, reason = "held, not read")]
    pub(super) open: Option<Arc<Open>>,
}

impl Shared {
    /// Before any log was read. `last` is the latest stamp that the store has, zero for a store without one.
    pub(super) fn new(standing: Standing, last: Millis, clocks: Clocks) -> Self {
        let memory = Memory {
            volatile: Volatile::default(),
            time: MeshTime::resume(Some(last), clocks()),
            undo: Vec::new(),
            doubts: Vec::new(),
            trouble: None,
        };
        Self {
            state: RwLock::default(),
            memory: Mutex::new(memory),
            applied: watch::Sender::new(0),
            changed: watch::Sender::new(0),
            roster: watch::Sender::new(Arc::new(nobody())),
            tended: watch::Sender::new(Arc::new(nobody())),
            leaving: Mutex::default(),
            shown: Mutex::default(),
            standing: watch::Sender::new(Arc::new(standing)),
            open: Arc::default(),
            broken: watch::Sender::new(None),
            generation: AtomicU64::new(0),
            clocks,
        }
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both clocks.
    pub(super) fn reading(&self) -> Reading {
        (self.clocks)()
    }

    /// Mesh time for a look-up.
    pub(super) fn now(&self, memory: &Memory) -> Millis {
        memory.time.peek(self.reading())
    }

    /// Marks the receipt's reservation as under way.
    pub(super) fn open(&self, key: &ReceiptKey) -> Arc<Open> {
        let mut table = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *table.entry(key.clone()).or_default() += 1;
        Arc::new(Open { table: Arc::clone(&self.open), key: key.clone() })
    }

    /// Whether the receipt's reservation is under way, or may be taken back.
    pub(super) fn is_open(&self, key: &ReceiptKey) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    /// Wakes waiting selections.
    pub(super) fn wake(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A new machine drives the state from here on; an earlier one changes nothing more.
    pub(super) fn begin(&self) -> u64 {
        self.broken.send_replace(None);
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// This device is in another group now, whose state begins as `state`: nothing that is under way in the former one counts.
    pub(super) fn start_over(&self, state: State) {
        let generation = self.begin();
        let last = state.at;
        {
            let mut memory = self.memory();
            memory.time = MeshTime::resume(Some(last), self.reading());
            memory.drop_undo();
        }
        self.replace(generation, state);
    }

    /// Applies an entry, unless a later machine drives the state.
    pub(super) fn apply(&self, generation: u64, entry: Entry) -> Reply {
        let (stamped, reply) = {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if self.generation.load(Ordering::SeqCst) != generation {
                return Reply::Done(false);
            }
            apply_next(&mut state, entry)
        };
        self.memory().time.heard(stamped.at, self.reading());
        self.found(&stamped.command, &reply);
        self.publish();
        reply
    }

    /// Replaces the state, unless a later machine drives it.
    pub(super) fn replace(&self, generation: u64, next: State) {
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if self.generation.load(Ordering::SeqCst) != generation {
                return;
            }
            *state = next;
        }
        self.heard();
        self.publish();
    }

    fn heard(&self) {
        let at = self.state().at;
        self.memory().time.heard(at, self.reading());
    }

    /// A command turned out to be in the log. When nobody knew that it is, it is taken back.
    pub(super) fn found(&self, command: &Command, reply: &Reply) {
        let doubted = {
            let doubts = &mut self.memory().doubts;
            doubts.iter().position(|doubt| doubt == command).map(|at| doubts.remove(at))
        };
        if let Some(command) = doubted {
            self.abandon(&command, u64::MAX, reply, None);
        }
    }

    /// Nobody knows whether these are in the log.
    pub(super) fn doubt(&self, commands: impl IntoIterator<Item = Command>) {
        let doubts = &mut self.memory().doubts;
        doubts.extend(commands.into_iter().filter(Command::revocable));
        let over = doubts.len().saturating_sub(QUEUE_MAX);
        doubts.drain(..over);
    }

    /// This is proposed now, maybe once more: from here on what became of it counts.
    pub(super) fn decided(&self, command: &Command) {
        self.memory().doubts.retain(|doubt| match (doubt, command) {
            (Command::Reserve(doubt), Command::Reserve(again)) => doubt.key != again.key,
            (Command::Bind { chat: doubt, .. }, Command::Bind { chat: again, .. }) => doubt != again,
            _ => true,
        });
    }

    /// The log holds what this program does not know.
    pub(super) fn break_off(&self, generation: u64, cause: String) {
        if self.generation.load(Ordering::SeqCst) == generation {
            self.broken.send_replace(Some(cause));
        }
    }

    /// This device has the office. `alone`: it is the only voter, so nobody else had it meanwhile, and its clock is the only
    /// one.
    pub(super) fn take_office(&self, alone: bool) {
        let mut memory = self.memory();
        memory.doubts.clear();
        memory.volatile.doors.begin();
        if alone {
            memory.time.set(&[]);
        } else {
            memory.time.take_office();
            memory.drop_undo();
        }
    }

    /// The voters said what time it is: `clocks` in milliseconds, this device's first.
    pub(super) fn set_clock(&self, clocks: &[u64]) {
        let Some((own, others)) = clocks.split_first() else { return };
        let before = |other: &u64| i64::try_from(i128::from(*other) - i128::from(*own)).unwrap_or_default();
        let offsets: Vec<i64> = others.iter().map(before).collect();
        self.memory().time.set(&offsets);
    }

    /// Shows what state and group say now.
    pub(super) fn publish(&self) {
        let applied = self.publish_rosters();
        self.applied.send_replace(applied);
        self.wake();
    }

    /// The index up to which the state goes that the rosters are of.
    fn publish_rosters(&self) -> u64 {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = Arc::clone(&self.standing.borrow());
        let leaving: BTreeSet<NodeId> = self.leaving().keys().copied().collect();
        let state = self.state();
        let sight = state.membership.as_ref().map(|known| Sight {
            group: standing.group,
            word: (known.mesh, known.epoch, known.version),
            leader: standing.leader,
            voters: standing.voters.clone(),
            leaving: leaving.clone(),
        });
        if *shown == sight {
            return state.applied;
        }
        let roster = state.membership.as_ref().map_or_else(nobody, |known| known.seen(&standing));
        let applied = state.applied;
        drop(state);
        let mut tended = roster.clone();
        tended.members.retain(|member, _| !leaving.contains(member));
        *shown = sight;
        for (sender, roster) in [(&self.roster, roster), (&self.tended, tended)] {
            sender.send_if_modified(|shown| {
                let changed = **shown != roster;
                if changed {
                    *shown = Arc::new(roster);
                }
                changed
            });
        }
        applied
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Members are looked after as if `node` had left, until the value is dropped: others get its vote and its office.
    pub(super) fn leave(self: &Arc<Self>, node: NodeId) -> Leaving {
        *self.leaving().entry(node).or_default() += 1;
        self.publish();
        Leaving(Arc::clone(self), node)
    }

    /// Puts a command on the list of those that take others back. The writer works it off with its next batch.
    pub(super) fn push_undo(&self, undo: Undo) {
        let mut memory = self.memory();
        if let Some(conversation) = &undo.conversation {
            memory.volatile.start_undo(conversation.clone());
        }
        memory.undo.push(undo);
    }

    /// Takes back what nobody waits for any more: its proposer went away before it learnt the reply. A bind that another
    /// request has used since (its use is later than `seq`) stays.
    pub(super) fn abandon(&self, command: &Command, seq: u64, reply: &Reply, open: Option<Arc<Open>>) {
        let Some(undo) = command.undo(reply) else { return };
        let conversation = match command {
            Command::Bind { chat, .. } => Some(Conversation::Chat(chat.clone())),
            _ => None,
        };
        let used = conversation.as_ref().is_some_and(|whose| self.memory().volatile.last_use(whose) > seq);
        if !used {
            self.push_undo(Undo { command: undo, conversation, open });
        }
    }
}

impl Memory {
    /// Another device may have been the broker since: what was done here may be in use there, so it stands.
    fn drop_undo(&mut self) {
        for undo in std::mem::take(&mut self.undo) {
            if let Some(conversation) = &undo.conversation {
                self.volatile.end_undo(conversation);
            }
        }
    }
}

/// The roster before a mesh was founded: it admits nobody, and every other one is a later word.
fn nobody() -> Roster {
    let (mesh, broker) = (MeshId::from([0; 16]), NodeId::from([0; 32]));
    let (members, removed, voters) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    Roster { mesh, epoch: 0, version: 0, broker, members, removed, voters, epoch_id: [0; 16] }
}
