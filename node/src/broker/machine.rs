//! [`Replica`]: the replicated state as the consensus engine drives it. It decodes, gives each command its place and time,
//! applies it and encodes the reply; what a command does is in [`super::apply`].

use std::sync::Arc;

use chappie_mesh::consensus::Machine;

use super::{
    apply::apply,
    command::{Command, Entry, Reply, Stamped},
    shared::Shared,
    state::State,
};

/// One store's machine over the state that all of the broker shares.
///
/// An engine that starts anew on a store begins at its snapshot and applies again what this process had applied before. That
/// happens in a state of its own, so that nobody sees the shared one go back; it takes the shared one's place as soon as it
/// has come as far.
pub(super) struct Replica {
    shared: Arc<Shared>,
    /// Which store of this process; a later one has taken the shared state over.
    generation: u64,
    /// The state that is not as far as the shared one yet.
    behind: Option<State>,
    /// It met what it cannot use, and stands still.
    broken: bool,
}

impl Replica {
    pub(super) fn new(shared: Arc<Shared>, generation: u64) -> Self {
        let behind = (shared.state().applied > 0).then(State::default);
        Self { shared, generation, behind, broken: false }
    }

    /// Lets the state be seen when it is as far as the shared one.
    fn show_when_level(&mut self) {
        let Some(state) = self.behind.take_if(|state| state.applied >= self.shared.state().applied) else { return };
        self.shared.replace(self.generation, state);
    }
}

/// Applies one entry at its place.
pub(super) fn apply_next(state: &mut State, entry: Entry) -> (Stamped, Reply) {
    let stamped = Stamped { at: entry.at.max(state.at), index: state.applied + 1, command: entry.command };
    let reply = apply(state, &stamped);
    (stamped, reply)
}

/// Applies the entries of a log after its snapshot: what a store says, also what is not known to be committed.
///
/// # Errors
/// In words, when something in it is not of this program or an older one.
pub(super) fn replay(snapshot: Option<&[u8]>, entries: &[Vec<u8>]) -> Result<State, String> {
    let mut state = snapshot.map_or_else(|| Ok(State::default()), State::decode).map_err(|error| error.to_string())?;
    for bytes in entries {
        let entry = Entry::decode(bytes).map_err(|error| error.to_string())?;
        apply_next(&mut state, entry);
    }
    Ok(state)
}

/// The state that a log of format 2 or 3 stands for, whose entries have their places in them.
///
/// # Errors
/// In words, when something in it is not of such a program.
pub(super) fn replay_older(snapshot: Option<&[u8]>, entries: &[Vec<u8>]) -> Result<State, String> {
    let mut state = snapshot.map_or_else(|| Ok(State::default()), State::decode).map_err(|error| error.to_string())?;
    for bytes in entries {
        let mut entry = Stamped::decode(bytes).map_err(|error| error.to_string())?;
        let founder = state.membership.as_ref().map(|known| known.broker);
        // That program never forgot the broker of a mesh, and wrote the attempt down.
        if matches!(&entry.command, Command::Remove { node, .. } if Some(*node) == founder) {
            entry.command = Command::Forget { ids: Vec::new() };
        }
        apply(&mut state, &entry);
    }
    Ok(state)
}

impl Machine for Replica {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        if self.broken {
            return Reply::Done(false).encode();
        }
        let entry = match Entry::decode(command) {
            Ok(entry) => entry,
            Err(error) => {
                // A state without it would not be that of the others.
                self.broken = true;
                self.shared
                    .break_off(self.generation, format!("a command of the broker's log cannot be used: {error}"));
                return Reply::Done(false).encode();
            }
        };
        let Some(state) = &mut self.behind else { return self.shared.apply(self.generation, entry).encode() };
        let known = self.shared.state().applied;
        let (stamped, reply) = apply_next(state, entry);
        if stamped.index > known {
            self.shared.found(&stamped.command, &reply);
        }
        self.show_when_level();
        reply.encode()
    }

    fn snapshot(&self) -> Vec<u8> {
        if self.broken {
            // No state rather than one that lacks a command: whoever restores it is told.
            return Vec::new();
        }
        self.behind.as_ref().map_or_else(|| self.shared.state().encode(), State::encode)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.behind = Some(State::decode(bytes).map_err(|error| error.to_string())?);
        self.show_when_level();
        Ok(())
    }
}
