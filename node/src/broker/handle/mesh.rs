//! The broker's part in the mesh: who belongs to it, invites, joining and forgetting (design section 6; F18, F19, F21).
//! Proofs are checked here, before anything is proposed; what may happen is decided in [`super::super::membership`].

use std::sync::Arc;

use chappie_mesh::{InviteId, InviteKey, NodeId, Roster, fresh_invite};
use tokio::sync::watch;

use super::{
    super::{
        command::{Command, Kept, Reply},
        errors::{AdmitError, ForgetError, InviteError, ProposeError},
        limits::{INVITE_TTL_MS, INVITE_USES_MAX},
        membership::{self, Denial, Membership, Verdict},
        merge::{Belongings, MergeReport},
        query,
    },
    Broker,
};
use crate::ids::SessionId;

impl Broker {
    /// The devices of this node's mesh. Of a member that has heard nothing yet: a roster of epoch 0 with nobody in it.
    #[must_use]
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.shared.roster.borrow())
    }

    /// The same, and every later one. A roster that is seen here is on disk.
    #[must_use]
    pub fn rosters(&self) -> watch::Receiver<Arc<Roster>> {
        self.shared.roster.subscribe()
    }

    /// Opens an invite. The same id and key again changes nothing.
    ///
    /// # Errors
    /// [`InviteError`].
    pub async fn invite(&self, id: InviteId, key: InviteKey, uses: u32, ttl_ms: u64) -> Result<(), InviteError> {
        if !(1..=INVITE_USES_MAX).contains(&uses) {
            return Err(InviteError::Uses(uses));
        }
        if !(INVITE_TTL_MS.0..=INVITE_TTL_MS.1).contains(&ttl_ms) {
            return Err(InviteError::Ttl(ttl_ms));
        }
        match self.propose(Command::Invite { id, key, uses, ttl_ms }).await? {
            Reply::Taken => Err(InviteError::Taken),
            Reply::Full { what, limit } => Err(InviteError::Full { what, limit }),
            Reply::NoMesh => Err(InviteError::NoMesh),
            _ => Ok(()),
        }
    }

    /// Lets a device in that proves an invite's secret over its TLS session (`binding` is the exporter's value), and
    /// gives the roster with it. A member gets the roster again and spends nothing, so a device that did not hear the
    /// answer asks again (F19).
    ///
    /// # Errors
    /// [`AdmitError`]. Without a right proof it is always [`AdmitError::Refused`], after the same work.
    pub async fn admit(
        &self,
        node: NodeId,
        name: &str,
        invite: InviteId,
        binding: [u8; 32],
        proof: [u8; 32],
    ) -> Result<Arc<Roster>, AdmitError> {
        let key = self.membership(|known| known.invites.get(&invite).map(|invite| invite.key.clone())).flatten();
        // An unknown id is checked too, against a key of no invite, so that the time tells nothing either.
        let none = fresh_invite([0; 24]).1.key();
        let proved = key.as_ref().unwrap_or(&none).proves(&binding, &proof);
        if !proved || key.is_none() {
            return Err(AdmitError::Refused);
        }
        let now = self.shared.now(&self.shared.memory());
        let looked = self.membership(|known| known.verdict(&node, &invite, now));
        let verdict = match looked {
            // Decided without a command: what is refused or known already must not fill the log.
            Some(verdict @ (Verdict::Known | Verdict::Deny(_))) => verdict,
            _ => {
                let name = membership::label(name, &node);
                match self.propose(Command::Admit { node, name, invite }).await? {
                    Reply::Admission(verdict) => verdict,
                    _ => Verdict::Deny(Denial::Gone),
                }
            }
        };
        match verdict {
            Verdict::Known | Verdict::Admit => Ok(self.roster()),
            Verdict::Deny(Denial::Gone) => Err(AdmitError::Refused),
            Verdict::Deny(Denial::Expired) => Err(AdmitError::Expired),
            Verdict::Deny(Denial::Spent) => Err(AdmitError::Spent),
            Verdict::Deny(Denial::Forgotten) => Err(AdmitError::Forgotten),
            Verdict::Deny(Denial::Full) => Err(AdmitError::Full),
        }
    }

    /// A member is called otherwise now. Nothing happens for a device that is no member, or has this name.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn rename(&self, node: NodeId, name: &str) -> Result<(), ProposeError> {
        let name = membership::label(name, &node);
        let differs = |known: &Membership| known.members.get(&node).is_some_and(|member| member.name != name);
        if self.membership(differs) != Some(true) {
            return Ok(());
        }
        self.propose(Command::Rename { node, name }).await.map(|_| ())
    }

    /// Forgets a device (F21): it leaves the roster, defaults in its `sessions` are dropped, and receipts that run there
    /// become uncertain. The same again takes the sessions that were not known before. A device that is the broker itself
    /// makes another one the broker first, which has to be asked then: [`ProposeError::NotBroker`]. A voter gives its vote
    /// away before it is cut off.
    ///
    /// # Errors
    /// [`ForgetError`]; nothing was changed.
    pub async fn forget(&self, node: NodeId, sessions: Vec<SessionId>) -> Result<(), ForgetError> {
        let name = || self.membership(|known| known.name_of(&node)).unwrap_or_else(|| node.short());
        let standing = self.standing().borrow().clone();
        if standing.office.is_none() && standing.leader.is_none() && standing.voters.iter().eq([&node]) {
            return Err(ForgetError::OnlyVoter(name()));
        }
        if node == self.node && standing.office.is_some() {
            if self.membership(|known| known.members.len()) == Some(1) {
                return Err(ForgetError::Last(name()));
            }
            let moved = self.move_away().await;
            return Err(if moved { ProposeError::NotBroker.into() } else { ForgetError::Broker(name()) });
        }
        let _leaving = self.take_vote(node).await;
        match self.propose(Command::Remove { node, sessions: sessions.clone() }).await? {
            Reply::Kept(Kept::Last) => return Err(ForgetError::Last(name())),
            Reply::Kept(Kept::Unknown) | Reply::NoMesh => return Err(ForgetError::Unknown(name())),
            _ => {}
        }
        self.shared.memory().volatile.forget_sessions(&sessions);
        self.shared.wake();
        Ok(())
    }

    /// What this node brings along when it joins another mesh (F18). Take it while nothing is dispatched.
    #[must_use]
    pub fn export(&self) -> Belongings {
        let (state, memory) = (self.shared.state(), self.shared.memory());
        query::belongings(&state, &memory.volatile, self.shared.now(&memory))
    }

    /// Takes over what a joining device brought. Existing keys win; a receipt that both meshes had becomes uncertain.
    /// The same again changes nothing, so a merge that broke off is repeated whole.
    ///
    /// # Errors
    /// [`ProposeError`]; pieces before the failure are taken.
    pub async fn merge(&self, from: NodeId, belongings: Belongings) -> Result<MergeReport, ProposeError> {
        let mut report = MergeReport::default();
        for brought in belongings.pieces() {
            match self.propose(Command::Merge { from, brought }).await? {
                Reply::Merged(more) => report.add(more),
                Reply::NoMesh => return Err(ProposeError::NotWritten("this device has no mesh yet".into())),
                other => unreachable!("`Merge` is never answered {other:?}"),
            }
        }
        Ok(report)
    }

    pub(super) fn membership<T>(&self, look: impl FnOnce(&Membership) -> T) -> Option<T> {
        self.shared.state().membership.as_ref().map(look)
    }
}
