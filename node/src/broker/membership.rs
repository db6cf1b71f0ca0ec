//! Membership as the log has it: which devices belong to the mesh, and which invites are open (F19, F21). Pure; who may
//! come in is decided here, proofs are checked before anything gets here.

use std::collections::{BTreeMap, BTreeSet};

use chappie_mesh::{InviteId, InviteKey, Member, MeshId, NodeId, Roster, check_name, consensus::Standing};
use serde::{Deserialize, Serialize};

use super::{
    command::Reply,
    limits::{
        INVITE_GRACE_MS, INVITE_USES_SUM_MAX, INVITES_MAX, INVITES_OPEN_MAX, MEMBERS_MAX, NAME_BYTES_MAX,
        NAME_CHARS_MAX, REMOVED_MAX,
    },
    receipts::clip_end,
};
use crate::ids::Millis;

/// The mesh, as its log has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Which mesh.
    pub mesh: MeshId,
    /// See [`Roster::epoch`].
    pub epoch: u64,
    /// See [`Roster::version`].
    pub version: u64,
    /// A member, at first the founder. It acts as the broker only where no other was elected yet.
    pub broker: NodeId,
    /// All members; at most [`MEMBERS_MAX`].
    pub members: BTreeMap<NodeId, Joined>,
    /// Members that were forgotten, with the version that did it; the latest [`REMOVED_MAX`].
    pub removed: BTreeMap<NodeId, u64>,
    /// Invites, until ten minutes after they expired.
    pub invites: BTreeMap<InviteId, Invite>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// What its owner calls it.
    pub name: String,
    /// When it came in.
    pub at: Millis,
    /// By which invite; `None` for the founder.
    pub invite: Option<InviteId>,
}

/// An invite. Its secret is not kept, only what checks a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// What checks a proof.
    pub key: InviteKey,
    /// Devices that it may still let in.
    pub uses_left: u32,
    /// From when its time counts.
    pub from: Millis,
    /// How long it is good, in milliseconds.
    pub ttl_ms: u64,
    /// Whether a jump of the clock has started its time anew; that happens once (F14).
    pub extended: bool,
    /// Who used it.
    pub spent: Vec<Spent>,
}

/// One use of an invite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// By whom.
    pub node: NodeId,
    /// When.
    pub at: Millis,
}

/// What becomes of a device that proved an invite's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It is a member already: the same answer again, and nothing changes.
    Known,
    /// It becomes a member, and that uses the invite once.
    Admit,
    /// It does not.
    Deny(Denial),
}

/// Why a device is not let in although it knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Denial {
    /// The invite is not there any more.
    Gone,
    /// Its time is over.
    Expired,
    /// Other devices have used it up.
    Spent,
    /// This device used it, and was forgotten since.
    Forgotten,
    /// The mesh is full.
    Full,
}

impl Invite {
    /// When it ends.
    #[must_use]
    pub const fn expires(&self) -> Millis {
        self.from.plus(self.ttl_ms)
    }

    /// Whether its time is over.
    #[must_use]
    pub fn expired(&self, at: Millis) -> bool {
        at >= self.expires()
    }

    /// Whether it may let another device in.
    #[must_use]
    pub fn open(&self, at: Millis) -> bool {
        self.uses_left > 0 && !self.expired(at)
    }

    /// Whether not even those who used it get their answer again (F19).
    #[must_use]
    pub fn over(&self, at: Millis) -> bool {
        at > self.expires().plus(INVITE_GRACE_MS)
    }

    /// How often it was used and may still be.
    fn weight(&self, at: Millis) -> usize {
        let left = if self.open(at) { usize::try_from(self.uses_left).unwrap_or(usize::MAX) } else { 0 };
        self.spent.len().saturating_add(left)
    }
}

impl Membership {
    /// A mesh of one.
    #[must_use]
    pub fn alone(mesh: MeshId, node: NodeId, name: &str, at: Millis) -> Self {
        let founder = Joined { name: name.to_owned(), at, invite: None };
        Self {
            mesh,
            epoch: 1,
            version: 1,
            broker: node,
            members: BTreeMap::from([(node, founder)]),
            removed: BTreeMap::new(),
            invites: BTreeMap::new(),
        }
    }

    /// What everybody may know of it.
    #[must_use]
    pub fn roster(&self) -> Roster {
        let member = |(node, joined): (&NodeId, &Joined)| (*node, Member { name: joined.name.clone() });
        Roster {
            mesh: self.mesh,
            epoch: self.epoch,
            version: self.version,
            broker: self.broker,
            members: self.members.iter().map(member).collect(),
            removed: self.removed.keys().copied().collect(),
            voters: BTreeSet::from([self.broker]),
            epoch_id: [0; 16],
        }
    }

    /// The same with who votes and who is the broker, as this device sees the group.
    #[must_use]
    pub fn seen(&self, standing: &Standing) -> Roster {
        let broker = standing.leader.filter(|leader| self.members.contains_key(leader)).unwrap_or(self.broker);
        let voters = standing.voters.iter().filter(|voter| self.members.contains_key(voter)).copied().collect();
        Roster { broker, voters, epoch_id: standing.group.epoch.id, ..self.roster() }
    }

