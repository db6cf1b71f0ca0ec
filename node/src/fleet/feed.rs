//! Both ends of [`chappie_mesh::StreamKind::Feed`]: a member announces what it has (failure rule F13), the broker answers
//! with the roster and addresses.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use chappie_mesh::{NodeId, Roster, Stream, StreamError, StreamKind};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    line::{ASK_WAIT, Line},
    protocol::{
        Extensions, FEED_MAX,
        feed::{Announcement, Down, News, Up},
    },
    roll::Roll,
    seat::{Holder, Seat},
};
use crate::{ids::Conversation, sessions::SessionInfo};

/// Changes within this time go out as one announcement.
const COALESCED: Duration = Duration::from_millis(50);
/// What each member adds to the time in which changes of the roster go out as one: each of them takes such a word in and writes
/// it down, so that a hundred devices that join a fleet of a hundred one by one would cost ten thousand writes.
const ROSTER_SHARE: Duration = Duration::from_millis(4);
/// However many members there are.
const ROSTER_REST_MAX: Duration = Duration::from_secs(1);
/// Between two words on who is where that nothing but addresses changed: in a fleet that starts, everybody comes at once,
/// and a word to each of a hundred members for each of a hundred would be ten thousand.
const ADDRESSES_REST: Duration = Duration::from_secs(2);
/// Before a lost feed is opened again: the first time, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// In what time changes of a roster of so many members go out as one word.
fn roster_rest(members: usize) -> Duration {
    let share = ROSTER_SHARE.saturating_mul(u32::try_from(members).unwrap_or(u32::MAX));
    COALESCED.saturating_add(share).min(ROSTER_REST_MAX)
}

/// Who is connected.
pub type Connected = watch::Receiver<Arc<BTreeSet<NodeId>>>;

/// What a device has to announce.
pub trait Announces: Send + Sync + 'static {
    /// Its sessions.
    fn sessions(&self) -> Vec<SessionInfo>;
    /// Conversations with late results here.
    fn late(&self) -> Vec<Conversation>;
    /// Changes whenever one of these does.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// What a member does with the broker's word.
pub trait Follow: Send + Sync + 'static {
    /// The broker `from` says that this is the roster, and where members are. Whether it is newer is for the follower
    /// to see. Does not block.
    fn news(&self, from: NodeId, roster: Roster, addresses: Vec<(NodeId, Vec<SocketAddr>)>);
}

/// Where members are, as far as the broker knows.
pub trait Addresses: Send + Sync + 'static {
    /// Known addresses of members and of this device, as far as `to` can use them.
    fn addresses(&self, to: NodeId) -> Vec<(NodeId, Vec<SocketAddr>)>;
}

/// The member's end.
pub struct Announcer {
    seat: Seat,
    line: Line,
    connected: Connected,
    source: Arc<dyn Announces>,
    follow: Arc<dyn Follow>,
    boot: [u8; 16],
    seq: u64,
}

impl Announcer {
    /// Announces `source` to whoever has the seat, as the run `boot` of this device: a nonce.
    #[must_use]
    pub const fn new(
        seat: Seat,
        line: Line,
        connected: Connected,
        source: Arc<dyn Announces>,
        follow: Arc<dyn Follow>,
        boot: [u8; 16],
    ) -> Self {
        Self { seat, line, connected, source, follow, boot, seq: 0 }
    }

    /// Announces until the node stops: at once when the broker is connected, and after changes.
    pub async fn run(mut self) {
        let stopping = self.line.stopping().clone();
        stopping.run_until_cancelled(self.announce()).await;
    }

    async fn announce(&mut self) {
        let [first, longest] = PAUSES;
        let mut pause = first;
        loop {
            let broker = self.broker().await;
            let before = self.seq;
            match self.feed(broker).await {
                Ok(()) => {}
                Err(cause) => tracing::debug!(cause, "the feed to the broker ended"),
            }
            pause = if self.seq > before { first } else { (pause * 2).min(longest) };
            tokio::select! {
                biased;
                // To a new holder at once (failure rule F13).
                () = self.seat.left(Holder::There(broker)) => pause = first,
                () = sleep(pause) => {}
            }
        }
    }

    /// Waits until another device is the broker and connected.
    async fn broker(&mut self) -> NodeId {
        loop {
            let holder = self.seat.holder();
            if let Holder::There(node) = holder
                && self.connected.borrow_and_update().contains(&node)
            {
                return node;
            }
            tokio::select! {
                () = self.seat.left(holder) => {}
                changed = self.connected.changed() => if changed.is_err() {
                    // The mesh has stopped.
                    std::future::pending::<()>().await;
                },
            }
        }
    }

