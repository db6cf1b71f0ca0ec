//! Which node a command talks to: the one that runs, else one in this process.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Context, Failure};
use crate::{
    app::{App, Doors},
    config::{Layer, home},
    control::{Commands, client::Remote, socket::Held},
    telemetry,
};

/// Another command that works without a node lets go within this, or something is wrong with it.
const HOLD_LIMIT: Duration = Duration::from_secs(10);
/// How often it is tried meanwhile.
const HOLD_POLL: Duration = Duration::from_millis(20);
/// A command that people wait for only says what went wrong.
pub(super) const LOG_DEFAULT: &str = "warn";

/// The node that runs for this home, when one does.
pub(super) async fn find(context: &Context) -> Result<Option<Remote>, Failure> {
    Ok(Remote::find(&context.home).await?)
}

/// The node that runs for this home.
pub(super) async fn running(context: &Context) -> Result<Arc<dyn Commands>, Failure> {
    let home = context.home.display();
    let none = || Failure::Failed(format!("no node runs for {home}; start one with `chappie up`"));
    Ok(Arc::new(find(context).await?.ok_or_else(none)?))
}

/// Asks the node that runs, else one that runs in this process for the question.
pub(super) async fn ask<T>(
    context: &Context,
    question: impl AsyncFnOnce(&dyn Commands) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + HOLD_LIMIT;
    let held = loop {
        if let Some(remote) = find(context).await? {
            return question(&remote).await;
        }
        home::prepare(&context.home)?;
        if let Some(held) = Held::try_take(&context.home)? {
            break held;
        }
        if Instant::now() >= deadline {
            let home = context.home.display();
            return Err(Failure::Failed(format!("another chappie process holds {home} and answers nobody; end it")));
        }
        sleep(HOLD_POLL).await;
    };
    let mut config = context.config(Layer::default())?;
    telemetry::start(config.log.as_deref().unwrap_or(LOG_DEFAULT))?;
    // The question is about what is there; opening what the settings name is the node's work.
    config.sessions.clear();
    let app = App::start(config, Doors::None).await?;
    let answer = question(app.commands().as_ref()).await;
    app.stop().await;
    drop(held);
    answer
}
