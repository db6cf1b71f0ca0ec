//! The two tasks of a link: one takes the streams that the peer opens, the other speaks for the mesh itself (liveness,
//! giving a link up, warnings) and sees the link's end.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior},
};

use super::{
    core::Core,
    greet,
    link::{Link, Word},
    liveness::{Beat, Liveness},
    refresh,
};
use crate::{
    api::Duplicate,
    transport::{Stream, StreamError},
    wire::{CloseCode, StreamKind},
};

/// Between questions whether a peer with work in flight is there.
const TICK: Duration = Duration::from_secs(1);
/// A word of the mesh itself takes some bytes; a later program's may take more.
const WORD_BYTES_MAX: usize = 1024;
/// A word goes out at once unless the peer reads nothing at all.
const SAID_WITHIN: Duration = Duration::from_secs(4);
/// A link that is given up lives as long as work runs on it, and this is longer than work is waited for.
const RETIRED_MAX: Duration = Duration::from_secs(3600);

/// What two devices say on the mesh's own stream after their hellos. Append-only: a number keeps its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Wire {
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// Open no more streams here; say when nothing runs on it any more.
    Retire,
    /// Nothing of ours runs here any more.
    Retired,
    /// Another device uses your identity, and that is where it is.
    Duplicate(Option<SocketAddr>),
}

/// Starts the tasks of a link; on the mesh's thread.
pub(super) fn start(core: &Arc<Core>, link: &Arc<Link>, stream: Stream, words: mpsc::Receiver<Word>) {
    crate::runtime::spawn(take_streams(Arc::clone(core), Arc::clone(link)));
    let talk = Talk {
        core: Arc::clone(core),
        link: Arc::clone(link),
        stream,
        words,
        liveness: Liveness::default(),
        ticks: None,
        retiring: None,
        asked_to_retire: false,
    };
    crate::runtime::spawn(talk.run());
}

async fn take_streams(core: Arc<Core>, link: Arc<Link>) {
    while let Ok(arrival) = link.connection.accept().await {
        let (core, link) = (Arc::clone(&core), Arc::clone(&link));
        let take = async move {
            let line = |first| link.line(StreamKind::from_byte(first).is_some_and(StreamKind::is_work));
            let Some((first, stream)) = arrival.first(line).await else { return };
            match StreamKind::from_byte(first) {
                Some(kind) => core.handler.stream(link.peer(), kind, stream),
                None if first == refresh::ROSTER_STREAM => {
                    crate::runtime::spawn(refresh::answer(core, link, stream));
                }
                None => {
                    tracing::debug!(peer = %link.label, first, "a stream of a kind that is not known here");
                    stream.refuse();
                }
            }
        };
        spawn_unless_ready(take);
    }
}

/// Mostly a stream's first message is there already: then a task of its own would only cost time.
fn spawn_unless_ready(task: impl Future<Output = ()> + Send + 'static) {
    let mut task = Box::pin(task);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    if task.as_mut().poll(&mut context).is_pending() {
        crate::runtime::spawn(task);
    }
}

/// What happens next on a link.
enum Event {
    Said(Result<Option<Wire>, StreamError>),
    Asked(Word),
    Changed,
    Tick,
    Ended,
}

struct Talk {
    core: Arc<Core>,
    link: Arc<Link>,
    stream: Stream,
    words: mpsc::Receiver<Word>,
    liveness: Liveness,
    /// Runs while there is work.
    ticks: Option<Interval>,
    /// We give the link up: with this code, and whether the peer has nothing more on it, until then.
    retiring: Option<Retiring>,
    /// The peer gives it up and waits for us.
    asked_to_retire: bool,
}

struct Retiring {
    code: CloseCode,
    peer_done: bool,
    until: tokio::time::Instant,
}

impl Talk {
    async fn run(mut self) {
        loop {
            let event = self.next().await;
            let going_on = match event {
                Event::Said(Ok(Some(wire))) => self.heard(wire).await,
                Event::Said(Ok(None)) => self.stray("it ended the mesh's own stream"),
                Event::Said(Err(_)) if !self.link.is_alive() => false,
                Event::Said(Err(error)) => self.stray(&error.to_string()),
                Event::Asked(word) => self.asked(word).await,
                Event::Changed => self.changed().await,
                Event::Tick => self.tick().await,
                Event::Ended => false,
            };
            if !going_on {
                break;
            }
        }
        let ended = self.link.connection.ended().await;
        self.link.set_ended();
        let story = self.link.story(&ended);
        let lost = self.core.table.remove(&self.link, &story);
        if lost {
            tracing::info!(peer = %self.link.label, why = %story, "disconnected");
        } else {
            tracing::debug!(peer = %self.link.label, why = %story, "a second connection is closed");
        }
        greet::heed(&self.core, self.link.peer(), &ended);
    }