    /// Announces on one stream until it is lost or somebody else is the broker.
    async fn feed(&mut self, broker: NodeId) -> Result<(), String> {
        let line = self.line.clone();
        let trouble = |error: StreamError| line.trouble(&broker, &error);
        let mut stream = tokio::select! {
            biased;
            stream = line.open(broker, StreamKind::Feed, ASK_WAIT) => stream?,
            () = self.seat.left(Holder::There(broker)) => return Ok(()),
        };
        let mut changes = self.source.changes();
        loop {
            changes.mark_unchanged();
            let announcement = self.announcement();
            stream.send.message(&Up::Announce(announcement)).await.map_err(trouble)?;
            self.seq += 1;
            loop {
                tokio::select! {
                    down = stream.recv.message::<Down>(FEED_MAX) => match down.map_err(trouble)? {
                        Some(Down::Roster(news)) => self.follow.news(broker, news.roster, news.addresses),
                        None => return Ok(()),
                    },
                    changed = changes.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return Ok(()),
                    },
                    () = self.seat.left(Holder::There(broker)) => return Ok(()),
                }
            }
            sleep(COALESCED).await;
        }
    }

    fn announcement(&self) -> Announcement {
        Announcement {
            boot: self.boot,
            seq: self.seq + 1,
            sessions: self.source.sessions(),
            late: self.source.late(),
            ext: Extensions::new(),
        }
    }
}

/// The broker's end.
pub struct Receiver {
    roll: Arc<Roll>,
    rosters: watch::Receiver<Arc<Roster>>,
    connected: Connected,
    addresses: Arc<dyn Addresses>,
    line: Line,
}

impl Receiver {
    /// Takes announcements into `roll`, and sends `rosters` with `addresses` when one of them may have changed.
    #[must_use]
    pub const fn new(
        roll: Arc<Roll>,
        rosters: watch::Receiver<Arc<Roster>>,
        connected: Connected,
        addresses: Arc<dyn Addresses>,
        line: Line,
    ) -> Self {
        Self { roll, rosters, connected, addresses, line }
    }

    /// Serves a member's feed to its end. Then its sessions are offline.
    pub(super) async fn serve(&self, peer: NodeId, stream: Stream) {
        let feed = Gone { roll: &self.roll, peer, feed: self.roll.feed() };
        if let Err(error) = self.converse(&feed, stream).await {
            let cause = self.line.trouble(&peer, &error);
            match error {
                StreamError::Malformed(_) | StreamError::TooLong { .. } => tracing::warn!(cause, "a feed was ended"),
                StreamError::Lost(_) | StreamError::Stopped => tracing::debug!(cause, "a feed ended"),
            }
        }
    }

    async fn converse(&self, feed: &Gone<'_>, mut stream: Stream) -> Result<(), StreamError> {
        let (mut rosters, mut connected) = (self.rosters.clone(), self.connected.clone());
        loop {
            let roster = Roster::clone(&rosters.borrow_and_update());
            connected.borrow_and_update();
            if !roster.members.contains_key(&feed.peer) {
                return Ok(());
            }
            let news = News { roster, addresses: self.addresses.addresses(feed.peer), ext: Extensions::new() };
            stream.send.message(&Down::Roster(Box::new(news))).await?;
            // Several members may come at once, as after a start.
            let rested = Instant::now() + ADDRESSES_REST;
            let mut due: Option<Instant> = None;
            loop {
                let next = due.unwrap_or(rested);
                tokio::select! {
                    up = stream.recv.message::<Up>(FEED_MAX) => match up? {
                        Some(Up::Announce(announcement)) => self.roll.apply(feed.peer, feed.feed, announcement),
                        None => return Ok(()),
                    },
                    Ok(()) = rosters.changed() => {
                        let members = rosters.borrow_and_update().members.len();
                        due = Some((Instant::now() + roster_rest(members)).min(next));
                    }
                    Ok(()) = connected.changed(), if due.is_none() => due = Some(rested),
                    () = sleep_until(next), if due.is_some() => break,
                }
            }
        }
    }
}

/// Takes a member offline when its feed ends, however it does.
struct Gone<'a> {
    roll: &'a Roll,
    peer: NodeId,
    feed: super::announced::Feed,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.roll.gone(&self.peer, self.feed);
    }
}

#[cfg(test)]
mod tests;
