//! Who knocks, and what becomes of them: members go to `peers`, devices with an invite to the `door`, everybody else is
//! refused. Each refusal is one line in the log, and they cannot flood it.

mod bucket;
mod door;
mod join;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::Semaphore;

pub use self::join::{join, join_over};
use self::{
    bucket::{Bucket, Rate},
    door::Door,
};
use crate::{
    peers::{Core, Refusal, greet_caller, take_asker},
    transport::{Ended, Knock, Protocol},
    wire::CloseCode,
};

/// Handshakes and first words at a time; a device's whole mesh can come back at once.
const PENDING_MAX: usize = 256;
/// From this many on, a device has to show that its address is its own before it costs anything.
const PENDING_UNPROVEN_MAX: usize = 64;
/// Lines about refusals: enough to see what happens.
const REFUSALS: Rate = Rate { burst: 20, every: Duration::from_secs(2) };

/// Takes everybody who knocks; ends with the endpoint.
pub(crate) async fn answer(core: Arc<Core>) {
    let pending = Arc::new(Semaphore::new(PENDING_MAX));
    let door = Arc::new(Door::default());
    let refusals = Arc::new(Refusals::default());
    while let Some(knock) = core.endpoint.knock().await {
        let Ok(place) = Arc::clone(&pending).try_acquire_owned() else {
            refusals.log(&core, knock.address(), None, "too many devices knock at once");
            knock.refuse();
            continue;
        };
        let crowded = pending.available_permits() < PENDING_MAX - PENDING_UNPROVEN_MAX;
        let Some(knock) = (if crowded { knock.prove_address() } else { Some(knock) }) else { continue };
        let (core, door, refusals) = (Arc::clone(&core), Arc::clone(&door), Arc::clone(&refusals));
        crate::runtime::spawn(async move {
            let _place = place;
            take(&core, &door, &refusals, knock).await;
        });
    }
}

async fn take(core: &Arc<Core>, door: &Arc<Door>, refusals: &Refusals, knock: Knock) {
    let address = knock.address();
    let connection = match knock.handshake().await {
        Ok(connection) => connection,
        Err(ended) => return refusals.log(core, address, None, &format!("no handshake: it {ended}")),
    };
    let peer = connection.peer();
    let refused = match connection.protocol() {
        Protocol::Mesh => match greet_caller(core, connection).await {
            Ok(_) | Err(Refusal::Needless) => None,
            // It thought better of it: the other connection won, or it is stopping.
            Err(Refusal::Theirs(Ended::Closed { code: Some(CloseCode::Redundant | CloseCode::Stopping), .. })) => None,
            Err(refusal) => Some(refusal.story()),
        },
        Protocol::Raft => match take_asker(core, connection).await {
            Ok(()) | Err(Refusal::Needless) => None,
            Err(refusal) => Some(refusal.story()),
        },
        Protocol::Join => door.open(core, connection).await.err(),
    };
    if let Some(why) = refused {
        refusals.log(core, address, Some(core.label(&peer)), &why);
    }
}

/// Lines about refusals.
struct Refusals(Mutex<(Bucket, u64)>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::new((Bucket::new(REFUSALS), 0)))
    }
}

impl Refusals {
    fn log(&self, core: &Core, address: SocketAddr, device: Option<String>, why: &str) {
        let left_out = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.0.take(core.now()) {
                state.1 += 1;
                return;
            }
            std::mem::take(&mut state.1)
        };
        let device = device.unwrap_or_else(|| "a device".to_owned());
        tracing::warn!(%address, left_out, "refused a connection: {device} {why}");
    }
}
