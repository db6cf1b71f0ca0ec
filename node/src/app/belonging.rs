//! Which mesh this device belongs to, for people: invite, join, peers, and the mesh's part of `status` and `doctor`.

use std::{sync::PoisonError, time::Duration};

use chappie_mesh::{InviteCode, JoinError, NodeId, PeerStatus, fresh_invite};
use tokio::time::timeout;

use super::{Node, mesh::duplicate_text};
use crate::{
    clock,
    config::JoinCode,
    control::{
        BrokerRow, CommandError, Finding, InviteRow, JoinRow, PeerRow, QuorumRow, SessionRow, StatusReport,
        membership::{Joining, joining, terms},
    },
    fleet::membership::{HAND_OVER_WAIT, JoinFailure},
};

/// Addresses in one code; more make it too long to type, and a device has a handful of useful ones.
const CODE_ADDRESSES: usize = 8;

impl Node {
    /// This device's id.
    pub(super) fn own(&self) -> NodeId {
        self.identity.node_id()
    }

    pub(super) async fn make_invite(&self, uses: u32, ttl_ms: u64) -> Result<InviteRow, CommandError> {
        terms(uses, ttl_ms)?;
        self.is_itself()?;
        let Some(mesh) = self.mesh.get() else {
            return Err(CommandError::new(
                "nobody could use an invite now: start the node with `chappie up`, and make the invite while it runs",
            ));
        };
        let addresses: Vec<String> = mesh.addresses().iter().take(CODE_ADDRESSES).map(ToString::to_string).collect();
        if addresses.is_empty() {
            return Err(CommandError::new(
                "this device has no address that another one could dial; connect it to a network first",
            ));
        }
        let (id, secret) = fresh_invite(clock::random());
        let expires_at = clock::rfc3339(clock::now().plus(ttl_ms));
        self.register_invite(id, secret.key(), uses, ttl_ms).await?;
        let code = InviteCode { mesh: self.membership.roster().mesh, inviter: self.own(), addresses, id, secret };
        Ok(InviteRow { code: code.to_string(), expires_at })
    }

    pub(super) async fn join_mesh(&self, code: JoinCode) -> Result<JoinRow, CommandError> {
        let code = code.invite();
        let roster = self.membership.roster();
        if joining(&roster, &self.own(), code.mesh)? == Joining::Member && roster.members.len() > 1 {
            return Ok(JoinRow {
                mesh: roster.mesh.to_string(),
                device: roster.label(&code.inviter),
                members: roster.members.len() as u64,
                already: true,
            });
        }
        let build = env!("CARGO_PKG_VERSION");
        let joined = self.membership.join(&self.identity, &self.config.name, build, code).await;
        let roster = joined.map_err(|failure| {
            let passing = matches!(
                failure,
                JoinFailure::Mesh(JoinError::Unreachable(_) | JoinError::Busy | JoinError::BrokenOff(_))
            );
            CommandError { message: failure.to_string(), temporary: passing }
        })?;
        if let Some(mesh) = self.mesh.get() {
            mesh.learn(self.membership.addresses());
            let mut seated = self.membership.seated();
            let settled = async { while self.membership.is_owing() && seated.changed().await.is_ok() {} };
            if timeout(HAND_OVER_WAIT, settled).await.is_err() {
                tracing::warn!("joined; the mesh's broker has yet to take over what this device's own broker knew");
            }
        }
        Ok(JoinRow {
            mesh: roster.mesh.to_string(),
            device: roster.label(&code.inviter),
            members: roster.members.len() as u64,
            already: false,
        })
    }

    pub(super) fn peer_rows(&self) -> Vec<PeerRow> {
        let mut rows: Vec<PeerRow> = match self.mesh.get() {
            Some(mesh) => mesh.peers().into_iter().map(|peer| self.peer_row(peer)).collect(),
            None => {
                let roster = self.membership.roster();
                let others = roster.members.iter().filter(|(node, _)| **node != self.own());
                others
                    .map(|(node, member)| PeerRow {
                        node: node.to_string(),
                        name: member.name.clone(),
                        state: "unknown".into(),
                        addresses: Vec::new(),
                        rtt_ms: None,
                        trouble: None,
                    })
                    .collect()
            }
        };
        rows.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        rows
    }

