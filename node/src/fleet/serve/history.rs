//! One page of history for the broker.

use chappie_mesh::{NodeId, Stream, StreamKind};
use tokio::time::timeout;

use super::{
    super::protocol::{
        CONTROL_MAX,
        history::{News, Order},
    },
    Incoming,
    run::FIRST_MAX,
};

impl Incoming {
    pub(super) async fn history(&self, peer: NodeId, mut stream: Stream) {
        let wanted = match timeout(FIRST_MAX, stream.recv.message::<Order>(CONTROL_MAX)).await {
            Ok(Ok(Some(Order::Page(wanted)))) => wanted,
            Ok(Err(error)) => return self.complain(&peer, StreamKind::History, &error),
            Ok(Ok(None)) | Err(_) => return,
        };
        let news = match self.not_the_broker(&peer).await {
            Some(refusal) => News::Failed(refusal),
            None => tokio::select! {
                biased;
                page = self.node.history(wanted.into()) => match page {
                    Ok(parcel) => News::Page(parcel.into()),
                    Err(reason) => News::Failed(reason),
                },
                // Whoever waited has gone, or says what nobody asked for.
                _ = stream.recv.message::<Order>(CONTROL_MAX) => return,
            },
        };
        drop(stream.send.message(&news).await);
    }
}
