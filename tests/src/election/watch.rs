//! Looks at the status of several devices again and again. It asks their control sockets, as `chappie status` does:
//! five processes a second for each device would take both processors.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    task::JoinHandle,
    time::{MissedTickBehavior, timeout},
};

use super::Cluster;
use crate::{World, wait::within};

/// Five times a second (DEV-22).
const EVERY: Duration = Duration::from_millis(200);
/// A paused device does not answer; the next look is not held up.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a device that runs may go unseen.
const SEEN: Duration = Duration::from_secs(10);

/// What one device said at one time.
#[derive(Clone, Debug)]
pub struct Look {
    /// The device's place.
    pub at: usize,
    /// When it was asked.
    pub asked: Instant,
    /// When it had answered.
    pub answered: Instant,
    /// Its status.
    pub status: Value,
}

impl Look {
    /// The term of the broker that it names.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.status["broker"]["term"].as_u64()
    }

    /// Whether it says that it acts as broker itself.
    #[must_use]
    pub fn acts(&self) -> bool {
        self.status["broker"]["self"] == true
    }
}

/// Looks that are being taken. Dropping it ends them.
#[derive(Debug)]
pub struct Watch {
    seen: Arc<Mutex<Vec<Look>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Starts to look at all devices.
    #[must_use]
    pub fn over(cluster: &Cluster) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watch = |(at, home): (usize, PathBuf)| {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut pace = tokio::time::interval(EVERY);
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    pace.tick().await;
                    if let Some(look) = look(at, &home).await {
                        seen.lock().unwrap_or_else(PoisonError::into_inner).push(look);
                    }
                }
            })
        };
        let homes = cluster.nodes.iter().map(|node| node.world.state()).enumerate();
        let tasks = homes.map(watch).collect();
        Self { seen, tasks }
    }

    /// What was seen so far.
    #[must_use]
    pub fn looks(&self) -> Vec<Look> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes sure that nothing was seen that must never be: two brokers of one term, one that acts when another of a
    /// later term has been seen to act, a term that falls. Each device must have been seen at least once, which is waited
    /// for: a test may be over sooner.
    ///
    /// # Panics When it was.
    pub async fn holds(&self) {
        let all = 0..self.tasks.len();
        within(SEEN, "a look at each device", async || {
            let looks = self.looks();
            all.clone().all(|at| looks.iter().any(|look| look.at == at)).then_some(())
        })
        .await;
        let looks = self.looks();
        for at in 0..self.tasks.len() {
            let terms: Vec<u64> = looks.iter().filter(|look| look.at == at).filter_map(Look::term).collect();
            assert!(terms.is_sorted(), "the term falls at device {at}: {terms:?}");
        }
        let acting: Vec<(u64, &Look)> =
            looks.iter().filter(|look| look.acts()).filter_map(|look| Some((look.term()?, look))).collect();
        for (term, look) in &acting {
            for (other_term, other) in &acting {
                assert!(
                    term != other_term || look.at == other.at,
                    "two brokers of term {term}: devices {} and {}",
                    look.at,
                    other.at
                );
                assert!(
                    other_term <= term || look.asked <= other.answered,
                    "device {} acts in term {term} {:?} after device {} acted in term {other_term}",
                    look.at,
                    look.asked - other.answered,
                    other.at
                );
            }
        }
        println!("{} looks, {} of them at an acting broker", looks.len(), acting.len());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The status of the node whose state folder this is; nothing when it does not answer in time.
pub async fn look(at: usize, home: &std::path::Path) -> Option<Look> {
    let asked = Instant::now();
    let status = timeout(PATIENCE, ask(home)).await.ok()??;
    Some(Look { at, asked, answered: Instant::now(), status })
}

/// The status of the node in this world; null when it does not answer.
pub(super) async fn status(world: &World) -> Value {
    look(0, &world.state()).await.map_or(Value::Null, |look| look.status)
}

async fn ask(home: &std::path::Path) -> Option<Value> {
    let mut stream = UnixStream::connect(home.join("chappie.sock")).await.ok()?;
    stream.write_all(b"{\"id\":1,\"method\":\"status\"}\n").await.ok()?;
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).await.ok()?;
    let answer: Value = serde_json::from_str(&line).ok()?;
    answer.get("result").cloned()
}
