//! How many streams of each kind one peer may have at a time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use chappie_mesh::{NodeId, StreamKind};

/// The most at a time. Together they stay below the 1,024 streams that a connection carries, except that a broker with
/// that many waits has no doors of its own to serve.
const fn most(kind: StreamKind) -> usize {
    match kind {
        // The broker asks, or a member reports: short, and repeated when refused.
        StreamKind::Ask => 256,
        // Not served here.
        StreamKind::Desk => 0,
        // One, and its successor after a change of address.
        StreamKind::Feed => 4,
        // Calls of a door, held history waits among them.
        StreamKind::Door => 900,
        // Operations that somebody waits for; what is answered as running holds none.
        StreamKind::Run => 256,
        // 500 held waits and room (failure rule F22).
        StreamKind::History => 600,
    }
}

type Counts = Mutex<BTreeMap<(NodeId, StreamKind), usize>>;

/// Counts streams.
#[derive(Default)]
pub(super) struct Quotas(Arc<Counts>);

/// One stream's place; free again once dropped.
pub(super) struct Place {
    key: (NodeId, StreamKind),
    counts: Arc<Counts>,
}

impl Quotas {
    /// A place, unless all of this peer and kind are taken.
    pub(super) fn take(&self, peer: NodeId, kind: StreamKind) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((peer, kind)).or_default();
        (*count < most(kind)).then(|| {
            *count += 1;
            Place { key: (peer, kind), counts: Arc::clone(&self.0) }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_quota_and_no_more_until_one_ends() {
        let quotas = Quotas::default();
        let peer = NodeId::from([1; 32]);
        let mut places: Vec<Place> =
            (0..most(StreamKind::Run)).map(|_| quotas.take(peer, StreamKind::Run).unwrap()).collect();
        assert!(quotas.take(peer, StreamKind::Run).is_none());
        assert!(quotas.take(peer, StreamKind::Ask).is_some(), "each kind has its own");
        assert!(quotas.take(NodeId::from([2; 32]), StreamKind::Run).is_some(), "so has each peer");
        places.pop();
        assert!(quotas.take(peer, StreamKind::Run).is_some());
        places.clear();
        assert!(quotas.0.lock().unwrap().is_empty());
    }
}
