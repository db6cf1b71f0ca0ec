//! `chappie up`: runs the node until a signal.

use std::{
    future::poll_fn,
    io::{self, Write as _},
    net::SocketAddr,
    task::Poll,
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Context, Failure, print, settings::Settings};
use crate::{
    app::{App, Doors, ReadyLine},
    config::{self, Layer, home},
    telemetry,
};

/// A running node says what it does; libraries only what went wrong.
const LOG_DEFAULT: &str = "chappie=info,warn";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Where MCP over HTTP listens; loopback only, port 0 is a free one [default: 127.0.0.1:24276] [env: CHAPPIE_MCP]
    #[arg(long, value_name = "ADDR", value_parser = config::mcp)]
    mcp: Option<SocketAddr>,
    /// Print the ready line as JSON [env: CHAPPIE_JSON]
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let flags = Layer { mcp: args.mcp, json: args.json.then_some(true), ..args.settings.layer() };
    let config = context.config(flags)?;
    telemetry::start(config.log.as_deref().unwrap_or(LOG_DEFAULT))?;
    // Before the start: a signal during it is kept and stops the node in order.
    let mut signals = Signals::new()?;
    home::prepare(&config.home)?;
    let json = config.json;
    let app = App::start(config, Doors::All).await?;
    match announce(&app.ready(), json) {
        // Whoever started us need not read it.
        Ok(()) | Err(Failure::OutputClosed) => {}
        Err(failure) => {
            let _ = writeln!(io::stderr(), "chappie: {failure}");
        }
    }
    tokio::select! {
        () = app.stopped() => {}
        () = signals.next() => {}
    }
    tokio::select! {
        () = app.stop() => Ok(()),
        () = signals.next() => Err(Failure::Failed("stopped at once by a second signal".to_owned())),
    }
}

fn announce(ready: &ReadyLine, json: bool) -> Result<(), Failure> {
    if json {
        return print::json(ready);
    }
    let mcp = ready.mcp.as_deref().unwrap_or("-");
    let names = ready.sessions.iter().map(|session| session.name.as_deref().unwrap_or(&session.cwd));
    let sessions = match ready.sessions.len() {
        0 => "no sessions yet".to_owned(),
        _ => format!("sessions: {}", names.collect::<Vec<_>>().join(", ")),
    };
    let short: String = ready.node.chars().take(7).collect();
    print::text(&format!("node {short} is ready: MCP at {mcp}; {sessions}\n"))
}

/// The signals that stop a node in order.
pub(super) struct Signals([Signal; 3]);

impl Signals {
    /// From now on they do not end the process by themselves.
    pub(super) fn new() -> Result<Self, Failure> {
        let heed = |kind| signal(kind).map_err(|cause| Failure::Failed(format!("cannot heed signals: {cause}")));
        Ok(Self([heed(SignalKind::interrupt())?, heed(SignalKind::terminate())?, heed(SignalKind::hangup())?]))
    }

    /// Resolves when one came.
    pub(super) async fn next(&mut self) {
        poll_fn(|cx| {
            let came = self.0.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if came { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