    async fn next(&mut self) -> Event {
        let until = self.retiring.as_ref().map(|retiring| retiring.until);
        let tick = async {
            match (&mut self.ticks, until) {
                (Some(ticks), _) => drop(ticks.tick().await),
                // A link that is given up is looked at once more when its time is over.
                (None, Some(until)) => tokio::time::sleep_until(until).await,
                (None, None) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.link.connection.ended() => Event::Ended,
            said = self.stream.recv.message::<Wire>(WORD_BYTES_MAX) => Event::Said(said),
            Some(word) = self.words.recv() => Event::Asked(word),
            () = self.link.changed.notified() => Event::Changed,
            () = tick => Event::Tick,
        }
    }

    async fn heard(&mut self, wire: Wire) -> bool {
        self.liveness.heard();
        self.link.heard.send_modify(|count| *count += 1);
        match wire {
            Wire::Ping => self.say(Wire::Pong).await,
            Wire::Pong => true,
            Wire::Retire => {
                self.link.stop_opening();
                self.asked_to_retire = true;
                self.changed().await
            }
            Wire::Retired => {
                if let Some(retiring) = &mut self.retiring {
                    retiring.peer_done = true;
                }
                self.changed().await
            }
            Wire::Duplicate(other) => {
                let (node, told_by) = (self.core.node, self.link.peer());
                self.core.handler.duplicate(Duplicate { node, own: true, refused: false, other, told_by });
                true
            }
        }
    }

    async fn asked(&mut self, word: Word) -> bool {
        match word {
            Word::Ping => self.say(Wire::Ping).await,
            Word::Duplicate(other) => self.say(Wire::Duplicate(other)).await,
            Word::Retire(code) => {
                let until = tokio::time::Instant::now() + RETIRED_MAX;
                self.retiring = Some(Retiring { code, peer_done: false, until });
                self.say(Wire::Retire).await
            }
        }
    }

    /// Work began or ended, or another link took over.
    async fn changed(&mut self) -> bool {
        let working = self.link.is_working();
        if working && self.ticks.is_none() {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            self.ticks = Some(ticks);
            self.link.ticking.store(true, SeqCst);
        }
        if let Some(retiring) = &self.retiring {
            let late = tokio::time::Instant::now() >= retiring.until;
            if late || retiring.peer_done && !working {
                let label = &self.link.label;
                let why = match retiring.code {
                    CloseCode::Redundant => format!("the other connection to {label} is kept"),
                    _ => format!("the connection to {label} was not used"),
                };
                self.link.close(retiring.code, why, "the connection is not needed");
                return false;
            }
        }
        // Said only once another link is agreed on here too, so that nobody is without one in between.
        let replaced = || {
            let current = self.core.table.current(self.link.peer());
            current.is_some_and(|current| !Arc::ptr_eq(&current, &self.link)) || !self.core.is_kept(&self.link.peer())
        };
        if self.asked_to_retire && !working && replaced() {
            self.asked_to_retire = false;
            return self.say(Wire::Retired).await;
        }
        true
    }

    async fn tick(&mut self) -> bool {
        let mut working = self.link.is_working();
        if !working && self.ticks.is_some() {
            // In this order: work that begins now either sees that nobody ticks, or is seen here.
            self.link.ticking.store(false, SeqCst);
            working = self.link.is_working();
            self.link.ticking.store(working, SeqCst);
            if !working {
                self.ticks = None;
            }
        }
        match self.liveness.tick(working) {
            Beat::Rest => self.changed().await,
            Beat::Ask => self.say(Wire::Ping).await,
            Beat::Gone => {
                let why = format!("{} did not answer for 4 s", self.link.label);
                self.link.close(CloseCode::Unresponsive, why, "no answer for 4 s");
                false
            }
        }
    }

    async fn say(&mut self, wire: Wire) -> bool {
        match tokio::time::timeout(SAID_WITHIN, self.stream.send.message(&wire)).await {
            Ok(Ok(())) => true,
            // The connection's end says more, and comes next.
            Ok(Err(_)) => self.link.is_alive() && self.stray("it reads nothing"),
            Err(_) => {
                let why = format!("{} read nothing for {} s", self.link.label, SAID_WITHIN.as_secs());
                self.link.close(CloseCode::Unresponsive, why, "nothing was read");
                false
            }
        }
    }

    /// The peer does what no program of ours does.
    fn stray(&self, what: &str) -> bool {
        tracing::warn!(peer = %self.link.label, what, "closed the connection: not what a device of this mesh says");
        let why = format!("{} broke the protocol: {what}", self.link.label);
        self.link.close(CloseCode::Malformed, why, what);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let address = Some("10.0.0.5:24274".parse().unwrap());
        let table = [
            (Wire::Ping, vec![0]),
            (Wire::Pong, vec![1]),
            (Wire::Retire, vec![2]),
            (Wire::Retired, vec![3]),
            (Wire::Duplicate(None), vec![4, 0]),
            (Wire::Duplicate(address), vec![4, 1, 0, 10, 0, 0, 5, 0xd2, 0xbd, 1]),
        ];
        for (word, bytes) in table {
            assert_eq!(encode(&word).unwrap(), bytes);
            assert_eq!(decode(&bytes), Ok(word));
        }
    }
}
