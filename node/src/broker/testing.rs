//! A broker that stands alone, for the tests of what uses it.

use std::{path::Path, sync::Arc, time::Duration};

use chappie_mesh::{
    Incarnation, NodeId,
    consensus::{Carrier, Pace, Unreached, Voting},
};
use futures_util::future::BoxFuture;

use super::{Broker, OpenError, Place, Settings};
use crate::storage::medium::Medium;

/// Reaches nobody.
pub(crate) struct Nowhere;

impl Carrier for Nowhere {
    fn ask(&self, _: NodeId, _: Vec<u8>, _: Duration) -> BoxFuture<'static, Result<Vec<u8>, Unreached>> {
        Box::pin(async { Err(Unreached("there is nobody else".into())) })
    }
}

/// Patience of members in one process.
pub(crate) const PACE: Pace = Pace { heartbeat_ms: 60, patience_min_ms: 200, patience_max_ms: 400 };

/// Where a device that stands alone is.
pub(crate) fn place(medium: Medium, node: NodeId) -> Place {
    Place {
        sounds: false,
        medium,
        node,
        name: "first".into(),
        run: Incarnation::first([1; 16]),
        voting: Voting::Auto,
        carrier: Arc::new(Nowhere),
        pace: PACE,
        member_of: None,
    }
}

/// The broker of a device that stands alone.
pub(crate) async fn alone(home: &Path, node: NodeId, settings: Settings) -> Result<Broker, OpenError> {
    Broker::open(place(Medium::Folder(home.to_owned()), node), settings).await
}

/// The same without waiting, for tests that are built outside a task: it lives on a thread of its own until its last handle
/// is dropped.
pub(crate) fn apart(home: &Path, node: NodeId, settings: Settings) -> Broker {
    let (home, (say, said)) = (home.to_owned(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let broker = alone(&home, node, settings).await.unwrap();
            let ended = broker.jobs.clone().downgrade();
            say.send(broker).unwrap();
            while ended.upgrade().is_some() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    said.recv().unwrap()
}
