//! What happens to a mesh by its owner's hand: a backup put back, a copied disk, a device that joins, one that is
//! forgotten, a new beginning after a loss. Each needs more than a device: an invite, a majority, a command.

use std::{sync::Arc, time::Duration};

use chappie::control::CommandError;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    bed::{LOOK, Post, Runs as _},
    counters::Counters,
    device::{Device, Inside},
    node::{Node, Start},
    whole::Village,
};
use crate::world::{disk::Image, fault::Kind, seed::PerMille};

/// How long a copied disk runs beside its original.
const COPY_RUNS: Duration = Duration::from_secs(6);
/// How long a command of a person may take.
const COMMAND_WAIT: Duration = Duration::from_secs(30);
/// The number of the device that a copied disk is put into.
const COPY: u8 = 99;

/// What is kept for changes.
#[derive(Default)]
pub(super) struct Kept {
    /// A backup of a device, and in which of its starts it was made.
    backup: Option<(usize, u64, Image)>,
    copy: Option<Copied>,
    /// Such a change happens once a seed: two at a time are more than any mesh of three can stand.
    done: bool,
}

struct Copied {
    device: Device,
    inside: Arc<Inside>,
    task: JoinHandle<Result<Node, String>>,
    until: Instant,
}

impl Village {
    /// Whether all members run, and nobody lacks what another has.
    fn is_whole(&self) -> bool {
        let applied: Vec<u64> = self
            .joined_posts()
            .filter_map(|post| {
                let node = post.runs.as_ref().filter(|_| post.is_up())?;
                Some(node.standing().borrow().applied)
            })
            .collect();
        let office = self
            .joined_posts()
            .filter_map(|post| post.runs.as_ref())
            .any(|node| node.standing().borrow().office.is_some());
        office && applied.len() == self.joined_posts().count() && applied.iter().all(|each| *each == applied[0])
    }

    fn joined_posts(&self) -> impl Iterator<Item = &Post<Node>> {
        self.bed.posts.iter().enumerate().filter(|(at, _)| self.joined[*at]).map(|(_, post)| post)
    }

    /// Looks after what is under way: makes a backup now and then, ends a copy.
    pub(super) fn keep_changes(&mut self) {
        if self.kept.backup.is_none() && self.bed.rng.hits(PerMille(5)) {
            let fits: Vec<usize> =
                (0..self.bed.posts.len()).filter(|at| self.joined[*at] && self.bed.posts[*at].is_up()).collect();
            if let Some(at) = self.bed.rng.pick(&fits).copied() {
                let device = &self.bed.posts[at].device;
                self.kept.backup = Some((at, device.starts(), device.disk.image()));
                self.bed.posts[at].device.tell(format_args!("is backed up"));
            }
        }
        if self.kept.copy.as_ref().is_some_and(|copy| copy.until <= Instant::now()) {
            self.end_copy();
        }
    }

    pub(super) fn end_copy(&mut self) {
        if let Some(mut copy) = self.kept.copy.take() {
            copy.device.kill();
            copy.inside.bury(copy.task);
        }
    }

    /// Does such a change, when the mesh is in a state in which it may happen.
    pub(super) async fn change(&mut self, kind: Kind) -> Result<(), String> {
        if self.kept.done || !self.is_whole() {
            return Ok(());
        }
        match kind {
            Kind::Restore => self.restore(),
            Kind::Clone => self.copy(),
            Kind::Join => self.join_late().await?,
            Kind::Forget => self.forget().await?,
            Kind::Recover => self.recover().await?,
            _ => {}
        }
        Ok(())
    }

    fn changed(&mut self, kind: Kind) {
        self.bed.tally.fault(kind);
        self.kept.done = true;
    }

    fn restore(&mut self) {
        // Starts tell a device that went back in time from one that did not (F15): without one in between nobody can tell.
        let started_since = |at: usize, start: u64| self.hard || self.bed.posts[at].device.starts() > start;
        let fits = self.kept.backup.take_if(|(at, start, _)| started_since(*at, *start));
        let Some((at, _, image)) = fits else { return };
        self.office.ledger.shake_all(at);
        self.bed.stop(at, Duration::from_millis(500), true);
        self.bed.posts[at].device.disk.put_back(&image);
        self.bed.posts[at].device.obeyed().forget();
        self.bed.posts[at].device.tell(format_args!("is put back to its backup"));
        if !self.hard {
            // It goes on running, and must do no harm; the others keep it out until its owner resets its identity (F15).
            (self.joined[at], self.forgotten[at], self.sessions[at]) = (false, true, None);
        }
        self.changed(Kind::Restore);
    }

