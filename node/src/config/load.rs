//! Reads the process's environment and `<home>/config.toml`. It decides nothing: the rules are in [`super`].

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{Config, ConfigError, FILE, HOME_VARIABLE, Layer};

/// A settings' file is a few lines; whatever is larger is another file in the wrong place.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What a configuration depends on besides flags and the file.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Every variable.
    pub variables: Vec<(OsString, OsString)>,
    /// The working folder, for relative paths.
    pub cwd: PathBuf,
    /// The machine's name, the default for the node's.
    pub host_name: String,
}

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            variables: env::vars_os().collect(),
            cwd: env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// The user's own folder.
    #[must_use]
    pub fn user_home(&self) -> Option<&Path> {
        self.folder("HOME")
    }

    /// The node's folder: `flag`, else `CHAPPIE_HOME`, else `$XDG_STATE_HOME/chappie`, else `~/.local/state/chappie`.
    ///
    /// # Errors
    /// When none of these is known.
    pub fn home(&self, flag: Option<&Path>) -> Result<PathBuf, ConfigError> {
        if let Some(path) = flag.or_else(|| self.variable(HOME_VARIABLE)) {
            return Ok(self.cwd.join(path));
        }
        let state = self.folder("XDG_STATE_HOME").map(Path::to_owned);
        let state = state.or_else(|| self.user_home().map(|home| home.join(".local/state")));
        state.map(|state| state.join("chappie")).ok_or(ConfigError::NoHome)
    }

    fn variable(&self, name: &str) -> Option<&Path> {
        let value = self.variables.iter().find(|(variable, _)| variable == name);
        value.map(|(_, value)| Path::new(value)).filter(|path| !path.as_os_str().is_empty())
    }

    /// A variable that must be an absolute path; the base directory specification says to ignore others.
    fn folder(&self, name: &str) -> Option<&Path> {
        self.variable(name).filter(|path| path.is_absolute())
    }
}

/// The configuration of the node in `home` (see [`Environment::home`]).
///
/// # Errors
/// When the file or a variable is wrong; flags were checked as they were parsed.
pub fn load(flags: Layer, home: PathBuf, environment: &Environment) -> Result<Config, ConfigError> {
    let path = home.join(FILE);
    let user_home = environment.user_home();
    let from_file = Layer::from_toml(&read(&path)?, &path)?.anchored(&home, user_home);
    let from_variables = Layer::from_variables(&environment.variables)?.anchored(&environment.cwd, user_home);
    let from_flags = flags.anchored(&environment.cwd, user_home);
    Ok(from_flags.over(from_variables).over(from_file).complete(home, &environment.host_name))
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let fail = |cause: &dyn std::fmt::Display| ConfigError::Read { path: path.to_owned(), cause: cause.to_string() };
    // Looked at before it is opened: opening a pipe would wait for a writer for ever.
    let facts = match fs::metadata(path) {
        Ok(facts) => facts,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(cause) => return Err(fail(&cause)),
    };
    if !facts.is_file() || facts.len() > FILE_BYTES_MAX {
        return Err(fail(&"not a file of at most 1 MiB; move it away"));
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|cause| fail(&cause))?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|cause| fail(&cause))?;
    Ok(text)
}
