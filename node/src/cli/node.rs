//! Which node a command talks to: the one that runs, else one in this process.

use std::{io, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Context, Failure};
use crate::{
    app::{App, Doors},
    config::{Config, Layer, home},
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

/// As [`ask`], for what changes nothing: a home that does not exist is not made by looking at it.
pub(super) async fn look<T>(
    context: &Context,
    question: impl AsyncFnOnce(&dyn Commands) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let home = &context.home;
    // Whatever else may be wrong with it is told when it is opened.
    if std::fs::metadata(home).is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound) {
        let home = home.display();
        return Err(Failure::Failed(format!(
            "the home folder {home} does not exist, so nothing is recorded there; check --home and CHAPPIE_HOME, or \
             start a node with `chappie up`"
        )));
    }
    ask(context, question).await
}

/// Asks the node that runs, else one that runs in this process for the question.
pub(super) async fn ask<T>(
    context: &Context,
    question: impl AsyncFnOnce(&dyn Commands) -> Result<T, Failure>,
) -> Result<T, Failure> {
    match find_or_hold(context).await? {
        Found::Running(remote) => question(&remote).await,
        Found::Held(held) => here(context.config(Layer::default())?, held, question).await,
    }
}

/// Who has the home.
pub(super) enum Found {
    /// A node runs.
    Running(Remote),
    /// None does, and none can start before this is let go.
    Held(Held),
}

/// The node that runs, else the home itself, made when it is not there.
pub(super) async fn find_or_hold(context: &Context) -> Result<Found, Failure> {
    let deadline = Instant::now() + HOLD_LIMIT;
    loop {
        if let Some(remote) = find(context).await? {
            return Ok(Found::Running(remote));
        }
        home::prepare(&context.home)?;
        if let Some(held) = Held::try_take(&context.home)? {
            return Ok(Found::Held(held));
        }
        if Instant::now() >= deadline {
            let home = context.home.display();
            return Err(Failure::Failed(format!("another chappie process holds {home} and answers nobody; end it")));
        }
        sleep(HOLD_POLL).await;
    }
}

/// Asks a node that runs in this process for the question.
pub(super) async fn here<T>(
    mut config: Config,
    held: Held,
    question: impl AsyncFnOnce(&dyn Commands) -> Result<T, Failure>,
) -> Result<T, Failure> {
    telemetry::start(config.log.as_deref().unwrap_or(LOG_DEFAULT))?;
    // The question is about what is there; opening what the settings name is the node's work.
    config.sessions.clear();
    let app = App::start(config, Doors::None).await?;
    let answer = question(app.commands().as_ref()).await;
    app.stop().await;
    drop(held);
    answer
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{config::load::Environment, control::SessionNew, host::HostKind};

    fn context(home: &Path) -> Context {
        let environment = Environment { variables: Vec::new(), cwd: home.to_owned(), host_name: "box".into() };
        Context { home: home.join("home"), environment }
    }

    async fn names(context: &Context) -> Vec<Option<String>> {
        let rows = ask(context, async |commands| Ok(commands.sessions().await?)).await;
        rows.unwrap().into_iter().map(|row| row.name).collect()
    }

    async fn open(context: &Context, name: &str) {
        let dir = context.environment.cwd.join(name);
        std::fs::create_dir(&dir).unwrap();
        let request = SessionNew { dir, name: Some(name.to_owned()), host: HostKind::Native };
        ask(context, async |commands| Ok(commands.session_new(request).await?)).await.unwrap();
    }

    #[tokio::test]
    async fn without_a_node_a_question_is_answered_here_and_what_it_changed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        assert!(names(&context).await.is_empty());
        open(&context, "web").await;
        assert_eq!(names(&context).await, [Some("web".to_owned())]);
        assert!(find(&context).await.unwrap().is_none(), "nothing runs on");
        let error = running(&context).await.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("chappie up"), "{error}");
    }

    #[tokio::test]
    async fn looking_makes_no_home_and_says_that_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        let looked = look(&context, async |commands| Ok(commands.sessions().await?)).await;
        let error = looked.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("does not exist") && error.contains("chappie up"), "{error}");
        assert!(!context.home.exists());
        std::fs::create_dir(&context.home).unwrap();
        let looked = look(&context, async |commands| Ok(commands.sessions().await?)).await;
        assert!(looked.unwrap().is_empty());
    }

    #[tokio::test]
    async fn questions_at_the_same_moment_wait_for_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        open(&context, "web").await;
        let (a, b, c) = tokio::join!(names(&context), names(&context), names(&context));
        assert_eq!((a.len(), b.len(), c.len()), (1, 1, 1));
    }

    #[tokio::test]
    async fn a_running_node_is_asked_and_not_joined() {
        let folder = tempfile::tempdir().unwrap();
        let context = context(folder.path());
        home::prepare(&context.home).unwrap();
        let app = App::start(context.config(Layer::default()).unwrap(), Doors::Control).await.unwrap();
        open(&context, "web").await;
        assert_eq!(app.commands().sessions().await.unwrap().len(), 1, "it is the node's own session");
        app.stop().await;
        assert!(find(&context).await.unwrap().is_none());
        assert_eq!(names(&context).await, [Some("web".to_owned())]);
    }
}
