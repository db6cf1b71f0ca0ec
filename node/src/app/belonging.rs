//! Which mesh this device belongs to, for people: invite, join, peers, and the mesh's part of `status` and `doctor`.

use std::{collections::BTreeSet, sync::PoisonError, time::Duration};

use chappie_mesh::{InviteCode, JoinError, NodeId, PeerStatus, Roster, consensus::Standing, fresh_invite};
use tokio::time::timeout;

use super::{Node, mesh::duplicate_text};
use crate::{
    broker::ProposeError,
    clock,
    config::JoinCode,
    control::{
        BrokerRow, CommandError, Finding, FollowRow, InviteRow, JoinRow, PeerRow, QuorumRow, RecoverRow, SessionRow,
        StatusReport,
        membership::{Joining, joining, named, terms},
    },
    fleet::{
        membership::{HAND_OVER_WAIT, JoinFailure},
        seat::Holder,
    },
};

/// A voter that answered within this counts as there: several of the leader's signs of life at the slowest pace.
const ANSWERED_MAX_MS: u64 = 3_000;

/// Where enough voters answer, one is elected within this: several elections at the slowest pace.
const ELECTED_WITHIN: Duration = Duration::from_secs(5);

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
        let joining = joining(&roster, &self.own(), code.mesh, &code.inviter)?;
        if joining == Joining::Member && roster.members.len() > 1 {
            return Ok(JoinRow {
                mesh: roster.mesh.to_string(),
                device: roster.label(&code.inviter),
                members: roster.members.len() as u64,
                already: true,
            });
        }
        let build = env!("CARGO_PKG_VERSION");
        let sockets = self.sockets.as_deref();
        let joined = self.membership.join(&self.identity, &self.config.name, build, code, sockets).await;
        let roster = joined.map_err(|failure| {
            let passing = matches!(
                failure,
                JoinFailure::Mesh(JoinError::Unreachable(_) | JoinError::Busy | JoinError::BrokenOff(_))
            );
            CommandError { message: failure.to_string(), temporary: passing }
        })?;
        if let Some(mesh) = self.mesh.get() {
            mesh.learn(self.membership.addresses());
            let mut owing = self.membership.owing();
            if timeout(HAND_OVER_WAIT, owing.wait_for(|owing| !owing)).await.is_err() {
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
        let standing = self.broker.standing().borrow().clone();
        let mut rows: Vec<PeerRow> = match self.mesh.get() {
            Some(mesh) => mesh.peers().into_iter().map(|peer| self.peer_row(peer, &standing)).collect(),
            None => {
                let roster = self.membership.roster();
                let others = roster.members.iter().filter(|(node, _)| **node != self.own());
                others
                    .map(|(node, member)| PeerRow {
                        node: node.to_string(),
                        name: member.name.clone(),
                        state: "unknown".into(),
                        addresses: Vec::new(),
                        voter: roster.voters.contains(node),
                        lag: None,
                        rtt_ms: None,
                        trouble: None,
                    })
                    .collect()
            }
        };
        rows.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        rows
    }

    fn peer_row(&self, peer: PeerStatus, standing: &Standing) -> PeerRow {
        PeerRow {
            node: peer.node.to_string(),
            name: peer.name,
            state: peer.state.as_str().into(),
            addresses: peer.addresses.iter().map(ToString::to_string).collect(),
            voter: standing.voters.contains(&peer.node),
            lag: standing.followers.get(&peer.node).filter(|at| at.answered_ms.is_some()).map(|at| at.lag),
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
        let standing = self.broker.standing().borrow().clone();
        self.duplicate_of(&self.own())
            .or_else(|| self.split())
            .or_else(|| standing.trouble.clone())
            .or_else(|| self.without_broker(&standing))
    }

    /// That no broker can be asked from here.
    fn without_broker(&self, standing: &Standing) -> Option<String> {
        self.mesh.get()?;
        match self.seat.holder() {
            Holder::Here => None,
            Holder::There(broker) if self.connected(&broker) => None,
            Holder::There(broker) if standing.voters.len() <= 1 => Some(format!(
                "the broker's device {} is not connected: ChatGPT's calls wait for it and then fail. Start its node, or \
                 bring both devices onto one network",
                self.membership.roster().label(&broker)
            )),
            Holder::There(_) | Holder::Nobody => Some(self.fleet.no_broker()),
        }
    }

    /// That this mesh goes on in two beginnings (F16).
    fn split(&self) -> Option<String> {
        let split = self.broker.split()?;
        let label = self.membership.roster().label(&split.node);
        Some(format!(
            "split: the device {label} belongs to another beginning of this mesh (epoch {} there, {} here), and both have a \
             broker. Nothing is merged by guess: on the devices whose side shall not count, run `chappie mesh follow` with a \
             device of the other side",
            split.group.epoch.count,
            self.broker.group().epoch.count
        ))
    }

    /// The voters, and how many of them answer: the broker's own word where this device is it, else who is connected.
    fn quorum(&self, standing: &Standing, roster: &Roster) -> QuorumRow {
        let known = if standing.voters.is_empty() { &roster.voters } else { &standing.voters };
        let answers = |node: &&NodeId| {
            **node == self.own()
                || match standing.followers.get(*node) {
                    Some(follower) => follower.answered_ms.is_some_and(|ms| ms <= ANSWERED_MAX_MS),
                    None => {
                        standing.answering.as_ref().map_or_else(|| self.connected(node), |there| there.contains(*node))
                    }
                }
        };
        let voters = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let reachable = u32::try_from(known.iter().filter(answers).count()).unwrap_or(u32::MAX);
        let heard = standing.term > 0 && standing.leader.is_some_and(|leader| leader != self.own());
        let led = standing.office.is_some() || heard;
        QuorumRow { voters, reachable, ok: reachable > voters / 2 && led }
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
        let standing = self.broker.standing().borrow().clone();
        // What was heard of a leader in a term of its counts here (a device that has no log yet knows none), not the hint in the roster that calls follow meanwhile.
        // An office is made sure of: a device that stood still has not noticed yet that its own is over (F11).
        let acting = standing.office.is_some() && self.broker.assure().await.is_ok();
        let broker = match (acting, standing.leader) {
            (true, _) => Some(self.own()),
            (false, Some(leader)) if standing.term > 0 && leader != self.own() && self.connected(&leader) => {
                Some(leader)
            }
            (false, _) => None,
        };
        let sessions = self.fleet_sessions().await;
        let hidden = || self.hidden(&sessions).filter(|_| broker.is_some());
        let row = |broker: NodeId| {
            let name = roster.members.get(&broker).map_or_else(|| broker.short(), |member| member.name.clone());
            BrokerRow { node: broker.to_string(), name, term: standing.term, is_self: broker == self.own() }
        };
        StatusReport {
            node: self.own().to_string(),
            name: self.config.name.clone(),
            mesh: (roster.members.len() > 1).then(|| roster.mesh.to_string()),
            broker: broker.map(row),
            quorum: self.quorum(&standing, &roster),
            peers: self.peer_rows(),
            trouble: self.trouble().or_else(hidden),
            sessions,
            version: env!("CARGO_PKG_VERSION").into(),
            quic: self.mesh.get().map(|mesh| mesh.local_addr().to_string()),
        }
    }

    /// The mesh's part of `doctor`: each kind of trouble by its own name.
    pub(super) fn mesh_findings(&self) -> Vec<Finding> {
        let standing = self.broker.standing().borrow().clone();
        let bad = |name: &str, detail: String, advice: &str| Finding {
            name: name.into(),
            ok: false,
            detail,
            advice: advice.into(),
        };
        let mut findings = Vec::new();
        if let Some(trouble) = self.duplicate_of(&self.own()) {
            let advice =
                "if this home was copied from another device: stop the node here and run `chappie reset-identity`";
            findings.push(bad("identity", trouble, advice));
        }
        if let Some(split) = self.split() {
            findings.push(bad("split", split, "whose side counts is for a person to say: `chappie mesh follow NODE`"));
        }
        if let Some(trouble) = standing.trouble.clone() {
            findings.push(bad(
                "log",
                trouble,
                "see that the disk is whole and has room; the node tries again by itself",
            ));
        }
        let broker = match self.seat.holder() {
            Holder::Here => return findings,
            Holder::There(broker) => Some(broker),
            Holder::Nobody => None,
        };
        let connected = broker.is_some_and(|broker| self.connected(&broker));
        let trouble = if connected { None } else { self.without_broker(&standing) };
        findings.push(match trouble {
            None => Finding {
                name: "broker".into(),
                ok: true,
                detail: broker.map_or_else(|| "none".to_owned(), |broker| self.membership.roster().label(&broker)),
                advice: String::new(),
            },
            Some(trouble) => {
                let quorum = self.quorum(&standing, &self.membership.roster());
                let (name, advice) = lack(&quorum);
                bad(name, trouble, advice)
            }
        });
        findings
    }

    /// Begins the mesh anew on this device (F16), or accepts that devices are lost whose operations nobody else knows (F17).
    /// Returns when this device acts as the new broker.
    pub(super) async fn recover_mesh(&self, accept_loss: bool) -> Result<RecoverRow, CommandError> {
        self.is_itself()?;
        if self.membership.is_owing() {
            return Err(CommandError::temporary("this device is joining a mesh just now; try again in a minute"));
        }
        if self.membership.roster().members.len() <= 1 {
            return Err(CommandError::new("this device stands alone: there is nothing to recover"));
        }
        let acting = self.acting(accept_loss).await;
        if let Some(acting) = acting.as_ref().filter(|_| accept_loss) {
            let roster = self.broker.roster();
            may_accept(&self.own(), &acting.broker, &self.broker.recovering(), |node| roster.label(node))?;
        } else {
            self.may_begin_anew(acting.as_ref())?;
            self.broker.recover().await.map_err(undecided)?;
            self.stands().await;
        }
        if accept_loss {
            self.broker.accept_loss().await.map_err(undecided)?;
        }
        let roster = self.broker.roster();
        let missing = absent(&self.broker.recovering(), &self.own()).map(|node| roster.label(node)).collect();
        Ok(RecoverRow { mesh: roster.mesh.to_string(), epoch: roster.epoch, missing, loss_only: acting.is_some() })
    }

    /// A mesh whose voters can still decide is not begun anew: both sides would go on.
    fn may_begin_anew(&self, acting: Option<&Acting>) -> Result<(), CommandError> {
        if self.broker.roster().members.is_empty() {
            return Err(CommandError::new(
                "this device has none of its mesh's records yet, so it cannot begin it anew: run `chappie mesh recover` on a \
                 device that was in step. If there is none, `chappie reset-identity` here makes it a device that stands alone",
            ));
        }
        let Some(Acting { quorum, .. }) = acting else { return Ok(()) };
        Err(CommandError::new(format!(
            "{} of {} voters answer, which is enough to decide: nothing is to be recovered, and beginning anew beside them \
             would make two meshes of one. See `chappie status`",
            quorum.reachable, quorum.voters
        )))
    }

    /// The broker that enough voters stand behind; one that is being elected is waited for. `short`: this device's own office
    /// is proof enough, when its voters confirm it.
    async fn acting(&self, short: bool) -> Option<Acting> {
        let roster = self.membership.roster();
        let standing = self.broker.standing().borrow().clone();
        if short && self.seat.holder() == Holder::Here && self.broker.assure().await.is_ok() {
            return Some(Acting { broker: self.own(), quorum: self.quorum(&standing, &roster) });
        }
        self.ask_round(&standing.voters).await;
        // A voter that is there may have lost its records, and then it does not count: whether one is elected tells.
        let mut standings = self.broker.standing();
        let led =
            standings.wait_for(|now| now.office.is_some() || now.leader.is_some_and(|leader| leader != self.own()));
        let standing = timeout(ELECTED_WITHIN, led).await.ok()?.ok()?.clone();
        let quorum = self.quorum(&standing, &roster);
        let broker = if standing.office.is_some() { self.own() } else { standing.leader? };
        quorum.ok.then_some(Acting { broker, quorum })
    }

    /// Waits until this device acts, after it has begun the mesh anew.
    async fn stands(&self) {
        let mut seat = self.seat.clone();
        let here = async {
            while seat.holder() != Holder::Here {
                seat.left(seat.holder()).await;
            }
        };
        if timeout(ELECTED_WITHIN, here).await.is_err() {
            tracing::warn!("the mesh was begun anew, and this device does not act as its broker yet");
        }
    }

    /// Asks all voters something, so that it is known after this who answers: a connection to a device that has just died
    /// looks well until somebody waits on it (F23).
    async fn ask_round(&self, voters: &BTreeSet<NodeId>) {
        let others = voters.iter().filter(|voter| **voter != self.own() && self.connected(voter));
        futures_util::future::join_all(others.map(|voter| self.is_there(*voter))).await;
    }

    /// Takes the side of another device after a split (F16).
    pub(super) async fn follow_device(&self, word: &str) -> Result<FollowRow, CommandError> {
        let roster = self.membership.roster();
        let node = named(&roster, word)?;
        if node == self.own() {
            return Err(CommandError::new("this is the device itself; name the one whose side counts"));
        }
        let Some(split) = self.broker.split() else {
            return Err(CommandError::new(
                "there is no split: no other device has begun this mesh anew, as far as this one has heard. See `chappie status`",
            ));
        };
        if split.node != node {
            return Err(CommandError::new(format!(
                "the other side was heard of from {}; name that device",
                roster.label(&split.node)
            )));
        }
        let archived = self.broker.follow(split.group).await.map_err(|error| CommandError::new(error.to_string()))?;
        Ok(FollowRow { device: roster.label(&node), archived: archived.display().to_string() })
    }
}

/// A broker, and the voters it has.
struct Acting {
    broker: NodeId,
    quorum: QuorumRow,
}

fn undecided(error: ProposeError) -> CommandError {
    CommandError::new(error.to_string())
}

/// What `doctor` calls the lack of a broker, and its advice: too few voters, or only the way to it.
const fn lack(quorum: &QuorumRow) -> (&'static str, &'static str) {
    if quorum.reachable <= quorum.voters / 2 {
        ("quorum", "until enough of them are back nothing shared is decided, and no device is let in or forgotten")
    } else {
        ("broker", "start the node there, and check that UDP passes between the devices")
    }
}

/// The devices of `recovering` that are waited for; `own` is there, and speaks in a moment.
fn absent<'a>(recovering: &'a BTreeSet<NodeId>, own: &NodeId) -> impl Iterator<Item = &'a NodeId> {
    recovering.iter().filter(move |node| *node != own)
}

