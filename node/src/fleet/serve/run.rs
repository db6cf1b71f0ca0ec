//! One operation for the broker: handed to the local node, followed, and settled.

use std::{sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Stream, StreamKind};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    super::{
        Ran, Run,
        protocol::{
            CALL_MAX, CONTROL_MAX,
            run::{Dispatched, News, Order},
        },
    },
    Incoming,
};

/// How long the first message may take: 64 MiB at 512 KiB/s.
pub(super) const FIRST_MAX: Duration = Duration::from_secs(128);
/// Before the host is looked at, whether it has the operation: the first time, and later. The broker needs to know it
/// once, when it stops waiting.
const LOOKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

impl Incoming {
    pub(super) async fn run(&self, peer: NodeId, mut stream: Stream) {
        let first = timeout(FIRST_MAX, stream.recv.message::<Order>(CALL_MAX)).await;
        let dispatched = match first {
            Ok(Ok(Some(Order::Dispatch(dispatched)))) => *dispatched,
            Ok(Err(error)) => return self.complain(&peer, StreamKind::Run, &error),
            Ok(Ok(Some(Order::Cancel(_) | Order::Written(_)) | None)) | Err(_) => return,
        };
        if let Some(refusal) = self.not_the_broker(&peer).await {
            tracing::warn!(refusal, "an operation was refused");
            drop(stream.send.message(&News::Fenced(refusal)).await);
            return;
        }
        self.follow(&peer, stream, dispatched).await;
    }

    /// Hands the operation over; `None` when it is none.
    async fn begin(&self, stream: &mut Stream, dispatched: Dispatched) -> Option<Box<dyn Run>> {
        let call_id = dispatched.call_id().clone();
        let dispatch = match dispatched.open() {
            Ok(dispatch) => dispatch,
            Err(error) => {
                drop(stream.send.message(&News::NeverRan(format!("nothing was done: {error}"))).await);
                return None;
            }
        };
        let run = Arc::clone(&self.node).run(dispatch);
        // An earlier sending of it ends here, whose answer was not written, or it would not have been sent again: what that
        // carried is taken up by this one.
        self.held.take(&call_id).into_iter().for_each(|earlier| earlier.settle(false));
        Some(run)
    }

    async fn follow(&self, peer: &NodeId, mut stream: Stream, dispatched: Dispatched) {
        let call_id = dispatched.call_id().clone();
        let Some(mut run) = self.begin(&mut stream, dispatched).await else { return };
        let mut following = self.held.follow(&call_id);
        if stream.send.message(&News::Accepted).await.is_err() {
            return;
        }
        let [mut pause, longest] = LOOKS;
        let mut look_at = Instant::now() + pause;
        let (mut running, mut ended) = (false, false);
        loop {
            let news = tokio::select! {
                biased;
                order = stream.recv.message::<Order>(CONTROL_MAX) => match order {
                    Ok(Some(Order::Cancel(reason))) => {
                        run.cancel(reason).await;
                        News::CancelTaken
                    }
                    Ok(Some(Order::Written(written))) => {
                        if ended {
                            run.settle(written);
                        }
                        drop(stream.send.message(&News::Settled).await);
                        return;
                    }
                    Ok(Some(Order::Dispatch(_))) => continue,
                    // In order: nobody waits any more. The run is dropped, which says so.
                    Ok(None) => return,
                    Err(error) => {
                        self.complain(peer, StreamKind::Run, &error);
                        if ended {
                            self.held.keep(call_id, run);
                        }
                        return;
                    }
                },
                Ok(written) = &mut following.word, if ended => {
                    run.settle(written);
                    return;
                }
                ran = run.done(), if !ended => {
                    ended = true;
                    // A word that came before is about an answer without this outcome.
                    following = self.held.follow(&call_id);
                    if matches!(&ran, Ran::Finished(_)) { running = true; }
                    News::from(ran)
                }
                () = sleep_until(look_at), if !running && !ended => {
                    pause = (pause * 2).min(longest);
                    look_at = Instant::now() + pause;
                    running = run.is_running();
                    if !running { continue }
                    News::Running
                }
            };
            if stream.send.message(&news).await.is_err() && ended {
                self.held.keep(call_id, run);
                return;
            }
        }
    }
}
