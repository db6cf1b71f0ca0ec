//! Who is there while nobody leads, and in which group. A connection looks well for seconds after the device behind it has
//! died, and a device may be there without its store: only the member's own answer counts.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    api::Group,
    network::Line,
    shared::Shared,
    wire::{Answer, Body, Here},
};
use crate::identity::NodeId;

/// How long a voter may take to answer; a dial may be part of it. People are told within 5 s who is missing, and it is up to a
/// second until the loss of a leader is noticed.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// Between two rounds of questions: who comes back is seen a second or two later.
const AGAIN: Duration = Duration::from_secs(1);

/// What a device said when it was asked who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is in this member's group.
    Same,
    /// It is in another one, in which somebody `acts` as the broker, as far as it knows.
    Other {
        /// That group.
        group: Group,
        /// Whether somebody does.
        acts: bool,
    },
}

/// Asks devices of which group they are; those that answer within `wait`.
pub(super) async fn sound(line: &Line, nodes: &[NodeId], wait: Duration) -> Vec<(NodeId, Said)> {
    let asked = nodes.iter().map(async |node| (*node, line.ask(*node, None, Body::Sound, wait).await));
    let answers = futures_util::future::join_all(asked).await;
    let said = answers.into_iter().filter_map(|(node, answer)| match answer {
        Ok(Answer::Here(_)) => Some((node, Said::Same)),
        Ok(Answer::Other(group, acts)) => Some((node, Said::Other { group, acts })),
        _ => None,
    });
    said.collect()
}

/// Asks the other voters who they are, and gives those that answer as the members that vote.
pub(super) async fn ask(shared: &Shared, line: &Line) -> Vec<(NodeId, Here)> {
    let members = shared.metrics().membership_config;
    let voters = members.voter_ids().filter(|id| *id != shared.own);
    let asked = voters.filter_map(|id| members.get_node(&id).map(|place| (id, place.node)));
    let asked = asked.map(async |(id, node)| (node, line.ask(node, Some(id), Body::Sound, WAIT).await));
    let answers = futures_util::future::join_all(asked).await;
    let there = answers.into_iter().filter_map(|(node, answer)| match answer {
        Ok(Answer::Here(here)) => Some((node, here)),
        _ => None,
    });
    there.collect()
}

/// Asks them again and again while nobody leads, for as long as the member runs.
pub(super) async fn watch(shared: Arc<Shared>, line: Line) {
    let mut standings = shared.standing.subscribe();
    loop {
        let others = |voters: &BTreeSet<NodeId>| voters.iter().any(|node| *node != shared.node);
        if standings.wait_for(|now| now.leader.is_none() && others(&now.voters)).await.is_err() {
            return;
        }
        let round = async {
            let there = ask(&shared, &line).await;
            shared.present(there.into_iter().map(|(node, _)| node).collect());
            tokio::time::sleep(AGAIN).await;
        };
        tokio::select! {
            biased;
            led = standings.wait_for(|now| now.leader.is_some()) => {
                if led.is_err() {
                    return;
                }
                shared.led();
            }
            () = round => {}
        }
    }
}