    fn peer_row(&self, peer: PeerStatus) -> PeerRow {
        PeerRow {
            node: peer.node.to_string(),
            name: peer.name,
            state: peer.state.as_str().into(),
            addresses: peer.addresses.iter().map(ToString::to_string).collect(),
            rtt_ms: peer.rtt.map(|rtt| (rtt.as_secs_f64() * 1_000_000.0).round() / 1_000.0),
            trouble: self.duplicate_of(&peer.node).or(peer.trouble),
        }
    }

    /// What is known of a second device with this identity.
    fn duplicate_of(&self, node: &NodeId) -> Option<String> {
        let seen = self.duplicates.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, duplicate) = seen.get(node)?;
        let fresh: Duration = super::mesh::DUPLICATE_SHOWN;
        (at.elapsed() < fresh).then(|| duplicate_text(&self.membership.roster().label(node), duplicate))
    }

    /// Refuses what only the real bearer of this identity may do, while this device is the one that is kept out.
    pub(super) fn is_itself(&self) -> Result<(), CommandError> {
        let refused = {
            let seen = self.duplicates.lock().unwrap_or_else(PoisonError::into_inner);
            seen.get(&self.own()).is_some_and(|(_, duplicate)| duplicate.refused)
        };
        match self.duplicate_of(&self.own()).filter(|_| refused) {
            Some(trouble) => Err(CommandError::new(trouble)),
            None => Ok(()),
        }
    }

    /// What keeps this device from its mesh.
    pub(super) fn trouble(&self) -> Option<String> {
        self.duplicate_of(&self.own()).or_else(|| {
            let roster = self.membership.roster();
            let apart = self.mesh.get().is_some() && !self.is_broker() && !self.connected(&roster.broker);
            apart.then(|| {
                format!(
                    "the broker's device {} is not connected: ChatGPT's calls wait for it and then fail. Start its node, \
                     or bring both devices onto one network",
                    roster.label(&roster.broker)
                )
            })
        })
    }

    /// Sessions of this device that the fleet does not list, because another device had their ids first.
    fn hidden(&self, listed: &[SessionRow]) -> Option<String> {
        let own = self.session_rows();
        let lost: Vec<&str> = own
            .iter()
            .filter(|row| !listed.iter().any(|other| other.id == row.id && other.agent_dir == row.agent_dir))
            .map(|row| row.name.as_deref().unwrap_or(&row.cwd))
            .collect();
        (!lost.is_empty()).then(|| {
            format!(
                "not reachable for ChatGPT: {}. Another device of the mesh had sessions of the same ids first, as after copying \
                 CHAPPIE_HOME; end them here with `chappie session end` and open new ones",
                lost.join(", ")
            )
        })
    }

    pub(super) async fn report(&self) -> StatusReport {
        let roster = self.membership.roster();
        let is_self = self.is_broker();
        let broker = if is_self { self.own() } else { roster.broker };
        let reachable = is_self || self.connected(&broker);
        let sessions = self.fleet_sessions().await;
        let hidden = || self.hidden(&sessions).filter(|_| reachable);
        let name = roster.members.get(&broker).map_or_else(|| broker.short(), |member| member.name.clone());
        StatusReport {
            node: self.own().to_string(),
            name: self.config.name.clone(),
            mesh: (roster.members.len() > 1).then(|| roster.mesh.to_string()),
            broker: reachable.then(|| BrokerRow { node: broker.to_string(), name, term: 1, is_self }),
            quorum: QuorumRow { voters: 1, reachable: u32::from(reachable), ok: reachable },
            peers: self.peer_rows(),
            trouble: self.trouble().or_else(hidden),
            sessions,
            version: env!("CARGO_PKG_VERSION").into(),
            quic: self.mesh.get().map(|mesh| mesh.local_addr().to_string()),
        }
    }

    /// The mesh's part of `doctor`.
    pub(super) fn mesh_findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(trouble) = self.duplicate_of(&self.own()) {
            findings.push(Finding {
                name: "identity".into(),
                ok: false,
                detail: trouble,
                advice: "run `chappie reset-identity` on the copy".into(),
            });
        }
        let roster = self.membership.roster();
        if !self.is_broker() {
            let reachable = self.connected(&roster.broker);
            let advice = "start the node there, and check that UDP passes between the two devices";
            findings.push(Finding {
                name: "broker".into(),
                ok: reachable,
                detail: format!("{}{}", roster.label(&roster.broker), if reachable { "" } else { " is not connected" }),
                advice: if reachable { String::new() } else { advice.into() },
            });
        }
        findings
    }
}