/// Whether the device `own` may give up what the devices of `recovering` know, while `broker` acts (F17).
fn may_accept(
    own: &NodeId,
    broker: &NodeId,
    recovering: &BTreeSet<NodeId>,
    label: impl Fn(&NodeId) -> String,
) -> Result<(), CommandError> {
    // What a device that follows knows of the others may be late: it does not judge.
    if broker != own {
        let broker = label(broker);
        return Err(CommandError::new(format!(
            "the broker of this mesh is the device {broker}: if devices are waited for and lost, run `chappie mesh recover \
             --accept-loss` there. Nothing was changed"
        )));
    }
    if absent(recovering, own).next().is_none() {
        return Err(CommandError::new(
            "no device is waited for: there is a broker, new operations are taken, and no loss is to be accepted. Nothing was \
             changed; see `chappie status`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(byte: u8) -> NodeId {
        [byte; 32].into()
    }

    fn accepted(own: u8, broker: u8, recovering: &[u8]) -> Result<(), String> {
        let recovering = recovering.iter().copied().map(node).collect();
        may_accept(&node(own), &node(broker), &recovering, |_| "tower".to_owned()).map_err(|error| error.message)
    }

    #[test]
    fn f17_a_loss_is_accepted_at_the_broker_and_only_while_devices_are_waited_for() {
        assert_eq!(accepted(1, 1, &[2]), Ok(()));
        for recovering in [&[][..], &[1]] {
            let told = accepted(1, 1, recovering).unwrap_err();
            assert!(told.contains("no device is waited for"), "{recovering:?}: {told}");
        }
        for recovering in [&[][..], &[3]] {
            let told = accepted(2, 1, recovering).unwrap_err();
            assert!(told.contains("tower") && told.contains("mesh recover --accept-loss` there"), "{told}");
        }
    }

    #[test]
    fn the_device_itself_is_not_among_those_that_are_away() {
        let recovering = [node(1), node(2), node(3)].into();
        assert_eq!(absent(&recovering, &node(2)).collect::<Vec<_>>(), [&node(1), &node(3)]);
    }

    #[test]
    fn too_few_voters_are_a_lack_of_their_own() {
        for (voters, reachable, name) in
            [(3, 1, "quorum"), (1, 0, "quorum"), (5, 2, "quorum"), (3, 2, "broker"), (1, 1, "broker")]
        {
            let (told, advice) = lack(&QuorumRow { voters, reachable, ok: false });
            assert_eq!(told, name, "{reachable} of {voters}");
            assert!(!advice.contains("reset-identity"), "{advice}");
        }
    }
}
