//! The socket file `<CHAPPIE_HOME>/chappie.sock`: who may bind it, how a long path is reached, and when it is removed.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{FlockOperation, Mode, OFlags};
use tokio::{
    net::{UnixListener, UnixStream},
    time::{Instant, sleep},
};

/// The socket's name inside the home folder.
pub const FILE: &str = "chappie.sock";
/// `sun_path` has 108 bytes on Linux, and the last is zero.
const PATH_BYTES_MAX: usize = 107;
/// A command that works without a node holds the home for a moment; a node that starts then waits so long for it.
const HOLD_LIMIT: Duration = Duration::from_secs(10);
/// How often it is tried meanwhile.
const HOLD_POLL: Duration = Duration::from_millis(20);

/// Why the control socket cannot be bound or reached.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another node has it.
    #[error("a node runs already for {}; stop it, or set CHAPPIE_HOME to another folder", home.display())]
    Running {
        /// The home folder.
        home: PathBuf,
    },
    /// A process holds the home and serves no socket.
    #[error(
        "another chappie process has been using {} for {} s and answers nobody; end it and try again",
        home.display(), HOLD_LIMIT.as_secs()
    )]
    Busy {
        /// The home folder.
        home: PathBuf,
    },
    /// Something else stands there.
    #[error("{} is not a socket; move it away and start again", .0.display())]
    NotASocket(PathBuf),
    /// Too long for the system, and no other way to it.
    #[error(
        "{} is {} bytes long and a socket's path may have {PATH_BYTES_MAX}; set CHAPPIE_HOME to a shorter path",
        .0.display(), .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// The system refused.
    #[error("cannot {doing} the control socket {}: {cause}", path.display())]
    Io {
        /// `bind`, `lock`, `reach`, `protect` or `remove`.
        doing: &'static str,
        /// The socket.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// How to name the socket to the system. A path over the limit is named through the open home folder, which needs no
/// second place for the socket and no note of where it is.
struct Address {
    /// Where it is.
    path: PathBuf,
    /// What the system is told.
    named: PathBuf,
    /// The home folder; open as long as `named` may go through it.
    home: OwnedFd,
}

impl Address {
    fn of(home: &Path) -> Result<Self, SocketError> {
        let path = home.join(FILE);
        let io = |cause: rustix::io::Errno| SocketError::Io { doing: "reach", path: path.clone(), cause: cause.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let home = rustix::fs::open(home, flags, Mode::empty()).map_err(io)?;
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self { named: path.clone(), path, home });
        }
        let named = PathBuf::from(format!("/proc/self/fd/{}", home.as_raw_fd()));
        if !named.is_dir() {
            return Err(SocketError::TooLong(path));
        }
        Ok(Self { path, named: named.join(FILE), home })
    }
}

/// The home folder of a node, held by one process at a time: two starts cannot both find a socket dead and remove it,
/// and a command that opens the stores itself does not meet a node that does. The system lets go when the process ends.
#[derive(Debug)]
pub struct Held {
    /// The lock is on the open folder, so there is no lock file to be left behind.
    _home: OwnedFd,
}

impl Held {
    /// Takes the home; `None` when another process has it.
    ///
    /// # Errors
    /// When the folder cannot be opened.
    pub fn try_take(home: &Path) -> Result<Option<Self>, SocketError> {
        Self::lock(Address::of(home)?)
    }

    fn lock(address: Address) -> Result<Option<Self>, SocketError> {
        match rustix::fs::flock(&address.home, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _home: address.home })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(cause) => Err(SocketError::Io { doing: "lock", path: address.path, cause: cause.into() }),
        }
    }

    /// Takes the home for a node, waiting for a command that is about to let go.
    async fn take(home: &Path) -> Result<Self, SocketError> {
        let deadline = Instant::now() + HOLD_LIMIT;
        loop {
            if let Some(held) = Self::try_take(home)? {
                return Ok(held);
            }
            if connect(home).await?.is_some() {
                return Err(SocketError::Running { home: home.to_owned() });
            }
            if Instant::now() >= deadline {
                return Err(SocketError::Busy { home: home.to_owned() });
            }
            sleep(HOLD_POLL).await;
        }
    }
}

