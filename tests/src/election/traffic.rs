//! Calls at a steady pace, as a person with ten conversations would make them: each with a mark of its own in the
//! ledger.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use crate::{Answer, Client, answer::excerpt, client::CallError, ledger::Ledger};

/// A call that has its answer.
#[derive(Debug)]
pub struct Done {
    /// Its mark in the ledger.
    pub mark: String,
    /// How long it took.
    pub took: Duration,
    /// What came of it.
    pub answer: Result<Answer, CallError>,
}

/// Calls that are being made. Dropping it makes no more.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    task: Option<JoinHandle<Vec<Done>>>,
}

impl Traffic {
    /// Starts to call `bash` at the session each `every`, whatever the calls before do.
    #[must_use]
    pub fn start(chat: &Client, session: &str, ledger: &Ledger, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (chat, session, ledger, stopped) = (chat.clone(), session.to_owned(), ledger.clone(), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut pace = tokio::time::interval(every);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut calls = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                pace.tick().await;
                let mark = format!("t{}", calls.len());
                let arguments = json!({"command": ledger.append(&mark), "sessionId": session});
                calls.push(tokio::spawn(one(chat.clone(), mark, arguments)));
            }
            let mut done = Vec::new();
            for call in calls {
                done.push(call.await.expect("nothing else ends the call"));
            }
            done
        });
        Self { stop, task: Some(task) }
    }

    /// Ends it and waits for all answers.
    ///
    /// # Panics
    /// When a call panicked.
    pub async fn end(mut self) -> Vec<Done> {
        self.stop.store(true, Ordering::Relaxed);
        let task = self.task.take().expect("taken once, here");
        task.await.expect("nothing else ends the calls")
    }

    /// Ends it and makes sure that every call was answered and ran once; gives the longest time.
    ///
    /// # Panics
    /// When one was not.
    pub async fn all_ran_once(self, ledger: &Ledger) -> Duration {
        let done = self.end().await;
        let mut longest = Duration::ZERO;
        for Done { mark, took, answer } in &done {
            let answer = answer.as_ref().unwrap_or_else(|error| panic!("{mark} after {took:?}: {error}"));
            assert!(!answer.is_error, "{mark} after {took:?}: {}", excerpt(&answer.text()));
            assert_eq!(ledger.count(mark), 1, "{mark} of {}", done.len());
            longest = longest.max(*took);
        }
        println!("{} calls, the longest took {longest:?}", done.len());
        longest
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn one(chat: Client, mark: String, arguments: Value) -> Done {
    let start = Instant::now();
    let answer = chat.try_call("bash", arguments).await;
    Done { mark, took: start.elapsed(), answer }
}
