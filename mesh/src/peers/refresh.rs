//! A device whose roster may be old asks the members it reaches for a later one (failure rule F20). Mostly the broker's
//! word comes by itself, over the program's own streams; this is for when it does not: nobody who could be broker is
//! reached, because others are by now, or somebody was called no member. Whether a roster counts is the program's business.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{core::Core, link::Link};
use crate::{
    identity::{MeshId, NodeId, Roster},
    transport::Stream,
    wire::{JOIN_REPLY_BYTES_MAX, JoinReply},
};

/// The first byte of a stream with this question.
pub(super) const ROSTER_STREAM: u8 = 7;
/// Whoever could be broker is out of reach for this long: longer than a restart, an election or a moved cable takes.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// Between two rounds of questions: a stranger that knocks again and again costs no more.
const ROUND_EVERY: Duration = Duration::from_secs(2);
/// One member answers within this, or the next round asks it again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// A question is some dozens of bytes; a later program's may have more.
const QUESTION_BYTES_MAX: usize = 1024;
/// Addresses of members that go with an answer; limits as in a join.
const MEMBERS_TOLD_MAX: usize = 1_000;

/// Which roster the asking device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Has {
    mesh: MeshId,
    epoch: u64,
    version: u64,
}

/// Asks when there is a reason; ends with the mesh.
pub(crate) async fn keep_fresh(core: Arc<Core>) {
    let (mut connected, mut rosters) = (core.table.connected(), core.rosters());
    let mut lost_since: Option<Instant> = None;
    loop {
        let now = Arc::clone(&connected.borrow_and_update());
        let roster = Arc::clone(&rosters.borrow_and_update());
        if is_lost(&roster, &core.node, &now) {
            lost_since.get_or_insert_with(Instant::now);
        } else {
            lost_since = None;
            core.set_lost(false);
        }
        let round = async {
            match lost_since {
                Some(since) if since.elapsed() < LOST_AFTER => tokio::time::sleep_until(since + LOST_AFTER).await,
                Some(_) => tokio::time::sleep(ROUND_EVERY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = core.stopping.cancelled() => return,
            () = core.doubt.notified() => {}
            changed = rosters.changed() => if changed.is_err() { return } else { continue },
            changed = connected.changed() => if changed.is_err() { return } else { continue },
            () = round => if core.set_lost(true) {
                tracing::info!("nobody who could be broker is reached: other members are asked");
                core.table.poke_all();
            },
        }
        ask_round(&core).await;
        tokio::select! {
            biased;
            () = core.stopping.cancelled() => return,
            () = tokio::time::sleep(ROUND_EVERY) => {}
        }
    }
}

/// Whether there are others who could be broker and none of them is connected.
fn is_lost(roster: &Roster, own: &NodeId, connected: &BTreeSet<NodeId>) -> bool {
    let mut others = roster.members.keys().filter(|node| *node != own && roster.is_central(node)).peekable();
    others.peek().is_some() && !others.any(|node| connected.contains(node))
}

async fn ask_round(core: &Arc<Core>) {
    let links: Vec<Arc<Link>> = core.table.links().into_iter().filter(|link| link.is_open()).collect();
    let questions = links.iter().map(|link| async {
        if let Ok(Some((roster, addresses))) = tokio::time::timeout(ANSWERED_WITHIN, ask(core, link)).await {
            let own = core.roster();
            if roster.supersedes(&own) && roster.members.contains_key(&core.node) {
                tracing::info!(from = %link.label, version = roster.version, "a member has a later roster");
                core.handler.news(link.peer(), roster, addresses);
            }
        }
    });
    futures_util::future::join_all(questions).await;
}

async fn ask(core: &Core, link: &Arc<Link>) -> Option<(Roster, Vec<(NodeId, Vec<std::net::SocketAddr>)>)> {
    let mut stream = link.open_as(ROSTER_STREAM, false).await.ok()??;
    let roster = core.roster();
    let has = Has { mesh: roster.mesh, epoch: roster.epoch, version: roster.version };
    stream.send.message(&has).await.ok()?;
    let answer = stream.recv.frame(JOIN_REPLY_BYTES_MAX).await.ok()??;
    match JoinReply::decode(&answer).ok()? {
        JoinReply::Welcome { roster, addresses } => Some((roster, addresses)),
        JoinReply::Refused(_) => None,
    }
}

/// Answers with this device's roster, if it is a later one.
pub(super) async fn answer(core: Arc<Core>, link: Arc<Link>, mut stream: Stream) {
    let answered = async {
        let Ok(Some(has)) = stream.recv.message::<Has>(QUESTION_BYTES_MAX).await else { return };
        let roster = Roster::clone(&core.roster());
        let later = roster.mesh == has.mesh && (roster.epoch, roster.version) > (has.epoch, has.version);
        let reply = if later {
            let mut addresses = core.addresses_for(Some(link.connection.address()));
            addresses.truncate(MEMBERS_TOLD_MAX);
            JoinReply::Welcome { roster, addresses }
        } else {
            JoinReply::Refused("nothing later is known here".to_owned())
        };
        if stream.send.message(&reply).await.is_ok() {
            stream.send.finish();
        }
    };
    if tokio::time::timeout(ANSWERED_WITHIN, answered).await.is_err() {
        tracing::debug!(peer = %link.label, "a question for the roster was not answered in time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Member;

    fn node(byte: u8) -> NodeId {
        NodeId::from([byte; 32])
    }

    #[test]
    fn a_device_is_lost_when_none_of_those_who_could_be_broker_is_connected() {
        let mut roster = Roster::alone([7; 16].into(), node(1), "one".into());
        let lost = |roster: &Roster, own, connected: &[u8]| {
            is_lost(roster, &node(own), &connected.iter().copied().map(node).collect())
        };
        assert!(!lost(&roster, 1, &[]), "alone it is the broker");
        for other in 2..=4 {
            roster.members.insert(node(other), Member { name: "x".into() });
        }
        assert!(!lost(&roster, 1, &[]), "nobody else could be broker");
        assert!(lost(&roster, 2, &[]) && lost(&roster, 2, &[3, 4]));
        assert!(!lost(&roster, 2, &[1]));
        roster.voters.insert(node(3));
        assert!(!lost(&roster, 2, &[3]) && lost(&roster, 1, &[2]) && lost(&roster, 2, &[4]));
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let bytes = crate::wire::encode(&Has { mesh: [7; 16].into(), epoch: 1, version: 300 }).unwrap();
        assert_eq!(bytes, [&[7; 16][..], &[1, 0xac, 2]].concat());
    }
}
