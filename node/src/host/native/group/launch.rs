//! How a command is started so that it can neither wait for a person nor reach the node's terminal.
//!
//! **No terminal.** A child must not reach the terminal the node was started from: a password prompt on `/dev/tty`
//! would wait for ever. What decides is whether the node has a controlling terminal at all:
//! - it has none (a service, a client's child process): a process group of its own is enough, because children have no
//!   controlling terminal either. The standard library starts such a child with `posix_spawn`, which costs 1 ms less
//!   than `fork` does here (1.6 against 2.6 ms for `bash -c true`);
//! - it has one (`chappie up` in a shell): the child must leave the session, which the standard library cannot ask for
//!   without unsafe code. It is started through the program `setsid` (util-linux, busybox), which makes the session and
//!   becomes the command, same pid, 1 ms more; where there is no such program (macOS) through this binary itself
//!   with [`SESSION_ARGUMENT`]. The node itself stays in its session, so that Ctrl-C still reaches it.
//!
//! Not here: what is done with the running command.

use std::{
    ffi::OsString,
    io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// What commands find in their environment besides the node's own: nothing may wait for a person at a terminal. Pagers
/// print, editors fail at once, git does not ask for passwords.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("EDITOR", "false"),
    ("VISUAL", "false"),
    ("GIT_EDITOR", "false"),
    ("GIT_SEQUENCE_EDITOR", "false"),
    ("GIT_TERMINAL_PROMPT", "0"),
];

/// What a command must not inherit: the invitation secret of a node that was started to join a mesh.
const SECRETS: [&str; 1] = ["CHAPPIE_JOIN"];

/// A command that will run in a process group of its own, in `cwd`, with no terminal and nothing to read. The caller
/// says where its output goes, then starts it.
#[must_use]
pub fn command(program: &Path, cwd: &Path) -> Command {
    static ISOLATION: OnceLock<Isolation> = OnceLock::new();
    let mut command = ISOLATION.get_or_init(Isolation::find).command(program);
    command.current_dir(cwd).stdin(Stdio::null()).envs(ENVIRONMENT);
    // Work of another node that this one may itself be a part of.
    command.env_remove("CHAPPIE_CALL").env_remove("CHAPPIE_PROCESS");
    for secret in SECRETS {
        command.env_remove(secret);
    }
    command
}

/// How children are kept off the terminal; see the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Isolation {
    Group,
    Setsid(PathBuf),
    Own(PathBuf),
}

impl Isolation {
    fn find() -> Self {
        if std::fs::File::open("/dev/tty").is_err() {
            return Self::Group;
        }
        let own = || std::env::current_exe().ok().filter(|exe| exe.file_stem().is_some_and(|name| name == "chappie"));
        find_program("setsid").map(Self::Setsid).or_else(|| own().map(Self::Own)).unwrap_or(Self::Group)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = match self {
            Self::Group => {
                let mut command = Command::new(program);
                command.process_group(0);
                return command;
            }
            // Without `process_group`: the child is then no group leader, so that `setsid` need not fork.
            Self::Setsid(setsid) => Command::new(setsid),
            Self::Own(exe) => {
                let mut command = Command::new(exe);
                command.arg(SESSION_ARGUMENT);
                command
            }
        };
        command.arg(program);
        command
    }
}

/// First argument with which this binary only makes a session and becomes the command in the arguments after it.
pub const SESSION_ARGUMENT: &str = "__session";

/// Makes a session and becomes the command `arguments`; returns only to say why it could not.
pub fn become_session(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let Some(program) = arguments.next() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "expected a command after __session");
    };
    match rustix::process::setsid() {
        Ok(_) => Command::new(program).args(arguments).exec(),
        Err(cause) => cause.into(),
    }
}

/// The first executable file called `name` on `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(&path).filter(|folder| folder.as_os_str().as_bytes().starts_with(b"/")).find_map(|folder| {
        let file = folder.join(name);
        let found = file.metadata().ok()?;
        (found.is_file() && found.permissions().mode() & 0o111 != 0).then_some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_started_through_setsid_leads_a_session_under_its_own_pid() {
        let setsid = find_program("setsid").expect("the program setsid (util-linux) is needed for this test");
        let mut command = Isolation::Setsid(setsid).command(&find_program("sh").unwrap());
        let child = command.args(["-c", "cut -d' ' -f6 /proc/$$/stat"]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let out = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), pid.to_string());
    }

    #[test]
    fn programs_are_found_on_the_path_only_when_executable() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program-of-chappie"), None);
    }

    #[test]
    fn becoming_nothing_is_refused() {
        assert_eq!(become_session(std::iter::empty()).kind(), io::ErrorKind::InvalidInput);
    }
}
