//! Whole nodes in one process, over loopback: what no smaller test shows of joining (failure rules F19 and F20).

use std::path::Path;

use chappie_mesh::consensus::Voting;
use tokio::time::{sleep, timeout};

use super::*;
use crate::control::{CommandError, StatusReport};

/// How long what takes some rounds between devices may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

async fn start(home: &Path, name: &str) -> App {
    start_as(home, name, Voting::Auto).await
}

async fn start_as(home: &Path, name: &str, voter: Voting) -> App {
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let config = Config {
        home: home.to_owned(),
        name: name.into(),
        sessions: Vec::new(),
        mcp: loopback,
        listen: Some(loopback),
        connect: Vec::new(),
        mdns: false,
        voter,
        join: None,
        json: false,
        cooldown: Duration::ZERO,
        call_budget: Duration::from_secs(45),
        log: None,
    };
    App::start(config, Doors::Control).await.unwrap()
}

/// Says it again until it is done: who is broker may be changing.
async fn insist<T>(what: &str, attempt: impl AsyncFn() -> Result<T, CommandError>) -> T {
    let mut last = None;
    let insisting = async {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => last = Some(error),
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, insisting).await.unwrap_or_else(|_| panic!("{what}: {last:?}"))
}

async fn status(app: &App) -> StatusReport {
    app.commands().status().await.unwrap()
}

async fn until(app: &App, what: &str, holds: impl Fn(&StatusReport) -> bool) {
    let waiting = async {
        while !holds(&status(app).await) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(PATIENCE, waiting).await.is_err() {
        panic!("never: {what}: {:?}", status(app).await);
    }
}

fn names(now: &StatusReport) -> Vec<&str> {
    now.peers.iter().map(|peer| peer.name.as_str()).collect()
}

/// `newcomer` uses an invite of `member`.
async fn join(newcomer: &App, member: &App) {
    let invite = insist("an invite", async || member.commands().invite(1, 600_000).await).await;
    insist("joining", async || newcomer.commands().join(invite.code.parse().unwrap()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_a_member_that_is_not_the_broker_passes_a_request_to_join_on() {
    let homes = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [one, two, three] = [("one", 0), ("two", 1), ("three", 2)].map(|(name, at)| start(homes[at].path(), name));
    let (one, two, three) = tokio::join!(one, two, three);
    join(&two, &one).await;
    let follows = |now: &StatusReport| now.broker.as_ref().is_some_and(|broker| !broker.is_self);
    until(&two, "it follows the first", follows).await;
    join(&three, &two).await;
    until(&one, "the broker has both", |now| now.broker.as_ref().is_some_and(|b| b.is_self) && now.peers.len() == 2)
        .await;
    until(&three, "it follows, too", |now| follows(now) && now.peers.len() == 2).await;
    tokio::join!(one.stop(), two.stop(), three.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_member_that_knows_nobody_who_remains_comes_back_by_an_invite_as_who_it_is() {
    let homes = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let away = || start_as(homes[1].path(), "away", Voting::Never);
    let (first, gone) = tokio::join!(start(homes[0].path(), "first"), away());
    join(&gone, &first).await;
    until(&gone, "it follows the first", |now| now.broker.is_some() && names(now) == ["first"]).await;
    let id = status(&gone).await.node;
    gone.stop().await;
    let last = start(homes[2].path(), "last").await;
    join(&last, &first).await;
    until(&last, "it follows the first", |now| now.broker.is_some() && now.peers.len() == 2).await;
    insist("forgetting the first", async || match last.commands().forget("first".into()).await {
        // Said again to be sure, it is no member any more.
        Err(_) if names(&status(&last).await) == ["away"] => Ok(()),
        told => told.map(|_| ()),
    })
    .await;
    until(&last, "it is the broker", |now| now.broker.as_ref().is_some_and(|b| b.is_self) && names(now) == ["away"])
        .await;
    let away = away().await;
    assert_eq!(names(&status(&away).await), ["first"], "it knows of nobody else");
    join(&away, &last).await;
    until(&away, "it follows the last", |now| now.broker.is_some() && names(now) == ["last"]).await;
    until(&last, "it is connected", |now| now.peers.iter().any(|peer| peer.state == "connected")).await;
    assert_eq!((status(&away).await.node, status(&away).await.mesh), (id, status(&last).await.mesh));
    tokio::join!(first.stop(), away.stop(), last.stop());
}