    fn copy(&mut self) {
        let Some(at) = self.bed.some(Post::is_up) else { return };
        self.bed.posts[at].device.tell(format_args!("is copied"));
        let Ok(mut device) = self.bed.posts[at].device.copy_of(COPY, self.seed.fork("copy")) else { return };
        let inside = device.begin();
        let home = self.home.join("copy");
        if std::fs::create_dir_all(&home).is_err() {
            return;
        }
        let task = inside.spawn(Node::start(Start::of(&device, home, &self.office.ledger)));
        self.kept.copy = Some(Copied { device, inside, task, until: Instant::now() + COPY_RUNS });
        self.changed(Kind::Clone);
    }

    async fn join_late(&mut self) -> Result<(), String> {
        let Some(at) = (0..self.bed.posts.len()).find(|at| !self.joined[*at] && !self.forgotten[*at]) else {
            return Ok(());
        };
        self.start(at)?;
        let begin = Instant::now();
        while !self.joined[at] && begin.elapsed() < COMMAND_WAIT {
            self.look().await?;
            self.join(at).await?;
            tokio::time::sleep(LOOK).await;
        }
        if self.joined[at] {
            self.bed.tally.add(Counters::Snapshots, 1);
            self.changed(Kind::Join);
        }
        Ok(())
    }

    async fn forget(&mut self) -> Result<(), String> {
        let members = self.joined_posts().count();
        let fits: Vec<usize> = (1..self.bed.posts.len()).filter(|at| self.joined[*at]).collect();
        let Some(at) = self.bed.rng.pick(&fits).copied().filter(|_| members > 3) else { return Ok(()) };
        let name = self.bed.posts[at].device.name.clone();
        let Some((node, inside)) = self.bed.posts[0].runs.clone().zip(self.bed.posts[0].inside.clone()) else {
            return Ok(());
        };
        let told = inside.spawn(async move { node.commands.forget(name).await.map(|_| ()) });
        if self.command(told).await?.is_ok() {
            self.office.ledger.shake_all(at);
            (self.joined[at], self.forgotten[at], self.sessions[at]) = (false, true, None);
            self.bed.stop(at, Duration::ZERO, false);
            self.bed.posts[at].due = None;
            self.changed(Kind::Forget);
        }
        Ok(())
    }

    /// All but one are lost; it begins anew, and one of the lost comes back to it after all. More than one would be a
    /// quorum of the old epoch and a split, which a person settles (F16).
    async fn recover(&mut self) -> Result<(), String> {
        let members: Vec<usize> = (0..self.bed.posts.len()).filter(|at| self.joined[*at]).collect();
        let Some(survivor) = self.bed.rng.pick(&members).copied() else { return Ok(()) };
        let lost: Vec<usize> = members.iter().copied().filter(|at| *at != survivor).collect();
        let returns = self.bed.rng.pick(&lost).copied();
        for at in lost {
            self.office.ledger.shake_all(at);
            self.bed.stop(at, Duration::from_secs(15), true);
            if Some(at) != returns {
                self.bed.posts[at].due = None;
                (self.joined[at], self.forgotten[at], self.sessions[at]) = (false, true, None);
            }
        }
        self.office.ledger.shake_all(survivor);
        self.changed(Kind::Recover);
        let begin = Instant::now();
        loop {
            let Some((node, inside)) =
                self.bed.posts[survivor].runs.clone().zip(self.bed.posts[survivor].inside.clone())
            else {
                return Ok(());
            };
            let told = inside.spawn(async move { node.commands.recover(false).await.map(|_| ()) });
            match self.command(told).await? {
                Ok(()) => break,
                // It has to notice first that the others are gone.
                Err(error) if begin.elapsed() > Duration::from_secs(10) => {
                    return Err(format!("{} cannot begin anew: {error}", self.bed.posts[survivor].device.name));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        self.bed.posts[survivor].device.tell(format_args!("began the mesh anew"));
        Ok(())
    }

    /// What became of a person's command; a device that went away says nothing.
    async fn command(&mut self, told: JoinHandle<Result<(), CommandError>>) -> Result<Result<(), String>, String> {
        let told = self.looking(timeout(COMMAND_WAIT, told)).await?;
        Ok(match told {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(_)) => Err("its device went away".to_owned()),
            Err(_) => Err("it did not end".to_owned()),
        })
    }
}
