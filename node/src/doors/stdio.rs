//! The door over a pair of byte streams: the process's own stdio, or a connection that bridges it to a running node.
//! It writes nothing but protocol; logs go to stderr.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{clock, ids::Conversation, mcp, tools::Surface};

pub use crate::mcp::LinesError;

/// Serves one client until its input ends, it stops reading (EPIPE), or `shutdown` fires; then at most 1.5 s more for
/// answers that are nearly ready. Calls that are not done by then go on in the background, unanswered.
///
/// Calls that name no chat belong to a conversation of this connection, which ends with it.
///
/// # Errors
///
/// An I/O error other than the client closing its end, or a protocol failure.
pub async fn serve<R, W>(
    surface: Arc<dyn Surface>,
    reader: R,
    writer: W,
    shutdown: CancellationToken,
) -> Result<(), LinesError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let connection = Conversation::Connection(format!("stdio:{}", clock::token()));
    let served = mcp::serve_lines(Arc::clone(&surface), connection.clone(), reader, writer, shutdown).await;
    surface.disconnected(&connection);
    served
}
