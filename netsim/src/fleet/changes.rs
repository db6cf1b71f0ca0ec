//! What happens to a mesh by its owner's hand: a backup put back, a copied disk, a device that joins, one that is
//! forgotten, a new beginning after a loss. Each needs more than a device: an invite, a majority, a command.

use std::{sync::Arc, time::Duration};

use chappie::control::CommandError;
use futures_util::FutureExt as _;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    bed::{LOOK, Post, Runs as _},
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
    backup: Option<Backup>,
    copy: Option<Copied>,
    /// Such a change happens once a seed: two at a time are more than any mesh of three can stand.
    done: bool,
}

/// A backup of the device `at`.
struct Backup {
    at: usize,
    /// How many devices had joined by then.
    members: usize,
    image: Image,
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
                let (members, image) = (self.joined_posts().count(), self.bed.posts[at].device.disk.image());
                self.kept.backup = Some(Backup { at, members, image });
                self.bed.posts[at].device.tell(format_args!("is backed up"));
            }
        }
        if self.kept.copy.as_ref().is_some_and(|copy| copy.until <= Instant::now()) {
            self.end_copy();
        }
    }

    /// Whether a copied disk runs beside its original now.
    pub(super) const fn has_copy(&self) -> bool {
        self.kept.copy.is_some()
    }

    pub(super) fn end_copy(&mut self) {
        if let Some(mut copy) = self.kept.copy.take() {
            copy.device.kill();
            // One that did not even start beside its original shows nothing.
            match (&mut copy.task).now_or_never() {
                Some(Ok(Ok(node))) => {
                    self.bed.tally.fault(Kind::Clone);
                    copy.inside.bury(node);
                }
                _ => copy.inside.bury(copy.task),
            }
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

    /// A backup, also one of the running start, is put back. The device comes back by itself as a new member whose journal
    /// says that it does not know (F15).
    fn restore(&mut self) {
        let Some(Backup { at, members, image }) = self.kept.backup.take() else { return };
        self.office.ledger.shake_all(at);
        self.bed.stop(at, Duration::from_millis(500), true);
        self.bed.posts[at].device.disk.put_back(&image);
        self.bed.posts[at].device.obeyed().forget();
        self.bed.posts[at].device.tell(format_args!("is put back to its backup"));
        if members < 2 {
            // It knew nobody then, and goes on alone until its owner invites it.
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
        self.kept.done = true;
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
        self.kept.done = true;
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
        self.bed.tally.fault(Kind::Recover);
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
