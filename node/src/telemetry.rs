//! Logging: one compact line an event on standard error, where no protocol is spoken. Set up once, by the command line.

use std::io;

use tracing_subscriber::EnvFilter;

/// The filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{filter:?} is not a log filter ({cause}); write a level such as `info`, or `chappie=debug,warn`")]
pub struct FilterError {
    filter: String,
    cause: String,
}

/// Starts logging what `filter` lets through, in the syntax of `RUST_LOG`. A second start changes nothing.
///
/// # Errors
/// When the filter cannot be read.
pub fn start(filter: &str) -> Result<(), FilterError> {
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|cause| FilterError { filter: filter.to_owned(), cause: cause.to_string() })?;
    let subscriber = tracing_subscriber::fmt()
        .compact()
        .with_env_filter(parsed)
        // Colours are not compiled in, and asking for them on a terminal is a panic of a debug build.
        .with_ansi(false)
        // A client that closed our standard error must not bring the node down.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let _already_started = subscriber.try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_a_list_and_anything_else_is_named() {
        for good in ["info", "chappie=debug,warn", "off"] {
            assert_eq!(start(good), Ok(()), "{good}");
        }
        let error = start("chappie=loud=very").unwrap_err().to_string();
        assert!(error.contains("chappie=loud=very") && error.contains("info"), "{error}");
    }
}
