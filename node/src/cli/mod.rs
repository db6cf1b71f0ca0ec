//! The command line (design section 11): parses, finds the node, asks it, prints. One file for each subcommand; what a
//! command does is behind [`Commands`](crate::control::Commands), never here.

mod attach;
mod completions;
mod confirm;
mod doctor;
mod forget;
mod import_state;
mod invite;
mod join;
mod log;
mod mcp;
mod mesh;
mod node;
mod peers;
mod print;
mod receipts;
mod reset_identity;
mod say;
mod session;
mod sessions;
mod settings;
mod status;
#[cfg(test)]
mod tests;
mod up;

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use crate::{
    app::{self, StartError},
    config::{Config, ConfigError, Layer, home::HomeError, load, load::Environment},
    control::{CommandError, socket::SocketError},
    telemetry,
};

/// ChatGPT's tools on your own machines.
#[derive(Debug, Parser)]
#[command(name = "chappie", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.")]
pub struct Cli {
    /// The folder with everything of this node [default: $XDG_STATE_HOME/chappie] [env: CHAPPIE_HOME]
    #[arg(long, global = true, value_name = "DIR")]
    home: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node
    Up(up::Args),
    /// Speak MCP on standard input and output
    Mcp(mcp::Args),
    /// Show the node, its mesh and its sessions
    Status(status::Args),
    /// Make a code that lets another device into this mesh
    Invite(invite::Args),
    /// Join the mesh of the device that made a code
    Join(join::Args),
    /// List the other devices of the mesh
    Peers(peers::Args),
    /// Take a device out of the mesh
    Forget(forget::Args),
    /// Begin a mesh anew that lost its voters, or settle a split
    #[command(subcommand)]
    Mesh(mesh::Command),
    /// Make this home another device, which stands alone
    ResetIdentity(reset_identity::Args),
    /// List the sessions of all devices
    Sessions(sessions::Args),
    /// Open or end a session
    #[command(subcommand)]
    Session(session::Command),
    /// Follow a session and type into it
    Attach(attach::Args),
    /// Say something in a session; it reaches ChatGPT with the next result
    Say(say::Args),
    /// Print a session's history
    Log(log::Args),
    /// List and settle operation receipts
    Receipts(receipts::Args),
    /// Take over the bindings of the original program's state file
    ImportState(import_state::Args),
    /// Look for what could go wrong on this machine
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// Why a command ends without having done its work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// It failed: exit code 1.
    #[error("{0}")]
    Failed(String),
    /// It was asked for wrongly: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Whoever read the output has enough of it: not an error.
    #[error("the output was closed")]
    OutputClosed,
    /// All is said already: exit code 1.
    #[error("")]
    Silent,
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        Self::Failed(error.message)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<SocketError> for Failure {
    fn from(error: SocketError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<HomeError> for Failure {
    fn from(error: HomeError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<telemetry::FilterError> for Failure {
    fn from(error: telemetry::FilterError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    /// For writing to standard output.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Failed(format!("cannot write to standard output: {error}")),
        }
    }
}

/// Where the command acts.
struct Context {
    home: PathBuf,
    environment: Environment,
}

impl Context {
    fn config(&self, flags: Layer) -> Result<Config, Failure> {
        Ok(load::load(flags, self.home.clone(), &self.environment)?)
    }

    /// `path` as the node must be told it: it has another working folder.
    fn absolute(&self, path: &std::path::Path) -> PathBuf {
        self.environment.cwd.join(path)
    }
}

/// Runs the program on `arguments`, the first of which is its name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no error; clap knows.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let code = match execute(cli) {
        Ok(()) | Err(Failure::OutputClosed) => return ExitCode::SUCCESS,
        Err(Failure::Silent) => return ExitCode::from(1),
        Err(failure) => {
            let _ = writeln!(io::stderr(), "chappie: {failure}");
            if matches!(failure, Failure::Usage(_)) { 2 } else { 1 }
        }
    };
    ExitCode::from(code)
}

fn execute(cli: Cli) -> Result<(), Failure> {
    if let Command::Completions(args) = cli.command {
        return completions::run(&args);
    }
    let environment = Environment::of_process();
    let home = environment.home(cli.home.as_deref())?;
    let context = Context { home, environment };
    let runtime = app::runtime().map_err(|cause| Failure::Failed(format!("cannot start: {cause}")))?;
    let outcome = runtime.block_on(dispatch(&context, cli.command));
    // A thread may still wait for a line of standard input; nobody waits for that thread.
    runtime.shutdown_background();
    outcome
}

async fn dispatch(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(args) => up::run(context, args).await,
        Command::Mcp(args) => mcp::run(context, args).await,
        Command::Status(args) => status::run(context, &args).await,
        Command::Invite(args) => invite::run(context, &args).await,
        Command::Join(args) => join::run(context, args).await,
        Command::Peers(args) => peers::run(context, &args).await,
        Command::Forget(args) => forget::run(context, args).await,
        Command::Mesh(command) => mesh::run(context, command).await,
        Command::ResetIdentity(args) => reset_identity::run(context, &args).await,
        Command::Sessions(args) => sessions::run(context, &args).await,
        Command::Session(command) => session::run(context, command).await,
        Command::Attach(args) => attach::run(context, args).await,
        Command::Say(args) => say::run(context, args).await,
        Command::Log(args) => log::run(context, args).await,
        Command::Receipts(args) => receipts::run(context, args).await,
        Command::ImportState(args) => import_state::run(context, &args).await,
        Command::Doctor(args) => doctor::run(context, &args).await,
        Command::Completions(args) => completions::run(&args),
    }
}
