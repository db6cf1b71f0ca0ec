//! The replicated machine as the engine sees it. It lives in memory; the store has its snapshots.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    storage::{EntryResponder, RaftStateMachine},
};

use super::{
    api::{Machine, Write},
    types::{LogId, Meta, Reply, Snapshot, StoredMembership, Types, keep, kept},
    writer::Writer,
};
use crate::runtime::{Reached, reached};

/// The snapshot that the store was opened with, until the engine has started: it asks for it several times.
pub(super) type Opened = Arc<Mutex<Option<(Meta, Bytes)>>>;

/// Carries out what is committed.
pub(crate) struct Applier {
    // The engine asks for something that may be shared; nobody shares it, and the lock is never taken.
    machine: Mutex<Box<dyn Machine>>,
    applied: Option<LogId>,
    membership: StoredMembership,
    writer: Writer,
    opened: Opened,
}

impl fmt::Debug for Applier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("applied", &self.applied).finish_non_exhaustive()
    }
}

impl Applier {
    /// `machine` at the snapshot, where there is one.
    ///
    /// # Errors
    /// In words, when the machine does not know the snapshot.
    pub(super) fn open(
        mut machine: Box<dyn Machine>,
        snapshot: Option<(Meta, Bytes)>,
        writer: Writer,
    ) -> Result<(Self, Opened), String> {
        let (mut applied, mut membership) = (None, StoredMembership::default());
        if let Some((meta, data)) = &snapshot {
            machine.restore(data)?;
            (applied, membership) = (meta.last_log_id, meta.last_membership.clone());
        }
        let opened = Arc::new(Mutex::new(snapshot));
        let applier = Self { machine: Mutex::new(machine), applied, membership, writer, opened: Arc::clone(&opened) };
        Ok((applier, opened))
    }

    fn machine(&mut self) -> &mut dyn Machine {
        &mut **self.machine.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn meta(&self) -> Meta {
        Meta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }
}

impl RaftStateMachine<Types> for Applier {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Picture;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, asker)) = entries.try_next().await? {
            let reply = match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(command) => self.machine().apply(&command.0),
                EntryPayload::Membership(members) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), members);
                    Vec::new()
                }
            };
            self.applied = Some(entry.log_id);
            if let Some(asker) = asker {
                asker.send(Reply(reply));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Picture {
        let data = Bytes::from(self.machine().snapshot());
        Picture { meta: self.meta(), data, writer: self.writer.clone() }
    }

    async fn install_snapshot(&mut self, meta: &Meta, data: Bytes) -> Result<(), io::Error> {
        self.machine().restore(&data).map_err(io::Error::other)?;
        let behind = self.applied.is_some();
        (self.applied, self.membership) = (meta.last_log_id, meta.last_membership.clone());
        save(&self.writer, meta, &data).await?;
        reached(Reached::Snapshot { behind }, "");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((meta, snapshot)) = opened {
            return Ok(Some(Snapshot { meta, snapshot }));
        }
        let Some((meta, data)) = self.writer.snapshot().await? else { return Ok(None) };
        Ok(Some(Snapshot { meta: keep(&meta).map_err(io::Error::other)?, snapshot: data.into() }))
    }
}

/// The machine at one moment, on its way to the store.
pub(crate) struct Picture {
    meta: Meta,
    data: Bytes,
    writer: Writer,
}

impl RaftSnapshotBuilder<Types> for Picture {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        save(&self.writer, &self.meta, &self.data).await?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: self.data.clone() })
    }
}

async fn save(writer: &Writer, meta: &Meta, data: &Bytes) -> io::Result<()> {
    let meta = kept(meta).map_err(io::Error::other)?;
    writer.written(vec![Write::Snapshot { meta, data: data.to_vec() }]).await
}
