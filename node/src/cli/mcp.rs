//! `chappie mcp`: the stdio door. It carries bytes between standard input and output and a node, and ends with either
//! side or with its parent. It reads no MCP itself; standard output carries nothing else.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream as Blocking,
    time::Duration,
};

use rustix::process::{Pid, getppid};
use tokio::{
    net::UnixStream,
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{Context, Failure, join, node, settings::Settings, up::Signals};
use crate::{
    app::{App, Doors, StartError},
    config::{JoinCode, Layer, SessionSpec, home},
    control::{CommandError, Commands, SessionNew, SessionRow, client::Remote, socket::SocketError},
    host::HostKind,
    telemetry,
};

/// After the end of the input, answers under way may still go out. A client that closed and waits for our end kills us
/// after a few seconds; one that piped a script in reads on.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
/// How often the parent is looked at; a client that dies leaves the end of the input behind, so this is the second net.
const PARENT_POLL: Duration = Duration::from_secs(1);
/// A node that another process starts at this moment is up long before.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked for meanwhile.
const START_POLL: Duration = Duration::from_millis(20);
/// Large enough for most messages at once; a picture takes several rounds.
const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
}

/// How a side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Standard input is at its end.
    Input,
    /// The node closed the stream.
    Node,
    /// Nobody reads standard output any more.
    Output,
}

pub(super) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    // First of all: a parent that dies while we start must not be taken for one we never had.
    let parent = getppid();
    let flags = args.settings.layer();
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(remote) = node::find(context).await? {
            return through(context, &remote, flags, parent).await;
        }
        match here(context, flags.clone()).await? {
            Some(started) => return serve(started, parent).await,
            // Another process was faster and will answer in a moment.
            None if Instant::now() < deadline => sleep(START_POLL).await,
            None => return Err(Failure::Failed("a node is starting and does not come up; try again".to_owned())),
        }
    }
}

/// Through the node that runs. Folders named on the command line become its sessions; its other settings stay.
async fn through(context: &Context, remote: &Remote, flags: Layer, parent: Option<Pid>) -> Result<(), Failure> {
    let asked = flags.anchored(&context.environment.cwd, context.environment.user_home()).session;
    let session = match asked {
        Some(specs) => open_all(remote, specs).await?,
        None => started_in(context, remote).await,
    };
    carry(remote.open_mcp(session).await?, parent).await
}

/// A node in this process.
struct Started {
    app: App,
    /// Where a client without a chat works.
    session: Option<String>,
    /// The invite that the settings name.
    code: Option<JoinCode>,
}

/// A node in this process, with the control socket, so that other commands and doors find it; `None` when another
/// process became the node meanwhile.
async fn here(context: &Context, flags: Layer) -> Result<Option<Started>, Failure> {
    let asked = flags.clone().anchored(&context.environment.cwd, context.environment.user_home()).session;
    let config = context.config(flags)?;
    telemetry::start(config.log.as_deref().unwrap_or(node::LOG_DEFAULT))?;
    home::prepare(&config.home)?;
    let code = config.join.clone();
    let app = match App::start(config, Doors::Control).await {
        Ok(app) => app,
        Err(StartError::Socket(SocketError::Running { .. })) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let commands = app.commands();
    let session = match asked {
        Some(specs) => open_all(commands.as_ref(), specs).await?,
        None => started_in(context, commands.as_ref()).await,
    };
    Ok(Some(Started { app, session, code }))
}

/// Opens what the command line names; its first session is where a client without a chat works.
async fn open_all(commands: &dyn Commands, specs: Vec<SessionSpec>) -> Result<Option<String>, CommandError> {
    let mut first = None;
    for spec in specs {
        let row = open(commands, spec).await?;
        first.get_or_insert(row.id);
    }
    Ok(first)
}

/// The session of the folder this was started in. A service manager starts programs in the root or in a home folder:
/// neither is anybody's project, and the client then selects among the sessions there are.
async fn started_in(context: &Context, commands: &dyn Commands) -> Option<String> {
    let dir = context.environment.cwd.clone();
    if dir.parent().is_none() || context.environment.user_home() == Some(dir.as_path()) {
        return None;
    }
    match open(commands, SessionSpec { dir, name: None }).await {
        Ok(row) => Some(row.id),
        Err(error) => {
            tracing::warn!(%error, "the folder this was started in is no session");
            None
        }
    }
}

async fn open(commands: &dyn Commands, spec: SessionSpec) -> Result<SessionRow, CommandError> {
    let request = SessionNew { dir: spec.dir, name: spec.name, host: HostKind::Native };
    commands.session_new(request).await
}

/// Carries until one side ends or a signal comes, then stops the node in order.
async fn serve(Started { app, session, code }: Started, parent: Option<Pid>) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let (ours, node) =
        UnixStream::pair().map_err(|cause| Failure::Failed(format!("cannot open a pair of sockets: {cause}")))?;
    let serving = tokio::spawn(app.commands().serve_mcp(node, session));
    let commands = app.commands();
    // Beside the service: a client waits for its first answer and not for another device.
    let joining = async {
        if let Err(error) = join::at_start(commands.as_ref(), code).await {
            tracing::error!(%error, "this device stays without the others");
        }
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = carry(ours, parent) => ended,
        () = app.stopped() => Ok(()),
        () = signals.next() => Ok(()),
        () = joining => Ok(()),
    };
    tokio::select! {
        () = app.stop() => {}
        () = signals.next() => return Err(Failure::Failed("stopped at once by a second signal".to_owned())),
    }
    serving.abort();
    ended
}

