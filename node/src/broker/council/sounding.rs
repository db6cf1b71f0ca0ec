//! Before a device that has just started stands for election, it asks the other members of which epoch they are (failure rule
//! F16): what it does then is decided in [`super::super::follow`].

use std::{sync::Arc, time::Duration};

use chappie_mesh::{
    NodeId,
    consensus::{Consensus, Group, Standing},
    runtime::spawn,
};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep},
};

use super::{
    super::{
        follow::{Start, start},
        limits::{SOUND_MS, SOUND_ROUND_MS},
    },
    Change, Council,
};

impl Council {
    /// Begins to ask, if it has to.
    pub(super) fn sound(&mut self) {
        let Ok(running) = &self.running else { return };
        if self.stands || self.sounding.is_some() {
            return;
        }
        let (mut say, said) = oneshot::channel();
        let (consensus, standing) = (running.consensus.clone(), running.standing.clone());
        let (own, others) = (self.head.group, self.others.clone());
        spawn(async move {
            tokio::select! {
                biased;
                // It has moved to another group meanwhile.
                () = say.closed() => {}
                start = ask(own, &consensus, standing, &others) => drop(say.send(start)),
            }
        });
        self.sounding = Some(said);
    }

    /// Does what the others' answers mean.
    pub(super) async fn begin_with(&mut self, start: Start) {
        if self.stands {
            return;
        }
        self.stands = true;
        let standing = Arc::clone(&self.shared.standing.borrow());
        match start {
            Start::Follow(theirs) if standing.leader.is_none() => {
                tracing::warn!(?theirs, "the mesh went on in a later epoch while this device was off; it follows");
                if let Err(error) = self.change(Change::Leave { group: theirs, archive: "before-follow" }).await {
                    tracing::warn!(%error, "the later epoch of the mesh could not be followed yet");
                }
            }
            // Whoever leads in this epoch was heard meanwhile: then both go on, and the split is named.
            Start::Follow(_) | Start::Stand | Start::Ask => {
                if let Ok(running) = &self.running {
                    running.consensus.stand().await;
                }
            }
        }
    }
}

/// Asks until it is clear what to do.
async fn ask(own: Group, consensus: &Consensus, standing: watch::Receiver<Arc<Standing>>, others: &[NodeId]) -> Start {
    let until = Instant::now() + Duration::from_millis(SOUND_MS);
    let (least, pause, later) = SOUND_ROUND_MS;
    let least = Duration::from_millis(least);
    loop {
        let wait = until.saturating_duration_since(Instant::now()).max(least);
        let said: Vec<_> = consensus.sound(others, wait).await.into_iter().map(|(_, said)| said).collect();
        let over = Instant::now() >= until || standing.borrow().leader.is_some();
        match start(own, &said, said.len() == others.len(), over) {
            Start::Ask => sleep(Duration::from_millis(if over { later } else { pause })).await,
            start => return start,
        }
    }
}

/// Resolves when it is clear.
pub(super) async fn sounded(sounding: &mut Option<oneshot::Receiver<Start>>) -> Start {
    match sounding {
        Some(said) => said.await.unwrap_or(Start::Stand),
        None => std::future::pending().await,
    }
}
