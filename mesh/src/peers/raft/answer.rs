//! Answering: takes the connection that a member's consensus engine dialled, and hands each question to the program.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{
    super::{Core, Refusal, greet, verdict},
    dial::settle,
};
use crate::{
    identity::{Admission, Incarnation, NodeId},
    runtime,
    transport::{Connection, QUESTIONS_LONG, Question},
    wire::CloseCode,
};

/// The program answers within this: to take a snapshot's last piece is to write all of it to disk.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Lets a member's consensus engine in that dialled this device.
///
/// # Errors
/// Why it was not let in.
pub(crate) async fn take_asker(core: &Arc<Core>, connection: Connection) -> Result<(), Refusal> {
    let (_, hello) = greet::receive(core, &connection).await?;
    let run = settle(core, &connection, &hello)?;
    let node = connection.peer();
    let before = core.raft.peer(node).state().taken.replace(connection.clone());
    if let Some(before) = before {
        // It dials when it has none: the earlier one is lost.
        before.close(CloseCode::Redundant, "this device connected anew");
    }
    runtime::spawn(serve(Arc::clone(core), node, connection, run));
    Ok(())
}

async fn serve(core: Arc<Core>, node: NodeId, connection: Connection, run: Incarnation) {
    let long = Arc::new(Semaphore::new(QUESTIONS_LONG));
    // Whoever is forgotten after the first look finds the connection in its place.
    let closed = loop {
        if core.admission(&node) != Admission::Member {
            break Some((CloseCode::NotMember, "not a member any more"));
        }
        // An earlier run's word does not count (failure rule F15).
        if core.table.run(node) != Some(run) {
            break Some((CloseCode::Redundant, verdict::EARLIER_RUN));
        }
        match connection.question().await {
            Ok(question) if core.admission(&node) == Admission::Member && core.table.run(node) == Some(run) => {
                runtime::spawn(answer(Arc::clone(&core), node, question, Arc::clone(&long)));
            }
            Ok(question) => question.refuse(),
            Err(_) => break None,
        }
    };
    if let Some((code, why)) = closed {
        connection.close(code, why);
    }
    let ended = connection.ended().await;
    core.raft.left(&node, &connection);
    tracing::debug!(peer = %core.label(&node), %ended, "a connection of a member's consensus engine ended");
    greet::heed(&core, node, &ended);
}

async fn answer(core: Arc<Core>, node: NodeId, mut question: Question, long: Arc<Semaphore>) {
    let bytes = match question.read(&long).await {
        Ok(bytes) => bytes,
        Err(why) => {
            tracing::debug!(peer = %core.label(&node), "a question was not taken: it {why}");
            return question.refuse();
        }
    };
    let mut answer = Box::pin(tokio::time::timeout(ANSWERED_WITHIN, core.handler.raft(node, bytes)));
    let answered = tokio::select! {
        biased;
        answered = &mut answer => Some(answered),
        () = question.unwanted() => None,
    };
    match answered {
        Some(Ok(answer)) => {
            if let Err(error) = question.answer(answer).await {
                tracing::error!(peer = %core.label(&node), %error, "the consensus engine's answer cannot be sent");
            }
        }
        Some(Err(_)) => question.refuse(),
        None => {
            // What was begun is finished; only its place on the connection is given back.
            drop(question);
            drop(answer.await);
        }
    }
}