/// Carries bytes both ways until one side ends.
async fn carry(stream: UnixStream, parent: Option<Pid>) -> Result<(), Failure> {
    let broken = |cause| Failure::Failed(format!("cannot reach the node: {cause}"));
    let stream = stream.into_std().map_err(broken)?;
    stream.set_nonblocking(false).map_err(broken)?;
    let other = stream.try_clone().map_err(broken)?;
    let (sender, mut ends) = mpsc::channel(2);
    let input_ended = sender.clone();
    // Threads and not tasks: blocking reads and writes are the fastest way through standard input and output, and they
    // leave the flags of a terminal or pipe that others share alone.
    std::thread::spawn(move || carry_in(&mut io::stdin().lock(), &stream, &input_ended));
    std::thread::spawn(move || {
        let end = copy_out(&other, &mut io::stdout().lock());
        let _ = sender.blocking_send(end);
    });
    let first = tokio::select! {
        end = ends.recv() => end,
        () = gone(parent) => return Ok(()),
    };
    let last = match first {
        Some(End::Input) => {
            timeout(DRAIN_LIMIT, ends.recv()).await.map_or(Some(End::Output), |end| end.map(|_| End::Output))
        }
        other => other,
    };
    match last {
        Some(End::Node) => Err(Failure::Failed("the node closed the connection; is it still running?".to_owned())),
        _ => Ok(()),
    }
}

/// Tells the end before the node can see it: a node that closes at once would else be taken for one that went away.
fn carry_in(input: &mut impl Read, node: &Blocking, ends: &mpsc::Sender<End>) {
    let _ = ends.blocking_send(copy_in(input, node));
    let _ = node.shutdown(Shutdown::Write);
}

fn copy_in(input: &mut impl Read, node: &Blocking) -> End {
    match copy(input, &mut &*node) {
        Copied::All | Copied::Unreadable => End::Input,
        Copied::Unwritable => End::Node,
    }
}

fn copy_out(node: &Blocking, output: &mut impl Write) -> End {
    match copy(&mut &*node, output) {
        Copied::All | Copied::Unreadable => End::Node,
        Copied::Unwritable => End::Output,
    }
}

enum Copied {
    All,
    Unreadable,
    Unwritable,
}

/// Unlike `io::copy` it hands every piece on at once and tells which side failed.
fn copy(from: &mut impl Read, to: &mut impl Write) -> Copied {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Copied::All,
            Ok(count) => {
                if to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_err() {
                    return Copied::Unwritable;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Copied::Unreadable,
        }
    }
}

/// Ends when `parent`, the process that started us, does. The parent-death signal is no use here: it fires when the
/// *thread* ends that started us, and clients start servers from short-lived threads.
async fn gone(parent: Option<Pid>) {
    while getppid() == parent {
        sleep(PARENT_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_pass_unchanged_and_the_end_of_the_input_reaches_the_node() {
        let (ours, mut node) = Blocking::pair().unwrap();
        let sent: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let (sender, mut ends) = mpsc::channel(2);
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            node.read_to_end(&mut got).unwrap();
            (got, ends.try_recv())
        });
        carry_in(&mut sent.as_slice(), &ours, &sender);
        let (got, told) = reader.join().unwrap();
        assert_eq!(got, expected);
        assert_eq!(told, Ok(End::Input), "told before the node saw the end");
    }

    #[test]
    fn it_is_told_which_side_ended() {
        let (ours, node) = Blocking::pair().unwrap();
        (&node).write_all(b"x").unwrap();
        assert_eq!(copy_out(&ours, &mut Closed), End::Output);
        drop(node);
        assert_eq!(copy_out(&ours, &mut Vec::new()), End::Node);
        assert_eq!(copy_in(&mut b"y".as_slice(), &ours), End::Node);
    }
}