/// Connects to the node of `home`; `None` when none runs.
///
/// # Errors
/// When the socket is there and cannot be reached.
pub async fn connect(home: &Path) -> Result<Option<UnixStream>, SocketError> {
    if !home.join(FILE).exists() {
        return Ok(None);
    }
    let address = Address::of(home)?;
    match UnixStream::connect(&address.named).await {
        Ok(stream) => Ok(Some(stream)),
        Err(cause) if matches!(cause.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(None),
        Err(cause) => Err(SocketError::Io { doing: "reach", path: address.path, cause }),
    }
}

/// The bound socket file, removed when this is dropped unless another stands there by then.
#[derive(Debug)]
pub struct Bound {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
    _held: Held,
}

impl Bound {
    /// Binds the socket of `home`, mode 0600. One that nobody answers on is replaced.
    ///
    /// # Errors
    /// When a node runs there, when something that is no socket stands in its place, or when the system refuses.
    pub async fn bind(home: &Path) -> Result<(UnixListener, Self), SocketError> {
        let held = Held::take(home).await?;
        let address = Address::of(home)?;
        let path = address.path.clone();
        let io = |doing| {
            let path = address.path.clone();
            move |cause: io::Error| SocketError::Io { doing, path, cause }
        };
        match fs::symlink_metadata(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(io("reach")(cause)),
            Ok(facts) if !facts.file_type().is_socket() => return Err(SocketError::NotASocket(path)),
            Ok(_) => match UnixStream::connect(&address.named).await {
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(&path).map_err(io("remove"))?;
                }
                // A full queue (`WouldBlock`) is an answer too.
                _ => return Err(SocketError::Running { home: home.to_owned() }),
            },
        }
        let listener = UnixListener::bind(&address.named).map_err(io("bind"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(io("protect"))?;
        let facts = fs::symlink_metadata(&path).map_err(io("reach"))?;
        Ok((listener, Self { path, file: (facts.dev(), facts.ino()), _held: held }))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|facts| (facts.dev(), facts.ino()) == self.file);
        if ours && let Err(cause) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %cause, "the control socket stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_home(base: &Path) -> PathBuf {
        let home = base.join("d".repeat(200)).join("e".repeat(200));
        fs::create_dir_all(&home).unwrap();
        home
    }

    #[tokio::test]
    async fn the_socket_is_private_reachable_and_gone_at_the_end() {
        let home = tempfile::tempdir().unwrap();
        let (_listener, bound) = Bound::bind(home.path()).await.unwrap();
        let path = home.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(connect(home.path()).await.unwrap().is_some());
        drop(bound);
        assert!(!path.exists());
        assert!(connect(home.path()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_second_node_on_the_same_home_is_refused_and_the_first_goes_on() {
        let home = tempfile::tempdir().unwrap();
        let (_listener, _bound) = Bound::bind(home.path()).await.unwrap();
        assert!(matches!(Bound::bind(home.path()).await, Err(SocketError::Running { .. })));
        assert!(connect(home.path()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_start_waits_for_a_command_that_holds_the_home_for_a_moment() {
        let home = tempfile::tempdir().unwrap();
        let held = Held::try_take(home.path()).unwrap().expect("nobody has it");
        assert!(Held::try_take(home.path()).unwrap().is_none());
        let mut start = Box::pin(Bound::bind(home.path()));
        assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(start.as_mut().poll(cx).is_pending())).await);
        drop(held);
        let (_listener, _bound) = start.await.unwrap();
        assert!(Held::try_take(home.path()).unwrap().is_none(), "the node has it now");
    }

    #[tokio::test]
    async fn a_live_socket_that_somebody_else_bound_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let _foreign = UnixListener::bind(home.path().join(FILE)).unwrap();
        assert!(matches!(Bound::bind(home.path()).await, Err(SocketError::Running { .. })));
        assert!(connect(home.path()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_socket_that_nobody_answers_on_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(home.path().join(FILE)).unwrap());
        assert!(home.path().join(FILE).exists(), "closing does not remove it, like a killed node");
        assert!(connect(home.path()).await.unwrap().is_none());
        let (_listener, _bound) = Bound::bind(home.path()).await.unwrap();
        assert!(connect(home.path()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_refused_and_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Bound::bind(home.path()).await, Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn a_socket_that_took_our_place_is_not_removed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        let (_listener, bound) = Bound::bind(home.path()).await.unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(bound);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_home_deeper_than_a_socket_path_may_be_works_all_the_same() {
        let base = tempfile::tempdir().unwrap();
        let home = long_home(base.path());
        assert!(home.join(FILE).as_os_str().len() > PATH_BYTES_MAX);
        let (_listener, bound) = Bound::bind(&home).await.unwrap();
        assert!(home.join(FILE).exists());
        assert!(connect(&home).await.unwrap().is_some());
        assert!(matches!(Bound::bind(&home).await, Err(SocketError::Running { .. })));
        drop(bound);
        assert!(!home.join(FILE).exists());
        let (_listener, _bound) = Bound::bind(&home).await.unwrap();
    }

    #[tokio::test]
    async fn a_missing_home_is_an_error_that_names_the_socket() {
        let error = Bound::bind(Path::new("/nonexistent")).await.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/chappie.sock"), "{error}");
        assert!(connect(Path::new("/nonexistent")).await.unwrap().is_none());
    }
}