    /// What people call a device; see [`Roster::label`].
    #[must_use]
    pub fn name_of(&self, node: &NodeId) -> String {
        let Some(member) = self.members.get(node) else { return node.short() };
        let shared = self.members.values().filter(|other| other.name == member.name).count() > 1;
        if shared { format!("{} ({})", member.name, node.short()) } else { member.name.clone() }
    }

    /// What becomes of `node`, which proved the secret of `invite`, at `at`.
    #[must_use]
    pub fn verdict(&self, node: &NodeId, invite: &InviteId, at: Millis) -> Verdict {
        let Some(invite) = self.invites.get(invite) else { return Verdict::Deny(Denial::Gone) };
        if invite.over(at) {
            return Verdict::Deny(Denial::Expired);
        }
        if self.members.contains_key(node) {
            return Verdict::Known;
        }
        // Otherwise a device that starts with its old code would undo its being forgotten.
        if invite.spent.iter().any(|spent| spent.node == *node) {
            return Verdict::Deny(Denial::Forgotten);
        }
        if invite.expired(at) {
            return Verdict::Deny(Denial::Expired);
        }
        if invite.uses_left == 0 {
            return Verdict::Deny(Denial::Spent);
        }
        if self.members.len() >= MEMBERS_MAX {
            return Verdict::Deny(Denial::Full);
        }
        Verdict::Admit
    }

    pub(super) fn invite(&mut self, id: InviteId, key: InviteKey, uses: u32, ttl_ms: u64, at: Millis) -> Reply {
        if let Some(known) = self.invites.get(&id) {
            return if known.key == key { Reply::Done(false) } else { Reply::Taken };
        }
        self.prune(at);
        let invite = Invite { key, uses_left: uses, from: at, ttl_ms, extended: false, spent: Vec::new() };
        if self.invites.values().filter(|known| known.open(at)).count() >= INVITES_OPEN_MAX {
            return Reply::full("open invites", INVITES_OPEN_MAX);
        }
        if self.invites.len() >= INVITES_MAX {
            return Reply::full("invites of the last minutes", INVITES_MAX);
        }
        let uses: usize = self.invites.values().chain([&invite]).map(|known| known.weight(at)).sum();
        if uses > INVITE_USES_SUM_MAX {
            return Reply::full("uses of all invites together", INVITE_USES_SUM_MAX);
        }
        self.invites.insert(id, invite);
        Reply::Done(true)
    }

    pub(super) fn admit(&mut self, node: NodeId, name: &str, invite: InviteId, at: Millis) -> Reply {
        let verdict = self.verdict(&node, &invite, at);
        if verdict == Verdict::Admit {
            if let Some(invite) = self.invites.get_mut(&invite) {
                invite.uses_left = invite.uses_left.saturating_sub(1);
                invite.spent.push(Spent { node, at });
            }
            self.members.insert(node, Joined { name: name.to_owned(), at, invite: Some(invite) });
            self.removed.remove(&node);
            self.version += 1;
        }
        Reply::Admission(verdict)
    }

    pub(super) fn rename(&mut self, node: &NodeId, name: &str) -> Reply {
        let Some(member) = self.members.get_mut(node).filter(|member| member.name != name) else {
            return Reply::Done(false);
        };
        name.clone_into(&mut member.name);
        self.version += 1;
        Reply::Done(true)
    }

    /// Takes a member off the roster; `false` when it was none.
    pub(super) fn remove(&mut self, node: &NodeId) -> bool {
        if self.members.remove(node).is_none() {
            return false;
        }
        self.version += 1;
        self.removed.insert(*node, self.version);
        if self.removed.len() > REMOVED_MAX {
            let oldest = self.removed.iter().min_by_key(|(_, version)| **version).map(|(node, _)| *node);
            if let Some(oldest) = oldest {
                self.removed.remove(&oldest);
            }
        }
        true
    }

    /// Drops invites whose users need no answer any more.
    pub(super) fn prune(&mut self, at: Millis) {
        self.invites.retain(|_, invite| !invite.over(at));
    }

    /// The clock jumped to `at`: an invite that had not expired starts a full period (F14), once, so that nightly pauses
    /// do not keep it open for ever.
    pub(super) fn jump(&mut self, at: Millis, gap_ms: u64) {
        let before = Millis(at.0.saturating_sub(gap_ms));
        for invite in self.invites.values_mut().filter(|invite| !invite.extended && !invite.expired(before)) {
            invite.from = at;
            invite.extended = true;
        }
    }
}

/// A device's name as the roster takes it: one line without characters that steer a terminal, cut to its limits; the short id when
/// nothing is left. Names come from other devices, so a bad one is mended and never a reason to turn a device away.
#[must_use]
pub fn label(name: &str, node: &NodeId) -> String {
    let harmless = |c: &char| *c == ' ' || check_name(c.encode_utf8(&mut [0; 4])).is_ok();
    let line: String = name.chars().take(NAME_BYTES_MAX).filter(harmless).collect();
    let cut: String = line.trim().chars().take(NAME_CHARS_MAX).collect();
    match clip_end(&cut, NAME_BYTES_MAX).trim_end() {
        "" => node.short(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
