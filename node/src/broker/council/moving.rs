//! Moves this device to another group: alone, as a member of another one, into a new epoch, or after a later one (failure
//! rules F16, F18, F21).

use std::{io, path::PathBuf};

use chappie_mesh::{
    consensus::{Epoch, Group},
    runtime::blocking,
};

use super::{
    super::{
        begin::recovered,
        errors::ProposeError,
        follow::{Meeting, meet},
        membership::{Membership, label},
        state::State,
        writer::Seat,
    },
    Change, Council,
    opening::{all_of, anew},
};
use crate::{clock, storage::log::Opened};

impl Council {
    pub(super) async fn archive(&self, what_for: &'static str) -> io::Result<PathBuf> {
        let store = self.store.clone();
        blocking(move || store.archive(what_for)).await.map_err(io::Error::other)?
    }

    /// Moves the device to another group, after a copy of the store. Nothing of the former group is written after the copy.
    pub(super) async fn change(&mut self, change: Change) -> Result<PathBuf, ProposeError> {
        let archive = match &change {
            Change::Alone { archive, .. } | Change::Leave { archive, .. } => archive,
            Change::Recover => "before-recover",
        };
        let acting = self.seat.send_replace(Seat::default());
        let copied = self.archive(archive).await;
        let same = match &change {
            Change::Alone { mesh, .. } => self.head.group.mesh == *mesh,
            Change::Leave { group, .. } => self.head.group == *group,
            Change::Recover => false,
        };
        let copy = match copied {
            Ok(copy) if !same => copy,
            other => {
                self.seat.send_replace(acting);
                return other.map_err(|error| ProposeError::NotWritten(format!("no backup: {error}")));
            }
        };
        self.stop().await;
        match self.begin(change).await {
            Ok(()) => Ok(copy),
            Err(error) => {
                // What the store says now counts.
                self.restart().await;
                Err(error)
            }
        }
    }

    async fn begin(&mut self, change: Change) -> Result<(), ProposeError> {
        let not_written = |cause: String| ProposeError::NotWritten(cause);
        let mut store = self.store.clone();
        let opened = blocking(move || store.reopen().map(|opened| (store, opened)).map_err(|error| error.to_string()));
        let (store, opened) = opened.await.and_then(|opened| opened).map_err(not_written)?;
        self.store = store;
        let (group, state) = self.next(change, &opened)?;
        let (head, writes) = anew(&self.place, group, state.as_ref());
        let mut store = self.store.clone();
        let reset = blocking(move || {
            store.reset(head, writes).map_err(|error| error.to_string())?;
            let persisted = store.reopen().map_err(|error| error.to_string())?.persisted;
            Ok((store, persisted))
        });
        // It is not known whether it was written: the store says so when it is opened again.
        let (store, persisted) = reset.await.and_then(|reset| reset).map_err(ProposeError::Unknown)?;
        (self.store, self.head) = (store, head);
        // It knows of which group it is now.
        (self.stands, self.sounding) = (true, None);
        self.front.heard_of(None);
        self.seat.send_replace(Seat { acting: None, alone: state.is_some() });
        self.shared.start_over(state.unwrap_or_default());
        self.shared.memory().trouble = None;
        self.show_down(None);
        self.start(persisted).await.map_err(ProposeError::Unknown)
    }

    /// The group that a change leads to, and the state it begins with.
    fn next(&self, change: Change, opened: &Opened) -> Result<(Group, Option<State>), ProposeError> {
        match change {
            Change::Leave { group, .. } => Ok((group, None)),
            Change::Alone { mesh, name, .. } => {
                let at = self.shared.reading().wall;
                let node = self.place.node;
                let membership = Membership::alone(mesh, node, &label(&name, &node), at);
                let state = State { membership: Some(membership), at, pruned: at, ..State::default() };
                Ok((Group { mesh, epoch: Epoch { count: 1, id: clock::random() } }, Some(state)))
            }
            Change::Recover => {
                let state = all_of(&opened.persisted).map_err(ProposeError::NotWritten)?;
                if state.membership.is_none() {
                    let cause = "this device has heard nothing of its mesh yet; recover on a device that has";
                    return Err(ProposeError::NotWritten(cause.into()));
                }
                let before = self.head.group;
                let epoch = Epoch { count: before.epoch.count.saturating_add(1), id: clock::random() };
                Ok((Group { mesh: before.mesh, epoch }, Some(recovered(state, epoch))))
            }
        }
    }

    pub(super) async fn follow(&mut self, theirs: Group) {
        // It may have followed meanwhile, or somebody acts again.
        if meet(self.head.group, self.front.acts(), theirs, true) != Meeting::Follow {
            return;
        }
        tracing::warn!(?theirs, "nobody acts in this epoch of the mesh any more; this device follows the later one");
        if let Err(error) = self.change(Change::Leave { group: theirs, archive: "before-follow" }).await {
            tracing::warn!(%error, "the later epoch of the mesh could not be followed yet");
        }
    }
}
