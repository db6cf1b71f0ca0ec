//! `chappie up`: runs the node until a signal.

use std::{
    future::poll_fn,
    io::{self, Write as _},
    net::SocketAddr,
    task::Poll,
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Context, Failure, join, peers, print, settings::Settings};
use crate::{
    app::{App, Doors, ReadyLine},
    config::{self, Layer, home},
    telemetry,
};

/// A running node says what it does; libraries only what went wrong. The consensus engine warns of every sign of life that
/// does not arrive, which `status` says better.
const LOG_DEFAULT: &str = "chappie=info,openraft=error,warn";

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
    let (json, code) = (config.json, config.join.clone());
    let app = App::start(config, Doors::All).await?;
    let commands = app.commands();
    let joined = tokio::select! {
        joined = join::at_start(commands.as_ref(), code) => joined,
        () = app.stopped() => return stop(app, signals).await,
        () = signals.next() => return stop(app, signals).await,
    };
    if joined.is_err() {
        return stop(app, signals).await.and(joined);
    }
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
    stop(app, signals).await
}

/// In order, unless a signal more says that there is no time for it.
async fn stop(app: App, mut signals: Signals) -> Result<(), Failure> {
    tokio::select! {
        () = app.stop() => Ok(()),
        () = signals.next() => Err(Failure::Failed("stopped at once by a second signal".to_owned())),
    }
}

fn announce(ready: &ReadyLine, json: bool) -> Result<(), Failure> {
    if json { print::json(ready) } else { print::text(&line(ready)) }
}

fn line(ready: &ReadyLine) -> String {
    let mcp = ready.mcp.as_deref().unwrap_or("-");
    let names = ready.sessions.iter().map(|session| session.name.as_deref().unwrap_or(&session.cwd));
    let sessions = match ready.sessions.len() {
        0 => "no sessions yet".to_owned(),
        _ => format!("sessions: {}", names.collect::<Vec<_>>().join(", ")),
    };
    let mesh = ready.quic.as_ref().map_or_else(String::new, |quic| format!("mesh at {quic} (UDP); "));
    format!("node {} is ready: MCP at {mcp}; {mesh}{sessions}\n", peers::short(&ready.node))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_for_people_says_where_both_doors_are() {
        let ready = ReadyLine {
            ready: true,
            node: "ABCDEFG-HIJKLMN".into(),
            mcp: Some("http://127.0.0.1:1/mcp".into()),
            quic: Some("[::]:24274".into()),
            sessions: Vec::new(),
        };
        let told = line(&ready);
        assert_eq!(
            told,
            "node ABCDEFG is ready: MCP at http://127.0.0.1:1/mcp; mesh at [::]:24274 (UDP); no sessions yet\n"
        );
        assert!(!line(&ReadyLine { quic: None, ..ready }).contains("mesh"));
    }
}
