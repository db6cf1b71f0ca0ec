//! Which node a command talks to: the one that runs.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use super::{Context, Failure};
use crate::control::{Commands, client::Remote};

/// What every command runs on.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|cause| Failure::Failed(format!("cannot start: {cause}")))
}

/// The node that runs for this home, when one does.
pub(super) async fn find(context: &Context) -> Result<Option<Remote>, Failure> {
    Remote::find(&context.home).await.map_err(|cause| Failure::Failed(cause.to_string()))
}

/// The node that runs for this home.
pub(super) async fn running(context: &Context) -> Result<Arc<dyn Commands>, Failure> {
    Ok(Arc::new(find(context).await?.ok_or_else(|| none(context))?))
}

/// That none runs, and what to do.
pub(super) fn none(context: &Context) -> Failure {
    Failure::Failed(format!("no node runs for {}; start one with `chappie up`", context.home.display()))
}

/// Asks the node that runs.
pub(super) async fn ask<T>(
    context: &Context,
    question: impl AsyncFnOnce(&dyn Commands) -> Result<T, Failure>,
) -> Result<T, Failure> {
    question(running(context).await?.as_ref()).await
}
